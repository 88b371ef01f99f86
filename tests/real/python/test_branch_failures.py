"""Branches that can't be made: what is said, and that nothing is left of them."""

from __future__ import annotations

import platform

import pytest
from nsbox_testing.branches import LOOK, run

from nsbox import Policy, probe

FAILING = """
import resource
def left():
    return [len(os.listdir("/proc/self/fd")), tries(lambda: os.waitpid(-1, os.WNOHANG))]
branch(lambda: 0)
before = left()
def attempt():
    try:
        Running(driver, lambda: 0).wait()
    except Failed as failed:
        return [failed.error, failed.step]
    except OSError as error:
        return [error.errno, -1]
"""


def test_no_descriptor_is_free(policy: Policy) -> None:
    """EMFILE wherever it strikes: nothing is left, and the next branch works."""
    code = (
        FAILING
        + """
top = os.dup(0)
os.close(top)
found = []
for room in range(4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + room, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    found.append(attempt())
resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
result = [found, before == left(), branch(lambda: 1)]
"""
    )
    found, same, works = run(policy, LOOK + code)
    assert [error for error, _ in found] == [24] * 4
    assert (same, works) == (True, 1)


def test_no_descriptor_is_free_in_the_child(policy: Policy) -> None:
    """EMFILE at each place of the child's way in: it fails, and says where; with enough of them it is confined."""
    code = """
import resource
real, hard = os.fork, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
def limited(room):
    def fork():
        pid = real()
        if pid == 0:
            top = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + room, hard))
        return pid
    return fork
found = []
for room in range(24):
    os.fork = limited(room)
    held = Running(driver, lambda: [status()["CapEff"], status()["NoNewPrivs"], os.getpid(), processes()])
    found.append(held.wait())
result = found
"""
    found = run(policy, LOOK + code)
    failed = [row["failed"] for row in found if "failed" in row]
    assert found[: len(failed)] == [{"failed": row} for row in failed]
    assert [error for error, _, _ in failed] == [24] * len(failed)
    assert len(failed) > 3
    rest = [row["value"] for row in found[len(failed) :]]
    assert rest == [["0" * 16, "1", 2, [1, 2]]] * len(rest)
    assert len(rest) > 3


FAULTS = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
with open("/proc/self/maps") as maps:
    code = [line.split()[0] for line in maps if "memfd:library" in line and "x" in line.split()[1]]
(first, last), = [[int(word, 16) for word in text.split("-")] for text in code]
assert first >> 32 == last - 1 >> 32

def program(number):
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    rows = [(load, 0, 0, 0), (equal, 0, 6, number), (load, 0, 0, 12), (equal, 0, 4, first >> 32), (load, 0, 0, 8),
            (at_least, 0, 2, first & 0xFFFFFFFF), (at_least, 1, 0, last & 0xFFFFFFFF), (answer, 0, 0, 0x50005),
            (answer, 0, 0, 0x7FFF0000)]
    return b"".join(struct.pack("<HBBI", *row) for row in rows)

real = os.fork
def failing(number):
    def fork():
        pid = real()
        if pid == 0:
            text = program(number)
            keep = ctypes.create_string_buffer(text, len(text))
            head = ctypes.create_string_buffer(struct.pack("@HP", len(text) // 8, ctypes.addressof(keep)))
            if libc.prctl(22, 2, head, 0, 0):  # PR_SET_SECCOMP
                os._exit(99)
        return pid
    return fork

open("/tmp/mine", "w").close()
kinds = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
own = [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
def confined():
    now = status()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(now[name], 16) == 0, name
    assert (now["NoNewPrivs"], now["Seccomp"]) == ("1", "2")
    assert (os.getpid(), os.getsid(0), processes()) == (2, 2, [1, 2])
    assert not os.path.exists("/tmp/mine")
    assert os.statvfs("/proc/sys").f_flag & os.ST_RDONLY
    assert not set(own) & {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == (1 << 20, 1 << 20)
    return True
import resource
found = []
for number in range(480):
    os.fork = failing(number)
    found.append(Running(driver, confined).wait())
result = found
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_no_step_fails_in_silence(policy: Policy) -> None:
    """Whichever system call of the child's way in fails, it fails as a whole, or is confined all the same."""
    found = run(policy, LOOK + FAULTS)
    failed = {number: row["failed"][0] for number, row in enumerate(found) if "failed" in row}
    assert set(failed.values()) == {5}
    assert [row for row in found if "failed" not in row and row != {"value": True}] == []
    names = {"unshare": 272, "mount_setattr": 442, "fsopen": 430, "move_mount": 429, "capset": 126, "prctl": 157}
    names |= {"setsid": 112, "openat": 257, "write": 1, "setresuid": 117, "setresgid": 119, "prlimit64": 302}
    assert {name for name, number in names.items() if number not in failed} == set()


INTERPRETERS_FAULTS = (
    FAULTS.partition("real = os.fork")[0]
    + """
def inside(number):
    driver.lifeline = os.pidfd_open(os.getpid())
    text = program(number)
    keep = ctypes.create_string_buffer(text, len(text))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(text) // 8, ctypes.addressof(keep)))
    before = sorted(os.listdir("/proc/self/fd"))
    assert libc.prctl(22, 2, head, 0, 0) == 0
    try:
        held = Running(driver, lambda: 1)
        failed = "failed" in held.wait()
    except Failed as error:
        failed = error.error
        for fd in set(os.listdir("/proc/self/fd")) - set(before):
            tries(lambda: os.close(int(fd)))  # the driver's own pipe
    return [failed, tries(lambda: os.waitpid(-1, 0))]

def fork(number):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = inside(number)
        except BaseException as error:
            answer = repr(error)
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)

result = [fork(number) for number in range(480)]
"""
)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_no_step_of_the_interpreter_fails_in_silence(policy: Policy) -> None:
    """The same for the calls that an interpreter makes itself. Whatever fails, no child is left that it didn't reap."""
    found = run(policy, LOOK + INTERPRETERS_FAULTS)
    assert [row for row in found if row[0] not in (5, True, False) or row[1] != 10] == []
    names = {"pipe2": 293, "unshare": 272, "clone": 56, "setns": 308, "fcntl": 72}
    assert {name for name, number in names.items() if found[number][0] != 5} == set()


def test_no_power_over_the_own_pid_namespace(policy: Policy) -> None:
    """An interpreter that can't return to its pid namespace says so, and what it has made has ended."""
    code = """
    driver.lifeline = os.pidfd_open(os.getpid())
    driver.own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        Running(driver, lambda: __import__("signal").pause())
    except Failed as failed:
        result = [failed.error, failed.step]
    """
    assert run(policy, code, start=False) == [1, 38]


def test_depth_of_forks(policy: Policy) -> None:
    """The kernel has a limit on nested Landlock domains, so on forks of forks. It is an error, not a fork in reach."""
    code = """
    def deeper(depth):
        read, write = os.pipe()
        if os.fork() == 0:
            ret = driver.library.nsbox_branch_fork()
            os.write(write, json.dumps([depth, ret] if ret or depth == 30 else deeper(depth + 1)).encode())
            os._exit(0)
        os.close(write)
        os.wait()
        return json.loads(os.read(read, 100))
    result = branch(lambda: deeper(1))
    """
    depth, ret = run(policy, code)
    assert (depth, ret) == (30, 0) if probe().landlock_abi < 6 else (depth > 10, ret) == (True, -7)


def test_no_process_is_free(policy: Policy) -> None:
    """EAGAIN of clone(2), for pid 1, and of fork(2): nothing is left, and the interpreter goes on."""
    code = (
        FAILING
        + """
limit = resource.RLIMIT_NPROC
old = resource.getrlimit(limit)
resource.setrlimit(limit, (1, old[1]))
found = [attempt()]
resource.setrlimit(limit, old)
def no_fork():
    raise BlockingIOError(11, "no")
real, os.fork = os.fork, no_fork
found.append(attempt())
os.fork = real
result = [found, before == left(), branch(lambda: 1)]
"""
    )
    assert run(policy, LOOK + code) == [[[11, 20], [11, -1]], True, 1]


def test_no_pid_namespace_is_free(policy: Policy) -> None:
    """ENOSPC of user.max_pid_namespaces: nothing is left."""
    code = (
        FAILING
        + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0 and libc.mount(b"proc", b"/tmp", b"proc", 0, None) == 0
with open("/tmp/sys/user/max_pid_namespaces", "w") as file:
    file.write("1")
found = attempt()
result = [found, before == left()]
"""
    )
    found, same = run(policy, LOOK + code, more_capabilities=1 << 24)  # CAP_SYS_RESOURCE, to set the limit
    assert found == [28, 4]
    assert same


def test_a_plan_that_cant_be_carried_out(policy: Policy) -> None:
    """A failure in the child says which step and op, and nothing is left."""
    code = (
        FAILING
        + """
import ctypes
read = ctypes.string_at(driver.request, len(driver.request))
at = read.index(b"/dev/pts\\0")
ctypes.memmove(ctypes.addressof(driver.request) + at, b"/usr/x\\0", 7)
held = Running(driver, lambda: 0)
result = [held.wait(), before == left()]
"""
    )
    answer, same = run(policy, LOOK + code)
    error, step, op = answer["failed"]
    assert (error, step) == (116, 41)  # the interpreter has nothing mounted there
    assert op > 0
    assert same


def test_image_that_cant_be_executed(policy: Policy) -> None:
    """A pid 1 that can't be executed is an error of begin, and nothing is left."""
    code = (
        FAILING
        + """
driver.image = os.open("/etc/passwd", os.O_RDONLY)
before = left()
found = attempt()
result = [found, before == left()]
"""
    )
    found, same = run(policy, LOOK + code)
    assert found == [13, 20]
    assert same
