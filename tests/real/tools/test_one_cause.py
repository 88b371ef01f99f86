"""One end has one cause and one explanation: what hints() says, `usage.cause`, a result's `cause` and the records agree."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Limits, Policy, Sandbox, Usage

KINDS = {"timeout", "killed", "limit", "unknown", "crash", "cancelled"}  # of hints about how a command ended


def usage(cause: str, **amounts: int) -> Usage:
    return Usage(1.0, 0.0, 0.0, 0, cause, True, **amounts)  # type: ignore[arg-type]


def kinds(policy: Policy, status: int, used: Usage | None, timeout: float | None = None) -> list[str]:
    return [hint.kind for hint in nsbox.hints(policy, status, usage=used, timeout=timeout) if hint.kind in KINDS]


@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize(
    ("status", "cause", "amounts", "expected"),
    [
        (-signal.SIGKILL, "timeout", {}, "timeout"),
        (-signal.SIGTERM, "timeout", {}, "timeout"),
        (143, "timeout", {}, "timeout"),
        (3, "timeout", {}, "timeout"),
        (-signal.SIGKILL, "timeout", {"oom_kills": 1}, "timeout"),
        (-signal.SIGKILL, "limit", {"oom_kills": 1}, "limit"),
        (-signal.SIGXCPU, "limit", {}, "limit"),
    ],
)
def test_hints_follow_the_cause(
    tmp_path: Path, status: int, cause: str, amounts: dict[str, int], expected: str, timeout: float | None
) -> None:
    """What usage says is certain: a time limit isn't a kill of unknown origin, and a limit isn't a time limit."""
    policy = Policy.workspace(tmp_path, limits=Limits(cpu_seconds=5, total_memory="1G", file_size="1M"))
    assert kinds(policy, status, usage(cause, **amounts), timeout) == [expected]


@pytest.mark.parametrize("name", ["XCPU", "XFSZ"])
@pytest.mark.parametrize("line", ["kill -{} $$", "sh -c 'kill -{} $$'; exit $?"])
def test_a_forged_limit(workspace: Path, name: str, line: str) -> None:
    """A command that sends itself a limit's signal hasn't reached a limit; neither the cause nor the hint says so."""
    for limits in (Limits(), Limits(cpu_seconds=100)):
        with Sandbox(Policy.workspace(workspace, limits=limits), stock=0) as box:
            done = box.exec("sh", ["-c", line.format(name)])
        assert done.cause in ("signal", "exit")
        (hint,) = done.why
        assert hint.kind == "killed" and "limits." not in hint.message
        assert hint.message.startswith(f"it was killed by SIG{name}, and ")


def test_a_file_that_may_have_become_too_large(workspace: Path) -> None:
    """With a limit of file sizes a hint says "perhaps": nothing tells its signal from the command's own."""
    with Sandbox(Policy.workspace(workspace, limits=Limits(file_size="1M")), stock=0) as box:
        for line in ("kill -XFSZ $$", "exec head -c 2000000 /dev/zero > big"):
            done = box.exec("sh", ["-c", line])
            assert (done.signal, done.cause) == ("SIGXFSZ", "signal")
            assert [hint.kind for hint in done.why] == ["limit"]
            assert done.why[0].message.startswith("perhaps a file became too large")


def test_without_a_cause_hints_guess(tmp_path: Path) -> None:
    """The control: without usage, or after a signal of unknown origin, a SIGKILL is guessed at; timeout= says why."""
    policy = Policy.workspace(tmp_path)
    for used in (None, usage("signal")):
        assert kinds(policy, -signal.SIGKILL, used) == ["killed"]
        assert kinds(policy, -signal.SIGKILL, used, 1.0) == ["timeout"]


def test_a_killed_command(workspace: Path) -> None:
    """Popen and run() as subprocess has them: killed after TimeoutExpired."""
    policy = Policy.workspace(workspace)
    process = nsbox.Popen(["sleep", "1000"], policy=policy)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    status = process.wait()
    assert process.sandbox.usage.cause == "timeout"
    (hint,) = nsbox.hints(policy, status, usage=process.sandbox.usage)
    assert (hint.kind, hint.message) == ("timeout", "it was ended after a time limit, by SIGKILL")


@pytest.mark.parametrize("line", ["sleep 1000", "trap 'exit 0' TERM; sleep 1000 & wait", "trap '' TERM; sleep 1000"])
def test_results(workspace: Path, line: str) -> None:
    """A tool's result, of a sandbox or of a session, has one cause, whatever the command does with SIGTERM."""
    with Sandbox(Policy.workspace(workspace)) as box, box.session() as session:
        for one in (box, session):
            result = one.shell(line, timeout=0.3, grace=0.2)
            assert result.usage is not None
            assert (result.cause, result.usage.cause, [hint.kind for hint in result.why]) == (
                *("timeout", "timeout"),
                ["timeout"],
            )


@pytest.mark.parametrize("code", ["while True: pass", "import signal; signal.signal(2, 1)\nwhile True: pass"])
def test_kernels(workspace: Path, code: str) -> None:
    """So does a call of a kernel, whether the kernel goes on or is killed."""
    with Sandbox(Policy.workspace(workspace)) as box, box.python().kernel() as kernel:
        result = kernel.run(code, timeout=0.3, grace=0.2 if "signal" in code else 60)
        assert result.usage is not None
        assert (result.cause, result.usage.cause) == ("timeout", "timeout")
        assert json.loads(result.as_json())["usage"]["cause"] == "timeout"


def test_the_command_line(workspace: Path, tmp_path: Path) -> None:
    """`nsbox run --timeout` ends with 124, and the record of the end has the same cause."""
    log = tmp_path / "audit.jsonl"
    command = [sys.executable, "-m", "nsbox", "run", "--audit", str(log), "--timeout", "0.2", "--", "sleep", "1000"]
    assert subprocess.run(command, cwd=workspace, capture_output=True, check=False).returncode == 124
    (end,) = [record for record in map(json.loads, log.read_text().splitlines()) if record["event"] == "end"]
    assert (end["cause"], end["signal"]) == ("timeout", "SIGTERM")
