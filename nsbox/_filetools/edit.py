"""Replacing a part of a text exactly so many times, or an error that shows near misses. Opens no file."""

from __future__ import annotations

import codecs
import difflib

from nsbox._base.display import printable, type_phrase
from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

CODECS = ("utf-8", "utf8", "utf-8-sig", "ascii")  # a diff can show the bytes of these
_BOMS = {  # for codecs that write one: the mark, and the codec of what follows
    "utf-8": ((codecs.BOM_UTF8, "utf-8"),),
    "utf-8-sig": ((codecs.BOM_UTF8, "utf-8"), (b"", "utf-8")),
    "utf-16": ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
    "utf-32": ((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be")),
}
_MOST_CHARS = 64 << 20  # of the new text
_MOST_LOOKED_AT = 20_000  # lines, for near misses
_MOST_WANTED = 200  # lines of the text that is looked for
_LONGEST = 200  # characters of a line that are compared, and shown
_MOST_NEAR = 3
_MOST_NUMBERS = 10  # of lines
_NEAR = 0.6


class EditError(NsboxError, ValueError):
    """A file wasn't edited, and is as it was.

    filename: the path.
    problem: what is wrong.
    found: how many occurrences there are, or None.
    """

    def __init__(self, filename: str, problem: str, found: int | None = None) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(filename, problem, found)
        self.filename, self.problem, self.found = filename, problem, found

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in f"{self.filename} {self.problem}".split("\n"))


EditError.__module__ = "nsbox"


@frozen
class Text(Frozen):
    """The text of a file, and how it becomes bytes again.

    bom: the byte order mark before it. codec: of the rest.
    """

    body: str
    bom: bytes
    codec: str

    @classmethod
    def decoded(cls, data: bytes, encoding: str, shown: str) -> Text:
        """Return the text; raises EditError if writing it back would change the bytes."""
        name = codecs.lookup(encoding).name
        bom, codec = next(((bom, rest) for bom, rest in _BOMS.get(name, ()) if data.startswith(bom)), (b"", encoding))
        try:
            body = data[len(bom) :].decode(codec)
        except UnicodeDecodeError as error:
            what = f"isn't {encoding} text (byte {error.object[error.start]:#04x} at {len(bom) + error.start})"
            raise EditError(shown, f"{what}; if it has another encoding, name that by encoding=") from None
        if name in CODECS and "\0" in body:
            raise EditError(shown, "isn't text: it has NUL bytes")
        text = cls(body, bom, codec)
        if text.encoded(body) != data:
            raise EditError(shown, f"has {encoding} text that would be written back differently")
        return text

    def encoded(self, body: str) -> bytes:
        """Return the bytes of a new text; raises UnicodeEncodeError (a ValueError)."""
        return self.bom + body.encode(self.codec)

    @property
    def is_crlf(self) -> bool:
        """Whether each line ends in CRLF."""
        return "\r\n" in self.body and self.body.count("\n") == self.body.count("\r\n")


def replaced(text: Text, old: str, new: str, count: int | None, shown: str) -> tuple[str, int]:
    """Return the new text, and how many occurrences it replaces; raises EditError and ValueError.

    In a file whose lines all end in CRLF, the line ends of `old` and `new` are read as CRLF.
    """
    for name, value in (("old", old), ("new", new)):
        if not isinstance(value, str):
            raise TypeError(f"{name} is {type_phrase(value)}, must be a str")
    if not old:
        raise ValueError("old is empty; to fill an empty file, or to add to one, use write() or append()")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"count is {count!r}, must be a number from 1, or None for all")
    if text.is_crlf:
        old, new = (_with_crlf(part) for part in (old, new))
    if old == new:
        raise ValueError("old and new are the same")
    found = text.body.count(old)
    if not found:
        raise EditError(shown, f"doesn't have this text{_near(text, old)}", 0)
    if count is not None and found != count:
        lines = ", ".join(map(str, _lines_of(text.body, old)))
        times = "once" if found == 1 else f"{found} times"
        where = f"line{'' if found == 1 else 's'} {lines}"
        what = f"has this text {times} ({where}), not {'once' if count == 1 else f'{count} times'}"
        raise EditError(shown, f"{what}: add lines around it to old, or give another count", found)
    if len(text.body) + found * (len(new) - len(old)) > _MOST_CHARS:
        raise EditError(shown, f"would have more than {_MOST_CHARS} characters", found)
    return text.body.replace(old, new), found


def _with_crlf(part: str) -> str:
    return part if "\r" in part else part.replace("\n", "\r\n")


def _lines_of(body: str, old: str) -> list[int | str]:
    """Return the numbers of the lines where it begins: ten at most, and "..." for the rest."""
    numbers: list[int | str] = []
    at, line, before = body.find(old), 1, 0
    while at >= 0:
        line += body.count("\n", before, at)
        before = at
        if len(numbers) == _MOST_NUMBERS:
            return [*numbers, "..."]
        numbers.append(line)
        at = body.find(old, at + len(old))
    return numbers


# ---- near misses


def _near(text: Text, old: str) -> str:
    """Return a sentence about lines that nearly match; "" if there are none."""
    lines = [line.removesuffix("\r") for line in text.body.split("\n", _MOST_LOOKED_AT)[:_MOST_LOOKED_AT]]
    wanted = [line.removesuffix("\r") for line in old.split("\n")]
    whole = _same_but_for(text, lines, old, wanted)
    if whole:
        return whole
    first = next((line for line in wanted if line.strip()), "")
    ratios = _ratios(lines, first)
    rows = _rows(lines, [number for _, number in ratios])
    return f". The closest lines to {_cut(first.strip())!r}:\n{rows}" if rows else ""


def _same_but_for(text: Text, lines: Sequence[str], old: str, wanted: Sequence[str]) -> str:
    """Say where the same lines are, if only line ends, white space or case differ."""
    if old.replace("\r\n", "\n") in text.body.replace("\r\n", "\n"):
        own = "CRLF" if text.is_crlf else "both LF and CRLF" if "\r\n" in text.body else "LF"
        return f": only the line ends differ. The file has {own}"
    for what, change in (("white space", _plain), ("upper and lower case", str.casefold)):
        needles = [change(line) for line in wanted]
        while needles and not needles[0].strip():
            needles.pop(0)
        while needles and not needles[-1].strip():
            needles.pop()
        if not 0 < len(needles) <= _MOST_WANTED:
            continue
        changed = [change(line) for line in lines]
        at = [i for i in range(len(changed) - len(needles) + 1) if _is_at(changed, i, needles)]
        if at:
            return f". A text that differs only in {what} begins at:\n{_rows(lines, [i + 1 for i in at])}"
    return ""


def _rows(lines: Sequence[str], numbers: Sequence[int]) -> str:
    """Return rows of the first different lines among those with these numbers, each once, with all of its numbers."""
    at: dict[str, list[int]] = {}
    for number in numbers:
        line = _cut(lines[number - 1])
        if line in at or len(at) < _MOST_NEAR:
            at.setdefault(line, []).append(number)
    rows = sorted((sorted(found), line) for line, found in at.items())
    return "\n".join(f"  {_listed(found)}: {line}" for found, line in rows)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join([*map(str, numbers[:_MOST_NUMBERS]), *(["..."] if len(numbers) > _MOST_NUMBERS else [])])


def _is_at(lines: Sequence[str], at: int, needles: Sequence[str]) -> bool:
    if len(needles) == 1:
        return needles[0] in lines[at]
    inner = all(lines[at + i] == needles[i] for i in range(1, len(needles) - 1))
    return inner and lines[at].endswith(needles[0]) and lines[at + len(needles) - 1].startswith(needles[-1])


def _plain(line: str) -> str:
    return " ".join(line[: 10 * _LONGEST].split())


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _ratios(lines: Sequence[str], wanted: str) -> list[tuple[float, int]]:
    """Return how similar lines are, with their numbers: the most similar first."""
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(wanted.strip()[:_LONGEST])
    found = []
    for number, line in enumerate(lines, 1):
        part = line.strip()[:_LONGEST]
        if not part:
            continue
        matcher.set_seq1(part)
        if matcher.real_quick_ratio() >= _NEAR and (ratio := matcher.quick_ratio()) >= _NEAR:
            found.append((ratio, number))
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    return found
