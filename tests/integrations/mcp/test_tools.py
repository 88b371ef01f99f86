"""Every tool as clients of the SDK call it: answers, their structure and hints, mistakes, progress, cancelling."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import psutil
import pytest
from mcp.shared.exceptions import MCPError
from nsbox_mcp_clients import LONG, Serve, descendants, legacy, modern, until
from nsbox_processes import below

import nsbox
from nsbox._handles.schemas import TOOLS
from nsbox._mcp.tools import OUTPUTS, READING, descriptions

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_descriptions() -> None:
    """Those of tool_schemas(), each with the form of its answer; what only reads says so."""
    tools = descriptions(has_network=False)
    assert {tool.name for tool in tools} == OUTPUTS.keys() == {tool.name for tool in TOOLS}
    for tool in tools:
        assert tool.output_schema is not None and tool.output_schema["type"] == "object"
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
        assert tool.annotations is not None and tool.annotations.open_world_hint is False
        assert tool.annotations.read_only_hint == (tool.name in READING)


@pytest.mark.parametrize("connect", [legacy, pytest.param(modern, marks=pytest.mark.smoke)])
def test_a_whole_day(connect: Any, serve: Serve, workspace: Path) -> None:
    """Each tool once. The client checks what comes back by the tool's own schema."""
    called: set[str] = set()

    async def main() -> None:
        async with connect(serve()) as client:

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                done = await client.call_tool(name, arguments)
                assert not done.is_error, done.content
                assert name == "media" or json.loads(done.content[0].text) == done.structured_content
                called.add(name)
                answer: dict[str, Any] = done.structured_content
                return answer

            await call("write", path="src/a.py", content="x = 1\ny = 2\n")
            await call("append", path="src/a.py", content="z = 3\n")
            assert "+x = 2" in (await call("edit", path="src/a.py", old="x = 1", new="x = 2"))["diff"]
            assert "x = 2" in (await call("read_lines", path="src/a.py", limit=1))["text"]
            done = await call("shell", command="pwd; cat src/a.py; touch /usr/x", timeout=30)
            assert done["stdout"] == f"{workspace}\nx = 2\ny = 2\nz = 3\n"
            assert (done["status"], done["why"][0]["kind"]) == (1, "read-only")
            assert (await call("exec", program="cat", args=["src/a.py"]))["status"] == 0
            assert (await call("python", code="import os\nprint('hi')\n6 * 7"))["value"] == 42
            assert (await call("grep", pattern="z = .", path="src"))["matches"][0]["line"] == 3
            assert (await call("glob", pattern="**/*.py"))["paths"] == ["src/a.py"]
            await call("mkdir", path="out")
            await call("copy", source="src/a.py", destination="out/b.py")
            await call("move", source="out/b.py", destination="out/c.py")
            await call("media", path="out/c.py")
            await call("delete", path="out", recursive=True)
            job = (await call("background", command="echo hi; read x; echo got $x"))["job"]
            first = await call("job_output", job=job, wait=30)
            assert first["text"] == "hi\n" and "result" not in first
            await call("job_send", job=job, text="ho\n")
            assert (await call("job_wait", job=job, timeout=LONG))["result"]["status"] == 0
            assert (await call("job_output", job=job, since=first["next"]))["text"] == "got ho\n"
            assert (await call("job_list"))["jobs"][0]["is_running"] is False
            await call("job_kill", job=job)

    asyncio.run(main())
    assert called == {tool.name for tool in TOOLS}


def test_mistakes(connect: Any, serve: Serve) -> None:
    """A tool that doesn't exist is an error of the protocol. All else is a result that the model can learn from."""

    async def main() -> None:
        async with connect(serve()) as client:
            with pytest.raises(MCPError, match="there is no tool 'rm'; there are shell, ") as caught:
                await client.call_tool("rm", {})
            assert caught.value.code == -32602
            for name, arguments, text in [
                ("shell", {"cmd": "ls"}, "shell: there is no parameter 'cmd'; there are command, timeout"),
                ("shell", {"command": 3}, "shell: command is 3, must be a string"),
                ("exec", {"program": "ls", "args": "-l"}, "exec: args is '-l', must be an array"),
                ("read_lines", {}, "read_lines: path must be given"),
                ("read_lines", {"path": "nothing"}, "No such file or directory"),
                ("read_lines", {"path": "/etc/shadow"}, "/etc/shadow is in no directory that the policy names"),
                ("write", {"path": "../x", "content": ""}, "is in no directory"),
                ("job_kill", {"job": 7}, "there is no job 7"),
            ]:
                done = await client.call_tool(name, arguments)
                assert done.is_error and text in done.content[0].text, (name, done.content)

    asyncio.run(main())


def test_images(serve: Serve, workspace: Path) -> None:
    """A model gets them as images; their bytes don't stand in the text too."""
    (workspace / "dot.png").write_bytes(PNG)
    data = base64.b64encode(PNG).decode()
    code = "class Dot:\n    def _repr_png_(self):\n        return open('dot.png', 'rb').read()\ndisplay(Dot())\nDot()"

    async def main() -> None:
        async with legacy(serve()) as client:
            text, image = (await client.call_tool("media", {"path": "dot.png"})).content
            assert (image.type, image.data, image.mime_type) == ("image", data, "image/png")
            assert data not in text.text
            done = await client.call_tool("python", {"code": code})
            text, *images = done.content
            assert [image.data for image in images] == [data, data] and data not in text.text, text
            assert done.structured_content["displays"][0]["image/png"].strip() == data
            (workspace / "a.bin").write_bytes(b"\0\1\2")
            _, blob = (await client.call_tool("media", {"path": "a.bin"})).content
            assert base64.b64decode(blob.resource.blob) == b"\0\1\2"

    asyncio.run(main())


def test_endless_output(serve: Serve) -> None:
    """A command that prints a gigabyte: its beginning and its end come, and the server stays small."""

    async def main() -> None:
        async with legacy(serve()) as client:
            done = await client.call_tool("shell", {"command": "head -c 1G /dev/zero | tr '\\0' x", "timeout": LONG})
            answer = done.structured_content
            assert (answer["stdout_bytes"], answer["truncated"], answer["status"]) == (1 << 30, True, 0)
            assert len(answer["stdout"]) < 200_000
            (server,) = below(lambda one: "mcp" in one.cmdline(), is_recursive=False)
            assert server.memory_info().rss < 400 << 20

    asyncio.run(main())


def test_progress(connect: Any, serve: Serve) -> None:
    """A long command says every second how long it has run, and its last line; without a token, nothing."""
    seen: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async def main() -> None:
        async with connect(serve()) as client:
            line = "echo first; until [ -e go ]; do sleep 0.05; done"
            async with anyio.create_task_group() as tasks:

                async def go() -> None:
                    with anyio.fail_after(LONG):
                        while len(seen) < 2:
                            await anyio.sleep(0.05)
                    await client.call_tool("write", {"path": "go", "content": ""})

                tasks.start_soon(go)
                arguments = {"command": line, "timeout": LONG}
                done = await client.call_tool("shell", arguments, progress_callback=on_progress)
            assert done.structured_content["status"] == 0

    asyncio.run(main())
    assert seen == sorted(seen) and seen[0][0] > 0.5
    assert {message for _, message in seen} == {"first"}


@pytest.mark.parametrize("stubborn", [False, True])
def test_cancel(connect: Any, serve: Serve, workspace: Path, stubborn: bool) -> None:
    """A cancelled command gets SIGTERM, and SIGKILL after the grace time; the server goes on, and nothing is left."""
    handler = "''" if stubborn else "'echo term > ended; exit'"
    line = f"trap {handler} TERM; touch began; while :; do sleep 0.05; done"

    async def main() -> None:
        async with connect(serve("--grace", "0.5" if stubborn else "60")) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "shell", {"command": line, "timeout": 3600})
                await until(lambda: (workspace / "began").exists())
                tasks.cancel_scope.cancel()
            server = psutil.Process().children()[0]
            await until(lambda: not [one for one in descendants(server) if "sleep 0.05" in one])
            assert (workspace / "ended").exists() is not stubborn
            assert (await client.call_tool("shell", {"command": "echo on"})).structured_content["stdout"] == "on\n"

    asyncio.run(main())


def test_cancel_while_waiting_for_a_job(serve: Serve) -> None:
    """The wait ends, and the job goes on."""

    async def main() -> None:
        async with legacy(serve()) as client:
            job = (await client.call_tool("background", {"command": "cat"})).structured_content["job"]
            with anyio.move_on_after(0.5):
                await client.call_tool("job_wait", {"job": job, "timeout": 3600})
            listed = (await client.call_tool("job_list", {})).structured_content["jobs"]
            assert [one["is_running"] for one in listed] == [True]
            began = time.monotonic()
        assert time.monotonic() - began < LONG / 2  # the end doesn't wait for the wait

    asyncio.run(main())


def test_calls_at_once(connect: Any, serve: Serve) -> None:
    """Two calls of one client run at the same time: each waits for the other."""

    async def main() -> None:
        async with connect(serve()) as client:
            line = "touch {}; until [ -e {} ]; do sleep 0.02; done; echo {}"
            calls = [
                client.call_tool("shell", {"command": line.format(a, b, a), "timeout": LONG})
                for a, b in (("one", "two"), ("two", "one"))
            ]
            done = await asyncio.gather(*calls)
            assert [one.structured_content["stdout"] for one in done] == ["one\n", "two\n"]

    asyncio.run(main())


def test_two_clients(serve: Serve) -> None:
    """Each has a server of its own: neither sees the other's jobs or processes; both see the workspace."""

    async def main() -> None:
        async with legacy(serve()) as one, modern(serve()) as two:
            await one.call_tool("background", {"command": "touch there; cat"})
            assert (await two.call_tool("job_list", {})).structured_content == {"jobs": []}
            done = await two.call_tool(
                "shell", {"command": "until [ -e there ]; do sleep 0.02; done; ls -d /proc/[0-9]* | wc -l"}
            )
            assert done.structured_content["status"] == 0
            assert int(done.structured_content["stdout"]) < 10

    asyncio.run(main())


def test_a_policy_file(serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """The policy of a configuration file; a limit for all calls; the instructions say what holds."""
    (workspace / "secret").write_text("s")
    file = tmp_path / "nsbox.toml"
    file.write_text(f'[sandbox]\nworkspace = "{workspace}"\ndeny = ["{workspace}/secret"]\n')

    async def main() -> None:
        server = serve("--policy", str(file), "--timeout", "0.5", "--grace", "0", own_policy=True)
        async with modern(server) as client:
            assert f"They can write to {workspace}" in client.instructions
            done = (await client.call_tool("shell", {"command": "cat secret"})).structured_content
            assert done["status"] == 1 and "secret" in done["stderr"]
            done = (await client.call_tool("shell", {"command": "sleep 1000", "timeout": 900})).structured_content
            assert done["cause"] == "timeout"
            assert (await client.call_tool("read_lines", {"path": "secret"})).is_error

    asyncio.run(main())


def test_what_the_machine_lacks(serve: Serve, workspace: Path) -> None:
    """A policy that can't be had here: the words of nsbox's error reach the client."""
    with pytest.raises(nsbox.UnavailableError) as caught:
        nsbox.Sandbox(nsbox.Policy.workspace(workspace, backend="seatbelt")).shell("true")

    async def main() -> None:
        async with legacy(serve("--backend", "seatbelt")) as client:
            for tool, arguments in (("shell", {"command": "true"}), ("python", {"code": "1"})):
                done = await client.call_tool(tool, arguments)
                assert done.is_error and str(caught.value) in done.content[0].text

    asyncio.run(main())
