"""The front door to everything that asks the machine. For each effective user, it asks once."""

from __future__ import annotations

import os

from nsbox._backends import namespaces
from nsbox._base.frozen import replace
from nsbox._core import abi
from nsbox._core import linux as core_linux
from nsbox._machine.accounts import with_user
from nsbox._machine.trial import try_sandbox, with_bwrap
from nsbox._plan.host import Host

_known: dict[tuple[int, int], Host] = {}


def probe(*, refresh: bool = False) -> Host:
    """Return what this machine offers to this process, a Host.

    The answer is kept for each effective user and group.

    refresh: ask the machine again.
    """
    if not abi.on_linux and not abi.on_darwin:
        import platform

        return Host(system=platform.system(), kernel=(0, 0), machine=platform.machine(), core_problem=abi.problem)
    key = (os.geteuid(), os.getegid())
    known = _known.get(key)
    if known is not None and not refresh:
        return known
    if abi.on_darwin:
        from nsbox._machine import darwin

        host = darwin.host()
    else:
        from nsbox._machine import linux

        host = linux.host()
        error, at = try_sandbox(host)
        host = replace(host, userns_error=error, userns_error_at=at)
        if host.is_filtered and not host.core_problem and at in ("", "mount"):
            host = replace(host, refused_calls=core_linux.refused_calls())
        host = with_user(host, host.euid, host.egid)
        host = with_bwrap(host) if namespaces.missing(host) else host
    _known[key] = host
    return host


def probe_with_bwrap() -> Host:
    """Return probe() with the facts about the system's own bubblewrap, even if that isn't needed here."""
    host = _known[os.geteuid(), os.getegid()] = with_bwrap(probe())
    return host
