"""Leaks: find tokens and private keys in text, even encoded ones, and redact known secrets.

    for finding in scan(text):
        log.warning("not sent: %s", finding)

scan() knows what tokens look like (_leaks/patterns.py); Scrubber knows the exact values (_leaks/scrub.py).
scrub_and_scan() scrubs, then scans. Neither stops a program that means to get a secret out: see
docs/howto/leaks-and-secrets.md.

How scan() works: the text is the first layer. Whatever in it may be base64, hex or percent-encoding of printable text
is decoded; together, the results are the next layer. C goes over each layer a few times, and Python sees only
candidates. They are few: each byte of printable text leaves marks in its encoding that a path or a hash has only by
chance. Every step is linear, and a layer is at most a few times as large as the one before.
"""

from __future__ import annotations

import binascii
import hmac
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, AnyStr

from nsbox._base.display import type_phrase
from nsbox._base.frozen import Frozen, frozen
from nsbox._leaks.patterns import SHORTEST, tokens
from nsbox._leaks.scrub import Scrubber

if TYPE_CHECKING:
    from nsbox._leaks.scrub import Value

__all__ = ["DEPTH", "Finding", "Scrubber", "scan", "scrub_and_scan"]

DEPTH = 3  # layers of encoding around a token

_key = os.urandom(32)  # shared by this process and those that it forks


@frozen
class Finding(Frozen):
    """A token in a text, without its value.

    kind: "anthropic", "brave", "discord", "github", "google", "openai", "openrouter", "private-key", "slack" or
        "telegram".
    start, end: its place in the text that was scanned, as indices of that text. For an encoded token, the place of its
        encoded form.
    encodings: "base64", "hex" or "percent", the outermost first; () if it isn't encoded.
    fingerprint: 12 hex digits, the same for equal tokens in this process; see scan().
    """

    kind: str
    start: int
    end: int
    encodings: tuple[str, ...]
    fingerprint: str

    def __str__(self) -> str:
        how = f" ({' in '.join(reversed(self.encodings))})" if self.encodings else ""
        return f"{self.kind} at {self.start}:{self.end}{how}, fingerprint {self.fingerprint}"


def scan(text: str | bytes, *, depth: int = DEPTH, key: bytes | None = None) -> list[Finding]:
    """Return the tokens and private keys in a text, in the order of their places.

    text: str, or bytes.
    depth: how many nested encodings to decode, 0 to 8; 0 decodes none. Default: 3.
    key: of the fingerprints, which are HMAC-SHA256 of kind and token, cut to 48 bits. The default is random for each
        process, so that nobody can try out values later. To compare fingerprints across processes, pass a key of at
        least 16 bytes and keep it secret.

    Time and memory grow in proportion to the text. Raises TypeError and ValueError for arguments that make no sense,
    and nothing because of what the text contains.
    """
    if isinstance(text, str):
        data = text.encode("latin-1", "replace")  # one byte for each letter; no token has a letter outside of latin-1
    elif isinstance(text, bytes | bytearray | memoryview):
        data = bytes(text)
    else:
        raise TypeError(f"text is {type_phrase(text)}, must be str or bytes")
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= 8:
        raise ValueError(f"depth: {depth!r} is no number from 0 to 8")
    if key is not None and len(key) < 16:
        raise ValueError("key: must have at least 16 bytes")
    findings: dict[tuple[str, int], Finding] = {}
    for layer in layers(data, depth):
        for kind, start, end in tokens(layer.data):
            place, encodings = layer.origin(start, end)
            earlier = findings.get((kind, place[0]))
            if earlier is None or earlier.end < place[1]:
                print_of = _fingerprint(kind, layer.data[start:end], _key if key is None else key)
                findings[kind, place[0]] = Finding(kind, *place, encodings, print_of)
    return sorted(findings.values(), key=lambda finding: (finding.start, finding.end, finding.kind))


def scrub_and_scan(
    text: AnyStr, secrets: Scrubber | Iterable[Value], *, depth: int = DEPTH, key: bytes | None = None
) -> tuple[AnyStr, list[Finding]]:
    """Return the text with these secrets redacted, and what scan() finds in the result.

    So a secret that the text is expected to contain is no finding. The findings' places are those in the text returned.

    text: str or bytes; the result has the same type.
    secrets: their values, or a Scrubber, whose own stream isn't touched.
    depth, key: as for scan().

    Raises what Scrubber() and scan() raise.
    """
    scrubber = secrets if isinstance(secrets, Scrubber) else Scrubber(secrets)
    clean = scrubber.scrub(text)
    return clean, scan(clean, depth=depth, key=key)


def _fingerprint(kind: str, value: bytes, key: bytes) -> str:
    return hmac.digest(key, kind.encode() + b"\0" + value, "sha256")[:6].hex()


# ---- layers


class Layer:
    """Bytes to search: the text, or the decoded pieces of the layer below, with a NUL between them."""

    def __init__(self, data: bytes, starts: list[int], pieces: list[tuple[_Region, int]]) -> None:
        self.data = data
        self._starts, self._pieces = starts, pieces

    def origin(self, start: int, end: int) -> tuple[tuple[int, int], tuple[str, ...]]:
        """Return where in the text this layer's bytes from start to end come from, and how they are encoded there."""
        encodings: list[str] = []
        layer = self
        while layer._pieces:
            at = bisect_right(layer._starts, start) - 1
            region, offset = layer._pieces[at]
            shift = offset - layer._starts[at]
            start, end = region.origin(start + shift, end + shift)
            encodings.append(region.encoding)
            layer = region.layer
        return (start, end), tuple(reversed(encodings))


def layers(data: bytes, depth: int) -> Iterator[Layer]:
    """Yield the text as a layer, then the layers that come from decoding it."""
    layer = Layer(data, [], [])
    yield layer
    for _ in range(depth):
        starts, pieces, parts, size = [], [], [], 0
        for region, offset, part in _decoded(layer):
            starts.append(size)
            pieces.append((region, offset))
            parts.append(part)
            size += len(part) + 1
        if not parts:
            return
        layer = Layer(b"\0".join(parts), starts, pieces)
        yield layer


class _Region:
    """A stretch of a layer that was decoded. phase: how many of its first letters were left out."""

    __slots__ = ("_marks", "encoding", "end", "layer", "phase", "start")

    def __init__(self, layer: Layer, encoding: str, start: int, end: int, phase: int) -> None:
        self.layer, self.encoding, self.start, self.end, self.phase = layer, encoding, start, end, phase
        self._marks: list[int] | None = None

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Return where in the layer the bytes from start to end of the decoded form come from."""
        if self._marks is None:
            source = self.layer.data[self.start : self.end]
            mark, width = (_ESCAPE, 2) if self.encoding == "percent" else (_LINE_END, 1)
            self._marks = [match.start() - width * i for i, match in enumerate(mark.finditer(source))]
        if self.encoding == "percent":
            left, right = start + 2 * bisect_left(self._marks, start), end + 2 * bisect_left(self._marks, end)
        else:
            ratio = (4, 3) if self.encoding == "base64" else (2, 1)
            left = self.phase + start * ratio[0] // ratio[1]
            right = self.phase - (-end * ratio[0] // ratio[1]) - 1  # the last letter
            left += bisect_right(self._marks, left)
            right += bisect_right(self._marks, right) + 1
        return self.start + left, self.start + right


_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
_LINE_END = re.compile(rb"[\r\n]")
_PRINTABLE = re.compile(rb"[\t\n\r -~]{%d,}" % (SHORTEST - 2))  # base64 that begins inside a token misses some of it

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def _table(letters: bytes) -> bytes:
    """Return a table for translate() that turns these letters into x, and all others into blanks."""
    return bytes(0x78 if byte in letters else 0x20 for byte in range(256))


def _base64_letters(is_one: Callable[[int], bool]) -> bytes:
    letters = bytes(letter for value, letter in enumerate(_BASE64) if is_one(value))
    return letters + letters.translate(bytes.maketrans(b"+/", b"-_"))


# Three printable bytes, 0x20 to 0x7e, are four base64 letters: the bytes' top bits limit what the first three can be.
_QUAD = [_base64_letters(lambda v: 8 <= v < 32), _base64_letters(lambda v: 2 <= v & 15 <= 7)]
_QUAD += [_base64_letters(lambda v: v & 3 < 2), _base64_letters(lambda v: True)]


class _Code:
    """An encoding in which a group of letters, of a fixed size, stands for printable text.

    letters: its alphabet. groups: what each letter of a group may be. count: groups in a row that any token has.
    """

    def __init__(self, name: str, letters: bytes, groups: list[bytes], count: int) -> None:
        self.name, self.size = name, len(groups)
        self._alphabet = _table(letters + b"\r\n")
        self._first, self._row = _table(groups[0]), b"x" * count
        one = b"".join(b"[%b]" % re.escape(group) for group in groups)
        self._all = re.compile(b"(?:%b){%d}" % (one, count))

    def regions(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of each run of letters and line ends that contains such groups."""
        firsts = data.translate(self._first)
        spread = b""
        starts = set()
        for phase in range(self.size):
            lane = firsts[phase :: self.size]  # one letter of each group: searching these means searching for groups
            at = lane.find(self._row)
            while at >= 0:
                place, past = at * self.size + phase, at + 1
                if self._all.match(data, place):
                    spread = spread or data.translate(self._alphabet)
                    start, end = spread.rfind(b" ", 0, place) + 1, spread.find(b" ", place)
                    end = len(data) if end < 0 else end
                    if start not in starts:
                        starts.add(start)
                        yield start, end
                    past = max(past, (end - phase) // self.size)
                at = lane.find(self._row, past)

    def decoded(self, source: bytes) -> Iterator[bytes]:
        """Yield what a region decodes to if it begins at its first letter, at its second, and so on."""
        if self.size == 4:
            clean = source.translate(_URL_SAFE, b"\r\n")
            for phase in range(4):
                whole = (len(clean) - phase) & ~3
                left = (len(clean) - phase) & 3
                last = clean[phase + whole :] + b"=" * (4 - left) if left > 1 else b""
                yield binascii.a2b_base64(clean[phase : phase + whole] + last)
        else:
            clean = source.translate(None, b"\r\n")
            for phase in range(2):
                yield binascii.unhexlify(clean[phase : phase + ((len(clean) - phase) & ~1)])


_HEX = b"0123456789abcdefABCDEF"
_CODES = (
    _Code("base64", _base64_letters(lambda v: True), _QUAD, (SHORTEST - 2) // 3),
    _Code("hex", _HEX, [b"234567", _HEX], SHORTEST),
)
_IN_URLS = _table(bytes(byte for byte in range(0x21, 0x7F) if byte not in b"\"'<>`"))
_ESCAPES = {b"%%%02X" % byte: bytes([byte]) for byte in range(256)}


def _decoded(layer: Layer) -> Iterator[tuple[_Region, int, bytes]]:
    """Yield each encoded piece of a layer: its region, its offset in what the region decodes to, and its bytes."""
    for code in _CODES:
        for start, end in code.regions(layer.data):
            for phase, decoded in enumerate(code.decoded(layer.data[start:end])):
                region = _Region(layer, code.name, start, end, phase)
                for match in _PRINTABLE.finditer(decoded):
                    yield region, match.start(), match[0]
    for start, end in _percent_regions(layer.data):
        decoded = _ESCAPE.sub(_unescaped, layer.data[start:end])
        if len(decoded) >= SHORTEST:
            yield _Region(layer, "percent", start, end, 0), 0, decoded


def _unescaped(match: re.Match[bytes]) -> bytes:
    return _ESCAPES[match[0].upper()]


def _percent_regions(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each word that has escapes in it."""
    escape = _ESCAPE.search(data)
    if not escape:
        return
    spread = data.translate(_IN_URLS)
    while escape:
        start, end = spread.rfind(b" ", 0, escape.start()) + 1, spread.find(b" ", escape.end())
        end = len(data) if end < 0 else end
        yield start, end
        escape = _ESCAPE.search(data, end)
