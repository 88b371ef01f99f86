"""Why a command of a task may have failed: what the hints for its policy don't know, since there it would be read-only.

As those, these are guesses from what programs print.
"""

from __future__ import annotations

import os
import re

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._tools import space
from nsbox._tools.verdicts import Hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsbox._policy.policy import Policy
    from nsbox._task.layers import Layers

_READ_ONLY = re.compile(r"[Rr]ead-only file ?system|EROFS")
_DENIED = re.compile(r"[Pp]ermission denied|EACCES")
_PATH = re.compile("/[^\\s:;,()<>|&'\"`\u2018\u2019\u201c\u201d]{1,1024}")
_CHARS = 1 << 16  # at the end of each stream
_MOST_NAMED = 6


def hints_of(
    policy: Policy, why: tuple[Hint, ...], status: int, output: tuple[str, str], layers: Layers, store: str
) -> tuple[Hint, ...]:
    """Return the hints for a command of a task.

    policy: the task's. why: the hints for it. status: the exit status. output: what the command has printed.
    store: the task's directory.
    """
    why = space.replaced(why, policy, status, output, store)
    if status == 0:
        return why
    lines = [line for text in output for line in text[-_CHARS:].splitlines()]
    kept = [hint for hint in why if not _is_about_overlay(hint, layers)]
    more = [*_managed(lines), *_denied(lines, layers, kept), *_closed(lines, layers)]
    return tuple(dict.fromkeys([*kept, *more]))


def _is_about_overlay(hint: Hint, layers: Layers) -> bool:
    """Return whether a hint says that something is read-only which a task's commands can write to."""
    path = _PATH.search(hint.message)
    if hint.kind == "installation":  # "the Python that pip belongs to is read-only"
        return True
    return hint.kind in ("permissions", "read-only") and path is not None and _is_opened(path.group(), layers)


def _is_opened(path: str, layers: Layers) -> bool:
    """Return whether a path lies in what the policy only shows."""
    path = os.path.normpath(path)
    return any(is_below(path, at) for at in layers.places) and not any(is_below(path, at) for at in layers.written)


def _managed(lines: Sequence[str]) -> Iterator[Hint]:
    if any("externally-managed-environment" in line for line in lines):
        how = "" if os.geteuid() == 0 else " --user"
        yield Hint(
            "installation",
            "the system's Python refuses pip's packages (PEP 668); what a task installs never reaches the host, so "
            f"pip install --break-system-packages{how} will do, or a venv",
        )


def _denied(lines: Sequence[str], layers: Layers, known: Sequence[Hint]) -> Iterator[Hint]:
    """Yield at most one hint about a file that can't be read, and one about a place that can't be written to."""
    is_told = False
    for line in lines:
        path = _PATH.search(line) if _DENIED.search(line) else None
        if path is None or not _is_opened(path.group(), layers):
            continue
        shown = printable(path.group())
        if any(shown in hint.message for hint in known):  # hidden, for one
            continue
        # Whatever was tried there, a place to write isn't what it lacks.
        if os.geteuid() != 0 and _is_unreadable(path.group()):
            if not is_told:
                yield Hint(
                    "permissions",
                    f"the permissions of {shown!r} let this user neither read nor change it, and permissions hold in a "
                    "task too",
                )
            is_told = True
            continue
        yield _unwritable(shown, layers)
        return


def _unwritable(shown: str, layers: Layers) -> Hint:
    """Return the hint for a place that the permissions of the system's files keep commands from."""
    if os.geteuid() == 0:
        return Hint(
            "permissions",
            f"permissions hold in a task too, and {shown!r} may be in another user's directory: "
            "leave out user=, or say ids='full' with uid= and gid= in the policy, which makes the system's "
            "directories the commands' own",
        )
    tops = ", ".join([at for at in layers.places if at not in layers.written][:_MOST_NAMED])
    return Hint(
        "permissions",
        f"{shown!r} lies in a directory of root's, and permissions hold in a task too: this "
        f"user can only make files right in {printable(tops)}. Install into the home or the workspace (a venv, "
        "pip install --user, npm without -g), or run the program that uses nsbox as root",
    )


def _is_unreadable(path: str) -> bool:
    """Return whether a path is there, as the host has it, and its permissions keep this user from reading it."""
    return os.path.lexists(path) and not os.access(path, os.R_OK)


def _closed(lines: Sequence[str], layers: Layers) -> Iterator[Hint]:
    for line in lines:
        path = _PATH.search(line) if _READ_ONLY.search(line) else None
        if path is None or any(is_below(os.path.normpath(path.group()), at) for at in layers.places):
            continue
        tops = ", ".join(layers.places[:_MOST_NAMED])
        yield Hint(
            "read-only",
            f"a task's commands can write to /tmp, to the home and to what the policy shows: {printable(tops)}; "
            "/ and what is made on the way to those is read-only: name a directory in write=",
        )
        return
