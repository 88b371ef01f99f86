"""Escapes: text with %XX, backslashes and entities decoded, each character with the place that it comes from. Pure.

What stands for one character is one escape, whatever the encoder leaves as it is: URLs (encodeURIComponent, PathEscape,
forms), JSON and JavaScript, HTML. They are taken from left to right, so the parse of what follows an escape doesn't
depend on what was before it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from operator import sub
from typing import Any, AnyStr, Generic

_SHORT = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_HEX = "[0-9A-Fa-f]"
_NEXT = "%[89ABab][0-9A-Fa-f]"  # the later bytes of a character in UTF-8
_BACKSLASH = (
    rf"\\u[dD][89ABab]{_HEX}{{2}}\\u[dD][C-Fc-f]{_HEX}{{2}}|\\u{_HEX}{{4}}|\\x{_HEX}{{2}}|"
    r"\\[\\/\"'nrtbf]|&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"
)
_CHARACTER = rf"%[C-Dc-d]{_HEX}{_NEXT}|%[Ee]{_HEX}(?:{_NEXT}){{2}}|%[Ff][0-7](?:{_NEXT}){{3}}|%{_HEX}{{2}}"
# How an escape may begin that the end of a piece cuts off.
_BEGUN = (
    rf"(?:%{_HEX}?|\\|\\x{_HEX}?|\\u{_HEX}{{0,3}}|\\u[dD][89ABab]{_HEX}{{2}}(?:\\(?:u(?:[dD](?:[C-Fc-f]{_HEX}?)?)?)?)?|"
    r"&[a-zA-Z]{0,4}|&#[0-9]{0,7}|&#[xX][0-9A-Fa-f]{0,6}|"
    rf"%[C-Fc-f]{_HEX}(?:{_NEXT}){{0,2}}(?:%{_HEX}?)?)\Z"
)
LONGEST = 12  # letters of an escape: %F0%9F%98%80, \ud83d\ude00

_TEXT, _BYTES = re.compile(f"({_CHARACTER}|{_BACKSLASH})"), re.compile(f"(%{_HEX}{{2}}|{_BACKSLASH})".encode())
_TEXT_BEGUN, _BYTES_BEGUN = re.compile(_BEGUN), re.compile(_BEGUN.encode())
_BLANKS = bytes.maketrans(b"+", b" ")
_MOST_KNOWN = 4096


def _meaning(escape: str) -> str:
    """Return what an escape stands for; itself where it stands for nothing."""
    if escape[0] == "%":
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "surrogateescape")
    if escape[0] == "&":
        name = escape[1:-1]
        if name[0] != "#":
            return _NAMED[name]
        number = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
        return chr(number) if number < 0x110000 else escape
    if len(escape) == 2:
        return _SHORT.get(escape[1], escape[1])
    if len(escape) == 12:
        return chr(0x10000 + ((int(escape[2:6], 16) & 0x3FF) << 10 | int(escape[8:], 16) & 0x3FF))
    return chr(int(escape[2:], 16))


class _Values(dict[Any, Any]):
    """What escapes stand for, each in its own kind: bytes in UTF-8, or str. As many are kept as are usual."""

    def __missing__(self, escape: Any) -> Any:
        if isinstance(escape, bytes):
            text = escape.decode("ascii")
            found: Any = bytes.fromhex(text[1:]) if text[0] == "%" else _meaning(text).encode("utf-8", "surrogatepass")
        else:
            found = _meaning(escape)
        if len(self) < _MOST_KNOWN:
            self[escape] = found
        return found


_values = _Values()


def without_plus(text: AnyStr) -> AnyStr:
    """Return it with + as a blank: which of them a decoder makes of + nobody can tell."""
    return text.translate(_BLANKS) if isinstance(text, bytes) else text.replace("+", " ")


class Decoded(Generic[AnyStr]):
    """A text decoded. text: what it stands for, + as a blank."""

    def __init__(self, source: AnyStr) -> None:
        self._source: AnyStr = source
        pattern: Any = _BYTES if isinstance(source, bytes) else _TEXT
        parts: Any = pattern.split(source)  # what is between escapes, and these, by turns: no step is taken in Python
        sizes: list[int] = list(map(len, parts))
        places: list[int] = list(accumulate(sizes))
        self._starts: list[int] = places[:-1:2]
        self._ends: list[int] = places[1::2]
        values: list[Any] = list(map(_values.__getitem__, parts[1::2]))
        parts[1::2] = values
        self.text: AnyStr = without_plus(source[:0].join(parts))
        self._shrunk: list[int] = [0, *accumulate(map(sub, sizes[1::2], map(len, values)))]
        self._places: list[int] = list(map(sub, self._ends, self._shrunk[1:]))

    def start(self, place: int) -> int:
        """Return where in the source the character at a place of the decoded text begins."""
        at = bisect_right(self._places, place)
        found = place + self._shrunk[at]
        return min(found, self._starts[at]) if at < len(self._starts) else found

    def end(self, place: int) -> int:
        """Return where in the source the character before a place of the decoded text ends."""
        at = bisect_right(self._places, place - 1)
        found = place + self._shrunk[at]
        return self._ends[at] if at < len(self._starts) and found > self._starts[at] else found

    def begun(self) -> tuple[int, int]:
        """Return where an escape begins that may go on beyond the end, in source and text; if none does, their ends."""
        pattern: Any = _BYTES_BEGUN if isinstance(self._source, bytes) else _TEXT_BEGUN
        size = len(self._source)
        found = pattern.search(self._source, max(0, size - LONGEST))
        while found is not None and self.boundary(found.start()) != found.start():  # two backslashes are one escape
            found = pattern.search(self._source, found.start() + 1)
        place = size if found is None else found.start()
        return place, place - self._shrunk[bisect_right(self._ends, place)]

    def boundary(self, place: int) -> int:
        """Return a place of the source, or where the escape begins that it lies within."""
        at = bisect_right(self._ends, place)
        return self._starts[at] if at < len(self._starts) and self._starts[at] < place else place
