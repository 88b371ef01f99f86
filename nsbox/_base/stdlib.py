"""Originals of the standard library, in case a program has replaced them before nsbox is used.

A test may have put a fake in place of subprocess.Popen; gevent replaces everything that waits. nsbox needs the
originals: to subclass them, to wait for what the replacement doesn't know, to hand a descriptor to another process.
"""

from __future__ import annotations

import sys

# Not threading's: under gevent that is written in Python, and a signal handler that interrupts its acquire() waits for
# itself (bpo-13697). With this one, all greenlets of a thread are one owner.
from _thread import RLock as RLock

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def original(module: ModuleType, name: str) -> Any:
    """Return what a name in a module stood for before gevent's patches; None if this system doesn't have it."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(module, name, None) if monkey is None else monkey.get_original(module.__name__, name)


def has_gevent() -> bool:
    """Say if gevent's patches are in force; then a call that blocks holds up all greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("subprocess") or monkey.is_module_patched("select"))


def popen() -> Any:
    """Return the class Popen that the standard library's subprocess defines, even if another one has its name now."""
    import subprocess

    if _is_own(subprocess.Popen, subprocess):
        return subprocess.Popen
    unpatched = original(subprocess, "Popen")
    if _is_own(unpatched, subprocess):
        return unpatched
    for kind in object.__subclasses__():  # the original is still here if anything refers to it, so as to put it back
        if kind.__name__ == "Popen" and _is_own(kind, subprocess):
            return kind
    return _again(subprocess)


def _is_own(kind: Any, module: ModuleType) -> bool:
    start = vars(kind).get("_execute_child") if isinstance(kind, type) else None
    return getattr(start, "__globals__", None) is vars(module) and kind.__module__ == module.__name__


def _again(module: ModuleType) -> Any:
    """Return the class, made again by executing its source in its module: the original no longer exists."""
    import ast

    with open(module.__file__ or "", encoding="utf-8") as file:
        tree = ast.parse(file.read())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Popen"]
    names: dict[str, Any] = {}
    exec(compile(tree, module.__file__ or "", "exec"), vars(module), names)
    return names["Popen"]
