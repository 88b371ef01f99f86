"""Users in a task: user= where the ids are there, and directories of other users that become the commands' own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.ids import with_all_ids

from nsbox import Policy, PolicyError, Sandbox, Task, UnavailableError

OWNER = (1234, 1235)
full_only = pytest.mark.as_root("a task with several ids")


@contextmanager
def task_of(policy: Policy, store: Path) -> Iterator[Task]:
    with Sandbox(policy, stock=0) as box, box.task(dir=store) as task:
        yield task


def sh(task: Task, line: str, **options: Any) -> str:
    done = task.shell(line, **options)
    assert done.returncode == 0, done
    return done.stdout


def owned(path: Path, owner: tuple[int, int] = OWNER) -> None:
    """Give a tree to another user."""
    subprocess.run(["chown", "-hR", f"{owner[0]}:{owner[1]}", path], check=True)


def owner_of(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


@full_only
def test_another_user(filled: Path, store: Path) -> None:
    """With all ids, a command is any user. What it makes has that owner, in /tmp and on disk after the commit."""
    filled.chmod(0o777)
    with task_of(with_all_ids(filled), store) as task:
        assert sh(task, "id -u; id -g; id -G", user=3, group=4, extra_groups=[7]) == "3\n4\n4 7\n"
        sh(task, "echo 1 >/tmp/three; echo 2 >three", user=3, group=4)
        assert sh(task, "stat -c '%u %g' /tmp/three three").splitlines() == ["3 4", "3 4"]
        assert sh(task, "id -u") == "0\n"
        job = task.background("sleep 1000", user=3)
        job.kill()
        task.commit()
    assert owner_of(filled / "three") == (3, 4)


@full_only
def test_what_permissions_forbid(filled: Path, store: Path) -> None:
    """Another user's directory stays closed to user=, and a hint says what would open it."""
    with task_of(with_all_ids(filled), store) as task:
        done = task.shell("touch /usr/lib/made", user="nobody")
        assert done.returncode == 1
        assert [hint.message for hint in done.why if "uid= and gid=" in hint.message]
        assert [hint.kind for hint in task.shell("cat /etc/shadow", user="nobody").why] == ["outside"]
        assert sh(task, "touch /usr/lib/made") == ""


def test_without_such_ids(task: Task) -> None:
    """Its own ids are no change; for others, the error says what is missing."""
    assert task.run(["true"], user=os.geteuid(), group=os.getegid()).returncode == 0
    for options in ({"user": 12345}, {"group": 12345}, {"extra_groups": [12345]}):
        with pytest.raises(PolicyError, match=r"ids='full'") as caught:
            task.Popen(["true"], **options)  # type: ignore[call-overload]
        assert ("root" in str(caught.value)) == (os.geteuid() != 0)


@pytest.mark.as_user("root's task may have several ids")
def test_subordinate_ids_cant(filled: Path, store: Path) -> None:
    with Sandbox(with_all_ids(filled), stock=0) as box, pytest.raises(UnavailableError, match="subordinate ids"):
        box.task(dir=store)


@pytest.mark.as_root("only root may map")
def test_another_users_workspace(filled: Path, store: Path) -> None:
    """Root's commands own its owner's files, however deep, and whatever they make is that user's on disk."""
    (filled / "directory").chmod(0o700)
    owned(filled)
    with task_of(Policy.workspace(filled), store) as task:
        assert sh(task, "id -u; stat -c '%u %g' . directory/inner").splitlines() == ["0", "0 0", "0 0"]
        sh(task, "echo more >>directory/inner; mkdir directory/new; echo 1 >directory/new/file; rm file")
        task.write("directory/tool", "by a tool\n")
        sh(task, "echo >>directory/tool")
        before = task.snapshot()
        sh(task, "rm -r directory")
        task.reset(before)
        assert sh(task, "cat directory/inner directory/new/file") == "inner\nmore\n1\n"
        task.reset()
        assert sh(task, "ls; stat -c %u directory") == "directory\nfile\n0\n"
        task.reset(before)
        assert owner_of(filled / "directory" / "inner") == OWNER
        task.commit()
    made = [filled, *filled.rglob("*")]
    assert len(made) == 6
    assert {owner_of(path) for path in made} == {OWNER}
    assert not (filled / "file").exists()


@pytest.mark.as_root("only root may map")
def test_a_shown_directory_of_another_user(filled: Path, shown: Path, store: Path) -> None:
    """What the policy names in read= as well; the host's directory isn't changed."""
    owned(shown)
    with task_of(Policy.workspace(filled, read=[shown]), store) as task:
        sh(task, f"echo changed >{shown}/deep/text; touch {shown}/deep/new")
        assert sh(task, f"cat {shown}/deep/text") == "changed\n"
    assert (shown / "deep" / "text").read_text() == "the host's\n"
    assert os.listdir(shown / "deep") == ["text"]


@pytest.mark.as_root("only root may map")
def test_the_rest_keeps_its_owner(filled: Path, store: Path) -> None:
    """Two users change places: root's files in another user's directory are that user's, and closed to commands."""
    (filled / "roots").mkdir()
    (filled / "roots" / "secret").write_text("root's")
    (filled / "roots" / "secret").chmod(0o600)
    owned(filled)
    os.chown(filled / "roots", 0, 0)
    os.chown(filled / "roots" / "secret", 0, 0)
    (filled / "third").write_text("a third user's")
    (filled / "third").chmod(0o604)
    os.chown(filled / "third", 77, 78)
    with task_of(Policy.workspace(filled), store) as task:
        for line in ("cat roots/secret", "touch roots/new", "echo >>third", "chmod 666 third"):
            assert task.shell(line).returncode != 0, line
        assert sh(task, "cat third") == "a third user's"


@full_only
def test_a_policy_that_chooses_a_uid(filled: Path, store: Path) -> None:
    """The system's directories, and what it may write to, are its commands' own; others keep to the permissions."""
    owned(filled)
    with task_of(with_all_ids(filled, uid=33, gid=34), store) as task:
        sh(task, "test $(id -u) = 33; touch /usr/lib/made /etc/made directory/made; rm -r /usr/share/doc")
        assert sh(task, "stat -c '%u %g' /usr/lib/made directory/made directory/inner").split() == ["33", "34"] * 3
        for line in ("touch /usr/lib/other", "touch directory/other"):
            done = task.shell(line, user="nobody")
            assert (done.returncode, bool(done.why)) == (1, True)
        sh(task, "echo again >>/usr/lib/made")
        task.commit()
    assert os.path.isdir("/usr/share/doc")
    assert not os.path.exists("/usr/lib/made")
    assert owner_of(filled / "directory" / "made") == OWNER


@full_only
def test_what_only_root_may_read(filled: Path, shown: Path, store: Path) -> None:
    """A uid among all ids stays out of what keeps it out in a Sandbox: read= isn't mapped, and /etc/shadow hidden."""
    (shown / "deep").chmod(0o700)
    policy = with_all_ids(filled, uid=33, gid=34, read=[shown])
    filled.chmod(0o777)
    with task_of(policy, store) as task:
        for path in (shown / "deep" / "text", Path("/etc/shadow")):
            assert path.read_bytes()  # the control
            done = task.shell(f"cat {path}")
            assert (done.returncode, done.stdout) == (1, "")


@full_only
def test_real_owners_unless_a_uid_is_chosen(filled: Path, store: Path) -> None:
    """With all ids, a directory of another user is that user's, who may be had by user=."""
    owned(filled)
    with task_of(with_all_ids(filled), store) as task:
        assert task.shell("touch directory/made").returncode == 1
        sh(task, "touch directory/made", user=OWNER[0], group=OWNER[1])
        task.commit()
    assert owner_of(filled / "directory" / "made") == OWNER


@pytest.mark.as_root("only root may map")
def test_a_file_system_without_mappings(filled: Path, tmp_path: Path) -> None:
    """The kernel refuses to map overlayfs (EINVAL), so the owner stays, and a hint says what helps."""
    script = """
import os, subprocess, sys
import nsbox
base, work = sys.argv[1:]
for name in ("lower", "upper", "work"): os.mkdir(f"{base}/{name}")
os.mkdir(f"{base}/lower/deep")
subprocess.run(["chown", "-R", "1234:1235", f"{base}/lower", f"{base}/upper"], check=True)
os.mkdir(f"{base}/on")
options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
subprocess.run(["mount", "-t", "overlay", "none", "-o", options, f"{base}/on"], check=True)
with nsbox.Sandbox(nsbox.Policy.workspace(f"{base}/on"), stock=0) as box, box.task(dir=work) as task:
    done = task.shell("touch deep/made")
    print(done.returncode, [hint.message for hint in done.why])
"""
    import sys

    base = tmp_path / "base"
    base.mkdir()
    command = ["unshare", "-m", sys.executable, "-c", script, str(base), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)
    assert done.stderr == ""
    assert done.stdout.startswith("1 [")
    assert "ids='full', uid=1234, gid=1235" in done.stdout
