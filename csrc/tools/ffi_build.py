"""What cffi-gen-src reads: the module nsbox._nsbox, declared by abi.h alone.

The compiler gets abi.h as it is. cffi has no preprocessor: it gets the same text without the lines that start with '#'.
"""

from pathlib import Path

from cffi import FFI

ABI = Path(__file__).parent.parent / "abi.h"

ffibuilder = FFI()
ffibuilder.cdef("\n".join("" if line.lstrip().startswith("#") else line for line in ABI.read_text().splitlines()))
ffibuilder.set_source("nsbox._nsbox", '#include "abi.h"')
