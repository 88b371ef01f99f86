"""What an interpreter's mounts were made of, and whether its branches would still see what a new sandbox shows.

An interpreter lives long. Meanwhile another process may replace a directory that is bound, or a file that is hidden.
What is mounted on a file goes with the file (rename(2) detaches mounts of other namespaces), so the new one would be
seen. A KeptTree compares its stamps for this reason (csrc/linux/root/stamps.c). These do the same for an interpreter:
its branches have copies of its mounts, which procfs shows to their owner.
"""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer
from nsbox._base.errors import StaleError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.owners import opened
from nsbox._base.paths import is_below
from nsbox._kept import split
from nsbox._kept.mounts import MountWatch
from nsbox._plan import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsbox._interpreter.mounts.overlay import Place

_MOUNTED = (ops.Bind, ops.RoBind, ops.DevBind, ops.Device, ops.BindData, ops.Mask, ops.Tmpfs)
_ESTALE = 116


def _file(path: str, *, follows: bool = False, root: int | None = None) -> tuple[int, int] | None:
    """Return the device and the inode of what is at a path, or at one below a directory; None: it can't be reached."""
    try:
        status = os.stat(path, dir_fd=root, follow_symlinks=follows)
    except OSError as error:
        check_answer(error)
        return None
    return status.st_dev, status.st_ino


def _points(pid: int) -> set[str]:
    """Return where a process sees mounts."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        fields = (line.split(b" ", 5)[4] for line in file)
        return {os.fsdecode(field.decode("unicode_escape").encode("latin-1")) for field in fields}


class Stamps:
    """The stamps of one interpreter. Make them before it, and call complete() when it is ready."""

    def __init__(self, steps: Sequence[ops.Op], places: Iterable[Place] = ()) -> None:
        """Look at the sources.

        steps: the interpreter's ops, as primitives.
        places: what branches have overlays of. Their names decide what is hidden there, so nothing in them counts.
        """
        self._changes = MountWatch()  # first: what is mounted later in a bound directory isn't seen
        self._sources = {
            (op.src, not op.nofollow): _file(op.src, follows=not op.nofollow)
            for op in steps
            if isinstance(op, ops.Bind | ops.RoBind | ops.DevBind)
        }
        kept = split.parts(tuple(op for op in steps if not is_below(getattr(op, "dest", ""), "/proc")))
        overlaid = [place.dest for place in places]
        fresh = {op.op.dest for op in kept.renewed if isinstance(op, ops.Over)}  # each branch has its own, on top
        self._watched = {
            op.dest: isinstance(op, ops.Mask)
            for op, is_watched in zip(kept.kept, kept.watched, strict=True)
            if is_watched
            and isinstance(op, _MOUNTED)
            and op.dest not in fresh
            and not any(is_below(op.dest, dest) for dest in overlaid)
        }
        self._found: dict[str, tuple[int, int] | None] = {}

    def complete(self, pid: int) -> None:
        """Look at the places of its mounts; raises StaleError if something has changed since it began.

        pid: of a process that has all of them. What isn't mounted any more was replaced while the interpreter started.
        """
        found = self._seen(pid, self._watched)
        points = _points(pid)  # later: what is mounted by now was so before
        for dest, file in found.items():
            if file is None and not self._watched[dest]:
                continue  # optional, and missing
            if file is not None and dest not in points:
                raise StaleError(_ESTALE, "make an interpreter", None, f"{dest} was replaced meanwhile")
            self._found[dest] = file
        if self.have_changed():
            raise StaleError(_ESTALE, "make an interpreter", None, "what the policy shows was replaced meanwhile")

    def have_changed(self) -> bool:
        """Return whether the policy's paths lead to other files than those that the interpreter has."""
        if self._changes.changed():
            return True
        return any(_file(path, follows=follows) != file for (path, follows), file in self._sources.items())

    def differ(self, pid: int) -> bool:
        """Return whether what was mounted on files of the host isn't there any more, as a process sees it.

        Raises OSError if the process has ended.
        """
        if self._seen(pid, self._found) == self._found:
            return False
        os.stat(f"/proc/{pid}/root")  # nothing can be seen by one that has ended
        return True

    def _seen(self, pid: int, dests: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        root = opened(os.open, f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return {dest: _file(dest.lstrip("/") or ".", root=root.fileno()) for dest in dests}
        finally:
            root.close()

    def close(self) -> None:
        """Let go of what it watches."""
        self._changes.close()
