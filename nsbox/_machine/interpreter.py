"""Asks where the running interpreter is: its prefixes, the links to it, what it imports from, and this package."""

from __future__ import annotations

import os
import sys

from nsbox._base.paths import PACKAGE, is_below
from nsbox._machine import directories

_PARTS = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg")  # of an interpreter's prefix


def interpreter_links() -> tuple[tuple[str, str], ...]:
    """Return the links on the way to the running interpreter, and where each leads."""
    own = (sys.executable, getattr(sys, "_base_executable", ""), sys.prefix, sys.base_prefix)
    return directories.interpreter_links(name for name in own if name)


def own_prefixes() -> tuple[str, ...]:
    """Return the prefixes of the running interpreter that are directories, without links."""
    candidates = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    real = (os.path.realpath(path) for path in candidates)
    return tuple(dict.fromkeys(path for path in real if path != "/" and os.path.isdir(path)))


def _is_shared_with_home(prefix: str) -> bool:
    """Say if a prefix contains the home directory, or is ~/.local, and so holds more than an interpreter."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return False
    home = os.path.realpath(home)
    return is_below(home, prefix) or prefix == os.path.join(home, ".local")


def prefixes() -> tuple[str, ...]:
    """Return what is shown of these prefixes; only the interpreter's own parts if a home directory is in one."""
    found: list[str] = []
    for prefix in own_prefixes():
        if _is_shared_with_home(prefix):
            parts = (os.path.join(prefix, name) for name in _PARTS)
            found += [part for part in parts if os.path.exists(part) and not os.path.islink(part)]
        else:
            found.append(prefix)
    return tuple(found)


def package(prefixes: tuple[str, ...]) -> str:
    """Return the directory of this package, without links; "" if one of the prefixes contains it."""
    path = os.path.realpath(PACKAGE)
    return "" if any(is_below(path, prefix) for prefix in prefixes) else path


def imports() -> tuple[str, ...]:
    """Return the entries of sys.path that exist, without links."""
    try:
        real = [os.path.realpath(entry) for entry in sys.path if isinstance(entry, str)]  # "" is the current directory
    except FileNotFoundError:  # that is gone
        real = [os.path.realpath(entry) for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    return tuple(path for path in dict.fromkeys(real) if path != "/" and os.path.exists(path))
