"""Actors with sandboxes of their own on a real Ray; and the backend for Ray's sandbox library."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fences
import pytest
from ray.experimental.sandbox import exceptions
from ray.experimental.sandbox.backend.base import SandboxStatus
from ray.experimental.sandbox.config import SandboxConfig

import nsbox
from nsbox.integrations.ray import SandboxBackend

PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/ray.md"


def await_gone(directory: Path) -> None:
    """Wait until no directory of nsbox's is there any more."""
    end = time.monotonic() + 60
    while left := list(directory.glob("nsbox-*")):
        assert time.monotonic() < end, left
        time.sleep(0.05)


@pytest.mark.timeout(900)
def test_the_page_in_five_lines(short: Path, env: dict[str, str]) -> None:
    """The first program of the page runs, and prints what stands there; by itself, since Ray leaves its threads."""
    block = next(fences.blocks(PAGE.read_text().partition("## In five lines")[2]))
    (short / "program.py").write_text(block.code)
    done = subprocess.run([sys.executable, "program.py"], cwd=short, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    assert block.expected is not None and fences.is_like(block.expected, done.stdout), done.stdout
    await_gone(short / "tmp")


@pytest.mark.smoke
@pytest.mark.timeout(900)
def test_actors(short: Path, env: dict[str, str]) -> None:
    """Actors on a real Ray: values, causes, files, limits; an actor that is killed; a policy that can't be had."""
    command = [sys.executable, str(Path(__file__).with_name("driver.py")), str(short)]
    done = subprocess.run(command, cwd=short, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert all("python" in path for path in seen["ready"])
    assert seen["values"] == [math.factorial(n) for n in range(20)]
    assert seen["causes"] == ["exit", "signal", "timeout"]
    assert (seen["shell"], seen["read"], seen["exec"]) == ("hello\n", "hello\n", 1)
    assert "timeout" in seen["bad input"]
    assert seen["killed"] == [1, True]  # run once, and gone
    remote, local = seen["unavailable"]
    assert "UnavailableError" in remote and local in remote
    assert seen["memory"] == 512 << 20
    await_gone(short / "tmp")  # with actors that were closed, and those that ended with Ray


@pytest.fixture
def backend() -> Iterator[SandboxBackend]:
    made = SandboxBackend()
    yield made
    for name in list(made._instances):
        made.delete_sandbox(name)


def test_backend(backend: SandboxBackend) -> None:
    """All six methods of the interface, and its exceptions."""
    name = backend.create_sandbox(SandboxConfig("host", env={"A": "a"}, workdir="/tmp/deep/down"))
    assert backend.get_status(name) is SandboxStatus.RUNNING
    done = backend.exec_command(name, 'echo "$A $B"; pwd; exit 3', env={"B": "b"})
    assert (done.exit_code, done.stdout, done.stderr) == (3, "a b\n/tmp/deep/down\n", "")
    assert backend.exec_command(name, ["sh", "-c", "kill -9 $$"]).exit_code == 137
    backend.write_file(name, "/tmp/new/file", b"\x00\xff")
    backend.write_file(name, "/tmp/new/file", "more", append=True)
    assert backend.read_file(name, "/tmp/new/file") == b"\x00\xffmore"
    assert backend.exec_command(name, "wc -c < /tmp/new/file").stdout.strip() == "6"
    assert not os.path.exists("/tmp/new")
    big = backend.exec_command(name, "head -c 1000000 /dev/zero | tr '\\0' x")
    assert len(big.stdout) == 1_000_000
    with pytest.raises(exceptions.SandboxTimeoutError, match=r"longer than 0\.5 seconds"):
        backend.exec_command(name, "sleep 1000", timeout=0.5)
    with pytest.raises(exceptions.SandboxError):
        backend.read_file(name, "/tmp/missing")
    with pytest.raises(exceptions.SandboxExecError):
        backend.exec_command(name, "true", cwd="/nonexistent")
    for user, words in (("no-such-user", "no user 'no-such-user'"), ("0:wheel", "must be a number")):
        with pytest.raises(exceptions.SandboxExecError, match=words):
            backend.exec_command(name, "true", user=user)
    backend.delete_sandbox(name)
    assert backend.get_status(name) is SandboxStatus.TERMINATED
    for call in (lambda: backend.delete_sandbox(name), lambda: backend.exec_command(name, "true")):
        with pytest.raises(exceptions.SandboxNotFoundError):
            call()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"image": "python:3.12"}, "only 'host', the node itself"),
        ({"image": "host", "network": "public"}, "network is 'public'"),
        ({"image": "host", "capabilities": ["CAP_CHOWN"]}, "capabilities"),
    ],
)
def test_backend_refuses(backend: SandboxBackend, config: dict[str, object], words: str) -> None:
    with pytest.raises(exceptions.SandboxCreationError, match=words):
        backend.create_sandbox(SandboxConfig(**config))


def test_backend_limits(backend: SandboxBackend, workspace: Path) -> None:
    """cpu and memory are a cgroup's: they hold, or the error says what is missing, in nsbox's words."""
    words = ""
    try:
        limits = nsbox.Limits(total_memory="512M", cpus=1)
        with nsbox.Sandbox(nsbox.Policy.workspace(workspace, limits=limits)) as box:
            box.task().close()
    except nsbox.UnavailableError as error:
        words = str(error)
    config = SandboxConfig("host", cpu=1, memory="512Mi")
    if words:
        with pytest.raises(exceptions.SandboxCreationError) as caught:
            backend.create_sandbox(config)
        assert str(caught.value) == words
    else:
        assert backend.exec_command(backend.create_sandbox(config), "true").exit_code == 0


@pytest.mark.as_root("only root's task may have several users")
def test_backend_users(workspace: Path) -> None:
    """Numbers and names, as the sandbox knows them."""
    backend = SandboxBackend(nsbox.Policy.workspace(workspace, ids="full"))
    name = backend.create_sandbox(SandboxConfig("host"))
    shown = [backend.exec_command(name, "id -u; id -g", user=user).stdout.split() for user in ("1234:55", "nobody")]
    assert shown[0] == ["1234", "55"] and shown[1][0] == "65534"
    backend.delete_sandbox(name)
