"""A command in the user's home reads its keys and changes what programs outside obey later: a home is no workspace.

Control: the same command in a home that its caller names once more does both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Policy, PolicyError
from nsbox._config.load import loads
from nsbox._config.write import dumps
from nsbox._paths import user_homes

ATTACK = "cat .ssh/id; echo evil >> .bashrc"
NSBOX = (sys.executable, "-m", "nsbox")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home, with a key and a file that a shell obeys."""
    path = tmp_path / "people" / "me"
    (path / ".ssh").mkdir(parents=True)
    (path / ".ssh/id").write_text("PRIVATE KEY")
    (path / ".bashrc").write_text("")
    (path / "project").mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NSBOX, *words], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.field == "workspace" and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("where", [".", "..", "../.."])
@pytest.mark.parametrize("words", [["run", "sh", "-c", ATTACK], ["shell"], ["python", "-c", "0"], ["mcp"]])
def test_commands_refuse(home: Path, where: str, words: list[str]) -> None:
    """Each subcommand that works in the current directory says in one line what to do; nothing runs."""
    done = run(*words, cwd=home / where)
    assert (done.returncode, done.stdout, (home / ".bashrc").read_text()) == (2, "", "")
    here = os.path.realpath(home / where)
    assert done.stderr.startswith(f"nsbox: --workspace: {here} ") and done.stderr.count("\n") == 1
    assert "work in a project's own directory" in done.stderr and f"say --write {here} too" in done.stderr


def test_control(home: Path) -> None:
    """Named once more, a home is a workspace: the command reads the key and leaves something for the next shell."""
    done = run("run", "--write", home, "sh", "-c", ATTACK, cwd=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "PRIVATE KEY", "")
    assert (home / ".bashrc").read_text() == "evil\n"
    assert nsbox.check_output(["cat", ".ssh/id"], policy=Policy.workspace(home, write=[home])) == b"PRIVATE KEY"


def test_project_in_a_home(home: Path) -> None:
    """A project below the home is one, and sees nothing of what is beside it."""
    done = run("run", "sh", "-c", "touch made; cat ../.ssh/id", cwd=home / "project")
    assert done.returncode == 1 and "PRIVATE" not in done.stdout and (home / "project/made").exists()
    assert run("run", "-w", "project", "pwd", cwd=home).stdout == f"{home}/project\n"


def test_calls_refuse(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do Policy.workspace(), calls without a policy, here or in cwd=, and Sandbox.load()."""
    for path in (home, f"{home}/", home / "project/..", home.parent):
        refusal(lambda path=path: Policy.workspace(path))
    monkeypatch.chdir(home)
    refusal(lambda: Policy.workspace("."))
    refusal(lambda: nsbox.run(["sh", "-c", ATTACK]))
    monkeypatch.chdir(home / "project")
    refusal(lambda: nsbox.run(["sh", "-c", ATTACK], cwd=home))
    nsbox.run(["true"], check=True)
    assert (home / ".bashrc").read_text() == ""


def test_links(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a link to the home nor a home that is a link is another directory."""
    (tmp_path / "link").symlink_to(home)
    refusal(lambda: Policy.workspace(tmp_path / "link"))
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    refusal(lambda: Policy.workspace(home))
    refusal(lambda: Policy.workspace(home.parent))
    (tmp_path / "beside").mkdir()
    assert Policy.workspace(tmp_path / "beside").write == (f"{tmp_path}/beside",)


ELSEWHERE = """
import sys
import nsbox
for path in sys.argv[1:]:
    try:
        print("open:", *nsbox.Policy.workspace(path).write)
    except nsbox.PolicyError as error:
        print("refused:", error.field)
"""


@needs.programs("unshare", "mount")
def test_bind_mounts(home: Path, tmp_path: Path) -> None:
    """A home that is mounted at a second place is the same one there. Control: another directory, mounted in its place."""
    alias = tmp_path / "alias"
    alias.mkdir()
    (tmp_path / "other").mkdir()
    for source, said in ((home, "refused: workspace\n"), (tmp_path / "other", f"open: {alias}\n")):
        script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        command = ["unshare", "-Urm", "sh", "-c", script, "sh", source, alias, sys.executable, "-Ic", ELSEWHERE, alias]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (said, "")


def test_home_of_the_user_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """HOME can't make a project of the directory that passwd(5) names, nor of one that has everybody's homes in it."""
    real = str(tmp_path / "real")  # not every user of a machine has one
    project = tmp_path / "project"
    os.mkdir(real)
    project.mkdir()
    monkeypatch.setattr(user_homes, "_home_of", lambda uid: real if uid == os.getuid() else "")
    for value in (str(project), "/nonexistent", "", "relative"):
        monkeypatch.setenv("HOME", value)
        refusal(lambda: Policy.workspace(real))
        refusal(lambda: Policy.workspace("/home"))
    monkeypatch.delenv("HOME")
    refusal(lambda: Policy.workspace(real))
    assert Policy.workspace(project).write == (str(project),)  # as HOME it was one


@pytest.mark.as_root("only root works in directories of other users")
def test_home_of_another(tmp_path: Path) -> None:
    """Under sudo, the home of the user who owns it is a home too. Control: the same directory, which nobody has as home."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 54321, 54321)
    users = tmp_path / "passwd"
    script = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'
    keys = theirs / ".config/made-by-root"  # whoever's these are
    keys.mkdir(parents=True)
    for place in (theirs, keys):
        for row, said in ((f"w:x:54321:54321::{theirs}:/bin/sh\n", "refused: workspace\n"), ("", f"open: {place}\n")):
            users.write_text(Path("/etc/passwd").read_text() + row)
            command = ["unshare", "-m", "sh", "-c", script, "sh", users, sys.executable, "-Ic", ELSEWHERE, str(place)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert (done.stdout, done.stderr) == (said, "")


# ---- files, roots, starters


@pytest.mark.parametrize("text", ['workspace = "."', 'workspace = "~"', 'workspace = "project/.."'])
def test_configuration(home: Path, text: str) -> None:
    """A configuration file has to name a home twice, too; the error has its line."""
    (home / "box.toml").write_text(f"network = false\n{text}\n")
    with pytest.raises(nsbox.ConfigError, match=rf"box\.toml:2: workspace: {home} is a home .*writable_paths="):
        Policy.load(home / "box.toml")
    (home / "box.toml").write_text(f"writable_paths = ['{home}']\n{text}\n")
    assert Policy.load(home / "box.toml").write == (str(home),)
    (home / "none.toml").write_text("network = false\n")
    with pytest.raises(nsbox.ConfigError, match="is a home directory"):
        Policy.load(home / "none.toml", workspace=home)


def test_written_files(home: Path) -> None:
    """What dumps() writes of a policy for a home is the same policy when it is read."""
    for policy in (
        Policy.workspace(home, write=[home]),
        Policy.workspace(home, write=["/var/tmp", home], read=["/srv"]),
        Policy.workspace(home / "project", write=[home.parent]),
    ):
        assert loads(dumps(policy, "toml"), "toml", base="/").policy == policy


def test_starter(home: Path) -> None:
    """`nsbox init` writes no file that couldn't be loaded."""
    done = run("init", cwd=home)
    assert done.returncode == 2 and "is a home directory" in done.stderr and not (home / "nsbox.toml").exists()
    assert run("init", "nsbox.toml", "--workspace", "project", cwd=home).returncode == 0
    assert Policy.load(home / "nsbox.toml").write == (f"{home}/project",)


def test_rootfs(home: Path, tmp_path: Path) -> None:
    """Nor is a home the /workspace of a root file system."""
    (tmp_path / "root").mkdir()
    said = refusal(lambda: nsbox.rootfs.policy(tmp_path / "root", workspace=home))
    assert "Policy.layers(Bind(" in said


def test_read_only(home: Path) -> None:
    """Read-only doesn't hide a key: it has to be named for reading."""
    assert f"say read=['{home}'] too" in refusal(lambda: Policy.workspace(home, read_only=True))
    assert Policy.workspace(home, read_only=True, read=[home]).read == (str(home),)


# ---- directories of keys


@pytest.fixture
def keys(home: Path) -> Path:
    """The home, with more directories of keys, and of work."""
    for place in (".ssh/more", ".config/gh", ".local/share/keyrings", ".cache/build", ".vim"):
        (home / place).mkdir(parents=True)
    return home


@pytest.mark.parametrize("place", [".ssh", ".ssh/more", ".config", ".config/gh", ".vim", ".local/share"])
def test_directories_of_keys(keys: Path, place: str) -> None:
    """Neither a directory of keys is a workspace, nor one in it or around it. Control: named once more, each is one."""
    said = refusal(lambda: Policy.workspace(keys / place))
    assert "where programs keep keys" in said and f"say write=['{keys / place}'] too" in said
    assert Policy.workspace(keys / place, write=[keys / place]).write == (str(keys / place),)
    assert Policy.workspace(keys / place, write=[keys]).workdir == str(keys / place)
    refusal(lambda: Policy.workspace(keys / place, read_only=True))
    done = run("run", "sh", "-c", "cat id", cwd=keys / place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and f"say --write {keys / place} too" in done.stderr
    with pytest.raises(nsbox.ConfigError, match=r"where programs keep keys .*writable_paths="):
        loads(f"workspace = '{keys / place}'", "toml", base="/")


def test_control_of_keys(keys: Path) -> None:
    """Named once more, a directory of keys shows them; what dumps() writes of that is the same policy when it is read."""
    done = run("run", "--write", keys / ".ssh", "cat", "id", cwd=keys / ".ssh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "PRIVATE KEY", "")
    policy = Policy.workspace(keys / ".ssh", write=[keys / ".ssh"])
    assert loads(dumps(policy, "toml"), "toml", base="/").policy == policy


def test_work_in_hidden_directories(keys: Path) -> None:
    """Deeper in a directory without keys, programs work; and a project may have directories of such names."""
    (keys / "project/.ssh").mkdir()
    (keys / "project/.vim").mkdir()
    for place in (".cache/build", "project/.ssh", "project/.vim"):
        assert Policy.workspace(keys / place).write == (str(keys / place),)


def test_links_to_keys(keys: Path, tmp_path: Path) -> None:
    """A directory that ~/.aws leads to holds keys too, and so does one around it. Control: the one beside."""
    (tmp_path / "dotfiles/aws").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (keys / ".aws").symlink_to(tmp_path / "dotfiles/aws")
    for path in (keys / ".aws", tmp_path / "dotfiles/aws", tmp_path / "dotfiles"):
        assert "where programs keep keys" in refusal(lambda path=path: Policy.workspace(path))
    assert Policy.workspace(tmp_path / "other").write == (f"{tmp_path}/other",)


@needs.programs("unshare", "mount")
def test_bind_mounts_of_keys(keys: Path, tmp_path: Path) -> None:
    """Keys that are mounted at a second place are the same there. Control: another directory, mounted in its place."""
    alias = tmp_path / "alias"
    alias.mkdir()
    (tmp_path / "other").mkdir()
    for source, said in ((keys / ".ssh", "refused: workspace\n"), (tmp_path / "other", f"open: {alias}\n")):
        script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        command = ["unshare", "-Urm", "sh", "-c", script, "sh", source, alias, sys.executable, "-Ic", ELSEWHERE, alias]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (said, "")
