"""Agents of the OpenAI Agents SDK in nsbox's sandbox; a script stands for the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Model, ModelResponse, RunConfig, Runner, Usage
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from nsbox.integrations.openai_agents import NsboxSandboxClient

SECRET = "the secret of the host"


class Script(Model):
    """Instead of a model: it calls one tool after the other, and remembers the answers."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = list(calls)
        self.answers: list[str] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        outputs = [item for item in input if isinstance(item, dict) and "output" in item]
        self.answers = [str(item["output"]) for item in outputs]
        if len(outputs) < len(self._calls):
            name, arguments = self._calls[len(outputs)]
            call = ResponseFunctionToolCall(
                type="function_call", name=name, arguments=json.dumps(arguments), call_id=f"call-{len(outputs)}"
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        message = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def run(model: Script, client: Any, **sandbox: Any) -> Any:
    agent = SandboxAgent(
        name="coder",
        model=model,
        instructions="Work.",
        default_manifest=Manifest(entries={"a.py": File(content=b"print(6 * 7)\n")}),
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=client, **sandbox), tracing_disabled=True)
    return asyncio.run(Runner.run(agent, "go", run_config=config))


@pytest.mark.smoke
def test_agent(tmp_path: Path) -> None:
    """The SDK's own tools work in the sandbox; the host's secret is shown by the SDK's own local client alone."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    calls = [
        ("exec_command", {"cmd": "python3 a.py; echo kept > /tmp/nsbox-kept"}),
        ("exec_command", {"cmd": f"rm /tmp/nsbox-kept && echo kept; cat {secret}"}),
    ]
    found = []
    for client in (NsboxSandboxClient(), UnixLocalSandboxClient()):
        model = Script(*calls)
        assert run(model, client).final_output == "done"
        assert "42" in model.answers[0] and "kept" in model.answers[1]
        found.append(model.answers[1])
    assert SECRET not in found[0] and "is outside of the sandbox" in found[0]
    assert SECRET in found[1]  # the control
