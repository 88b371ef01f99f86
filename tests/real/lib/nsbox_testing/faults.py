"""Faults on purpose: stop at a chosen system call of a spawn, then let it fail, or kill a process.

A seccomp filter in the caller, inherited by all processes that its spawn makes, hands each system call whose instruction
lies in nsbox's own code to this process (SECCOMP_RET_USER_NOTIF), which decides what comes of it. Python's, the C
library's and the command's own calls are none of these. Needs no privileges.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import select
import signal
import socket
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nsbox._core import linux
from nsbox_testing.leftovers import status

_NR_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(platform.machine(), 0)
_INFALLIBLE = {
    "x86_64": {"rt_sigaction": 13, "rt_sigprocmask": 14, "umask": 95, "futex": 202, "exit": 60, "exit_group": 231},
    "aarch64": {"rt_sigaction": 134, "rt_sigprocmask": 135, "umask": 166, "futex": 98, "exit": 93, "exit_group": 94},
}
INFALLIBLE = frozenset(_INFALLIBLE.get(platform.machine(), {}).values())
"""Numbers of the calls that can't fail with the arguments that they are given, so that nobody checks them."""

_OTHERS = {
    "x86_64": {
        **{"pivot_root": 155, "execveat": 322, "ppoll": 271, "prctl": 157, "umount2": 166},
        **{"write": 1, "unshare": 272, "fsopen": 430, "open_tree_attr": 467, "socketpair": 53, "recvmsg": 47},
        **{"getpid": 39, "move_mount": 429, "open_tree": 428, "openat2": 437, "mount_setattr": 442},
    },
    "aarch64": {
        **{"pivot_root": 41, "execveat": 281, "ppoll": 73, "prctl": 167, "umount2": 39},
        **{"write": 64, "unshare": 97, "fsopen": 430, "open_tree_attr": 467, "socketpair": 199, "recvmsg": 212},
        **{"getpid": 172, "move_mount": 429, "open_tree": 428, "openat2": 437, "mount_setattr": 442},
    },
}
NUMBERS = _OTHERS.get(platform.machine(), {})
"""Of the calls that tests name."""

_FUTEX = _INFALLIBLE.get(platform.machine(), {}).get("futex", -1)
EXIT = _INFALLIBLE.get(platform.machine(), {}).get("exit_group", -1)
UMASK = _INFALLIBLE.get(platform.machine(), {}).get("umask", -1)

THOROUGH = int(os.environ.get("NSBOX_THOROUGH", "0"))
"""How much more to try than a run of all tests has time for: 1 or 2, by the environment."""

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RET_NOTIFY, _RET_ALLOW = 0x7FC00000, 0x7FFF0000
_RECV, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_WALL = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def is_possible() -> bool:
    """Say whether this kernel and processor have what is needed."""
    return _NR_SECCOMP != 0 and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def _code_ranges() -> list[tuple[int, int]]:
    """Return the addresses of nsbox's code: the extension's in this process, and that of pid 1's program."""
    from nsbox import _nsbox

    ranges = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(str(_nsbox.__file__)) and "x" in line.split()[1]:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                ranges.append((start, end))
    assert ranges, f"{_nsbox.__file__} isn't mapped: it has been replaced since it was loaded"
    image = linux.init_image()
    offset, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    for i in range(count):
        kind, flags, _, address, _, _, in_memory, _ = struct.unpack_from("<IIQQQQQQ", image, offset + i * size)
        if kind == 1 and flags & 1:  # PT_LOAD, executable
            ranges.append((address & ~4095, address + in_memory))
    return ranges


def _filter(numbers: Iterable[int] = ()) -> bytes:
    """Return a program that notifies for system calls from these addresses, and allows all others.

    numbers: of calls that it notifies for wherever they come from.
    """
    code = b""
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    code += struct.pack("<HBBI", load, 0, 0, 0)  # the number
    for number in numbers:
        code += struct.pack("<HBBI", equal, 0, 1, number)
        code += struct.pack("<HBBI", answer, 0, 0, _RET_NOTIFY)
    for start, end in _code_ranges():
        assert start >> 32 == (end - 1) >> 32
        code += struct.pack("<HBBI", load, 0, 0, 12)  # the high half of the instruction pointer
        code += struct.pack("<HBBI", equal, 0, 4, start >> 32)
        code += struct.pack("<HBBI", load, 0, 0, 8)
        code += struct.pack("<HBBI", at_least, 0, 2, start & 0xFFFFFFFF)
        code += struct.pack("<HBBI", at_least, 1, 0, end & 0xFFFFFFFF)
        code += struct.pack("<HBBI", answer, 0, 0, _RET_NOTIFY)
    return code + struct.pack("<HBBI", answer, 0, 0, _RET_ALLOW)


def _install(numbers: Iterable[int] = ()) -> int:
    """Install the filter in this process; return the descriptor where its notifications arrive."""
    code = _filter(numbers)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    assert _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    fd = _libc.syscall(_NR_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.c_char_p(program))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(fd)


@dataclass(frozen=True)
class Call:
    """One system call that is about to be made."""

    role: str  # caller, mediator, helper, init, command, branch
    number: int
    nth: int  # of this number by this role, from 0: the same in each run, whatever the others do meanwhile
    args: tuple[int, ...]
    pid: int = 0  # another one in each run

    def is_(self, other: Call) -> bool:
        """Say whether this is the same call in another run."""
        return (self.role, self.number, self.nth) == (other.role, other.number, other.nth)


Decision = Callable[["Call", "Spawn"], int | Callable[[], bool] | None]
"""Returns an errno to fail the call with, or None to let it be made; may kill processes before. Or what is asked again and
again, until it says that the call may be made."""


class Spawn:
    """A function that runs in a fork of this process, each system call of its spawns under control.

    below: how many pid namespaces are between ours and that of the sandbox; a process in one of these is a helper.
    numbers: of calls that are controlled in other code than nsbox's extension too, such as a branch's.
    """

    def __init__(
        self, function: Callable[[], Any], decide: Decision, below: int = 0, numbers: Iterable[int] = ()
    ) -> None:
        self._decide = decide
        self._depth = below + 1
        self._roles: dict[int, str] = {}
        self._pidfds: dict[str, int] = {}
        self._made: Counter[tuple[str, int]] = Counter()  # calls, by role and number
        self.calls: list[Call] = []
        self._held: list[tuple[int, Callable[[], bool]]] = []
        ours, theirs = socket.socketpair()
        self.caller = os.fork()
        if self.caller == 0:
            ours.close()
            _child(function, theirs, numbers)
        theirs.close()
        self._socket = ours
        self._name(self.caller, "caller")
        text, fds, _, _ = socket.recv_fds(ours, 1 << 16, 1)
        if not fds:
            os.waitpid(self.caller, 0)
            ours.close()
            os.close(self._pidfds["caller"])
            raise AssertionError(json.loads(text)["error"])
        self._listener = fds[0]
        self._answer = b""

    def run(self, patience: float = 30.0, watch: Callable[[], object] = lambda: None) -> Any:
        """Serve system calls until every process of it is gone and reaped; return what the function returned.

        None stands for a caller that was killed. Needs nsbox_testing.running.Orphans to be active. watch is called now and
        then.
        """
        end = time.monotonic() + patience
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._socket, select.POLLIN)
        statuses = {}
        try:
            while True:
                try:
                    pid, state = os.waitpid(-1, _WALL | os.WNOHANG)
                except ChildProcessError:
                    break
                if pid:
                    statuses[pid] = state
                    continue
                if time.monotonic() > end:
                    raise AssertionError(f"still alive after {patience} s: {self._alive()}")
                watch()
                self._release()
                # Ends aren't among the events: a short limit, after which the reaping is tried again.
                for fd, event in poller.poll(2):
                    if fd == self._listener and event & select.POLLIN:
                        self._serve()
                    elif fd == self._listener:
                        poller.unregister(self._listener)
                    elif fd == self._socket.fileno():
                        data = self._socket.recv(1 << 16)
                        self._answer += data
                        if not data:
                            poller.unregister(self._socket)
            self._answer += b"".join(iter(lambda: self._socket.recv(1 << 16), b""))
        finally:
            for role in self._pidfds:
                self.kill(role)  # if this has failed; they are gone otherwise
            for fd in (self._listener, *self._pidfds.values()):
                os.close(fd)
            self._socket.close()
        if not self._answer:
            assert os.WIFSIGNALED(statuses[self.caller]), f"the caller ended without an answer: {statuses[self.caller]}"
            return None
        answer = json.loads(self._answer)
        assert "error" not in answer, answer["error"]
        return answer["ok"]

    def kill(self, role: str) -> bool:
        """Kill a process of the set-up; False if there is none yet, or no more."""
        if role not in self._pidfds:
            return False
        try:
            signal.pidfd_send_signal(self._pidfds[role], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def is_gone(self, role: str) -> bool:
        """Say whether a process of the set-up was there and has ended."""
        return role in self._pidfds and bool(select.select([self._pidfds[role]], [], [], 0)[0])

    def _release(self) -> None:
        ready = [held for held in self._held if held[1]()]
        self._held = [held for held in self._held if held not in ready]
        for ident, _ in ready:
            self._reply(ident, None)

    def _alive(self) -> str:
        return ", ".join(f"{role} {pid} {status(pid).get('State')}" for pid, role in self._roles.items() if status(pid))

    def _name(self, pid: int, role: str) -> None:
        self._roles[pid] = role
        if role in self._pidfds:  # of an earlier spawn, if the function makes several
            os.close(self._pidfds[role])
        self._pidfds[role] = os.pidfd_open(pid)

    def _serve(self) -> None:
        request = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECV, request)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return  # killed meanwhile
            raise
        ident, pid, _, number, _, _, *args = struct.unpack("<QIIiIQ6Q", request)
        try:
            role = self._role(pid)
        except ProcessLookupError:
            return  # killed meanwhile
        call = Call(role, number, self._made[role, number], tuple(args), pid)
        self._made[role, number] += 1
        self.calls.append(call)
        decision = self._decide(call, self)
        if callable(decision):
            self._held.append((ident, decision))
        else:
            self._reply(ident, decision)

    def _reply(self, ident: int, failure: int | None) -> None:
        reply = (
            struct.pack("<QqiI", ident, 0, 0, _CONTINUE)
            if failure is None
            else struct.pack("<QqiI", ident, 0, -failure, 0)
        )
        with contextlib.suppress(FileNotFoundError):  # the one that waited for it has been killed
            fcntl.ioctl(self._listener, _SEND, reply)

    def _role(self, pid: int) -> str:
        if pid not in self._roles and os.path.exists(f"/proc/{self.caller}/task/{pid}"):
            self._roles[pid] = "caller"  # another thread of it
        if pid not in self._roles:
            inner = status(pid).get("NSpid", "").split()
            outer = status("self").get("NSpid", "").split()
            if len(inner) == len(outer) + self._depth:
                role = "init" if inner[-1] == "1" else "command"
            elif len(inner) > len(outer) + self._depth + 1:
                role = "branch"
            else:
                role = "helper" if "mediator" in self._pidfds else "mediator"
            self._name(pid, role)
        return self._roles[pid]


def _child(function: Callable[[], Any], theirs: socket.socket, numbers: Iterable[int]) -> None:
    answer: dict[str, Any] = {}
    try:
        listener = _install(numbers)
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        answer["ok"] = function()
    except BaseException:
        answer = {"error": traceback.format_exc()}
    finally:
        theirs.sendall(json.dumps(answer).encode())
        os._exit(0)


def samples(calls: list[Call], context: int) -> list[Call]:
    """Return the first of each kind of calls: the same number after the same `context` others of the same role.

    Plans repeat themselves: thirty binds are one kind. How often a process sleeps on a futex is a matter of chance.
    """
    calls = [call for call in calls if call.number != _FUTEX]
    chosen, known = [], set()
    for role in dict.fromkeys(call.role for call in calls):
        own = [call for call in calls if call.role == role]
        for i, call in enumerate(own):
            kind = (role, *(c.number for c in own[max(0, i - context) : i + 1]))
            if kind not in known:
                known.add(kind)
                chosen.append(call)
    return chosen


def outcome(function: Callable[[], Any]) -> dict[str, Any]:
    """Run a function that spawns; return what came of it, and what it left behind in this process."""
    from nsbox_testing import leftovers

    before = (leftovers.fds(), leftovers.dumpable(), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), os.getcwd())
    try:
        found: dict[str, Any] = {"returned": function()}
    except OSError as error:
        found = {
            "raised": type(error).__name__,
            "errno": error.errno,
            "text": str(error),
            "step": getattr(error, "step", None),
        }
        error.__traceback__ = None
    kept = {fd: what for fd, what in leftovers.fds().items() if before[0].get(fd) != what and fd != leftovers.kept_fd()}
    after = (leftovers.dumpable(), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), os.getcwd())
    found["left"] = [f"descriptor {fd}: {what}" for fd, what in kept.items()]
    found["left"] += [] if after == before[1:] else [f"{before[1:]} became {after}"]
    try:
        pid, state = os.waitpid(-1, _WALL | os.WNOHANG)
        found["left"].append(f"child {pid}, status {state}")
    except ChildProcessError:
        pass
    return found
