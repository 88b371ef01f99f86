"""A destination behind a symlink is where the link leads: what an op does there, the file tools know.

Each case has a control: the command itself, which the kernel refuses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import nsbox
from nsbox import (
    AccessError,
    Bind,
    BindData,
    BindFd,
    Dev,
    Dir,
    File,
    Mask,
    Op,
    Policy,
    PolicyError,
    Proc,
    RemountRo,
    RoBind,
    Sandbox,
    SetupError,
    Symlink,
    Tmpfs,
    TmpOverlay,
)


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace with a key in it, at two depths, and with links."""
    ws = tmp_path / "ws"
    (ws / "d/e").mkdir(parents=True)
    (ws / "key").write_text("SECRET")
    (ws / "d/key").write_text("SECRET")
    (ws / "inner").symlink_to("d")
    (ws / "out").symlink_to("/ws/d/e/..")
    return ws


def policy_of(ws: Path, *ops: Op) -> Policy:
    """Return a policy with an empty root, the system's programs, and the workspace as /ws."""
    system: list[Op] = []
    for name in ("usr", "bin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            system.append(Symlink(os.readlink(f"/{name}"), f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            system.append(RoBind(f"/{name}", f"/{name}"))
    return Policy.layers(*system, Dev("/dev"), Proc("/proc"), Bind(str(ws), "/ws"), *ops)


def command_reads(policy: Policy, path: str) -> bool:
    return nsbox.run(["/usr/bin/cat", path], policy=policy, cwd="/", capture_output=True).stdout == b"SECRET"


def command_writes(policy: Policy, path: str) -> bool:
    script = 'printf SECRET > "$1"'
    return not nsbox.run(["/bin/sh", "-c", script, "sh", path], policy=policy, cwd="/", capture_output=True).returncode


LINKS: dict[str, tuple[tuple[Op, ...], str]] = {  # ops, and a place that is /ws by them
    "one": ((Symlink("/ws", "/l"),), "/l"),
    "relative": ((Symlink("ws", "/l"),), "/l"),
    "upwards": ((Symlink("../../../ws", "/x/l"),), "/x/l"),
    "a chain": ((Symlink("/x/m", "/l"), Symlink("../n", "/x/m"), Symlink("/ws", "/n")), "/l"),
    "one behind another": ((Symlink("/ws", "/l"), Symlink("l", "/m")), "/m"),
    "by a directory of the workspace": ((Symlink("/ws/d/..", "/l"),), "/l"),
    "by the host's own link": ((Symlink("/ws/inner/..", "/l"),), "/l"),
    "by a link that leads out": ((Symlink("/ws/out/..", "/l"),), "/l"),
    "made through a link": ((Dir("/x"), Symlink("/x", "/y"), Symlink("/ws", "/y/l")), "/x/l"),
}
OPS: dict[str, Callable[[str], Op]] = {
    "Mask": lambda at: Mask(f"{at}/key"),
    "Mask, optional": lambda at: Mask(f"{at}/key", optional=True),
    "Tmpfs": Tmpfs,
    "BindData": lambda at: BindData(f"{at}/key", b"other"),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("way", LINKS)
def test_hidden(ws: Path, way: str, op: str) -> None:
    """What an op hides behind a link, no tool reads, by any name; without the op both the tools and commands do."""
    links, at = LINKS[way]
    free, policy = policy_of(ws, *links), policy_of(ws, *links, OPS[op](at))
    for path in ("/ws/key", f"{at}/key"):
        assert command_reads(free, path) and free.can_read(path)
        assert not command_reads(policy, path)
        assert not policy.can_read(path)
        with Sandbox(policy) as box, pytest.raises(AccessError):
            box.read(path)
    is_readable = op.startswith(("Mask", "BindData"))
    assert policy.can_read("/ws/d/key") == command_reads(policy, "/ws/d/key") == is_readable


@pytest.mark.parametrize("way", LINKS)
def test_read_only(ws: Path, way: str) -> None:
    """What is made read-only behind a link, no tool writes to."""
    links, at = LINKS[way]
    free, policy = policy_of(ws, *links), policy_of(ws, *links, RemountRo(at))
    for path in ("/ws/key", f"{at}/key"):
        assert command_writes(free, path) and free.can_write(path)
        assert not command_writes(policy, path)
        assert policy.can_read(path) and not policy.can_write(path)


@pytest.mark.parametrize("way", LINKS)
def test_replaced(ws: Path, way: str) -> None:
    """Where a bind behind a link covers a file, tools read what commands read."""
    links, at = LINKS[way]
    other = ws.with_name("other")
    shutil.copytree(ws, other, symlinks=True)  # so that the way is there afterwards
    (other / "key").write_text("OTHER")
    policy = policy_of(ws, *links, RoBind(str(other), at))
    for path in ("/ws/key", f"{at}/key"):
        shown = nsbox.check_output(["/usr/bin/cat", path], policy=policy, cwd="/", text=True)
        with Sandbox(policy) as box:
            assert box.read(path) == shown == "OTHER"


def test_shown(ws: Path) -> None:
    """What is bound behind a link is seen where that leads."""
    policy = policy_of(ws, Symlink("/x", "/l"), Dir("/x"), RoBind(str(ws / "d"), "/l/d"))
    for path in ("/x/d/key", "/l/d/key"):
        assert command_reads(policy, path) and policy.can_read(path) and not policy.can_write(path)


def test_links_in_what_is_shown(ws: Path) -> None:
    """A link in a bind, in an overlay, or behind a descriptor is on the way as well."""
    for name, path in ("inner", "/ws/d/key"), ("out", "/ws/d/key"):
        policy = policy_of(ws, Mask(f"/ws/{name}/key"))
        assert not command_reads(policy, path) and not policy.can_read(path)
        assert command_reads(policy, "/ws/key") and policy.can_read("/ws/key")
    shown: list[Op] = [TmpOverlay((str(ws),), "/o")]
    fd = os.open(ws, os.O_PATH | os.O_CLOEXEC)
    try:
        for op in [*shown, BindFd(fd, "/o")]:
            policy = policy_of(ws, op, Mask("/o/out/key"))
            assert not command_reads(policy, "/ws/d/key") and not policy.can_read("/ws/d/key")
    finally:
        os.close(fd)


def test_a_link_that_changes(ws: Path) -> None:
    """The tools ask where a link leads now, as the next command does."""
    policy = policy_of(ws, Mask("/ws/inner/key"))
    assert not policy.can_read("/ws/d/key") and policy.can_read("/ws/key")
    (ws / "inner").unlink()
    (ws / "inner").symlink_to(".")
    for path, shows in ("/ws/d/key", True), ("/ws/key", False):
        assert command_reads(policy, path) == policy.can_read(path) == shows


def test_what_is_kept(ws: Path) -> None:
    """A mask behind a host's link, on a file system that each command of a Sandbox has afresh, isn't lost there."""
    fresh = (Tmpfs("/ws/d"), File("/ws/d/key", b"SECRET"), RemountRo("/"))
    free, policy = policy_of(ws, *fresh), policy_of(ws, *fresh, Mask("/ws/inner/key"))
    assert not command_reads(policy, "/ws/d/key")
    for way, shows in (free, True), (policy, False):
        with Sandbox(way) as box:
            for _ in range(2):
                done = box.run(["/usr/bin/cat", "/ws/d/key"], cwd="/", capture_output=True)
                assert (done.stdout == b"SECRET") == shows


def test_a_link_that_is_covered(ws: Path) -> None:
    """A link leads nowhere once a mount covers it, and what a later op mounts behind it lies at its own name."""
    policy = policy_of(ws, Symlink("/ws", "/x/l"), Tmpfs("/x"), Dir("/x/l"), File("/x/l/key", b""), Mask("/x/l/key"))
    assert command_reads(policy, "/ws/key") and policy.can_read("/ws/key")
    assert not command_reads(policy, "/x/l/key") and not policy.can_read("/x/l/key")


def test_a_loop(ws: Path) -> None:
    """A loop leads nowhere: no command starts, and no tool reads anything."""
    policy = policy_of(ws, Symlink("m", "/l"), Symlink("l", "/m"), Mask("/l/key"))
    with pytest.raises(SetupError):
        command_reads(policy, "/ws/key")
    with pytest.raises(PolicyError, match="loop"):
        policy.can_read("/ws/key")
