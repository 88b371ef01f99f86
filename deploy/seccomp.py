"""Writes seccomp.json beside this file: `python deploy/seccomp.py`, on x86_64. --print writes it to stdout instead.

The profile is for a container in which nsbox makes sandboxes. It lists what is allowed, as the default profiles of
engines do. It refuses what they refuse, except for the calls in NEEDED. The names are those of nsbox's own tables.

It is in the format of the OCI runtime specification, which Docker, Podman, containerd and CRI-O read: "architectures",
not Docker's "archMap", and no conditions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nsbox._core.linux import syscalls
from nsbox._seccomp import profiles
from nsbox._seccomp.bpf import NEWER

# What a sandbox is made of. The default profile of an engine keeps it for CAP_SYS_ADMIN, or, as
# pivot_root and open_tree_attr, allows it nobody.
NEEDED = (
    *("clone", "unshare", "setns", "sethostname", "pivot_root", "umount2"),
    *("open_tree", "open_tree_attr", "move_mount", "mount_setattr", "fsopen", "fsconfig", "fsmount", "fspick"),
)
# As absent: the caller falls back to another call. No filter can see the flags of clone3(2), which are in memory.
ABSENT = ("clone3", *profiles._ABSENT)
REFUSED = (
    "mount",  # open_tree(2) and its sisters do what it does
    *(*profiles._ADMINISTRATION, *profiles._OBSOLETE, *profiles._DANGEROUS, *profiles._NUMA),
    *("open_by_handle_at", "add_key", "keyctl", "request_key", "chroot", "lsm_get_self_attr", "lsm_list_modules"),
    "file_getattr",  # as new as its sister, which is absent
)
# Unix, IPv4, IPv6 and netlink: no AF_ALG, AF_VSOCK, or families that nobody has looked at for years.
FAMILIES = (1, 2, 10, 16)
# Linux, 32-bit Linux, UNAME26, both; and the question which it is.
PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
BY_ARGUMENT = ("socket", "personality")
_FIRST_OF_ALL = 335  # x86_64's own numbers end here; later headers know more than earlier ones
_ALWAYS = ("uretprobe",)  # made by the kernel itself, in a process that is traced


def names() -> list[str]:
    """Return the system calls that are allowed without a condition, except those of NEEDED."""
    machine, table = syscalls()
    if machine != "x86_64":
        raise SystemExit(f"seccomp.py: this is {machine}, and the table of x86_64 is needed")
    known = {name for name, number in table.items() if number < _FIRST_OF_ALL} | {*NEWER, *_ALWAYS}
    return sorted(known - {*NEEDED, *ABSENT, *REFUSED, *BY_ARGUMENT})


def profile() -> dict[str, Any]:
    """Return the profile, as JSON has it."""

    def equal(value: int) -> list[dict[str, Any]]:
        return [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}]

    conditions = [("socket", equal(family)) for family in FAMILIES]
    conditions += [("personality", equal(kind)) for kind in PERSONALITIES]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"comment": "What programs call.", "names": names(), "action": "SCMP_ACT_ALLOW"},
            {"comment": "What nsbox makes sandboxes of.", "names": sorted(NEEDED), "action": "SCMP_ACT_ALLOW"},
            {
                "comment": "As on a kernel without them.",
                "names": sorted(ABSENT),
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": 38,
            },
            *({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args} for name, args in conditions),
        ],
    }


def main() -> None:
    """Write it."""
    text = json.dumps(profile(), indent=2) + "\n"
    if "--print" in sys.argv[1:]:
        print(text, end="")
    else:
        Path(__file__).with_suffix(".json").write_text(text)


if __name__ == "__main__":
    main()
