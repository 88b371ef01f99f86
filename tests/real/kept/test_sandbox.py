"""Sandbox: one policy, many commands. What holds for each of them is tested by all the other tests (NSBOX_TESTS_WARM)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python
from nsbox_testing.warm import await_ready, output

import nsbox
from nsbox import Limits, Policy, Sandbox
from nsbox._core import orphans as core_orphans

# Leaves something in each place that a command can write to without being asked to, and prints what is there already.
LEAVE = """
import json, os
seen = []
for place in ("/tmp", "/dev/shm", "/dev"):
    seen += [f"{place}/{name}" for name in os.listdir(place) if name.startswith("left")]
    open(f"{place}/left", "w").close()
seen += [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 2]
if os.fork() == 0:
    os.setsid()
    while True: os.read(os.pipe()[0], 1)
print(json.dumps(seen))
"""


@pytest.fixture(params=[0, 2], ids=["anew", "ready"])
def box(request: pytest.FixtureRequest, policy: Policy) -> Iterator[Sandbox]:
    """A Sandbox whose commands have their copies made, or find one that is ready."""
    with Sandbox(policy, stock=request.param) as made:
        await_ready(made)
        yield made


# ---- one of many


@pytest.mark.vm
def test_nothing_is_left_for_the_next(box: Sandbox) -> None:
    """Whatever a command leaves behind, files or processes, the next one doesn't find it."""
    for _ in range(4):
        assert output(box, *python(LEAVE)) == "[]\n"


def test_all_at_once_are_alone(box: Sandbox) -> None:
    """Commands that run at the same time don't see each other, and have their own host names, queues and networks."""
    names = ("pid", "mnt", "ipc", "uts", "net")
    with box.Popen(["cat"], stdin=subprocess.PIPE) as one:
        other = output(box, "sh", "-c", f"ls /proc | grep -c '^[0-9]'; cd /proc/self/ns; readlink {' '.join(names)}")
        mine = [os.readlink(f"/proc/{one.pid}/ns/{name}") for name in names]
    count, *others = other.split()
    assert int(count) <= 6  # pid 1, sh, ls, grep
    assert not set(mine) & set(others)


@pytest.mark.vm
def test_the_network_is_one_s_own(box: Sandbox) -> None:
    """Loopback is up, and another command listens on the same port."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 8000)); socket.create_connection(('127.0.0.1', 8000)); print(1)"
    hold = "import socket, sys; s = socket.create_server(('127.0.0.1', 8000)); print(2, flush=True); sys.stdin.read()"
    with box.Popen(python(hold), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"2\n"
        assert output(box, *python(code)) == "1\n"


@pytest.mark.vm
def test_as_with_the_policy(box: Sandbox, policy: Policy) -> None:
    """A command sees the same mounts, in front, the same privileges, limits and environment as one of its own.

    Only the home is another: the Sandbox keeps one.
    """
    look = "cat /proc/self/status | grep -E '^(Cap|NoNew|Seccomp|Groups|NSpid|Umask|Sig)'; ulimit -a; env; id; pwd; ls -la /dev /tmp"
    mounts = python(
        "import os\n"
        "seen = {line.split()[4]: line for line in open('/proc/self/mountinfo')}\n"
        "for at in sorted(seen):\n"
        "    f = seen[at].split(); dash = f.index('-')\n"
        "    print(at, f[3], f[5], f[dash + 1], *(os.access(at, way) for way in (os.R_OK, os.W_OK, os.X_OK)))\n"
    )
    for command in (["sh", "-c", look], mounts):
        alone = nsbox.run(command, policy=policy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        same = output(box, *command)
        cold, warm = (_timeless(text) for text in (alone, same))
        other = ("/proc/1/autogroup", "/home/")
        assert [line for line in warm if not line.startswith(other)] == [
            line for line in cold if not line.startswith(other)
        ]


def _timeless(text: str) -> list[str]:
    """Without times of files."""
    return [
        " ".join(w for w in line.split() if ":" not in w or "=" in w or line[0] in "CNSGU")
        for line in text.splitlines()
    ]


def test_its_own_child(box: Sandbox) -> None:
    """The command is this process's child: pid, status and signals are what they are without a Sandbox."""
    await_ready(box)
    with box.Popen(["sh", "-c", "kill -STOP $$; exit 7"]) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 7
    await_ready(box)
    with box.Popen(["sleep", "100"]) as process:
        assert process.sandbox.init_pid > 0
        process.terminate()
        assert process.wait() == -signal.SIGTERM


def test_all_ways_to_start(box: Sandbox, workspace: Path) -> None:
    """The methods do what the functions do, and the functions take a Sandbox for a policy."""
    assert box.run(["true"]).returncode == 0
    assert box.call("exit 3", shell=True) == 3
    assert box.check_call(["true"]) == 0
    assert box.check_output(["echo", "x"], text=True) == "x\n"
    assert box.shell("echo $0 y").stdout == "/bin/bash y\n"
    assert nsbox.run(["pwd"], policy=box, capture_output=True, text=True).stdout == f"{workspace}\n"
    with pytest.raises(TypeError, match="own policy"):
        box.run(["true"], policy=Policy.host())

    async def main() -> list[bytes]:
        one = await box.create_subprocess_exec("echo", "1", stdout=subprocess.PIPE)
        two = await box.create_subprocess_shell("echo 2", stdout=subprocess.PIPE)
        assert one.sandbox.is_warm
        assert two.sandbox.is_warm
        return [(await process.communicate())[0] for process in (one, two)]

    assert asyncio.run(main()) == [b"1\n", b"2\n"]


def test_confined(child: Callable[..., Any]) -> None:
    """A block takes one too: what libraries start in it is in copies."""
    code = """
with nsbox.Sandbox(policy) as box, nsbox.confined(box):
    seen = [where(), subprocess.Popen(["true"]).sandbox.is_warm]
report(seen)
"""
    assert child("import warnings; warnings.simplefilter('ignore', ResourceWarning)\n" + code) == ["in", True]


def test_a_command_that_is_not_there(box: Sandbox, policy: Policy) -> None:
    """The exceptions are the same ones, nothing is left, and the next command works."""
    for missing in ({"args": ["/no/such"]}, {"args": ["true"], "cwd": "/no/such"}, {"args": ["/etc/passwd"]}):
        with pytest.raises((FileNotFoundError, PermissionError, nsbox.AccessError)) as cold:
            nsbox.run(**missing, policy=policy)
        await_ready(box)
        with pytest.raises(type(cold.value)) as warm:
            box.run(**missing)
        assert (str(warm.value), warm.value.__notes__ if hasattr(warm.value, "__notes__") else []) == (
            str(cold.value),
            cold.value.__notes__ if hasattr(cold.value, "__notes__") else [],
        )
    assert output(box, "echo", "on") == "on\n"


# ---- where nothing can be kept

SYSTEM = ("usr", "bin", "lib", "lib64")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: Policy.layers(*(nsbox.RoBind(f"/{at}", f"/{at}", optional=True) for at in SYSTEM)), "writable"),
        (
            lambda p: Policy.layers(nsbox.RoBind("/", "/"), nsbox.TmpOverlay((str(p.workdir),), str(p.workdir))),
            "overlay",
        ),
        (lambda p: Policy.host(backend="passthrough", require="nothing"), "passthrough"),
    ],
)
def test_cold(policy: Policy, change: Callable[[Policy], Policy], why: str) -> None:
    """Commands are started as without a Sandbox, and it says why."""
    with Sandbox(change(policy)) as box:
        assert why in box.why_cold
        with box.Popen(["/bin/true"]) as process:
            assert process.wait() == 0
        assert not process.sandbox.is_warm


def test_kill_on_exit_of_one_s_own(box: Sandbox) -> None:
    """A command that wishes it otherwise than the policy gets a new sandbox."""
    await_ready(box)
    with box.Popen(["true"], kill_on_exit=False) as process:
        assert process.wait() == 0
    assert not process.sandbox.is_warm
    while core_orphans.leftovers.pidfds:  # its pid 1 may take a moment
        box.run(["true"])


def test_a_terminal(box: Sandbox) -> None:
    """A command on a terminal has it as /dev/console, as without a Sandbox."""
    master, slave = os.openpty()
    try:
        assert box.run(["test", "-c", "/dev/console"], stdout=slave).returncode == 0
        assert box.run(["test", "-e", "/dev/console"], stdout=subprocess.PIPE).returncode == 1
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.as_user("the kernel exempts its uid 0 from RLIMIT_NPROC")
def test_limits_are_each_command_s(policy: Policy) -> None:
    """A limit of processes is for one command, however many run at a time; otherwise each gets a new sandbox."""
    with Sandbox(policy.with_(limits=Limits(processes=4), ids="auto")) as box:
        running = [box.Popen(["sleep", "100"]) for _ in range(5)]
        done = box.shell("sleep 0 & sleep 0 & wait; echo all")
        for process in running:
            process.kill()
            process.wait()
    assert (done.stdout, done.stderr) == ("all\n", "")


NO_EXEC = """
import os, sys, nsbox
policy = nsbox.Policy.workspace(sys.argv[1], backend="namespaces")
with nsbox.Sandbox(policy, stock=0) as box:
    for _ in range(2):
        done = box.run(["sh", "-c", "readlink /proc/1/exe || cat /proc/1/maps || echo on"], capture_output=True, text=True)
        print(done.stdout, end="")
        kept = box._open_way()._kept
        kept._ready.append(kept._park())
    print(os.readlink(f"/proc/self/fd/{kept._fds[-1]}").split()[0])
"""


@pytest.mark.as_root("sets vm.memfd_noexec, in a pid namespace of its own")
@pytest.mark.skipif(not os.path.exists("/proc/sys/vm/memfd_noexec"), reason="Linux 6.3's")
@pytest.mark.parametrize(("mode", "image"), [(1, "/memfd:nsbox-init"), (2, "/init")])
def test_where_no_memfd_is_executed(workspace: Path, mode: int, image: str) -> None:
    """The program of pid 1 is kept in a file then. Commands can't look at pid 1, whichever it is.

    Control: without the file, nothing would start in mode 2, in which such a memfd can't be made.
    """
    control = "import os; os.memfd_create('x', os.MFD_CLOEXEC | 0x10)  # MFD_EXEC"
    script = f'echo {mode} >/proc/sys/vm/memfd_noexec; {sys.executable} -P -c "$2" || echo none; '
    script += f'exec {sys.executable} -P -c "$0" "$1"'
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run([*unshare, "sh", "-c", script, NO_EXEC, workspace, control], capture_output=True, text=True)
    assert done.stdout.split() == [*["none"][: mode - 1], "on", "on", image], done.stderr
