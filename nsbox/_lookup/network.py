"""Finds out where /etc/resolv.conf and /etc/hosts lead in a sandbox with a network list, for the Host to hold."""

from __future__ import annotations

import errno
import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._layout.network import HOSTS, RESOLV_CONF
from nsbox._paths.destinations import Destinations
from nsbox._paths.resolution import Walk, links_on

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_MOST_KEPT = 64

_hosts: dict[tuple[object, ...], Host] = {}


def with_network_files(policy: Policy, host: Host) -> Host:
    """Return the host with these facts. For equal facts it is the same object, as in _machine.accounts."""
    links: list[str] = []
    places: list[tuple[str, str]] = []
    for path in (RESOLV_CONF, HOSTS):
        place = _in_layers(path, policy) if policy.base == "layers" else _in_workspace(path, policy, host, links)
        if place is not None:
            places.append((path, place))
    ways = tuple((link, os.readlink(link)) for link in dict.fromkeys(links)) if links else ()
    name = os.uname().nodename
    key = (host, *places, ways, name)
    known = _hosts.get(key)
    if known is None:
        if len(_hosts) >= _MOST_KEPT:
            _hosts.clear()
        all_ways = tuple((dict(host.ways) | dict(ways)).items())
        known = _hosts[key] = replace(host, network_files=tuple(places), hostname=name, ways=all_ways)
    return known


def _in_workspace(path: str, policy: Policy, host: Host, links: list[str]) -> str | None:
    """Return where a file leads; None if it doesn't exist and no mount point for it can be made.

    None can be made inside a directory that the policy shows. Links on the way that aren't shown are added to `links`,
    since they have to be made.
    """
    if ("/etc", None) in host.directories and _is_file(path):  # runs at every spawn: ask the kernel little
        return path
    real, way = links_on(path)
    shown = (*policy.write, *policy.read, *(top for top, link in host.directories if link is None))
    is_there = os.path.isfile(real)
    if not is_there and (not way or os.path.lexists(real) or any(is_below(real, top) for top in shown)):
        return None
    links += [link for link in way if not any(is_below(link, top) for top in shown)]
    return real


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError as error:
        check_answer(error)
        return False


# ---- what layers() shows


def _in_layers(path: str, policy: Policy) -> str | None:
    """Return where a path leads in the sandbox, with links followed; None if there is no file."""
    found, kind = Destinations(policy.ops), ""

    def target(at: str) -> str | None:
        nonlocal kind
        kind, text = found.entry(at)
        return text if kind == "link" else None

    walk = Walk(path, target)
    try:
        for _ in walk:
            if not (kind in ("link", "directory") or (kind == "file" and not walk.rest)):
                return None
    except OSError as error:
        if error.errno != errno.ELOOP:  # a loop leads to no file; anything else is no answer
            raise
        return None
    return walk.at if found.entry(walk.at)[0] == "file" else None
