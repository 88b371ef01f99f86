"""The backend of macOS: a profile of its sandbox (Seatbelt), which the kernel enforces on the command and its children.

Nothing is mounted: files have their usual names, and those that aren't allowed can't be read or written. In a profile
the last rule that matches decides, and a rule about file-read-data takes precedence over one about file-read*. So all
rules about files name the same operations, and stand from the root down: the longest path decides, as elsewhere.
"""

from __future__ import annotations

from nsbox._backends import sentences
from nsbox._backends.limits import check_lacking, rlimits
from nsbox._backends.seatbelt_rules import CLOSED, COMMON, DEVICES, EXCEPTIONS, NETWORK, PRESETS, Set
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._layout.layout import home, pinned_paths, with_matches
from nsbox._layout.network import enforced_by_proxy, left_open, listed
from nsbox._paths.home import PRIVATE, is_of_box, name_of
from nsbox._plan import sbpl
from nsbox._plan.host import Host
from nsbox._plan.plan import Identity, Plan, Rlimit
from nsbox._plan.sbpl import Seatbelt, param, rule
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    Right = Literal["read", "write", "deny"]

NAME = "seatbelt"
DATA = "/System/Volumes/Data"  # where the targets of firmlinks have their other names
_LINKS = ("/etc", "/tmp", "/var")  # links of macOS, to /private
_TEMPORARY = ("/private/tmp", "/private/var/tmp", "/private/var/folders")
_OF_PACKAGES = ("/opt/homebrew/var", "/opt/local/var", "/usr/local/var")  # data of services that run as the user
_READS = "file-read* file-test-existence file-map-executable process-exec*"
_ALL = f"{_READS} file-write*"
_MOVES = "file-write-unlink file-write-create"  # rename(2) needs the first for the old path, the second for the new one


def missing(host: Host) -> tuple[Reason, ...]:
    """Return why this backend can't be used on this host."""
    if host.system != "Darwin":
        return (Reason(f"{host.system} has no Seatbelt, which is macOS's"),)
    if host.core_problem:
        return (Reason(host.core_problem, "install nsbox from a wheel for macOS, or with a C compiler"),)
    if host.seatbelt_problem:
        return (Reason(host.seatbelt_problem),)
    return () if host.seatbelt_ways else (Reason("libsandbox has none of the functions that apply a profile"),)


def compile(policy: Policy, host: Host) -> Plan:
    """Return the plan for this policy on this host; raises UnavailableError for a wish that can't be granted here."""
    _check_possible(policy)
    lacking = _lacking(policy, host)
    not_granted = check_lacking(policy, lacking)
    limits = tuple(limit for limit in rlimits(policy, host, own_userns=False) if limit.name != "AS")
    contains_files = policy.base == "workspace"
    tmpdir = f"{host.temporary}/nsbox-*" if contains_files else host.temporary
    return Plan(
        ops=(_Profile(policy, host).op() if contains_files else _open_profile(policy, host),),
        namespaces=frozenset(),
        identity=_identity(policy, host),
        rlimits=limits,
        new_session=policy.new_session,
        kill_on_exit=policy.kill_on_exit,
        drop_groups=False,
        plain=True,
        tmpdir=tmpdir,
        home=_home(policy, host, tmpdir),
        backend=NAME,
        enforced=_enforced(policy, limits),
        not_enforced=(*_not_enforced(policy, host), *not_granted),
        lost=frozenset(lacking),
        network=listed(policy),
    )


# ---- what it can't do


def _home(policy: Policy, host: Host, tmpdir: str) -> str:
    """Return HOME. Nothing can be mounted, so a private home is the directory for temporary files."""
    if policy.home == PRIVATE or is_of_box(policy.home):
        return tmpdir
    return tmpdir if policy.home == "tmp" else home(policy, host)


def _check_possible(policy: Policy) -> None:
    """Raise UnavailableError for a wish that can't be granted and can't be left out either."""
    if name_of(policy.home) is not None and not is_of_box(policy.home):
        raise UnavailableError(
            Reason(f"seatbelt: home={policy.home!r}: a home that is kept needs mounts", "home='private', or a path")
        )
    if policy.base == "layers":
        raise UnavailableError(Reason("seatbelt: Policy.layers() is made of mounts, which macOS doesn't have"))
    if policy.devices:
        raise UnavailableError(Reason("seatbelt: devices: macOS has none of these"))
    if policy.nested:
        raise UnavailableError(Reason("seatbelt: nested=True: in a sandbox macOS refuses another one (EPERM)"))


def _lacking(policy: Policy, host: Host) -> dict[str, Reason]:
    """Return the wishes that this backend can't grant: their names in degrade, and why."""
    lacking = {}
    if policy.tmp_size is not None:
        lacking["tmp"] = Reason("seatbelt: tmp: no tmp_size: a directory has no size of its own to be limited")
    if policy.hostname is not None:
        lacking["hostname"] = Reason("seatbelt: hostname: macOS has one for all")
    if policy.ids == "full" or not _is_own(policy, host):
        lacking["ids"] = Reason(
            f"seatbelt: ids: only the caller's own uid and gid are there, {host.euid} and {host.egid}"
        )
    network = listed(policy)
    datagrams = (
        [] if network is None else [entry.text for entry in network.entries if entry.is_udp and not entry.is_denied]
    )
    if datagrams:
        lacking["network"] = Reason(
            f"seatbelt: network: {datagrams[0]!r}: on macOS a list is enforced by a proxy, which has no UDP; without "
            "it the others are reached"
        )
    if policy.landlock:
        lacking["landlock"] = Reason("seatbelt: landlock: that is Linux's")
    if policy.seccomp not in ("default", "off"):
        lacking["seccomp"] = Reason(
            "seatbelt: seccomp: macOS has no filters of system calls; its profile is all there is"
        )
    whys = {
        "memory": "macOS doesn't enforce RLIMIT_AS",
        "total_memory": "there are no cgroups",
        "cpus": "there are no cgroups",
        "processes": "RLIMIT_NPROC counts all processes of the user",
    }
    for name, why in whys.items():
        if getattr(policy.limits, name) is not None:
            lacking[f"limits.{name}"] = Reason(f"seatbelt: limits.{name}: {why}")
    return lacking


def _is_own(policy: Policy, host: Host) -> bool:
    return policy.uid in (None, host.euid) and policy.gid in (None, host.egid)


def _identity(policy: Policy, host: Host) -> Identity:
    return Identity(host.euid, host.egid, "", "", deny_setgroups=False, by_helper=host.euid == 0)


# ---- paths


def canonical(path: str, host: Host) -> str:
    """Return the path as the kernel compares it with rules: without links and firmlinks."""
    path = dict(host.spellings).get(path, path)
    if is_below(path, DATA) and any(is_below(path[len(DATA) :], link) for link in host.firmlinks):
        path = path[len(DATA) :]
    return f"/private{path}" if any(is_below(path, link) for link in _LINKS) else path


@frozen
class Grant(Frozen):
    """A right to a path and everything below it.

    above: the right that the directory around it has.
    name: the path's parameter in the profile.
    """

    path: str
    right: Right
    above: Right | None
    name: str


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _rights(policy: Policy, host: Host) -> dict[str, Right]:
    """Return the right for each path. On the same path deny wins over write, and write over read."""
    policy = with_matches(policy, host)
    write, read, denied = ([canonical(p, host) for p in paths] for paths in (policy.write, policy.read, policy.deny))
    # The interpreter and nsbox are read-only even inside of what is writable: they are executed outside.
    own = [*(path for path, target in host.directories if target is None), *host.prefixes, host.package]
    own += [path for path in host.imports if any(is_below(path, w) and path != w for w in policy.write)]
    own += [host.resolv_conf or ""] if policy.network == "host" else []
    by_default = [canonical(path, host) for path in own if path]
    # Places where all programs keep temporary files and data: closed even if everything around them is readable.
    wished = [path for path in (*write, *read) if path != "/"]
    closed = [p for p in (*_TEMPORARY, host.temporary, *_OF_PACKAGES) if not any(is_below(p, w) for w in wished)]
    rights: dict[str, Right] = dict.fromkeys(closed, "deny")
    rights |= {p: "read" for p in by_default if not any(is_below(p, d) for d in denied)}
    secret = [canonical(path, host) for path in host.private]
    secret = [path for path in secret if not any(is_below(path, wish) for wish in (*write, *read))]
    rights |= dict.fromkeys((canonical(path, host) for path in (*host.secrets, *secret)), "deny")
    return rights | dict.fromkeys(read, "read") | dict.fromkeys(write, "write") | dict.fromkeys(denied, "deny")


def grants(policy: Policy, host: Host) -> list[Grant]:
    """Return the rights from the root down, except for those that the directory around already gives."""
    rights = _rights(policy, host)
    found: list[Grant] = []
    counts = {"read": 0, "write": 0, "deny": 0}
    # At the same depth no path contains another. Sorted by right there, neighbours share rules.
    for path, right in sorted(rights.items(), key=lambda item: (_depth(item[0]), item[1], item[0])):
        around = max((g for g in found if is_below(path, g.path)), key=lambda g: _depth(g.path), default=None)
        above = around.right if around is not None else None
        if right == (above or "deny"):
            continue
        found.append(Grant(path, right, above, f"{right.upper()}_{counts[right]}"))
        counts[right] += 1
    return found


# ---- the profile


class _Profile:
    """The profile of a workspace."""

    def __init__(self, policy: Policy, host: Host) -> None:
        self._policy, self._host = policy, host
        self._grants = grants(policy, host)
        self._writable = [grant for grant in self._grants if grant.right == "write"]
        self._params: dict[str, str | None] = {g.name: sbpl.check_value(g.path) for g in self._grants}
        self._params["TMP"] = None

    def op(self) -> Seatbelt:
        """Return the profile with its parameters."""
        lines = ["(version 1)", "(deny default)", *_sets(CLOSED, "deny"), *_sets(COMMON)]
        lines += self._files()
        lines += self._sockets()
        if self._policy.network == "host":
            lines += _sets(NETWORK)
        elif listed(self._policy) is not None:
            lines.append(rule("allow", "network-outbound", [sbpl.proxy()], "the proxy that enforces the network list"))
        for name in sorted(self._policy.seatbelt):
            lines += _sets(PRESETS[name])
        lines += _sets(EXCEPTIONS, "deny")
        count = sum(line.count("(param ") for line in lines)
        if count > sbpl.MOST_FILTERS:
            raise UnavailableError(
                Reason(f"seatbelt: {count} paths are too many for a profile, which has {sbpl.MOST_FILTERS} at most")
            )
        return Seatbelt("\n".join(lines) + "\n", tuple(self._params.items()), self._host.seatbelt_ways[0])

    def _files(self) -> list[str]:
        lines = [
            rule("allow", "file-read* file-test-existence", ['(literal "/")'], "the loader reads the root directory")
        ]
        run: list[Grant] = []
        for grant in (*self._grants, None):  # neighbours of the same kind share a rule
            if run and (grant is None or (grant.right, grant.above) != (run[0].right, run[0].above)):
                lines += self._of(run)
                run = []
            if grant is not None:
                run.append(grant)
        lines.append(rule("allow", _ALL, [param("TMP")], "temporary files, of one run at a time"))
        lines += _sets(DEVICES)
        names = [g.name for g in self._grants if g.right != "deny" and g.path != "/"]
        ways = [param(name, "path-ancestors") for name in (*names, "TMP")]
        links = [f'(literal "{link}")' for link in _LINKS]
        for i, link in enumerate(self._host.links):
            self._params[f"LINK_{i}"] = sbpl.check_value(link)
            links.append(param(f"LINK_{i}", "literal"))
            ways.append(param(f"LINK_{i}", "path-ancestors"))
        lines.append(rule("allow", "file-read-metadata file-test-existence", [*ways, *links], "the way to each path"))
        return [*lines, *self._pins()]

    def _of(self, run: list[Grant]) -> list[str]:
        filters = [param(grant.name) for grant in run]
        right, above = run[0].right, run[0].above
        if right == "deny":
            filters += [text for grant in run for text in self._folded(grant, below=True)]
            return [rule("deny", _ALL, filters, "hidden")]
        if right == "write":
            return [rule("allow", _ALL, filters, "readable and writable")]
        if above == "write":
            return [rule("deny", "file-write*", filters, "read-only in what is writable")]
        return [rule("allow", _READS, filters, "readable")]

    def _around(self, path: str) -> Grant | None:
        """Return the innermost writable path that contains this one."""
        around = (grant for grant in self._writable if is_below(path, grant.path) and path != grant.path)
        return max(around, key=lambda grant: _depth(grant.path), default=None)

    def _folded(self, grant: Grant, *, below: bool) -> list[str]:
        """Return a filter that matches a path in upper and lower case, if the volume takes both for the same file.

        The path may not exist yet, and a command could make it in another spelling.
        """
        around = self._around(grant.path)
        if self._host.names_are_exact or around is None:
            return []
        pattern = sbpl.folded(around.name, grant.path[len(around.path) :], below=below)
        if pattern is None:
            raise UnavailableError(
                Reason(f"seatbelt: deny: {grant.path} is too long to be hidden in any spelling", "a shorter path")
            )
        return [pattern]

    def _pins(self) -> list[str]:
        """Return rules that keep named paths, and the way to them, from being moved: elsewhere other rules would apply.

        That includes paths that don't exist yet: a command could make another directory, and move it to that place.
        """
        pinned = [*self._writable, *(g for g in self._grants if g.right != "write" and self._around(g.path))]
        ways: dict[str, None] = {}
        for grant in pinned:
            ways[grant.path] = None
            around = self._around(grant.path)
            if around is not None:
                parts = grant.path[len(around.path) :].strip("/").split("/")[:-1]
                ways.update({"/".join((around.path, *parts[: n + 1])): None for n in range(len(parts))})
        names = {grant.path: grant.name for grant in self._grants}
        filters = []
        for i, path in enumerate(sorted(ways, key=lambda path: (_depth(path), path))):
            name = names.get(path) or f"WAY_{i}"
            self._params[name] = sbpl.check_value(path)
            filters.append(param(name, "literal"))
            filters += self._folded(Grant(path, "deny", None, name), below=False)
        lines = (
            [rule("deny", _MOVES, filters, "named paths, and the way to them, stay where they are")] if filters else []
        )
        lines.append(rule("deny", f"{_MOVES} file-write-mode", [param("TMP", "literal")], "as does the directory"))
        return lines

    def _sockets(self) -> list[str]:
        """Return rules for unix sockets where files may be made. To Seatbelt, connecting isn't a write."""
        open_to = [*(grant.name for grant in self._writable), "TMP"]
        return [
            rule("allow", "system-socket", ["(socket-domain AF_UNIX)"], "sockets that are files"),
            rule(
                "allow",
                "network-bind network-inbound",
                [f"(local unix-socket {param(name)})" for name in open_to],
            ),
            rule("allow", "network-outbound", [f"(remote unix-socket {param(name)})" for name in open_to]),
            *self._closed_sockets(),
        ]

    def _closed_sockets(self) -> list[str]:
        closed = [grant.name for grant in self._grants if grant.right != "write" and self._around(grant.path)]
        if not closed:
            return []
        return [
            rule("deny", "network-bind network-inbound", [f"(local unix-socket {param(name)})" for name in closed]),
            rule("deny", "network-outbound", [f"(remote unix-socket {param(name)})" for name in closed]),
        ]


def _sets(sets: Iterable[Set], action: str = "allow") -> list[str]:
    return [rule(action, entry.operations, entry.filters, entry.about) for entry in sets]


def _open_profile(policy: Policy, host: Host) -> Seatbelt:
    """Return the profile of Policy.host(). In any sandbox set-user-ID programs don't run, as with no_new_privs."""
    lines = ["(version 1)", "(allow default)"]
    if policy.network == "none":
        lines.append(rule("deny", "network*", [], "no network, nor unix sockets"))
    return Seatbelt("\n".join(lines) + "\n", (), host.seatbelt_ways[0])


# ---- what is enforced


def _enforced(policy: Policy, limits: tuple[Rlimit, ...]) -> tuple[str, ...]:
    lines = ["privileges: set-user-ID programs don't run (Seatbelt)"]
    if policy.base == "workspace":
        lines.append(
            "files: only those that the policy names, the system's, and a directory for temporary ones (Seatbelt)"
        )
        lines.append("processes: no signals to, and nothing about, those outside (Seatbelt)")
        lines.append("services: no launchd jobs, Launch Services, Apple Events, pasteboard or keychain (Seatbelt)")
        lines.append("afterwards: no set-user-ID files can be made (Seatbelt)")
    if not policy.inherit_env:
        lines.append(sentences.BUILT_ENVIRONMENT)
    if policy.network == "none" and policy.base == "host":
        lines.append("network: no sockets")
    elif policy.network == "none":
        lines.append(
            "network: none, not even on loopback"
            + ("; unix sockets where files may be written" if policy.base == "workspace" else "")
        )
    elif (network := listed(policy)) is not None:
        lines.append(
            "network: one port of 127.0.0.1, where a proxy outside is; no other connection, no server (Seatbelt)"
        )
        lines += enforced_by_proxy(network)
    elif policy.base == "workspace":
        lines.append(
            "sockets: no unix sockets except where files may be written, and the one that resolves names of hosts"
        )
    if policy.base == "workspace":
        lines.append(f"the caller's end: {_ended(policy)} with it")
    return (*lines, *sentences.limits(limits))


def _ended(policy: Policy) -> str:
    return "the command's process group is killed" if policy.new_session else "the command is killed"


def _not_enforced(policy: Policy, host: Host) -> tuple[str, ...]:
    gaps = ["Linux has more: no namespaces here, and no filter of system calls"]
    if policy.base == "host":
        gaps.append(sentences.ALL_FILES)
        gaps.append("processes: those of the same user can be seen, signalled and traced")
        gaps.append("services: any that the user may ask, such as launchd, which start programs outside")
        gaps.append(f"the caller's end: {_ended(policy)}, unless it has killed the process that waits for that")
        if policy.network == "none":
            gaps.append("network: services outside, which can be asked to use it")
    else:
        gaps.append("temporary files: /tmp is closed; TMPDIR is a fresh directory, without a limit of its size")
        gaps.append("temporary files: what an earlier command left running can reach those of a later one")
        gaps.append("what package managers keep in /opt and /usr/local is readable, except for data of services (var)")
        gaps.append("semaphores: named ones of other programs can be used")
        gaps.append("names: that a path on the way to an allowed one exists can be seen")
        gaps.append("files: links to the same file that are there already, and clones, have paths of their own")
    if pinned_paths(policy):
        gaps.append(
            "hidden and read-only paths inside of writable ones: if a process outside moves them, or what is above"
        )
    if policy.network == "host":
        gaps.append(sentences.host_network())
    if (network := listed(policy)) is not None:
        gaps.append(
            "network: for programs that don't use a proxy there is none: names are unknown, connections refused"
        )
        gaps.append("network: names of hosts and UDP aren't there; ssh and databases need a proxy command or SOCKS5")
        gaps.append("network: after the caller's end there is none")
        gaps += left_open(network)
    for name in sorted(policy.seatbelt):
        gaps.append(f"services: {name}: {PRESETS[name][0].about}")
    left = "outside of its process group" if policy.new_session and policy.kill_on_exit else "in the background"
    gaps.append(f"processes: what the command leaves running {left} goes on, in the sandbox")
    gaps.append("afterwards: scripts that the command leaves in writable places")
    gaps.append(sentences.CALLERS_GROUPS)
    gaps.append("system calls: flaws of the kernel, and of the services that can be asked")
    if "compiled" not in host.seatbelt_ways:
        gaps.append(f"speed: each start needs another program ({host.seatbelt_ways[0]})")
    if not policy.new_session:
        gaps.append(sentences.CALLERS_SESSION)
    return tuple(gaps)
