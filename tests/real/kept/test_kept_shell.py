"""shell(keep=True): what one shell hands on to the next, and what it doesn't change about the command itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import fill

from nsbox import AccessError, Limits, Policy, Sandbox, Session
from nsbox._calls import shell_state


@pytest.fixture
def s(policy: Policy) -> Iterator[Session]:
    with Sandbox(policy, stock=0) as box, box.session() as made:
        yield made


def kept(s: Session, line: str, **options: object) -> str:
    done = s.shell(line, keep=True, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_shell_that_is_kept(s: Session, workspace: Path) -> None:
    """The directory and the exported variables, also after a failure; without keep nothing of it."""
    (workspace / "sub dir").mkdir()

    def shell(command: str, **options: object) -> tuple[int, str]:
        done = s.shell(command, keep=True, **options)
        assert done.args == command
        return done.returncode, done.stdout

    assert shell("cd 'sub dir'; export A='x\ny' B=1; C=2; exit 3") == (3, "")
    assert shell('pwd; echo "$A$B$C"; unset B') == (0, f"{workspace}/sub dir\nx\ny1\n")
    assert shell("echo $B; cd /tmp; false") == (1, "\n")
    assert shell("pwd") == (0, "/tmp\n")
    assert s.shell("pwd; echo $A").stdout == f"{workspace}\n\n"
    assert shell("kill -9 $$") == (-9, "")
    assert shell("cd /; exec true") == (0, "")
    assert shell("syntax ) error")[0] == 2
    assert shell("pwd") == (0, "/tmp\n")
    assert shell("pwd", cwd="/usr") == (0, "/usr\n")
    (workspace / "gone").mkdir()
    assert shell(f"cd {workspace}/gone; rmdir ../gone") == (0, "")
    for _ in range(2):
        with pytest.raises(AccessError, match="gone is where the last command with keep=True ended"):
            shell("rm -rf ./*")
    assert shell("pwd", cwd=".") == (0, f"{workspace}\n")
    assert shell("PATH=; cd /usr; set -C") == (0, "")
    assert shell('pwd; echo "$PATH"; PATH=/usr/bin:/bin', env=None) == (0, "/usr\n\n")
    assert shell("cd /; sleep 1000", timeout=0.1)[0] == -15
    assert shell("pwd") == (0, "/usr\n")


def test_two_at_once(s: Session, workspace: Path) -> None:
    """The one that ends last decides, as the pages say; what the other one had changed is lost."""
    wait = "touch begun; until [ -e go ]; do sleep 0.01; done; export FIRST=1"
    thread = threading.Thread(target=lambda: s.shell(wait, keep=True))
    thread.start()
    while not (workspace / "begun").exists():
        time.sleep(0.001)
    kept(s, "cd /tmp; export SECOND=2")
    assert kept(s, "echo $PWD $FIRST $SECOND") == "/tmp 2\n"
    (workspace / "go").touch()
    thread.join()
    assert kept(s, "echo $PWD $FIRST $SECOND") == f"{workspace} 1\n"


@pytest.mark.parametrize("line", ["exit 5", "cd /; export A=1; exit 5", "set -e; export A=1; cd /; (exit 5)"])
def test_a_kept_shell_needs_no_process_of_its_own(policy: Policy, line: str) -> None:
    """Where there is no room for one more process, the status is the command's, and what it changed is kept."""
    line = line.replace("(exit 5)", "return 5 2>/dev/null || exit 5")
    with Sandbox(policy.with_(limits=Limits(processes=12)), stock=0) as box, box.session() as s:
        fill(s)  # the control: it finds no room
        assert s.shell(line, keep=True).returncode == 5
        expected = "/1" if "cd" in line else f"{policy.workdir}"
        assert s.shell('printf "$PWD$A"', keep=True).stdout == expected


def test_own_trap(s: Session) -> None:
    """A trap of the line's own runs, and what is there at the line's end is kept. With exit it isn't, says a hint."""
    assert kept(s, "trap 'echo bye $?' EXIT; cd /; export Q=1") == "bye 0\n"
    assert kept(s, 'echo "$PWD$Q"') == "/1\n"
    result = s.shell("trap 'echo bye $?' EXIT; cd /tmp; exit 3", keep=True)
    assert (result.returncode, result.stdout) == (3, "bye 3\n")
    assert [hint.kind for hint in result.why] == ["not-kept"]
    assert kept(s, "pwd") == "/\n"


@pytest.mark.parametrize("line", ["ulimit -n 4", "ulimit -f 0", "exec 2>&- 1>&-"])
def test_a_state_that_cannot_be_reported(s: Session, line: str) -> None:
    """The status stays the command's."""
    result = s.shell(f"{line}; cd /; exit 5", keep=True)
    assert result.returncode == 5
    if "ulimit" in line:
        assert [hint.kind for hint in result.why] == ["not-kept"]


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_the_line_is_read_as_without_keep(s: Session, shell: str) -> None:
    """Lines count from 1, $0 is the shell, and there are no parameters."""
    for line in (
        "nosuchcommand",
        "true\n\nnosuchcommand",
        "echo $0 $# ${1-none}",
        "echo a \\",
        "cat <<E\nx\nE",
        "false; echo $?",
    ):
        with_keep, without = (s.shell(line, keep=keep, shell_path=shell) for keep in (True, False))
        assert with_keep.returncode == without.returncode
        assert with_keep.stdout == without.stdout
        assert with_keep.stderr.replace("eval: ", "") == without.stderr


def test_env_is_for_one_call(s: Session) -> None:
    """Neither a variable of env= nor a secret stays, unless the command changes it to something else."""
    token = {"TOKEN": "abcdefgh"}
    assert kept(s, 'printf "$TOKEN"', env=token) == "abcdefgh"
    assert kept(s, 'printf "$TOKEN"') == ""
    kept(s, "export LANG=mine")
    assert kept(s, 'printf "$LANG"', env={"LANG": "C"}) == "C"
    assert kept(s, 'printf "$LANG"') == "mine"
    kept(s, "export LEFT=x$TOKEN TOKEN=other", secrets=token)
    assert kept(s, 'printf "$LEFT$TOKEN"') == "other"
    kept(s, 'export A="$TOKEN"', env=token)
    assert kept(s, 'printf "$A"') == "abcdefgh"


def test_set_a(s: Session) -> None:
    """Variables of the shell's own report aren't handed on, even if the command exports all."""
    kept(s, "set -a; x=1; cd /")
    assert "_nsbox" not in kept(s, "env")


def test_functions(s: Session) -> None:
    kept(s, 'say() { echo "say\n$1"; }; export -f say')
    assert kept(s, "say x; bash -c 'say y'") == "say\nx\nsay\ny\n"


def test_a_new_environment_is_found(s: Session, workspace: Path) -> None:
    """PATH is the policy's at each command, as without keep, until a command changes it."""
    made = "mkdir -p .venv/bin; touch .venv/pyvenv.cfg; ln -s /usr/bin/true .venv/bin/mytool"
    kept(s, f"{made}; export A=1")
    assert kept(s, "command -v mytool; echo $A") == f"{workspace}/.venv/bin/mytool\n1\n"
    kept(s, "PATH=/usr/bin:/bin")
    assert s.shell("command -v mytool", keep=True).returncode == 1


SHELLS = [path for path in map(shutil.which, ("bash", "dash", "zsh", "ksh", "mksh", "busybox")) if path is not None]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("value", ["", "it's", "a\nb\texport X='1'\n", 'a"b\\c$d`e', "é\x01\x1b", "\udcff", "~ *  #;"])
def test_reports_of_shells(shell: str, value: str) -> None:
    """Each shell's way to quote is understood."""
    line = "cd /; export B=2"
    with tempfile.TemporaryFile() as file:
        words = [shell, *(["sh"] if shell.endswith("busybox") else [])]
        argv = shell_state.argv(line, file.fileno())
        argv[2] = shell
        env = {"PATH": os.environ["PATH"], "A": value}
        subprocess.run([*words, *argv], env=env, pass_fds=[file.fileno()], check=True)
        report = shell_state.report(os.pread(file.fileno(), 1 << 20, 0))
    assert report is not None
    assert report.directory == "/"
    assert {name: report.variables.get(name) for name in "AB"} == {"A": value, "B": "2"}


def test_reports_that_are_none() -> None:
    """What isn't a report changes nothing: an empty file, one that is too long, one that a command has written."""
    for data in (b"", b"/", b"x\0export A='1'\n", b"/" + b"\0" * (1 << 20)):
        assert shell_state.report(data) is None
    odd = shell_state.report(b"/\0export 'B'='2'\ndeclare -ax C=([0]=\"1\")\nexport D='4'\nexport E\n")
    assert odd is not None
    assert odd.variables == {"D": "4"}
    odd = shell_state.report(b"/\0export A='1\nexport 'B'='2'\nexport D='4'\n")
    assert odd is not None
    assert odd.variables.keys() <= {"A", "D"}
    odd = shell_state.report(b"/\0export A='1'\nexport B='2")  # cut off
    assert odd is not None
    assert odd.variables == {"A": "1"}
    odd = shell_state.report(b"/\0export A='1'\n\0a=b () \n{ :\n}\ndeclare -fx a=b\n")  # no name of a variable
    assert odd is not None
    assert odd.variables == {"A": "1"}


@pytest.mark.parametrize(
    ("before", "unit"),
    [(b"/\0", rb"export A=\''"), (b"/\0export A=1\n\0", b"a () "), (b"/\0", b"export A='' x")],
)
def test_a_forged_report_holds_nothing_up(before: bytes, unit: bytes) -> None:
    """It is read once, not again from each of its lines: hours for a MiB. The control is one expression for it all."""

    def seconds(read: Callable[[bytes], object], lines: int) -> float:
        data, began = before + (unit + b"\n") * lines, time.process_time()
        read(data)
        return time.process_time() - began

    bad = re.compile(rb"^(?:export A=(?:'[^']*+'|\\.)*|\S++ \(\) *\n.*?\ndeclare -fx a)$", re.MULTILINE | re.DOTALL)
    most = shell_state.MOST // (len(unit) + 1) - 8
    if b"'' x" not in unit:
        assert seconds(bad.findall, 8000) > seconds(shell_state.report, most)
    assert seconds(shell_state.report, most) < 20


def test_a_state_does_not_grow() -> None:
    """Variables of earlier reports that are gone aren't kept as such, except those that the policy gives."""
    state, env = shell_state.ShellState(), {"PATH": "/usr/bin"}
    for i in range(50):
        report = shell_state.Report("/", {f"A{i}": ""})
        state = state.after(report, state.applied(env), (), env)
    assert state.changes == (("A49", ""), ("PATH", None))
