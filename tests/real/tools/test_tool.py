"""shell() and exec(): what they return, how much they keep, and why they say that a command has failed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsbox
from nsbox import AccessError, Limits, Policy, PolicyError, Sandbox
from nsbox.secrets import JsonStore, Secret


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy) as box:
        yield box


def kinds(result: nsbox.ToolResult) -> list[str]:
    return [hint.kind for hint in result.why]


# ---- what comes back


def test_a_command_that_succeeds(box: Sandbox, workspace: Path) -> None:
    """Both streams as text, their lengths, the status; nothing to explain."""
    result = box.shell("echo ä; echo error >&2; pwd")
    assert (result.returncode, result.signal, result.timed_out, result.is_truncated) == (0, None, False, False)
    assert result.stdout == f"ä\n{workspace}\n"
    assert result.stderr == "error\n"
    assert (result.stdout_bytes, result.stderr_bytes) == (len(result.stdout.encode()), 6)
    assert result.duration > 0
    assert result.why == ()
    assert result.args == "echo ä; echo error >&2; pwd"
    result.check_returncode()


def test_exec(box: Sandbox) -> None:
    """No shell reads the arguments."""
    result = box.exec("printf", ["%s|", "a b", "$HOME", "*"])
    assert result.stdout == "a b|$HOME|*|"
    assert result.args == ["printf", "%s|", "a b", "$HOME", "*"]
    with pytest.raises(TypeError, match="args is 'hello', must be a list of str"):
        box.exec("echo", "hello")


def test_wrong_arguments(box: Sandbox) -> None:
    """What a model may come up with: each is named, and nothing is started."""
    for call, name in (
        (lambda: box.shell(["ls"]), "command is a list"),
        (lambda: box.exec(["ls"]), "program is a list"),
        (lambda: box.exec("seq", [3]), "args is"),
        (lambda: box.exec("ls", {"a": 1}), "args is"),
        (lambda: box.shell("true", env={"A": 1}), "env has 'A': int"),
        (lambda: box.shell("true", env="A=1"), "env is a str"),
        (lambda: box.shell("true", secrets="TOKEN"), "secrets is a str"),
        (lambda: box.shell("true", secrets=["TOKEN"]), "secrets is a list"),
    ):
        with pytest.raises(TypeError, match=name):
            call()
    with pytest.raises(PolicyError, match="LD_PRELOAD is refused"):
        box.shell("true", secrets={"LD_PRELOAD": "/lib/x.so"})


def test_input(box: Sandbox) -> None:
    """Text or bytes, also more than a pipe holds, also for one that doesn't read it; nothing: an empty stdin."""
    assert box.shell("cat", input="ä").stdout == "ä"
    assert box.shell("wc -c", input=b"x" * 1_000_000).stdout.strip() == "1000000"
    assert box.shell("exit 0", input="x" * 1_000_000).returncode == 0
    assert box.shell("cat; echo end").stdout == "end\n"


def test_statuses(box: Sandbox) -> None:
    """Exit statuses and signals; check raises as subprocess does."""
    assert box.shell("exit 3").returncode == 3
    result = box.shell("kill -TERM $$")
    assert (result.returncode, result.signal) == (-15, "SIGTERM")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        box.shell("echo out; exit 3", check=True)
    assert (raised.value.returncode, raised.value.stdout) == (3, "out\n")


def test_json(box: Sandbox) -> None:
    """The same keys, whatever happened; numbers and text only."""
    keys = {
        "schema",
        "status",
        "signal",
        "cause",
        "timed_out",
        "cancelled",
        "ended_by",
        "background_output",
        "duration",
        "stdout",
        "stderr",
        "stdout_bytes",
        "stderr_bytes",
        "truncated",
        "why",
        "usage",
        "shell",
        "network",
    }
    for command in ("echo x", "cat /nothing", "kill -9 $$", "printf '\\377'"):
        found = json.loads(box.shell(command).as_json())
        assert found.keys() == keys
        assert found["schema"] == "nsbox.result/1"
    assert found["stdout"] == "\ufffd"
    assert json.loads(box.shell("kill -9 $$").as_json())["status"] is None


# ---- bounds


def test_the_middle_is_left_out(box: Sandbox) -> None:
    """The first and the last bytes are kept, never half a character, and the number of the others is said."""
    result = box.shell("seq 100000; echo end", max_output=1000)
    assert result.is_truncated
    assert result.stdout.startswith("1\n2\n3\n")
    assert result.stdout.endswith("99999\n100000\nend\n")
    assert f"\n[... {result.stdout_bytes - 1000} bytes left out ...]\n" in result.stdout
    assert len(result.stdout) < 1100
    text = box.shell("for i in $(seq 1000); do printf ä; done", max_output=102).stdout
    assert set(text.replace("\n[... 1898 bytes left out ...]\n", "")) == {"ä"}
    exact = box.shell("printf 0123456789", max_output=10)
    assert (exact.stdout, exact.is_truncated) == ("0123456789", False)


def test_endless_output_takes_no_memory(box: Sandbox) -> None:
    """A gigabyte on each stream costs no more than what is kept."""
    box.shell("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = box.shell("head -c 1G /dev/zero & head -c 1G /dev/zero >&2; wait", timeout=50)
    assert (result.stdout_bytes, result.stderr_bytes, result.timed_out) == (1 << 30, 1 << 30, False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB


def test_timeout(box: Sandbox) -> None:
    """All of it is ended, what it had written until then is there, and the reason."""
    result = box.shell("echo begun; (sleep 1000 &) ; sleep 1000", timeout=3)
    assert (result.timed_out, result.signal, result.stdout) == (True, "SIGTERM", "begun\n")
    expected = "it was ended after 3 seconds, the time limit of this call, by SIGTERM"
    assert [str(hint) for hint in result.why] == [expected]
    assert box.shell("yes", timeout=0.3).timed_out
    assert box.shell("exec >&- 2>&-; sleep 1000", timeout=0.3).timed_out
    for wrong in (0, -1, True, "5"):
        with pytest.raises(ValueError, match="timeout is"):
            box.shell("true", timeout=wrong)  # type: ignore[arg-type]


def test_what_is_not_the_commands_time(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit begins when the command has started: what has to be made before that isn't counted."""
    start = box.Popen

    def slowly(*args: object, **options: object) -> object:
        time.sleep(3)
        return start(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(box, "Popen", slowly)
    result = box.shell("sleep 0.1; echo done", timeout=3)
    assert (result.cause, result.stdout) == ("exit", "done\n") and result.duration > 3


def test_what_goes_on_in_a_session(box: Sandbox) -> None:
    """A server that holds the streams of the command that started it doesn't hold up the answer."""
    with box.session() as s:
        assert s.shell("echo started; sleep 1000 &").stdout == "started\n"
        assert s.exec("true").returncode == 0


def test_closed_streams(box: Sandbox, workspace: Path) -> None:
    """A command that has closed its output still gets its input; one that others write for ends when it does."""
    assert box.shell("exec >log 2>&1; wc -c > n", input=b"x" * 1_000_000, timeout=30).returncode == 0
    assert (workspace / "n").read_text().strip() == "1000000"
    with box.session() as s:
        result = s.shell("yes & exit 0", timeout=30)
        assert (result.returncode, result.timed_out) == (0, False)


def test_secrets_of_a_kept_shell(box: Sandbox) -> None:
    """They are for one command: the shell that goes on doesn't have them, nor copies of them."""
    with box.session() as s:
        assert s.shell("export COPY=x$TOK A=b; echo $TOK", keep=True, secrets={"TOK": "s3cr3t-value"}).stdout == "***\n"
        assert s.shell("echo $TOK$COPY$A", keep=True).stdout == "b\n"
        assert s.shell("export BIG=$(head -c 200000 /dev/zero | tr '\\0' x); echo ok", keep=True).stdout == "ok\n"
        assert s.shell("echo $A", keep=True).stdout == "b\n"


def test_ceilings(box: Sandbox) -> None:
    """More than that is nobody's to ask for."""
    with pytest.raises(ValueError, match="max_output is '4T', must be at most"):
        box.shell("true", max_output="4T")
    with pytest.raises(ValueError, match="max_chars"):
        box.read("x", 10**12)


def test_an_interrupt(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the command is left."""
    from nsbox._calls.exchange import Exchange

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Exchange, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        box.shell("sleep 1000")


# ---- the environment and the directory


def test_env(box: Sandbox) -> None:
    """More variables in the built environment; nothing of the caller's."""
    os.environ["SECRET_OF_THE_CALLER"] = "1"
    try:
        found = box.shell("env", env={"A": "b"}).stdout.splitlines()
    finally:
        del os.environ["SECRET_OF_THE_CALLER"]
    assert "A=b" in found
    assert "TMPDIR=/tmp" in found
    assert not any("SECRET" in line for line in found)


SEED = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "DYLD_INSERT_LIBRARIES",
    "DYLD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "NODE_OPTIONS",
    "RUBYOPT",
    "PERL5OPT",
    "PERL5LIB",
    "BASH_ENV",
    "ENV",
    "LD_AUDIT",
    "BASH_FUNC_ls%%",
    "GIT_CONFIG_COUNT",
    "OPENSSL_CONF",
    "PYTHONUSERBASE",
    "PATH",
)


@pytest.mark.parametrize("name", SEED)
def test_dangerous_variables(box: Sandbox, name: str) -> None:
    """They are refused by name, with the reason; nothing is started."""
    with pytest.raises(PolicyError, match=f"env: {name} is refused in a tool call: "):
        box.shell("true", env={name: "x"})
    with pytest.raises(PolicyError, match="is refused"):
        box.exec("true", env={"A": "b", name: "x"})


def test_who_commits(box: Sandbox) -> None:
    """Names and dates are text, no matter what sets them; others of git's aren't."""
    names = {f"GIT_{who}_{what}": "a b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL", "DATE")}
    found = box.shell("env | grep ^GIT_ | sort", env=names).stdout.splitlines()
    assert found == sorted(f"{name}=a b" for name in names)
    with pytest.raises(PolicyError, match="GIT_COMMITTER is refused"):
        box.shell("true", env={**names, "GIT_COMMITTER": "x"})


def test_what_a_dangerous_variable_would_do(policy: Policy, workspace: Path) -> None:
    """The control: set by the policy, BASH_ENV is executed."""
    (workspace / "evil").write_text("echo executed\n")
    with Sandbox(policy.with_(env={"ENV": str(workspace / "evil"), "BASH_ENV": str(workspace / "evil")})) as box:
        assert "executed" in box.exec("bash", ["-c", "true"]).stdout


def test_cwd(box: Sandbox, workspace: Path) -> None:
    """Relative ones count from the workspace; outside of the sandbox there are none."""
    (workspace / "sub").mkdir()
    assert box.shell("pwd", cwd="sub").stdout == f"{workspace}/sub\n"
    assert box.shell("pwd", cwd="/tmp").stdout == "/tmp\n"
    for wrong in ("/root/x", "missing"):
        with pytest.raises(AccessError, match=r"is no directory in the sandbox .*; readable: "):
            box.shell("pwd", cwd=wrong)


# ---- why


def test_a_missing_program(box: Sandbox) -> None:
    """By the shell, by exec, and as a file that can't be executed."""
    by_shell, by_exec = box.shell("no-such-program x"), box.exec("no-such-program", ["x"])
    assert by_shell.returncode == by_exec.returncode == 127
    for result in (by_shell, by_exec):
        assert kinds(result) == ["missing-program"]
        assert "there is no program 'no-such-program' in the sandbox" in str(result.why[0])
    assert box.exec("/etc/hosts").returncode == 126


@pytest.mark.parametrize(
    "command",
    [
        "touch /usr/x",
        "echo x > /usr/x",
        f"{sys.executable} -I -c \"open('/usr/x', 'w')\"",
        "mkdir /etc/x",
        "cp /etc/hosts /opt/x",
        "cd /usr && touch x",
    ],
)
def test_read_only(box: Sandbox, workspace: Path, command: str) -> None:
    """The path that couldn't be written, and those that could."""
    (hint,) = box.shell(command).why
    assert hint.kind == "read-only"
    assert f"; writable: {workspace}" in str(hint)


@pytest.mark.parametrize(
    "command", ["cat {path}", "ls {path}", "python3 -I -c \"open('{path}')\"", "grep x {path}", "cp {path} ."]
)
def test_outside(box: Sandbox, workspace: Path, tmp_path: Path, command: str) -> None:
    """A file that is there, but not in the sandbox: that, and what is readable."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    (hint,) = box.shell(command.format(path=outside)).why
    assert hint.kind == "outside"
    assert str(hint).startswith(f"'{outside}' is outside of the sandbox")
    assert f"readable: {workspace}" in str(hint)
    assert box.shell("cat missing-everywhere").why == ()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_redirections(policy: Policy, workspace: Path, shell: str) -> None:
    """The file that a shell names, not the shell."""
    (workspace / ".env").write_text("x")
    with Sandbox(policy.with_(deny=[workspace / ".env"])) as box:
        (hint,) = box.exec(shell, ["-c", "cat < .env"]).why
        assert str(hint).startswith(f"'{workspace}/.env' is hidden in the sandbox")
        (hint,) = box.exec(shell, ["-c", "echo x > /usr/../usr/x"]).why
        assert str(hint).startswith("'/usr/x' is read-only in the sandbox; writable: ")


def test_hidden(policy: Policy, workspace: Path) -> None:
    """What the policy denies."""
    (workspace / ".env").write_text("x")
    with Sandbox(policy.with_(deny=[workspace / ".env"])) as box:
        (hint,) = box.shell("cat .env").why
        assert str(hint).startswith(f"'{workspace}/.env' is hidden in the sandbox")


def test_permissions(box: Sandbox, workspace: Path) -> None:
    """Of a file that the sandbox shows: they are the reason, not the sandbox."""
    (workspace / "closed").write_text("x")
    (workspace / "closed").chmod(0)
    (hint,) = box.shell("cat closed; echo 'cat: closed: Permission denied' >&2; exit 1").why
    assert (hint.kind, str(hint)) == ("permissions", f"the permissions of '{workspace}/closed' don't allow that")
    (hint,) = box.shell("echo 'touch: /usr/bin: Permission denied' >&2; exit 1").why
    assert str(hint).startswith("the permissions of '/usr/bin' don't allow that, or it is read-only; writable: ")


def test_the_network(box: Sandbox, policy: Policy) -> None:
    """Off, it is named as the reason; a name that isn't known isn't blamed on it when it is on."""
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    assert kinds(box.exec("python3", ["-I", "-c", code])) == ["network"]
    assert kinds(box.shell("echo 'Could not resolve host: x' >&2; exit 6")) == ["network"]
    with Sandbox(policy.with_(network="host")) as other:
        assert other.shell("echo 'Could not resolve host: x' >&2; exit 6").why == ()


def test_limits(policy: Policy) -> None:
    """Processor time, the size of files, memory, descriptors, room in /tmp."""
    limits = Limits(cpu_seconds=1, file_size="1M", memory="1G", open_files=32)
    with Sandbox(policy.with_(limits=limits, tmp_size="1M")) as box:
        assert kinds(box.shell("while :; do :; done")) == ["limit"]
        assert "limits.file_size=1 MiB" in str(box.shell("head -c 2M /dev/zero > big").why)
        assert "limits.memory=1 GiB" in str(box.exec("python3", ["-I", "-c", "bytearray(1 << 31)"]).why)
        code = "import os; [os.open('/', 0) for _ in range(100)]"
        assert "limits.open_files=32" in str(box.exec("python3", ["-I", "-c", code]).why)
        assert kinds(box.shell("for i in 1 2 3; do head -c 900K /dev/zero > /tmp/$i; done")) == ["no-space"]


def test_system_calls(box: Sandbox) -> None:
    """What the filter and the missing capabilities refuse."""
    assert kinds(box.shell("unshare -U true || mount -t tmpfs none /mnt")) == ["not-permitted"]


def test_crashes(box: Sandbox) -> None:
    """A crash, and the kill that isn't one of ours."""
    assert kinds(box.shell("kill -SEGV $$")) == ["crash"]
    assert kinds(box.shell("kill -KILL $$")) == ["killed"]


def test_success_is_not_explained(box: Sandbox) -> None:
    """Whatever it prints."""
    assert box.shell("echo 'Permission denied: /etc/x' >&2").why == ()


def test_odd_messages(box: Sandbox) -> None:
    """Nothing that a command prints makes the search for reasons fail, or take long."""
    lines = [
        "'" * 5000,
        "/" * 5000,
        "a: " * 5000,
        "\0/x: Permission denied",
        "'\n': Read-only file system",
        "x" * 100_000,
    ]
    text = "\n".join(line + ": No such file or directory" for line in lines * 20)
    assert box.shell("cat >&2; exit 1", input=text, max_output="2M").returncode == 1


def test_other_ways(policy: Policy) -> None:
    """In mode "disabled" too, where HOME is the caller's."""
    with Sandbox(policy, mode="disabled") as box:
        result = box.shell('echo "$HOME" "$TMPDIR"', env={"A": "b"})
        assert result.stdout == f"{os.environ.get('HOME', '/')} /tmp\n"
        assert box.shell("exit 3").returncode == 3
        assert box.exec("no-such-program").returncode == 127


# ---- secrets


def test_secrets(box: Sandbox) -> None:
    """They are variables of the command, and masked in whatever it prints: plain, encoded, across pieces, in messages."""
    secrets = {"TOKEN": Secret("s3cr3t-value/+"), "OTHER": "another-secret"}
    command = 'printf "%s\\n" "$TOKEN" "$OTHER"; printf %s "$TOKEN" | base64; printf s3cr; sleep 0.1; echo 3t-value/+; cat "/$TOKEN" >&2'
    result = box.shell(command, secrets=secrets)
    for text in (result.stdout, result.stderr, result.as_json(), repr(result)):
        assert "s3cr3t" not in text
        assert "another-secret" not in text
        assert "czNjcjN0" not in text
    assert "***" in result.stdout
    assert "s3cr3t-value/+" in box.shell('echo "$TOKEN"', env={"TOKEN": "s3cr3t-value/+"}).stdout  # the control
    assert box.shell('echo "$TOKEN"').stdout == "\n"


def test_secrets_of_a_store(box: Sandbox, tmp_path: Path) -> None:
    """A file for each agent; the command of one doesn't have another's."""
    stores = {name: JsonStore(tmp_path / name / "secrets.json") for name in ("a", "b")}
    for name, store in stores.items():
        (tmp_path / name).mkdir(mode=0o700)
        store.set("KEY", f"key-of-{name}")
    assert box.shell("echo ${#KEY}; echo $KEY", secrets=stores["a"]).stdout == "8\n***\n"


def test_secrets_that_cant_be_masked(box: Sandbox) -> None:
    """Too short, or no value of a variable: nothing is started."""
    for wrong in ({"A": "x"}, {"A=": "value"}, {"A": "nul\0byte"}):
        with pytest.raises(ValueError):
            box.shell("true", secrets=wrong)
