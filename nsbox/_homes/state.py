"""nsbox's own directory of the user, which has the key: which sources of a policy lead to it, and making it in time.

A command that could put another directory there would have a key of its own. With that it could forge journals, which
the caller carries out.
"""

from __future__ import annotations

import errno
import os

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._layout.layout import sources
from nsbox._plan.ops import Bind, BindFd, DevBind, Overlay

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy


def with_sources(policy: Policy, host: Host) -> Host:
    """Return the host with those of the policy's sources that are nsbox's directory for state, or a directory above it.

    Links count, and so do other mounts of the same directory: device and inode numbers identify it.
    """
    if policy.base != "layers" or not host.state:
        return host
    parts = host.state.split("/")
    ways = ["/", *("/".join(parts[:i]) for i in range(2, len(parts) + 1))]
    around: dict[tuple[int, int], str] = {}
    led: list[tuple[str | int, str]] = []
    for source in {source for op in policy.ops for source in sources(op)} - {*ways}:
        around = around or {number: way for way in ways if (number := _number(way)) is not None}
        way = around.get(_number(source) or (-1, -1))
        if way is not None:
            led.append((source, way))
    return replace(host, sources=tuple(led)) if led else host


def _number(file: str | int) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError as error:
        check_answer(error)
        return None
    return status.st_dev, status.st_ino


def _writable_sources(policy: Policy) -> list[str | int]:
    """Return what a policy's ops open for writing on the host, as paths or descriptors."""
    found: list[str | int] = []
    for op in policy.ops:
        if isinstance(op, Bind | DevBind):
            found.append(op.src)
        elif isinstance(op, BindFd) and not op.read_only:
            found.append(op.fd)
        elif isinstance(op, Overlay):
            found.append(op.upper)
    return found


def check_detours(policy: Policy, host: Host) -> None:
    """Raise PolicyError if commands could replace a link on the way to nsbox's directory for state.

    A mount keeps a directory in its place, but it can't keep a link.
    """
    if not host.state_detours or policy.base == "host" or policy.details.host_writes:
        return
    writable = {*policy.write}
    for source in _writable_sources(policy):
        writable.add(os.path.realpath(source if isinstance(source, str) else f"/proc/self/fd/{source}"))
    writable -= {"/", *policy.deny} if policy.base == "layers" else {*policy.deny}
    named = {*writable, *policy.read, *policy.deny}
    for way in host.state_detours:
        above = max((path for path in named if is_below(way, path)), key=len, default=None)
        if above in writable and above != way:
            what = f"{above} contains {way}, by which a link leads to nsbox's own directory: commands could replace it"
            remedy = f"replace it with a directory, or set XDG_STATE_HOME to {host.state.rpartition('/')[0]} everywhere"
            raise PolicyError("write" if policy.base == "workspace" else "ops", f"{what}; {remedy}")


def check_overlays(policy: Policy, host: Host) -> None:
    """Raise PolicyError if an overlay writes to a directory around nsbox's own.

    Nothing can be kept in its place there, as in a bind: a directory that is bound onto itself isn't the overlay's.
    """
    if not host.state or policy.details.host_writes:
        return
    led = dict(host.sources)
    for op in policy.ops:
        if isinstance(op, Overlay) and is_below(host.state, led.get(op.upper, os.path.realpath(op.upper))):
            what = f"{op.upper}, to which an overlay writes, contains nsbox's own directory {host.state}"
            raise PolicyError("ops", f"{what}: commands could replace it; choose another upper directory")


def make_state(policy: Policy, host: Host) -> None:
    """Make nsbox's directory for state, if it doesn't exist and commands could make it, with a key that they know.

    Once it exists, the plan can mask it.
    """
    led = dict(host.sources)
    opened = () if policy.details.host_writes else _writable_sources(policy)
    bound = (led.get(source, source) for source in opened)
    named = {*policy.write, *(path for path in bound if isinstance(path, str) and path != "/")}
    if not host.state or not any(is_below(host.state, path) for path in named):
        return
    try:
        os.makedirs(host.state, mode=0o700, exist_ok=True)
    except OSError as error:
        check_answer(error)
        if error.errno != errno.EROFS and _may_make(host.state):
            what = f"{host.state}, nsbox's own directory, can't be made ({error.strerror}), and commands could make one"
            field = "write" if policy.base == "workspace" else "ops"
            raise PolicyError(field, f"{what}; make it, or set XDG_STATE_HOME to another directory") from None


def _may_make(path: str) -> bool:
    """Return whether commands of this user could make a directory somehow, such as by changing permissions on the way.

    They can't if a file is in the way, which stays there.
    """
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        try:
            status = os.lstat(path)
        except OSError as error:
            check_answer(error)
            continue
        return status.st_mode & 0o170000 == 0o040000 and (status.st_uid == os.geteuid() or os.access(path, os.W_OK))
    return True
