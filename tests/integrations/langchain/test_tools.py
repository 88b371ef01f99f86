"""nsbox's tools as LangChain's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

import nsbox
from nsbox.integrations.langchain import tools


class Model(GenericFakeChatModel):
    """A model that says what it was told to say."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Model:
        return self


def call(tool: Any, **arguments: Any) -> ToolMessage:
    return tool.invoke({"type": "tool_call", "name": tool.name, "args": arguments, "id": "call"})


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "repo"
    workspace.mkdir()
    return workspace


def test_schemas(workspace: Path) -> None:
    """A model sees the very schemas of nsbox.tool_schemas()."""
    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box:
        assert [convert_to_openai_tool(tool) for tool in tools(box)] == nsbox.tool_schemas()
        assert [tool.name for tool in tools(box, ["shell", "edit"])] == ["shell", "edit"]
        with pytest.raises(ValueError, match="no tool is called"):
            tools(box, ["shel"])


def test_answers(workspace: Path) -> None:
    """Answers are JSON; a model's mistake is a message with the status "error"."""
    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box:
        by_name = {tool.name: tool for tool in tools(box, env={"NAME": "value"}, timeout=20)}
        done = json.loads(call(by_name["shell"], command="echo $NAME; touch /usr/x").content)
        assert done["stdout"] == "value\n" and "read-only" in done["why"][0]["message"]
        refused = call(by_name["write"], path="/etc/x", content="x")
        assert refused.status == "error" and "writable" in refused.content
        assert call(by_name["edit"], path="none", old="a", new="b").status == "error"
        assert call(by_name["read_lines"], path="none", offset="first").status == "error"
        job = json.loads(call(by_name["background"], command="echo started; sleep 1234").content)["job"]
        assert json.loads(call(by_name["job_output"], job=job, wait=10).content)["text"] == "started\n"
        assert json.loads(call(by_name["job_kill"], job=job).content)["cause"] == "cancelled"


def test_functions_are_not_inspected(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call doesn't look whether a function wants a config or callbacks; LangChain's own tool does, each time."""

    def shell(command: str) -> str:
        """Run a command."""
        return command

    own = StructuredTool.from_function(shell)
    inspected: list[Any] = []
    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box:
        (tool,) = tools(box, ["shell"])
        monkeypatch.setattr("langchain_core.tools.structured._get_runnable_config_param", inspected.append)
        own.invoke({"command": "true"})
        assert inspected == [shell]
        assert json.loads(tool.invoke({"command": "echo 1"}))["stdout"] == "1\n"
        assert json.loads(asyncio.run(tool.ainvoke({"command": "echo 2"})))["stdout"] == "2\n"
    assert inspected == [shell]


def test_agent(workspace: Path) -> None:
    """An agent without any middleware uses them."""
    calls = [
        {"name": "write", "args": {"path": "a.py", "content": "print(6 * 7)\n"}, "id": "1"},
        {"name": "shell", "args": {"command": "python3 a.py"}, "id": "2"},
    ]
    model = Model(messages=iter([*(AIMessage("", tool_calls=[one]) for one in calls), AIMessage("done")]))
    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box:
        agent = create_agent(model, tools(box))
        outcome = asyncio.run(agent.ainvoke({"messages": [("user", "go")]}))
    found = [message for message in outcome["messages"] if message.type == "tool"]
    assert json.loads(found[1].content)["stdout"] == "42\n"


def test_cancelled(workspace: Path) -> None:
    """A cancelled task's command is ended before the cancellation goes on."""

    async def use(box: nsbox.Sandbox) -> None:
        (tool,) = tools(box, ["shell"])
        task = asyncio.create_task(tool.ainvoke({"command": "touch started; sleep 1234"}))
        while not (workspace / "started").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box:
        asyncio.run(use(box))


def test_closed(workspace: Path) -> None:
    """What is no mistake of the model's is raised."""
    box = nsbox.Sandbox(nsbox.Policy.workspace(workspace))
    (tool,) = tools(box, ["shell"])
    box.close()
    with pytest.raises(ValueError, match="closed"):
        tool.invoke({"command": "true"})
