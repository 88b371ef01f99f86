"""Puts the program into a directory, as bwrap, for a PATH."""

from __future__ import annotations

import errno
import os
import shutil

from nsbox._bwrap import program

_OURS = b"nsbox's bwrap, in C"  # csrc/bwrap/program/main.c
_EARLIER = b"made by `nsbox bwrap --install`"  # the mark of the Python programs that versions before 0.2 wrote


def is_ours(path: str) -> bool:
    """Return whether a file is a bwrap that nsbox has made."""
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 20)
    except OSError:
        return False
    return _OURS in content if content.startswith(b"\x7fELF") else _EARLIER in content[:400]


def is_on_path(directory: str) -> bool:
    """Return whether PATH has a directory, by any name."""
    return any(os.path.isdir(at) and os.path.samefile(at, directory) for at in os.environ.get("PATH", "").split(":"))


def install(directory: str, *, force: bool = False) -> str:
    """Return the path of a program `bwrap` that it copies to a directory, which it makes if necessary.

    The copy needs neither Python nor nsbox. An older one of nsbox's is replaced.

    force: replace any other bwrap too.

    Raises FileExistsError for a bwrap of others', OSError if it can't be written, and UnavailableError where it
    couldn't work.
    """
    source = program()
    path = os.path.join(os.path.abspath(directory), "bwrap")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if os.path.lexists(path) and not force and not is_ours(path):
        raise FileExistsError(
            errno.EEXIST, "there is already a bwrap, which nsbox hasn't made (--force replaces it)", path
        )
    temporary = f"{path}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
    except OSError as error:  # it is about the directory, not the temporary name
        raise OSError(error.errno, error.strerror, os.path.dirname(path)) from None
    try:
        with open(fd, "wb") as file, open(source, "rb") as original:
            shutil.copyfileobj(original, file)
            os.fchmod(fd, 0o755)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path
