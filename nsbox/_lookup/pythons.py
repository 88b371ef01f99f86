"""Where a Python is installed, by one of its programs: what a virtual environment needs of it outside of itself."""

from __future__ import annotations

import os
import re

from nsbox._base.checks import check_answer
from nsbox._base.paths import is_below

_NAME = re.compile(r"(?:python|pypy)[\d.]*")


def prefix_of(program: str) -> str | None:
    """Return the directory that has a Python's `bin` and `lib`; None if the program isn't that of one.

    A command may have made the link that leads here, and the answer is advice. So the standard library must be there,
    and no home directory below.

    program: an absolute path without links.
    """
    directory, name = os.path.split(program)
    prefix = os.path.dirname(directory)
    if not _NAME.fullmatch(name) or os.path.basename(directory) != "bin" or not os.access(program, os.X_OK):
        return None
    if is_below(os.path.realpath(os.path.expanduser("~")), prefix):
        return None
    try:
        with os.scandir(os.path.join(prefix, "lib")) as entries:
            names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError as error:
        check_answer(error)
        return None
    return prefix if any(os.path.isfile(f"{prefix}/lib/{name}/os.py") for name in names) else None
