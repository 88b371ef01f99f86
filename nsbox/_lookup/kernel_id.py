"""Unused kernel ids, for commands whose caller is the kernel's uid 0; asks the machine for what they need.

Inside, such a command is uid 0 as usual. Outside of its user namespace, its id belongs to no user. An idmapped mount
(mount_setattr(2), Linux 5.12) makes files of a path that the policy names its own. Backends decide what follows.
"""

from __future__ import annotations

import errno
import os
from operator import itemgetter

from nsbox._backends import namespaces
from nsbox._backends.refusals import refused_userns
from nsbox._base.checks import check_answer
from nsbox._base.errors import Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_below
from nsbox._core import abi, linux
from nsbox._core.idmaps import namespace_of
from nsbox._files.mounts import mounts
from nsbox._layout.layout import home_source, with_matches
from nsbox._machine.minimal import CAP_SETGID, CAP_SETUID, read

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

# Between systemd's ids for containers and its foreign ids (https://systemd.io/UIDS-GIDS), and below 2**31, since some
# programs take an id for a signed number.
_FIRST, _COUNT = 0x70000000, 0x0FFE0000
_LAST_ID = 2**32 - 2
_CAP_KILL, _CAP_SETPCAP, _CAP_SYS_ADMIN = 5, 8, 21
_NEEDED = {"CAP_SETGID": CAP_SETGID, "CAP_SETUID": CAP_SETUID, "CAP_SETPCAP": _CAP_SETPCAP}
# CAP_KILL is needed to end commands that have other ids.
_NEEDED |= {"CAP_SYS_ADMIN": _CAP_SYS_ADMIN, "CAP_KILL": _CAP_KILL}
_MOST = 256  # policies that are remembered
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.ENOSYS, errno.EINVAL)

_ids: dict[Policy, int] = {}
_next = 0
_hosts: dict[tuple[Policy, Host], _Mapped] = {}
_stamp = itemgetter(1, 2, 4, 5)  # from os.stat(): inode and device numbers, user and group


@frozen
class _Mapped(Frozen):
    """A host with kernel ids for one policy's commands, and the facts that it was made from.

    paths: those that are mapped.
    stamps: of the paths that exist.
    is_dumpable: whether this process was.
    """

    host: Host
    paths: list[str]
    stamps: list[tuple[int, ...]]
    is_dumpable: bool


def _after_fork() -> None:
    """In a forked child, use other ids than the parent from now on."""
    global _next
    _next = 0
    _ids.clear()
    _hosts.clear()


os.register_at_fork(after_in_child=_after_fork)
if not abi.problem:
    linux.hold_ids_at_forks()


def _subordinate() -> list[tuple[int, int]]:
    """Return the ranges of all users in subuid(5) and subgid(5): first id and count."""
    ranges = []
    for path in ("/etc/subuid", "/etc/subgid"):
        rows = [line.split(":") for line in (read(path) or "").splitlines()]
        ranges += [(int(row[1]), int(row[2])) for row in rows if len(row) == 3 and (row[1] + row[2]).isdigit()]
    return ranges


def _is_unused(number: int, ranges: list[tuple[int, int]]) -> bool:
    import grp
    import pwd

    if any(first <= number < first + count for first, count in ranges):
        return False
    for look in (pwd.getpwuid, grp.getgrgid):
        try:
            look(number)
        except KeyError:
            continue
        return False
    return True


def _id_of(policy: Policy) -> int:
    """Return the kernel id for a policy's commands, a different one for each policy; 0 if no unused one is found."""
    global _next
    known = _ids.get(policy)
    if known is not None:
        return known
    if not _next:
        _next = int.from_bytes(os.urandom(8), "little")
    ranges = _subordinate()
    for _ in range(1000):
        number = _FIRST + _next % _COUNT
        _next += 1
        if _is_unused(number, ranges):
            if len(_ids) >= _MOST:
                _ids.pop(next(iter(_ids)))
            _ids[policy] = number
            return number
        _next += 65521
    return 0


def _paths(policy: Policy, host: Host) -> list[str]:
    """Return the paths to map: those that the policy names, its home, and the interpreter's prefixes.

    A prefix that is the system's, such as /usr, isn't among them: what only root may read there stays closed.
    """
    policy = with_matches(policy, host)
    system = [path for path, _ in host.directories]
    prefixes = [prefix for prefix in host.prefixes if not any(is_below(path, prefix) for path in system)]
    own = (home_source(policy, host), host.package)
    named = (*policy.write, *policy.read, *host.certificate_files, *prefixes)
    return list(dict.fromkeys((*named, *(path for path in own if path))))


def _why_not(policy: Policy, host: Host) -> str:
    if policy.ids != "single":
        return f"ids={policy.ids!r} maps the caller's"
    lacking = [name for name, number in _NEEDED.items() if not host.capabilities >> number & 1]
    if lacking:
        return f"the caller lacks {', '.join(lacking)}"
    if not all(
        any(row.inside == 0 and row.count > _LAST_ID for row in ranges) for ranges in (host.uid_ranges, host.gid_ranges)
    ):
        return "the caller is in a user namespace, which has no ids to spare"
    if not linux.is_dumpable():
        return "the caller isn't dumpable (PR_SET_DUMPABLE)"
    if linux.has_locked_securebits():
        return "the caller's securebits are locked (PR_SET_SECUREBITS)"
    return ""


def _refusal(path: str, number: int) -> str:
    what = {errno.EINVAL: "its file system, or one that is mounted below, has none", errno.EPERM: "it is one already"}
    return f"no idmapped mount of {path}: {what[number]}"


def _check_no_users_mount(path: str) -> None:
    """Raise UnavailableError if a user has mounted a file system there; through it the user could make commands root.

    Users can only mount FUSE (fusermount(1)), which has user_id among its options (proc_pid_mountinfo(5)).
    """
    for point, kind, options in mounts():
        is_users = kind.startswith("fuse") and any(o.startswith("user_id=") and o != "user_id=0" for o in options)
        if is_users and (is_below(point, path) or is_below(path, point)):
            raise UnavailableError(
                Reason(
                    f"{point} is a file system that a user has mounted: without idmapped mounts there, root's commands "
                    "would be root",
                    f"unmount it, or say ids='full' for commands that are root in {path}",
                )
            )


def _namespace(path: str, uid: int, gid: int, number: int, host: Host) -> linux.UserNamespace:
    """Return namespace_of(). Its clone(2) is the first of all: SetupError says what refuses it.

    Not a reason for doing without kernel ids, since commands would then have those of the caller, root's.
    """
    try:
        return namespace_of(uid, gid, number)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            hint = "the process in it was killed from outside, or /proc isn't mounted"
            raise SetupError(error.errno, "make a user namespace", f"idmapped mount of {path}", hint) from None
        if error.errno not in _REFUSALS:
            raise
        reason = refused_userns(error.errno, host)
        hint = ": ".join(filter(None, (reason.what, reason.remedy)))
        raise SetupError(error.errno, "make a user namespace", f"idmapped mount of {path}", hint) from None


def _with_ids(policy: Policy, host: Host, found: list[tuple[str, int, int]]) -> Host:
    """Return the host with kernel ids, or with the reason why there are none.

    found: the paths, each with its uid and gid. Raises OSError if a later attempt may succeed, and UnavailableError.
    """
    reason = _why_not(policy, host)
    number = 0 if reason else _id_of(policy)
    if not number:
        return replace(host, unmapped=reason or "all ids that were tried are in use")
    owners = []
    named = with_matches(policy, host)
    wished = {*named.write, *named.read, home_source(policy, host)}
    for path, uid, gid in found:
        refused = linux.refused_idmap(path, _namespace(path, uid, gid, number, host))
        if not refused:
            owners.append((path, uid, gid))
        elif path in wished:
            _check_no_users_mount(path)
            return replace(host, unmapped=_refusal(path, refused))
        # Otherwise it is the interpreter's: the modes of its files let the command read them.
    return replace(host, kernel_id=number, owners=tuple(owners), private=(), private_unknown=())


def mapped(policy: Policy, host: Host) -> Host:
    """Return the host with kernel ids for this policy's commands and the owners of paths, or with why it has none.

    Raises OSError if that can't be found out at the moment, UnavailableError if a user's mount prevents it.
    """
    known = _hosts.get((policy, host))
    if known is not None:
        try:
            stamps = [*map(_stamp, map(os.stat, known.paths))]
        except OSError as error:  # the spawn will report it
            check_answer(error)
            return known.host
        if stamps == known.stamps and linux.is_dumpable() == known.is_dumpable:
            return known.host
    elif not host.is_kernel_root or policy.backend not in ("auto", "namespaces") or namespaces.missing(host):
        return host
    return _mapped(policy, host)


def _mapped(policy: Policy, host: Host) -> Host:
    """Return what mapped() does, from what exists now."""
    found, paths = {}, _paths(policy, host)
    for path in paths:
        try:
            found[path] = _stamp(os.stat(path))
        except OSError as error:  # the spawn will report it
            check_answer(error)
    is_dumpable = linux.is_dumpable()
    new = _with_ids(policy, host, [(path, uid, gid) for path, (_, _, uid, gid) in found.items()])
    if new.kernel_id:  # otherwise another attempt may succeed
        if len(_hosts) >= _MOST:
            _hosts.clear()
        _hosts[policy, host] = _Mapped(new, paths, [*found.values()], is_dumpable)
    return new
