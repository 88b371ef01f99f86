"""An agent of LangChain whose shell runs in a sandbox. The model is a script, so it needs no key.

pip install "nsbox[langchain]"
python examples/integrations/langchain_agent.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

import nsbox
from nsbox.integrations.langchain import SandboxExecutionPolicy


class Script(GenericFakeChatModel):
    """Instead of a model: it calls the shell with one line after the other."""

    def bind_tools(self, tools: object, **options: object) -> Script:
        return self


LINES = (
    "printf 'def f():\\n    return 6 * 7\\n' > answer.py",
    "cd / && python3 -c 'import sys; sys.path.append(\"'$OLDPWD'\"); import answer; print(answer.f())'",
    "cat ~/.ssh/id_ed25519 /etc/shadow",
    "curl -sS https://example.com",
)


def main() -> None:
    calls = [[{"name": "shell", "args": {"command": line}, "id": str(n)}] for n, line in enumerate(LINES)]
    model = Script(messages=iter([*(AIMessage("", tool_calls=call) for call in calls), AIMessage("done")]))
    with tempfile.TemporaryDirectory() as repo:
        limits = nsbox.Limits.sensible()
        with SandboxExecutionPolicy(nsbox.Policy.workspace(repo, limits=limits), command_timeout=20) as policy:
            shell = ShellToolMiddleware(repo, execution_policy=policy, startup_commands="git init -q .")
            agent = create_agent(model, middleware=[shell])
            result = agent.invoke({"messages": [("user", "Find the answer.")]})
        for line, message in zip(LINES, (one for one in result["messages"] if one.type == "tool"), strict=True):
            print(f"$ {line}\n{message.content}\n")
        print("left in the workspace:", sorted(path.name for path in Path(repo).iterdir() if path.name != ".git"))


if __name__ == "__main__":
    main()
