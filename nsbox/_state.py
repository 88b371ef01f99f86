"""nsbox's own directory of the user, in which the key is: which sources of a policy lead to it; it is made in time."""

from __future__ import annotations

from nsbox._checks import is_below
from nsbox._early import os
from nsbox._frozen import TYPE_CHECKING, replace
from nsbox._layout import sources
from nsbox._plan import Bind, BindFd, DevBind

if TYPE_CHECKING:
    from nsbox._host import Host
    from nsbox._policy import Policy


def with_sources(policy: Policy, host: Host) -> Host:
    """Return the host with what policy's sources lead to, if that is nsbox's directory for state, or what it is in.

    Links count, and other mounts of the same directory: a directory is known by its device and inode numbers.
    """
    if policy.base != "layers" or not host.state:
        return host
    parts = host.state.split("/")
    ways = ["/", *("/".join(parts[:i]) for i in range(2, len(parts) + 1))]
    around: dict[tuple[int, int], str] = {}
    found: list[tuple[str | int, str]] = []
    for source in {source for op in policy.ops for source in sources(op)} - {*ways}:
        around = around or {number: way for way in ways if (number := _number(way)) is not None}
        way = around.get(_number(source) or (-1, -1))
        if way is not None:
            found.append((source, way))
    return replace(host, sources=tuple(found)) if found else host


def _number(file: str | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def make_state(policy: Policy, host: Host) -> None:
    """Make nsbox's directory for state, if it isn't there and commands could make it, with a key that they know.

    Then what the plan masks is there to be masked.
    """
    led = dict(host.sources)
    binds = [op for op in policy.ops if isinstance(op, Bind | DevBind) or (isinstance(op, BindFd) and not op.read_only)]
    found = (
        (led.get(source, source) for op in binds for source in sources(op)) if not policy.details.host_writes else ()
    )
    named = {*policy.write, *(path for path in found if isinstance(path, str) and path != "/")}
    if not host.state or not any(is_below(host.state, path) for path in named):
        return
    from os import makedirs  # seldom needed, and not in _early

    try:
        makedirs(host.state, mode=0o700, exist_ok=True)
    except OSError:
        return  # as this user's, the commands can't make it either
