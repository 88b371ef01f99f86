"""Writing files: write() replaces one in one step, append() adds to its end, and edit() replaces a part."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from nsbox._base.descriptors import write_all
from nsbox._base.display import type_phrase
from nsbox._base.errors import AccessError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._files.attributes import attributes_of, give
from nsbox._filetools.difference import MOST_BYTES, unified
from nsbox._filetools.edit import CODECS, EditError, Text, replaced
from nsbox._filetools.files import READ, check_regular, is_same, reopened, set_mode
from nsbox._filetools.ground import named
from nsbox._filetools.records import FileChange

if TYPE_CHECKING:
    from typing import Any, Literal

    from nsbox._filetools.files import Files, Path, Target

_MOST_EDITED = 64 << 20  # bytes of a file


def write(files: Files, path: Path, content: str | bytes, *, parents: bool) -> FileChange:
    """Replace a file, or make it."""
    data = _encoded(content)
    target = files.target(path, write=True)
    _check_name(target)
    files.check_written(target.inside, len(data), target.shown)
    with files.parent(target, parents=parents) as (directory, inside):
        files.check_written(os.path.join(inside, target.name), len(data), target.shown)
        old = _status(target, directory)
        before = None if old is None else _contents(target, directory, MOST_BYTES)
        put(target, directory, data, old)
    if old is None:
        return FileChange(target.shown, "created", *unified(None, data, target.shown))
    if before is None:
        return FileChange(target.shown, "changed")
    kind: Literal["changed", "unchanged"] = "unchanged" if before == data else "changed"
    return FileChange(target.shown, kind, *unified(before, data, target.shown))


def append(files: Files, path: Path, content: str | bytes, *, parents: bool) -> FileChange:
    """Write at the end of a file, or make it."""
    data = _encoded(content)
    target = files.target(path, write=True)
    _check_name(target)
    files.check_name(target.inside, target.shown)
    with files.parent(target, parents=parents) as (directory, inside):
        old = _status(target, directory)
        size = len(data) + (0 if old is None else old.st_size)
        for name in dict.fromkeys((target.inside, os.path.join(inside, target.name))):
            files.check_written(name, size, target.shown)
        if old is None:
            put(target, directory, data, None)
            return FileChange(target.shown, "created", *unified(None, data, target.shown))
        fd = _opened(target, directory, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_nlink > 1:
                raise AccessError(
                    target.shown,
                    "has other names (hard links), which would change too; write() replaces this one alone",
                )
            write_all(fd, data)
        except OSError as error:
            raise _kept(error, target.shown) from None
        finally:
            os.close(fd)
    return FileChange(target.shown, "changed" if data else "unchanged", *unified(b"", data, target.shown))


def edit(files: Files, path: Path, old: str, new: str, count: int | None, encoding: str) -> FileChange:
    """Replace occurrences of a text."""
    target = files.target(path, write=True)
    _check_name(target)
    files.check_name(target.inside, target.shown)
    with files.parent(target) as (directory, inside):
        for name in dict.fromkeys((target.inside, os.path.join(inside, target.name))):
            files.check_written(name, 0, target.shown)
        fd = _opened(target, directory, READ)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            data = b"" if status.st_size > _MOST_EDITED else file.read(_MOST_EDITED + 1)
            is_unchanged = is_same(status, os.fstat(fd))
        if max(status.st_size, len(data)) > _MOST_EDITED:
            raise EditError(target.shown, f"is too large to be edited: {_MOST_EDITED} bytes at most")
        if not is_unchanged:
            raise EditError(target.shown, "changed while it was read; try again")
        text = Text.decoded(data, encoding, target.shown)
        result, number = replaced(text, old, new, count, target.shown)
        edited = text.encoded(result)
        for name in dict.fromkeys((target.inside, os.path.join(inside, target.name))):
            files.check_written(name, len(edited), target.shown)
        put(target, directory, edited, status, is_edit=True)
    after = edited
    if encoding.lower().replace("_", "-") not in CODECS:
        data, after = text.body.encode("utf-8", "replace"), result.encode("utf-8", "replace")
    return FileChange(target.shown, "changed", *unified(data, after, target.shown), count=number)


# ---- steps


def _encoded(content: Any) -> bytes:
    if not isinstance(content, str | bytes | bytearray | memoryview):
        raise TypeError(f"content is {type_phrase(content)}, must be a str or bytes")
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)


def _check_name(target: Target) -> None:
    if not target.name or target.shown.endswith("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target.shown)


def _status(target: Target, directory: int) -> os.stat_result | None:
    """Return the status of a regular file; None: nothing is there. Raises OSError, and AccessError for a link."""
    try:
        status = os.lstat(target.name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise named(error, target.shown) from None
    if stat.S_ISLNK(status.st_mode):
        raise AccessError(target.shown, "is a symlink; write to the file that it leads to")
    check_regular(status, target.shown)
    return status


def _opened(target: Target, directory: int, flags: int) -> int:
    """Open the regular file of this name; raises OSError, and AccessError for anything else."""
    try:
        handle = os.open(target.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise named(error, target.shown) from None
    try:
        status = os.fstat(handle)
        if stat.S_ISLNK(status.st_mode):
            raise AccessError(target.shown, "is a symlink; write to the file that it leads to")
        check_regular(status, target.shown)
        return reopened(handle, flags, target.shown)
    finally:
        os.close(handle)


def _contents(target: Target, directory: int, most: int) -> bytes | None:
    """Return what is in the file now; None if it can't be read, or is larger than `most`."""
    with contextlib.suppress(OSError), open(_opened(target, directory, READ), "rb") as file:
        data = file.read(most + 1)
        return data if len(data) <= most else None
    return None


def put(target: Target, directory: int, data: bytes, old: os.stat_result | None, *, is_edit: bool = False) -> None:
    """Give a file new contents in one step: make a new file, and rename it over the old one.

    old: the status of the old file, whose permissions and attributes are kept; None: there is no such file.
    is_edit: whether to refuse if the old file has changed since it had this status.
    """
    new, ground = f".nsbox-{os.urandom(8).hex()}", target.ground
    mode = 0o666 if old is None else 0o600
    try:
        fd = ground.make_file(directory, new, mode)
    except OSError as error:
        raise _kept(error, target.shown) from None
    try:
        with open(fd, "wb") as file:
            if old is not None:
                _take_over(target, directory, fd, old)
            file.write(data)
        now = _status(target, directory) if is_edit else None
        if is_edit and (now is None or old is None or not is_same(old, now)):
            raise EditError(target.shown, "has changed meanwhile, and wasn't edited; read it again")
        ground.move(directory, new, directory, target.name, replace=True)
    except BaseException as error:
        with contextlib.suppress(OSError):
            ground.remove(directory, new, is_directory=False)
        if isinstance(error, OSError):
            raise _kept(error, target.shown) from None
        raise


def _take_over(target: Target, directory: int, fd: int, old: os.stat_result) -> None:
    """Give a new file the owner, the mode and the attributes of the one that it replaces."""
    if os.geteuid() == 0:
        os.fchown(fd, old.st_uid, old.st_gid)
    set_mode(fd, stat.S_IMODE(old.st_mode) & 0o777)
    try:
        handle = os.open(target.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:  # it has just gone
        return
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            give(fd, attributes_of(f"/proc/self/fd/{handle}", target.name))
    finally:
        os.close(handle)


def _kept(error: OSError, shown: str) -> OSError:
    """Return the error with the path that the caller gave; an error of nsbox's stays as it is."""
    return (
        error if isinstance(error, AccessError) or type(error).__module__.startswith("nsbox") else named(error, shown)
    )
