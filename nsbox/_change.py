"""One change of a transaction, as a value and as a line of text."""

from __future__ import annotations

import stat
from _collections_abc import Iterator

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

    kind: "added", "modified", "deleted" or "renamed". path: relative to the workspace; "." is the workspace. type:
    "file", "directory", "symlink", "fifo", "socket" or "device"; mode: permission bits; both as they are now, or of
    what is deleted as they were. old_type, old_mode: how they were, where the kind is "modified" or "renamed".
    old_path: of what is renamed. A directory that is added or deleted is listed with all below it.
    attributes: names of extended attributes, access lists among them, that it has or that were changed or removed.
    link: the path of another one that has been added or changed, of which this is a hard link. target: where a symlink
    leads, where diff() has looked. digest: of contents and attributes as they are now, where diff() has made it; two
    changes that differ in nothing else are equal.
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
        said = ", ".join(self._remarks()) if self.kind != "deleted" else ""
        return f"{letter} {name}{'/' if self.type == 'directory' else ''}{f' ({said})' if said else ''}"

    def _remarks(self) -> Iterator[str]:
        """Yield what a name and a letter don't tell."""
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
    """Return what Change calls a type of file."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


def kind_of(name: str) -> int:
    """Return the bits of a mode (S_IFMT) for what type_of() returns; 0 for devices, of which there are two kinds."""
    return next((bits for bits, known in _TYPES.items() if known == name), 0)
