"""Popen's descriptors: standard streams in all their forms, pass_fds, and nothing else inside."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import leftovers
from nsbox_testing.running import Face, in_fork, python

import nsbox

LIST = """
import json, os
fds = {}
for name in os.listdir("/proc/self/fd"):
    try: fds[name] = os.readlink("/proc/self/fd/" + name)
    except OSError: pass
os.write(1, json.dumps(fds).encode())
"""


def listed(sub: Face, **options: Any) -> dict[int, str]:
    """Return what the command finds in its /proc/self/fd."""
    done = sub.run(python(LIST), stdin=subprocess.DEVNULL, capture_output=True, **options)
    assert done.returncode == 0, done.stderr
    return {int(fd): what for fd, what in json.loads(done.stdout).items()}


# ---- standard streams


def test_devnull(sub: Face) -> None:
    """DEVNULL reads as empty and swallows."""
    null = subprocess.DEVNULL
    assert sub.run(["cat"], stdin=null, stdout=subprocess.PIPE).stdout == b""
    assert sub.run(["sh", "-c", "echo x; echo y >&2"], stdout=null, stderr=null).returncode == 0


def test_stderr_to_stdout(sub: Face) -> None:
    """stderr=STDOUT: one pipe for both, in order."""
    done = sub.run(["sh", "-c", "echo a; echo b >&2; echo c"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout == b"a\nb\nc\n"
    assert done.stderr is None


def test_stderr_to_an_inherited_stdout(sub: Face) -> None:
    """stderr=STDOUT without stdout= joins the inherited one."""

    def run() -> None:
        sub.run(["sh", "-c", "echo a; echo b >&2"], stderr=subprocess.STDOUT, check=True)

    assert redirected(sub.directory / "out", run) == "a\nb\n"


def redirected(path: Path, function: Any) -> str:
    """Run function in a fork whose descriptor 1 is a file, and return what is in it."""

    def run() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(fd, 1)
        function()

    in_fork(run)
    return path.read_text()


def test_inherited_streams(sub: Face) -> None:
    """Streams that aren't named are the caller's."""
    assert redirected(sub.directory / "out", lambda: sub.run(["echo", "inherited"], check=True)) == "inherited\n"


def test_files_and_numbers(sub: Face, tmp_path: Path) -> None:
    """File objects and descriptors, also of files that the command couldn't open itself."""
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_text("from a file")
    with source.open() as read, sink.open("w") as write:
        sub.run(["cat"], stdin=read, stdout=write, check=True)
    assert sink.read_text() == "from a file"
    fd = os.open(sink, os.O_WRONLY | os.O_TRUNC)
    try:
        sub.run(["echo", "by number"], stdout=fd, check=True)
    finally:
        os.close(fd)
    assert sink.read_text() == "by number\n"


def test_position_in_a_file_is_shared(sub: Face) -> None:
    """Two commands that write to one descriptor go on where the other stopped."""
    with (sub.directory / "log").open("w+") as log:
        sub.run(["echo", "one"], stdout=log, check=True)
        sub.run(["sh", "-c", "echo two >&2"], stderr=log, check=True)
        log.seek(0)
        assert log.read() == "one\ntwo\n"


def test_socket_as_streams(sub: Face) -> None:
    """One end of a socket pair as stdin and stdout."""
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs, sub.Popen(["cat"], stdin=theirs, stdout=theirs) as p:
        theirs.close()
        ours.sendall(b"ping")
        assert ours.recv(4) == b"ping"
        ours.shutdown(socket.SHUT_WR)
        p.wait()


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2))), ids=str)
def test_swapped_standard_streams(sub: Face, order: tuple[int, int, int]) -> None:
    """The caller's own 0, 1 and 2 as the command's in any order (CPython's test_swap_fds)."""
    names = [sub.directory / f"stream{i}" for i in range(3)]
    for i, name in enumerate(names):
        name.write_text(str(i))

    def swap() -> str:
        for fd, name in enumerate(names):
            opened = os.open(name, os.O_RDWR)
            os.dup2(opened, fd, inheritable=True)
        stdin, stdout, stderr = order
        code = "import os; [os.write(fd, b'abc'[fd:fd+1] + os.pread(fd, 1, 0)) for fd in (0, 1, 2)]"
        return sub.run(python(code), stdin=stdin, stdout=stdout, stderr=stderr).returncode

    assert in_fork(swap) == 0
    # Each stream got the letter of the command's number, and what it read there was the number of the caller's.
    for theirs, ours in enumerate(order):
        assert names[ours].read_text() == f"{'abc'[theirs]}{ours}"


@pytest.mark.parametrize("closed", [c for n in (1, 2, 3) for c in itertools.combinations((0, 1, 2), n)], ids=str)
def test_pipes_when_standard_streams_are_closed(sub: Face, closed: tuple[int, ...]) -> None:
    """The caller's own 0, 1, 2 may be closed: pipes then have these numbers, and still end up where they belong."""

    def talk() -> list[Any]:
        for fd in closed:
            os.close(fd)
        done = sub.run(["sh", "-c", "cat; echo err >&2"], input=b"in", capture_output=True)
        return [done.returncode, done.stdout.decode(), done.stderr.decode()]

    assert in_fork(talk) == [0, "in", "err\n"]


@pytest.mark.parametrize("closed", [c for n in (1, 2, 3) for c in itertools.combinations((0, 1, 2), n)], ids=str)
def test_closed_standard_streams_stay_closed(sub: Face, closed: tuple[int, ...]) -> None:
    """A standard stream that the caller has closed, and doesn't give, is closed in the command: nothing of ours is there."""
    out = sub.directory / "out"

    def start() -> int:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(fd, 800, inheritable=True)
        os.close(fd)
        for number in closed:
            os.close(number)
        code = """
import json, os
open_ = []
for fd in range(3):
    try: os.fstat(fd)
    except OSError: continue
    open_.append(fd)
os.write(800, json.dumps(open_).encode())
"""
        # Not by Python itself, which opens /dev/null on closed streams... but only for its file objects.
        return sub.run(python(code), pass_fds=[800]).returncode

    assert in_fork(start) == 0
    assert json.loads(out.read_text()) == [fd for fd in range(3) if fd not in closed]


def test_pipe_on_a_closed_number_with_others_inherited(sub: Face) -> None:
    """One stream a pipe with a low number, the others inherited."""

    def talk() -> str:
        os.close(0)
        with sub.Popen(["echo", "x"], stdout=subprocess.PIPE) as p:
            return p.communicate()[0].decode()

    assert in_fork(talk) == "x\n"


# ---- which descriptors are inside


def test_only_standard_streams_are_inside(sub: Face) -> None:
    """Descriptors of the caller, inheritable ones too, don't reach the command."""
    fd = os.open("/", os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        assert sorted(listed(sub)) == [0, 1, 2]
    finally:
        os.close(fd)


def test_pass_fds(sub: Face) -> None:
    """pass_fds reach the command under their numbers, with gaps, in any order, named twice; nothing else does."""
    read, write = os.pipe()
    numbers = [read, 50, 51, 97, 300]
    for number in numbers[1:]:
        os.dup2(write, number)
    os.dup2(write, 60)  # in a gap, and not passed
    try:
        found = listed(sub, pass_fds=(300, 50, read, 97, 51, 50, 300))
        assert sorted(found) == sorted([0, 1, 2, *numbers])
        assert {found[n] for n in numbers} == {os.readlink(f"/proc/self/fd/{read}")}
    finally:
        for fd in (*numbers, write, 60):
            os.close(fd)


def test_pass_fds_work(sub: Face) -> None:
    """A passed pipe can be written to; its inheritable flag in the caller stays what it was."""
    read, write = os.pipe()
    with sub.Popen(python(f"import os; os.write({write}, b'through')"), pass_fds=[write]) as p:
        assert not os.get_inheritable(write)
        os.close(write)
        with open(read) as file:
            assert file.read() == "through"
    assert p.returncode == 0


@pytest.mark.parametrize("standard", [(0,), (1,), (2,), (0, 1, 2)])
def test_pass_fds_may_name_standard_streams(sub: Face, standard: tuple[int, ...]) -> None:
    """0, 1 and 2 in pass_fds are what they would be without."""
    assert sub.run(["sh", "-c", "cat >&2"], input=b"x", capture_output=True, pass_fds=standard).stderr == b"x"


def test_pass_fds_forces_close_fds(sub: Face) -> None:
    """pass_fds with close_fds=False warns, and closes."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        with pytest.warns(RuntimeWarning, match="pass_fds overriding close_fds"):
            found = listed(sub, pass_fds=[read], close_fds=False)
        assert sorted(found) == sorted([0, 1, 2, read])
    finally:
        os.close(read)
        os.close(write)


def test_close_fds_false(sub: Face) -> None:
    """close_fds=False: inheritable descriptors reach the command, others don't, and none of nsbox's own."""
    directory = os.open("/", os.O_RDONLY)
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        inherited = {0, 1, 2} | {fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_inheritable(fd)}
        found = set(listed(sub, close_fds=False))
        assert found == inherited
        assert write in found and directory not in found and read not in found
    finally:
        for fd in (directory, read, write):
            os.close(fd)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def test_pass_fds_that_are_closed(sub: Face) -> None:
    """A closed descriptor in pass_fds is EBADF. None of the set-up's own may take its place and reach the command."""
    out = os.open(sub.directory / "out", os.O_RDWR | os.O_CREAT)
    os.dup2(out, 800)
    os.close(out)

    def try_all() -> dict[int, str]:
        os.dup2(800, 1)
        answers = {}
        for number in (n for n in range(3, 30) if not _exists(n)):
            try:
                sub.run(python(LIST), pass_fds=[number])  # no pipe, so that no number is taken by the constructor
            except OSError as error:
                answers[number] = errno.errorcode[error.errno]
            else:
                answers[number] = json.loads(os.pread(800, 10000, 0)).get(str(number), "closed")
            os.ftruncate(800, 0)
            os.lseek(800, 0, os.SEEK_SET)
        return answers

    try:
        answers = in_fork(try_all)
    finally:
        os.close(800)
    assert len(answers) > 10
    if sub.contained:  # the plain class says so only for numbers that its own pipe doesn't use
        assert set(answers.values()) == {"EBADF"}, answers
    else:
        assert set(answers.values()) <= {"EBADF", "closed"}, answers


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31])
def test_pass_fds_that_are_no_descriptors(sub: Face, bad: int) -> None:
    """Numbers that can't be descriptors are refused."""
    with pytest.raises((ValueError, OverflowError)):
        sub.Popen(["true"], pass_fds=[bad])


def test_a_descriptor_of_a_file_outside(sub: Face, tmp_path: Path) -> None:
    """A file that isn't in the sandbox can be handed in, open."""
    outside = tmp_path / "outside"
    outside.write_text("handed in")
    with outside.open() as file:
        done = sub.run(["cat", f"/proc/self/fd/{file.fileno()}"], pass_fds=[file.fileno()], stdout=subprocess.PIPE)
    assert done.stdout == b"handed in"


def test_descriptors_of_the_caller_are_left_alone(sub: Face) -> None:
    """After a spawn the caller has the descriptors that it had, except for a pidfd and an eventfd for each live command."""
    before = set(leftovers.fds())
    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        new = {str(fd) for fd in set(leftovers.fds()) - before}
        assert str(p.stdin.fileno()) in new
        assert len(new) == (3 if sub.isolated else 1)
        flags = [os.get_inheritable(int(fd)) for fd in new]
        assert not any(flags)


def test_the_inits_pipe_is_small(policy: nsbox.Policy) -> None:
    """One page: an ordinary user's pipes share a budget (pipe(7), pipe-user-pages-soft), and this one needs no more."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=policy) as p:
        assert fcntl.fcntl(p._init_says, 1032) == 4096  # F_GETPIPE_SZ


def test_own_descriptor_is_never_a_standard_one(sub: Face) -> None:
    """With 0, 1 and 2 closed in the caller, nsbox's own descriptors in it are above them."""

    def start() -> list[int]:
        null = os.open("/dev/null", os.O_RDWR)
        high = os.dup2(null, 500)
        for fd in (0, 1, 2):
            os.close(fd)
        read, write = os.pipe()  # 0 and 1
        high_read, high_write = os.dup2(read, 501), os.dup2(write, 502)
        os.close(read), os.close(write)
        with sub.Popen(["cat"], stdin=high_read, stdout=high, stderr=high):
            low = [fd for fd in range(3) if _exists(fd)]
            os.close(high_read)
            os.close(high_write)
        return low

    assert in_fork(start) == []


def _exists(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_sandbox_init_holds_nothing(policy: nsbox.Policy) -> None:
    """Pid 1 of a sandbox holds no descriptor but pidfds, a signalfd and its pipe, whatever the caller has open and the command was given."""
    fd = os.open("/", os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        with nsbox.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[fd], policy=policy) as p:
            init = p.sandbox.init_pid
            # It can't be inspected from inside; from here it can, since its user namespace is this user's.
            held = {name: os.readlink(f"/proc/{init}/fd/{name}") for name in os.listdir(f"/proc/{init}/fd")}
            assert all(re.search("pidfd|pipe|signalfd", what) for what in held.values()), held
            assert len(held) <= 4
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "names", [{"user": "no-such"}, {"group": "no-such"}, {"extra_groups": [0, "no-such"]}], ids=str
)
def test_names_that_dont_exist_leave_no_pipes(names: dict[str, Any]) -> None:
    """The error is subprocess's, which itself leaves its pipes open (CPython 3.11 to 3.13)."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyError, match="no-such"):
        nsbox.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **names)
    assert os.listdir("/proc/self/fd") == before
