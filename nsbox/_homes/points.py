"""Mount points in homes that are kept, for what a policy shows there. All policies that share a home know them.

If a command removes or renames a file or directory, what other commands have mounted on it is unmounted or moved too
(rename(2), unlink(2) since Linux 3.18). EBUSY prevents that only in a mount namespace that itself has something mounted
there. So each policy's commands also have something mounted on the points that were made for others. The names of the
points are kept where no command can write.
"""

from __future__ import annotations

import contextlib
import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._layout.user import first_parts, home_path, home_source
from nsbox._paths.home import is_of_box, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

POINTS = "points"  # in nsbox's directory for state: for each home, an empty file for each name
_MOST = 256  # mount points of a home, each of which costs a mount
_latest: dict[Policy, tuple[Host, dict[str, list[str]]]] = {}
of_boxes: dict[str, set[str]] = {}  # the points, by the name of a Sandbox's home, which no other process has


def _parts(policy: Policy, host: Host) -> dict[str, list[str]]:
    """Return first_parts(), which is remembered, since each command needs it."""
    latest = _latest.get(policy)
    if latest is None or latest[0] is not host:
        if len(_latest) >= _MOST:
            _latest.clear()
        _latest[policy] = latest = host, first_parts(policy, host)
    return latest[1]


def _kinds(policy: Policy, host: Host) -> dict[str, bool]:
    """Return the names on or below which the policy has something mounted, and whether the mount point is a file."""
    parts = _parts(policy, host)
    if not parts:
        return {}
    home = home_path(policy, host)
    return {name: f"{home}/{name}" in paths and not os.path.isdir(f"{home}/{name}") for name, paths in parts.items()}


def _fits(mode: int, is_file: bool) -> bool:
    return stat.S_ISREG(mode) if is_file else stat.S_ISDIR(mode)


def are_there(policy: Policy, host: Host, source: str) -> bool:
    """Return whether the policy's own points still exist, and are known; make() has made them once."""
    if is_of_box(policy.home) and name_of(policy.home) not in of_boxes:
        return True  # it has none; fast, since each command asks
    kinds = _kinds(policy, host)
    if not kinds:
        return True
    try:
        is_made = all(_fits(os.lstat(f"{source}/{name}").st_mode, is_file) for name, is_file in kinds.items())
    except OSError as error:
        check_answer(error)
        return False
    return is_made and kinds.keys() <= _point_names(policy, host)


def make(policy: Policy, host: Host, fd: int) -> None:
    """Make the policy's own points in its home. A link there would lead the mount elsewhere: PolicyError."""
    kinds = _kinds(policy, host)
    _remember(policy, host, kinds.keys())  # first: a command that started meanwhile could remove them
    for name, is_file in kinds.items():
        with contextlib.suppress(FileExistsError):
            if is_file:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd))
            else:
                os.mkdir(name, 0o700, dir_fd=fd)
        if not _fits(os.lstat(name, dir_fd=fd).st_mode, is_file):
            shown = _parts(policy, host)[name][0]
            what = f"{home_source(policy, host)}/{name} is in the way of {shown}, which the policy shows there"
            raise PolicyError("home", f"{policy.home!r}: {what}: remove it, or choose another name")


def foreign(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the names of other policies' points in this one's home, as far as they still exist."""
    names = _point_names(policy, host)
    if not names:
        return ()
    own = _parts(policy, host)
    source = home_source(policy, host)
    points = []
    for name in sorted(names - own.keys()):
        with contextlib.suppress(OSError):
            mode = os.lstat(f"{source}/{name}").st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                points.append(name)
    return tuple(points)


def forget(name: str) -> None:
    """Forget the points of a Sandbox's home that has been removed."""
    of_boxes.pop(name, None)


def _point_names(policy: Policy, host: Host) -> set[str]:
    if is_of_box(policy.home):
        return of_boxes.get(name_of(policy.home) or "", set())
    try:
        return set(os.listdir(f"{host.state}/{POINTS}/{name_of(policy.home)}"))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _remember(policy: Policy, host: Host, names: Iterable[str]) -> None:
    """Keep the names; raises OSError, and PolicyError if there are too many."""
    known = _point_names(policy, host)
    new = {*names} - known
    if len(known | new) > _MOST:
        where = f"{host.state}/{POINTS}/{name_of(policy.home)}"
        what = f"{policy.home!r} has had more than {_MOST} places at which policies show something"
        raise PolicyError("home", f"{what}: choose another name, or remove {where} while no command runs in it")
    if is_of_box(policy.home):
        if new:
            of_boxes.setdefault(name_of(policy.home) or "", set()).update(new)
        return
    for name in new:
        directory = f"{host.state}/{POINTS}/{name_of(policy.home)}"
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.close(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
