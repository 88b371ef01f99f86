"""What a branch does before foreign code: it forgets the interpreter's endings, and becomes what its caller wants.

The interpreter's random numbers would be the same in each branch, so each gets a seed of its own. (The hashes of str
are the interpreter's: CPython makes their seed when it starts.)
"""

from __future__ import annotations

import atexit
import fcntl
import io
import os
import stat
import sys
import time
import weakref
from typing import Any

from .channel import Channel

_modules = sys.modules
_HIGHER = 3
_MANY = 64  # descriptors: where so few are allowed, there may be no room for another line and copies
_known: dict[str, str] = {}
_input = input


class StartError(Exception):
    """A branch can't become what a `go` frame says: `what` names the part, error is an errno."""

    def __init__(self, what: str, error: OSError) -> None:
        """Hold both."""
        super().__init__(str(error))
        self.what, self.error = what, error.errno or 0


def remember_environment() -> None:
    """Note what the interpreter has, so that a branch changes only what differs: each variable takes 3 us."""
    _known.clear()
    _known.update(os.environ)


def settle() -> None:
    """In a new branch: let nothing of the interpreter's run at its end, and change its random numbers."""
    atexit._clear()
    finalize: Any = weakref.finalize
    if getattr(finalize, "_registry", None):
        finalize._registry.clear()
    finalize._registered_with_atexit = False  # so that the first of the code's own registers them
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -c` has it
    tempfile = _modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]
    reseed(os.urandom(32))


def unchanged() -> tuple[dict[str, Any], list[int]]:
    """Return a `go` frame that changes nothing, and the descriptors to go with it, which it puts where they are."""
    env = None if "PYTHONPATH" in _known else dict(_known)  # those paths are a branch's alone
    frame: dict[str, Any] = {
        "op": "go",
        "env": env,
        "cwd": None,
        "argv": None,
        "umask": None,
        "kernel": False,
        "fds": [],
        "adapts": False,  # PYTHONUNBUFFERED would replace sys.stdout for good
    }
    standard = list(range(_HIGHER))
    try:
        for fd in standard:
            os.fstat(fd)
    except OSError:  # the set-up has closed one
        return frame, []
    return frame, standard if os.sysconf("SC_OPEN_MAX") >= _MANY else []


def prepare(frame: dict[str, Any], fds: list[int], line: Channel) -> None:
    """Do what a `go` frame says; raises StartError.

    fds: the three standard ones, then the others, which get the numbers that the frame gives.
    line: it makes place for them.
    """
    what = "descriptors"
    try:
        _place(fds, [0, 1, 2, *frame.get("fds", ())], line)
        what = "environment"
        if frame.get("env") is not None:
            _set_environment(frame["env"])
        if frame.get("adapts", True):
            _adapt_streams()
        what = "cwd"
        if frame.get("cwd") is not None:
            os.chdir(frame["cwd"])
        what = "umask"
        if frame.get("umask") is not None:
            os.umask(frame["umask"])
    except OSError as error:
        raise StartError(what, error) from None
    if frame.get("argv"):
        sys.argv = list(frame["argv"])
    if frame.get("seed"):
        reseed(bytes.fromhex(frame["seed"]))


def _place(fds: list[int], numbers: list[int], line: Channel) -> None:
    """Move descriptors to numbers, from wherever they are, past each other."""
    numbers = numbers[: len(fds)]
    line.avoid(numbers)
    least = max([*numbers, _HIGHER]) + 1
    moved = []
    for fd in fds:
        moved.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least))
        os.close(fd)
    for fd, number in zip(moved, numbers):
        os.dup2(fd, number, inheritable=True)
    for fd in moved:
        os.close(fd)


def _set_environment(env: dict[str, str]) -> None:
    environ = os.environ
    for name in _known.keys() - env.keys():
        environ.pop(name, None)
    for name, value in env.items():
        if _known.get(name) != value:
            environ[name] = value
    if env.get("TZ") != _known.get("TZ"):
        time.tzset()
    if "MPLBACKEND" not in env:
        environ["MPLBACKEND"] = "agg"
    for path in reversed(env.get("PYTHONPATH", "").split(os.pathsep)):  # the interpreter itself ignores it
        if path and path not in sys.path:
            sys.path.insert(1, path)


def _adapt_streams() -> None:
    """As Python does: write everything at once if PYTHONUNBUFFERED is set. Each line is flushed anyway (server.py)."""
    if sys.__stdout__ is not None and os.environ.get("PYTHONUNBUFFERED"):
        raw: Any = io.FileIO(1, "w", closefd=False)  # as `python -u`: no buffer at all
        sys.stdout = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", write_through=True)


def reseed(seed: bytes) -> None:
    """Begin new sequences of random numbers, wherever the interpreter has begun one.

    seed: 16 bytes or more.
    """
    number = int.from_bytes(seed, "little")
    random = _modules.get("random")
    if random is not None:
        random.seed(number)
    numpy = _modules.get("numpy.random")
    if numpy is not None:
        numpy.seed([number >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
    torch = _modules.get("torch")
    if torch is not None:
        torch.manual_seed(number & (1 << 63) - 1)
    ssl = _modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(seed, 0.0)
    uuid: Any = _modules.get("uuid")
    if uuid is not None:
        for name in [name for name in vars(uuid) if name.startswith("_last_timestamp")]:
            setattr(uuid, name, None)
        if (getattr(uuid, "_node", None) or 0) >> 40 & 1:  # a random one: RFC 4122 sets this bit
            uuid._node = None


def replaced_stdin(line: Channel) -> Any:
    """Let a call of a kernel read the file that has come with its frame; return what restore_stdin() needs."""
    fd = line.fds.pop(0)
    before = sys.stdin
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    return before


def restore_stdin(before: Any) -> None:
    """After that call, let there be nothing to read again."""
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(fd, 0)
    if fd:
        os.close(fd)
    sys.stdin = before


def has_no_stdin() -> bool:
    """Return whether standard input is /dev/null, or closed."""
    try:
        status = os.fstat(0)
    except OSError:
        return True
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)


def builtin_input(prompt: object = "") -> str:
    """Return a line of standard input, as Python's own input(); without one say so.

    prompt: printed before.
    """
    try:
        return _input(prompt)
    except EOFError:
        if not has_no_stdin():
            raise
    raise EOFError("input() has nothing to read: this code was given no standard input")


builtin_input.__name__ = builtin_input.__qualname__ = "input"
