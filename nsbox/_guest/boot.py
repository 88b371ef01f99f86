"""The warm interpreter, which all code branches off from: `python -I -c TEXT CONFIG_FD`.

It loads the other modules from their archive. They share builtins of their own, so that code that empties `builtins`
doesn't take these functions' len() away. Their files have names that no other code has: exceptions.py cuts their frames
out of tracebacks.
"""

import builtins
import importlib
import json
import os
import sys
import time
import zipimport
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn, Optional

PACKAGE = "_nsbox_guest"
OWN = dict(vars(builtins))


class Guest:
    """Finds and loads the modules of the archive."""

    def __init__(self, path: str) -> None:
        """Read the archive's table; raises ZipImportError.

        path: the archive.
        """
        self.archive = zipimport.zipimporter(path)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        """Return the spec of a module of the archive, None for others."""
        if name.partition(".")[0] != PACKAGE:
            return None
        return ModuleSpec(name, self, is_package=self.archive.is_package(name.replace(".", "/")))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code with builtins that only the guest has."""
        name = module.__name__
        source = self.archive.get_source(name.replace(".", "/"))
        vars(module)["__builtins__"] = OWN
        exec(compile(source or "", f"<nsbox>/{name}", "exec", dont_inherit=True), vars(module))


def read_all(fd: int) -> bytes:
    """Return what a file in memory has, from its beginning."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def main(config: Any, began: float) -> NoReturn:
    """Load the program and become it."""
    guest: Any = Guest(f"/proc/self/fd/{config['fds']['zip']}")
    sys.meta_path.insert(0, guest)
    try:
        serve = importlib.import_module(f"{PACKAGE}.server").serve
    finally:
        sys.meta_path.remove(guest)
    serve(config, began)
    raise SystemExit  # never: it doesn't return


if __name__ == "__main__":
    STARTED = time.monotonic()
    if sys.version_info < (3, 9):  # noqa: UP036 (it is another interpreter)
        raise SystemExit(f"nsbox: Python {sys.version.split()[0]} is too old, it must be 3.9 or later")
    CONFIG = json.loads(read_all(int(sys.argv[1])))
    os.close(int(sys.argv[1]))
    main(CONFIG, STARTED)
