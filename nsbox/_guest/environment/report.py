"""The report of an interpreter before it is made warm: `python -I -S -c TEXT`. It lists the code that it consists of.

It runs as an ordinary command, which sees nothing that commands can write to. So no command can forge it.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

if sys.version_info < (3, 9):  # noqa: UP036 (it is another interpreter)
    raise SystemExit(f"nsbox: Python {sys.version.split()[0]} is too old, it must be 3.9 or later")


def entries(directories: Iterable[str]) -> Iterator[str]:
    """Yield the .pth files in directories of packages, and the paths that are lines of these."""
    for directory in directories:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names:
            if name.endswith(".pth"):
                path = os.path.join(directory, name)
                yield path
                yield from (os.path.join(directory, line) for line in lines(path))


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a .pth file that are paths (site.addpackage)."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                text = line.lstrip("\ufeff").rstrip()
                if text and not text.startswith(("#", "import ", "import\t")):
                    yield text
    except OSError:
        pass


def main() -> None:
    """Print the report, as one line of JSON, after whatever the environment prints."""
    out = os.dup(1)
    os.dup2(2, 1)
    own = list(sys.path)
    import site  # with -S, it has done nothing yet

    try:
        site.main()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
    row: dict[str, Any] = {
        "version": list(sys.version_info[:3]),
        "executable": sys.executable,
        "program": os.path.realpath("/proc/self/exe"),
        "home": getattr(sys, "_home", None) or "",
        "prefix": sys.base_prefix,
        "own": own,
        "path": [*sys.path, *entries(site.getsitepackages())],
    }
    os.write(out, b"\n" + json.dumps(row).encode("ascii") + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
