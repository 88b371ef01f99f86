"""Fixtures for tests with real children."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import Face, Orphans, python
from nsbox_testing.verdicts import LONG, Verdicts

import nsbox

_FACES: dict[str, Callable[[Path], nsbox.Policy | None]] = {
    "plain": lambda _: None,
    "host": lambda _: nsbox.Policy.host(),
    "landlock": lambda _: nsbox.Policy.host(backend="landlock", degrade={"processes"}),
    "workspace": nsbox.Policy.workspace,
}


@pytest.fixture(params=_FACES)
def sub(request: pytest.FixtureRequest, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Face:
    """The faces to compare; the current directory is one that all can write to."""
    monkeypatch.chdir(workspace)
    if request.param == "landlock" and nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    return Face(request.param, _FACES[request.param](workspace), workspace)


@pytest.fixture(params=["workspace", "host"])
def chosen(request: pytest.FixtureRequest, policy: nsbox.Policy) -> nsbox.Policy:
    """The policy of the fixture `workspace`, or the host's."""
    return policy if request.param == "workspace" else nsbox.Policy.host()


@pytest.fixture
def orphans() -> Iterator[Orphans]:
    """Orphans become children of this process; reap() waits until nothing is left."""
    with Orphans() as those:
        yield those
        those.reap()


@pytest.fixture
def inside(policy: nsbox.Policy) -> Callable[..., Any]:
    """Run Python code in a sandbox; returns what it passes to report(), by JSON."""
    default = policy

    def run(code: str, *args: str, policy: nsbox.Policy = default, **options: Any) -> Any:
        prelude = "import json, os, sys\ndef report(x): print(json.dumps(x), flush=True)\n"
        done = nsbox.run(python(prelude + code, *args), policy=policy, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# ---- install() and confined(), which last as long as a process

_CONFINED = """
import asyncio, contextvars, json, os, signal, subprocess, sys, threading
import nsbox
policy = nsbox.Policy.workspace(sys.argv[1])
NAMESPACE = ["readlink", "/proc/self/ns/pid"]
HERE = os.readlink("/proc/self/ns/pid")
def said(output):
    return "out" if output.decode().strip() == HERE else "in"
def where(**options):
    return said(subprocess.run(NAMESPACE, stdout=subprocess.PIPE, check=True, **options).stdout)
def refused(function, *arguments):
    try:
        function(*arguments)
    except nsbox.NsboxError as error:
        return str(error)
def report(value):
    print(json.dumps(value), flush=True)
"""


@pytest.fixture
def child(workspace: Path) -> Callable[..., Any]:
    """Run code in a Python of its own, with the prelude, in a workspace; returns what it passes to report()."""

    def run(code: str, *, before: str = "") -> Any:
        command = [sys.executable, "-W", "error", "-c", before + _CONFINED + code, str(workspace)]
        done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


# ---- questions about connections


@pytest.fixture
def verdicts() -> Verdicts:
    """What has been decided about connections."""
    return Verdicts()


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[BaseException]:
    """Return what threading.excepthook gets, as it comes."""
    found: queue.Queue[BaseException] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", lambda args: found.put(args.exc_value))
    return found


@pytest.fixture
def no_threads() -> Iterator[None]:
    """Threads end when there is nothing to ask."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("nsbox-ask"):
            thread.join(LONG)
            assert not thread.is_alive()
