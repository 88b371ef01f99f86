"""The standard library's own things, where a program has put something else in their place before nsbox is used.

A test's fake stands where subprocess.Popen was; gevent replaces what waits. nsbox needs the originals: to be a subclass
of one, to wait for what the replacement doesn't know, to hand a descriptor to another process.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def original(module: ModuleType, name: str) -> Any:
    """Return what a module's name stood for before gevent's patches; None: this system has no such thing."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(module, name, None) if monkey is None else monkey.get_original(module.__name__, name)


def has_gevent() -> bool:
    """Say if gevent's patches are in force: what blocks holds up all greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("subprocess") or monkey.is_module_patched("select"))


def popen() -> Any:
    """Return the class Popen that the standard library's subprocess defines, whatever is there under its name now."""
    import subprocess

    if _is_own(subprocess.Popen, subprocess):
        return subprocess.Popen
    found = original(subprocess, "Popen")
    if _is_own(found, subprocess):
        return found
    for kind in object.__subclasses__():  # whoever puts it back has it; if nobody will, its module's code is the same
        if kind.__name__ == "Popen" and _is_own(kind, subprocess):
            return kind
    return _again(subprocess)


def _is_own(kind: Any, module: ModuleType) -> bool:
    start = vars(kind).get("_execute_child") if isinstance(kind, type) else None
    return getattr(start, "__globals__", None) is vars(module) and kind.__module__ == module.__name__


def _again(module: ModuleType) -> Any:
    """Return the class, executed once more in its module; nobody has it any longer."""
    import ast

    with open(module.__file__ or "", encoding="utf-8") as file:
        tree = ast.parse(file.read())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Popen"]
    names: dict[str, Any] = {}
    exec(compile(tree, module.__file__ or "", "exec"), vars(module), names)
    return names["Popen"]
