"""Actors with sandboxes of their own on a real Ray; and the backend for Ray's sandbox library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.experimental.sandbox import exceptions
from ray.experimental.sandbox.backend.base import SandboxStatus
from ray.experimental.sandbox.config import SandboxConfig

import nsbox
from nsbox.integrations.ray import SandboxActor, SandboxBackend

pytestmark = pytest.mark.timeout(600)


@pytest.mark.smoke
def test_actors(cluster: None, tmp_path: Path) -> None:
    """Two actors run code and commands; records have values and causes; an actor that is killed has run nothing twice."""
    places = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        places.append(nsbox.Policy.workspace(tmp_path / name))
    actors = [SandboxActor.options(num_cpus=1).remote(policy, imports=["math"]) for policy in places]
    assert all("python" in path for path in ray.get([actor.ready.remote() for actor in actors]))
    futures = [actors[n % 2].run.remote("math.factorial(n)", inputs={"n": n}, timeout=60) for n in range(20)]
    assert [result.value for result in ray.get(futures)][:5] == [1, 1, 2, 6, 24]
    failed, crashed, slow = ray.get(
        actors[0].map.remote(["1 / 0", "import os; os.abort()", "while True: pass"], timeout=1, grace=0)
    )
    assert (failed.exception.type, crashed.signal, slow.cause) == ("ZeroDivisionError", "SIGABRT", "timeout")
    assert ray.get(actors[0].shell.remote("echo hello > file; cat file")).stdout == "hello\n"
    assert ray.get(actors[0].read.remote("file")) == "hello\n"
    ray.get(actors[1].write.remote("other", "x"))
    assert ray.get(actors[1].exec.remote("cat", ["other", "file"])).returncode == 1
    running = actors[1].run.remote("import tempfile, time\ntempfile.mkstemp(prefix='ran-', dir='.')\ntime.sleep(1000)")
    while not list((tmp_path / "b").glob("ran-*")):
        pass
    ray.kill(actors[1])
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(running)
    assert len(list((tmp_path / "b").glob("ran-*"))) == 1
    ray.get(actors[0].close.remote())


def test_unavailable(cluster: None, tmp_path: Path) -> None:
    """A policy that can't be had: Ray's error quotes nsbox's, with its reasons."""
    policy = nsbox.Policy.workspace(tmp_path, backend="seatbelt")
    with pytest.raises(nsbox.UnavailableError) as local, nsbox.Sandbox(policy) as box:
        box.python().start()
    actor = SandboxActor.remote(policy)
    with pytest.raises(ray.exceptions.ActorDiedError) as remote:
        ray.get(actor.ready.remote())
    assert local.value.reasons[0].what in str(remote.value)
    assert "UnavailableError" in str(remote.value)


def test_memory_of_the_actor(cluster: None) -> None:
    """Code gets the memory that Ray has assigned, unless the policy says something else."""
    limit = "import resource\nresource.getrlimit(resource.RLIMIT_AS)[0]"
    actor = SandboxActor.options(memory=512 << 20).remote(lambda scratch: nsbox.Policy.workspace(scratch))
    assert ray.get(actor.run.remote(limit)).value == 512 << 20
    ray.get(actor.close.remote())


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
        ({"image": "python:3.12"}, "image 'host' means"),
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
