"""Sandbox: the host changes while it is open, or its policy does."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import in_fork
from nsbox_testing.warm import await_ready, output

import nsbox
from nsbox import Policy, Sandbox


@pytest.fixture(params=[0, 2], ids=["anew", "ready"])
def box(request: pytest.FixtureRequest, policy: Policy) -> Iterator[Sandbox]:
    """A Sandbox whose commands have their copies made, or find one that is ready."""
    with Sandbox(policy, stock=request.param) as made:
        await_ready(made)
        yield made


# ---- the host meanwhile


@pytest.fixture
def guarded(workspace: Path) -> Policy:
    """Something hidden and something read-only in the workspace; more to be hidden isn't there yet."""
    (workspace / "hidden").write_text("secret")
    (workspace / "fixed").mkdir()
    (workspace / "fixed/file").write_text("old")
    return Policy.workspace(
        workspace, deny=[workspace / "hidden", workspace / "later"], read=[workspace / "fixed"], seccomp="off"
    )


def rename_over(workspace: Path) -> str:
    (workspace / "new").write_text("secret")
    (workspace / "new").rename(workspace / "hidden")
    return "cat hidden"


def come_into_being(workspace: Path) -> str:
    (workspace / "later").write_text("secret")
    return "cat later"


def replace_directory(workspace: Path) -> str:
    (workspace / "fixed").rename(workspace / "away")
    (workspace / "fixed").mkdir()
    (workspace / "fixed/file").write_text("secret")
    return "echo x >fixed/file; echo x >fixed/more"


@pytest.mark.vm
@pytest.mark.parametrize("stock", [0, 2])
@pytest.mark.parametrize("change", [rename_over, come_into_being, replace_directory])
def test_what_changes_on_the_host_is_noticed(
    guarded: Policy, workspace: Path, stock: int, change: Callable[[Path], str]
) -> None:
    """What is hidden or read-only is so for the next command, whatever has replaced it meanwhile."""
    with Sandbox(guarded, stock=stock) as box:
        await_ready(box)
        assert "secret" not in box.shell("cat hidden later 2>&1").stdout
        await_ready(box)
        command = change(workspace)
        for _ in range(2):  # the first makes the kept tree again, the second starts in a copy of it
            done = box.shell(command)
            assert done.returncode != 0
            assert "secret" not in done.stdout
            await_ready(box)
        assert not (workspace / "fixed/more").exists()
        assert output(box, "sh", "-c", "cat hidden 2>/dev/null; echo on") == "on\n"


@pytest.mark.parametrize("stock", [0, 2])
@pytest.mark.parametrize("path", ["fixed/file", "file"])
def test_a_mount_point_below_one_that_is_renewed(workspace: Path, tmp_path: Path, stock: int, path: str) -> None:
    """A fresh file system on the host's directory, which is replaced: what was mounted on it is there as before."""
    (tmp_path / "fixed").mkdir()
    (tmp_path / "fixed/file").write_text("ours")
    cache = workspace / "cache"
    cache.mkdir()
    (cache / "file").write_text("covered")
    policy = Policy.layers(
        nsbox.RoBind("/", "/"),
        nsbox.Bind(str(workspace), str(workspace)),
        nsbox.Tmpfs(str(cache)),
        nsbox.RoBind(str(tmp_path / "fixed"), str(cache / "fixed")),
    )
    with Sandbox(policy, stock=stock) as box:
        for number in range(3):
            await_ready(box)
            done = box.shell(f"cat {cache}/{path}")
            assert done.stdout == ("ours" if path == "fixed/file" else ""), number
            cache.rename(workspace / f"away{number}")
            for name in ("fixed", "."):
                (cache / name).mkdir(parents=True, exist_ok=True)
                (cache / name / "file").write_text("another's")


@pytest.mark.parametrize("optional", [False, True])
def test_devices_that_are_others(workspace: Path, tmp_path: Path, optional: bool) -> None:
    """A source with working devices is looked after as others are, also one that wasn't there."""
    source = tmp_path / "source"
    base = (nsbox.RoBind("/", "/"), nsbox.Tmpfs("/mnt"))
    policy = Policy.layers(*base, nsbox.DevBind(str(source), "/mnt/d", optional=optional))
    if not optional:
        source.mkdir()
    with Sandbox(policy) as box:
        await_ready(box)
        assert box.call(["test", "-e", "/mnt/d/new"]) == 1
        if not optional:
            source.rename(tmp_path / "old")
        source.mkdir()
        (source / "new").touch()
        assert box.call(["test", "-e", "/mnt/d/new"]) == 0
        await_ready(box)
        assert box.call(["test", "-e", "/mnt/d/new"]) == 0


@pytest.mark.as_root("mounts something")
def test_mounts_of_another_namespace(policy: Policy, workspace: Path) -> None:
    """The caller enters another mount namespace: its mounts are the ones that count."""
    (workspace / "m").mkdir()

    def move() -> None:
        with Sandbox(policy) as box:
            await_ready(box)
            assert box.check_output(["ls", "m"]) == b""
            assert ctypes.CDLL(None).unshare(0x20000) == 0
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "none", workspace / "m"], check=True)
            (workspace / "m/on").touch()
            assert box.check_output(["ls", "m"]) == b"on\n"

    in_fork(move)


@pytest.mark.parametrize("change", [rename_over, replace_directory])
def test_control_without_looking(guarded: Policy, workspace: Path, change: Callable[[Path], str]) -> None:
    """In a sandbox that runs on, the change takes the mount along: that is what has to be noticed."""
    with nsbox.Popen(["sh"], policy=guarded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print("echo up", file=process.stdin, flush=True)
        assert process.stdout.readline() == "up\n"
        print(f"{change(workspace)} && echo done", file=process.stdin, flush=True)
        process.stdin.close()
        assert process.stdout.read() in ("secretdone\n", "done\n")


def test_a_workspace_that_is_another(box: Sandbox, workspace: Path) -> None:
    """Moved away and made again: commands are in the new one. Gone: the error is the one that there is without a Sandbox."""
    (workspace / "old").touch()
    assert "old" in output(box, "ls")
    workspace.rename(workspace.with_name("away"))
    await_ready(box)
    with pytest.raises(nsbox.SetupError, match="open source: No such file"):
        box.run(["true"])
    workspace.mkdir(mode=0o777)
    assert box.run(["touch", "new"]).returncode == 0
    assert output(box, "ls") == "new\n"
    assert os.listdir(workspace) == ["new"]
    shutil.rmtree(workspace.with_name("away"))


@pytest.mark.as_root("mounts something")
def test_what_is_mounted_and_unmounted(box: Sandbox, workspace: Path) -> None:
    """A file system that is mounted on the host is seen by the next command, and can be unmounted for good."""
    (workspace / "m").mkdir()
    assert output(box, "ls", "m") == ""
    subprocess.run(["mount", "-t", "tmpfs", "none", workspace / "m"], check=True)
    try:
        (workspace / "m/on").touch()
        assert box.check_output(["ls", "m"]) == b"on\n"
        assert output(box, "ls", "m") == "on\n"
    finally:
        subprocess.run(["umount", workspace / "m"], check=True)
    assert box.check_output(["ls", "m"]) == b""
    assert output(box, "ls", "m") == ""


# ---- another policy


def test_update(box: Sandbox, workspace: Path, tmp_path: Path) -> None:
    """Commands that run keep the policy they had; the next has the new one."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("read")
    await_ready(box)
    look = f"cat {data}/file 2>/dev/null || echo nothing"
    with box.Popen(["sh", "-c", f"echo up; read x; {look}"], stdin=-1, stdout=-1, text=True) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == "up\n"
        box.update(box.policy.with_(read=[data]))
        assert output(box, "sh", "-c", look) == "read"
        assert old.communicate("go\n")[0] == "nothing\n"
    for wrong in ({"policy": "no"}, {"policy": box.policy, "mode": "off"}, {"mode": None, "policy": 1}):
        with pytest.raises((TypeError, ValueError)):
            box.update(**wrong)
    assert output(box, "sh", "-c", look) == "read"


def test_mode(box: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disabled: nothing is contained, and HOME is the caller's, but the environment is built, the directory the policy's."""
    monkeypatch.setenv("FROM_CALLER", "1")
    monkeypatch.setenv("HOME", "/of-the-caller")
    command = ["sh", "-c", "readlink /proc/self/ns/pid; pwd; echo $FROM_CALLER $HOME"]
    here = os.readlink("/proc/self/ns/pid")
    box.update(mode="disabled")
    assert box.mode == "disabled"
    with box.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0] == f"{here}\n{workspace}\n/of-the-caller\n"
    assert process.sandbox.backend == "passthrough"
    box.update(mode="enabled")
    assert here not in output(box, *command)
    assert here not in output(box, *command)


def test_updates_while_threads_start_commands(policy: Policy) -> None:
    """Each command has one policy or the other, whole."""
    hosts = [policy.with_(hostname=name, env={"NAME": name}) for name in ("one", "two")]
    seen: list[str] = []
    with Sandbox(hosts[0]) as box:

        def work() -> None:
            for _ in range(8):
                seen.append(box.shell('echo "$(uname -n) $NAME"').stdout)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for i in range(20):
            box.update(hosts[i % 2])
            time.sleep(0.005)
        for thread in threads:
            thread.join()
    assert len(seen) == 32
    assert set(seen) <= {"one one\n", "two two\n"}
