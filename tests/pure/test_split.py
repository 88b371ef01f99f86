"""Which part of a plan is made once, and which part is made afresh for each command."""

from __future__ import annotations

import pytest
from nsbox_pure.hosts import DEBIAN
from nsbox_pure.hosts import ROOT as ADMIN

from nsbox import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Details,
    Dev,
    Devpts,
    Dir,
    File,
    Hostname,
    Loopback,
    Mask,
    Mqueue,
    Op,
    Policy,
    Proc,
    RemountRo,
    RoBind,
    Symlink,
    Tmpfs,
    TmpOverlay,
    UnavailableError,
)
from nsbox._backends import compile_policy
from nsbox._core.abi import constants as c
from nsbox._kept.split import MOST_LIFTED, check, last_maps, parts
from nsbox._plan.ops import Lifted, Over, primitives

ROOT = RoBind("/", "/")


def words(ops: tuple[Op, ...]) -> list[str]:
    return [op.describe() for op in ops]


def test_same_number_as_in_c() -> None:
    """The planner's limit is the core's."""
    assert c.MAX_LIFTED == MOST_LIFTED


def test_what_is_bound_is_kept() -> None:
    """Binds and read-only contents are made once; what is writable or about namespaces, for each command."""
    plan = (
        ROOT,
        Tmpfs("/tmp"),
        Proc("/proc", cover=True),
        Mqueue("/dev/mqueue"),
        BindData("/etc/x", b"1", read_only=True),
    )
    made = parts((*plan, Hostname("box"), Loopback()))
    assert made.kept == (plan[0], plan[1], Proc("/proc"), *plan[3:])
    assert made.renewed == (Over(plan[1]), Over(plan[2]), plan[3], Hostname("box"), Loopback())


def test_mounts_on_what_is_new_go_along() -> None:
    """The topmost ones, with what is mounted in them; the rest is made again in its old order."""
    plan = (
        *(
            ROOT,
            Tmpfs("/tmp"),
            Dir("/tmp/d", 0o700),
            Bind("/ws", "/tmp/d/ws"),
            Mask("/tmp/d/ws/key"),
            Symlink("d", "/tmp/l"),
        ),
        *(File("/tmp/f", b"1"), Tmpfs("/tmp/d/ws/cache"), RoBind("/usr", "/tmp/d/ws/cache/usr"), Chmod("/tmp", 0o700)),
    )
    made = parts(plan)
    assert made.kept == plan[:-1]
    assert made.renewed == (
        *(Over(Tmpfs("/tmp"), ("/tmp/d/ws",)), plan[2], Lifted(0, "/tmp/d/ws"), plan[5], plan[6]),
        *(
            Over(Tmpfs("/tmp/d/ws/cache"), ("/tmp/d/ws/cache/usr",)),
            Lifted(1, "/tmp/d/ws/cache/usr"),
            Chmod("/tmp", 0o700),
        ),
    )


def test_fresh_on_a_lifted_mount() -> None:
    """A fresh file system on the very place of a bind that goes along: what is mounted on it goes along too."""
    plan = (ROOT, Tmpfs("/tmp"), Bind("/ws", "/tmp/b"), Tmpfs("/tmp/b"), Bind("/x", "/tmp/b/x"))
    assert parts(plan).renewed == (
        *(Over(plan[1], ("/tmp/b",)), Lifted(0, "/tmp/b")),
        *(Over(plan[3], ("/tmp/b/x",)), Lifted(1, "/tmp/b/x")),
    )


def test_fresh_on_fresh() -> None:
    """What is mounted on a fresh file system goes along, unless that itself lies on another one, which covers it."""
    plan = (ROOT, Tmpfs("/tmp"), Tmpfs("/tmp/in"))
    assert parts(plan).renewed == (Over(plan[1]), Over(plan[2]))
    with pytest.raises(UnavailableError, match="in a file system made for each command"):
        parts((*plan, Bind("/x", "/tmp/in/x")))


def test_read_only_ones_are_kept() -> None:
    """Nobody can write to it, so one is enough; what comes later on it too."""
    plan = (Tmpfs("/data"), File("/data/f", b"1"), RemountRo("/data"), RemountRo("/"))
    assert parts(plan).renewed == ()
    assert parts(plan[:2] + plan[3:]).renewed == (Over(Tmpfs("/data")), File("/data/f", b"1"))


def test_watched_where_the_host_can_change_it() -> None:
    """Mounts on binds of the host are looked after, and those in the sandbox's own file systems aren't."""
    plan = (ROOT, Mask("/etc/shadow"), Tmpfs("/tmp"), Bind("/ws", "/tmp/ws"), Mask("/tmp/ws/.env", optional=True))
    assert parts(plan).watched == (False, True, True, False, True)
    plan = (Tmpfs("/tmp"), Bind("/ws", "/tmp/ws"), Mask("/tmp/ws"), RemountRo("/"))
    assert parts(plan).watched == (False, False, True, False)


def test_which_places_are_fresh() -> None:
    """At these a copy has another mount than the kept sandbox; at all others, a copy of the same one."""
    plan = (ROOT, Bind("/tmp", "/tmp"), Tmpfs("/tmp"), Bind("/ws", "/tmp/ws"), Proc("/proc"), Mask("/proc/keys"))
    assert parts(plan).fresh == (False, True, True, False, True, False)
    plan = (Tmpfs("/data"), File("/data/f", b"1"), RemountRo("/data"), RemountRo("/"))
    assert parts(plan).fresh == (False,) * 4


def test_a_workspace() -> None:
    """All that a workspace's plan mounts is there for each command, by one way or the other."""
    plan = compile_policy(Policy.workspace("/tmp", deny=["/tmp/secret"], read=["/usr/share"]), DEBIAN)
    check(plan)
    made = parts(tuple(primitives(plan.ops)))
    fresh = [op for op in made.renewed if isinstance(op, Over | Devpts)]
    own = ["tmpfs /dev [mode 0755]", "devpts /dev/pts", "proc /proc [sys read-only]", "tmpfs /home/u1000 [mode 0700]"]
    assert words(tuple(fresh)) == own
    assert Mask("/tmp/secret", optional=True, nofollow=True) in made.kept
    assert {op.dest for op in made.renewed if isinstance(op, Lifted)} >= {"/dev/null", "/proc/keys"}
    assert RoBind("/proc/1/autogroup", "/proc/1/autogroup", optional=True) in made.renewed


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ((Tmpfs("/tmp"),), "the root is writable"),
        ((ROOT, Tmpfs("/")), "covers bind|the root is writable"),
        ((Tmpfs("/"), RoBind("/usr", "/usr")), "the root is writable"),
        ((RemountRo("/"), Tmpfs("/")), "the root is writable"),
        ((ROOT, TmpOverlay(("/a",), "/b")), "an overlay is mounted for each"),
        ((ROOT, BindFd(5, "/b")), "a descriptor is looked at"),
        ((ROOT, BindData("/b", 5, read_only=True)), "a descriptor is looked at"),
        ((ROOT, BindData("/b", b"")), "a writable file"),
        ((ROOT, Tmpfs("/tmp/a"), Tmpfs("/tmp")), "tmpfs /tmp .* covers tmpfs /tmp/a"),
        ((ROOT, Tmpfs("/tmp"), Bind("/ws", "/tmp")), "covers tmpfs /tmp"),
        ((ROOT, Bind("/a", "/b/c"), Bind("/a", "/b")), "covers bind"),
        ((Symlink("/tmp", "/t"), Tmpfs("/tmp"), Bind("/ws", "/t/ws"), RemountRo("/")), "behind a link"),
        ((Symlink("/tmp", "/t"), Tmpfs("/tmp"), File("/t/f", b""), RemountRo("/")), "behind a link"),
        ((ROOT, Tmpfs("/tmp"), File("/var/l/f", b"")), "where a link could lead elsewhere"),
        ((ROOT, Tmpfs("/tmp"), Chmod("/var/l", 0o700)), "where a link could lead elsewhere"),
        ((ROOT, Tmpfs("/tmp"), RemountRo("/var/l")), "no mount of the plan's"),
        ((ROOT, Proc("/proc"), Mask("/proc/1/environ")), "about one process"),
        (
            (ROOT, Tmpfs("/t"), BindData("/t/d/f", b"", mode=0o700, read_only=True)),
            "counts for the directories above it",
        ),
        ((Tmpfs("/t"), Symlink("t", "/l"), Chmod("/l", 0o700), RemountRo("/")), "behind a link"),
        ((ROOT, Devpts("/dev/pts"), Bind("/a", "/dev/pts/a")), "lies in devpts"),
        ((ROOT, Tmpfs("/tmp"), *(Bind("/a", f"/tmp/{i}") for i in range(49))), "more than 48 mounts"),
    ],
)
def test_nothing_to_keep(ops: tuple[Op, ...], why: str) -> None:
    """Where a copy would differ from a new sandbox, none is made, and the error says why."""
    with pytest.raises(UnavailableError, match=why):
        parts(ops)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Policy.host(backend="passthrough", require="nothing"), "the passthrough backend"),
        (Policy.layers(ROOT, details=Details(host_writes=True)), "details"),
    ],
)
def test_no_plan_for_many(policy: Policy, why: str) -> None:
    """Nor for plans whose namespaces can't be shared."""
    with pytest.raises(UnavailableError, match=why):
        check(compile_policy(policy, DEBIAN))


def test_a_user_namespace_for_each() -> None:
    """Its maps are the plan's second ones; where that has none, each id stays what it is."""
    for policy, host, maps in (
        (Policy.layers(ROOT), DEBIAN, ("1000 1000 1\n", "1000 1000 1\n")),
        (Policy.layers(ROOT, Dev("/dev"), uid=7), DEBIAN, ("7 0 1", "1000 0 1")),
        (Policy.layers(ROOT, ids="full"), ADMIN, ("0 0 4294967295\n", "0 0 4294967295\n")),
    ):
        plan = compile_policy(policy, host)
        check(plan)
        assert last_maps(plan.identity) == maps
