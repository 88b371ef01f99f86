"""Evals with a scripted model: each sample has a sandbox of its own, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from inspect_ai import eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.solver import Generate, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, bash_session, python, text_editor
from inspect_ai.util import SandboxEnvironmentSpec, sandbox

from nsbox.integrations.inspect_ai import NsboxConfig, NsboxSandboxEnvironment

pytestmark = pytest.mark.timeout(300)

Evaluate = Callable[..., EvalLog]


def answers(log: EvalLog, number: int = 0) -> list[str]:
    """Return what the tools of a sample answered."""
    assert log.status == "success", log.error
    assert log.samples is not None
    return [message.text for message in log.samples[number].messages if message.role == "tool"]


@pytest.mark.smoke
def test_fifty_at_once(evaluate: Evaluate) -> None:
    """Fifty samples have sandboxes at the same time; each finds what it wrote at an absolute path, and nothing else."""
    count = 50
    met: list[str] = []

    @solver
    def meeting() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            await sandbox().write_file("/tmp/mine", str(state.sample_id))
            met.append(str(state.sample_id))
            with anyio.fail_after(300):
                while len(met) < count:
                    await anyio.sleep(0.05)
            return state

        return solve

    log = evaluate(
        [Sample(id=str(number), input="x") for number in range(count)],
        solver=[meeting(), use_tools(bash(), python()), generate()],
        calls=[
            ("bash", {"command": "cat /tmp/mine; ls /tmp ~; echo more >> /usr/more && cat /usr/more; touch ~/mine"}),
            (
                "python",
                {"code": "import os; print(open('/tmp/mine').read(), os.path.exists(os.path.expanduser('~/mine')))"},
            ),
        ],
        max_samples=count,
    )
    assert log.status == "success", log.error
    assert log.samples is not None and len(log.samples) == count
    for number, sample in enumerate(log.samples):
        first, second = answers(log, number)
        assert first.startswith(str(sample.id)), first
        assert first.count("mine") == 1, "the home began empty"
        assert "\nmore" in first
        assert second.split() == [str(sample.id), "True"]
    assert not Path("/usr/more").exists()
    assert not Path("/tmp/mine").exists()


def test_files_setup_and_several(evaluate: Evaluate) -> None:
    """Sample files and setup scripts arrive; a sample has several sandboxes by name, each its own."""
    seen: dict[str, str] = {}

    @solver
    def look() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            seen["files"] = await sandbox().read_file("a/b.txt") + await sandbox("other").read_file("/opt/c.txt")
            seen["setup"] = await sandbox("first").read_file("/tmp/setup")
            seen["other"] = (await sandbox("other").exec(["ls", "/tmp/setup"])).stderr
            return state

        return solve

    log = evaluate(
        [Sample(input="x", files={"a/b.txt": "AAA", "other:/opt/c.txt": "CCC"}, setup="cat a/b.txt > /tmp/setup")],
        solver=look(),
        sandbox=SandboxEnvironmentSpec(
            "nsbox", NsboxConfig(sandboxes={"first": NsboxConfig(), "other": NsboxConfig()})
        ),
    )
    assert log.status == "success", log.error
    assert seen["files"] == "AAACCC"
    assert seen["setup"] == "AAA"
    assert "No such file" in seen["other"]


def test_injected_tools(evaluate: Evaluate) -> None:
    """The tools for which Inspect puts a program of its own into the sandbox work too."""
    log = evaluate(
        [Sample(input="x")],
        tools=[text_editor(), bash_session()],
        calls=[
            ("text_editor", {"command": "create", "path": "/tmp/new.txt", "file_text": "one\ntwo\n"}),
            ("text_editor", {"command": "str_replace", "path": "/tmp/new.txt", "old_str": "two", "new_str": "three"}),
            ("text_editor", {"command": "view", "path": "/tmp/new.txt"}),
            ("bash_session", {"action": "type_submit", "input": "cd /usr; X=$(tail -n 1 /tmp/new.txt)"}),
            ("bash_session", {"action": "type_submit", "input": "pwd; echo got $X"}),
        ],
    )
    said = answers(log)
    assert "three" in said[2]
    assert "/usr" in said[4] and "got three" in said[4]


def test_time_limit_of_a_tool(evaluate: Evaluate) -> None:
    """A command that ignores SIGTERM is killed at its time limit, the model reads what it printed, and it is gone."""
    log = evaluate(
        [Sample(input="x")],
        tools=[bash(timeout=1)],
        calls=[
            ("bash", {"command": "echo begun; trap '' TERM; setsid sleep 1234 & sleep 1234; wait"}),
            ("bash", {"command": "ps ax | grep -c '[s]leep 1234'"}),
        ],
    )
    assert log.samples is not None
    late, after = (message for message in log.samples[0].messages if message.role == "tool")
    assert late.error is not None and late.error.type == "timeout"
    assert "begun" in late.text + late.error.message
    assert after.text.strip() == "0"


def test_too_much_output(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output above the limit is the framework's own error, which the model reads."""
    monkeypatch.setenv("INSPECT_SANDBOX_MAX_EXEC_OUTPUT_SIZE", "1024")
    log = evaluate([Sample(input="x")], tools=[bash()], calls=[("bash", {"command": "seq 10000"})])
    assert log.samples is not None
    (answer,) = (message for message in log.samples[0].messages if message.role == "tool")
    assert answer.error is not None and answer.error.type in ("limit", "output_limit")
    assert "1 KiB" in answer.error.message


def test_max_sandboxes(evaluate: Evaluate) -> None:
    """No more sandboxes exist at a time than max_sandboxes says."""
    alive, most = 0, 0

    @solver
    def count() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            await sandbox().exec(["sleep", "0.1"])
            alive -= 1
            return state

        return solve

    log = evaluate([Sample(input="x") for _ in range(6)], solver=count(), max_samples=6, max_sandboxes=2)
    assert log.status == "success", log.error
    assert 1 <= most <= 2


def _nothing_of(seconds: int) -> None:
    assert not [one.pid for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", str(seconds)]]


def test_cancelled_sample(evaluate: Evaluate) -> None:
    """When a sample's time is up, its command ends with its sandbox."""
    log = evaluate([Sample(input="x")], tools=[bash()], calls=[("bash", {"command": "sleep 4321"})], time_limit=3)
    assert log.samples is not None and log.samples[0].limit is not None
    assert log.samples[0].limit.type == "time"
    _nothing_of(4321)


def test_failed_eval(evaluate: Evaluate) -> None:
    """When one sample fails and takes the eval with it, the commands of the others end."""
    ready: list[str] = []

    @solver
    def fail() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            if state.sample_id == "bad":
                while not ready:
                    await anyio.sleep(0.05)
                raise RuntimeError("meant to fail")
            await sandbox().exec(["sh", "-c", "nohup sleep 5432 >/dev/null 2>&1 &"])
            ready.append("")
            await sandbox().exec(["sleep", "5432"])
            return state

        return solve

    log = evaluate([Sample(id=name, input="x") for name in ("bad", "good")], solver=fail(), max_samples=2)
    assert log.status == "error"
    assert log.error is not None and "meant to fail" in log.error.message
    _nothing_of(5432)


def test_machine_without_it(evaluate: Evaluate) -> None:
    """A policy that this machine can't grant ends the eval, in the words of nsbox's own error."""
    config = NsboxConfig(policy={"backend": "passthrough"})
    with pytest.raises(Exception, match=r"passthrough|namespaces"):
        log = evaluate([Sample(input="x")], solver=generate(), sandbox=SandboxEnvironmentSpec("nsbox", config))
        raise AssertionError(log.error)


FILE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox


@solver
def look():
    async def solve(state, generate):
        before = await sandbox().read_file("a.txt")
        await sandbox().write_file("a.txt", "changed")
        state.metadata["seen"] = [before, await sandbox().read_file("a.txt")]
        return state

    return solve


@task
def reading():
    return Task(dataset=[Sample(input="1"), Sample(input="2")], solver=look(), sandbox=SANDBOX)
"""


@pytest.mark.parametrize(("name", "sandbox_"), [("policy.toml", ("nsbox", "policy.toml")), ("nsbox.toml", "nsbox")])
def test_file(name: str, sandbox_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration file counts from the eval's directory; one called nsbox.toml needn't be named."""
    place, elsewhere = tmp_path / "evals", tmp_path / "elsewhere"
    (place / "repo").mkdir(parents=True)
    elsewhere.mkdir()
    (place / "repo/a.txt").write_text("original")
    (place / name).write_text('workspace = "repo"\n')
    (place / "reading.py").write_text(f"SANDBOX = {sandbox_!r}\n" + FILE)
    monkeypatch.chdir(elsewhere)
    (log,) = eval("../evals/reading.py", model="mockllm/model", display="none", log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error
    assert log.samples is not None
    assert [sample.metadata["seen"] for sample in log.samples] == [["original", "changed"]] * 2
    assert (place / "repo/a.txt").read_text() == "original"


def test_log_has_the_configuration(evaluate: Evaluate, tmp_path: Path) -> None:
    """A log holds the configuration, and gives it back as the same object."""
    config = NsboxConfig(policy={"network": "none", "limits": {"memory": "2G"}}, why=True)
    log = evaluate([Sample(input="x")], solver=generate(), sandbox=SandboxEnvironmentSpec("nsbox", config))
    assert log.status == "success", log.error
    again = read_eval_log(log.location).eval.sandbox
    assert again is not None and again.config == config


PROGRAM = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox


@solver
def wait():
    async def solve(state, generate):
        await sandbox().exec(["sh", "-c", "echo > /tmp/x; sleep 6543 & sleep 6543"])
        return state

    return solve


eval(Task(dataset=[Sample(input="x")], solver=wait(), sandbox="nsbox"), model="mockllm/model", display="none",
     log_dir=sys.argv[1])
"""


def _sleeps(process: psutil.Process) -> bool:
    try:
        return process.cmdline() == ["sleep", "6543"]
    except psutil.Error:  # it has just ended
        return False


@pytest.mark.timeout(600)
def test_killed_program(tmp_path: Path) -> None:
    """When the whole program is killed, its commands end; `inspect sandbox cleanup nsbox` removes its directories."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    temporary = tmp_path / "tmp"
    temporary.mkdir(0o755)
    environ = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-P", str(script), str(tmp_path / "logs")], env=environ) as program:
        try:
            while not any(map(_sleeps, children := psutil.Process(program.pid).children(recursive=True))):
                assert program.poll() is None
                time.sleep(0.1)
        finally:
            program.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert list(temporary.glob("work-*"))
    cleanup = [sys.executable, "-P", "-m", "inspect_ai", "sandbox", "cleanup", "nsbox"]
    subprocess.run(cleanup, check=True, env=environ)
    assert not list(temporary.glob("work-*"))
    with pytest.raises(ValueError, match="have no ids"):
        anyio.run(NsboxSandboxEnvironment.cli_cleanup, "7")


def test_task_of_the_sandbox(evaluate: Evaluate) -> None:
    """What Inspect has no method for is there by the task: a patch of what the model changed, and a way back."""
    seen: list[str] = []

    @solver
    def change() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            task = sandbox().as_type(NsboxSandboxEnvironment).task
            before = await task.snapshot()
            await sandbox().exec(["sh", "-c", "echo new > a.txt; rm /tmp/b"])
            seen.append(await task.patch())
            await task.reset(before)
            seen.append(await sandbox().read_file("/tmp/b"))
            return state

        return solve

    log = evaluate([Sample(input="x", files={"/tmp/b": "B"})], solver=change())
    assert log.status == "success", log.error
    assert "+new" in seen[0]
    assert seen[1] == "B"


def test_example() -> None:
    """The example scores what its scripted model did in each sandbox."""
    example = Path(__file__).resolve().parents[3] / "examples/integrations/inspect_eval.py"
    done = subprocess.run([sys.executable, "-P", str(example)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["success 1.0", "1 ccc", "2 longest", "3 three"]
