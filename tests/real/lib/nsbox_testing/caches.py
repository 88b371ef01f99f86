"""The caches that Python, pytest and hypothesis keep in the clone: a run removes those that it has made.

To have such a cache, make its directory, such as .pytest_cache. Import this module before others of the tests.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[4]


def _caches() -> set[Path]:
    found = {_ROOT / ".pytest_cache", _ROOT / ".hypothesis"}
    for directory, names, _ in os.walk(_ROOT):  # which passes over what another run removes just now
        if directory == str(_ROOT):
            names[:] = [name for name in names if name[0] != "." and name not in ("build", "venv")]
        if "__pycache__" in names:
            found.add(Path(directory, "__pycache__"))
    return {path for path in found if path.exists()}


_before = _caches()
if _before <= {_ROOT / "tests/__pycache__", Path(__file__).with_name("__pycache__")}:
    _before = set()  # those of this module and of what has imported it, which have just been made


def remove() -> None:
    """Remove what wasn't there before."""
    for path in _caches() - _before:
        shutil.rmtree(path, ignore_errors=True)


def remove_temporary(base: Path) -> None:
    """Remove this run's directory for temporary files, and the one that all runs of the user share if it is empty.

    What a test has left mounted in it isn't followed: that may be the host's.
    """
    if not base.parent.name.startswith("pytest-of-"):  # --basetemp was given
        return
    find = ["find", base, "-xdev", "-type", "d", "!", "-perm", "-700", "-exec", "chmod", "u+rwx", "{}", ";"]
    for command in (find, ["rm", "-rf", "--one-file-system", base]):
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
    with contextlib.suppress(OSError):  # what is in it is another run's
        current = base.parent / "pytest-current"
        if not current.exists():
            current.unlink(missing_ok=True)
        base.parent.rmdir()
