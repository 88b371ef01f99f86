"""How a path that others have chosen is shown: it has no escape sequence in it, and ends no line."""

from __future__ import annotations

from nsbox._early import os

_SPECIAL = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x09: "\\t"}


def c_quoted(path: str) -> str:
    """Return a path as git writes unusual ones: as a string of C, in ASCII."""
    chars = (_SPECIAL.get(b, chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in os.fsencode(path))
    return '"' + "".join(chars) + '"'


def shown(path: str) -> str:
    """Return a path as it is, or as a string of C if it has anything in it that isn't printed as such, or misleads."""
    is_plain = path.isprintable() and not {'"', "\\"} & {*path} and path.strip() == path and " -> " not in path
    return path if is_plain and path else c_quoted(path)


def printable(text: str) -> str:
    """Return a text in which what isn't printed as such is written as in C."""
    return "".join(char if char.isprintable() else c_quoted(char)[1:-1] for char in text)
