"""The tree that sandboxes are given, on the host: made, looked at, removed."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

MARK = "+w"  # the file that the probe creates
Snapshot = dict[str, tuple[str, ...]]


def make_tree(top: str) -> None:
    """Make the tree that ops call "/@": d looks like a root with places to mount on; below d/a is more of the same."""
    os.mkdir(top, 0o755)
    for name in ("d", "d/a", "d/a/b", "d/a/b/c", "d/b", "d/dev", "d/proc", "d/locked", "d/locked/in"):
        os.mkdir(f"{top}/{name}", 0o755)
    for name in ("d/f", "d/a/f", "d/a/b/f", "d/b/f", "d/probe", "d/locked/in/f"):
        Path(top, name).write_text(name)
    os.chmod(f"{top}/d/b/f", 0o400)
    links = {
        "l": "a",
        "lf": "f",
        "dangling": "nowhere/x",
        "loop": "loop",
        "a/l": "b/c",
        "a/up": "../b",
        "b/a": "../a/b",
    }
    for name, target in links.items():
        os.symlink(target, f"{top}/d/{name}")
    os.mknod(f"{top}/d/socket", stat.S_IFSOCK | 0o644)  # a FIFO would block bwrap
    os.chmod(f"{top}/d/locked", 0)


def remove_tree(top: str) -> None:
    """Remove it, whatever its modes have become."""
    for here, dirs, _ in os.walk(top):
        for name in dirs:
            if not os.path.islink(f"{here}/{name}"):
                os.chmod(f"{here}/{name}", 0o700)
    shutil.rmtree(top, ignore_errors=not os.path.exists(top))


def snapshot(top: str) -> Snapshot:
    """Return what is below top: for each path its type, mode, owner and contents."""
    found: Snapshot = {}

    def visit(path: str, name: str) -> None:
        st = os.lstat(path)
        kind = stat.S_IFMT(st.st_mode)
        found[name] = (stat.filemode(st.st_mode), f"{st.st_uid}:{st.st_gid}")
        if kind == stat.S_IFLNK:
            found[name] += (os.readlink(path),)
        if kind not in (stat.S_IFDIR, stat.S_IFREG):
            return
        shut = os.geteuid() != 0 and st.st_mode & 0o500 != 0o500  # no matter to an owner with capabilities
        if shut:
            os.chmod(path, 0o700)
        if kind == stat.S_IFREG:
            found[name] += (Path(path).read_text(errors="surrogateescape"),)
        else:
            for entry in sorted(os.listdir(path)):
                visit(f"{path}/{entry}", f"{name}/{entry}")
        if shut:
            os.chmod(path, stat.S_IMODE(st.st_mode))

    visit(top, ".")
    return found


def unmarked(tree: Snapshot) -> Snapshot:
    """Return the tree without the probe's own traces: what the set-up alone has made of it."""
    kept = {name: facts for name, facts in tree.items() if os.path.basename(name) != MARK}
    return {name: (*facts[:2], *(text.rstrip("!") for text in facts[2:])) for name, facts in kept.items()}
