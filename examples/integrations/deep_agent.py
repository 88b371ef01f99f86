"""A Deep Agent that works in a task. Nothing that it does reaches the host until the result is committed.

    pip install "nsbox[deepagents]"
    python examples/integrations/deep_agent.py

The model is a script, so it needs no key.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

import nsbox
from nsbox.integrations.deepagents import SandboxBackend


class Script(GenericFakeChatModel):
    """Instead of a model: it calls one tool after the other."""

    def bind_tools(self, tools: object, **options: object) -> Script:
        return self


def main() -> None:
    with tempfile.TemporaryDirectory() as repo:
        test = Path(repo, "test_add.py")
        test.write_text("from add import add\n\nassert add(2, 2) == 4\nprint('passed')\n")
        Path(repo, "add.py").write_text("def add(a, b):\n    return a - b\n")
        calls = [
            ("execute", {"command": "python3 -B test_add.py"}),
            ("read_file", {"file_path": f"{repo}/add.py"}),
            ("edit_file", {"file_path": f"{repo}/add.py", "old_string": "a - b", "new_string": "a + b"}),
            ("execute", {"command": "python3 -B test_add.py; touch /usr/installed"}),
        ]
        turns = [[{"name": name, "args": args, "id": str(n)}] for n, (name, args) in enumerate(calls)]
        model = Script(messages=iter([*(AIMessage("", tool_calls=turn) for turn in turns), AIMessage("done")]))
        with nsbox.Sandbox(nsbox.Policy.workspace(repo)) as box, box.task() as task:
            agent = create_deep_agent(model, backend=SandboxBackend(task))
            result = agent.invoke({"messages": [("user", "Make the test pass.")]})
            for message in result["messages"]:
                if message.type == "tool":
                    print(f"--- {message.name}\n{message.content}")
            print("--- changes")
            print(task.patch())
            task.commit()
        print("committed:", Path(repo, "add.py").read_text().splitlines()[1].strip())
        print("on the host:", Path("/usr/installed").exists())


if __name__ == "__main__":
    main()
