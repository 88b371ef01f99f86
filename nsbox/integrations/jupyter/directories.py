"""Directories of kernels: nsbox-kernel-* in the directory for temporary files, each with a kernel's sockets.

A socket's path has about a hundred characters at most (unix(7)). If that of the directory for temporary files is too
long, these directories are in /tmp.

A directory is locked (flock(2)) as long as its process lives. If that is killed, the lock is free, and the next process
of the same user that makes one removes what is left. A kernel can't take the lock: its sandbox shows what is in the
directory, not the directory itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import weakref

from nsbox._files.files import Tree, remove

_PREFIX = "nsbox-kernel-"
_ATTEMPTS = 100
_SHORT = "/tmp"
_LONGEST = 103  # bytes of a socket's path, on Linux and on macOS
_SOCKET = f"/{_PREFIX}12345678/sockets/s-99"  # as long as such a path gets
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class KernelDirectory:
    """A directory for one kernel. It is removed by remove(), or else when it is freed or this process ends.

    path: where it is.
    shown: a directory in it that the kernel may read.
    sockets: a directory in it that the kernel may write to.
    """

    def __init__(self) -> None:
        """Make it, after removing those whose processes were killed. Raises OSError."""
        sweep()
        self.path, lock = _made()
        self._finalizer = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())
        self.shown, self.sockets = (os.path.join(self.path, name) for name in ("connection", "sockets"))
        for path in (self.shown, self.sockets):
            os.mkdir(path, 0o700)

    def remove(self) -> None:
        """Remove it. Doing so twice isn't an error."""
        self._finalizer()


def sweep() -> None:
    """Remove this user's directories that no process holds. What can't be removed stays."""
    base = _base()
    for name in os.listdir(base):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                _remove_left(os.path.join(base, name))


def _base() -> str:
    """Return where to make directories: a path that leaves a socket's name short enough. Raises OSError."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base + _SOCKET)) <= _LONGEST:
        return base
    if not os.access(_SHORT, os.R_OK | os.W_OK | os.X_OK):
        most = _LONGEST - len(_SOCKET)
        raise OSError(
            errno.ENAMETOOLONG, f"TMPDIR is too long for sockets: name a directory of at most {most} characters", base
        )
    return _SHORT


def _made() -> tuple[str, int]:
    """Make a directory; return its path, and a descriptor with its lock. Raises OSError."""
    base = _base()
    for _ in range(_ATTEMPTS):
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # another process took it for one that was left
            return path, _locked(path)
    raise FileExistsError(f"another process removes each directory {path} that is made")


def _locked(path: str) -> int:
    """Return a descriptor with the lock of a directory; raises BlockingIOError if another process has it."""
    fd = os.open(path, _OPEN)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.lstat(path)):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove_left(path: str) -> None:
    if os.lstat(path).st_uid != os.geteuid():
        return
    fd = _locked(path)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            _remove(path, fd)
    finally:
        os.close(fd)


def _remove_own(path: str, lock: int, creator: int) -> None:
    """Remove a directory of this process. In a forked child it stays: it is the parent's."""
    if os.getpid() == creator:
        with contextlib.suppress(OSError):
            _remove(path, lock)
    os.close(lock)


def _remove(path: str, fd: int) -> None:
    """Remove a directory, and what a kernel left in it. fd: a descriptor of it. No link is followed."""
    with Tree(fd) as tree:
        for name in os.listdir(fd):
            remove(tree, name)
    os.rmdir(path)
