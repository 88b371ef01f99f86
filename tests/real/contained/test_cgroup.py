"""Limits on all processes of a sandbox together, by a cgroup: for real where one was delegated to this process.

The virtual machines have one; elsewhere `systemd-run --user --scope -p Delegate=yes pytest tests/real/contained/test_cgroup.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Limits, Policy, Popen, Sandbox, SetupError, UnavailableError
from nsbox._machine import cgroup
from nsbox._machine.cgroup import Leaf, Place, look

HERE = look()
pytestmark = pytest.mark.vm
delegated = pytest.mark.skipif(
    set(HERE.controllers) != {"memory", "pids", "cpu"},
    reason=f"no cgroup was delegated: {HERE.problem or HERE.controllers}",
)


@pytest.fixture(autouse=True)
def leaves_no_cgroup() -> Iterator[None]:
    """When a test ends nothing of it is left in the subtree, except the place where this process itself went.

    Their names have the pid of the caller: a live one that isn't ours is another run's.
    """
    yield
    if HERE.directory:
        boxes = [name for name in os.listdir(HERE.directory) if name.startswith("nsbox-box-")]
        callers = {name: int(name.split("-")[2]) for name in boxes}
        assert [name for name, pid in callers.items() if pid == os.getpid() or not os.path.exists(f"/proc/{pid}")] == []


def python(code: str, policy: Policy, **options: object) -> Popen:
    return Popen([sys.executable, "-c", code], policy=policy, **options)


# ---- memory

EAT = "data = []\nwhile True: data.append(bytearray(b'x' * (1 << 20)))"


@delegated
def test_too_much_memory(workspace: Path) -> None:
    """Beyond total_memory everything in the sandbox is killed, and usage says that a limit was the cause."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="48M"))
    with python(EAT, policy) as process:
        assert process.wait() == -signal.SIGKILL
    usage = process.sandbox.usage
    assert usage is not None and usage.cause == "limit"
    assert usage.memory_peak is not None and 32 << 20 < usage.memory_peak <= 49 << 20


@delegated
def test_memory_of_a_branch(workspace: Path) -> None:
    """A branch of an interpreter has a cgroup of its own: the interpreter and other branches go on."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="48M"))
    with Sandbox(policy, stock=0) as box:
        py = box.python()
        for _ in range(2):
            result = py.run(EAT)
            assert (result.cause, result.signal) == ("limit", "SIGKILL")
            assert any(hint.kind == "limit" for hint in result.why)
            assert result.usage is not None and result.usage.oom_kills
            assert py.run("len(bytearray(1 << 20))").value == 1 << 20


@delegated
def test_memory_of_all_together(workspace: Path) -> None:
    """It counts a child's memory, and files in /tmp."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="48M"))
    child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\nprint('survived', flush=True)"
    with Popen([sys.executable, "-c", child, EAT], policy=policy, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.read() == b""
        assert process.wait() == -signal.SIGKILL
    assert process.sandbox.usage is not None and process.sandbox.usage.cause == "limit"
    files = "with open('/tmp/x', 'wb') as f:\n  while True: f.write(b'x' * (1 << 20)); f.flush()"
    with python(files, policy) as process:
        assert process.wait() == -signal.SIGKILL


@delegated
def test_enough_memory(workspace: Path) -> None:
    """Within the limit nothing is noticed; the peak is known."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="256M"))
    with python("x = bytearray(b'x' * (20 << 20))", policy) as process:
        assert process.wait() == 0
    usage = process.sandbox.usage
    assert usage is not None and usage.cause == "exit"
    assert usage.memory_peak is not None and 20 << 20 < usage.memory_peak < 256 << 20


# ---- processes

BOMB = """
import os, errno, sys
made, pids = 0, []
try:
    while made < 200:
        pid = os.fork()
        if pid == 0:
            while True: signal.pause()
        made += 1
except OSError as error:
    print(made, errno.errorcode[error.errno], flush=True)
""".replace("import os,", "import signal, os,")


@delegated
@pytest.mark.as_root("RLIMIT_NPROC holds for others")
def test_processes_of_root(workspace: Path) -> None:
    """Also for root: with processes=N there can be N, the command among them."""
    policy = Policy.workspace(workspace, limits=Limits(processes=12), ids="full")
    done = nsbox.run([sys.executable, "-c", BOMB], policy=policy, capture_output=True, text=True)
    assert done.stdout.split() == ["11", "EAGAIN"]


@delegated
def test_pids_max_itself(workspace: Path) -> None:
    """The cgroup's own limit, for any caller."""
    leaf = Leaf(HERE.directory, [("pids.max", "8")])
    try:
        leaf.started([("pids.max", "8")], os.getpid())
        assert Path(leaf.path, "pids.max").read_text() == "6\n"
    finally:
        leaf.remove()


# ---- processors


@delegated
def test_processor_time(workspace: Path) -> None:
    """cpu.max is what was wished, and the kernel holds back who wants more."""
    policy = Policy.workspace(workspace, limits=Limits(cpus=0.2))
    code = "import os, sys\nprint('up', flush=True)\nsys.stdin.read(1)\nwhile True: pass"
    with python(code, policy, stdin=-1, stdout=-1) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        leaf = process._leaf
        assert leaf is not None
        assert Path(leaf.path, "cpu.max").read_text() == "20000 100000\n"
        process.stdin.write(b"x")
        process.stdin.flush()
        stat = Path(leaf.path, "cpu.stat")
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if int(dict(line.split() for line in stat.read_text().splitlines())["nr_throttled"]):
                break
            time.sleep(0.02)
        else:
            pytest.fail("never throttled")
        process.kill()


# ---- where the processes are, and the end


@delegated
def test_all_processes_are_in_it(workspace: Path) -> None:
    """The command, its children and pid 1 are in the cgroup from their first moment, and see nothing of it."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="256M"))
    code = "import subprocess\nprint(open('/proc/self/cgroup').read().strip(), flush=True)\nsubprocess.run(['sleep', '1000'])"
    with python(code, policy, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"0::/\n"
        assert process._leaf is not None
        while len(Path(process._leaf.path, "cgroup.procs").read_text().split()) < 3:
            time.sleep(0.005)
        pids = {int(pid) for pid in Path(process._leaf.path, "cgroup.procs").read_text().split()}
        assert {process.pid, process.sandbox.init_pid} < pids
        process.kill()
    try:  # the machine's pid 1, whose child it is now, may take a moment to reap it
        state = Path(f"/proc/{process.sandbox.init_pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        state = "Z"
    assert state == "Z"


@delegated
def test_cgroup_kill(workspace: Path) -> None:
    """Killing by the cgroup ends everything."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="256M"))
    with Popen(["/bin/sh", "-c", "echo up; sleep 1000 & sleep 1000"], policy=policy, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert process._leaf is not None
        process._leaf.kill()
        assert process.wait() == -signal.SIGKILL


@delegated
def test_what_stays(workspace: Path) -> None:
    """With kill_on_exit=False the rest goes on in its cgroup, which is removed when that is over."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="256M"), kill_on_exit=False)
    with Popen(["/bin/sh", "-c", "sleep 1000 & echo up"], policy=policy, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert process.wait() == 0
    os.kill(process.sandbox.init_pid, signal.SIGKILL)
    while [name for name in os.listdir(HERE.directory) if name.startswith("nsbox-box")]:
        nsbox.run(["/bin/true"], policy=policy.with_(kill_on_exit=True))  # sweeps
        time.sleep(0.01)


@delegated
def test_a_failed_spawn_leaves_nothing(workspace: Path) -> None:
    """A program that isn't there, or a limit that the kernel refuses: an error, and no cgroup."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="256M"))
    with pytest.raises(FileNotFoundError):
        nsbox.run(["/no/such/program"], policy=policy)
    with pytest.raises(SetupError) as caught:
        Leaf(HERE.directory, [("cpu.max", "many")])
    assert "cpu.max many" in str(caught.value)


@delegated
def test_one_that_nobody_has(workspace: Path) -> None:
    """One whose owner was lost (a signal's handler raised) is removed by the next."""
    Leaf(HERE.directory, [("pids.max", "8")])._close()
    assert [name for name in os.listdir(HERE.directory) if name.startswith("nsbox-box")]
    Leaf(HERE.directory, [("pids.max", "8")]).remove()


@delegated
@pytest.mark.parametrize("limit", [1, 65536, 262144])
def test_less_than_a_start_takes(workspace: Path, limit: int) -> None:
    """The command is killed, or fails, and the caller isn't, whose memory it shares until its exec."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory=limit))

    def run() -> str:
        with Popen(["/bin/true", "x" * 100_000], policy=policy) as process:
            status = process.wait()
        cgroup._at_exit()  # as a process does that isn't a fork of a test's
        return f"{status} {process.sandbox.usage.cause}" if process.sandbox.usage else ""

    status, cause = in_fork(run).split()
    assert cause == "limit" if status == "-9" else cause in ("exit", "signal"), (status, cause)


IN_A_FRESH_ONE = """
import os, sys, nsbox
from nsbox import Limits, Policy
directory, workspace = sys.argv[1:]
with open(directory + "/cgroup.procs", "w") as file: file.write("0")
for limits in ({"cpus": 1}, {"total_memory": "256M"}, {"cpus": 1, "total_memory": "256M"}):
    print(nsbox.run(["/bin/true"], policy=Policy.workspace(workspace, limits=Limits(**limits))).returncode)
print(open(directory + "/cgroup.type").read())
"""


@delegated
def test_the_first_is_about_processors(workspace: Path) -> None:
    """A controller that would make the cgroup a threaded one, if it was handed out while processes are in it."""
    Leaf(HERE.directory, [("memory.max", "1G"), ("cpu.max", "max 100000"), ("pids.max", "8")]).remove()
    fresh = Path(HERE.directory, "fresh")
    fresh.mkdir()
    try:
        command = [sys.executable, "-c", IN_A_FRESH_ONE, str(fresh), str(workspace)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=workspace)
        assert done.stdout.split() == ["0", "0", "0", "domain"], done.stderr
    finally:
        for path in (*fresh.glob("nsbox-*"), fresh):
            path.rmdir()


@delegated
def test_a_limit_above(workspace: Path) -> None:
    """Killed by another limit than its own: the cause is a signal."""
    policy = Policy.workspace(workspace, limits=Limits(cpus=1))
    with Popen(["/bin/sh", "-c", "kill -9 $$"], policy=policy) as process:
        assert process.wait() == -signal.SIGKILL
    assert process.sandbox.usage is not None and process.sandbox.usage.cause == "signal"


@delegated
def test_a_caller_that_ends(workspace: Path) -> None:
    """A caller that doesn't wait for its commands leaves no cgroup either."""
    code = (
        "import os, sys, nsbox\nfrom nsbox import Limits, Policy\n"
        "policy = Policy.workspace(sys.argv[1], limits=Limits(total_memory='256M'))\n"
        "p = nsbox.Popen(['sleep', '1000'], policy=policy)\nprint(p._leaf.path)\nsys.stdout.flush()\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(workspace)], stdout=-1, cwd=workspace)
    path = done.stdout.decode().strip()
    assert path and not os.path.exists(path)


@delegated
def test_stale_ones_are_removed() -> None:
    """What a caller that was killed has left is removed by the next one."""
    code = (
        "import os, sys\nfrom nsbox._machine.cgroup import Leaf\nLeaf(sys.argv[1], [('pids.max', '8')])\nprint('made', flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-P", "-c", code, HERE.directory], capture_output=True)
    assert [name for name in os.listdir(HERE.directory) if name.startswith("nsbox-box")]
    cgroup._swept.clear()
    Leaf(HERE.directory, [("pids.max", "8")]).remove()


# ---- where there is none


@pytest.mark.skipif(bool(HERE.controllers), reason="a cgroup was delegated")
def test_not_delegated(workspace: Path) -> None:
    """The error names the wish, the cause and what helps; degrade lets it be, and says so."""
    policy = Policy.workspace(workspace, limits=Limits(total_memory="1G"))
    with pytest.raises(UnavailableError, match=r"limits\.total_memory: .*Delegate=yes"):
        nsbox.run(["/bin/true"], policy=policy)
    with Popen(["/bin/true"], policy=policy.with_(degrade={"limits.total_memory"})) as process:
        assert process.wait() == 0
    assert any(text.startswith("limits.total_memory") for text in process.sandbox.not_enforced)


def tree(root: Path, own: str, *, controllers: str = "cpu memory pids", enabled: str = "") -> None:
    for name in ("", *[own[: i + 1] for i, ch in enumerate(own) if ch == "/"], own):
        directory = root / name.strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in (("controllers", controllers), ("subtree_control", enabled), ("procs", "")):
            (directory / f"cgroup.{file}").write_text(text)


@pytest.mark.parametrize(
    ("own", "line", "found"),
    [
        ("a/b", "0::/a/b\n", "a/b"),
        ("a/b", "4:memory:/x\n0::/a/b\n", "a/b"),
        ("a/nsbox-callers", "0::/a/nsbox-callers\n", "a"),
        ("a", "0::/../x\n", ""),
        ("a", "4:memory:/x\n", ""),
    ],
)
def test_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, line: str, found: str) -> None:
    """The own cgroup, or the one that its processes were moved away from."""

    root = tmp_path / "cgroup"
    tree(root, own)
    read = cgroup._read
    monkeypatch.setattr(cgroup, "_read", lambda path: line if path == "/proc/self/cgroup" else read(path))
    monkeypatch.setattr(cgroup, "_is_delegated", lambda directory: True)
    place = look(str(root))
    assert place.directory == (str(root / found) if found else "")
    assert bool(place.problem) is not bool(found)


def test_version_1(tmp_path: Path) -> None:
    """A machine with cgroups of version 1 is distinguished from one without any."""
    assert look(str(tmp_path)) == Place(problem=f"no cgroup v2 at {tmp_path}")
    (tmp_path / "memory").mkdir()
    assert look(str(tmp_path)).problem == "cgroups are of version 1 here"
