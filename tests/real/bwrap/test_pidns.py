"""A pid namespace that is joined, and one below it: by Details(pidns=...) and by bwrap's options.

A caller that asks for one must be non-dumpable. Our bwrap makes itself so; here a fork does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from nsbox_testing import needs
from nsbox_testing.joined import Joined, hide, joined
from nsbox_testing.running import Orphans, in_fork, python

import nsbox
from nsbox import Details, DevBind, Loopback, Op, Policy, Proc, RoBind, SetupError
from nsbox._bwrap import install

LOOK = "grep NSpid: /proc/self/status; set -- /proc/[0-9]*; echo $#; cat /proc/1/comm; readlink /proc/self/ns/user"


@pytest.fixture
def other() -> Iterator[Joined]:
    with joined(Policy.host()) as found:
        yield found


def policy(other: Joined, *, is_below: bool, network: str = "host", more: Sequence[Op] = (), **wishes: Any) -> Policy:
    details = Details(
        userns=other.userns, pidns=other.pidns, share=frozenset() if is_below else frozenset({"pid"}), **wishes
    )
    return Policy.layers(DevBind("/", "/"), Proc("/proc"), *more, details=details, seccomp="off", network=network)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    return install.install(str(tmp_path_factory.mktemp("bin")))


def words(other: Joined, *more: str) -> list[str]:
    return ["--dev-bind", "/", "/", "--userns", str(other.userns), "--pidns", str(other.pidns), *more]


# ---- from Python


@pytest.mark.vm
@pytest.mark.parametrize("is_below", [False, True])
def test_where_the_command_is(other: Joined, is_below: bool) -> None:
    """pid is the command's in the caller's namespace; it has one more in each that is below."""

    def start() -> Any:
        hide()
        with nsbox.Popen(["cat"], policy=policy(other, is_below=is_below), stdin=subprocess.PIPE, cwd="/") as process:
            numbers = other.numbers(process.pid)
            process.communicate()
            return [numbers, process.returncode]

    numbers, status = in_fork(start)
    assert status == 0
    assert len(numbers) == (2 if is_below else 1)
    assert numbers[0] > 2  # in the other sandbox there are an init and a command already
    assert numbers[1:] == ([2] if is_below else [])


@pytest.mark.parametrize("is_below", [False, True])
def test_a_net_namespace_of_its_own(other: Joined, is_below: bool) -> None:
    """The command is in it although nobody inside may look at pid 1 before that's exec, and lo is up."""
    code = (
        "import os, socket; a, b = (socket.socket(type=socket.SOCK_DGRAM) for _ in 'ab'); a.bind(('127.0.0.1', 0));"
        "b.sendto(b'x', a.getsockname()); print(a.recv(1) == b'x', os.readlink('/proc/self/ns/net'))"
    )

    def start() -> Any:
        hide()
        wanted = policy(other, is_below=is_below, network="none", more=[Loopback()])
        return nsbox.run(python(code), policy=wanted, capture_output=True, text=True, cwd="/").stdout

    is_up, net = in_fork(start).split()
    assert is_up == "True"
    assert net != os.readlink("/proc/self/ns/net")


@pytest.mark.parametrize("is_below", [False, True])
def test_what_the_command_sees(other: Joined, is_below: bool) -> None:
    """Its own procfs shows the namespace that it is in, and that one's pid 1."""

    def start() -> Any:
        hide()
        done = nsbox.run(["sh", "-c", LOOK], policy=policy(other, is_below=is_below), capture_output=True, cwd="/")
        return done.stdout.decode()

    numbers, count, first, user = in_fork(start).splitlines()
    assert len(numbers.split()) == 2
    assert int(count) == (2 if is_below else 3)  # pid 1 and sh; the other sandbox's command
    assert first == "nsbox-init"
    assert user == f"user:[{os.fstat(other.userns).st_ino}]"


@pytest.mark.as_root("looks at what belongs to another user namespace, as one with power in that namespace could")
def test_its_pid_1_has_no_way_to_the_host(other: Joined, tmp_path: Path) -> None:
    """All in the joined namespace see it: from its exec on its root must be the sandbox's. Many mounts make for a long set-up."""
    (tmp_path / "secret").touch()
    binds = [RoBind("/usr", f"/many/{number}") for number in range(2000)]
    wish = Policy.layers(
        *(RoBind(path, path) for path in ("/usr", "/bin", "/lib", "/lib64")),
        *binds,
        details=Details(userns=other.userns, pidns=other.pidns),
        seccomp="off",
    )
    seen = set()
    for _ in range(100):  # it may have ended before the first look
        caller = os.fork()
        if caller == 0:
            try:
                hide()
                nsbox.run(["true"], policy=wish, cwd="/")
            finally:
                os._exit(0)
        while os.waitpid(caller, os.WNOHANG) == (0, 0):
            for process in psutil.Process(caller).children(True):
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                    if process.name() == "nsbox-init":
                        seen.add(process.pid)
                        assert not os.path.exists(f"/proc/{process.pid}/root{tmp_path}/secret")
        if seen:
            break
    assert seen


def test_the_end_of_one_below(other: Joined) -> None:
    """Signals reach it, statuses come back, and what it has left behind ends with it: all as for any other."""

    def start() -> Any:
        hide()
        wish = policy(other, is_below=True)
        with nsbox.Popen(["sh", "-c", "sleep 1000 & exec sleep 1000"], policy=wish, cwd="/") as process:
            process.terminate()
            first = process.wait()
        daemon = "setsid sh -c 'exec sleep 1000' & exit 7"  # which keeps the output open
        done = nsbox.run(["sh", "-c", daemon], policy=wish, stdout=subprocess.PIPE, cwd="/")
        return [first, done.returncode]

    assert in_fork(start) == [-signal.SIGTERM, 7]


@pytest.mark.parametrize("is_below", [False, True])
def test_the_end_of_the_caller(other: Joined, orphans: Orphans, is_below: bool) -> None:
    """It ends what is below too. In one that is only joined there is no pid 1 of ours to see to it: PR_SET_PDEATHSIG."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        hide()
        nsbox.Popen(["sleep", "1000"], policy=policy(other, is_below=is_below), cwd="/", pass_fds=[write])
        os.write(write, b"x")
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    assert os.read(read, 1) == b"x"
    assert os.read(read, 1) == b""  # nobody has the other end any more
    os.close(read)
    assert pid in orphans.reap()


def test_dumpable(other: Joined) -> None:
    """A caller whose memory the processes there could read is refused; the control is all other tests here."""
    for is_below in (False, True):
        with pytest.raises(SetupError, match=r"join a namespace.*must be non-dumpable"):
            nsbox.run(["true"], policy=policy(other, is_below=is_below), cwd="/")


def test_a_namespace_that_is_over() -> None:
    """No process can be made in it: an error that names the step, and nothing is left."""
    with joined(Policy.host()) as ended:
        kept = Joined(os.dup(ended.pidns), os.dup(ended.userns))
    try:

        def start() -> Any:
            hide()
            try:
                nsbox.run(["true"], policy=policy(kept, is_below=True), cwd="/")
            except SetupError as error:
                return str(error)

        assert "pid 1 of pidns has ended" in in_fork(start)
    finally:
        os.close(kept.pidns)
        os.close(kept.userns)


@pytest.mark.as_root("joins a pid namespace without its user namespace")
def test_without_its_user_namespace(other: Joined) -> None:
    """A process that stays outside maps all ids: below a pid namespace of the machine's, not below a sandbox's."""

    def start(pidns: int) -> Any:
        hide()
        details = Details(pidns=pidns)
        wish = Policy.layers(DevBind("/", "/"), Proc("/proc"), ids="full", seccomp="off", details=details)
        return nsbox.run(["cat", "/proc/self/uid_map"], policy=wish, capture_output=True, cwd="/").stdout.decode()

    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "cat"], stdin=subprocess.PIPE) as process:
        while not (child := Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()):
            assert process.poll() is None
        fd = os.open(f"/proc/{child[0]}/ns/pid", os.O_RDONLY)
        assert in_fork(lambda: start(fd)).split()[:2] == ["0", "0"]
        os.close(fd)
        process.communicate()
    with pytest.raises(AssertionError, match=r"unshare namespaces.*join that one too, by userns"):
        in_fork(lambda: start(other.pidns))


# ---- bwrap's options


@pytest.mark.parametrize(
    "more",
    [
        ["--proc", "/proc"],
        ["--unshare-pid", "--proc", "/proc"],
        ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--proc", "/proc"],
        ["--unshare-pid", "--proc", "/proc", "--new-session", "--cap-drop", "ALL"],
    ],
    ids=lambda more: " ".join(more),
)
def test_as_bubblewrap(other: Joined, ours: str, more: list[str]) -> None:
    """The command sees the same by our bwrap as by theirs, and its status comes back."""
    theirs = needs.require("bwrap")
    look = f"{LOOK.replace('cat /proc/1/comm;', '')}; echo $$; exit 3"
    fds = (other.userns, other.pidns)
    seen = []
    for program in (theirs, ours):
        command = [program, *words(other, *more), "sh", "-c", look]
        done = subprocess.run(command, capture_output=True, text=True, pass_fds=fds, timeout=60)
        lines = done.stdout.splitlines()
        assert lines, (program, done.stderr)
        numbers = len(lines[0].split()), lines[0].split()[1] if "--unshare-pid" in more else ""
        seen.append((done.returncode, done.stderr, numbers, [line for line in lines[1:] if not line.isdigit()]))
    assert seen[0] == seen[1]
    assert seen[0][:2] == (3, "")


def test_as_pid_1(other: Joined, ours: str) -> None:
    """The command is pid 1 of the one below, its status comes back, and it leaves no zombie."""
    command = [ours, *words(other, "--unshare-pid", "--as-pid-1", "--proc", "/proc"), "sh", "-c", "echo $$; exit 5"]
    done = subprocess.run(
        command, capture_output=True, text=True, pass_fds=(other.userns, other.pidns), timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "1\n", "")


def test_what_is_said_about_the_child(other: Joined, ours: str) -> None:
    """--info-fd has the number of the command in the caller's namespace, not in the one that was joined."""
    read, write = os.pipe()
    fds = (other.userns, other.pidns, write)
    command = [ours, *words(other, "--unshare-pid", "--info-fd", str(write)), "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds) as process:
        os.close(write)
        with open(read) as file:
            said = json.load(file)
        assert len(other.numbers(said["child-pid"])) == 2
        assert os.stat(f"/proc/{said['child-pid']}/ns/pid").st_ino == said["pid-namespace"]
        process.communicate()
    assert process.returncode == 0


@pytest.mark.vm
@pytest.mark.parametrize("more", [[], ["--unshare-pid"]], ids=["joined", "below"])
def test_what_is_inside(other: Joined, ours: str, more: list[str]) -> None:
    """What the monitor looks at in the sandbox it can reach, though nobody may look at who shares memory with it."""
    read, write = os.pipe()
    os.write(write, b"lock")
    os.close(write)
    status, said = os.pipe()
    fds = (other.userns, other.pidns, read, said)
    inside = ["--tmpfs", "/mnt", "--file", str(read), "/mnt/only-inside", "--lock-file", "/mnt/only-inside"]
    options = words(other, *more, *inside, "--unshare-ipc", "--json-status-fd", str(said))
    look = "import fcntl, os; print(os.readlink('/proc/self/ns/ipc'))\nwith open('/mnt/only-inside', 'r+') as file:"
    look += "\n try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n except BlockingIOError: print('locked')"
    command = [ours, *options, "--proc", "/proc", *python(look)]
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=fds, timeout=60, check=False)
    os.close(read)
    os.close(said)
    with open(status) as file:
        known = json.loads(file.readline())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"ipc:[{known['ipc-namespace']}]", "locked"]
