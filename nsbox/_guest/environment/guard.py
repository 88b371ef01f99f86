"""Keeps a warm interpreter from importing what its policy's commands can write to: it has more rights than they have.

The interpreter itself is trusted, and so are its imports and its setup. They don't try to get past this. But they may
lead to a module that a command has put in their way: by a directory in sys.path, a finder of an editable package, or a
link. So the loaders look at each file before they run it, as long as the interpreter lives: Python itself imports some
modules when it first needs them, and the setup may have put the workspace on their way. In a branch, the loaders are as
they were.
"""

from __future__ import annotations

import os
import stat
import zipimport
from collections.abc import Iterable
from importlib import machinery
from importlib.util import cache_from_source
from typing import Any

_MOST_LINKS = 40


class Guard:
    """Knows where commands can write.

    found: the first path that was refused; "" if none was.
    """

    def __init__(self, regions: Iterable[tuple[str, bool]]) -> None:
        """Nothing is guarded yet.

        regions: directories and files, and whether commands can write to what is there. The innermost one counts.
        """
        self._regions = sorted(((path, bool(is_open)) for path, is_open in regions), key=lambda row: -len(row[0]))
        self.found = ""
        self._undo: list[Any] = []

    def _region(self, path: str) -> tuple[str, bool]:
        for place, is_open in self._regions:
            if place in ("/", path) or path.startswith(place + "/"):
                return place, is_open
        return "/", False

    def is_open(self, path: str) -> bool:
        """Return whether commands can change what is at a path, or a link on the way."""
        names = os.path.abspath(path).split("/")[::-1]
        at, links = "", 0
        while names:
            name = names.pop()
            if name == "..":
                at = os.path.dirname(at).rstrip("/")
            if name in ("", ".", ".."):
                continue
            inner = f"{at}/{name}"
            place, is_open = self._region(inner)
            target = _link(inner)
            if is_open and (target is not None or inner != place or not names):
                return True
            if target is None:
                at = inner
                continue
            links += 1
            if links > _MOST_LINKS:
                return True
            if target.startswith("/"):
                at = ""
            names += target.split("/")[::-1]
        return False

    def check(self, path: str) -> None:
        """Raise ImportError for a file that commands can write to."""
        if self.is_open(path):
            self.found = self.found or path
            raise ImportError(f"the policy's commands can write to {path}", path=path)

    def install(self) -> None:
        """Have the loaders look."""
        source: Any = machinery.SourceFileLoader
        self._wrap(source, "get_code", lambda loader, name: _cache(loader.path))
        self._wrap(source, "get_code", lambda loader, name: loader.path)
        self._wrap(machinery.SourcelessFileLoader, "get_code", lambda loader, name: loader.path)
        self._wrap(machinery.ExtensionFileLoader, "create_module", lambda loader, spec: loader.path)
        self._wrap(zipimport.zipimporter, "get_code", lambda loader, name: loader.archive)
        self._wrap(zipimport.zipimporter, "exec_module", lambda loader, module: loader.archive)
        self._wrap(zipimport.zipimporter, "load_module", lambda loader, name: loader.archive)

    def _wrap(self, kind: Any, name: str, path_of: Any) -> None:
        own, check = vars(kind).get(name), self.check
        function = getattr(kind, name, None)
        if function is None:  # zipimport has no exec_module before 3.10, and no load_module from 3.15 on
            return

        def wrapped(loader: Any, what: Any) -> Any:
            check(path_of(loader, what))
            return function(loader, what)

        setattr(kind, name, wrapped)
        self._undo.append(lambda: delattr(kind, name) if own is None else setattr(kind, name, own))

    def remove(self) -> None:
        """Put the loaders back as they were."""
        while self._undo:
            self._undo.pop()()


def _cache(path: str) -> str:
    """Return where Python looks for the compiled form of a source, which it runs instead."""
    try:
        return cache_from_source(path)
    except NotImplementedError:  # it looks for none
        return path


def _link(path: str) -> str | None:
    try:
        return os.readlink(path) if stat.S_ISLNK(os.lstat(path).st_mode) else None
    except OSError:
        return None
