"""ELF files made for a test: headers and a dynamic section, nothing that could run."""

from __future__ import annotations

import struct
from collections.abc import Sequence

MACHINES = {"EM_386": 3, "EM_ARM": 40, "EM_X86_64": 62, "EM_AARCH64": 183, "EM_RISCV": 243}
_TAGS = {"needed": 1, "soname": 14, "rpath": 15, "runpath": 29}
NATIVE = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


def elf(
    machine: str,
    *,
    wide: bool = True,
    little: bool = True,
    kind: int = 3,
    interpreter: str | None = None,
    needed: Sequence[str] = (),
    flags_1: int = 0,
    **texts: str,
) -> bytes:
    """Return the bytes of an ELF file. kind: 3 is ET_DYN, 2 ET_EXEC, 1 ET_REL. texts: soname, rpath, runpath."""
    order = "<" if little else ">"
    header_size, segment_size, entry = (64, 56, "QQ") if wide else (52, 32, "II")
    start = header_size + 3 * segment_size
    names, entries = b"\0", []
    for tag, text in [*(("needed", name) for name in needed), *texts.items()]:
        entries.append((_TAGS[tag], len(names)))
        names += text.encode() + b"\0"
    program = (interpreter or "").encode() + b"\0"
    dynamic_at = start + len(program) + len(names)
    entries += [(5, start + len(program)), (10, len(names)), (0x6FFFFFFB, flags_1), (0, 0)]
    dynamic = b"".join(struct.pack(f"{order}{entry}", *pair) for pair in entries)
    size = dynamic_at + len(dynamic)
    segments = [(1, 0, size), (2, dynamic_at, len(dynamic)), (3 if interpreter else 0, start, len(program))]
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if little else 2, 1]) + bytes(9)
    head = struct.pack(
        f"{order}HHI{'QQQ' if wide else 'III'}IHHHHHH",
        *(kind, MACHINES[machine], 1, 0, header_size, 0, 0, header_size, segment_size, len(segments), 0, 0, 0),
    )
    table = b"".join(_segment(order, wide, *segment) for segment in segments)
    return ident + head + table + program + names + dynamic


def _segment(order: str, wide: bool, kind: int, offset: int, size: int) -> bytes:
    if wide:
        return struct.pack(f"{order}IIQQQQQQ", kind, 4, offset, offset, offset, size, size, 1)
    return struct.pack(f"{order}IIIIIIII", kind, offset, offset, offset, size, size, 4, 1)
