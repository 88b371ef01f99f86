"""Snapshots: what a task's commands had written at one moment, in directories beside the task's own."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._files import files
from nsbox._files.files import Tree, open_beneath
from nsbox._task.copies import Budget, Clone
from nsbox._transaction.store import make_upper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._calls.shell_state import ShellState
    from nsbox._task.way import TaskWay

_NO_SYMLINKS, _BENEATH = 4, 8  # openat2(2)


class Snapshot:
    """What a task's commands had written at one moment. Task.snapshot() makes it, and Task.reset() goes back to it.

    It ends with its task.

    size: bytes that it may take up; where the file system can share blocks, it takes up less.
    """

    def __init__(self, path: str, size: int, shell: ShellState) -> None:
        self._path, self.size, self._shell = path, size, shell
        self._creator = os.getpid()

    @property
    def is_dropped(self) -> bool:
        """Whether it is gone: by drop(), or with its task."""
        return not os.path.isdir(self._path)

    def drop(self) -> None:
        """Remove it, unless it is gone already. Raises OSError."""
        if self._creator == os.getpid():
            remove(self._path)

    def __repr__(self) -> str:
        return f"<nsbox.Snapshot {'dropped' if self.is_dropped else f'{self.size} bytes'}>"


def remove(path: str) -> None:
    """Remove a directory of a store, with all that is in it."""
    above, name = os.path.split(path)
    with contextlib.suppress(FileNotFoundError), Tree(above, forceful=True) as tree:
        files.remove(tree, name)


def move(path: str, new: str) -> None:
    """Rename a directory of a store. Its mode, which commands may have chosen, stays. Raises OSError.

    To be moved into another directory, it must be writable (rename(2)).
    """
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    os.chmod(path, mode | 0o700)
    os.rename(path, new)
    os.chmod(new, mode)


def _copied(source: Tree, path: str, budget: Budget) -> None:
    os.mkdir(path, 0o700)
    with Tree(path, forceful=True) as target:
        Clone(source, target, budget).make()


@contextlib.contextmanager
def _own(way: TaskWay) -> Iterator[list[Tree]]:
    """Open the session's own file systems: its /tmp, and others that the plan has."""
    with contextlib.ExitStack() as stack:
        root = way.open_root()
        stack.callback(os.close, root)
        trees = []
        for place in way.fresh:
            fd = open_beneath(root, place.strip("/"), os.O_PATH | os.O_DIRECTORY, _NO_SYMLINKS | _BENEATH)
            stack.callback(os.close, fd)
            trees.append(stack.enter_context(Tree(fd, forceful=True)))
        yield trees


def take(way: TaskWay, uppers: Sequence[str], path: str, most: int) -> int:
    """Copy uppers, and the session's own file systems, to a new directory; return how large the copy is.

    Raises OSError, and ValueError if a process runs in the task; then there is no copy.
    """
    budget = Budget(most)
    with way.at_rest():
        try:
            os.mkdir(path, 0o700)
            for number, upper in enumerate(uppers):
                with Tree(upper, forceful=True) as source:
                    _copied(source, f"{path}/upper-{number}", budget)
            with _own(way) as trees:
                for number, source in enumerate(trees):
                    _copied(source, f"{path}/own-{number}", budget)
        except BaseException:
            remove(path)
            raise
    return most - budget.left


def copy_uppers(snapshot: Snapshot | None, places: Sequence[str], path: str) -> None:
    """Copy a snapshot's uppers to a new directory, or make empty ones for these places. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
        for number, place in enumerate(places):
            new = f"{path}/upper-{number}"
            if snapshot is None:
                make_upper(new, f"{path}/work-{number}", os.stat(place))
                continue
            os.mkdir(f"{path}/work-{number}", 0o700)
            with Tree(f"{snapshot._path}/upper-{number}", forceful=True) as source:
                _copied(source, new, Budget(1 << 62))
    except BaseException:
        remove(path)
        raise


def fill(way: TaskWay, snapshot: Snapshot) -> None:
    """Put back what was in the session's own file systems. Raises OSError."""
    with _own(way) as trees:
        for number, target in enumerate(trees):
            with Tree(f"{snapshot._path}/own-{number}", forceful=True) as source:
                Clone(source, target, Budget(1 << 62)).make()
