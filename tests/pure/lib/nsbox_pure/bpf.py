"""What the kernel would make of a seccomp filter: an interpreter of the few instructions that filters are made of."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

ALLOWED, IGNORED = 0, -1
_WORD = 0xFFFFFFFF


def run(code: bytes, machine: int, number: int, args: Sequence[int] = ()) -> tuple[int, int]:
    """Return the errno that a system call fails with (0: it is allowed, -1: it is said to be done), and how many instructions that took."""
    program = list(struct.iter_unpack("=HBBI", code))
    data = struct.pack("=IIQ6Q", number & _WORD, machine, 0, *(*args, *[0] * (6 - len(args))))
    at, accumulator, steps = 0, 0, 0
    while True:
        operation, yes, no, k = program[at]
        at, steps = at + 1, steps + 1
        match operation:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                assert k % 4 == 0 and k + 4 <= len(data)
                (accumulator,) = struct.unpack_from("=I", data, k)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                accumulator &= k
            case 0x05:  # BPF_JMP | BPF_JA
                at += k
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                at += yes if accumulator == k else no
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                at += yes if accumulator >= k else no
            case 0x06:  # BPF_RET | BPF_K
                if k == 0x7FFF0000:  # SECCOMP_RET_ALLOW
                    return ALLOWED, steps
                assert k >> 16 == 5, f"{k:#x} is neither an errno nor allowed"  # SECCOMP_RET_ERRNO
                assert k & 0xFFFF < 4096
                return k & 0xFFFF or IGNORED, steps
            case _:
                raise AssertionError(f"{operation:#x} is no instruction of ours")


def verdict(codes: Sequence[bytes], machine: int, number: int, args: Sequence[int] = ()) -> int:
    """Return what several filters together say: an errno of any counts more than "allowed"; 0: all allow it."""
    said = [run(code, machine, number, args)[0] for code in codes]
    return next((error for error in reversed(said) if error), ALLOWED)


def name(error: int) -> str:
    """Return an errno's name, for messages."""
    return errno.errorcode.get(error, str(error)) if error else "allowed"
