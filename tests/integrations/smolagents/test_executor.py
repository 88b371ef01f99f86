"""The executor for smolagents: a CodeAgent's code in a sandbox, its tools here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from smolagents import CodeAgent, Tool, tool
from smolagents.local_python_executor import (
    ExecutionTimeoutError,
    InterpreterError,
    LocalPythonExecutor,
)
from smolagents.models import ChatMessage, MessageRole, Model

from nsbox import Limits, Policy
from nsbox.integrations.smolagents import NsboxExecutor

CALLS: list[Any] = []


class Script(Model):
    """A model that says these steps, one after the other."""

    def __init__(self, *steps: str) -> None:
        super().__init__(model_id="script")
        self.steps = list(steps)

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        content = f"Thought: next.\n<code>\n{self.steps.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=content)


@tool
def weather(city: str) -> dict:
    """Tell the weather.

    Args:
        city: Where.
    """
    CALLS.append((city, os.getpid(), threading.get_ident()))
    if city == "Atlantis":
        raise ValueError("no such city")
    return {"city": city, "degrees": (20, 22)}


class Answer(Tool):
    """The tool by which an agent ends."""

    name = "final_answer"
    description = "Ends."
    inputs = {"answer": {"type": "any", "description": "The answer."}}  # noqa: RUF012
    output_type = "any"

    def forward(self, answer: Any) -> Any:
        return answer


@pytest.fixture
def executor() -> Iterator[NsboxExecutor]:
    CALLS.clear()
    with NsboxExecutor(timeout_seconds=60) as made:
        made.send_tools({"weather": weather, "final_answer": Answer()})
        yield made


@pytest.mark.smoke
def test_agent() -> None:
    """An agent runs to its final answer: state stays, tools run here, failed steps tell the model what was wrong."""
    CALLS.clear()
    model = Script(
        "found = weather(city='Paris')\nprint('asked', number)",
        "import os",
        "weather('Atlantis')",
        "final_answer(sum(found['degrees']) + number)",
    )
    with NsboxExecutor(timeout_seconds=60) as executor:
        agent = CodeAgent(tools=[weather], model=model, executor=executor, verbosity_level=0)
        assert agent.run("Go.", additional_args={"number": 5}) == 47
    first, second, third = agent.memory.steps[1:4]
    assert "asked 5" in first.observations
    assert "Import of os is not allowed" in second.error.message
    assert "ValueError: no such city" in third.error.message
    assert [(city, os.getpid(), threading.get_ident()) for city in ("Paris", "Atlantis")] == CALLS


def test_output(executor: NsboxExecutor) -> None:
    """A step's output is the value of its last line, or how Python shows it; what it prints is in the logs."""
    output = executor("x = [1, 2]\nprint('said')\nx")
    assert (output.output, output.logs, output.is_final_answer) == ([1, 2], "said\n", False)
    assert executor("{len(x)}").output == "{2}"
    assert executor("None").output is None
    assert executor("import math\nmath.floor(2.5)").output == 2


def test_final_answer(executor: NsboxExecutor) -> None:
    """final_answer() ends a step at once, whatever catches Exception; its value is what the tool returned here."""
    output = executor("try:\n    final_answer({'a': (1, {2})})\nexcept Exception:\n    pass\nprint('not reached')")
    assert (output.output, output.logs, output.is_final_answer) == ({"a": [1, [2]]}, "", True)
    assert not executor("1").is_final_answer


def test_no_false_final_answer(executor: NsboxExecutor) -> None:
    """An exception of that name, without the tool, is no answer."""
    with pytest.raises(InterpreterError):
        executor("class FinalAnswerException(BaseException): pass\nraise FinalAnswerException()")


def test_arrays() -> None:
    """Arrays of numpy go to tools as lists, and what tools return as arrays comes as lists."""
    seen: list[Any] = []

    def double(values: list) -> Any:
        seen.append(values)
        return numpy.array(values) * 2

    with NsboxExecutor(additional_authorized_imports=["numpy"], additional_functions={"double": double}) as executor:
        executor.send_tools({})
        assert executor("import numpy\ndouble(numpy.arange(3))").output == [0, 2, 4]
        assert executor("double(values=[numpy.int64(4)])").output == [8]
    assert seen == [[0, 1, 2], [4]]


def test_imports(executor: NsboxExecutor) -> None:
    """Imports are checked as in smolagents' own executor: modules, parts of them, and stars."""
    for code in ("import os.path", "from os import path", "import math, sys", "def f():\n    import socket"):
        with pytest.raises(InterpreterError, match="is not allowed"):
            executor(code)
    with NsboxExecutor(additional_authorized_imports=["os.*"]) as other:
        assert other("import os.path\nos.path.join('a', 'b')").output == "a/b"


def test_failures(executor: NsboxExecutor) -> None:
    """Errors are smolagents' own, name the line, and leave the variables and the logs."""
    with pytest.raises(InterpreterError, match=r"at line '1 / 0' due to: ZeroDivisionError"):
        executor("kept = 7\nprint('before')\n1 / 0")
    assert executor.state["_print_outputs"] == "before\n"
    assert executor("kept").output == 7
    with pytest.raises(InterpreterError, match="parsing failed on line 1"):
        executor("x = (")
    with pytest.raises(InterpreterError, match="JSON"):
        executor("weather(object())")


def test_time_limit(executor: NsboxExecutor) -> None:
    """Code that takes too long is interrupted, and its variables stay; code that resists is killed."""
    executor._timeout = 1
    executor("kept = 1")
    with pytest.raises(ExecutionTimeoutError):
        executor("while True: pass")
    executor._timeout = 60
    assert executor("kept").output == 1
    executor._timeout = 1
    with pytest.raises(ExecutionTimeoutError, match="are lost"):
        executor("exec('import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)')\nwhile True: pass")


def test_a_fresh_kernel(executor: NsboxExecutor) -> None:
    """If the code ends its process, the next step has tools and sent variables again, but no others."""
    executor.send_variables({"given": 3})
    executor("own = 1")
    with pytest.raises(InterpreterError, match="its variables are lost"):
        executor("raise SystemExit(3)")
    assert executor("given").output == 3
    assert executor("weather('Rome')['city']").output == "Rome"
    with pytest.raises(InterpreterError, match="NameError"):
        executor("own")


def test_variables(executor: NsboxExecutor) -> None:
    """Variables are values of JSON; another is an error that names it, and nothing is pickled."""
    executor.send_variables({"a": {"b": [1, None]}})
    assert executor("a['b']").output == [1, None]
    with pytest.raises(TypeError, match="thing"):
        executor.send_variables({"thing": object()})


def test_long_output() -> None:
    """What is printed is cut, as smolagents does it."""
    with NsboxExecutor(max_print_outputs_length=1000) as executor:
        executor.send_tools({})
        logs = executor("for i in range(100_000): print(i)").logs
        assert 1000 <= len(logs) < 1500


def test_cleanup() -> None:
    """Nothing is left: no directory, and no process. A further use begins afresh."""
    before = set(os.listdir(tempfile.gettempdir()))
    executor = NsboxExecutor()
    executor.send_tools({})
    executor("x = 1")
    agent = CodeAgent(tools=[], model=Script(), executor=executor, verbosity_level=0)
    agent.cleanup()
    left = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("work-")} - before
    assert left == set()
    with pytest.raises(InterpreterError, match="NameError"):
        executor("x")
    executor.cleanup()
    executor.cleanup()


# ---- what the sandbox keeps from the code; with smolagents' own executor, the same succeeds

ESCAPES = {
    "a file, by a module that seems harmless": ("linecache", "import linecache\nprint(linecache.getlines(PATH))"),
    "a directory": ("glob", "import glob\nprint(glob.glob(PATH + '*'))"),
    "another file": ("fileinput", "import fileinput\nprint(list(fileinput.input(PATH)))"),
    "a process": ("os", "import os\nos.kill(PID, 0)\nprint('the-secret')"),
    "the environment": ("os", "import os\nprint(os.environ['API_KEY'])"),
    "a server": (
        "socket",
        "import socket\nfound = socket.create_connection(('127.0.0.1', PORT))\nfound.close()\nprint('the-secret')",
    ),
}


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("kind", ["nsbox", "local"])
def test_escape(kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code reaches nothing of this machine in nsbox's executor, and all of it in the local one."""
    import socket

    secret = tmp_path / "the-secret"
    secret.write_text("the-secret")
    monkeypatch.setenv("API_KEY", "the-secret")
    module, code = ESCAPES[name]
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(["sleep", "1000"]) as process:
        variables = {"PATH": str(secret), "PID": process.pid, "PORT": server.getsockname()[1]}
        executor: Any
        if kind == "local":
            executor = LocalPythonExecutor([module])
        else:
            executor = NsboxExecutor(additional_authorized_imports=[module])
        executor.send_tools({})
        executor.send_variables(variables)
        try:
            logs = executor(code).logs
        except InterpreterError as error:
            assert kind == "nsbox", error
            logs = ""
        finally:
            process.kill()
            if kind == "nsbox":
                executor.cleanup()
    assert ("the-secret" in logs) == (kind == "local")


def test_hostile_calls(executor: NsboxExecutor) -> None:
    """Code that calls by the executor's own function reaches tools, and nothing else of this process."""
    for call in ("'__class__', [], {}", "'_functions', [], {}", "['weather'], [], {}", "'weather', 1, {}"):
        with pytest.raises(InterpreterError, match="NameError"):
            executor(f"_nsbox_tool({call})")
    assert CALLS == []


def test_limits(tmp_path: Path) -> None:
    """The policy is yours: its limits hold for the code."""
    with NsboxExecutor(Policy.workspace(tmp_path, limits=Limits(memory="2G"))) as executor:
        executor.send_tools({})
        with pytest.raises(InterpreterError, match="MemoryError"):
            executor("x = bytearray(4 << 30)")


def test_example() -> None:
    """The example's agent, with a scripted model, finds its answer."""
    example = Path(__file__).resolve().parents[3] / "examples/integrations/smolagents_agent.py"
    done = subprocess.run([sys.executable, "-P", str(example)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "The warmest is Rome, with 31 degrees."
