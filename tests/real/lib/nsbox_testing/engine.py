"""What a container engine does with a seccomp profile, by libseccomp, as its runtime does: engine.py PROFILE COMMAND...

The command runs behind the filter. Names and machines that this libseccomp doesn't know are left out, as runc leaves
them out. Imports nothing of nsbox.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from typing import Any

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_ACTIONS = {"SCMP_ACT_ALLOW": _ALLOW, "SCMP_ACT_ERRNO": _ERRNO}
_EQUAL, _MASKED_EQUAL = 4, 7
_OPERATORS = {"SCMP_CMP_EQ": _EQUAL, "SCMP_CMP_MASKED_EQ": _MASKED_EQUAL}
_UNKNOWN = -1  # __NR_SCMP_ERROR
_LAST = 600  # no machine has numbers so high yet
LIBRARY = "libseccomp.so.2"  # Debian's apt depends on it


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")


def _action(entry: dict[str, Any], number: str, otherwise: int) -> int:
    action = _ACTIONS[entry["action"]]
    return action | (entry.get(number, otherwise) if action == _ERRNO else 0)


def _comparisons(rows: list[dict[str, Any]]) -> ctypes.Array[_Comparison]:
    values = [_Comparison(row["index"], _OPERATORS[row["op"]], row["value"], row.get("valueTwo", 0)) for row in rows]
    return (_Comparison * len(values))(*values)


def _context(library: ctypes.CDLL, profile: dict[str, Any]) -> ctypes.c_void_p:
    library.seccomp_init.restype = ctypes.c_void_p
    default = _action({"action": profile["defaultAction"], **profile}, "defaultErrnoRet", errno.EPERM)
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    for name in profile["architectures"]:
        machine = library.seccomp_arch_resolve_name(name.removeprefix("SCMP_ARCH_").lower().encode())
        result = library.seccomp_arch_add(context, ctypes.c_uint32(machine))
        if result != -errno.EEXIST:  # the machine's own
            _check(result, name)
    for entry in profile["syscalls"]:
        action, rows = _action(entry, "errnoRet", errno.EPERM), _comparisons(entry.get("args", []))
        for name in entry["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number != _UNKNOWN and action != default:  # libseccomp has no rule that does what is done anyway
                add = library.seccomp_rule_add_array
                _check(add(context, ctypes.c_uint32(action), number, ctypes.c_uint(len(rows)), rows), name)
    return context


def load(profile: dict[str, Any]) -> None:
    """Put this process, and all that it starts, behind the profile's filter."""
    library = ctypes.CDLL(LIBRARY)
    _check(library.seccomp_load(_context(library, profile)), "seccomp_load")


def compiled(profile: dict[str, Any]) -> bytes:
    """Return the filter's instructions, for all machines that the profile names."""
    library = ctypes.CDLL(LIBRARY)
    fd = os.memfd_create("filter")
    try:
        _check(library.seccomp_export_bpf(_context(library, profile), fd), "seccomp_export_bpf")
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def numbers(machine: str) -> dict[str, int]:
    """Return the system calls that this libseccomp knows of a machine, such as x86_64, with their numbers."""
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
    token = ctypes.c_uint32(library.seccomp_arch_resolve_name(machine.encode()))
    found = {}
    for number in range(_LAST + 1):
        name = library.seccomp_syscall_resolve_num_arch(token, number)
        if name:
            found[str(ctypes.string_at(name), "ascii")] = number
    return found


def main() -> None:
    """Run the command."""
    with open(sys.argv[1]) as file:
        load(json.load(file))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
