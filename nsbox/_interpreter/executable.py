"""Which interpreter is made warm: the caller's wish, the project's virtual environment, or the one that runs nsbox."""

from __future__ import annotations

import os
import sys

from nsbox._base.display import printable, type_phrase
from nsbox._base.errors import InterpreterError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._layout.layout import project
from nsbox._lookup.pythons import prefix_of
from nsbox._policy.variables import VENVS
from nsbox._tools.verdicts import limited
from nsbox._tools.view import view

if TYPE_CHECKING:
    from nsbox._policy.policy import Policy
    from nsbox._tools.view import View

OLDEST = "3.9"  # _guest/boot.py
_USUAL = "python3"  # in the sandbox's PATH


def check_python(python: object) -> str | None:
    """Return python= as text; raises TypeError and ValueError."""
    if python is None:
        return None
    if not isinstance(python, str | os.PathLike):
        raise TypeError(f"python is {type_phrase(python)}, must be a path, or the name of a program")
    text = os.fspath(python)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"python is {text!r}, must be a path, or the name of a program")
    return text


def executable(policy: Policy, python: str | None) -> str:
    """Return the path of the interpreter as commands see it, or a name to look for in their PATH.

    python: as check_python() returns it.

    Raises InterpreterError if the sandbox doesn't show the one that was chosen.
    """
    seen = view(policy)
    if python is not None:
        if "/" not in python:
            return python
        path = seen.absolute(python)
        _check(seen, path, "python=")
        return path
    venv = _project(policy)
    if venv is not None:
        _check(seen, venv, "the project's virtual environment")
        return venv
    own = sys.executable
    is_usable = bool(own) and not getattr(sys, "frozen", False)  # a frozen program is no interpreter
    return own if is_usable and os.path.isabs(own) and _problem(seen, own) is None else _USUAL


def _project(policy: Policy) -> str | None:
    root = project(policy) if policy.base == "workspace" else None
    for name in VENVS if root is not None else ():
        path = f"{root}/{name}/bin/python"
        if os.path.exists(f"{root}/{name}/pyvenv.cfg") and os.path.lexists(path):
            return path
    return None


def _problem(seen: View, path: str) -> str | None:
    """Return why commands can't execute a path; None if they can, as far as this process sees."""
    place, problem = seen.problem(path, write=False)
    if problem:
        return f"leads to {printable(place.inside)}, which {problem}" if place.inside != path else problem
    if place.here is None or not os.path.exists(place.here):
        return "doesn't exist" if place.inside == path else f"leads to {printable(place.inside)}, which doesn't exist"
    if not os.path.isfile(place.here) or not os.access(place.here, os.X_OK):
        return "is no program"
    return None


def _check(seen: View, path: str, what: str) -> None:
    problem = _problem(seen, path)
    if problem is not None:
        prefix = prefix_of(os.path.realpath(path))
        add = f"read=[{printable(prefix)!r}]" if prefix is not None else "read="
        remedy = f"{add} in the policy shows what it needs, or python= chooses another interpreter"
        raise InterpreterError("start", path, f"{what} {problem}; {remedy}")


def death(policy: Policy, program: str, how: str, words: str, missing: str = "") -> InterpreterError:
    """Return the error for an interpreter that has ended without a report.

    words: what it has printed. missing: the paths that it couldn't use, though commands can.
    """
    reached = [hint.message for hint in limited(policy, words) if hint.kind == "limit"]
    if not reached and "signal" in how and policy.limits.memory is not None:
        reached = [f"a limit may have been reached: limits.memory={policy.limits.memory}"]
    if reached:
        how = f"{how}; {'; '.join(reached)}"
    elif missing:
        how = f"{how}; it couldn't use what this policy's commands can write to: {printable(missing)}"
    if "nsbox: Python" in words or "unknown option" in words.lower():
        how = f"it isn't Python {OLDEST} or later; {how}"
    return InterpreterError("start", program, how, words)
