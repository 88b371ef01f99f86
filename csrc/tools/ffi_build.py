"""What cffi-gen-src reads: the module nsbox._nsbox, declared by abi.h and the calls.h of one system.

NSBOX_CORE says which system's: "linux" or "darwin"; without it, that of the machine which this runs on. The compiler
gets these headers as they are. cffi has no preprocessor: it gets the same text without the lines that start with '#'.
"""

import os
import sys
from pathlib import Path

from cffi import FFI

CSRC = Path(__file__).parent.parent
SYSTEM = os.environ.get("NSBOX_CORE", sys.platform)


def declarations(path: Path) -> str:
    """Return a header's text with empty lines in the place of directives, so that line numbers stay."""
    return "\n".join("" if line.lstrip().startswith("#") else line for line in path.read_text().splitlines())


ffibuilder = FFI()
for header in (CSRC / "abi.h", CSRC / SYSTEM / "calls.h"):
    ffibuilder.cdef(declarations(header))
ffibuilder.set_source("nsbox._nsbox", '#include "abi.h"\n#include "calls.h"')
