"""The module nsbox._nsbox for cffi-gen-src, as abi.h and the calls.h of one system declare it.

NSBOX_CORE names the system: "linux" or "darwin"; by default it is the one that this runs on. The compiler gets these
headers as they are. cffi has no preprocessor: it gets the same text without the lines that start with '#'.
"""

import os
import sys
from pathlib import Path

from cffi import FFI

CSRC = Path(__file__).parent.parent
SYSTEM = os.environ.get("NSBOX_CORE", sys.platform)


def declarations(path: Path) -> str:
    """Return a header's text with empty lines instead of directives, so that line numbers stay the same."""
    return "\n".join("" if line.lstrip().startswith("#") else line for line in path.read_text().splitlines())


ffibuilder = FFI()
HEADERS = [
    CSRC / name for name in ("abi_session.h", "abi.h", "abi_branch.h", *(["abi_bwrap.h"] if SYSTEM == "linux" else []))
]
for header in (*HEADERS, CSRC / SYSTEM / "calls.h"):
    ffibuilder.cdef(declarations(header))
# For the arena: the standard library's mmap is a shared object of its own, which takes longer to load than all of this.
ffibuilder.cdef("""
    void *mmap(void *, size_t, int, int, int, long);
    int munmap(void *, size_t);
    static const int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_ANONYMOUS;
""")
ffibuilder.set_source("nsbox._nsbox", '#include <sys/mman.h>\n#include "abi.h"\n#include "calls.h"')
