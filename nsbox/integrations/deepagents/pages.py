"""A page of a file's lines, read without holding the file in memory."""

from __future__ import annotations

import codecs
import io
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import IO

_PREFIX = 8192  # bytes that say whether it is text
_PIECE = 1 << 16  # characters that are read at once
_COUNTED = 1 << 20  # bytes of a file whose lines are counted


@dataclass(frozen=True)
class Page:
    """Lines of a text file, or the contents of another one.

    size: of the file, in bytes.
    is_text: whether it is UTF-8.
    data: the contents of a file that isn't, if it isn't too large.
    offset, limit: as requested.
    text: the lines, without a newline at the end.
    count: how many lines; a line that was cut counts only if it is the first.
    total: how many the file has; None if it wasn't read to its end.
    is_cut: whether the text would be too large.
    """

    size: int
    is_text: bool
    data: bytes = field(default=b"", repr=False)
    offset: int = 0
    limit: int = 0
    text: str = field(default="", repr=False)
    count: int = 0
    total: int | None = None
    is_cut: bool = False


def page(file: IO[bytes], offset: int, limit: int, most: int, most_data: int, *, is_text: bool = True) -> Page:
    """Return some lines of a file.

    file: open for reading, at its beginning.
    offset: how many lines to skip. limit: how many to return.
    most: bytes of text. most_data: bytes of a file that isn't text.
    is_text: False: the file isn't text, whatever it looks like.
    """
    size = os.fstat(file.fileno()).st_size
    if is_text:
        prefix = file.read(_PREFIX)
        try:
            codecs.getincrementaldecoder("utf-8")().decode(prefix)
        except UnicodeDecodeError:
            is_text = False
        file.seek(0)
    if not is_text:
        return Page(size, False, file.read() if size <= most_data else b"")
    if not limit or not size:
        return Page(size, True, offset=offset, limit=limit)
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as lines:
        return _Lines(lines, most).page(size, offset, limit)


class _Lines:
    def __init__(self, lines: io.TextIOWrapper, most: int) -> None:
        self._lines, self._most = lines, most

    def page(self, size: int, offset: int, limit: int) -> Page:
        skipped = 0
        while skipped < offset and self._skip():
            skipped += 1
        parts: list[str] = []
        is_cut, room = False, self._most
        while len(parts) < limit and not is_cut:
            line = self._lines.readline(room + 1)
            if not line:
                break
            piece = ("\n" if parts else "") + line.removesuffix("\n")
            data = piece.encode()
            is_cut = len(data) > room or (len(line) > room and not line.endswith("\n"))
            parts.append(data[:room].decode("utf-8", "ignore"))
            room -= len(data)
        count = len(parts) - 1 if is_cut and len(parts) > 1 else len(parts)
        total = self._total(size, skipped + len(parts), is_cut=is_cut)
        return Page(
            size, True, b"", offset if parts else max(offset, skipped), limit, "".join(parts), count, total, is_cut
        )

    def _skip(self) -> bool:
        """Read a line; return whether there was one."""
        piece = self._lines.readline(_PIECE)
        found = bool(piece)
        while piece and not piece.endswith("\n"):
            piece = self._lines.readline(_PIECE)
        return found

    def _total(self, size: int, read: int, *, is_cut: bool) -> int | None:
        if is_cut:  # the rest of the line
            self._skip()
        if size > _COUNTED and self._lines.readline(1):
            return None
        while self._skip():
            read += 1
        return read
