"""Scrubber: replaces known secrets in a stream, even if they are encoded or arrive in pieces.

find() looks for all forms of all secrets, in the text that was held back and the new piece together. Forms without
escapes are looked for in the text as it is. The others are looked for in the decoded text, and their places are carried
back to the source. The end of the stream is held back if it may be the beginning of a form, or of an escape.

Where forms overlap, one mask stands for all of them. So the last mask may stand for the beginning of the text that is
held back: how much of it is counted (_Stream._covered).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, AnyStr, Generic, Protocol, TypeAlias, cast

from nsbox._base.display import type_phrase
from nsbox._leaks.escapes import Decoded, Unbroken, without_plus

SHORTEST = 4  # bytes of a secret: a shorter one would occur in much that is no secret
LONGEST = 1 << 16
_PIECE = 1 << 16
_MASKS = ("***", "[redacted]", "<redacted>", "###", "~~~")


class Held(Protocol):
    """Something that shows its value only on request, as nsbox.secrets.Secret does."""

    def reveal(self) -> str:
        """Return the value."""


Value: TypeAlias = str | bytes | Held


def value_of(secret: object, name: str = "a secret") -> bytes:
    """Return a secret's bytes. Raises TypeError or ValueError, with its name, if it can't be scrubbed."""
    value: object = secret
    if not isinstance(value, str | bytes) and hasattr(value, "reveal"):
        value = value.reveal()
    if isinstance(value, str):
        try:
            value = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            value = None
        if value is None:  # not in the handler: the error there has the value
            raise ValueError(f"{name} has a surrogate that stands for no byte")
    if not isinstance(value, bytes):
        raise TypeError(f"{name} is {type_phrase(secret)}, must be a str, bytes or Secret")
    if len(value) < SHORTEST:
        what = f"has {len(value)} bytes" if value else "is empty"
        raise ValueError(f"{name} {what}, fewer than {SHORTEST}: redacting it would redact much that is no secret")
    if len(value) > LONGEST:
        raise ValueError(f"{name} has more than {LONGEST} bytes, which can't be redacted in a stream")
    return value


# ---- forms


def forms(value: bytes) -> set[bytes]:
    """Return the forms of a value in texts without escapes: itself, in hex, and in base64 of something around it."""
    texts = set()
    for one in _variants(value):
        texts |= {one, one.hex().encode(), one.hex().upper().encode()}
        texts |= _cores(one)
    return texts


def plain_forms(value: bytes) -> set[bytes]:
    """Return the forms of a value in texts whose escapes have been decoded."""
    texts = set()
    for one in _variants(value):
        texts |= {one, *_cores(one)}
        # An encoder that leaves % or a backslash of a value as it is may leave something that looks like an escape.
        texts.add(Decoded(one).text)
    return {without_plus(form) for form in texts if len(form) >= SHORTEST}


def broken_forms(value: bytes) -> set[bytes]:
    """Return the forms of a value that an encoder breaks into lines, in decoded texts whose lines have been joined."""
    texts = set()
    for one in _variants(value):
        texts |= {one.hex().encode(), one.hex().upper().encode(), *_cores(one)}
    return {without_plus(form) for form in texts if len(form) >= SHORTEST}


def _variants(value: bytes) -> set[bytes]:
    """Return a value with either line end, and without blanks at its ends."""
    lines = value.replace(b"\r\n", b"\n")
    texts = {value, lines, lines.replace(b"\n", b"\r\n")}
    stripped = value.strip()
    return texts | {stripped} if len(stripped) >= SHORTEST else texts


def _cores(value: bytes) -> set[bytes]:
    return {core for shift in range(3) for core in _base64(value, shift)}


def _base64(value: bytes, shift: int) -> set[bytes]:
    """Return the letters of base64 that depend on the value alone, if `shift` bytes (modulo 3) come before it."""
    letters = b64encode(bytes(shift) + value)
    core = letters[(8 * shift + 5) // 6 : 8 * (shift + len(value)) // 6]
    return {core, core.translate(bytes.maketrans(b"+/", b"-_"))}


# ---- search


class _Needles(Generic[AnyStr]):
    """Forms to look for, each of at least four letters."""

    def __init__(self, texts: Iterable[AnyStr]) -> None:
        self._all: list[AnyStr] = sorted(set(texts))
        self._ends: list[set[AnyStr]] = [{text[:size] for text in self._all} for size in range(1, SHORTEST)]
        self._tails: dict[AnyStr, AnyStr] = {}
        self.longest = max(map(len, self._all), default=0)

    def found(self, text: AnyStr) -> list[tuple[int, int]]:
        """Return (start, end) of each needle in text, sorted."""
        return sorted(place for needle in self._all if needle in text for place in self._places(needle, text))

    def _places(self, needle: AnyStr, text: AnyStr) -> Iterator[tuple[int, int]]:
        """Yield where a needle is. Regular overlaps, as of a repeated letter, are yielded as one place."""
        tail, size = self._tail(needle), len(needle)
        start = text.find(needle)
        while start >= 0:
            end = start + size
            while tail and text.startswith(tail, end):
                end += len(tail)
            yield start, end
            start = text.find(needle, end - size + 1)

    def _tail(self, needle: AnyStr) -> AnyStr:
        """Return the text after which a needle ends again, with the greatest overlap; "" if it can't overlap itself."""
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
        """Return where the longest end of text starts that begins a needle; text's length if there is none."""
        size = len(text)
        best = size
        for length, begins in enumerate(self._ends, 1):
            if length <= size and text[size - length :] in begins:
                best = size - length
        tail = text[max(0, size - SHORTEST) :]  # most needles don't have it anywhere
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
    """The end of a stream that is held back. _covered: for how much of it, from its beginning, the last mask stands."""

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
        """Return the safe part of what is held back and of data; with is_last, all of it is."""
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
        """Return the place from which on the text has to be held back."""
        held = self._plain.held(plain)
        unbroken = lines.ended(lines.text)
        begun = self._broken.held(unbroken)
        if begun < len(unbroken):
            held = min(held, lines.start(begun))
        cut = min(size, self._needles.held(text), decoded.start(held) if held < len(plain) else size)
        return decoded.boundary(cut)


class Scrubber:
    r"""Replaces known secrets in one stream, of bytes or of str: output = feed(piece) again and again, then flush().

    The output doesn't depend on how the stream was cut into pieces. A secret is replaced as it is, and in these forms:

    - with any of its characters escaped, whichever an encoder escapes: as %XX (also + for a blank), as \uXXXX, \xXX or
      another escape of JSON, in octal (\NNN), behind a backslash, or as an entity of HTML by number or name;
    - with ' as '\'' or '"'"', as in a shell;
    - in hex, and as a part of anything in base64, also the URL-safe one and with its + and / as %XX; both also in lines
      (MIME, PEM, xxd -p);
    - with the other line ends (LF, CR LF), and without blanks at its ends.

    Where secrets overlap, one mask replaces all of them. Nothing else is changed.

    Not found: what is escaped twice, such as JSON in JSON; hex with blanks, offsets or colons (hexdump, xxd without
    -p); base64 in lines that are indented; other encodings, such as base32, and what is compressed.

    secrets: an iterable of str, bytes or nsbox.secrets.Secret, each of 4 to 65536 bytes in UTF-8. A shorter one would
        occur in much that is no secret.
    mask: what replaces them. Default: None, for "***"; or for another one, if "***", with what is beside it, could be
        one of the secrets.

    Raises TypeError or ValueError for other secrets, and ValueError for a mask that could be one of them.

    It keeps the secrets in memory, and the end of the stream if that may begin a secret, or an escape. This is less
    than the longest form (six times the longest secret for \uXXXX, more for names of HTML and for lines of one letter).
    So the last letters of a prompt may only come with the next piece.
    """

    def __init__(self, secrets: Iterable[Value], *, mask: str | None = None) -> None:
        if isinstance(secrets, str | bytes) or hasattr(secrets, "reveal"):
            raise TypeError("secrets: is one, must be a list or another iterable of them")
        values = {value_of(secret, f"secret {number}") for number, secret in enumerate(secrets, 1)}
        self._values = values
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
        """Return the safe part of a piece of the stream, and of what was held back.

        Raises TypeError for anything except bytes or str, and if the stream began with the other of the two.
        """
        return cast(AnyStr, self._current(data).feed(data))

    def flush(self) -> Any:
        """Return what is left, of the type that was fed (b"" if nothing was), and get ready for another stream."""
        stream, self._stream, self._kind = self._stream, None, None
        return b"" if stream is None else stream.feed(stream.nothing, is_last=True)

    def scrub(self, text: AnyStr) -> AnyStr:
        """Return a whole text with the secrets replaced. The stream of feed() stays as it is."""
        stream = self._new(text)  # in pieces: decoding a text takes many times its memory
        parts: list[Any] = [stream.feed(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE)]
        parts.append(stream.feed(stream.nothing, is_last=True))
        nothing: Any = stream.nothing
        return cast(AnyStr, nothing.join(parts))

    def another(self) -> Scrubber:
        """Return a Scrubber of the same secrets for another stream, such as stderr beside stdout."""
        other = object.__new__(Scrubber)
        other._values, other.mask, other._made = self._values, self.mask, self._made
        other._stream = other._kind = None
        return other

    def lowered(self) -> Scrubber:
        """Return a Scrubber of the same secrets in lower case, as names of hosts have them."""
        return Scrubber({value.lower() for value in self._values})

    def _new(self, data: object) -> _Stream[Any]:
        kind = str if isinstance(data, str) else bytes if isinstance(data, bytes) else None
        if kind is None:
            raise TypeError(f"data is {type_phrase(data)}, must be bytes or str")
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
        return f"<nsbox.leaks.Scrubber of {len(self._values)} secrets>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a Scrubber can't be pickled or copied, since it holds secrets: another() makes one for another stream"
        )


def _text(form: bytes) -> str:
    return form.decode("utf-8", "surrogateescape")


def _mask_for(every: set[bytes], wish: str | None) -> str:
    """Return a mask that can't form a secret with what is beside it. wish: the caller's mask, which is checked."""
    if wish is not None:
        if not wish or _makes_up(wish.encode(), every):
            raise ValueError("mask: is empty, or could be a part of one of the secrets; give another, or none")
        return wish
    single = (chr(byte) for byte in range(0x21, 0x7F) if chr(byte) not in "%&+\\")  # these could begin an escape
    for mask in (*_MASKS, *single):
        if not _makes_up(mask.encode(), every):
            return mask
    raise ValueError("secrets: no mask is left that isn't a part of one; give a mask of other letters")


def _makes_up(mask: bytes, every: set[bytes]) -> bool:
    """Return whether a mask could be a part of a form: one contains the other, or begins as the other ends."""
    ends = tuple(mask[at:] for at in range(1, len(mask)))
    begins = tuple(mask[:at] for at in range(1, len(mask)))
    return any(mask in form or form in mask or form.startswith(ends) or form.endswith(begins) for form in every)
