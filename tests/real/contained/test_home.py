"""The home of a command: private by default, kept by a Sandbox or a name, or chosen; passwd says the same."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Policy, PolicyError, Sandbox, UnavailableError
from nsbox._base.frozen import replace
from nsbox._machine import probe

# What is there to lead to the interpreter of these tests, where that is below the user's home.
_SHOWN = (sys.prefix, sys.base_prefix, os.path.dirname(os.path.abspath(nsbox.__file__)))
WAYS = {path.split("/")[3] for path in _SHOWN if path.startswith("/home/") and path.count("/") > 2}


def sh(script: str, policy: Policy | Sandbox) -> list[str]:
    done = nsbox.run(script, shell=True, policy=policy, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line not in WAYS]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where homes are kept in this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    nsbox.probe(refresh=True)
    yield tmp_path / "state/nsbox/homes"
    monkeypatch.undo()
    nsbox.probe(refresh=True)


PASSWD = 'getent passwd "$(id -u)" | cut -d: -f6'


@pytest.mark.parametrize("home", ["private", "private:mine", "workspace", "tmp", "/opt/other"])
def test_passwd_says_the_same(home: str, workspace: Path, homes: Path) -> None:
    """HOME, ~ and the user's entry in passwd are one path, in a Sandbox too."""
    policy = Policy.workspace(workspace, home=home)
    with Sandbox(policy) as box:
        for way in (policy, box):
            told = sh(f'echo "$HOME"; echo ~; {PASSWD}', way)
            assert len(set(told)) == 1
            assert (home.startswith("private") and told[0].startswith("/home/")) or told[0] == {
                "workspace": str(workspace),
                "tmp": "/tmp",
                "/opt/other": "/opt/other",
            }.get(home)


def test_private_is_the_default(workspace: Path) -> None:
    """It is empty, writable, of mode 0700, not the workspace, and gone with the command."""
    policy = Policy.workspace(workspace)
    assert policy.home == Policy(base="workspace").home == "private"
    script = "ls -A ~; stat -c %a:%u ~; echo x > ~/.cache; cat ~/.cache"
    for _ in range(2):
        assert sh(script, policy) == [f"700:{os.geteuid()}", "x"]
    assert list(workspace.iterdir()) == []


@needs.programs("git")
def test_dotfiles_of_a_repository(workspace: Path) -> None:
    """What a foreign repository calls .gitconfig or .profile isn't the user's configuration."""
    (workspace / ".gitconfig").write_text("[user]\n name = planted\n")
    (workspace / ".profile").write_text("echo planted\n")
    script = "git config user.name; sh -l -c :; git init -q . && git add -A && git ls-files | cut -d/ -f1 | sort -u"
    assert sh(script, Policy.workspace(workspace)) == [".gitconfig", ".profile"]
    assert "planted" in sh(script, Policy.workspace(workspace, home="workspace"))


def test_of_a_sandbox(workspace: Path, homes: Path) -> None:
    """Its commands, sessions and transactions share one, until it is closed. Another Sandbox has another."""
    policy = Policy.workspace(workspace)
    with Sandbox(policy) as box, Sandbox(policy) as other:
        assert sh("echo one > ~/a; echo $HOME", box) == sh("echo $HOME", other)
        with box.session() as session:
            assert session.shell("cat ~/a; echo two >> ~/a").stdout == "one\n"
        assert sh("cat ~/a", box) == ["one", "two"]
        assert sh("ls -A ~", other) == []
        found = [path for path in homes.iterdir() if path.is_dir()]
        assert [stat.S_IMODE(path.stat().st_mode) for path in (homes, *found)] == [0o700] * 3
        box.update(Policy.workspace(workspace, hostname="h"))
        assert sh("cat ~/a", box) == ["one", "two"]
    assert list(homes.iterdir()) == []


@pytest.mark.parametrize("change", ["chmod 0 ~", "chmod 777 ~", "rm -rf ~ || true"])
def test_of_a_sandbox_that_a_command_changes(change: str, workspace: Path, homes: Path) -> None:
    with nsbox.Sandbox(Policy.workspace(workspace)) as box:
        box.run(["sh", "-c", "true"], check=True)
        box.run(["sh", "-c", change], check=True)
        box.run(["sh", "-c", "echo 1 > ~/file"], check=True)
        assert stat.S_IMODE(next(homes.glob("box-*[0-9a-f]")).stat().st_mode) == 0o700


def test_of_a_sandbox_that_is_gone(workspace: Path, homes: Path) -> None:
    with nsbox.Sandbox(Policy.workspace(workspace)) as box:
        box.run(["sh", "-c", "echo 1 > ~/file"], check=True)
        home = next(path for path in homes.iterdir() if path.is_dir())
        shutil.rmtree(home)
        box.run(["sh", "-c", "echo 2 > ~/file"], check=True)
        assert (home / "file").read_text() == "2\n"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_of_a_sandbox_that_nobody_has(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """A session or a transaction has its Sandbox's home as long as it is open, no matter what else has the Sandbox."""
    for begin in (lambda box: box.session(), lambda box: box.transaction(dir=tmp_path / "kept")):
        with begin(Sandbox(Policy.workspace(workspace))) as one:
            gc.collect()
            assert one.shell("echo x > ~/a && cat ~/a").stdout == "x\n"
        del one
        gc.collect()
        assert list(homes.iterdir()) == []


def test_of_a_forked_child(workspace: Path, homes: Path) -> None:
    """A forked child's Sandbox has a home of its own, and leaves the parent's alone."""
    with Sandbox(Policy.workspace(workspace)) as box:
        sh("echo one > ~/a", box)
        pid = os.fork()
        if pid == 0:
            try:
                own = sh("ls -A ~", box)
                box.close()
                os._exit(0 if own == [] else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert sh("cat ~/a", box) == ["one"]


def test_of_a_caller_that_was_killed(workspace: Path, homes: Path) -> None:
    """What is left of a Sandbox whose process was killed, the next one removes; not the one of a process that lives."""
    code = (
        "import nsbox, sys, os, signal\n"
        "box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])); box.run(['touch', 'x'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with Sandbox(Policy.workspace(workspace)) as alive:
        alive.run(["true"])
        subprocess.run([sys.executable, "-P", "-c", code, str(workspace)], check=False)
        assert len([path for path in homes.iterdir() if path.is_dir()]) == 2
        with Sandbox(Policy.workspace(workspace)) as box:
            box.run(["true"])
            assert len([path for path in homes.iterdir() if path.is_dir()]) == 2
        assert sh("ls -A ~", alive) == []
        assert len([path for path in homes.iterdir() if path.is_dir()]) == 1


def test_recovered(workspace: Path, homes: Path) -> None:
    """recover() removes it too, with no Sandbox and no transaction, and leaves that of a process that lives."""
    code = (
        "import nsbox, sys, os, signal\n"
        "box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])); box.shell('echo token > ~/.netrc')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    nsbox.transaction.recover()  # without any home it is no error
    with Sandbox(Policy.workspace(workspace)) as alive:
        alive.shell("echo mine > ~/.netrc")
        subprocess.run([sys.executable, "-P", "-c", code, str(workspace)], check=False)
        assert len(list(homes.glob("*/.netrc"))) == 2
        nsbox.transaction.recover()
        assert [path.read_text() for path in homes.glob("*/.netrc")] == ["mine\n"]
        assert len([path for path in homes.iterdir() if path.is_dir()]) == 1


def test_unclosed(workspace: Path, homes: Path) -> None:
    """A program that ends without a word leaves no home."""
    code = "import nsbox, sys\nbox = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])); box.run(['touch', 'x'])"
    subprocess.run([sys.executable, "-P", "-c", code, str(workspace)], check=True)
    assert list(homes.iterdir()) == []


def test_by_name(workspace: Path, tmp_path: Path, homes: Path) -> None:
    """A name keeps what is there, for all policies that say it, and for no other name."""
    (tmp_path / "second").mkdir()
    sh("echo one > ~/a", Policy.workspace(workspace, home="private:n-1.x_"))
    assert sh("cat ~/a", Policy.workspace(tmp_path / "second", home="private:n-1.x_")) == ["one"]
    assert sh("ls -A ~", Policy.workspace(workspace, home="private:other")) == []
    assert {path.name for path in homes.iterdir()} == {"n-1.x_", "other"}
    assert stat.S_IMODE((homes / "other").stat().st_mode) == 0o700


@pytest.mark.parametrize("below", ["p", "deep/down/p"])
@pytest.mark.parametrize("home", ["private", "private:x"])
def test_workspace_in_the_home(below: str, home: str, homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the policy shows below /home/USER is there; the way to it is read-only, the rest of the home writable."""
    user = nsbox.probe().user
    work = f"/home/{user}/{below}"
    policy = Policy(base="workspace", write=[work], workdir=work, home=home)
    lines = nsbox.explain(policy).splitlines()
    assert any(line.startswith(f"home        /home/{user} ") for line in lines)
    assert any("tmpfs" in line and "/home/" in line and "down" not in line for line in lines) or below == "p"


def test_a_workspace_that_is_the_home(tmp_path: Path, homes: Path) -> None:
    """The home then lies beside it; one that is kept would be in the commands' reach, which is an error."""
    user = nsbox.probe().user
    policy = Policy(base="workspace", write=[f"/home/{user}"], workdir=f"/home/{user}")
    assert f"home        /home/{user}-private (" in nsbox.explain(policy)
    inner = Policy.workspace(tmp_path)  # in which homes are kept
    with pytest.raises(PolicyError, match=r"home: .*/homes lies in .*, which commands of this policy may write to"):
        nsbox.run(["true"], policy=inner.with_(home="private:x"))
    with Sandbox(inner) as box:  # each command has its own then
        assert sh("echo x > ~/a; ls -A ~", box) == ["a"]
        assert sh("ls -A ~", box) == []


@pytest.mark.parametrize(
    "home", ["", "elsewhere", "private:", "private:a/b", "private:..", "private:a b", "private:" + "x" * 65]
)
def test_bad_words(home: str, workspace: Path) -> None:
    """A word that nobody knows is an error of the policy."""
    with pytest.raises(PolicyError, match="home"):
        Policy.workspace(workspace, home=home)


def test_words_are_a_workspace_s() -> None:
    """Elsewhere a home is a path."""
    for word in ("private", "private:x", "workspace", "tmp"):
        with pytest.raises(PolicyError, match=r"belongs to Policy\.workspace"):
            Policy.host(home=word)
    assert Policy.host(home="/h").home == "/h"


def test_a_home_that_cannot_be_made(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """The error names the path, and what helps; a Sandbox's commands have a home each."""
    (tmp_path / "state").write_text("a file\n")
    nsbox.probe(refresh=True)
    with pytest.raises(UnavailableError, match=r"home='private:x' can't be made: .*/state.*XDG_STATE_HOME"):
        nsbox.run(["true"], policy=Policy.workspace(workspace, home="private:x"))
    with Sandbox(Policy.workspace(workspace)) as box:
        assert sh("echo x > ~/a; ls -A ~", box) == ["a"]


def test_something_in_the_way(homes: Path, tmp_path: Path) -> None:
    """A link that a command has left where something is to be mounted is an error, and stays as it is."""
    user = nsbox.probe().user
    work = f"/home/{user}/p"
    homes.mkdir(parents=True, mode=0o700)
    (homes.parent).chmod(0o700)
    (homes / "x").mkdir(mode=0o700)
    (homes / "x/p").symlink_to(tmp_path)
    policy = Policy(base="workspace", write=[work], workdir=work, home="private:x")
    with pytest.raises(PolicyError, match=r"home: 'private:x': .*/homes/x/p is in the way of"):
        nsbox.run(["true"], policy=policy)
    assert (homes / "x/p").is_symlink()


def test_command_line(workspace: Path, homes: Path) -> None:
    """--home takes the same words; a wrong one is an error of the options."""
    base = [sys.executable, "-P", "-m", "nsbox", "run", "-w", str(workspace)]
    env = {**os.environ, "XDG_STATE_HOME": str(homes.parents[1])}

    def run(home: str, script: str) -> subprocess.CompletedProcess[str]:
        command = [*base, "--home", home, "--", "sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    assert run("workspace", "echo $HOME").stdout == f"{workspace}\n"
    run("private:cli", "echo x > ~/a")
    assert run("private:cli", "cat ~/a").stdout == "x\n"
    wrong = run("nowhere", "true")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "'nowhere' is unknown" in wrong.stderr


@pytest.mark.skipif(bool(WAYS), reason="the interpreter of these tests lies below /home")
@pytest.mark.parametrize("home", ["private", "private:x"])
def test_where_home_is_a_link(home: str, workspace: Path, homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Silverblue: the home and a workspace in it have both names, and passwd says the real one."""
    host = nsbox.probe()
    real = f"{workspace.parent}/var-home"
    (Path(real) / host.user / "src/p").mkdir(parents=True)
    key = (os.geteuid(), os.getegid())
    monkeypatch.setitem(probe._known, key, replace(host, home_links=(("/home", real),)))
    work = f"{real}/{host.user}/src/p"
    policy = Policy(base="workspace", write=(work,), workdir=work, home=home)
    script = f"echo $HOME; {PASSWD}; cd /home/{host.user}/src/p && touch x && pwd -P; echo y > ~/y; cat /home/*/y"
    own = f"{real}/{host.user}"
    assert sh(script, policy) == [own, own, work, "y"]
    assert os.listdir(work) == ["x"] and not (Path(own) / "y").exists()
