"""Who the command is, as programs in a workspace find out: its home, its entries in passwd and group, root's files.

Nothing is mounted needlessly: no passwd if the host's is already right, no copies of files that are root's inside too.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._layout.layout import project, wants_full
from nsbox._paths.home import HOMES, PRIVATE, name_of
from nsbox._plan.ops import Bind, BindData, Op, RemountRo, Tmpfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_MOST_TEXT = 8 << 20  # bytes; a larger passwd or group is shortened
_FIRST_PERSON = 1000  # ids below belong to the system
_NOBODY = (65534, 65535)
_BASIC_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_BASIC_GROUP = b"root:x:0:\nnogroup:x:65534:\n"


def uid_of(policy: Policy, host: Host) -> int:
    """Return the uid that the command has inside."""
    return host.euid if policy.uid is None else policy.uid


def gid_of(policy: Policy, host: Host) -> int:
    """Return the gid that the command has inside."""
    return host.egid if policy.gid is None else policy.gid


def user_of(policy: Policy, host: Host) -> str:
    """Return the name of the command's user: a made-up one, such as u54321, for a uid without a user."""
    return host.user or f"u{uid_of(policy, host)}"


# ---- home


def _shown(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the host's paths that a workspace shows."""
    return (*policy.write, *policy.read, *(p for p, link in host.directories if link is None), *host.prefixes)


def home_path(policy: Policy, host: Host) -> str:
    """Return HOME of a built environment, for a backend that mounts."""
    home = policy.home or "/"
    if home == "workspace":
        return project(policy) or policy.workdir or "/"
    if home == "tmp":
        return "/tmp"
    return _private(policy, host) if home == PRIVATE or name_of(home) is not None else home


def _private(policy: Policy, host: Host) -> str:
    """Return the path of a private home: the first candidate where the sandbox shows nothing of the host.

    The last candidate is below /dev, which always is the sandbox's own. If /home is a link, the home is where that
    leads, and has both names.
    """
    name = user_of(policy, host)
    shown = _shown(policy, host)
    homes = (_led(f"/home/{name}", host), _led(f"/home/{name}-private", host))
    for path in (*homes, f"/tmp/home-{name}"):
        if not any(is_below(path, other) for other in (*shown, *policy.deny)):
            return path
    return f"/dev/shm/home-{name}"


def _led(path: str, host: Host) -> str:
    """Return where a path leads by the links on the way to homes; these are sorted from the root down."""
    for link, target in host.home_links:
        if is_below(path, link):
            above = link.rpartition("/")[0]
            path = f"{target if target.startswith('/') else f'{above}/{target}'}{path[len(link) :]}"
            path = _normal(path)
    return path


def _normal(path: str) -> str:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return f"/{'/'.join(names)}"


def home_links(policy: Policy, host: Host) -> tuple[tuple[str, str], ...]:
    """Return the links that give the home its usual name, below /home, as well."""
    if not host.home_links or (policy.home != PRIVATE and name_of(policy.home) is None):
        return ()
    home = home_path(policy, host)
    return tuple((link, target) for link, target in host.home_links if is_below(home, _led(link, host)))


def home_source(policy: Policy, host: Host) -> str | None:
    """Return the directory of this machine that keeps the home; None if it isn't kept. Raises UnavailableError."""
    name = name_of(policy.home)
    if name is None:
        return None
    if not host.state:
        raise UnavailableError(
            Reason(
                f"home={policy.home!r}: this user has no directory for state to keep it in",
                "set XDG_STATE_HOME, or say home='private'",
            )
        )
    return f"{host.state}/{HOMES}/{name}"


def first_parts(policy: Policy, host: Host) -> dict[str, list[str]]:
    """Return the policy's paths that lie in the home, grouped by the first name below it."""
    home = home_path(policy, host)
    groups: dict[str, list[str]] = {}
    for path in (*policy.write, *policy.read, *host.prefixes):
        if path != home and is_below(path, home):
            groups.setdefault(path[len(home) + 1 :].partition("/")[0], []).append(path)
    return groups


def home_ops(policy: Policy, host: Host, size: int | None) -> tuple[dict[str, Op], list[Op]]:
    """Return the ops that make a private home, by destination, and those that must come last.

    A directory between the home and a path of the policy in it is read-only, as such directories are everywhere. A file
    there would vanish with the sandbox, and moving the directory would take the workspace along.

    size: the most bytes of a home in memory; None: no limit of ours.
    """
    if policy.home != PRIVATE and name_of(policy.home) is None:
        return {}, []
    home, source = home_path(policy, host), home_source(policy, host)
    # In a user namespace with several ids the tmpfs belongs to its uid 0.
    is_shared = wants_full(policy, host) and uid_of(policy, host) != 0
    ops: dict[str, Op] = {home: Tmpfs(home, size=size, mode=0o1777 if is_shared else 0o700)}
    if source is not None:
        ops = {home: Bind(source, home, nofollow=True)}
        # Removing or renaming a mount point of another sandbox would unmount it there: see _homes/points.py.
        points = ((f"{source}/{name}", f"{home}/{name}") for name in host.home_points)
        ops |= {at: Bind(path, at, optional=True, nofollow=True) for path, at in points}
    ways = [f"{home}/{name}" for name, paths in first_parts(policy, host).items() if f"{home}/{name}" not in paths]
    return ops | {way: Tmpfs(way) for way in ways}, [RemountRo(way) for way in ways]


def home_caveats(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return sentences: what isn't enforced about a kept home if commands can make user namespaces."""
    wish = policy.filter
    may = policy.may_nest or wish.base == "off" or not {"clone", "unshare"}.isdisjoint(wish.allow)
    if not may or name_of(policy.home) is None or not (host.home_points or first_parts(policy, host)):
        return ()
    return ("home: in a user namespace of its own the command can unmount what others have mounted in it",)


def home_words(policy: Policy, host: Host, *, has_mounts: bool) -> str:
    """Say which home it is, for explain(). has_mounts: whether the backend mounts."""
    home = policy.home
    if home == PRIVATE and not has_mounts:
        return "the directory for temporary files: a private one would need mounts"
    if home == PRIVATE:
        return (
            "private: empty, for each command, session or run of Python; commands of a Sandbox share one while it is "
            "open, unless the policy opens nothing for writing"
        )
    if name_of(home) is not None:
        return f"kept in {home_source(policy, host)}, for all policies that name it"
    return {"workspace": "the workspace", "tmp": "the sandbox's own /tmp"}.get(home or "", "as the policy says")


# ---- passwd and group


def accounts(policy: Policy, host: Host, home: str) -> dict[str, Op]:
    """Return ops for /etc/passwd and /etc/group with the command's user and group, unless the host's are right already.

    home: HOME.
    """
    uid, gid = uid_of(policy, host), gid_of(policy, host)
    user, group = user_of(policy, host), host.group or f"g{gid}"
    texts = {
        "/etc/passwd": _with_user(host.passwd, uid, [user, "x", str(uid), str(gid), host.user_info, home, host.shell]),
        "/etc/group": _with_group(host.groups, gid, [group, "x", str(gid), ""]),
    }
    ops: dict[str, Op] = {}
    for path, text in texts.items():
        if text is not None and _is_the_systems(path, policy, host):
            ops[path] = BindData(path, text, mode=0o644, read_only=True)
    return ops


def _is_the_systems(path: str, policy: Policy, host: Host) -> bool:
    """Say if a file is shown only because it is the system's: the policy doesn't name, open for writing or hide it."""
    shown = any(link is None and is_below(path, top) for top, link in host.directories)
    shown = shown or any(is_below(path, above) for above in policy.read)
    above = max((p for p in (*policy.write, *policy.read) if is_below(path, p)), key=len, default=None)
    hidden = (*policy.deny, *host.secrets, *host.private)
    return shown and above != path and above not in policy.write and not any(is_below(path, p) for p in hidden)


def _with_user(data: bytes | None, uid: int, entry: list[str]) -> bytes | None:
    """Return passwd with the user's entry; None if it has that already."""
    home = entry[5].encode("utf-8", "surrogateescape")
    if data is None or b":" in home or b"\n" in home:
        return None

    def right(fields: list[bytes]) -> list[bytes]:
        return [*fields[:5], home, *fields[6:]]

    return _with_entry(data, uid, 7, right, entry, _BASIC_PASSWD)


def _with_group(data: bytes | None, gid: int, entry: list[str]) -> bytes | None:
    return None if data is None else _with_entry(data, gid, 4, lambda fields: fields, entry, _BASIC_GROUP)


def _with_entry(
    data: bytes,
    number: int,
    width: int,
    right: Callable[[list[bytes]], list[bytes]],
    entry: list[str],
    basic: bytes,
) -> bytes | None:
    """Return a passwd or group that has an entry with this id, and no wrong one; None if that is so already.

    data: the file; empty: `basic` instead.
    number: the id.
    width: how many fields an entry has at least.
    right: corrects the fields of an entry.
    entry: fields of the entry to add if there is none.
    """
    wanted, lines, has_one, changed = b"%d" % number, [], False, False
    texts = (data or basic).split(b"\n")
    for line in texts:
        fields = line.split(b":") if wanted in line else []
        if len(fields) >= width and fields[2] == wanted:
            fields, before, has_one = right(fields), fields, True
            changed = changed or fields != before
            line = b":".join(fields)
        lines.append(line)
    if has_one and not changed and data:
        return None
    if not has_one:
        own = b":".join(_field(text) for text in entry)
        lines = _without(own.split(b":")[0], lines)
        at = next((i for i, line in enumerate(lines) if line[:1] in (b"+", b"-")), len(lines))  # before NIS entries
        lines.insert(at, own)
    text = b"\n".join(line for line in lines if line) + b"\n"
    return text if len(text) <= _MOST_TEXT else _shortened(lines, wanted)


def _without(name: bytes, lines: Iterable[bytes]) -> list[bytes]:
    """Return the lines without other entries of this name: programs take the first one that they find."""
    return [line for line in lines if line and line.partition(b":")[0] != name]


def _shortened(lines: Iterable[bytes], wanted: bytes) -> bytes:
    """Return a short version of a large file: the system's own entries, and the command's."""
    entries = []
    for line in lines:
        number = line.split(b":")[2:3]
        is_system = bool(number) and number[0].isdigit() and _is_system(int(number[0]))
        if number == [wanted] or is_system:
            entries.append(line)
    return b"\n".join(entries) + b"\n"


def _is_system(number: int) -> bool:
    return number < _FIRST_PERSON or number in _NOBODY


def _field(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape").translate(None, b":\n")


# ---- root's files


def shows_root(policy: Policy, host: Host) -> bool:
    """Say if files of the host's uid 0 belong to root, or to the command, in its user namespace."""
    if host.can_set_ids and wants_full(policy, host):
        return True
    return host.euid == 0 and not host.kernel_id


def ssh_ops(policy: Policy, host: Host) -> dict[str, Op]:
    """Return ops for root's files that ssh_config(5) includes: copies that belong to the command's user.

    ssh accepts these files only from root or from its own user, and inside, the host's root is nobody.
    """
    if not host.ssh_files or shows_root(policy, host):
        return {}
    return {
        path: BindData(path, data, mode=0o644, read_only=True)
        for path, data in host.ssh_files
        if policy.base == "host" or _is_the_systems(path, policy, host)
    }
