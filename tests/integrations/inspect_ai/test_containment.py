"""What a sandbox keeps from a command. Each claim has a control: with Inspect's sandbox "local", the same succeeds."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.tool import bash

pytestmark = pytest.mark.timeout(300)

Evaluate = Callable[..., EvalLog]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Things of this machine that no sample has to do with."""
    secret = tmp_path / "secret"
    secret.write_text("the-secret")
    monkeypatch.setenv("API_KEY", "the-secret")
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(["sleep", "1000"]) as process:
        yield {
            "secret": secret,
            "new": tmp_path / "new",
            "port": server.getsockname()[1],
            "pid": process.pid,
        }
        process.kill()


ATTEMPTS = {
    "read a file": "cat {secret}",
    "write a file": "mkdir -p $(dirname {new}); echo x > {new}",
    "read the environment": "echo $API_KEY",
    "see a process": "kill -0 {pid} && echo the-secret",
    "reach a server": "(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo the-secret",
}


@pytest.mark.parametrize("name", ATTEMPTS)
@pytest.mark.parametrize("kind", ["nsbox", "local"])
def test_attempt(kind: str, name: str, host: dict[str, Any], evaluate: Evaluate) -> None:
    """A command reaches nothing of the host in nsbox's sandbox, and all of it in the local one."""
    log = evaluate(
        [Sample(input="x")],
        tools=[bash()],
        calls=[("bash", {"command": ATTEMPTS[name].format(**host)})],
        sandbox=kind,
    )
    assert log.status == "success", log.error
    assert log.samples is not None
    (answer,) = (message.text for message in log.samples[0].messages if message.role == "tool")
    reached = "the-secret" in answer or host["new"].exists()
    assert reached == (kind == "local"), answer
