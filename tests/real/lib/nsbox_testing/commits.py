"""A workspace, and a commit that changes all sorts of things in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nsbox._files import files
from nsbox._files.files import Tree
from nsbox._transaction import changes
from nsbox._transaction import commit as transaction_commit
from nsbox._transaction.store import Store
from nsbox_testing.trees import taken


def fill(real: Path) -> None:
    """Make what is there before."""
    (real / "gone").mkdir()
    for name in ("same", "changed", "gone/one", "gone/two", "was-file", "moved", "mode"):
        (real / name).write_text(f"{name} before\n" * 3)
    for name in ("was-directory/inner", "replaced/inner", "kept/mode"):
        (real / name).mkdir(parents=True)
    (real / "replaced" / "old").write_text("old")
    (real / "was-directory" / "inner" / "file").write_text("file")
    os.symlink("same", real / "link")


def change(upper: Path) -> None:
    """Make in an upper directory what overlayfs leaves there when all that is changed."""
    for name in ("gone", "moved"):
        os.mknod(upper / name, 0o020000, 0)
    (upper / "changed").write_text("changed after\n")
    (upper / "moved-here").write_text("moved before\n" * 3)
    (upper / "mode").write_text("mode before\n" * 3)
    (upper / "mode").chmod(0o755)
    (upper / "was-file").mkdir()
    (upper / "was-file" / "new").write_text("new")
    (upper / "was-directory").write_text("now a file")
    (upper / "replaced").mkdir()
    os.setxattr(upper / "replaced", "user.overlay.opaque", b"y")
    (upper / "replaced" / "new").write_text("new")
    (upper / "kept" / "mode").mkdir(parents=True)
    (upper / "kept" / "mode").chmod(0o700)
    (upper / "tree" / "deep" / "deeper").mkdir(parents=True)
    (upper / "tree" / "deep" / "file").write_text("file\n")
    os.link(upper / "tree" / "deep" / "file", upper / "tree" / "hard")
    os.symlink("/nowhere", upper / "link")
    os.mkfifo(upper / "tree" / "pipe")
    (upper / "tree" / "deep" / "deeper").chmod(0o555)


AFTER = {
    *("same", "changed", "moved-here", "mode", "was-file", "was-file/new", "was-directory", "replaced", "replaced/new"),
    *("kept", "kept/mode", "tree", "tree/deep", "tree/deep/deeper", "tree/deep/file", "tree/hard", "tree/pipe", "link"),
}


def no_others(spare: str, copies: dict[str, str]) -> list[str]:
    """Nobody has changed a copy."""
    return []


class Case:
    """A workspace, a store for transactions, and a commit that changes all sorts of things."""

    def __init__(self, tmp_path: Path) -> None:
        self.real, self.base = tmp_path / "real", tmp_path / "store"
        self.renew()
        self.before = taken(self.real)

    def renew(self) -> None:
        for path in (self.real, self.base):
            if path.exists():
                with Tree(str(path.parent), forceful=True) as tree:
                    files.remove(tree, path.name)
        self.real.mkdir()
        fill(self.real)

    def begin(self) -> Store:
        store = Store.make(str(self.base), str(self.real), os.stat(self.real))
        change(Path(store.upper))
        return store

    def commit(self, store: Store, check: Callable[[], None] = lambda: None) -> None:
        with Tree(store.upper, forceful=True) as upper, Tree(str(self.real)) as real:
            began = files.start_of_time(real)
            transaction_commit.commit(
                store, upper, real, changes.Comparison(upper, real).changes(), began, check, no_others
            )
        store.end()

    def leftovers(self) -> list[str]:
        names = [*os.listdir(self.real), *(os.listdir(self.base) if self.base.exists() else ())]
        return [name for name in names if name.startswith(".nsbox") or name not in {*self.before, *AFTER, "lock"}]
