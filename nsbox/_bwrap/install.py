"""Puts an executable named bwrap into a directory, for a PATH."""

from __future__ import annotations

import errno
import os
import shlex
import sys

import _cffi_backend

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.paths import PACKAGE
from nsbox._core import abi

_MARK = "made by `nsbox bwrap --install`"
_CODE = """\
from posix import _exit, getppid
parent = getppid()
import gc, sys
gc.disable()
sys.path[:0] = {paths!r}
from _frozen_importlib import ModuleSpec, _load
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader
try:
    for name, path in {extensions!r}:
        _load(ModuleSpec(name, ExtensionFileLoader(name, path), origin=path))
except ImportError:
    pass  # nsbox imports it like any other module, and says what is missing
{front}from nsbox._bwrap import main
_exit(main(sys.argv{shift}, parent))
"""
_FRONT = """\
path = {path!r}
exec(SourceFileLoader("nsbox", path).get_code("nsbox"), {{"__name__": "front", "__file__": path}})
"""
_LONGEST = 127  # of a first line, before Linux 5.1


def script() -> str:
    """Return a program for this interpreter and this installation of nsbox, which looks at nothing else (-I -S).

    All of its imports are in one file (except in an editable install, which has none) and two compiled modules that are
    loaded by path: searching for modules takes longer than making a sandbox. It ends with the command, so it collects
    no garbage and tears nothing down.
    """
    assert abi.extension is not None
    modules = {"_cffi_backend": _cffi_backend, "nsbox._nsbox": abi.extension}
    extensions = [(name, os.path.abspath(str(module.__file__))) for name, module in modules.items()]
    homes = (os.path.dirname(PACKAGE), os.path.dirname(extensions[0][1]))
    path = os.path.join(PACKAGE, "_bwrap", "front.py")
    front = _FRONT.format(path=path) if os.path.exists(path) else ""
    given = {"paths": list(dict.fromkeys(homes)), "extensions": extensions, "front": front}
    first = f"#!{sys.executable} -IS\n"
    if len(first) <= _LONGEST and not set(sys.executable) & set(" \t\n"):
        return f"{first}# bubblewrap's command line, {_MARK}\n{_CODE.format(**given, shift='')}"
    code = shlex.quote(_CODE.format(**given, shift="[1:]"))
    command = f'exec {shlex.quote(sys.executable)} -IS -c {code} "$0" "$@"'
    return f"#!/bin/sh\n# bubblewrap's command line, {_MARK}\n{command}\n"


def install(directory: str) -> str:
    """Return the path of a program `bwrap` that it writes to a directory, which it makes if necessary.

    An older one of nsbox's is replaced. Raises FileExistsError for any other, OSError if it can't be written, and
    UnavailableError where it couldn't work.
    """
    if abi.problem or not abi.on_linux:
        raise UnavailableError(Reason(abi.problem or "bwrap makes namespaces, which only Linux has"))
    path = os.path.join(os.path.abspath(directory), "bwrap")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path) and not _is_ours(path):
        raise FileExistsError(errno.EEXIST, "there is already a bwrap, which nsbox hasn't made", path)
    temporary = f"{path}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
    except OSError as error:  # it is about the directory, not the temporary name
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
