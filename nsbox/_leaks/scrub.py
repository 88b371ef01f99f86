"""Scrubber: replaces secrets that are known in a stream, also encoded ones, and those that come in pieces.

All forms of all secrets are searched for with find(), in what is held back and the new piece together: those without
escapes as it is, the others once it is decoded, from which the places are carried back. What is held back is the end of
the stream that may be the beginning of a form or of an escape. Where forms overlap all of it goes: as much of what is
held back as the last mask stands for is only counted.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, AnyStr, Generic, Protocol, TypeAlias, cast

from nsbox._leaks.escapes import Decoded, Unbroken, without_plus

SHORTEST = 4  # bytes of a secret: less would stand in much that is none
LONGEST = 1 << 16
_PIECE = 1 << 16
_MASKS = ("***", "[redacted]", "<redacted>", "###", "~~~")


class Held(Protocol):
    """Something that shows its value only when asked, as nsbox.secrets.Secret does."""

    def reveal(self) -> str:
        """Return the value."""


Value: TypeAlias = str | bytes | Held


def value_of(secret: object, name: str = "a secret") -> bytes:
    """Return a secret's bytes. Raises TypeError or ValueError that says by its name what can't be scrubbed, and why."""
    given: object = secret
    if not isinstance(given, str | bytes) and hasattr(given, "reveal"):
        given = given.reveal()
    if isinstance(given, str):
        try:
            given = given.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            given = None
        if given is None:  # not in the handler: the error knows the value
            raise ValueError(f"{name} has a surrogate that stands for no byte")
    if not isinstance(given, bytes):
        raise TypeError(f"{name} is a {type(secret).__name__}, must be a str, bytes or Secret")
    if len(given) < SHORTEST:
        what = f"has {len(given)} bytes" if given else "is empty"
        raise ValueError(f"{name} {what}, fewer than {SHORTEST}: to redact it would redact much that is no secret")
    if len(given) > LONGEST:
        raise ValueError(f"{name} has more than {LONGEST} bytes, which can't be redacted in a stream")
    return given


# ---- forms


def forms(value: bytes) -> set[bytes]:
    """Return how a value looks in texts without escapes: as it is, in hex, and in base64 of something around it."""
    found = set()
    for one in _variants(value):
        found |= {one, one.hex().encode(), one.hex().upper().encode()}
        found |= _cores(one)
    return found


def plain_forms(value: bytes) -> set[bytes]:
    """Return how a value looks in texts once their escapes are decoded."""
    found = set()
    for one in _variants(value):
        found |= {one, *_cores(one)}
        # An encoder that leaves % or a backslash of a value as it is may leave something that looks like an escape.
        found.add(Decoded(one).text)
    return {without_plus(form) for form in found if len(form) >= SHORTEST}


def broken_forms(value: bytes) -> set[bytes]:
    """Return how a value looks in what an encoder breaks into lines, once these are one line without escapes."""
    found = set()
    for one in _variants(value):
        found |= {one.hex().encode(), one.hex().upper().encode(), *_cores(one)}
    return {without_plus(form) for form in found if len(form) >= SHORTEST}


def _variants(value: bytes) -> set[bytes]:
    """Return a value with either line end, and without blanks at its ends."""
    lines = value.replace(b"\r\n", b"\n")
    found = {value, lines, lines.replace(b"\n", b"\r\n")}
    stripped = value.strip()
    return found | {stripped} if len(stripped) >= SHORTEST else found


def _cores(value: bytes) -> set[bytes]:
    return {core for shift in range(3) for core in _base64(value, shift)}


def _base64(value: bytes, shift: int) -> set[bytes]:
    """Return the letters that depend on nothing but the value where so many bytes (modulo 3) come before it."""
    letters = b64encode(bytes(shift) + value)
    core = letters[(8 * shift + 5) // 6 : 8 * (shift + len(value)) // 6]
    return {core, core.translate(bytes.maketrans(b"+/", b"-_"))}


# ---- search


class _Needles(Generic[AnyStr]):
    """Forms to look for, of which each has at least four letters."""

    def __init__(self, texts: Iterable[AnyStr]) -> None:
        self._all: list[AnyStr] = sorted(set(texts))
        self._ends: list[set[AnyStr]] = [{text[:size] for text in self._all} for size in range(1, SHORTEST)]
        self._tails: dict[AnyStr, AnyStr] = {}
        self.longest = max(map(len, self._all), default=0)

    def found(self, text: AnyStr) -> list[tuple[int, int]]:
        """Return where each of them is, in the order of their beginnings."""
        return sorted(place for needle in self._all if needle in text for place in self._places(needle, text))

    def _places(self, needle: AnyStr, text: AnyStr) -> Iterator[tuple[int, int]]:
        """Yield where it is; those that overlap regularly, as with a repeated letter, as one."""
        tail, size = self._tail(needle), len(needle)
        start = text.find(needle)
        while start >= 0:
            end = start + size
            while tail and text.startswith(tail, end):
                end += len(tail)
            yield start, end
            start = text.find(needle, end - size + 1)

    def _tail(self, needle: AnyStr) -> AnyStr:
        """Return what has to follow it for another to end there that it overlaps most: "" if none can."""
        if needle not in self._tails:
            border, borders = 0, [0]  # Knuth, Morris, Pratt
            for at in range(1, len(needle)):
                while border and needle[at] != needle[border]:
                    border = borders[border - 1]
                border += needle[at] == needle[border]
                borders.append(border)
            self._tails[needle] = needle[border:] if border else needle[:0]
        return self._tails[needle]

    def held(self, text: AnyStr) -> int:
        """Return where the longest end of text starts that one of them begins with; its length where none does."""
        size = len(text)
        best = size
        for length, begins in enumerate(self._ends, 1):
            if length <= size and text[size - length :] in begins:
                best = size - length
        tail = text[max(0, size - SHORTEST) :]  # most needles have it nowhere
        for needle in self._all if size >= SHORTEST else ():
            at = needle.rfind(tail, 0, min(size, len(needle) - 1))
            while at >= 0 and size - at - SHORTEST < best:
                length = at + SHORTEST
                if text.endswith(needle[:length]):
                    best = size - length
                else:
                    at = needle.rfind(tail, 0, length - 1)
        return best


class _Stream(Generic[AnyStr]):
    """What is held back of a stream. covered: how much of it, from its beginning, the last mask stands for."""

    def __init__(
        self, needles: _Needles[AnyStr], plain: _Needles[AnyStr], broken: _Needles[AnyStr], mask: AnyStr
    ) -> None:
        self._needles: _Needles[AnyStr] = needles
        self._plain: _Needles[AnyStr] = plain
        self._broken: _Needles[AnyStr] = broken
        self._mask: AnyStr = mask
        self._pending: AnyStr = mask[:0]
        self._covered = 0

    @property
    def nothing(self) -> AnyStr:
        """The empty text of its kind."""
        return self._mask[:0]

    def feed(self, data: AnyStr, *, is_last: bool = False) -> AnyStr:
        """Return what is safe of what is held back and of this; is_last: all of it."""
        text = self._pending + data
        decoded = Decoded(text)
        size, limit = (len(text), len(decoded.text)) if is_last else decoded.begun()
        plain = decoded.text[:limit]
        lines = Unbroken(plain)
        cut = size if is_last else self._cut(text, size, decoded, plain, lines)
        found = self._needles.found(text)
        within = self._plain.found(plain)
        within += ((lines.start(start), lines.end(end)) for start, end in self._broken.found(lines.text))
        found += ((decoded.start(start), decoded.end(end)) for start, end in within)
        out, at = [], self._covered
        for start, end in sorted(found):
            if start >= cut:
                break
            if start >= at:
                out += [text[at:start], self._mask]
            at = max(at, end)
        out.append(text[at:cut])
        self._pending, self._covered = text[cut:], max(0, at - cut)
        return self._mask[:0].join(out)

    def _cut(self, text: AnyStr, size: int, decoded: Decoded[AnyStr], plain: AnyStr, lines: Unbroken[AnyStr]) -> int:
        """Return where what has to be held back begins."""
        held = self._plain.held(plain)
        unbroken = lines.ended(lines.text)
        begun = self._broken.held(unbroken)
        if begun < len(unbroken):
            held = min(held, lines.start(begun))
        cut = min(size, self._needles.held(text), decoded.start(held) if held < len(plain) else size)
        return decoded.boundary(cut)


class Scrubber:
    r"""Replaces known secrets in one stream, of bytes or of str: output = feed(piece) again and again, then flush().

    What comes out doesn't depend on how the stream was cut. A secret is replaced as it is and in these forms: with
    any of its characters as %XX (also + for a blank), as \uXXXX, \xXX or another escape of JSON, in octal (\NNN),
    behind a backslash, or as an entity of HTML by number or name, whichever an encoder escapes; with ' as '\'' or
    '"'"', as a shell has it; in hex; as a part of anything in base64, also the URL-safe one and with its + and / as
    %XX; both also in lines (MIME, PEM, xxd -p); with the other line ends (LF, CR LF); without blanks at its ends.
    Where secrets overlap all of it is replaced, by one mask. Nothing else is changed.

    Not found: what is escaped twice, such as JSON in JSON; hex with blanks, offsets or colons (hexdump, xxd without
    -p); base64 in lines that are indented; other encodings, such as base32, and what is compressed.

    secrets: str, bytes or nsbox.secrets.Secret, of 4 to 65536 bytes in UTF-8; others raise ValueError, since a
    shorter one would stand in much that is no secret. mask: what stands for them, "***" unless that, with what is
    beside it, could be one of the secrets; then another. A mask given that could be raises ValueError.

    It keeps the secrets in memory, and of the stream what may be the beginning of one, or of an escape: less than
    the longest form (six times the longest secret for \uXXXX, more for names of HTML and for lines of one letter).
    So the last letters of a prompt may only come with the next piece.
    """

    def __init__(self, secrets: Iterable[Value], *, mask: str | None = None) -> None:
        if isinstance(secrets, str | bytes) or hasattr(secrets, "reveal"):
            raise TypeError("secrets: is one, must be a list or another iterable of them")
        values = {value_of(secret, f"secret {number}") for number, secret in enumerate(secrets, 1)}
        self._count = len(values)
        every = {form for value in values for form in forms(value)}
        plain = {form for value in values for form in plain_forms(value)}
        broken = {form for value in values for form in broken_forms(value)}
        self.mask = _mask_for(every | plain | broken, mask)
        raw = _Needles(every), _Needles(plain), _Needles(broken)
        text = _Needles(map(_text, every)), _Needles(map(_text, plain)), _Needles(map(_text, broken))
        self._made = {bytes: (raw, self.mask.encode()), str: (text, self.mask)}
        self._stream: _Stream[Any] | None = None
        self._kind: type | None = None

    def feed(self, data: AnyStr) -> AnyStr:
        """Take a piece of the stream, and return what is safe of it and of what was held back.

        Raises TypeError for anything but bytes or str, and for the other of the two than the stream began with.
        """
        return cast(AnyStr, self._current(data).feed(data))

    def flush(self) -> Any:
        """Return what is left, as bytes or str as it was fed (b"" if nothing was), and be ready for another stream."""
        stream, self._stream, self._kind = self._stream, None, None
        return b"" if stream is None else stream.feed(stream.nothing, is_last=True)

    def scrub(self, text: AnyStr) -> AnyStr:
        """Return a whole text with the secrets replaced. The stream of feed() isn't touched."""
        stream = self._new(text)  # in pieces: what a decoded text is made of takes many times its memory
        parts: list[Any] = [stream.feed(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE)]
        parts.append(stream.feed(stream.nothing, is_last=True))
        nothing: Any = stream.nothing
        return cast(AnyStr, nothing.join(parts))

    def another(self) -> Scrubber:
        """Return a Scrubber of the same secrets for another stream, such as stderr beside stdout."""
        made = object.__new__(Scrubber)
        made._count, made.mask, made._made = self._count, self.mask, self._made
        made._stream = made._kind = None
        return made

    def _new(self, data: object) -> _Stream[Any]:
        kind = str if isinstance(data, str) else bytes if isinstance(data, bytes) else None
        if kind is None:
            raise TypeError(f"data is a {type(data).__name__}, must be bytes or str")
        needles, mask = self._made[kind]
        return _Stream(*cast(tuple[_Needles[Any], _Needles[Any], _Needles[Any]], needles), mask)

    def _current(self, data: object) -> _Stream[Any]:
        new = self._new(data)
        if self._stream is None:
            self._stream, self._kind = new, type(new.nothing)
        elif type(new.nothing) is not self._kind:
            raise TypeError("the stream has both bytes and str; flush() ends it")
        return self._stream

    def __repr__(self) -> str:
        return f"<nsbox.leaks.Scrubber of {self._count} secrets>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a Scrubber isn't pickled or copied, since it holds secrets: another() makes one for another stream"
        )


def _text(form: bytes) -> str:
    return form.decode("utf-8", "surrogateescape")


def _mask_for(every: set[bytes], given: str | None) -> str:
    """Return a mask that can't make up a form with what is beside it."""
    if given is not None:
        if not given or _makes_up(given.encode(), every):
            raise ValueError("mask: is empty, or could be a part of one of the secrets; give another, or none")
        return given
    single = (chr(byte) for byte in range(0x21, 0x7F) if chr(byte) not in "%&+\\")  # with which an escape could begin
    for mask in (*_MASKS, *single):
        if not _makes_up(mask.encode(), every):
            return mask
    raise ValueError("secrets: no mask is left that isn't a part of one; give a mask of other letters")


def _makes_up(mask: bytes, every: set[bytes]) -> bool:
    """Say if a form could stand partly in a mask: it is in the other, or begins as the other ends."""
    ends = tuple(mask[at:] for at in range(1, len(mask)))
    begins = tuple(mask[:at] for at in range(1, len(mask)))
    return any(mask in form or form in mask or form.startswith(ends) or form.endswith(begins) for form in every)
