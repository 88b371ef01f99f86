"""Escapes: text with %XX, backslashes and entities decoded, each character with the place that it comes from. Pure.

What stands for one character is one escape, whatever the encoder leaves as it is: URLs (encodeURIComponent, PathEscape,
forms), JSON and JavaScript, HTML. They are taken from left to right, so the parse of what follows an escape doesn't
depend on what was before it.
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
    r"""'\\''|'"'"'"""  # a ' between two of a shell
)
_OCTAL = r"\\[0-3][0-7]{2}"
_CHARACTER = (
    rf"%[C-Dc-d]{_HEX}{_NEXT}|%[Ee]{_HEX}(?:{_NEXT}){{2}}|%[Ff][0-7](?:{_NEXT}){{3}}|%{_HEX}{{2}}|"
    rf"\\3[0-3][0-7]{_NEXT_OCTAL}|\\3[45][0-7](?:{_NEXT_OCTAL}){{2}}|\\36[0-7](?:{_NEXT_OCTAL}){{3}}|{_OCTAL}"
)
# How an escape may begin that the end of a piece cuts off.
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
    """Return what an escape stands for; itself where it stands for nothing."""
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
    """Return what HTML calls so; "" if nothing."""
    from html.entities import html5  # seldom needed

    return html5.get(f"{name};", "")


def _byte(escape: str) -> bytes:
    """Return the byte that an escape stands for by its number; b"" for another kind of escape."""
    if escape[0] == "%":
        return bytes.fromhex(escape[1:])
    return bytes([int(escape[1:], 8)]) if escape[0] == "\\" and escape[1] in "0123" else b""


class _Values(dict[Any, Any]):
    """What escapes stand for, each in its own kind: bytes in UTF-8, or str. As many are kept as are usual."""

    def __missing__(self, escape: Any) -> Any:
        if isinstance(escape, bytes):
            text = escape.decode("ascii")
            found: Any = _byte(text) or _meaning(text).encode("utf-8", "surrogatepass")
        else:
            found = _meaning(escape)
        if len(self) < _MOST_KNOWN:
            self[escape] = found
        return found


class _Nothing(dict[Any, Any]):
    def __missing__(self, escape: Any) -> Any:
        return escape[:0]


_values, _no_values = _Values(), _Nothing()
_BREAK, _END = r"((?:\n(?<=[^\r\n]\n)|\r\n(?<=[^\r\n]\r\n))(?=[^\r\n]))", r"(?:\r\n|\r|\n)\Z"
_TEXT_BREAK, _BYTES_BREAK = re.compile(_BREAK), re.compile(_BREAK.encode())
_TEXT_END, _BYTES_END = re.compile(_END), re.compile(_END.encode())


def without_plus(text: AnyStr) -> AnyStr:
    """Return it with + as a blank: which of them a decoder makes of + nobody can tell."""
    return text.translate(_BLANKS) if isinstance(text, bytes) else text.replace("+", " ")


class Decoded(Generic[AnyStr]):
    """A text decoded. text: what it stands for, + as a blank."""

    def __init__(self, source: AnyStr) -> None:
        text = self._build(source, _BYTES if isinstance(source, bytes) else _TEXT, _values)
        self.text: AnyStr = without_plus(text)

    def _build(self, source: AnyStr, pattern: Any, known: dict[Any, Any]) -> AnyStr:
        """Return the source with what the pattern finds replaced, and remember what the places follow from."""
        self._source: AnyStr = source
        parts: Any = pattern.split(source)  # what is between escapes, and these, by turns: no step is taken in Python
        self._sizes: list[int] = list(map(len, parts))
        self._values: list[Any] = list(map(known.__getitem__, parts[1::2]))
        parts[1::2] = self._values
        text: AnyStr = source[:0].join(parts)
        return text

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        """Where escapes begin, and where they end. Most texts are asked for neither."""
        places = list(accumulate(self._sizes))
        return places[:-1:2], places[1::2]

    @cached_property
    def _carried(self) -> tuple[list[int], list[int]]:
        """Where escapes end in the decoded text, and by how much it is shorter: at first, and from each on."""
        shrunk = [0, *accumulate(map(sub, self._sizes[1::2], map(len, self._values)))]
        return list(map(sub, self._bounds[1], shrunk[1:])), shrunk

    def start(self, place: int) -> int:
        """Return where in the source the character at a place of the decoded text begins."""
        (starts, _), (places, shrunk) = self._bounds, self._carried
        at = bisect_right(places, place)
        found = place + shrunk[at]
        return min(found, starts[at]) if at < len(starts) else found

    def end(self, place: int) -> int:
        """Return where in the source the character before a place of the decoded text ends."""
        (starts, ends), (places, shrunk) = self._bounds, self._carried
        at = bisect_right(places, place - 1)
        found = place + shrunk[at]
        return ends[at] if at < len(starts) and found > starts[at] else found

    def begun(self) -> tuple[int, int]:
        """Return where an escape begins that may go on beyond the end, in source and text; if none does, their ends."""
        pattern: Any = _BYTES_BEGUN if isinstance(self._source, bytes) else _TEXT_BEGUN
        size = len(self._source)
        found = pattern.search(self._source, max(0, size - LONGEST))
        while found is not None and self.boundary(found.start()) != found.start():  # two backslashes are one escape
            found = pattern.search(self._source, found.start() + 1)
        if found is None:
            return size, len(self.text)
        return found.start(), len(self.text) - len(Decoded(self._source[found.start() :]).text)

    def boundary(self, place: int) -> int:
        """Return a place of the source, or where the escape begins that it lies within."""
        if place == len(self._source):
            return place
        starts, ends = self._bounds
        at = bisect_right(ends, place)
        return starts[at] if at < len(starts) and starts[at] < place else place


class Unbroken(Decoded[AnyStr]):
    """A text without single line ends, as encoders put them into base64 and hex. text: the lines as one."""

    def __init__(self, source: AnyStr) -> None:
        self.text = self._build(source, _BYTES_BREAK if isinstance(source, bytes) else _TEXT_BREAK, _no_values)

    @staticmethod
    def ended(text: AnyStr) -> AnyStr:
        """Return a text without the line end that it may end with: whether more than that comes nobody knows yet."""
        pattern: Any = _BYTES_END if isinstance(text, bytes) else _TEXT_END
        found = pattern.search(text, max(0, len(text) - 2))
        return text if found is None else text[: found.start()]
