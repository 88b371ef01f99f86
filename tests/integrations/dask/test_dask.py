"""Code on the workers of a real cluster: records, errors, limits, and what is contained."""

from __future__ import annotations

import json
import os
import pickle
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dask_functions import memory_limit, reach, scratch_policy, unavailable_if_marked
from distributed import Client

import nsbox
from nsbox.integrations import dask as contained

Cluster = Callable[..., Client]


def leaves(value: object) -> Iterator[object]:
    """Yield what a value is made of."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from (name, *leaves(one))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one)
    else:
        yield value


@pytest.mark.smoke
def test_map(cluster: Cluster) -> None:
    """Each snippet has a record, in order, with its value or why it failed; both workers have worked."""
    client = cluster()
    client.register_plugin(contained.SandboxPlugin(scratch_policy, imports=["math"]))
    codes = [f"math.factorial({n % 20})" for n in range(200)]
    codes += ["1 / 0", "import os; os._exit(9)", "import os; os.abort()", "print('hello')", ("n + 1", {"n": 41})]
    results = list(contained.map(client, codes, batch=5, timeout=60))
    assert [result.index for result in results] == list(range(len(codes)))
    assert {(result.returncode, result.cause, result.attempt, result.lost) for result in results[:200]} == {
        (0, "exit", 1, ())
    }
    assert [result.value for result in results[:5]] == [1, 1, 2, 6, 24]
    failed, left, crashed, printed, sum_ = results[200:]
    assert (failed.exception.type, left.returncode, crashed.signal) == ("ZeroDivisionError", 9, "SIGABRT")
    assert (printed.stdout, sum_.value) == ("hello\n", 42)
    assert {result.worker for result in results} == set(client.nthreads())
    slow = contained.submit(client, "while True: pass", timeout=0.5, grace=0).result()
    assert (slow.timed_out, slow.cause, slow.index) == (True, "timeout", None)


def test_records_are_plain(cluster: Cluster) -> None:
    """A record is pickled by Dask; all that the code had a say in is text, numbers and JSON's values."""
    client = cluster(n_workers=1)
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    bomb = "class B:\n    def __reduce__(self):\n        import os\n        return os.system, ('touch /tmp/pwned',)\n"
    for code in (f"{bomb}B()", f"{bomb}[1, {{'a': None}}]", f"{bomb}display(B())", f"{bomb}raise ValueError(B())"):
        result = contained.submit(client, code).result()
        assert {type(leaf) for leaf in leaves(result.as_dict())} <= {str, int, float, bool, type(None)}
        assert result == pickle.loads(pickle.dumps(result))
        json.loads(result.as_json())
    keys = {"worker", "lost", "attempt"}
    assert set(result.as_dict()) == set(nsbox.python_schema()["properties"]) | keys


def test_options(cluster: Cluster) -> None:
    """Inputs, arguments, variables, stdin and limits of output reach the code."""
    client = cluster(n_workers=1)
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    code = "import os, sys\n[a + b, sys.argv[1:], os.environ['C'], input()]"
    results = contained.map(
        client, [(code, {"b": 2}), (code, {"b": 3})], inputs={"a": 1}, args=["x"], env={"C": "c"}, input="in\n"
    )
    assert [result.value for result in results] == [[3, ["x"], "c", "in"], [4, ["x"], "c", "in"]]
    result = contained.submit(client, "print('x' * 100000)", max_output=1000).result()
    assert (result.is_truncated, result.stdout_bytes) == (True, 100001)
    seen = []
    unordered = contained.map(client, (str(n) for n in range(50)), ordered=False, progress=seen.append)
    assert sorted(result.value for result in unordered) == list(range(50))
    assert (seen[-1].done, seen[-1].failed, seen[-1].total) == (50, 0, None)
    assert list(contained.map(client, [])) == []


def test_codes_are_read_as_needed(cluster: Cluster) -> None:
    """An endless iterable is read some batches ahead; its error comes after the results of what came before."""
    client = cluster(n_workers=1)
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    read: list[int] = []

    def endless() -> Iterator[str]:
        while True:
            read.append(len(read))
            yield f"{len(read)}"

    with contained.map(client, endless(), batch=2) as results:
        assert [next(results).value for _ in range(3)] == [1, 2, 3]
        assert len(read) < 60

    def broken() -> Iterator[str]:
        yield from ("1", "2", "3")
        raise KeyError("broken")

    for ordered in (True, False):
        results = contained.map(client, broken(), ordered=ordered)
        assert [next(results).value for _ in range(3)] == [1, 2, 3]
        with pytest.raises(KeyError, match="broken"):
            next(results)


def test_bad_input(cluster: Cluster) -> None:
    """What is wrong is said at the call, or by the worker that finds it."""
    client = cluster(n_workers=1)
    with pytest.raises(LookupError, match="has no SandboxPlugin 'nsbox'"):
        contained.submit(client, "1").result()
    with pytest.raises(LookupError, match="has no SandboxPlugin 'nsbox'"):
        list(contained.map(client, ["1"]))
    with pytest.raises(TypeError, match="policy is a str, must be a Policy"):
        contained.SandboxPlugin("policy")  # type: ignore[arg-type]
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    for call, words in (
        (lambda: contained.submit(client, 1), "code is an int"),  # type: ignore[arg-type]
        (lambda: contained.submit(client, "1", secrets={}), "unexpected option 'secrets'"),  # type: ignore[call-arg]
        (lambda: contained.map(client, "1"), "codes is a str"),
        (lambda: contained.map(client, ["1"], batch=0), "batch is 0, must be 1 to 1000"),
        (lambda: contained.map(client, ["1"], inputs=3), "inputs is an int"),  # type: ignore[arg-type]
        (lambda: contained.map(client, ["1"], progress="x"), "progress is a str"),  # type: ignore[arg-type]
        (lambda: list(contained.map(client, ["1", 2])), "item 1 of codes is an int"),  # type: ignore[list-item]
        (lambda: contained.submit(client, "1", timeout="x").result(), "timeout"),  # type: ignore[arg-type]
        (lambda: list(contained.map(client, ["1"], cwd="/nonexistent")), "nonexistent"),
    ):
        with pytest.raises((TypeError, ValueError, nsbox.NsboxError), match=words):
            call()
    results = contained.map(client, ["1", ("2", {"x": {1, 2}}), "3"])
    assert next(results).value == 1
    with pytest.raises(TypeError, match="inputs\\['x'\\] must be a value that JSON has"):
        next(results)


def test_unavailable(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that can't be had: the driver gets the error of the worker, with its reasons; also of one that joins later."""
    (tmp_path / "w").mkdir()
    policy = nsbox.Policy.workspace(tmp_path / "w", backend="seatbelt")
    with pytest.raises(nsbox.UnavailableError) as local, nsbox.Sandbox(policy) as box:
        box.python().start()
    mark = tmp_path / "mark"
    monkeypatch.setenv("NSBOX_TEST_MARK", str(mark))
    client = cluster(n_workers=1)
    with pytest.raises(nsbox.UnavailableError) as remote:
        client.register_plugin(contained.SandboxPlugin(policy))
    assert str(remote.value) == str(local.value)
    assert remote.value.reasons == local.value.reasons
    with pytest.raises(nsbox.UnavailableError):  # a driver that ignores it learns it again
        contained.submit(client, "1").result()
    client.register_plugin(contained.SandboxPlugin(unavailable_if_marked))
    assert contained.submit(client, "1").result().value == 1
    old = set(client.nthreads())
    mark.touch()
    client.cluster.scale(2)
    client.wait_for_workers(2)
    new = set(client.nthreads()) - old
    with pytest.raises(nsbox.UnavailableError) as later:
        contained.submit(client, "1", dask={"workers": list(new)}).result()
    assert later.value.reasons == local.value.reasons


def test_cgroup_limits_that_are_not_there(cluster: Cluster, tmp_path: Path) -> None:
    """total_memory holds, or is an error that says what is missing: the same as without Dask."""
    (tmp_path / "w").mkdir()
    policy = nsbox.Policy.workspace(tmp_path / "w", limits=nsbox.Limits(total_memory="512M"))
    words = ""
    try:
        with nsbox.Sandbox(policy) as box:
            box.python().start()
    except nsbox.UnavailableError as error:
        words = str(error)
    client = cluster(n_workers=1)
    if words:
        with pytest.raises(nsbox.UnavailableError) as remote:
            client.register_plugin(contained.SandboxPlugin(policy))
        assert "cgroup" in words and str(remote.value) == words
    else:
        client.register_plugin(contained.SandboxPlugin(policy))
        assert contained.submit(client, "1").result().value == 1


def test_setup_that_fails(cluster: Cluster) -> None:
    """The driver gets the InterpreterError, with the traceback of the setup; a plugin of the same name mends it."""
    client = cluster(n_workers=1)
    with pytest.raises(nsbox.InterpreterError, match="no_such_module"):
        client.register_plugin(contained.SandboxPlugin(scratch_policy, setup="import no_such_module"))
    client.register_plugin(contained.SandboxPlugin(scratch_policy, setup="table = [1, 2]"))
    client.register_plugin(contained.SandboxPlugin(scratch_policy, setup="table = [3, 4]", name="other"))
    assert contained.submit(client, "table").result().value == [1, 2]
    assert [one.value for one in contained.map(client, ["table", "table[0]"], plugin="other")] == [[3, 4], 3]


def test_contained(cluster: Cluster, tmp_path: Path) -> None:
    """Code reaches neither the scheduler, whose port runs any pickle, nor the worker's files and processes. Dask's own does."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    client = cluster(n_workers=1)
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    port = int(client.scheduler.address.rpartition(":")[2])
    pid = client.submit(os.getpid).result()
    assert client.submit(reach, port).result() == "reached"  # the control
    assert client.submit(Path(secret).read_text).result() == "secret"
    attempt = (
        "import socket\ntry: socket.create_connection(('127.0.0.1', port), timeout=5); x = 'reached'\n"
        "except OSError as e: x = type(e).__name__\nx"
    )
    look = "import os\ntry: x = open(path).read()\nexcept OSError as e: x = type(e).__name__\nx"
    assert contained.submit(client, attempt, inputs={"port": port}).result().value in (
        "ConnectionRefusedError",
        "OSError",
    )
    assert contained.submit(client, look, inputs={"path": str(secret)}).result().value == "FileNotFoundError"
    kill = "import os\ntry: os.kill(pid, 9); x = 'killed'\nexcept OSError as e: x = type(e).__name__\nx"
    assert contained.submit(client, kill, inputs={"pid": pid}).result().value in (
        "ProcessLookupError",
        "PermissionError",
    )
    assert client.submit(os.getpid, pure=False).result() == pid


def test_share_of_the_memory(cluster: Cluster) -> None:
    """Code gets the worker's memory, divided by its threads, unless the policy or the plugin says something else."""
    client = cluster(n_workers=1, threads_per_worker=2, memory_limit="1GiB")
    assert client.submit(memory_limit).result() == 1 << 30
    limit = "import resource\nresource.getrlimit(resource.RLIMIT_AS)[0]"
    for options, due in (
        ({}, 1 << 29),
        ({"share": False}, resource.getrlimit(resource.RLIMIT_AS)[0]),
    ):
        client.register_plugin(contained.SandboxPlugin(scratch_policy, **options))
        assert contained.submit(client, limit).result().value == due
    client.register_plugin(contained.SandboxPlugin(scratch_policy))
    assert contained.submit(client, "len('x' * (800 << 20))").result().exception.type == "MemoryError"
    own = contained.SandboxPlugin(lambda at: nsbox.Policy.workspace(at, limits=nsbox.Limits(memory="256M")), name="own")
    client.register_plugin(own)
    assert contained.submit(client, limit, plugin="own").result().value == 256 << 20


HEARTBEAT = (
    "import time\nn = 0\nwhile True:\n    n += 1\n    open(f'beat-{who}', 'w').write(str(n))\n    time.sleep(0.01)"
)


def _has_ended(file: Path) -> bool:
    """Return whether code that writes to a file a hundred times a second doesn't any more."""
    before = file.read_text()
    time.sleep(0.5)
    return file.read_text() == before


def _await(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def test_cancel(cluster: Cluster, workspace: Path) -> None:
    """A future that is cancelled, a map that is closed and one that is dropped: their code has ended."""
    client = cluster()
    client.register_plugin(contained.SandboxPlugin(nsbox.Policy.workspace(workspace)))
    future = contained.submit(client, HEARTBEAT, inputs={"who": "submit"})
    file = workspace / "beat-submit"
    _await(lambda: file.exists() and file.read_text() != "")
    assert not _has_ended(file)  # the control
    future.cancel()
    _await(lambda: _has_ended(file))
    results = contained.map(client, (("1", {}), (HEARTBEAT, {"who": "map"}), *[("1", {})] * 10), batch=1)
    assert next(results).value == 1
    file = workspace / "beat-map"
    _await(lambda: file.exists() and file.read_text() != "")
    results.close()
    results.close()
    assert _has_ended(file)
    with pytest.raises(StopIteration):
        next(results)
    results = contained.map(client, [("1", {}), (HEARTBEAT, {"who": "drop"})], batch=1)
    assert next(results).value == 1
    file = workspace / "beat-drop"
    _await(lambda: file.exists() and file.read_text() != "")
    del results
    _await(lambda: _has_ended(file))
    assert [one.value for one in contained.map(client, ["1", "2", "3"])] == [1, 2, 3]
