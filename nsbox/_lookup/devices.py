"""Asks the machine which device nodes a policy names, directly or by directories such as /dev/dri."""

from __future__ import annotations

import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._plan.ops import DEVICES

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_OWN = ("console", "fd", "full", "mqueue", "null", "ptmx", "pts", "shm", "stderr", "stdin", "stdout")
_MOST = 256  # nodes in all directories
_latest: dict[Policy, tuple[Host, Host]] = {}


def with_devices(policy: Policy, host: Host) -> Host:
    """Return the host with the nodes that the policy names; raises PolicyError for a path that isn't a device."""
    nodes: list[str] = []
    for path in policy.devices:
        if any(is_below(path, f"/dev/{name}") for name in (*DEVICES, *_OWN)):
            raise PolicyError("devices", f"{path}: each sandbox has one of its own")
        if os.path.realpath(path) != path:
            raise PolicyError("devices", f"{path} is, by a link, {os.path.realpath(path)}: name that")
        _add(path, nodes, is_named=True)
    devices = tuple(dict.fromkeys(nodes))
    known = _latest.get(policy)
    if known is not None and known[0] is host and known[1].devices == devices:
        return known[1]  # the same object, so that what was prepared for it is nodes without a comparison
    new = replace(host, devices=devices)
    if len(_latest) >= 64:
        _latest.clear()
    _latest[policy] = host, new
    return new


def _add(path: str, found: list[str], *, is_named: bool) -> None:
    try:
        mode = os.lstat(path).st_mode
        names = sorted(os.listdir(path)) if stat.S_ISDIR(mode) else []
    except OSError as error:
        check_answer(error)
        if is_named:
            raise PolicyError("devices", f"{path}: {error.strerror}") from None
        return
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        found.append(path)
    elif is_named and not stat.S_ISDIR(mode):
        raise PolicyError("devices", f"{path} isn't a device")
    if len(found) + len(names) > _MOST:
        raise PolicyError("devices", f"{path} has more than {_MOST} entries: name the devices themselves")
    for name in names:
        _add(f"{path}/{name}", found, is_named=False)
