"""The classes for coroutines have every public method of those for threads, and users see nothing private in either."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import nsbox
from nsbox._handles.async_stream import AsyncJob, AsyncStream
from nsbox._handles.job import Job
from nsbox._handles.stream import Stream
from nsbox.transaction import Transaction

# `box.sandbox`, `s.session` and `task.task` are the objects themselves, for what doesn't wait: questions to the policy.
_DIRECT = {
    *("can_read", "can_write", "resolve", "check_size", "check_suffix", "list_readable", "list_writable", "tools"),
    *("policy", "open"),  # open() returns a file, whose methods wait
}
# subprocess's interface: asyncio's own functions for processes are there, and also accept the object as policy=.
_PROCESSES = {
    *("Popen", "run", "call", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell"),
}
_OF_SANDBOX = {
    "load": "makes one from a file: AsyncSandbox(Policy.load(...))",
    "mode": "doesn't wait",
    "why_cold": "doesn't wait",
    "publish": "session.publish() is the one for servers that go on",
    "transaction": "a task is the one for coroutines",
    "update": "changes what starts from now on, and doesn't wait for commands",
}
LEFT_OUT: dict[type, set[str]] = {
    nsbox.Sandbox: _DIRECT | _PROCESSES | _OF_SANDBOX.keys(),
    nsbox.Session: _DIRECT | _PROCESSES,
    nsbox.Task: _DIRECT | _PROCESSES | {"read_only"},
    Job: set(),
    Stream: {"close"},  # aclose(), as for any asynchronous iterator
}
PAIRS = [
    (nsbox.Sandbox, nsbox.AsyncSandbox),
    (nsbox.Session, nsbox.AsyncSession),
    (nsbox.Task, nsbox.AsyncTask),
    (Job, AsyncJob),
    (Stream, AsyncStream),
]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_each_method_has_its_counterpart(kind: type, other: type) -> None:
    """What has none is listed here, with a reason; and nothing is listed that has one."""
    assert public(kind) - public(other) == LEFT_OUT[kind]


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_parameters_are_the_same(kind: type, other: type) -> None:
    for name in public(kind) & public(other):
        one, two = getattr(kind, name), getattr(other, name)
        if not inspect.isfunction(one):
            continue
        names = list(inspect.signature(two).parameters)
        wanted = [each for each in inspect.signature(one).parameters if not each.startswith("_")]
        if "options" not in names:
            assert names == wanted, (kind, name)


@pytest.mark.parametrize("kind", [nsbox.Sandbox, nsbox.Session, nsbox.Task, Transaction, Job, Stream])
def test_what_users_see_is_documented(kind: type) -> None:
    """Each name without an underscore is on the page of the reference."""
    text = (Path(__file__).parents[2] / "docs/reference.md").read_text()
    missing = {name for name in public(kind) if f"`{name}" not in text and f".{name}(" not in text}
    assert not missing
