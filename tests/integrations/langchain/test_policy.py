"""The execution policy for LangChain's shell middleware, with agents whose model is scripted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HostExecutionPolicy, ShellToolMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from nsbox_processes import sleepers

import nsbox
from nsbox.integrations.langchain import SandboxExecutionPolicy
from nsbox.integrations.langchain.streams import Input

SECRET = "the secret of the host"


class Model(GenericFakeChatModel):
    """A model that says what it was told to say."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Model:
        return self


def scripted(*calls: dict[str, Any]) -> Model:
    turns = [
        AIMessage("", tool_calls=[{"name": "shell", "args": args, "id": f"call-{number}"}])
        for number, args in enumerate(calls)
    ]
    return Model(messages=iter([*turns, AIMessage("done")]))


def agent_of(policy: Any, workspace: Path | None, *commands: str | None, **options: Any) -> Any:
    """Return an agent that runs these commands; None is a restart."""
    calls = [{"restart": True} if command is None else {"command": command} for command in commands]
    middleware = ShellToolMiddleware(workspace, execution_policy=policy, **options)
    return create_agent(scripted(*calls), middleware=[middleware])


def answers(policy: Any, workspace: Path | None, *commands: str | None, **options: Any) -> list[Any]:
    outcome = agent_of(policy, workspace, *commands, **options).invoke({"messages": [("user", "go")]})
    return [message for message in outcome["messages"] if message.type == "tool"]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "repo"
    workspace.mkdir()
    (tmp_path / "secret").write_text(SECRET + "\n")
    return workspace


# What LangChain's own policy leaves behind: pipes that nothing closes, processes that nothing waits for.
_untidy = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.mark.smoke
@_untidy
def test_agent(workspace: Path) -> None:
    """A shell that stays, without a way to the host's secret, which LangChain's own host policy shows."""
    secret = workspace.parent / "secret"
    commands = ("cd /usr; x=1", 'echo "$PWD $x"', f"cat {secret}", "echo made > $HOME/made; cat $HOME/made")
    (_, state, refused, made) = answers(SandboxExecutionPolicy(), workspace, *commands)
    assert state.content == "/usr 1\n" and made.content == "made\n"
    assert f"[sandbox] '{secret}' is outside of the sandbox" in refused.content
    assert refused.content.endswith("\n\nExit code: 1") and refused.status == "error"
    assert SECRET not in str(refused)
    assert SECRET in answers(HostExecutionPolicy(), workspace, f"cat {secret}")[0].content  # the control


def test_why(workspace: Path) -> None:
    """What was refused is told after the command's own output, from the directory where it ran, once."""
    policy = nsbox.Policy.workspace(workspace)
    commands = ("touch /usr/x", "cd /usr && touch y", "false", "printf 'no newline'; touch z; false", "echo fine")
    found = [message.content for message in answers(SandboxExecutionPolicy(policy), workspace, *commands)]
    writable = f"read-only in the sandbox; writable: {workspace}\n"
    denied = "Read-only file system\n"
    assert found[0] == f"[stderr] touch: cannot touch '/usr/x': {denied}[sandbox] '/usr/x' is {writable}\nExit code: 1"
    assert found[1] == f"[stderr] touch: cannot touch 'y': {denied}[sandbox] '/usr/y' is {writable}\nExit code: 1"
    assert found[2] == "<no output>\n\nExit code: 1"
    assert (
        sorted(found[3].splitlines()[:3])
        == sorted(
            [
                "no newline",
                "[stderr] touch: cannot touch 'z': Read-only file system",
                f"[sandbox] '/usr/z' is {writable}"[:-1],
            ]
        )
        or "no newline[stderr]" in found[3]
    )
    assert found[4] == "fine\n"
    quiet = answers(SandboxExecutionPolicy(policy, why=False), workspace, "touch /usr/x")[0].content
    assert "[sandbox]" not in quiet and "Read-only file system" in quiet


@pytest.mark.parametrize("limits", [{"max_output_lines": 30}, {"max_output_lines": 10_000, "max_output_bytes": 3000}])
def test_why_after_long_output(workspace: Path, limits: dict[str, int]) -> None:
    """Output that is cut doesn't hide why the command failed; what is said about the cut is what LangChain says."""
    command = "seq 1000; touch /usr/x"
    (message,) = answers(SandboxExecutionPolicy(nsbox.Policy.workspace(workspace), **limits), workspace, command)
    assert "'/usr/x' is read-only in the sandbox" in message.content
    assert "... Output truncated at" in message.content
    assert message.artifact["total_lines"] == 1002  # with what touch says, and why
    assert message.artifact["truncated_by_bytes"] == ("max_output_bytes" in limits)
    assert message.artifact["truncated_by_lines"] == ("max_output_bytes" not in limits)


def test_floods(workspace: Path) -> None:
    """A line of 5 MB, many lines, and bytes that aren't UTF-8 arrive; a short command isn't slowed down by them."""
    policy = SandboxExecutionPolicy(command_timeout=60)
    found = answers(
        *(
            policy,
            workspace,
            "head -c 5000000 /dev/zero | tr '\\0' x",
            "seq 300000",
            "printf '\\377\\r\\n'",
            "echo fine",
        )
    )
    assert found[0].content.startswith("x" * 5_000_000) and found[0].artifact["exit_code"] == 0
    assert found[1].artifact["total_lines"] == 300_000
    assert found[2].content == "\ufffd\n" and found[3].content == "fine\n"


@pytest.mark.parametrize("size", range(65_480, 65_560, 16))
def test_markers_after_long_lines(workspace: Path, size: int) -> None:
    """The end of a command is found wherever it lies in what one read returns."""
    line = f"head -c {size} /dev/zero | tr '\\0' x"
    (message,) = answers(SandboxExecutionPolicy(command_timeout=60), workspace, line)
    assert message.content == "x" * size and message.artifact["exit_code"] == 0


@_untidy
def test_same_as_host(workspace: Path) -> None:
    """Where nothing is refused, the model sees what LangChain's own policy would show."""
    commands = (
        "echo a; echo b",
        "seq 200",
        "true",
        "printf 'a\\nb\\n' | sort -r",
        "f() { return 7; }; f",
        "cat <<< text",
    )
    ours, theirs = (
        [(message.content, message.artifact) for message in answers(policy, workspace, *commands, env=dict(os.environ))]
        for policy in (SandboxExecutionPolicy(), HostExecutionPolicy())
    )
    assert ours == theirs


def test_timeout(workspace: Path) -> None:
    """A command that takes too long is ended at once, with what it started, and a fresh shell takes over."""
    policy = SandboxExecutionPolicy(command_timeout=1, termination_timeout=60)
    began = time.monotonic()
    late, after = answers(policy, workspace, "x=1; sleep 1234 & sleep 1234", "echo ${x-fresh}; pgrep sleep")
    assert late.content == "Error: Command timed out after 1.0 seconds." and late.artifact["timed_out"]
    assert after.content == "fresh\n\nExit code: 1"
    assert time.monotonic() - began < 40  # less than termination_timeout


def test_restart(workspace: Path) -> None:
    """A restart ends the shell and all that it has left running."""
    _, restarted, after = answers(SandboxExecutionPolicy(), workspace, "x=1; sleep 1234 &", None, "echo ${x-fresh}")
    assert restarted.content == "Shell session restarted." and after.content == "fresh\n"


def test_shell_that_ends(workspace: Path) -> None:
    """A shell that a command ends is what it is with LangChain's own policies: started again after the time limit."""
    policy = SandboxExecutionPolicy(command_timeout=1)
    late, after = answers(policy, workspace, "exit 3", "echo back")
    assert late.artifact["timed_out"] and after.content == "back\n"


def test_environment(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell has the policy's variables and the middleware's, and none of the caller's."""
    monkeypatch.setenv("CALLERS", "secret")
    policy = nsbox.Policy.workspace(workspace, env={"FROM_POLICY": "1"})
    command = "echo $FROM_POLICY $FROM_MIDDLEWARE ${CALLERS-none}; command -v ls > /dev/null && echo path"
    (message,) = answers(SandboxExecutionPolicy(policy), workspace, command, env={"FROM_MIDDLEWARE": 2})
    assert message.content == "1 2 none\npath\n"


def test_workspaces(workspace: Path) -> None:
    """Without a workspace, the middleware's temporary one is used, or the directory that the policy has."""
    (own,) = answers(SandboxExecutionPolicy(), None, "pwd; touch x && ls")
    assert "langchain-shell-" in own.content and own.content.endswith("x\n")
    (policys,) = answers(SandboxExecutionPolicy(nsbox.Policy.workspace(workspace)), None, "pwd")
    assert policys.content == f"{workspace}\n"
    elsewhere = SandboxExecutionPolicy(nsbox.Policy.workspace(workspace))
    with pytest.raises((nsbox.AccessError, FileNotFoundError)):
        answers(elsewhere, workspace.parent / "other", "pwd")


def test_startup_and_shutdown(workspace: Path) -> None:
    """Startup commands that fail raise LangChain's error; shutdown commands run."""
    with pytest.raises(RuntimeError, match="Startup command"):
        answers(SandboxExecutionPolicy(), workspace, startup_commands=["touch /usr/x"])
    answers(SandboxExecutionPolicy(), workspace, "true", startup_commands="touch up", shutdown_commands="touch down")
    assert (workspace / "up").exists() and (workspace / "down").exists()


def test_boxes(workspace: Path) -> None:
    """Shells can start in a Sandbox, a session or a task, and what was written in a task stays there."""
    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box, box.session() as session, box.task() as task:
        for each in (box, session, task):
            (message,) = answers(SandboxExecutionPolicy(each), workspace, "echo here; echo kept > /tmp/kept")
            assert message.content == "here\n"
        assert session.read("/tmp/kept") == task.read("/tmp/kept") == "kept\n"
        (message,) = answers(SandboxExecutionPolicy(task), workspace, "touch /usr/made && ls -l /usr/made | wc -l")
        assert message.content == "1\n"
    for wrong in ("x", 3, Path("x")):
        with pytest.raises(TypeError, match="policy is"):
            SandboxExecutionPolicy(wrong)
    with pytest.raises(ValueError, match="max_output_lines"):
        SandboxExecutionPolicy(max_output_lines=0)


def test_cancelled(workspace: Path) -> None:
    """A cancelled run leaves nothing behind once the `with` block ends, however long its command may take."""

    async def use() -> None:
        with SandboxExecutionPolicy(command_timeout=1000) as policy:
            agent = agent_of(policy, workspace, "touch started; sleep 1234 & sleep 1234")
            task = asyncio.create_task(agent.ainvoke({"messages": [("user", "go")]}))
            while not (workspace / "started").exists() or not sleepers():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not sleepers()

    began = time.monotonic()
    asyncio.run(use())  # it waits for the thread in which the middleware ran the command
    assert time.monotonic() - began < 500


def test_closed(workspace: Path) -> None:
    """A policy that was closed starts no shell; closing twice is no error."""
    policy = SandboxExecutionPolicy()
    policy.close()
    policy.close()
    with pytest.raises(RuntimeError, match="closed"):
        answers(policy, workspace, "true")


def test_unavailable(workspace: Path) -> None:
    """A machine that can't grant the policy says why, in nsbox's own words."""
    policy = nsbox.Policy.workspace(workspace, backend="seatbelt")
    with pytest.raises(nsbox.UnavailableError):
        answers(SandboxExecutionPolicy(policy), workspace, "true")


def test_other_ways_of_driving(workspace: Path) -> None:
    """What the policy returns is nsbox's Popen, whose streams work for any other driver as well."""
    policy = SandboxExecutionPolicy()
    with policy.spawn(workspace=workspace, env={}, command=["/bin/sh"]) as process:
        assert isinstance(process, nsbox.Popen)
        print("printf 'a\\nb'; touch /usr/x; exit 3", file=process.stdin, flush=True)
        assert process.stdout.read() == "a\nb"
        assert "Read-only" in process.stderr.readline()
        assert list(process.stderr) == []
        assert process.wait() == 3


def test_shell_gets_command_and_marker_at_once() -> None:
    """The shell gets nothing before flush(): a command whose marker isn't known would print lines that aren't counted."""
    reader, writer = os.pipe()
    shell: Any = SimpleNamespace(write=str.upper, settle=lambda: None, is_ending=False)
    with open(reader, "rb", buffering=0) as pipe:
        os.set_blocking(reader, False)
        with Input(shell, open(writer, "wb", buffering=0)) as stdin:
            assert stdin.write("seq 1000\n") == 9
            assert pipe.read() is None
            stdin.write("marker\n")
            stdin.flush()
            assert pipe.read() == b"SEQ 1000\nMARKER\n"
            stdin.write("last\n")
        assert pipe.read() == b"LAST\n"
        with pytest.raises(ValueError, match="closed"):
            stdin.write("more\n")
