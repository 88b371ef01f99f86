"""An agent of the OpenAI Agents SDK that works in a sandbox. The model is a script, so it needs no key.

pip install "nsbox[openai-agents]"
python examples/integrations/openai_agent.py
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from agents import Model, ModelResponse, RunConfig, Runner, Usage
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import nsbox
from nsbox.integrations.openai_agents import NsboxSandboxClient

COMMANDS = (
    "python3 -B test_add.py",
    "sed -i 's/a - b/a + b/' add.py && python3 -B test_add.py",
    "cat /etc/shadow; touch /usr/installed && ls /usr/installed",
)


class Script(Model):
    """Instead of a model: it runs one command after the other."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        answers = [item["output"] for item in input if isinstance(item, dict) and "output" in item]
        if answers:
            print(answers[-1], end="\n\n")
        if len(answers) == len(COMMANDS):
            text = ResponseOutputText(type="output_text", text="The test passes.", annotations=[])
            said = ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])
            return ModelResponse(output=[said], usage=Usage(), response_id=None)
        line = COMMANDS[len(answers)]
        print(f"$ {line}")
        call = ResponseFunctionToolCall(
            type="function_call", name="exec_command", arguments=json.dumps({"cmd": line}), call_id=str(len(answers))
        )
        return ModelResponse(output=[call], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def policy(workspace: Path) -> nsbox.Policy:
    return nsbox.Policy.workspace(workspace, symlinks="beneath", deny=[workspace / ".env"])


def main() -> None:
    with tempfile.TemporaryDirectory() as repo:
        Path(repo, "test_add.py").write_text("from add import add\n\nassert add(2, 2) == 4\nprint('passed')\n")
        Path(repo, "add.py").write_text("def add(a, b):\n    return a - b\n")
        agent = SandboxAgent(name="coder", model=Script(), instructions="Make the test pass.")
        sandbox = SandboxRunConfig(client=NsboxSandboxClient(policy), manifest=Manifest(root=repo))
        result = asyncio.run(Runner.run(agent, "go", run_config=RunConfig(sandbox=sandbox, tracing_disabled=True)))
        print(result.final_output, Path(repo, "add.py").read_text().splitlines()[1].strip())
        print("on the host:", Path("/usr/installed").exists())


if __name__ == "__main__":
    main()
