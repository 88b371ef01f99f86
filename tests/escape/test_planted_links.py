"""Links planted in the workspace by an earlier command, where a later sandbox is to make or mount something.

bubblewrap up to 0.11 followed them out of its half-built root and made directories and files on the host
(CVE-2026-87766). Here each op either fails with a SetupError or acts inside; the host is the same byte for byte.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import nsbox
from nsbox import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Dev,
    Dir,
    File,
    Mask,
    Mqueue,
    Op,
    Overlay,
    Policy,
    PolicyError,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    SetupError,
    Symlink,
    Tmpfs,
    TmpOverlay,
)

LINKS: dict[str, Callable[[Path], str]] = {
    "absolute": lambda victim: str(victim),
    "relative": lambda victim: f"../{victim.name}",
    "far up": lambda victim: "../" * 30 + str(victim).lstrip("/"),
    "dangling": lambda victim: f"../{victim.name}/not-there",
    "dangling absolute": lambda victim: f"{victim}/not-there",
    "proc self root": lambda victim: f"/proc/self/root{victim}",
    "proc self cwd": lambda victim: f"/proc/self/cwd/../{victim.name}",
    "proc 1 root": lambda victim: f"/proc/1/root{victim}",
    "proc self fd": lambda victim: "/proc/self/fd/3",
    "loop": lambda victim: "link",
}

OPS: dict[str, Callable[[str, Path], Op]] = {
    "dir": lambda dest, source: Dir(dest),
    "file": lambda dest, source: File(dest, b"planted"),
    "tmpfs": lambda dest, source: Tmpfs(dest),
    "bind": lambda dest, source: Bind(str(source), dest),
    "bind of a file": lambda dest, source: RoBind("/etc/passwd", dest),
    "ro bind": lambda dest, source: RoBind(str(source), dest),
    "symlink": lambda dest, source: Symlink("/etc/passwd", dest),
    "bind data": lambda dest, source: BindData(dest, b"planted"),
    "mask": lambda dest, source: Mask(dest),
    "chmod": lambda dest, source: Chmod(dest, 0o777),
    "remount": lambda dest, source: RemountRo(dest),
    "proc": lambda dest, source: Proc(dest),
    "dev": lambda dest, source: Dev(dest),
    "mqueue": lambda dest, source: Mqueue(dest),
    "overlay": lambda dest, source: TmpOverlay((str(source),), dest),
    "ro overlay": lambda dest, source: RoOverlay((str(source), "/etc"), dest),
}


def bases(workspace: Path, victim: Path) -> dict[str, tuple[Op, ...]]:
    """Return the ops that come before the one under attack: the workspace writable, at its place or another one."""
    system = [Symlink(os.readlink(f"/{n}"), f"/{n}") for n in ("bin", "lib", "lib64") if os.path.islink(f"/{n}")]
    return {
        "in an empty root": (RoBind("/usr", "/usr"), *system, Bind(str(workspace), "/w")),
        "in the host's root": (RoBind("/", "/"), Bind(str(workspace), str(workspace))),
        "with the victim readable": (
            RoBind("/usr", "/usr"),
            *system,
            RoBind(str(victim), str(victim)),
            Bind(str(workspace), str(workspace)),
        ),
        "all writable": (Bind("/", "/"),),
    }


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", OPS)
def test_op_through_a_planted_link(
    workspace: Path, victim: Path, untouched: None, tmp_path: Path, name: str, link: str
) -> None:
    """The op's destination is the link itself, or something below it; in four kinds of roots. The host never changes."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("source")
    planted = workspace / "link"
    planted.symlink_to(LINKS[link](victim))
    for where, base in bases(workspace, victim).items():
        top = "/w" if where == "in an empty root" else str(workspace)
        for below in ("", "/new/deep", "/secret"):
            policy = Policy.layers(*base, OPS[name](f"{top}/link{below}", source), unshare={"ipc"})
            try:
                nsbox.run(["true"], policy=policy, cwd="/", env={"PATH": "/usr/bin:/bin"})
            except SetupError as error:
                assert error.op is not None
            except OSError as error:  # of the command's: something was mounted where it lies
                assert error.errno is not None
    assert os.listdir(workspace) == ["link"]
    assert os.readlink(planted) == LINKS[link](victim)
    assert sorted(os.listdir(source)) == ["f"]


@pytest.mark.parametrize("link", ["absolute", "relative", "dangling", "proc self cwd"])
def test_control_the_link_leads_to_the_host(
    workspace: Path, victim: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: mkdir and open through the same links, without protection, do hit the host."""
    monkeypatch.chdir(workspace)
    planted = workspace / "link"
    planted.symlink_to(LINKS[link](victim))
    if link == "dangling":
        (planted).open("w").close()
        assert (victim / "not-there").exists()
    else:
        os.makedirs(planted / "new" / "deep")
        (planted / "secret").write_text("changed")
        assert (victim / "new" / "deep").is_dir()
        assert (victim / "secret").read_text() == "changed"


def test_links_inside_of_the_sandbox_are_followed(workspace: Path, victim: Path, untouched: None) -> None:
    """A link that stays inside resolves there: a tmpfs over what it leads to, seen by the command, not by the host."""
    (workspace / "real").mkdir()
    (workspace / "real" / "f").write_text("real")
    (workspace / "link").symlink_to("real")
    policy = Policy.layers(RoBind("/", "/"), Bind(str(workspace), str(workspace)), Tmpfs(f"{workspace}/link"))
    done = nsbox.run(
        ["sh", "-c", f"ls -A {workspace}/real | wc -l; touch {workspace}/real/new"], policy=policy, capture_output=True
    )
    assert done.stdout.strip() == b"0"
    assert os.listdir(workspace / "real") == ["f"]


def test_absolute_links_resolve_in_the_new_root(workspace: Path, victim: Path, untouched: None) -> None:
    """An absolute link leads to the sandbox's own path of that name, never to the host's."""
    (workspace / "link").symlink_to("/mnt")
    policy = Policy.layers(
        RoBind("/", "/"), Tmpfs("/mnt"), Bind(str(workspace), str(workspace)), File(f"{workspace}/link/made", b"x")
    )
    before = set(os.listdir("/mnt"))
    done = nsbox.run(["cat", "/mnt/made"], policy=policy, capture_output=True)
    assert done.stdout == b"x"
    assert set(os.listdir("/mnt")) == before


def test_planted_mask_of_a_denied_path(workspace: Path, victim: Path, untouched: None) -> None:
    """A command replaces a denied path by a link to something else: the next sandbox doesn't uncover what it led to before."""
    (workspace / "denied").write_text("hidden")
    policy = Policy.workspace(workspace, deny=[workspace / "denied"])
    (workspace / "denied").unlink()
    (workspace / "denied").symlink_to(victim)
    try:
        done = nsbox.run(["sh", "-c", "cat denied/secret; ls denied"], policy=policy, capture_output=True)
    except (PolicyError, SetupError):
        return
    assert b"the host's own" not in done.stdout
    assert b"secret" not in done.stdout


@pytest.mark.parametrize("kind", ["fifo", "socket", "device link"])
def test_planted_special_files(workspace: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a socket or a link to a device where a file is to be written or mounted blocks and hits nothing."""
    import socket

    target = workspace / "special"
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "socket":
        monkeypatch.chdir(workspace)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("special")
    else:
        target.symlink_to("/dev/full")
    before = os.lstat(target)
    for name, make in OPS.items():
        policy = Policy.layers(
            RoBind("/", "/"), Bind(str(workspace), str(workspace)), make(str(target), Path("/etc")), unshare={"ipc"}
        )
        try:
            nsbox.run(["true"], policy=policy, cwd="/")
        except OSError:
            continue
        finally:
            assert os.lstat(target).st_mode == before.st_mode, name


def test_race_of_links_and_directories(workspace: Path, victim: Path, untouched: None) -> None:
    """An attacker who swaps a directory and a link in a loop while sandboxes are set up never gets anything onto the host."""
    (workspace / "a").mkdir()
    (workspace / "b").symlink_to(victim)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
                os.rename(workspace / old, workspace / new)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        base = (RoBind("/", "/"), Bind(str(victim), str(victim)), Bind(str(workspace), str(workspace)))
        for i in range(60):
            make = list(OPS.values())[i % 8]
            try:
                nsbox.run(["true"], policy=Policy.layers(*base, make(f"{workspace}/a/new", Path("/etc"))), cwd="/")
            except OSError:
                continue
    finally:
        done.set()
        thread.join()
    for name in ("a", "b", "t"):
        path = workspace / name
        if path.is_dir() and not path.is_symlink():
            assert os.listdir(path) == []


@pytest.mark.parametrize("source", ["/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/self/fd/0"])
def test_sources_by_magic_links(workspace: Path, source: str) -> None:
    """A magic link as a source in a policy is what it is for the caller, if anything; the set-up's own are never bound."""
    policy = Policy.layers(RoBind("/", "/"), Tmpfs("/mnt"), RoBind(source, "/mnt/x"))
    try:
        done = nsbox.run(
            ["sh", "-c", "ls -d /mnt/x/* | head -3"], policy=policy, cwd="/", capture_output=True, text=True
        )
    except OSError:
        return
    assert "nsbox" not in done.stdout


def test_overlay_layers_by_links(workspace: Path, victim: Path, untouched: None) -> None:
    """The upper directory of an overlay given as a planted link: an error, or the link's target was the caller's wish; not the victim."""
    (workspace / "lower").mkdir()
    (workspace / "work").mkdir()
    (workspace / "upper").symlink_to(victim / "not-there")
    policy = Policy.layers(
        RoBind("/", "/"),
        Overlay((str(workspace / "lower"),), "/mnt", str(workspace / "upper"), str(workspace / "work")),
    )
    with pytest.raises(OSError):
        nsbox.run(["touch", "/mnt/x"], policy=policy, cwd="/")


def test_bind_of_a_descriptor_below_a_link(workspace: Path, victim: Path, untouched: None) -> None:
    """BindFd with a destination through a link."""
    (workspace / "link").symlink_to(victim)
    fd = os.open("/etc", os.O_PATH)
    try:
        with pytest.raises(SetupError):
            nsbox.run(
                ["true"],
                policy=Policy.layers(
                    RoBind("/", "/"), Bind(str(workspace), str(workspace)), BindFd(fd, f"{workspace}/link/new")
                ),
            )
    finally:
        os.close(fd)
