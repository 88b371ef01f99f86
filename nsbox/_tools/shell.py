"""Which shell reads a command line (bash if the sandbox has it), and which parts of a line only bash understands."""

from __future__ import annotations

import os
import re

from nsbox._base.checks import check_path
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._policy.policy import Policy

SH = "/bin/sh"
# Where distributions, FreeBSD and Homebrew for Intel, and NixOS have it. Not PATH: a command could have put one there.
BASHES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash")
ITSELF = "$0"  # among a shell's arguments: its own path, whichever is started
_MOST = 1 << 14  # characters of a line that are looked at
_OTHERS = frozenset({"sh", "dash", "ash", "busybox"})  # shells that a hint says aren't bash

# Words and operators of bash that dash refuses, or silently reads as something else.
_BASHISMS = (
    ("[[ ]]", re.compile(r"(?:^|[\s;&|(!])\[\[\s")),
    ("pipefail", re.compile(r"\bset\s[^\n;|&]{0,200}\bpipefail\b")),
    ("<(...)", re.compile(r"[<>]\([^)]")),
    ("<<<", re.compile(r"<<<")),
    ("{a..b}", re.compile(r"\{[\w-]+\.\.[\w-]+(?:\.\.\d+)?\}")),
    ("{a,b}", re.compile(r"(?:^|\s)[\w./-]*\{[\w./*-]*(?:,[\w./*-]*)+\}")),
    ("&>", re.compile(r"&>|>&\s*[^\s\d&-]|\|&")),
    ("echo -e", re.compile(r"\becho\s+-(?:[nE]*e[neE]*)\s")),
    ("arrays", re.compile(r"\b\w+\+?=\(|\$\{[!#]?\w+\[")),
    ("((...))", re.compile(r"(?:^|[\s;&|])\(\(")),
    ("${x//a/b}", re.compile(r"\$\{\w+/")),
    ("${x^^}", re.compile(r"\$\{\w+(?:\^|,)")),
    ("${x:1}", re.compile(r"\$\{\w+:-?\s?\d")),
    ("${x@Q}", re.compile(r"\$\{\w+@")),
    ("${!x}", re.compile(r"\$\{!\w")),
    ("$'...'", re.compile(r"\$'")),
    ("$RANDOM", re.compile(r"\$\{?(?:RANDOM|SECONDS|BASH_\w+|PIPESTATUS|EPOCHSECONDS|FUNCNAME)\b")),
    (
        "bash's commands",
        re.compile(
            r"(?:^|[;&|\n({]|\b(?:then|do|else))[ \t]{0,80}"
            r"(?:shopt|declare|typeset|mapfile|readarray|pushd|popd|source|let|"
            r"function|select|disown|compgen)\s"
        ),
    ),
    ("read -a", re.compile(r"\bread\s+(?:-r\s+)?-[adnNtsu]")),
)
# How dash and busybox complain about them.
_COMPLAINTS = re.compile(
    r"Bad substitution|bad substitution|Illegal option -o pipefail|illegal option -o pipefail|"
    r"[Ss]yntax error: (?:\"\(\"|\"\)\"|redirection|word|[Bb]ad|\"&\"|newline|\"\}\"|\"do\"|\"done\"|Bad for loop)|"
    r"syntax error: unexpected (?:\"|redirection)|Illegal option -"
)
BUILTINS = frozenset(
    (
        *("[[", "shopt", "declare", "typeset", "mapfile", "readarray", "pushd", "popd", "dirs", "source", "let"),
        *("function", "select", "disown", "compgen", "complete", "enable", "caller", "bind", "builtin"),
    )
)
"""What bash has without any file: a shell that doesn't find one of these isn't bash."""


def shells(policy: Policy, path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Return the shells to try, in this order, for a command line. path: the one that the call asks for."""
    if path is not None:
        return (check_path("shell_path", path),)
    return (policy.shell_path,) if policy.shell_path is not None else (*BASHES, SH)


def likely(policy: Policy, paths: Sequence[str]) -> list[str]:
    """Return those shells that may be in the sandbox. Each of the others would cost a start that fails."""
    candidates = []
    for path in paths:
        try:
            here = view(policy).place(path).here
        except (OSError, ValueError):
            continue
        if here is None or os.path.lexists(here):  # None: only a start can tell
            candidates.append(path)
    return candidates


def is_other(shell: str | None) -> bool:
    """Return whether a shell isn't bash, judging by its name."""
    return shell is not None and os.path.basename(shell) in _OTHERS


def bashism(line: str, text: str, missing: str | None) -> str | None:
    """Return the part of a line that only bash understands; "" if it can't be named; None if there is none.

    line: what was run. text: its output. missing: the name of a program that wasn't found.
    """
    line = line[:_MOST]
    for name, pattern in _BASHISMS:
        if pattern.search(line):
            return name
    if missing in BUILTINS:
        return str(missing)
    return "" if _COMPLAINTS.search(text) else None
