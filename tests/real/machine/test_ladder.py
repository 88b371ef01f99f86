"""The other backends at work: bubblewrap as a Popen, passthrough and its warning, and what is chosen in a sandbox."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs
from nsbox_testing.running import in_fork, python

import nsbox
import nsbox._lookup.host
import nsbox.asyncio
from nsbox import Bind, BindData, Limits, Policy, Proc, RoBind, SetupError, Tmpfs, UnavailableError
from nsbox._policy.losses import LOSSES

HAS_BWRAP = os.access("/usr/bin/bwrap", os.X_OK)


def needs_bwrap(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts one."""
    test = pytest.mark.as_user("bwrap doesn't protect kernel settings from the kernel's uid 0")(test)
    return pytest.mark.skipif(not HAS_BWRAP, reason=needs.reason("bwrap", " at /usr/bin/bwrap"))(test)


@pytest.fixture
def wrapped(workspace: Path) -> Policy:
    return Policy.workspace(workspace, backend="bwrap")


def is_gone(pid: int) -> bool:
    """Say if a process has ended, whether anybody has reaped it or not."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 0)[0])
    finally:
        os.close(fd)


# ---- bubblewrap


@needs_bwrap
@pytest.mark.vm
def test_it_is_contained(wrapped: Policy, workspace: Path, tmp_path: Path) -> None:
    """The sandbox is the policy's: files, ids, capabilities, filters, environment, processes, network."""
    (tmp_path / "secret").write_text("the host's own")
    (workspace / "hidden").write_text("hidden")
    code = """
import json, os, socket, sys
def errno_of(f, *args):
    try: f(*args)
    except OSError as e: return e.errno
    return 0
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
open("made", "w").write("x")
print(json.dumps({
    "secret": errno_of(open, sys.argv[1]), "hidden": errno_of(open, "hidden"), "etc": errno_of(open, "/etc/nsbox", "w"),
    "status": [status[n].strip() for n in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")],
    "bpf": errno_of(socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET), "env": dict(os.environ),
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]), "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "tcp": errno_of(socket.create_connection, ("127.0.0.1", int(sys.argv[2])), 5), "ids": [os.getuid(), os.getgid()],
}))
"""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        done = nsbox.run(
            python(code, str(tmp_path / "secret"), str(server.getsockname()[1])),
            policy=wrapped.with_(deny=[workspace / "hidden"], env={"X": "a=b\nc", "EMPTY": ""}, uid=77, gid=78),
            cwd=workspace,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    env = found.pop("env")
    assert found == {
        "secret": errno.ENOENT,
        "hidden": errno.EACCES,
        "etc": errno.EROFS,
        "status": ["0" * 16, "0" * 16, "1", "2"],
        "bpf": errno.EAFNOSUPPORT,
        "processes": 2,
        "fds": [0, 1, 2],
        "tcp": errno.ECONNREFUSED,
        "ids": [77, 78],
    }
    assert (env["X"], env["EMPTY"], env["HOME"], env["TMPDIR"]) == ("a=b\nc", "", "/home/u77", "/tmp")
    assert set(env) <= {"X", "EMPTY", "HOME", "TMPDIR", "PATH", "PWD", "LC_CTYPE", *wrapped.taken_from_caller()}
    assert (workspace / "made").read_text() == "x"


@needs_bwrap
@pytest.mark.vm
def test_ends(wrapped: Policy) -> None:
    """Exit statuses, signals, and a sandbox that is gone when wait() returns."""
    for command, expected in {
        "exit 3": 3,
        "kill -9 $$": -9,
        "kill -TERM $$": -15,
        "sleep 1000 & exit 4": 4,
        "trap 'exit 7' TERM; kill -TERM $$; exit 8": 7,
    }.items():
        with nsbox.Popen(["sh", "-c", command], policy=wrapped, stdout=subprocess.DEVNULL) as process:
            assert process.wait(30) == expected, command
            assert is_gone(process.sandbox.init_pid)


@needs_bwrap
def test_signals_reach_the_command(wrapped: Policy) -> None:
    """send_signal() is for the command, not for the bwrap around it; kill() is for all."""
    script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    with nsbox.Popen(["sh", "-c", script], policy=wrapped, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(process.sandbox.processes()) >= 1
        assert "bwrap" not in [p.name() for p in process.sandbox.processes()]
        process.terminate()
        assert process.stdout.read() == "caught\n"
        assert process.wait(30) == 5
    with nsbox.Popen(["sleep", "1000"], policy=wrapped) as process:
        process.kill()
        assert process.wait(30) == -9
    with pytest.raises(subprocess.TimeoutExpired):
        nsbox.run(["sleep", "1000"], policy=wrapped, timeout=0.3)


@needs_bwrap
def test_killed_at_once(wrapped: Policy) -> None:
    """A bwrap that is killed before it has tied its init to itself: the sandbox ends all the same, also by a timeout."""
    for how in (nsbox.Popen.kill, nsbox.Popen.terminate) * 10:
        with nsbox.Popen(["sleep", "1000"], policy=wrapped) as process:
            how(process)
            assert process.wait(30) < 0
            assert is_gone(process.sandbox.init_pid)


@needs_bwrap
def test_a_handler_that_raises(wrapped: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler that raises while bwrap is being waited for: it is ended, with what it has made."""
    from nsbox._spawn import bwrap

    class Alarm(Exception):
        pass

    read_report = bwrap.Wrapped._read_report
    heard: list[int] = []

    def ring_once(self: bwrap.Wrapped, result: Any) -> None:
        heard.append(result.pid)
        if len(heard) % 2:
            raise Alarm
        read_report(self, result)

    monkeypatch.setattr(bwrap.Wrapped, "_read_report", ring_once)
    for _ in range(5):
        with pytest.raises(Alarm):
            nsbox.Popen(["sleep", "1000"], policy=wrapped)
    assert len(heard) == 10


@needs_bwrap
def test_missing_programs(wrapped: Policy, workspace: Path, tmp_path: Path) -> None:
    """A program that isn't there, isn't in the sandbox, or isn't executable, is the standard library's error."""
    (workspace / "text").write_text("x")
    (tmp_path / "outside").write_text("#!/bin/sh\n")
    (tmp_path / "outside").chmod(0o755)
    for program, kind in {
        "nonesuch": FileNotFoundError,
        "/nonesuch": FileNotFoundError,
        str(tmp_path / "outside"): FileNotFoundError,
        str(workspace / "text"): PermissionError,
    }.items():
        with pytest.raises(kind) as caught:
            nsbox.Popen([program], policy=wrapped)
        assert caught.value.filename == program


@needs_bwrap
def test_what_only_bwrap_finds_out(wrapped: Policy, workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A command that it couldn't execute ends with 125; a sandbox that it couldn't make is an error at once."""
    script = workspace / "script"
    script.write_text("#!/nonesuch\n")
    script.chmod(0o755)
    assert nsbox.run([str(script)], policy=wrapped).returncode == 125
    assert "bwrap: execvp" in capfd.readouterr().err
    policy = Policy.layers(RoBind("/nonesuch", "/"), Proc("/proc"), backend="bwrap", degrade=LOSSES)
    try:
        assert nsbox.run(["true"], policy=policy).returncode == 125
    except SetupError as error:
        assert "standard error" in str(error)
    assert "nonesuch" in capfd.readouterr().err


@needs_bwrap
def test_streams_and_descriptors(wrapped: Policy) -> None:
    """Standard streams and passed descriptors are the command's; contents for files come through others, and are gone."""
    done = nsbox.run(["cat"], policy=wrapped, input="in and out", capture_output=True, text=True)
    assert done.stdout == "in and out"
    read, write = os.pipe()
    with os.fdopen(read) as source:
        with os.fdopen(write, "w") as end:
            number = end.fileno()
            nsbox.run(python(f"import os; os.write({number}, b'passed')"), policy=wrapped, pass_fds=[number])
        assert source.read() == "passed"
    closed = os.dup(0)
    os.close(closed)
    with pytest.raises(SetupError, match="pass_fds"):
        nsbox.run(["true"], policy=wrapped, pass_fds=[closed])
    ops = (RoBind("/", "/"), Proc("/proc"), Tmpfs("/tmp"), BindData("/tmp/f", b"contents", mode=0o444))
    policy = Policy.layers(*ops, backend="bwrap", degrade=LOSSES, unshare={"ipc"})
    done = nsbox.run(
        ["sh", "-c", "cat /tmp/f; ls /proc/self/fd"], policy=policy, capture_output=True, text=True, cwd="/"
    )
    assert done.stdout == "contents0\n1\n2\n3\n"


@needs_bwrap
def test_a_loader_variable_is_not_for_bwrap(wrapped: Policy, workspace: Path) -> None:
    """What env= says reaches the command alone: bwrap itself, outside, doesn't load a library of the workspace."""
    (workspace / "lib.c").write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        '__attribute__((constructor)) static void f(void) { FILE *o = fopen("/proc/self/comm", "r"); char b[64] = ""; '
        'fgets(b, 64, o); fprintf(stderr, "loaded by %s", b); }\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", workspace / "lib.so", workspace / "lib.c"], check=True)
    done = nsbox.run(
        ["/bin/cat", "/dev/null"],
        policy=wrapped,
        env={"LD_PRELOAD": str(workspace / "lib.so")},
        capture_output=True,
        text=True,
        cwd=workspace,
    )
    assert done.stderr == "loaded by cat\n"


@needs_bwrap
def test_a_planted_link(workspace: Path, tmp_path: Path) -> None:
    """A link that replaces a named directory is noticed before each spawn: bwrap itself would follow it."""
    (workspace / "out").mkdir()
    (tmp_path / "victim").mkdir()
    policy = Policy.workspace(workspace, write=[workspace / "out"], backend="bwrap")
    nsbox.run(["true"], policy=policy)
    (workspace / "out").rmdir()
    (workspace / "out").symlink_to(tmp_path / "victim")
    with pytest.raises(nsbox.PolicyError, match="by a symlink"):
        nsbox.run(["true"], policy=policy)
    from nsbox._spawn import bwrap

    with pytest.raises(OSError) as caught:  # what is looked at then isn't looked up again
        bwrap._without_links(str(workspace / "out"))
    assert caught.value.errno == errno.ELOOP
    fd = bwrap._without_links(str(tmp_path / "victim"))
    assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "victim"))
    os.close(fd)


@needs_bwrap
@pytest.mark.parametrize("held", [True, False], ids=["held", "control"])
def test_a_link_swapped_in_meanwhile(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """Between nsbox's look and bwrap's a link is put in a directory's place: the directory is bound. By name it isn't."""
    from nsbox._spawn import bwrap

    victim, out = tmp_path / "victim", workspace / "out"
    victim.mkdir()
    out.mkdir()
    ops = (RoBind("/", "/"), Proc("/proc"), Tmpfs("/tmp"), Bind(str(out), "/tmp/box", nofollow=True))
    policy = Policy.layers(*ops, backend="bwrap")
    if not nsbox._lookup.host.host_for(policy).bwrap_binds_fds:
        pytest.skip("this bubblewrap has no --bind-fd")
    say = bwrap.arguments

    def swap_and_say(*args: Any) -> list[str]:
        out.rename(workspace / "moved")
        out.symlink_to(victim)
        return say(*args)

    monkeypatch.setattr(bwrap, "arguments", swap_and_say)
    if not held:
        monkeypatch.setattr(bwrap.Wrapped, "_held", lambda self, op: op)
    assert nsbox.run(["sh", "-c", "echo x > /tmp/box/made"], policy=policy, cwd="/").returncode == 0
    assert os.listdir(victim) == ([] if held else ["made"])
    assert os.listdir(workspace / "moved") == (["made"] if held else [])


@needs_bwrap
def test_asyncio(wrapped: Policy) -> None:
    """nsbox.asyncio has the command's own status."""
    import asyncio

    async def run() -> int:
        process = await nsbox.asyncio.create_subprocess_exec("sh", "-c", "kill -9 $$", policy=wrapped)
        return await process.wait()

    assert asyncio.run(run()) == -9


@needs_bwrap
def test_what_it_refuses(wrapped: Policy) -> None:
    """What would happen outside of the sandbox, and ids that it doesn't map."""
    with pytest.raises(UnavailableError, match="preexec_fn"):
        nsbox.run(["true"], policy=wrapped, preexec_fn=lambda: None)
    with pytest.raises(PermissionError):
        nsbox.run(["true"], policy=wrapped, user=12345)


@needs_bwrap
def test_limits(wrapped: Policy) -> None:
    """Resource limits are the command's."""
    policy = wrapped.with_(limits=Limits(open_files=50, file_size=1000))
    done = nsbox.run(["sh", "-c", "ulimit -n; head -c 2000 /dev/zero > f"], policy=policy, stdout=subprocess.PIPE)
    assert done.stdout == b"50\n"
    assert done.returncode == 128 + signal.SIGXFSZ or done.returncode == -signal.SIGXFSZ


@needs_bwrap
def test_with_sigchld_ignored(wrapped: Policy) -> None:
    """A caller that ignores SIGCHLD: bwrap, which would wait for ever, doesn't inherit that."""

    def run() -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return nsbox.run(["true"], policy=wrapped, timeout=30).returncode

    assert in_fork(run) == 0


@needs_bwrap
def test_with_standard_streams_closed(wrapped: Policy) -> None:
    """A caller without descriptors 0 to 2: none of ours takes their place."""

    def run() -> int:
        for fd in (0, 1, 2):
            os.close(fd)
        return nsbox.run(["sh", "-c", "exit 3"], policy=wrapped).returncode

    assert in_fork(run) == 3


# ---- passthrough


def test_passthrough(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The standard library's own child, in the built environment and the workspace, after one warning."""
    from nsbox._spawn import prepare

    prepare._warn_once.cache_clear()
    prepare.forget()
    policy = Policy.workspace(workspace, backend="passthrough", require="nothing", env={"X": "1"})
    with caplog.at_level(logging.WARNING, logger="nsbox"):
        for options in ({}, {"cwd": "/"}, {"env": {"A": "b", "PATH": "/usr/bin:/bin"}}):
            done = nsbox.run(["sh", "-c", "pwd; env"], policy=policy, stdout=subprocess.PIPE, text=True, **options)
            where, *env = done.stdout.splitlines()
            assert where == options.get("cwd", str(workspace))
            assert ("X=1" in env) is ("env" not in options)
    assert [record.message for record in caplog.records] == [
        "commands run without any containment: so asked for by backend="
    ]
    with nsbox.Popen(["sleep", "1000"], policy=policy) as process:
        assert process.sandbox.backend == "passthrough"
        assert process.sandbox.init_pid == 0
        assert os.getsid(process.pid) == process.pid
        process.kill()
    assert process.returncode == -9


def test_passthrough_in_a_block(workspace: Path) -> None:
    """nsbox.confined() with it starts commands, in the policy's environment."""
    code = f"""
import logging, subprocess, nsbox
logging.disable()
policy = nsbox.Policy.workspace({str(workspace)!r}, backend="passthrough", require="nothing", env={{"X": "1"}})
with nsbox.confined(policy):
    print(subprocess.run(["sh", "-c", "echo $X"], stdout=subprocess.PIPE, text=True).stdout, end="")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=workspace)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("backend", ["landlock", "passthrough"])
def test_plain_children_by_asyncio(workspace: Path, backend: str) -> None:
    """nsbox.asyncio waits for a command that no init watches."""
    import asyncio

    if backend == "landlock" and nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    policy = Policy.workspace(workspace, backend=backend, require="nothing")

    async def run() -> tuple[bytes, int | None]:
        process = await nsbox.asyncio.create_subprocess_exec(
            "sh", "-c", "echo out; exit 5", policy=policy, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out, process.returncode

    assert asyncio.run(run()) == (b"out\n", 5)


def test_it_has_to_be_asked_for(workspace: Path) -> None:
    """By backend= alone it isn't."""
    with pytest.raises(nsbox.PolicyError, match="require='nothing'"):
        Policy.workspace(workspace, backend="passthrough")


# ---- the choice


@pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
def test_in_a_sandbox(workspace: Path) -> None:
    """In a sandbox, where namespaces are refused, a policy that may lack what takes them is contained by Landlock."""
    code = """
import nsbox, os, tempfile
os.mkdir("inner")
wishes = {"attributes", "home", "processes", "read", "secrets", "tmp"}
policy = nsbox.Policy.workspace("inner", degrade=wishes)
p = nsbox.Popen(["sh", "-c", "echo x > ok; echo x > ../bad"], policy=policy, stderr=nsbox.DEVNULL)
p.wait()
print(p.sandbox.backend, sorted(os.listdir("inner")), os.path.exists("bad"))
try: nsbox.run(["true"], policy=policy.with_(degrade=wishes - {"tmp"}))
except nsbox.UnavailableError as e: print("seccomp filter" in str(e), "tmp: there is no private" in str(e), "EPERM" in str(e))
try: nsbox.run(["true"], policy=policy.with_(require="isolated"))
except nsbox.UnavailableError as e: print(sorted({r.what.split(":")[0] for r in e.reasons}))
"""
    done = nsbox.run(
        [sys.executable, "-c", code], policy=Policy.workspace(workspace), cwd=workspace, capture_output=True, text=True
    )
    assert done.stdout == "landlock ['ok'] False\nTrue True True\n['bwrap', 'namespaces']\n", done.stderr


def test_the_trial_leaves_nothing() -> None:
    """probe() makes a sandbox to see if that can be done: no process or descriptor is left, whatever the caller is like."""

    def run() -> list[int]:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        before = len(os.listdir("/proc/self/fd"))
        errors = {nsbox.probe(refresh=True).userns_error for _ in range(5)}
        time.sleep(0.01)
        return [len(os.listdir("/proc/self/fd")) - before, *errors]

    assert in_fork(run) == [0, 0]
