"""Which directories of a plan branches get overlays of, and how these get among their mounts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsbox import UnavailableError
from nsbox._interpreter.mounts.overlay import MOST_PLACES, Overlaid, Place, overlaid
from nsbox._kept import split
from nsbox._plan import ops
from nsbox._plan.ops import (
    Bind,
    BindData,
    DevBind,
    Device,
    Dir,
    Lifted,
    Mask,
    Over,
    Overlay,
    Proc,
    RemountRo,
    RoBind,
    Symlink,
    Tmpfs,
)

CLOSED = RemountRo("/")


def made(*steps: ops.Op, owners: dict[str, object] | None = None, files: Sequence[str] = ()) -> Overlaid:
    """Return what becomes of ops whose sources are directories, except for these files."""
    sources = {op.src for op in steps if isinstance(op, Bind | RoBind | DevBind)} - set(files)
    return overlaid(steps, owners or {}, sources)


def renewed(*steps: ops.Op, owners: dict[str, object] | None = None) -> tuple[ops.Op, ...]:
    """Return a branch's ops."""
    found = made(*steps, CLOSED, owners=owners)
    return found.renewed(split.parts(found.steps).renewed)


def test_a_writable_directory() -> None:
    """It becomes read-only in the interpreter; a file does too, and has no overlay."""
    found = made(RoBind("/usr", "/usr"), Bind("/w", "/w", nofollow=True), Bind("/f", "/f"), files=["/f"])
    assert found.places == (Place("/w", "/w", nofollow=True),)
    assert found.steps == (RoBind("/usr", "/usr"), RoBind("/w", "/w", nofollow=True), RoBind("/f", "/f"))
    assert found.others == ()
    assert renewed(Bind("/w", "/w")) == (Lifted(0, "/w"),)


def test_what_is_hidden() -> None:
    """The overlay lacks it, wherever it lies below what shows the same; what is hidden elsewhere is mounted there."""
    steps = (
        RoBind("/usr", "/usr"),
        Mask("/usr/secret"),
        Bind("/w", "/w"),
        Bind("/w/a", "/w/a", optional=True),
        RoBind("/w/ro", "/w/ro"),
        Mask("/w/.env", optional=True),
        Mask("/w/a/b/secret"),
        Mask("/w/ro/secret"),
        Mask("/w/.env", optional=True),
    )
    found = made(*steps)
    assert found.places == (Place("/w", "/w", hidden=(".env", "a/b/secret", "ro/secret")),)
    assert found.others == ()
    assert Mask("/w/.env", optional=True) in found.steps  # the interpreter's


def test_a_place_that_is_hidden_as_a_whole() -> None:
    """It isn't overlaid, nor is one that is made read-only, or covered."""
    assert made(Bind("/w", "/w"), Mask("/w")).places == ()
    assert made(Bind("/w", "/w"), RemountRo("/w")).places == ()
    assert made(Bind("/w", "/w"), Tmpfs("/w")).places == ()


def test_elsewhere_in_the_sandbox() -> None:
    """Paths are compared on both sides: what shows another directory has an overlay, or stays, itself."""
    steps = (Bind("/data", "/w"), Bind("/data/in", "/w/in"), Bind("/data/in", "/w/other"), RoBind("/x", "/w/x"))
    found = made(*steps, Mask("/w/in/s"), Mask("/w/other/s"), Mask("/w/x/s"))
    assert found.places == (
        Place("/data", "/w", hidden=("in/s",)),
        Place("/data/in", "/w/other", hidden=("s",)),
    )
    assert found.others == ("/w/x",)


def test_another_owner() -> None:
    """For commands with kernel ids of their own, a directory of another owner is mapped by itself."""
    steps = (Bind("/w", "/w"), RoBind("/w/data", "/w/data"), Bind("/w/own", "/w/own"), Mask("/w/own/s"))
    owners: dict[str, object] = {"/w": (0, 0), "/w/data": (1000, 1000), "/w/own": (1000, 1000)}
    found = made(*steps, owners=owners)
    assert found.places == (Place("/w", "/w"), Place("/w/own", "/w/own", hidden=("s",)))
    assert found.others == ("/w/data",)
    assert made(*steps, owners=dict.fromkeys(owners, (0, 0))).places == (Place("/w", "/w", hidden=("own/s",)),)


def test_other_mounts_are_lifted() -> None:
    """Before the overlay covers them, and put down on it."""
    found = renewed(Bind("/w", "/w"), RoBind("/x", "/w/x"), BindData("/w/data", b"1", read_only=True))
    assert found == (
        Over(Tmpfs("/w", size=4096, mode=0), ("/w/x", "/w/data")),
        Lifted(0, "/w"),
        Lifted(1, "/w/x"),
        Lifted(2, "/w/data"),
    )


def test_fresh_file_systems_in_a_place() -> None:
    """They are mounted on the overlay; what lies on them goes along, an overlay too."""
    found = renewed(Bind("/h", "/home"), Tmpfs("/home/me"), Bind("/h/me/w", "/home/me/w"), Mask("/home/me/w/s"))
    assert found == (
        Over(Tmpfs("/home", size=4096, mode=0), ("/home/me/w",)),
        Lifted(0, "/home"),
        Over(Tmpfs("/home/me")),
        Lifted(2, "/home/me/w"),
        Lifted(1, "/home/me/w"),
    )


def test_places_in_places() -> None:
    """Parents first. What is mounted in the inner one is lifted before the outer overlay covers all."""
    steps = (Bind("/homes/1", "/home/me"), Bind("/home/me/w", "/home/me/w"), RoBind("/x", "/home/me/w/x"))
    found = made(*steps)
    assert [place.dest for place in found.places] == ["/home/me", "/home/me/w"]
    assert renewed(*steps) == (
        Over(Tmpfs("/home/me", size=4096, mode=0), ("/home/me/w/x",)),
        Lifted(0, "/home/me"),
        Lifted(1, "/home/me/w"),
        Lifted(2, "/home/me/w/x"),
    )


def test_places_on_fresh_file_systems() -> None:
    """The interpreter's mount is lifted as ever, and the overlay covers it; numbers begin with the overlays."""
    steps = (Tmpfs("/tmp", mode=0o1777), Bind("/tmp/w", "/tmp/w"), RoBind("/tmp/r", "/tmp/r"), Proc("/proc"))
    assert renewed(*steps) == (
        Over(Tmpfs("/tmp", mode=0o1777), ("/tmp/w", "/tmp/r")),
        Lifted(1, "/tmp/w"),
        Lifted(2, "/tmp/r"),
        Over(Proc("/proc")),
        Lifted(0, "/tmp/w"),
    )


def test_nodes_and_devices_stay() -> None:
    """What isn't about files of the host is what it was."""
    steps = (Tmpfs("/dev"), Device("/dev/null", "/dev/null"), Dir("/d"), Symlink("d", "/l"), Bind("/w", "/w"))
    assert made(*steps).steps == (*steps[:-1], RoBind("/w", "/w"))


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (Bind("/", "/host"), "the whole file system"),
        (Bind("/proc/1", "/w"), "the kernel's files"),
        (Bind("/sys", "/w"), "the kernel's files"),
        (DevBind("/", "/"), "shows devices"),
        (Overlay(("/a",), "/w", "/u", "/k"), "for one command alone"),
    ],
)
def test_what_cant_be_overlaid(op: ops.Op, why: str) -> None:
    """Each says which op, and why."""
    with pytest.raises(UnavailableError, match=f"overlay=True: .*{why}"):
        made(op)


def test_too_many() -> None:
    """A branch gets them in one message, and there is a limit to what is lifted."""
    binds = [Bind(f"/w{i}", f"/w{i}") for i in range(MOST_PLACES)]
    assert len(made(*binds).places) == MOST_PLACES
    with pytest.raises(UnavailableError, match="opens 17 directories"):
        made(*binds, Bind("/more", "/more"))
    others = [RoBind(f"/x{i}", f"/w/{i}") for i in range(split.MOST_LIFTED)]
    assert len(renewed(Bind("/w", "/w"), *others[1:])) == split.MOST_LIFTED + 1
    with pytest.raises(UnavailableError, match="more than 48 mounts"):
        renewed(Bind("/w", "/w"), *others)
