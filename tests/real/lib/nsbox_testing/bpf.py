"""What the kernel makes of a filter that libseccomp has compiled: more instructions and answers than nsbox's own have."""

from __future__ import annotations

import struct
from collections.abc import Sequence

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}  # <linux/audit.h>
ALLOWED, KILLED = 0, -1
_WORD = 0xFFFFFFFF


def answer(code: bytes, machine: str, number: int, args: Sequence[int] = ()) -> int:
    """Return what a system call gets: an errno, ALLOWED or KILLED."""
    program = list(struct.iter_unpack("=HBBI", code))
    data = struct.pack("=IIQ6Q", number & _WORD, AUDIT_ARCH[machine], 0, *args, *[0] * (6 - len(args)))
    at, value = 0, 0
    while True:
        operation, yes, no, k = program[at]
        at += 1
        match operation:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (value,) = struct.unpack_from("=I", data, k)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                value &= k
            case 0x05:  # BPF_JMP | BPF_JA
                at += k
            case 0x15 | 0x25 | 0x35:  # BPF_JMP | BPF_JEQ, BPF_JGT or BPF_JGE
                is_true = {0x15: value == k, 0x25: value > k, 0x35: value >= k}[operation]
                at += yes if is_true else no
            case 0x06:  # BPF_RET | BPF_K
                kind = k & 0xFFFF0000
                return {0x7FFF0000: ALLOWED, 0x00050000: k & 0xFFFF, 0: KILLED}[kind]
            case _:
                raise AssertionError(f"{operation:#x} is no instruction of libseccomp's")
