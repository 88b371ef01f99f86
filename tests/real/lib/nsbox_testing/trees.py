"""Directory trees as values, to compare them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nsbox._transaction.change import type_of


def taken(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is in a tree: for each path its type, mode and contents, and which are links of one file."""
    found: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for above, directories, files in os.walk(root):
        for name in sorted(directories + files):
            path = Path(above, name)
            st = path.lstat()
            what: object = None
            if stat.S_ISLNK(st.st_mode):
                what = os.readlink(path)
            elif stat.S_ISREG(st.st_mode):
                what = (path.read_bytes(), first.setdefault(st.st_ino, str(path)))
            found[str(path.relative_to(root))] = (type_of(st.st_mode), stat.S_IMODE(st.st_mode), what)
    return found
