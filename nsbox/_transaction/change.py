"""One change of a transaction, as a value and as a line of text."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from nsbox._base.display import c_quoted, shown
from nsbox._base.frozen import Frozen, field, frozen

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@frozen
class Change(Frozen):
    """One change of a transaction.

    If a directory is added or deleted, so is everything below it, each with a change of its own.

    kind: "added", "modified", "deleted" or "renamed".
    path: relative to the workspace; "." is the workspace itself.
    type: "file", "directory", "symlink", "fifo", "socket" or "device"; now or, if the kind is "deleted", before.
    mode: permission bits; now or, if the kind is "deleted", before.
    old_path: the path before, if the kind is "renamed".
    old_type, old_mode: type and mode before, if the kind is "modified" or "renamed".
    attributes: names of extended attributes, including access lists, that it has, or that were changed or removed.
    link: the path of another added or changed file, of which this is a hard link.
    target: where a symlink leads, if diff() has looked.
    digest: of contents and attributes now, if diff() has made it. Two changes that differ in nothing else are equal.
    """

    kind: str
    path: str
    type: str
    mode: int
    old_path: str | None = None
    old_type: str | None = None
    old_mode: int | None = None
    attributes: tuple[str, ...] = ()
    link: str | None = None
    target: str | None = None
    digest: str | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        letter = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R"}[self.kind]
        name = f"{shown(self.old_path)} -> {shown(self.path)}" if self.old_path else shown(self.path)
        remarks = ", ".join(self._remarks()) if self.kind != "deleted" else ""
        return f"{letter} {name}{'/' if self.type == 'directory' else ''}{f' ({remarks})' if remarks else ''}"

    def _remarks(self) -> Iterator[str]:
        """Yield what a name and a letter don't say."""
        is_other = self.old_type not in (None, self.type)
        target = f" to {shown(self.target)}" if self.target is not None else ""
        if is_other:
            yield f"{self.old_type} becomes {self.type}{target}"
        elif self.type not in ("file", "directory"):
            yield f"{self.type}{target}"
        is_usual = not self.mode & (0o7002 if self.type == "directory" else 0o7113)
        if self.type != "symlink" and self.old_type == self.type and self.mode != self.old_mode:
            yield f"mode {self.old_mode or 0:04o} becomes {self.mode:04o}"
        elif self.type != "symlink" and (self.old_type is None or is_other) and not is_usual:
            yield f"mode {self.mode:04o}"
        if self.attributes:
            names = (c_quoted(name) if " " in name else shown(name) for name in self.attributes)
            yield f"attributes {' '.join(names)}"
        if self.link is not None:
            yield f"hard link to {shown(self.link)}"


def type_of(mode: int) -> str:
    """Return the name that Change has for a type of file."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


def kind_of(name: str) -> int:
    """Return the bits of a mode (S_IFMT) for what type_of() returns; 0 for devices, of which there are two kinds."""
    return next((bits for bits, known in _TYPES.items() if known == name), 0)
