"""What a model sees of the tools, and what its calls do: right ones, wrong ones, and those that fail."""

from __future__ import annotations

import inspect
import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import Policy, Sandbox, call_tool, tool_schemas
from nsbox._handles.schemas import TOOLS


def test_the_forms() -> None:
    """Each is what that interface takes, and each schema is one."""
    for tool in tool_schemas():
        assert tool["type"] == "function"
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
    names = [tool["name"] for tool in tool_schemas(form="anthropic")]
    assert [tool["inputSchema"]["type"] for tool in tool_schemas(["shell", "edit"], form="mcp")] == ["object"] * 2
    assert names == [tool["function"]["name"] for tool in tool_schemas()]
    assert len(set(names)) == len(names) > 10
    json.dumps(tool_schemas())
    with pytest.raises(ValueError, match="no tool is called 'rm'"):
        tool_schemas(["rm"])
    with pytest.raises(TypeError, match="names is a str"):
        tool_schemas("shell")
    with pytest.raises(ValueError, match="form is 'xml'"):
        tool_schemas(form="xml")  # type: ignore[arg-type]


def test_parameters_are_the_methods() -> None:
    """Each parameter of a tool is one of the method that carries it out; those that must be given are."""
    for tool in TOOLS:
        assert set(tool.required) <= set(tool.parameters)
        if tool.name in ("shell", "exec", "python", "background") or tool.name.startswith("job_"):
            continue
        parameters = inspect.signature(getattr(Sandbox, tool.name)).parameters
        assert set(tool.parameters) <= set(parameters), tool.name
        needed = {name for name, one in parameters.items() if one.default is one.empty and name != "self"}
        assert needed == set(tool.required), tool.name


def test_a_whole_day(box: Sandbox) -> None:
    """Every tool once, with answers that are JSON."""

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        answer = call_tool(box, name, json.dumps(arguments))
        json.dumps(answer)
        assert "error" not in answer, answer
        called.add(name)
        return answer

    called: set[str] = set()
    call("write", path="src/a.py", content="x = 1\ny = 2\n")
    call("append", path="src/a.py", content="z = 3\n")
    assert "+x = 2" in call("edit", path="src/a.py", old="x = 1", new="x = 2")["diff"]
    assert "x = 2" in call("read_lines", path="src/a.py", limit=1)["text"]
    assert call("shell", command="cat src/a.py", timeout=30)["stdout"] == "x = 2\ny = 2\nz = 3\n"
    assert call("grep", pattern="z = .", path="src")["matches"][0]["line"] == 3
    assert call("glob", pattern="**/*.py")["paths"] == ["src/a.py"]
    call("mkdir", path="out")
    call("copy", source="src/a.py", destination="out/b.py")
    call("move", source="out/b.py", destination="out/c.py")
    call("media", path="out/c.py")
    call("delete", path="out", recursive=True)
    assert call("exec", program="cat", args=["src/a.py"])["stdout"].startswith("x = 2")
    job = call("background", command="echo hi; read x; echo got $x")["job"]
    first = call("job_output", job=job, wait=30)
    assert first["text"] == "hi\n"
    call("job_send", job=job, text="ho\n")
    box.jobs()[0].wait(LONG)
    last = call("job_output", job=job, since=first["next"])
    assert (last["text"], last["result"]["status"]) == ("got ho\n", 0)
    assert call("job_wait", job=job)["result"]["stdout"] == "hi\ngot ho\n"
    assert [(one["job"], one["is_running"], one["cause"]) for one in call("job_list")["jobs"]] == [(job, False, "exit")]
    call("job_kill", job=job)
    assert called | {"python"} == {tool.name for tool in TOOLS}


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("rm", {}, "there is no tool 'rm'"),
        ("shell", {}, "command must be given"),
        ("shell", {"command": 3}, "command is 3, must be a string"),
        ("shell", {"command": "ls", "timeout": 0}, "timeout is 0, must be a number above 0"),
        ("shell", {"command": "ls", "timeout": True}, "timeout is True"),
        ("shell", {"command": "ls", "env": {}}, "there is no parameter 'env'"),
        ("shell", "{", "aren't JSON"),
        ("shell", "[]", "must be a JSON object"),
        ("shell", {"command": "ls", "cwd": "/nothing"}, "/nothing"),
        ("exec", {"program": "ls", "args": "-l"}, "args is '-l', must be an array"),
        ("exec", {"program": "ls", "args": ["-l", 1]}, "must be an array of strings"),
        ("python", {"code": 3}, "code is 3, must be a string"),
        ("python", {"code": "1", "cwd": "/nothing"}, "/nothing"),
        ("job_wait", {"job": 1, "timeout": 0}, "timeout is 0, must be a number above 0"),
        ("job_list", {"job": 1}, "there is no parameter 'job'; there are none"),
        ("read_lines", {"path": "/etc/shadow"}, "in no directory that the policy names"),
        ("read_lines", {"path": "nothing"}, "No such file"),
        ("read_lines", {"path": "a\0b"}, "NUL"),
        ("read_lines", {"path": "a", "offset": 0}, "from 1"),
        ("read_lines", {"path": "a", "offset": "1"}, "must be an integer"),
        ("write", {"path": "../x", "content": ""}, "in no directory"),
        ("edit", {"path": "a", "old": "zzz", "new": ""}, "a doesn't have this text"),
        ("grep", {"pattern": "("}, "pattern"),
        ("glob", {"pattern": "/etc/*"}, "name the directory by path="),
        ("glob", {"pattern": "../*"}, "name the directory by path="),
        ("job_output", {"job": 7}, "there is no job 7"),
        ("shell", '{"command": "echo x\\ud83d"}', r"command has \ud83d at character 6, half of a surrogate pair"),
        ("exec", {"program": "echo", "args": ["x", "\ud800"]}, r"args has \ud800"),
        ("write", {"path": "b", "content": "\udfff"}, r"content has \udfff"),
        ("edit", {"path": "a", "old": "one", "new": "\ud800"}, r"new has \ud800"),
        ("glob", {"pattern": "\ud800*"}, r"pattern has \ud800"),
        ("python", {"code": "'\ud800'"}, r"code has \ud800"),
        ("background", {"command": "\ud800"}, r"command has \ud800"),
    ],
)
def test_what_a_model_does_wrong(policy: Policy, workspace: Path, name: str, arguments: Any, error: str) -> None:
    """An answer that says so, and no exception."""
    (workspace / "a").write_text("one\n")
    with Sandbox(policy) as box:
        answer = call_tool(box, name, arguments)
    assert error in answer["error"], answer


def test_null_is_left_out(box: Sandbox) -> None:
    """Some models give null for what they don't want to say."""
    assert call_tool(box, "shell", {"command": "echo x", "timeout": None, "cwd": None})["stdout"] == "x\n"
    assert "command" in call_tool(box, "shell", {"command": None})["error"]


def test_the_callers_options(box: Sandbox) -> None:
    """What the model doesn't decide; a limit that it doesn't name."""
    answer = call_tool(box, "shell", {"command": "echo $A; sleep 1000"}, timeout=0.3, env={"A": "b"})
    assert (answer["stdout"], answer["cause"]) == ("b\n", "timeout")
    answer = call_tool(box, "shell", {"command": "sleep 1000", "timeout": 1000}, timeout=0.3)
    assert answer["cause"] == "timeout"
    answer = call_tool(box, "shell", {"command": "sleep 1000", "timeout": 0.3}, timeout=1000)
    assert answer["cause"] == "timeout"
    with pytest.raises(nsbox.PolicyError, match="LD_PRELOAD"):
        call_tool(box, "shell", {"command": "true"}, env={"LD_PRELOAD": "x"})
    with pytest.raises(TypeError, match="nope="):
        call_tool(box, "shell", {"command": "true"}, nope=1)
    with pytest.raises(TypeError, match="text="):
        box.shell("true", text=True)  # type: ignore[call-arg]


def test_no_fault_of_the_model(policy: Policy) -> None:
    """A closed Sandbox is the program's mistake."""
    box = Sandbox(policy)
    box.start()
    box.close()
    with pytest.raises(ValueError, match="closed"):
        call_tool(box, "shell", {"command": "true"})


def test_in_coroutines(policy: Policy) -> None:
    """The same; and the file tools."""
    import asyncio

    async def main() -> None:
        async with nsbox.AsyncSandbox(policy) as box:
            assert "error" not in await box.call_tool("write", {"path": "a", "content": "x = 1\n"})
            assert (await box.edit("a", "x", "y")).kind == "changed"
            assert await box.read("a") == "y = 1\n"
            assert (await box.glob("*")).paths == ("a",)
            with pytest.raises(FileNotFoundError):
                await box.read("b")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(box.call_tool("shell", {"command": "sleep 1000"}), 0.3)
            async with box.session() as session:
                await session.shell("echo t > /tmp/t")
                assert await session.read("/tmp/t") == "t\n"

    asyncio.run(main())


@pytest.mark.vm
def test_python_of_a_model(policy: Policy) -> None:
    """One interpreter for all calls of a Sandbox, or the caller's; code that fails is an answer."""
    with Sandbox(policy) as box:
        ran = call_tool(
            box, "python", json.dumps({"code": "print(input())\n6 * 7", "input": "hello\n", "timeout": LONG})
        )
        assert (ran["stdout"], ran["value"], ran["status"]) == ("hello\n", 42, 0)
        json.dumps(ran)
        assert call_tool(box, "python", {"code": "1 / 0"})["exception"]["type"] == "ZeroDivisionError"
        first = box._python_of_tools  # type: ignore[attr-defined]
        assert call_tool(box, "python", {"code": "while True: pass"}, timeout=0.5, grace=0)["cause"] == "timeout"
        assert box._python_of_tools is first and first.is_warm  # type: ignore[attr-defined]
        with box.python(setup="x = 5") as py:
            assert call_tool(box, "python", {"code": "x"}, python=py)["value"] == 5
        first.close()
        assert call_tool(box, "python", {"code": "1"})["value"] == 1  # there is another
        with box.session() as session:
            assert "run python3 by a command" in call_tool(session, "python", {"code": "1"})["error"]
            with box.python().kernel() as kernel:
                assert call_tool(session, "python", {"code": "x = 1"}, python=kernel)["status"] == 0
                assert call_tool(session, "python", {"code": "x + 1"}, python=kernel)["value"] == 2


def test_waiting_for_a_job(box: Sandbox) -> None:
    """No longer than the model says; a token ends it."""
    job = call_tool(box, "background", {"command": "read line; echo $line"})["job"]
    assert call_tool(box, "job_wait", {"job": job, "timeout": 0.1}) == {"is_over": False, "result": None}
    assert call_tool(box, "job_list", {})["jobs"][0]["is_running"] is True
    token = nsbox.CancelToken()
    token.cancel()
    began = time.monotonic()
    assert call_tool(box, "job_wait", {"job": job, "timeout": 3600}, cancel=token)["is_over"] is False
    assert call_tool(box, "job_output", {"job": job, "wait": 60}, cancel=token)["text"] == ""
    assert time.monotonic() - began < 50
    call_tool(box, "job_send", {"job": job, "text": "x\n"})
    assert call_tool(box, "job_wait", {"job": job, "timeout": LONG})["result"]["stdout"] == "x\n"
