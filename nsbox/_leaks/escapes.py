"""Escapes: text with %XX, backslashes and entities decoded, each character with the place that it comes from. Pure.

Whatever stands for one character is one escape. It doesn't matter which characters an encoder leaves as they are: those
for URLs (encodeURIComponent, PathEscape, forms), JSON and JavaScript, or HTML. Escapes are read from left to right, so
what follows one is parsed without regard to what was before it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from operator import sub
from typing import Any, AnyStr, Generic

_SHORT = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_HEX = "[0-9A-Fa-f]"
_NEXT = "%[89ABab][0-9A-Fa-f]"  # the later bytes of a character in UTF-8
_NEXT_OCTAL = r"\\2[0-7]{2}"
_BACKSLASH = (
    rf"\\u[dD][89ABab]{_HEX}{{2}}\\u[dD][C-Fc-f]{_HEX}{{2}}|\\u{_HEX}{{4}}|\\x{_HEX}{{2}}|"
    r"\\[nrtbf \\/\"'!#$&()*+,:;<=>?@\[\]^`{|}~-]|"
    r"&(?:[A-Za-z][A-Za-z0-9]{1,16}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});|"
    r"""'\\''|'"'"'"""  # a ' inside of a shell's '...'
)
_OCTAL = r"\\[0-3][0-7]{2}"
_CHARACTER = (
    rf"%[C-Dc-d]{_HEX}{_NEXT}|%[Ee]{_HEX}(?:{_NEXT}){{2}}|%[Ff][0-7](?:{_NEXT}){{3}}|%{_HEX}{{2}}|"
    rf"\\3[0-3][0-7]{_NEXT_OCTAL}|\\3[45][0-7](?:{_NEXT_OCTAL}){{2}}|\\36[0-7](?:{_NEXT_OCTAL}){{3}}|{_OCTAL}"
)
# The beginnings of escapes that the end of a piece may cut off.
_BEGUN = (
    rf"(?:%{_HEX}?|\\|\\x{_HEX}?|\\u{_HEX}{{0,3}}|\\u[dD][89ABab]{_HEX}{{2}}(?:\\(?:u(?:[dD](?:[C-Fc-f]{_HEX}?)?)?)?)?|"
    r"&(?:[A-Za-z][A-Za-z0-9]{0,16})?|&#[0-9]{0,7}|&#[xX][0-9A-Fa-f]{0,6}|"
    r"""'(?:\\'?|"'?"?)?|"""
    rf"\\[0-3][0-7]?|\\3[0-6][0-7](?:{_NEXT_OCTAL}){{0,2}}(?:\\(?:2[0-7]?)?)?|"
    rf"%[C-Fc-f]{_HEX}(?:{_NEXT}){{0,2}}(?:%{_HEX}?)?)\Z"
)
LONGEST = 19  # letters of an escape: &DiacriticalGrave;

_TEXT, _BYTES = re.compile(f"({_CHARACTER}|{_BACKSLASH})"), re.compile(f"(%{_HEX}{{2}}|{_OCTAL}|{_BACKSLASH})".encode())
_TEXT_BEGUN, _BYTES_BEGUN = re.compile(_BEGUN), re.compile(_BEGUN.encode())
_BLANKS = bytes.maketrans(b"+", b" ")
_MOST_KNOWN = 4096


def _meaning(escape: str) -> str:
    """Return what an escape stands for; the escape itself if it stands for nothing."""
    if escape[0] == "%":
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "surrogateescape")
    if escape[0] == "&":
        name = escape[1:-1]
        if name[0] != "#":
            return _NAMED.get(name) or _named(name) or escape
        number = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
        return chr(number) if number < 0x110000 else escape
    if escape[0] == "'":
        return "'"
    if len(escape) == 2:
        return _SHORT.get(escape[1], escape[1])
    if escape[1] in "0123":
        codes = bytes(int(part, 8) for part in escape[1:].split("\\"))
        return codes.decode("utf-8", "surrogateescape")
    if len(escape) == 12:
        return chr(0x10000 + ((int(escape[2:6], 16) & 0x3FF) << 10 | int(escape[8:], 16) & 0x3FF))
    return chr(int(escape[2:], 16))


def _named(name: str) -> str:
    """Return the character of this name in HTML; "" if there is none."""
    from html.entities import html5  # seldom needed

    return html5.get(f"{name};", "")


def _byte(escape: str) -> bytes:
    """Return the byte that an escape stands for by its number; b"" for another kind of escape."""
    if escape[0] == "%":
        return bytes.fromhex(escape[1:])
    return bytes([int(escape[1:], 8)]) if escape[0] == "\\" and escape[1] in "0123" else b""


class _Values(dict[Any, Any]):
    """What escapes stand for, each in its own type: bytes in UTF-8, or str. It keeps _MOST_KNOWN of them."""

    def __missing__(self, escape: Any) -> Any:
        if isinstance(escape, bytes):
            text = escape.decode("ascii")
            value: Any = _byte(text) or _meaning(text).encode("utf-8", "surrogatepass")
        else:
            value = _meaning(escape)
        if len(self) < _MOST_KNOWN:
            self[escape] = value
        return value


class _Nothing(dict[Any, Any]):
    def __missing__(self, escape: Any) -> Any:
        return escape[:0]


_values, _no_values = _Values(), _Nothing()
_BREAK, _END = r"((?:\n(?<=[^\r\n]\n)|\r\n(?<=[^\r\n]\r\n))(?=[^\r\n]))", r"(?:\r\n|\r|\n)\Z"
_TEXT_BREAK, _BYTES_BREAK = re.compile(_BREAK), re.compile(_BREAK.encode())
_TEXT_END, _BYTES_END = re.compile(_END), re.compile(_END.encode())


def without_plus(text: AnyStr) -> AnyStr:
    """Return text with + as a blank, since a decoder may make either of a +."""
    return text.translate(_BLANKS) if isinstance(text, bytes) else text.replace("+", " ")


class Decoded(Generic[AnyStr]):
    """A decoded text. text: what the source stands for, with + as a blank."""

    def __init__(self, source: AnyStr) -> None:
        text = self._build(source, _BYTES if isinstance(source, bytes) else _TEXT, _values)
        self.text: AnyStr = without_plus(text)

    def _build(self, source: AnyStr, pattern: Any, known: dict[Any, Any]) -> AnyStr:
        """Return the source with the pattern's matches replaced, and remember their sizes, which give the places."""
        self._source: AnyStr = source
        parts: Any = pattern.split(source)  # text and escapes by turns: no loop runs in Python
        self._sizes: list[int] = list(map(len, parts))
        self._values: list[Any] = list(map(known.__getitem__, parts[1::2]))
        parts[1::2] = self._values
        text: AnyStr = source[:0].join(parts)
        return text

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        """Where escapes begin, and where they end. Most texts need neither."""
        places = list(accumulate(self._sizes))
        return places[:-1:2], places[1::2]

    @cached_property
    def _carried(self) -> tuple[list[int], list[int]]:
        """Where escapes end in the decoded text; and by how much that is shorter, before the first and after each."""
        shrunk = [0, *accumulate(map(sub, self._sizes[1::2], map(len, self._values)))]
        return list(map(sub, self._bounds[1], shrunk[1:])), shrunk

    def start(self, place: int) -> int:
        """Return where in the source the character at a place of the decoded text begins."""
        (starts, _), (places, shrunk) = self._bounds, self._carried
        at = bisect_right(places, place)
        begin = place + shrunk[at]
        return min(begin, starts[at]) if at < len(starts) else begin

    def end(self, place: int) -> int:
        """Return where in the source the character before a place of the decoded text ends."""
        (starts, ends), (places, shrunk) = self._bounds, self._carried
        at = bisect_right(places, place - 1)
        end = place + shrunk[at]
        return ends[at] if at < len(starts) and end > starts[at] else end

    def begun(self) -> tuple[int, int]:
        """Return where an escape begins that may go on beyond the end, in source and text; their ends if none does."""
        pattern: Any = _BYTES_BEGUN if isinstance(self._source, bytes) else _TEXT_BEGUN
        size = len(self._source)
        match = pattern.search(self._source, max(0, size - LONGEST))
        while match is not None and self.boundary(match.start()) != match.start():  # two backslashes are one escape
            match = pattern.search(self._source, match.start() + 1)
        if match is None:
            return size, len(self.text)
        return match.start(), len(self.text) - len(Decoded(self._source[match.start() :]).text)

    def boundary(self, place: int) -> int:
        """Return a place of the source or, if it lies within an escape, the beginning of that."""
        if place == len(self._source):
            return place
        starts, ends = self._bounds
        at = bisect_right(ends, place)
        return starts[at] if at < len(starts) and starts[at] < place else place


class Unbroken(Decoded[AnyStr]):
    """A text without the single line ends that encoders put into base64 and hex. text: the lines as one."""

    def __init__(self, source: AnyStr) -> None:
        self.text = self._build(source, _BYTES_BREAK if isinstance(source, bytes) else _TEXT_BREAK, _no_values)

    @staticmethod
    def ended(text: AnyStr) -> AnyStr:
        """Return a text without a line end at its own end: what follows that line end isn't known yet."""
        pattern: Any = _BYTES_END if isinstance(text, bytes) else _TEXT_END
        match = pattern.search(text, max(0, len(text) - 2))
        return text if match is None else text[: match.start()]
