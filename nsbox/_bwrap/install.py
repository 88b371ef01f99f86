"""Puts an executable named bwrap into a directory, for a PATH."""

from __future__ import annotations

import errno
import os
import shlex
import sys

import _cffi_backend

_MARK = "made by `nsbox bwrap --install`"
_CODE = """\
from os import _exit, getppid
parent = getppid()
import gc, sys
gc.disable()
sys.path[:0] = {paths!r}
from nsbox._bwrap import main
_exit(main(sys.argv{shift}, parent))
"""
_LONGEST = 127  # of a first line, before Linux 5.1


def script() -> str:
    """Return a program for this interpreter and this installation of nsbox; nothing else is looked at (-I -S).

    It is over when the command is, so that garbage needn't be collected, nor anything taken apart at its end.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    homes = (os.path.dirname(package), os.path.dirname(os.path.abspath(_cffi_backend.__file__)))
    paths = list(dict.fromkeys(homes))
    first = f"#!{sys.executable} -IS\n"
    if len(first) <= _LONGEST and not set(sys.executable) & set(" \t\n"):
        return f"{first}# bubblewrap's command line, {_MARK}\n{_CODE.format(paths=paths, shift='')}"
    code = shlex.quote(_CODE.format(paths=paths, shift="[1:]"))
    command = f'exec {shlex.quote(sys.executable)} -IS -c {code} "$0" "$@"'
    return f"#!/bin/sh\n# bubblewrap's command line, {_MARK}\n{command}\n"


def install(directory: str) -> str:
    """Make the program `bwrap` in a directory; return its path. An older one of ours is replaced, another is not.

    Raises FileExistsError for another, OSError where it can't be written.
    """
    path = os.path.join(os.path.abspath(directory), "bwrap")
    if os.path.lexists(path) and not _is_ours(path):
        raise FileExistsError(errno.EEXIST, "there is a bwrap already that nsbox hasn't made", path)
    temporary = f"{path}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
    except OSError as error:  # about the directory, whatever the name in it
        raise OSError(error.errno, error.strerror, os.path.dirname(path)) from None
    try:
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script())
            os.fchmod(fd, 0o755)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _is_ours(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _MARK in file.read(400)
    except OSError:
        return False
