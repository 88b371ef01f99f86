"""Finds out where /etc/resolv.conf and /etc/hosts lead in a sandbox with a network list, for the Host to hold."""

from __future__ import annotations

import errno
import os
import stat

from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._layout.network import HOSTS, RESOLV_CONF
from nsbox._machine.minimal import check_scarcity
from nsbox._paths.resolution import Walk, links_on
from nsbox._plan.ops import BindData, BindFd, Dir, File, Op, Symlink

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
    except OSError:
        return False


# ---- what layers() shows


def _in_layers(path: str, policy: Policy) -> str | None:
    """Return where a path leads in the sandbox, with links followed; None if there is no file."""
    kind = ""

    def target(at: str) -> str | None:
        nonlocal kind
        kind, text = _entry(at, policy.ops)
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
    return walk.at if _entry(walk.at, policy.ops)[0] == "file" else None


def _entry(path: str, ops: tuple[Op, ...]) -> tuple[str, str]:
    """Return what is at a path without links on the way: "file", "directory", "link" and its target, or ""."""
    for op in reversed(ops):
        dest = getattr(op, "dest", None)
        if not isinstance(dest, str):
            continue
        if dest == path and isinstance(op, File | BindData):
            return "file", ""
        if dest == path and isinstance(op, Symlink):
            return "link", op.target
        if dest != path and is_below(dest, path) and not _covers(op, path):
            return "directory", ""  # made on the way
        if _covers(op, path):
            return _of_sources(op, path[len(dest.rstrip("/")) :] if path != dest else "")
        if dest == path and isinstance(op, Dir):
            return "directory", ""
    return "", ""


def _covers(op: Op, path: str) -> bool:
    """Say if an op mounts something over the path or over a directory above it."""
    dest = getattr(op, "dest", "")
    return is_below(path, dest) and not isinstance(op, File | BindData | Symlink | Dir) and _mounts(op)


def _mounts(op: Op) -> bool:
    return op.row()[0] in ("bind", "tmpfs", "overlay", "proc", "dev", "mask", "devpts", "mqueue")


def _of_sources(op: Op, rest: str) -> tuple[str, str]:
    """Return what a mount has at a path in it, as _entry() does; the topmost layer of an overlay that has it counts."""
    upper = getattr(op, "upper", None)
    lower = (*reversed(getattr(op, "lower", ())), getattr(op, "src", None))
    sources = [f"/proc/self/fd/{op.fd}"] if isinstance(op, BindFd) else [s for s in (upper, *lower) if s is not None]
    for source in sources:
        at = f"{source.rstrip('/')}{rest}"
        try:
            mode = os.stat(at).st_mode if not rest else os.lstat(at).st_mode
            if stat.S_ISLNK(mode):
                return "link", os.readlink(at)
        except OSError as error:
            check_scarcity(error)
            if error.errno == errno.EACCES:
                return "", ""
            continue
        return ("directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else ""), ""
    return ("", "") if rest else ("directory", "")
