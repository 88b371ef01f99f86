"""The records that file tools return. They are frozen, and each has as_dict() for JSON."""

from __future__ import annotations

import base64
import datetime

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen

if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["created", "changed", "unchanged", "deleted", "moved", "copied"]


@frozen
class Attachment(Frozen):
    """A file that you pass on from the sandbox.

    name: the last part of its path.
    path: as the caller gave it.
    size: in bytes.
    data: what was in it when it was read.
    """

    name: str
    path: str
    size: int
    data: bytes = field(repr=False)

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON, with the data in base64."""
        data = base64.b64encode(self.data).decode("ascii")
        return {"name": self.name, "path": self.path, "size": self.size, "data": data}


@frozen
class Binary(Frozen):
    """A program in tools_bin: its name, size in bytes, and when it was last changed (UTC)."""

    name: str
    size: int
    modified: datetime.datetime

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return {"name": self.name, "size": self.size, "modified": f"{self.modified:%Y-%m-%dT%H:%M:%SZ}"}


@frozen
class Lines(Frozen):
    """Some lines of a text file.

    path: as the caller gave it.
    text: the lines, with numbers as `cat -n` writes them if these were asked for. A cut line ends in a note.
    first, last: the numbers of the first and the last line in the text; last is first - 1 if there are none.
    total: how many lines the file has; None if that is unknown, since the file wasn't read to its end.
    is_truncated: whether the file has more lines after these, or one of these is cut.
    """

    path: str
    text: str
    first: int
    last: int
    total: int | None
    is_truncated: bool

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return _values(self)


@frozen
class FileChange(Frozen):
    """What a call has changed.

    path: as the caller gave it; the destination of a move or a copy.
    kind: "created", "changed", "unchanged" (the contents are the same as before), "deleted", "moved", "copied".
    diff: how the contents have changed, as a unified diff; None if they aren't text, are too large, or only names have
        changed.
    is_truncated: whether the diff is cut.
    count: how many files and directories; for edit(), how many occurrences were replaced.
    """

    path: str
    kind: Kind
    diff: str | None = None
    is_truncated: bool = False
    count: int = 1

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return _values(self)


@frozen
class Match(Frozen):
    """A line that grep() has found.

    path: of the file, in a form that the other tools accept.
    line: its number, from 1.
    text: the line without its end, cut if it is long.
    is_context: whether it doesn't match itself, and is shown as context.
    """

    path: str
    line: int
    text: str
    is_context: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return _values(self)


@frozen
class Matches(Frozen):
    """What grep() has found.

    matches: Match records, ordered by path and line.
    is_truncated: whether there may be more; `why` says which limit was reached.
    why: "matches", "chars", "time" or "cancelled"; "" if everything was searched.
    engine: the program that searched, "rg" or "python".
    """

    matches: tuple[Match, ...]
    is_truncated: bool
    why: str
    engine: str

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return _values(self) | {"matches": [match.as_dict() for match in self.matches]}

    def __str__(self) -> str:
        """Return the matches as grep -n prints them."""
        rows = (
            f"{printable(m.path)}{'-' if m.is_context else ':'}{m.line}{'-' if m.is_context else ':'}{m.text}\n"
            for m in self.matches
        )
        return "".join(rows)


@frozen
class Paths(Frozen):
    """What glob() has found.

    paths: the newest first, in a form that the other tools accept.
    is_truncated: whether there are more, or some directories weren't looked at.
    """

    paths: tuple[str, ...]
    is_truncated: bool

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return {"paths": list(self.paths), "is_truncated": self.is_truncated}


@frozen
class Media(Frozen):
    """A file of any type, such as an image.

    path: as the caller gave it.
    type: its MIME type, found by its first bytes or, failing that, by its name.
    size: in bytes.
    data: its contents.
    """

    path: str
    type: str
    size: int
    data: bytes = field(repr=False)

    @property
    def is_image(self) -> bool:
        """Whether it is an image."""
        return self.type.startswith("image/")

    def base64(self) -> str:
        """Return the contents in base64."""
        return base64.b64encode(self.data).decode("ascii")

    def data_url(self) -> str:
        """Return it as a data URL (RFC 2397)."""
        return f"data:{self.type};base64,{self.base64()}"

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON, with the data in base64."""
        return {"path": self.path, "type": self.type, "size": self.size, "data": self.base64()}


def _values(record: Frozen) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in record.__frozen_fields__}
