"""A whole agent's loop around nsbox's tools: a model calls tools, and gets their answers.

    python tool_loop.py WORKSPACE

The model here is a script, so you can try the loop without a real one. `model()` works like a chat interface with
function calling: it gets the messages so far and the tools, and returns text or calls. Replace it with yours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import nsbox

Model = Callable[[list[dict[str, Any]], list[dict[str, Any]]], dict[str, Any]]
MOST_TURNS = 20


def run(model: Model, task: str, policy: nsbox.Policy) -> str:
    """Give a model a task, carry out the calls that it makes, and return its last words."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    tools = nsbox.tool_schemas(["shell", "read_lines", "write", "edit", "grep", "background", "job_output", "job_kill"])
    with nsbox.Sandbox(policy) as box, box.session() as session:
        for _ in range(MOST_TURNS):
            answer = model(messages, tools)
            messages.append(answer)
            calls = answer.get("tool_calls", [])
            if not calls:
                return str(answer["content"])
            for call in calls:
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                result = nsbox.call_tool(session, name, arguments, timeout=60)
                print(f"{name} {arguments} -> {summary(result)}")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    return f"the model hasn't finished after {MOST_TURNS} turns"


def summary(result: dict[str, Any]) -> str:
    """Return one line about a tool's answer, for a person who watches."""
    if "error" in result:
        return f"error: {result['error'].splitlines()[0]}"
    if "stdout" in result:
        hints = "; ".join(hint["kind"] for hint in result["why"])
        return f"status {result['status']}" + (f" ({hints})" if hints else "")
    return ", ".join(f"{key}={value!r:.40}" for key, value in result.items() if key in ("kind", "job", "last"))


def scripted(*turns: tuple[str, dict[str, Any]]) -> Model:
    """Return a model that makes these calls, one a turn, and then reports the last answer."""
    script = list(enumerate(turns, 1))

    def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        if not script:
            last = json.loads(messages[-1]["content"])
            return {"role": "assistant", "content": f"done: {last.get('stdout', '').strip()}"}
        number, (name, arguments) = script.pop(0)
        assert name in [tool["function"]["name"] for tool in tools]
        call = {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    return model


def main() -> None:
    """Let the scripted model mend a small program; it makes mistakes on the way, as models do."""
    model = scripted(
        ("write", {"path": "sum.py", "content": "def total(xs):\n    return sum(xs) + 1\n"}),
        ("shell", {"command": "python3 -c 'import sum; assert sum.total([1, 2]) == 3'"}),
        ("read_lines", {"path": "sum.py"}),
        ("edit", {"path": "sum.py", "old": "sum(xs)+1", "new": "sum(xs)"}),
        ("edit", {"path": "sum.py", "old": "sum(xs) + 1", "new": "sum(xs)"}),
        ("write", {"path": "/etc/motd", "content": "hello\n"}),
        ("shell", {"command": "python3 -c 'import sum; print(sum.total([1, 2]))'"}),
    )
    print(run(model, "mend sum.py", nsbox.Policy.workspace(sys.argv[1] if len(sys.argv) > 1 else ".")))


if __name__ == "__main__":
    main()
