"""How values are displayed in messages: paths and texts without escape sequences, types and numbers in English."""

from __future__ import annotations

import os

_SPECIAL = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x09: "\\t"}


def c_quoted(path: str) -> str:
    """Return a path as git writes unusual ones: as a C string, in ASCII."""
    chars = (_SPECIAL.get(b, chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in os.fsencode(path))
    return '"' + "".join(chars) + '"'


def _is_seen(char: str) -> bool:
    """Say if a character is printable, and has a shape or a width of its own.

    Python also counts some as printable that have neither: fillers, blanks, and characters that a program ignores
    unless it knows them (Default_Ignorable_Code_Point in Unicode's DerivedCoreProperties.txt).
    """
    code = ord(char)
    if code < 0x300:
        return char.isprintable()
    is_filler = code in (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159)
    is_selector = 0x180B <= code <= 0x180F or 0xFE00 <= code <= 0xFE0F or 0xE0000 <= code <= 0xE0FFF
    return char.isprintable() and not is_filler and not is_selector


def shown(path: str) -> str:
    """Return a path as it is, or as a C string if it has anything in it that isn't visible or could mislead."""
    is_plain = path.isprintable() and (path.isascii() or all(map(_is_seen, path)))
    is_plain = is_plain and not {'"', "\\"} & {*path} and path.strip() == path
    is_plain = is_plain and not path.startswith("-> ") and not path.endswith(" ->")
    is_plain = is_plain and not any(mark in path for mark in (" -> ", " (", ": ", ", "))  # around paths in messages
    return path if is_plain and path else c_quoted(path)


def printable(text: str) -> str:
    """Return a text in which everything that isn't visible is written as in C."""
    return "".join(char if _is_seen(char) else c_quoted(char)[1:-1] for char in text)


def encodable(text: str) -> str:
    """Return a text that os.fsencode() takes: surrogates that stand for no byte become escapes."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class _Visible(dict[int, "int | str"]):
    def __missing__(self, code: int) -> int | str:
        char = chr(code)
        self[code] = text = code if char in "\n\t" or _is_seen(char) else c_quoted(char)[1:-1]
        return text


def visible(text: str) -> str:
    """Return a text of several lines in which everything that isn't visible is written as in C, except line ends."""
    return text.translate(_Visible())


def type_phrase(value: object) -> str:
    """Return the name of a value's type with its article, such as "an int"."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def seconds_phrase(number: float) -> str:
    """Return a number of seconds, such as "1 second" or "2.5 seconds"."""
    return f"{number:g} second" if number == 1 else f"{number:g} seconds"


def size_phrase(number: int) -> str:
    """Return a number of bytes as people write it, such as "50 MiB" and "1.5 GiB"."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number} byte" if number == 1 else f"{number} bytes"
