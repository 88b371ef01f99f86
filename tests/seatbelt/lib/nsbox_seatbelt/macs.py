"""Macs made by hand, and workspace policies for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nsbox import Host, Policy
from nsbox._backends import compile_policy
from nsbox._plan.sbpl import Seatbelt

MAC = Host(
    system="Darwin",
    kernel=(24, 1),
    machine="arm64",
    euid=501,
    egid=20,
    seatbelt_ways=("compiled", "helper", "sandbox-exec"),
    temporary="/private/var/folders/ab/cd1/T",
    names_are_exact=False,
    firmlinks=("/Applications", "/Library", "/Users", "/private", "/opt", "/usr/local"),
    directories=(
        *(("/bin", None), ("/sbin", None), ("/usr", None), ("/opt", None), ("/Applications", None)),
        *(("/System/Library", None), ("/private/etc", None)),
    ),
    prefixes=("/Users/me/venv",),
)
EXACT = replace(MAC, names_are_exact=True)
ROOT = replace(MAC, euid=0, egid=0, secrets=("/etc/master.passwd",), private=("/etc/cups/private", "/opt/only-root"))


def workspace(path: str = "/Users/me/repo", **wishes: Any) -> Policy:
    """Return what Policy.workspace() makes of a directory, without one."""
    wishes = {"workdir": path, "home": path, "seccomp": "default"} | wishes
    return Policy(base="workspace", write=(path, *wishes.pop("write", ())), **wishes)


def profile(policy: Policy, host: Host = MAC) -> Seatbelt:
    """Return the one op of the policy's plan."""
    (op,) = compile_policy(policy, host).ops
    assert isinstance(op, Seatbelt)
    return op


def values(op: Seatbelt) -> dict[str, str]:
    """Return what the profile's parameters are for one run."""
    return {name: value or "/private/var/folders/ab/cd1/T/nsbox-1-x" for name, value in op.params}
