"""Values of a wrong type: an error in nsbox's words, which names the parameter, before anything is started or changed."""

from __future__ import annotations

import asyncio
import inspect
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import Job, Policy, Sandbox, Stream

ODD = [object(), 5, 1.5, b"x", [1], {"a": 1}, "no", "\0", math.nan, -1]
CALL = ("timeout", "grace", "cwd", "env", "input", "secrets", "max_output", "cancel")
NUMBERS = ("timeout", "grace", "max_output", "wait", "since", "max_bytes")
TEXTS = (
    "command",
    "program",
    "cwd",
    "input",
    "data",
    "path",
    "pattern",
    "glob",
    "content",
    "old",
    "new",
    "mode",
    "errors",
)


def fits(name: str, value: object) -> bool:
    """Say if a parameter has a meaning for a value, so that it need not be refused."""
    if isinstance(value, str):
        return name in (*TEXTS, "source", "destination", "shell_path", "encoding", "newline") and value != "\0"
    if isinstance(value, bytes):
        return name in ("input", "data", "content")
    if name in ("limit", "offset", "count", "context", "max_files", "max_matches", "max_count", "max_chars"):
        return value == 5
    if isinstance(value, int | float) and name in NUMBERS:
        return not math.isnan(value)
    return name == "paths" and isinstance(value, dict)


def check(function: Callable[..., object], given: dict[str, Any], name: str, value: object) -> None:
    """Give one parameter a value of a wrong type."""
    if fits(name, value):
        return
    if name in ("input", "data", "content", "old", "new", "pattern", "glob", "errors", "newline") and value == "\0":
        return  # a text with a NUL byte, which a file or a pipe can have, or a pattern that matches nothing
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**given | {name: value})
    assert name in str(caught.value), (name, value, caught.value)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_calls(box: Sandbox, ws_file: Path, value: object) -> None:
    """shell(), exec(), stream(), background()."""
    own = ("command", "shell_path", "open_stdin", "pty")
    rows: list[tuple[Callable[..., object], dict[str, Any], tuple[str, ...]]] = [
        (box.shell, {"command": "touch made"}, ("command", "shell_path", "check", "on_output")),
        (box.exec, {"program": "touch", "args": ["made"]}, ("program", "args", "check", "on_output")),
        (box.stream, {"command": "touch made"}, own),
        (box.background, {"command": "touch made"}, own),
    ]
    for function, given, names in rows:
        for name in (*names, *CALL):
            check(function, given, name, value)
    assert box.jobs() == []
    assert not ws_file.with_name("made").exists()


@pytest.fixture
def ws_file(workspace: Path) -> Path:
    path = workspace / "file"
    path.write_text("hello\n")
    return path


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_handles(box: Sandbox, value: object) -> None:
    """A job and a stream, which go on."""
    job = box.background("cat")
    with box.stream("cat", open_stdin=True) as stream:
        for one in (job, stream):
            assert isinstance(one, Job | Stream)
            check(one.send, {"data": b""}, "data", value)
            check(one.send, {"data": b""}, "timeout", value)
    for name in ("since", "max_bytes", "wait"):
        check(job.output, {}, name, value)
    check(job.wait, {}, "timeout", value)
    check(job.kill, {}, "at_once", value)
    if not isinstance(value, int):
        check(box.job, {}, "number", value)
    assert job.is_running


def test_waits_of_any_length(box: Sandbox) -> None:
    """Less than nothing is nothing; infinity has no end."""
    job = box.background("cat")
    for timeout in (-5, 0, -math.inf):
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(timeout)
        assert job.output(wait=timeout).text == ""
    job.send("x\n", timeout=math.inf)
    assert job.output(wait=math.inf).text == "x\n"
    job.send_eof()
    assert job.wait(math.inf).returncode == 0


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_coroutines(policy: Policy, value: object) -> None:
    """The same of AsyncSandbox and its jobs."""

    async def main() -> None:
        async with nsbox.AsyncSandbox(policy, stock=0) as box:
            job = await box.background("cat")

            def run(method: Callable[..., Any]) -> Callable[..., object]:
                def call(**given: Any) -> None:
                    method(**given).send(None)  # the error comes before the first wait

                return call

            for name in ("since", "max_bytes", "wait"):
                check(run(job.output), {}, name, value)
            check(run(job.kill), {}, "at_once", value)
            for name in ("timeout", "input", "cwd"):
                if not fits(name, value) and value != "\0":
                    with pytest.raises((TypeError, ValueError), match=name):
                        await box.shell("true", **{name: value})
            assert job.is_running

    asyncio.run(asyncio.wait_for(main(), LONG))


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_file_tools(policy: Policy, ws_file: Path, value: object) -> None:
    """Every parameter of every file tool; the file stays as it is."""
    given: dict[str, dict[str, Any]] = {
        "attach": {"paths": ["file"]},
        "list_files": {},
        "glob": {"pattern": "*"},
        "grep": {"pattern": "x"},
        "move": {"source": "file", "destination": "made"},
        "copy": {"source": "file", "destination": "made"},
        "write": {"path": "file", "content": "x"},
        "append": {"path": "file", "content": "x"},
        "edit": {"path": "file", "old": "hello", "new": "x"},
    }
    tools = ("read", "read_lines", "open", "media", "mkdir", "delete", "can_read", "can_write", "resolve", *given)
    with Sandbox(policy, stock=0) as box:
        for tool in tools:
            method = getattr(box, tool)
            for name in inspect.signature(method).parameters:
                if name not in ("options", "max_bytes"):
                    check(method, given.get(tool, {"path": "file"}), name, value)
        if not isinstance(value, int | str):
            check(box.media, {"path": "file"}, "max_bytes", value)
            check(box.attach, {"paths": ["file"]}, "max_bytes", value)
    assert ws_file.read_text() == "hello\n"
    assert [path.name for path in ws_file.parent.iterdir()] == ["file"]
