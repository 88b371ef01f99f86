"""A workspace that can be read but not written: Policy.workspace(read_only=True), nsbox run --read-only.

Control: the same commands in a workspace that can be written.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import AccessError, Policy, PolicyError, Sandbox
from nsbox._config.load import loads
from nsbox._config.write import dumps

WAYS = {
    "append": "echo x >> file",
    "new": "echo x > new",
    "remove": "rm file",
    "rename": "mv file other",
    "link": "ln file other",
    "directory": "mkdir made",
    "mode": "chmod 700 file",
    "time": "touch -d 2001-01-01 file",
}


@pytest.fixture
def project(workspace: Path) -> Path:
    """The workspace, with a file and a directory."""
    (workspace / "file").write_text("own\n")
    (workspace / "out").mkdir()
    return workspace


def shell(policy: Policy, line: str) -> subprocess.CompletedProcess[str]:
    return nsbox.run(["sh", "-c", line], policy=policy, capture_output=True, text=True)


def state(at: Path) -> list[tuple[object, ...]]:
    found = [(path, path.lstat()) for path in (at, *sorted(at.rglob("*")))]
    return [(path, st.st_mode, st.st_mtime_ns, st.st_size, st.st_nlink) for path, st in found]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written(project: Path, way: str) -> None:
    """Commands start there and read; each way to change something fails. Control: without read_only it succeeds."""
    policy, before = Policy.workspace(project, read_only=True), state(project)
    assert shell(policy, "pwd; cat file").stdout == f"{project}\nown\n"
    done = shell(policy, WAYS[way])
    assert done.returncode != 0 and "Read-only file system" in done.stderr and state(project) == before
    done = shell(Policy.workspace(project), WAYS[way])
    assert done.returncode == 0 and state(project) != before, done.stderr


@pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
def test_landlock(project: Path) -> None:
    """The same without mounts, for contents and names. Control: without read_only it succeeds."""
    wishes = {"backend": "landlock", "degrade": ["namespaces", "attributes", "ids", "secrets"]}
    before = state(project)
    policy = Policy.workspace(project, read_only=True, **wishes)  # type: ignore[arg-type]
    assert shell(policy, "cat file").stdout == "own\n"
    for way in ("append", "new", "remove", "rename", "directory"):
        assert shell(policy, WAYS[way]).returncode != 0 and state(project) == before
    assert shell(Policy.workspace(project, **wishes), WAYS["append"]).returncode == 0  # type: ignore[arg-type]
    assert (project / "file").read_text() == "own\nx\n"


def test_what_is_writable(project: Path) -> None:
    """What write names inside of it is writable, and so are /tmp and the home; deny still hides."""
    (project / ".env").write_text("secret")
    policy = Policy.workspace(project, read_only=True, write=[project / "out"], deny=[project / ".env"])
    done = shell(
        policy, "echo x > out/new && echo x > /tmp/x && echo x > ~/x && ! cat .env && ! touch new && rmdir out"
    )
    assert (project / "out/new").read_text() == "x\n" and not (project / "new").exists() and done.returncode != 0
    assert "secret" not in done.stdout


def test_questions(project: Path) -> None:
    """The policy says so, and so do a Sandbox's own tools."""
    policy = Policy.workspace(project, read_only=True)
    assert (policy.write, policy.read, policy.workdir) == ((), (str(project),), str(project))
    assert policy.can_read(project / "file") and not policy.can_write(project / "file")
    assert Policy.workspace(project).can_write(project / "file")
    with Sandbox(policy) as box:
        assert box.read(project / "file") == "own\n"
        with pytest.raises(AccessError):
            box.write(project / "file", "x")
        assert box.run(["sh", "-c", "echo x > new"], stderr=subprocess.DEVNULL).returncode != 0
    assert (project / "file").read_text() == "own\n" and not (project / "new").exists()


def test_it_is_a_value(project: Path) -> None:
    """It is what the same fields make by hand; a file and a pickle keep it."""
    policy = Policy.workspace(project, read_only=True, write=[project / "out"], read=["/srv"])
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert loads(dumps(policy, "toml"), "toml", base="/").policy == policy
    assert Policy.workspace(project, read_only=False) == Policy.workspace(project)


@pytest.mark.parametrize(
    ("wishes", "field", "problem"),
    [
        ({"read_only": 1}, "read_only", "1 is neither True nor False"),
        ({"read_only": "yes"}, "read_only", "'yes' is neither"),
        ({"read_only": True, "write": ["."]}, "read", "is in write too"),
    ],
)
def test_contradictions(
    project: Path, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, object], field: str, problem: str
) -> None:
    """A value of the wrong type and a contradiction name their field."""
    monkeypatch.chdir(project)
    with pytest.raises(PolicyError) as caught:
        Policy.workspace(".", **wishes)  # type: ignore[arg-type]
    assert caught.value.field == field and problem in caught.value.problem


def test_its_programs(project: Path, tmp_path: Path) -> None:
    """The workspace's virtual environment comes first in PATH, also if another directory is writable."""
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/pyvenv.cfg").touch()
    (tmp_path / "elsewhere").mkdir()
    for write in ([], [tmp_path / "elsewhere"]):
        for is_read_only in (True, False):
            policy = Policy.workspace(project, read_only=is_read_only, write=write)
            assert shell(policy, "echo $PATH").stdout.startswith(f"{project}/.venv/bin:"), (write, is_read_only)
    policy = Policy.workspace(project, read_only=True, write=[tmp_path / "elsewhere"], home="workspace")
    assert shell(policy, "echo $HOME").stdout == f"{project}\n"


@needs.programs("git")
def test_git(tmp_path: Path) -> None:
    """In a worktree git reads the repository that it belongs to, and can't change that. Control: without read_only."""
    main, task = tmp_path / "main", tmp_path / "task"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    me = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", main], ["-C", main, *me, "commit", "-qm", "one", "--allow-empty"]):
        subprocess.run(["git", *words], check=True, env=env)
    subprocess.run(["git", "-C", main, "worktree", "add", "-q", task], check=True, env=env)
    before = state(main)
    commit = f"git {' '.join(me)} commit -qm two --allow-empty"
    policy = Policy.workspace(task, read_only=True)
    done = shell(policy, f"git log --format=%s && {commit}")
    assert done.stdout == "one\n" and done.returncode != 0 and state(main) == before
    assert policy.write == ()
    done = shell(Policy.workspace(task), f"{commit} && git log --format=%s")
    assert done.stdout == "two\none\n", done.stderr


# ---- the command


def nsbox_run(at: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "nsbox", "run", *words]
    return subprocess.run(command, cwd=at, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_option(project: Path) -> None:
    """--read-only, with --write for what is writable all the same. Control: without the option."""
    done = nsbox_run(project, "--read-only", "--write", "out", "-c", "cat file; echo x > out/new; echo x > new")
    assert done.returncode != 0 and done.stdout == "own\n" and "Read-only file system" in done.stderr
    assert (project / "out/new").exists() and not (project / "new").exists()
    assert nsbox_run(project, "-c", "echo x > new").returncode == 0 and (project / "new").exists()


def test_transaction(project: Path) -> None:
    """A transaction doesn't make it writable, not even for the command itself."""
    done = nsbox_run(project, "--read-only", "--transaction", "--diff", "-c", "echo x > new; cat file")
    assert done.stdout == "own\n" and "Read-only file system" in done.stderr and not (project / "new").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host"], "--read-only: doesn't go with --host"),
        (["--policy", "box.toml"], "--read-only: doesn't go with --policy: the file says it"),
        (["--write", "."], "is in write too"),
    ],
)
def test_options_that_contradict(project: Path, words: list[str], told: str) -> None:
    """One line, and nothing runs."""
    (project / "box.toml").write_text('workspace = "."\n')
    done = nsbox_run(project, "--read-only", *words, "true")
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1
