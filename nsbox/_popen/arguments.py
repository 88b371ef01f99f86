"""What Popen's arguments amount to: programs, ids, descriptors, the directory, and the policy when none is given."""

from __future__ import annotations

import contextlib
import errno
import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._paths.resolution import absolute, current_directory
from nsbox._policy.policy import Policy, default_workspace
from nsbox._spawn.environment import null_free
from nsbox._spawn.prepare import start_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from nsbox._plan.plan import Plan
    from nsbox._spawn.prepare import Prepared


def arguments(args: Any, executable: Any, shell: bool) -> tuple[list[Any], Any]:
    """Return the argument list and the program, as subprocess's POSIX constructor makes them."""
    items: list[Any]
    if type(args) is list or type(args) is tuple:  # the usual types first: it takes longer to recognise the others
        items = list(args)
    elif isinstance(args, str | bytes):
        items = [args]
    elif isinstance(args, os.PathLike):
        if shell:
            raise TypeError("path-like args is not allowed when shell is true")
        items = [args]
    else:
        items = list(args)
    if shell:
        items = ["/bin/sh", "-c", *items]
        if executable:
            items[0] = executable
    return items, items[0] if executable is None else executable


def programs(name: bytes, directories: Callable[[], Iterable[str | bytes]]) -> list[bytes]:
    """Return the paths to try: the program itself if it has a slash, else one in each directory of PATH."""
    if b"/" in name:
        return [name]
    return [os.path.join(os.fsencode(directory), name) for directory in directories()]


def with_ids(options: dict[str, Any]) -> dict[str, Any]:
    """Return Popen's options with ids instead of names of users and groups; raises its KeyError.

    subprocess looks the names up after it has opened pipes, which it leaves open if there is no such name (so
    do CPython 3.11 to 3.13).
    """
    user, groups = options.get("user"), options.get("extra_groups")
    found = dict(options)
    if isinstance(user, str):
        import pwd  # for names alone

        found["user"] = pwd.getpwnam(user).pw_uid
    if isinstance(found.get("group"), str):
        found["group"] = _group(found["group"])
    if groups is not None and not isinstance(groups, str):
        found["extra_groups"] = [_group(group) if isinstance(group, str) else group for group in groups]
    return found


def _group(name: str) -> int:
    import grp

    return grp.getgrnam(name).gr_gid


def check_ids(uid: int | None, gid: int | None, groups: Sequence[int] | None) -> None:
    """Raise the standard library's errors for numbers that can't be ids."""
    if uid is None and gid is None and groups is None:
        return
    for name, value in (("uid", uid), ("gid", gid)):
        if value is not None and value >= 2**32:
            raise OverflowError(f"{name} is greater than maximum")
    if groups is not None and len(groups) > 65536:
        raise ValueError("too many extra_groups")
    if any(group >= 2**32 for group in groups or ()):
        raise ValueError("invalid group id")


def has_other_ids(uid: int | None, plan: Plan) -> bool:
    """Return whether a command's user id differs from its sandbox's. uid: Popen's argument."""
    return plan.identity.change_ids or uid not in (None, plan.identity.uid)


def descriptors(fds: Sequence[int]) -> list[int]:
    """Return pass_fds as the C core expects them: sorted, each once."""
    numbers = {int(fd) for fd in fds}
    if any(not 0 <= number < 2**31 for number in numbers):
        raise ValueError("bad value(s) in fds_to_keep")
    return sorted(numbers)


def default_policy(cwd: Any) -> Policy:
    """Return the policy for work in cwd; raises the standard library's errors if it is no directory.

    Raises PolicyError if a link in the current directory, or in another one that commands could write to, leads cwd
    out of it.
    """
    if cwd is None:
        return Policy.workspace(current_directory())
    path = os.fsdecode(cwd)
    if not os.path.isdir(null_free(os.fsencode(cwd))):
        os.stat(path)  # raises with the reason
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), cwd)
    return default_workspace(path)


def shown_directory(policy: Policy, cwd: Any) -> str | bytes | None:
    """Return the directory in which the command starts, as an observer is told it; None if it has been removed."""
    with contextlib.suppress(FileNotFoundError):
        if cwd is not None:
            return absolute(os.fspath(cwd))  # type: ignore[no-any-return]
        return current_directory() if policy.base == "host" or policy.workdir is None else policy.workdir
    return None


def directory(policy: Policy, prepared: Prepared, cwd: Any) -> tuple[bytes | None, bool]:
    """Return the directory in which the command starts, and whether it is an error if that doesn't exist."""
    if cwd is not None:
        path = null_free(os.fsencode(cwd))
        if policy.base == "workspace":
            return os.path.realpath(absolute(path)), True
        return (path if os.path.isabs(path) else os.path.normpath(absolute(path))), True
    if policy.base != "host" and policy.workdir is not None:
        return start_directory(policy, prepared), True
    # If the current directory has been removed, "/" won't do: the command wasn't meant to work, or delete, there.
    return os.fsencode(current_directory()), False
