"""A pseudo-terminal for a command: the end that the caller keeps, and the other one until the command has it."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import struct
import termios

from nsbox._base.descriptors import high
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._files.files import open_beneath

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from _typeshed import WriteableBuffer

    from nsbox._spawn.way import Way

_STREAMS = ("stdin", "stdout", "stderr")
_NO_SYMLINKS, _BENEATH = 4, 8  # openat2(2)
_PTMX = os.makedev(5, 2)  # ptmx(4)
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441  # ioctl_tty(2): unlock the other end, and open it without its name
_NAMES = ("bufsize", "executable", *_STREAMS)  # Popen's parameters after `args`, in order


class Terminal(io.FileIO):
    r"""The caller's end of a command's terminal, an unbuffered binary file.

    The command reads what you write as if it were typed: b"\x03" is Ctrl-C. You read what the command prints, and b""
    once no process has the terminal open. Closing it hangs up: the command gets SIGHUP.
    """

    def __init__(self, fd: int) -> None:
        """Take a descriptor, which is closed with this."""
        super().__init__(fd, "r+b")

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return window_size(self.fileno())[:2]

    def resize(self, rows: int, columns: int) -> None:
        """Change the size, each number from 0 to 65535, or raise ValueError. The foreground's programs get SIGWINCH."""
        set_window_size(self.fileno(), _checked((rows, columns)))

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, at least one unless it is the end; -1: all up to the end."""
        return self.readall() if size is None or size < 0 else _unless_closed(super().read, size)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer; return how many bytes there were."""
        return _unless_closed(super().readinto, buffer) or 0

    def readall(self) -> bytes:
        """Return everything up to the end."""
        return b"".join(iter(lambda: self.read(65536), b""))


def _unless_closed(read: Any, argument: Any) -> Any:
    """Return what is read; nothing once every process has closed the other side. Linux says EIO then (pty(7))."""
    try:
        return read(argument)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b"" if isinstance(argument, int) else 0


class Pair:
    """A new pseudo-terminal: `terminal` for the caller, and `fd` for the command, to be closed here after the start."""

    def __init__(self, size: tuple[int, ...], way: Way | None = None) -> None:
        ours, theirs = os.openpty() if way is None else way.open_terminal()
        try:
            self.fd = theirs = high(theirs)
            ours = high(ours)
            set_window_size(ours, size)
            self.terminal = Terminal(ours)
        except BaseException:
            os.close(ours)
            os.close(theirs)
            raise

    def close(self) -> None:
        """Close the command's end here."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def abandon(self) -> None:
        """Close both ends: there is no command."""
        self.close()
        self.terminal.close()


def pair(wish: bool | tuple[int, int], way: Way | None = None) -> Pair:
    """Return the terminal for `pty=`: one of 24 rows and 80 columns for True, or of the given (rows, columns).

    way: the one in which the command starts, if it isn't started for a policy alone.

    Raises TypeError for anything else, and ValueError for a number that isn't from 0 to 65535.
    """
    return Pair((24, 80) if wish is True else _checked(wish), way)


def opened_in(root: int) -> tuple[int, int]:
    """Return the two ends of a new terminal of the devpts in another root: its commands have a name for it.

    Commands may have put something else there. So what is opened for reading is the one device that makes terminals,
    by a descriptor, and opening it does nothing else. root: a descriptor of "/". Raises OSError.
    """
    path = open_beneath(root, "dev/pts/ptmx", os.O_PATH, _NO_SYMLINKS | _BENEATH)
    try:
        status = os.fstat(path)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _PTMX:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), "/dev/pts/ptmx")
        ours = os.open(f"/proc/self/fd/{path}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(path)
    try:
        fcntl.ioctl(ours, _TIOCSPTLCK, bytes(4))
        return ours, fcntl.ioctl(ours, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except BaseException:
        os.close(ours)
        raise


def _checked(size: Any) -> tuple[int, int]:
    if not isinstance(size, tuple | list) or len(size) != 2 or not all(type(number) is int for number in size):
        raise TypeError(f"pty is {size!r}, must be a bool, or rows and columns")
    rows, columns = size
    if not (0 <= rows < 65536 and 0 <= columns < 65536):
        raise ValueError(f"a terminal of {rows} rows and {columns} columns: must be 0 to 65535")
    return rows, columns


def options_for(fd: int, more: tuple[Any, ...], options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return Popen's options with the terminal for each stream that isn't given, and the first of these streams.

    more: arguments by position, at most up to the last stream. Raises ValueError for more, and if all three streams are
    given.
    """
    chosen = dict(zip(_NAMES, more, strict=False)) | options
    free = [i for i, name in enumerate(_STREAMS) if chosen.get(name) is None]
    if not free or len(more) > len(_NAMES):
        raise ValueError("pty: stdin, stdout and stderr are all given, so the command would have no terminal")
    return chosen | {_STREAMS[i]: fd for i in free}, free[0]


def window_size(fd: int) -> tuple[int, int, int, int]:
    """Return rows, columns, and the width and height in pixels, of a terminal (ioctl_tty(2))."""
    rows, columns, width, height = struct.unpack("4H", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns, width, height


def set_window_size(fd: int, size: tuple[int, ...]) -> None:
    """Set the size that window_size() returns; width and height default to 0 pixels."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", *size, *(0,) * (4 - len(size))))


def controlled(fd: int, preexec: Callable[[], object] | None) -> Callable[[], None]:
    """Return a preexec_fn that makes a descriptor the terminal of the command's new session, then calls preexec."""

    def claim() -> None:
        fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
        if preexec is not None:
            preexec()

    return claim


def give(fd: int, kernel_id: int) -> None:
    """Make a command with kernel ids of its own the owner of its terminal, so that it can open it by name.

    Such names are /dev/stderr and /dev/console.
    """
    if kernel_id:
        os.fchown(fd, kernel_id, -1)
