"""git where the workspace's .git is a file: the directory that it names is followed if it names the workspace in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, Sandbox
from nsbox._paths.git import directories

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
ME = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")


@pytest.fixture(autouse=True)
def plain_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of the user's or the machine's."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")


def git(at: Path, *words: str | Path) -> str:
    return subprocess.run(["git", *ME, *words], cwd=at, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A repository with a commit."""
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q", "-b", "trunk")
    (main / "f").write_text("1\n")
    git(main, "add", "f")
    git(main, "commit", "-qm", "one")
    return main


@pytest.fixture
def task(main: Path) -> Path:
    """A worktree of it."""
    git(main, "worktree", "add", "-q", "../task")
    return main.parent / "task"


@pytest.fixture
def sub(main: Path, tmp_path: Path) -> Path:
    """A submodule of another repository."""
    above = tmp_path / "above"
    above.mkdir()
    git(above, "init", "-q")
    git(above, "submodule", "--quiet", "add", main, "sub")
    git(above, "commit", "-qm", "with sub")
    return above / "sub"


def inside(at: Path, script: str) -> subprocess.CompletedProcess[str]:
    own = f'git() {{ command git {" ".join(ME)} "$@"; }}'
    env = f"export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null; {own}; "
    return nsbox.run(["sh", "-c", env + script], policy=Policy.workspace(at), capture_output=True, text=True)


WORK = "git status --short && echo 2 >> f && git add f && git commit -qm two && git switch -qc other && git log --format=%s"
WORK += " && git stash list && git branch -q third && git tag v1"


@pytest.mark.parametrize("kind", ["worktree", "submodule"])
def test_work(kind: str, request: pytest.FixtureRequest) -> None:
    """Status, commit, branches and tags work, and are in the repository afterwards."""
    at: Path = request.getfixturevalue({"worktree": "task", "submodule": "sub"}[kind])
    done = inside(at, WORK)
    assert (done.returncode, done.stdout) == (0, "two\none\n"), done.stderr
    assert git(at, "log", "--format=%s", "third") == "two\none\n"
    assert "are writable too" in nsbox.explain(Policy.workspace(at))


def test_worktree_by_a_link(main: Path, task: Path, tmp_path: Path) -> None:
    """Git's own names of its directories may have links on the way too."""
    (tmp_path / "way").symlink_to(tmp_path)
    (task / ".git").write_text(f"gitdir: {tmp_path}/way/main/.git/worktrees/task\n")
    done = inside(task, "git log --format=%s")
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr


ATTACKS = (
    "echo '[core] fsmonitor = evil' >> {git}/config",
    "git config core.fsmonitor evil",
    "rm {git}/config",
    "mv {git}/config {git}/old; echo evil > {git}/config",
    "echo evil > {git}/hooks/post-checkout",
    "mv {git}/hooks {git}/h2",
    "mkdir -p {git}/modules/x && echo evil > {git}/modules/x/config",
    "echo /tmp > {git}/commondir",
    "echo evil > {git}/config.worktree",
    "echo evil > {own}/commondir",
    "echo evil > {own}/gitdir",
    "echo 'gitdir: /tmp' > .git",
    "mv .git old",
    "rm .git",
    "mv {git}/objects {git}/o2",
    "echo x > {git}/packed-refs.lock",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_git_outside_goes_by(main: Path, task: Path, attack: str) -> None:
    """A worktree's command can't change what git executes or follows in the repository that others work in."""
    shared, own = main / ".git", main / ".git/worktrees/task"
    before = {path: path.read_bytes() for path in (shared / "config", own / "commondir", own / "gitdir", task / ".git")}
    hooks = sorted(os.listdir(shared / "hooks"))
    names = sorted(os.listdir(shared))
    assert inside(task, attack.format(git=shared, own=own)).returncode != 0
    assert {path: path.read_bytes() for path in before} == before
    assert (sorted(os.listdir(shared / "hooks")), sorted(os.listdir(shared))) == (hooks, names)


def test_control(main: Path, task: Path) -> None:
    """With the repository named in write the command can."""
    policy = Policy.workspace(task, write=[main / ".git/hooks"])
    nsbox.run(f"echo evil > {main}/.git/hooks/post-checkout", shell=True, policy=policy, check=True)


@pytest.mark.parametrize(
    "attack", ["echo evil >> {git}/config", "echo evil > {git}/hooks/x", "rm .git; ln -s /tmp .git"]
)
def test_submodule(sub: Path, attack: str) -> None:
    """A submodule's configuration and hooks are read-only too."""
    assert inside(sub, attack.format(git=sub.parent / ".git/modules/sub")).returncode != 0


def forged(tmp_path: Path, text: str) -> Path:
    """Return a workspace whose .git is a file that a command has written."""
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / ".git").write_text(text)
    return ws


def secret(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("PRIVATE KEY")
    return home


@pytest.mark.parametrize(
    "text",
    [
        "gitdir: {home}/.ssh\n",
        "gitdir: {home}\n",
        "gitdir: ../home/.ssh",
        "gitdir: .git\n",
        "gitdir: {ws}/.git\n",
        "gitdir: /\n",
        "gitdir: \n",
        "gitdir: {main}/.git\n",
        "gitdir: {main}/.git/worktrees/task\n",
        "gitdir: {ws}/link\n",
        "gitdir: {ws}/fake/worktrees/x\n",
        "nothing",
        "",
        "gitdir: " + "x/" * 5000,
        "gitdir: {home}\0/.ssh\n",
    ],
)
def test_forged(tmp_path: Path, main: Path, task: Path, text: str) -> None:
    """A .git file that names what doesn't name the workspace is not followed, and no error: a command can write one."""
    home = secret(tmp_path)
    ws = forged(tmp_path, text.format(home=home, ws=tmp_path / "ws", main=main))
    (ws / "link").symlink_to(main / ".git/worktrees/task")
    (ws / "fake/worktrees/x").mkdir(parents=True)
    (ws / "fake/worktrees/x/commondir").write_text(str(home))
    (ws / "fake/worktrees/x/gitdir").write_text(f"{ws}/.git")
    policy = Policy.workspace(ws)
    assert (policy.write, policy.read) == ((str(ws),), ())
    done = nsbox.run(f"cat {home}/.ssh/id {main}/.git/config", shell=True, policy=policy, capture_output=True)
    assert done.stdout == b""
    assert "isn't followed" in nsbox.explain(policy)


def test_gitdir_is_a_link(tmp_path: Path) -> None:
    """Nor is a .git that is a link, or a FIFO: nothing waits."""
    home = secret(tmp_path)
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / ".git").symlink_to(home)
    assert Policy.workspace(ws).write == (str(ws),)
    (ws / ".git").unlink()
    os.mkfifo(ws / ".git")
    assert Policy.workspace(ws).write == (str(ws),)


@pytest.mark.parametrize("what", ["objects", "refs", "logs", "config"])
def test_links_in_the_repository(tmp_path: Path, main: Path, task: Path, what: str) -> None:
    """What is a link in a repository isn't followed: it may lead anywhere."""
    home = secret(tmp_path)
    os.rename(main / ".git" / what, main / ".git/old")
    (main / ".git" / what).symlink_to(home if what != "config" else home / ".ssh/id")
    policy = Policy.workspace(task)
    assert not any(str(home) in path or path == f"{main}/.git/{what}" for path in policy.write)


def test_submodule_that_names_another(sub: Path, tmp_path: Path) -> None:
    """A submodule's directory that names another one is not followed, nor one without hooks to protect."""
    gitdir = sub.parent / ".git/modules/sub"
    assert directories(str(sub)).write == (str(gitdir),)
    config = (gitdir / "config").read_text()
    (gitdir / "config").write_text(config.replace("../../../sub", "../../../other"))
    assert directories(str(sub)).problem
    (gitdir / "config").write_text(config)
    shutil.rmtree(gitdir / "hooks")
    assert "hooks" in directories(str(sub)).problem


def test_denied(main: Path, task: Path) -> None:
    """What the policy denies isn't opened for git."""
    assert Policy.workspace(task, deny=[main / ".git"]).write == (str(task),)


def test_hints(main: Path, tmp_path: Path) -> None:
    """Where git can't work, the record says why: the repository's top is above, or .git isn't followed."""
    (main / "part").mkdir()
    with Sandbox(Policy.workspace(main / "part")) as box:
        (hint,) = [hint for hint in box.shell("git log").why if hint.kind == "git"]
        assert f"the top of its repository is {main}, above the workspace" in hint.message
    ws = forged(tmp_path, f"gitdir: {main}/.git\n")
    with Sandbox(Policy.workspace(ws)) as box:
        assert any("isn't followed" in hint.message for hint in box.shell("git log").why)


def test_transaction(main: Path, task: Path, tmp_path: Path) -> None:
    """A worktree's files can be changed in a transaction."""
    with Sandbox(Policy.workspace(task)) as box, box.transaction(dir=tmp_path / "state") as tx:
        assert tx.shell("git status --short && echo 2 > f && git diff --stat").returncode == 0
        tx.commit()
    assert (task / "f").read_text() == "2\n"


@pytest.mark.parametrize("deny", [["**/*.key"], nsbox.SECRET_FILES])
def test_patterns(main: Path, task: Path, deny: list[str]) -> None:
    """A pattern that begins with "**/" counts from what is shown for git too. Control: without, it is readable."""
    key = main / ".git/token.key"
    key.write_text("secret\n")
    for policy, told in ((Policy.workspace(task), "secret\n"), (Policy.workspace(task, deny=deny), "")):
        assert nsbox.run(["cat", key], policy=policy, capture_output=True, text=True).stdout == told
    (task / "nsbox.toml").write_text('workspace = "."\ndeny = ["**/*.key"]\n')
    loaded = Policy.load(task / "nsbox.toml")
    assert nsbox.run(["cat", key], policy=loaded, capture_output=True, text=True).stdout == ""
