"""Tasks: what commands write anywhere stays until the end, and the host has none of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from nsbox_testing.trees import taken

import nsbox
from nsbox import ConflictError, Policy, PolicyError, Sandbox, Task, UnavailableError
from nsbox._policy.losses import LOSSES


def sh(task: Task, command: str) -> str:
    done = task.shell(command)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ---- what commands write


@pytest.mark.vm
def test_what_commands_write_stays(task: Task, filled: Path, shown: Path) -> None:
    """In the workspace, in what the policy only shows, in /tmp, in the home; the host's files are as before."""
    before = taken(filled), taken(shown)
    sh(task, f"echo 1 > /tmp/a; echo 2 > ~/b; echo 3 > {shown}/text; rm -r {shown}/deep; echo 4 > file; mkdir new")
    assert sh(task, f"cat /tmp/a ~/b {shown}/text file; ls {shown}; ls") == "1\n2\n3\n4\ntext\ndirectory\nfile\nnew\n"
    assert (taken(filled), taken(shown)) == before


def test_system_directories_can_be_written_to(task: Task) -> None:
    """As the user, the topmost ones; as root, all. On the host nothing appears."""
    deeper = "/usr/lib" if os.geteuid() == 0 else "/usr"
    sh(task, f"echo x > /etc/nsbox-test; mkdir {deeper}/nsbox-test; rm -f /etc/issue")
    assert sh(task, f"cat /etc/nsbox-test; ls -d {deeper}/nsbox-test") == f"x\n{deeper}/nsbox-test\n"
    assert not os.path.lexists("/etc/nsbox-test")
    assert not os.path.lexists(f"{deeper}/nsbox-test")


def test_roots_deeper_directories_stay_roots(task: Task) -> None:
    """What permissions forbid stays forbidden."""
    if os.geteuid() == 0:
        pytest.skip("root may write there")
    done = task.shell("echo x > /usr/lib/nsbox-test")
    assert done.returncode != 0
    assert "Permission denied" in done.stderr


def test_all_ways_to_start(task: Task) -> None:
    """Each form that a session has, and whatever takes a policy."""
    add = "echo x >> count"
    task.run(add, check=True)
    task.shell(add, check=True)
    task.exec("sh", ["-c", add], check=True)
    assert task.call(add) == 0
    task.check_call(add)
    task.check_output(add)
    with task.Popen(add):
        pass
    nsbox.run(["sh", "-c", add], policy=task, check=True)

    async def both() -> None:
        await (await task.create_subprocess_exec("sh", "-c", add)).wait()
        await (await task.create_subprocess_shell(add)).wait()

    asyncio.run(both())
    nsbox.install()
    with nsbox.confined(task):
        subprocess.run(add, shell=True, check=True, cwd=task.workspace)
    assert sh(task, "wc -l < count") == "11\n"


def test_processes_stay_as_in_a_session(task: Task) -> None:
    sh(task, "sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid")
    assert sh(task, "cat /proc/$(cat /tmp/pid)/comm") == "sleep\n"
    sh(task, "cd directory; export X=1")
    task.shell("cd directory; export X=1", keep=True)
    assert task.shell("pwd; echo $X", keep=True).stdout == f"{task.workspace}/directory\n1\n"


def test_what_is_protected_stays_so(filled: Path, store: Path) -> None:
    """In a directory that the policy opens for writing, what it protects is read-only, and what it denies hidden."""
    (filled / "kept").mkdir()
    (filled / "kept" / "text").write_text("kept\n")
    (filled / "secret").write_text("secret\n")
    policy = Policy.workspace(filled, read=[filled / "kept"], deny=[filled / "secret"])
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        assert task.shell("echo x > kept/text").returncode != 0
        assert task.shell("cat secret").returncode != 0
        assert task.shell("rm -rf kept secret").returncode != 0
        assert sh(task, "cat kept/text") == "kept\n"
        assert [str(change) for change in task.diff()] == []


def test_single_files_stay_read_only(filled: Path, store: Path, tmp_path: Path) -> None:
    """Overlayfs lies on directories alone."""
    (tmp_path / "alone").write_text("the host's\n")
    with Sandbox(Policy.workspace(filled, write=[tmp_path / "alone"])) as box, box.task(dir=store) as task:
        assert sh(task, f"cat {tmp_path}/alone") == "the host's\n"
        assert "Read-only" in task.shell(f"echo x > {tmp_path}/alone").stderr
    assert (tmp_path / "alone").read_text() == "the host's\n"


def test_other_directories_to_write_to(filled: Path, store: Path, tmp_path: Path) -> None:
    """They too stay as they are, even after a commit, which is about the workspace alone."""
    (tmp_path / "other" / "below").mkdir(parents=True)
    policy = Policy.workspace(filled, write=[tmp_path / "other", tmp_path / "other" / "below"])
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        sh(task, f"echo x > {tmp_path}/other/x; echo y > {tmp_path}/other/below/y; echo z > z")
        assert sh(task, f"cat {tmp_path}/other/x {tmp_path}/other/below/y") == "x\ny\n"
        task.commit()
    assert taken(tmp_path / "other").keys() <= {".", "below", ""}
    assert (filled / "z").read_text() == "z\n"


def test_the_bound_of_tmp(filled: Path, store: Path) -> None:
    with Sandbox(Policy.workspace(filled, tmp_size="1M"), stock=0) as box, box.task(dir=store) as task:
        done = task.shell("head -c 3000000 /dev/zero > /tmp/x")
        assert "No space left" in done.stderr
        assert os.stat(filled).st_size >= 0
        assert int(sh(task, "stat -c %s /tmp/x")) <= 1 << 20


# ---- the workspace's changes


def test_diff_patch_and_commit(task: Task, filled: Path, store: Path) -> None:
    """They are about the workspace, and a commit ends the task."""
    sh(task, "echo new > file; rm -r directory; echo more > more; echo other > /tmp/other")
    assert [str(change) for change in task.diff()] == ["D directory/", "D directory/inner", "M file", "A more"]
    assert "+more\n" in task.patch()
    task.commit()
    assert (filled / "file").read_text() == "new\n"
    assert sorted(os.listdir(filled)) == ["file", "more"]
    assert os.listdir(store) == ["lock"]
    for use in (task.diff, task.patch, task.commit, task.snapshot, task.reset, lambda: task.run("true")):
        with pytest.raises(ValueError, match="the task is over"):
            use()


def test_a_part_of_a_writable_directory(box: Sandbox, filled: Path, store: Path) -> None:
    with box.task(filled / "directory", dir=store) as task:
        sh(task, "echo x > directory/inner; echo y > file")
        assert [str(change) for change in task.diff()] == ["M inner"]
        task.commit()
    assert (filled / "directory" / "inner").read_text() == "x\n"
    assert (filled / "file").read_text() == "one\n"


def test_only_what_was_reviewed(task: Task, filled: Path) -> None:
    sh(task, "echo new > file")
    task.diff()
    sh(task, "echo other > file")
    with pytest.raises(ConflictError, match="showed has changed"):
        task.commit()
    assert (filled / "file").read_text() == "one\n"
    assert sh(task, "cat file") == "other\n"  # the task goes on
    task.diff()
    task.commit()
    assert (filled / "file").read_text() == "other\n"


def test_conflicts(task: Task, filled: Path) -> None:
    sh(task, "echo new > file")
    (filled / "file").write_text("the host's own\n")
    with pytest.raises(ConflictError, match="file"):
        task.commit()
    assert (filled / "file").read_text() == "the host's own\n"
    assert sh(task, "cat file") == "new\n"


def test_nothing_may_run_at_a_commit(task: Task, filled: Path) -> None:
    """Not even what a command left behind."""
    sh(task, "echo new > file; sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid")
    with pytest.raises(ValueError, match="still run: sleep"):
        task.commit()
    assert (filled / "file").read_text() == "one\n"
    sh(task, "kill $(cat /tmp/pid)")
    task.commit()
    assert (filled / "file").read_text() == "new\n"


# ---- what can't be a task


@pytest.mark.parametrize("backend", ["landlock", "bwrap", "passthrough"])
def test_other_backends_cant(filled: Path, store: Path, backend: str) -> None:
    policy = Policy.workspace(filled, backend=backend, degrade=LOSSES, require="nothing")
    box = Sandbox(policy)
    with pytest.raises(UnavailableError):
        box.task(dir=store)
    box.close()


def test_what_rules_it_out(filled: Path, store: Path) -> None:
    nested = Sandbox(Policy.workspace(filled, nested=True))
    with nested, pytest.raises(UnavailableError, match="leave out nested=True"):
        nested.task(dir=store)
    disabled = Sandbox(Policy.workspace(filled), mode="disabled")
    with disabled, pytest.raises(UnavailableError, match="mode 'disabled'"):
        disabled.task(dir=store)
    host = Sandbox(Policy.host())
    with host, pytest.raises((UnavailableError, PolicyError)):
        host.task(filled, dir=store)
    box = Sandbox(Policy.workspace(filled))
    with box:
        with pytest.raises(PolicyError, match="lies in the workspace"):
            box.task(dir=filled / "store")
        with pytest.raises(PolicyError, match="isn't in a directory that the policy opens"):
            box.task(filled.parent, dir=store.parent.parent / "other-store")


def test_a_store_in_what_is_overlaid(filled: Path, shown: Path) -> None:
    with Sandbox(Policy.workspace(filled, read=[shown])) as box, pytest.raises(PolicyError, match="the task overlays"):
        box.task(dir=shown / "store")


# ---- tool calls that go on, and coroutines


def test_jobs_and_streams(task: Task) -> None:
    """They end with reset() and close(), and have the hints of a task."""
    assert "".join(event.text for event in task.stream("echo x > /tmp/x; cat /tmp/x")) == "x\n"
    job = task.background("sleep 1000")
    with pytest.raises(ValueError, match="still run: sleep"):
        task.snapshot()
    task.reset()
    assert job.wait().cancelled or job.wait().returncode != 0
    job = task.background("mkdir /app")
    assert job.wait().why[-1].kind == "read-only"
    assert "".join(event.text for event in task.stream("echo y")) == "y\n"


def test_coroutines(filled: Path, store: Path) -> None:
    async def work() -> None:
        policy = Policy.workspace(filled)
        async with nsbox.AsyncSandbox(policy, stock=0) as box, box.task(dir=store) as task:
            await task.shell("echo new > file", check=True)
            snapshot = await task.snapshot()
            await task.shell("echo other > file", check=True)
            await task.reset(snapshot)
            assert [str(change) for change in await task.diff()] == ["M file"]
            assert "+new\n" in await task.patch()
            await task.commit()

    asyncio.run(work())
    assert (filled / "file").read_text() == "new\n"


def test_file_tools(task: Task, shown: Path) -> None:
    """At any path that commands see; they belong to the commands, and the host has none of it."""
    sh(task, "echo 1 > /tmp/a")
    assert task.read("/tmp/a") == "1\n"
    task.write("/tmp/b", "2\n")
    task.write("/etc/nsbox-test", "3\n")
    task.edit(f"{shown}/text", old="host", new="task")
    task.edit("file", old="one", new="two")
    assert sh(task, f"cat /tmp/b /etc/nsbox-test {shown}/text file; echo more >> /tmp/b") == "2\n3\nthe task's\ntwo\n"
    assert "root" in task.read("/etc/passwd")
    assert task.list_files("/tmp", "?") == ["a", "b"]
    assert not os.path.lexists("/etc/nsbox-test")
    assert (shown / "text").read_text() == "the host's\n"
    with pytest.raises(nsbox.AccessError, match="of the kernel"):
        task.read("/proc/self/environ")


def test_a_root_file_system(filled: Path, store: Path, tmp_path: Path) -> None:
    """Under Policy.rootfs() the root itself is an overlay."""
    root = tmp_path / "root"
    nsbox.rootfs.build(root, ["sh", "mkdir", "ls"])
    before = taken(root)
    with Sandbox(Policy.rootfs(root, workspace=filled), stock=0) as box, box.task(filled, dir=store) as task:
        sh(task, "mkdir /app; echo x > /app/x; echo new > file")
        assert sh(task, "ls /app") == "x\n"
        assert task.read("/app/x") == "x\n"
        task.reset(task.snapshot())
        assert sh(task, "ls /app") == "x\n"
        assert [str(change) for change in task.diff()] == ["M file"]
    assert taken(root) == before
