"""What happens before code: the environment is activated, modules are imported, and the setup runs.

Usually the warm interpreter does it, once. If the policy's commands can write to the environment, each branch does it
itself, when it has no rights any more.
"""

from __future__ import annotations

import os
import re
import site
import sys
from typing import Any, NamedTuple, Optional

from ..execution import lines_of
from ..interrupts import call

_IMPORT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*( as [^\W\d]\w*)?")
_linecache = sys.modules["linecache"]


class Failure(NamedTuple):
    """What went wrong. stage: "start", "import" or "setup". what: the name of a module, for example."""

    stage: str
    what: str
    error: BaseException
    sources: dict[str, list[str]]


class Prelude:
    """What happens once before the first code."""

    def __init__(self, config: dict[str, Any], namespace: dict[str, Any]) -> None:
        """Hold it.

        config: see boot.py.
        namespace: of the module __main__.
        """
        self._executable = config.get("executable") or ""
        self._imports, self._setup = config.get("imports") or (), config.get("setup") or ""
        self._namespace = namespace

    def failure(self) -> Optional[Failure]:  # noqa: UP045 (3.9)
        """Do it; return what went wrong, or None."""
        _, error = call(activate, self._executable)
        if error is not None:
            return Failure("start", "site", error, {})
        for name in self._imports:
            if not _IMPORT.fullmatch(name):
                return Failure("import", name, ValueError("an import is a module's name, or `NAME as OTHER`"), {})
            failure = self._execute("import", name, f"import {name}")
            if failure is not None:
                return failure
        return self._execute("setup", "setup", self._setup) if self._setup else None

    def _execute(self, stage: str, what: str, source: str) -> Optional[Failure]:  # noqa: UP045
        name = f"<{stage}>"
        lines = lines_of(source)
        vars(_linecache)["cache"][name] = len(source), None, lines, name
        _, error = call(lambda: exec(compile(source, name, "exec", 0, True), self._namespace))
        return None if error is None else Failure(stage, what, error, {name: lines})


def activate(executable: str) -> None:
    """Add the packages of an interpreter to this one, which was started without any (-S), as the module site does.

    executable: what sys.executable is from now on: often a virtual environment's link to this interpreter.
    """
    if executable and executable != sys.executable:
        if sys.version_info >= (3, 11):  # before, it is the environment's
            sys._base_executable = sys.executable  # type: ignore[attr-defined]
        sys.executable = executable
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(executable)))
        if sys.version_info >= (3, 14) and os.path.isfile(f"{prefix}/pyvenv.cfg"):
            sys.prefix = sys.exec_prefix = prefix  # from 3.14 on, site expects this
        sys.modules.pop("sysconfig", None)  # it has looked at the prefix
    if not sys.flags.no_site:
        return  # Python has done it
    is_interactive = "" in sys.path
    sys.path[:] = [path for path in sys.path if path]  # site would make "" the current directory's name
    site.PREFIXES[:] = [sys.prefix, sys.exec_prefix]
    try:
        site.main()
    finally:
        if is_interactive:
            sys.path.insert(0, "")
