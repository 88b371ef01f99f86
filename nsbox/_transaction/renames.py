"""Renames: a file that was deleted here and added there with the same contents, found by reading both trees."""

from __future__ import annotations

from collections import deque

from nsbox._files.comparison import digest
from nsbox._files.files import Tree
from nsbox._transaction.change import Change

_MOST_HASHED = 64 << 20  # bytes of a file that is looked for under another name
_MOST_HASHED_IN_ALL = 1 << 30  # bytes of all such files of a transaction: a second or so


class _Gone:
    """Deleted files with the same contents. A new file takes one: the first of its own name, else the first of all."""

    def __init__(self) -> None:
        self._in_order: deque[Change] = deque()
        self._by_name: dict[str, deque[Change]] = {}
        self._taken: set[str] = set()

    def add(self, change: Change) -> None:
        self._in_order.append(change)
        self._by_name.setdefault(_name(change), deque()).append(change)

    def take(self, new: Change) -> Change | None:
        for candidates in (self._by_name.get(_name(new)), self._in_order):
            while candidates:
                change = candidates.popleft()
                if change.path not in self._taken:
                    self._taken.add(change.path)
                    return change
        return None


def _name(change: Change) -> str:
    return change.path.rpartition("/")[2]


class Renames:
    """Finds the renames among the changes from one tree to another. No command may be at work in either."""

    def __init__(self, upper: Tree, real: Tree) -> None:
        """Look in two trees. upper: has what was added. real: has what was deleted."""
        self._upper, self._real = upper, real
        self._left_to_hash = _MOST_HASHED_IN_ALL

    def joined(self, changes: list[Change]) -> list[Change]:
        """Return the changes, with a deleted and an added file of the same contents joined into a rename."""
        gone: dict[bytes, _Gone] = {}
        added = [change for change in changes if change.kind == "added" and change.type == "file"]
        sizes = {size for change in added if 0 < (size := self._size(self._upper, change)) <= _MOST_HASHED}
        there: set[int] = set()
        for change in changes:
            if change.kind == "deleted" and change.type == "file" and (size := self._size(self._real, change)) in sizes:
                known = self._digest(self._real, change)
                if known is not None:
                    there.add(size)
                    gone.setdefault(known, _Gone()).add(change)
        if not gone:
            return changes
        replaced: dict[Change, Change | None] = {}
        for change in added:
            if self._size(self._upper, change) in there:
                known = self._digest(self._upper, change)
                old = gone[known].take(change) if known in gone else None
                if old is not None:
                    replaced[old] = None
                    replaced[change] = Change(
                        "renamed", change.path, change.type, change.mode, old.path, old.type, old.mode
                    )
        joined = (replaced.get(change, change) for change in changes)
        return [change for change in joined if change is not None]

    @staticmethod
    def _size(tree: Tree, change: Change) -> int:
        status = tree.stat(change.path)
        return status.st_size if status is not None else 0

    def _digest(self, tree: Tree, change: Change) -> bytes | None:
        """Return a file's digest; None once the limit for this is reached."""
        with tree.file(change.path) as fd:
            content, cost = digest(fd, self._left_to_hash)
        self._left_to_hash -= cost
        return content
