"""Hosts made by hand, and the workspace policy that needs no file system."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nsbox import (
    Host,
    Policy,
)

MERGED = (
    ("/bin", "usr/bin"),
    ("/sbin", "usr/sbin"),
    ("/usr", None),
    ("/lib", "usr/lib"),
    ("/lib64", "usr/lib64"),
    ("/etc", None),
    ("/opt", None),
)
DEBIAN = Host(kernel=(6, 1), directories=MERGED, prefixes=("/usr",))
ROOT = replace(
    DEBIAN,
    euid=0,
    egid=0,
    can_set_ids=True,
    can_set_groups=True,
    secrets=("/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/etc/ssh/ssh_host_ed25519_key"),
    private=("/etc/letsencrypt/archive", "/etc/ssl/private", "/opt/private/key.pem"),
)
CONTAINER_ROOT = replace(  # uid 0 of a user namespace, uid 100000 of the machine
    ROOT, secrets=("/etc/shadow",), uid_ranges=((0, 100000, 65536),), gid_ranges=((0, 100000, 65536),)
)
OLD_LAYOUT = replace(DEBIAN, directories=tuple((path, None) for path, _ in MERGED))
SUBORDINATE = replace(
    DEBIAN,
    subuids=((100000, 65536),),
    subgids=((100000, 65536),),
    map_programs=("/usr/bin/newuidmap", "/usr/bin/newgidmap"),
)
PYTHON = "/nix/store/0c3yqj-python3-3.12.7"
NIX = Host(
    kernel=(6, 12),
    directories=(("/bin", None), ("/usr", None), ("/lib64", None), ("/etc", None), ("/nix", None)),
    prefixes=(PYTHON,),
)
PYENV = replace(DEBIAN, prefixes=("/home/me/.pyenv/versions/3.12.7",))
VENV = replace(DEBIAN, prefixes=("/home/me/repo/.venv", "/usr"))
RESOLVED = replace(DEBIAN, resolv_conf="/run/systemd/resolve/stub-resolv.conf")
LIMITED = replace(DEBIAN, hard_limits=(("NOFILE", 4096), ("NPROC", 100)))


def workspace(root: str = "/home/me/repo", *, write: Iterable[str] = (), **wishes: Any) -> Policy:
    """Return what Policy.workspace(root) returns where the paths exist, without asking."""
    base = {"base": "workspace", "write": (root, *write), "workdir": root, "home": root, "seccomp": "default"}
    return Policy(**(base | wishes))
