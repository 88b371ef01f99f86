"""abi.h's names as Python values: the library, its constants, and why there may be none.

If there is no C core (another system or processor), this can still be imported, and `problem` says why.
"""

from __future__ import annotations

import importlib
import sys

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from nsbox._nsbox import CData as CData


class Constants:
    """The enum constants of abi.h without their prefix: OP_BIND, RDONLY, STEP_EXEC, ..."""

    def __init__(self, lib: object) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> int:
        value: int = getattr(self._lib, f"NSBOX_{name}")
        setattr(self, name, value)
        return value


on_linux, on_darwin = sys.platform == "linux", sys.platform == "darwin"
problem = ""
extension: ModuleType | None = None
try:
    extension = importlib.import_module("nsbox._nsbox")
except ImportError as _error:
    problem = f"the C core is missing ({_error})" if on_linux or on_darwin else f"there is no C core for {sys.platform}"
if TYPE_CHECKING:
    from nsbox._nsbox import ffi as ffi
    from nsbox._nsbox import lib as lib
else:  # None where there is a problem: nothing gets as far as to call them
    ffi, lib = getattr(extension, "ffi", None), getattr(extension, "lib", None)
constants = Constants(lib)


RSS_UNIT = 1024 if on_linux else 1  # bytes in a unit of getrusage(2)'s ru_maxrss: macOS counts single bytes
WALL = 0x40000000 if on_linux else 0  # wait(2): even children whose exit signal isn't SIGCHLD, killed before their exec
