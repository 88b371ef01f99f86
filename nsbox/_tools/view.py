"""What a policy's commands find at a path, without starting one: the kernel's walk, over the plan's mounts.

The answers hold for this moment, and are about boundaries alone. Other processes may change the permissions of files at
any time, so the kernel judges these, and whatever is done with the path afterwards (see _filetools.files).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nsbox._backends import seatbelt
from nsbox._base.checks import check_answer
from nsbox._base.display import printable
from nsbox._base.errors import AccessError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, remembered, replace
from nsbox._base.paths import is_below, is_inside
from nsbox._layout.layout import completed, home_source, layout, with_matches
from nsbox._lookup.host import host_for
from nsbox._paths.destinations import Destinations, is_missing
from nsbox._paths.patterns import hides
from nsbox._paths.resolution import Walk, absolute
from nsbox._plan import ops
from nsbox._plan.mounts import MountTable
from nsbox._policy.rules import innermost_rule
from nsbox._tools.arguments import check_path

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._policy.rules import PathRule

_MOST_LINKS = 40  # of the sandbox's own that lead to one another
_MOST_BYTES = 4095  # that the kernel allows in a path
_MOST_NAMES = 4096  # on a path, with those of all the links in it
_HIDDEN = "is hidden in the sandbox"


@frozen
class Mount(Frozen):
    """A place at which the sandbox shows something of this machine, or something of its own.

    source: a path as this process sees it; None: the sandbox's own.
    link: the target, if it is a symlink.
    is_fixed: whether a link at source is an error for commands. So it isn't followed here either.
    is_own: whether it is a place for files of the sandbox's own: a file system in memory, or a home that is kept.
    """

    dest: str
    source: str | None
    is_writable: bool = False
    is_hidden: bool = False
    link: str | None = None
    is_fixed: bool = False
    is_own: bool = False


@frozen
class Place(Frozen):
    """Where a path leads. inside: as commands see it, without symlinks. here: as this process does; None: nowhere."""

    inside: str
    here: str | None
    mount: Mount


_BINDS = (ops.Bind, ops.RoBind, ops.DevBind)


def _source(op: ops.Bind | ops.RoBind | ops.DevBind) -> str:
    return op.src if op.nofollow else os.path.realpath(op.src)


def _mount(dest: str, table: MountTable) -> Mount:
    top = table.top(dest)
    op = table.node(dest) if top is None else top.op
    if isinstance(op, _BINDS):
        is_writable = top is not None and not top.is_read_only
        return Mount(dest, _source(op), is_writable=is_writable, is_fixed=op.nofollow)
    if isinstance(op, ops.Symlink):
        return Mount(dest, None, link=op.target)
    is_own = isinstance(op, ops.Tmpfs)
    is_writable = is_own and top is not None and not top.is_read_only
    return Mount(dest, None, is_writable=is_writable, is_hidden=isinstance(op, ops.Mask), is_own=is_own)


def _mounts(steps: tuple[ops.Op, ...]) -> dict[str, Mount]:
    table = MountTable(op for op in steps if not is_missing(op))
    return {dest: _mount(dest, table) for dest in table}


class View:
    """What commands of a policy see. Cheap to ask; made once for a policy and a host."""

    refuses_by_eperm = False  # whether commands find files that they may not use, and get EPERM for them

    def __init__(self, policy: Policy, host: Host) -> None:
        self.policy, self._named = policy, with_matches(policy, host)
        steps = layout(completed(policy, host), host)
        self._destinations: Destinations | None = None
        if policy.base == "layers":  # other layouts have no destination behind a link
            self._destinations = Destinations(steps)
            steps = self._destinations.steps
        else:  # the layout's own text differs from the host's file only in the command's user
            steps = tuple(op for op in steps if not isinstance(op, ops.BindData))
        self._mounts = _mounts(steps)
        home = home_source(policy, host)
        for dest, mount in self._mounts.items():
            if home is not None and mount.source == home:
                self._mounts[dest] = replace(mount, is_own=True)
        self._inmost_first = sorted(self._mounts.values(), key=lambda mount: -len(mount.dest))

    def is_current(self) -> bool:
        """Return whether ops still lie where they did: links on the way to them may have changed."""
        return self._destinations is None or self._destinations.is_current()

    def mount_of(self, inside: str) -> Mount:
        """Return the mount that a path without symlinks is on."""
        return next(mount for mount in self._inmost_first if is_below(inside, mount.dest))

    def without_own_links(self, inside: str) -> str:
        """Return a path after following the sandbox's own links on the way, but not those in directories it shows."""
        for _ in range(_MOST_LINKS):
            mount = self.mount_of(inside)
            if mount.link is None:
                break
            target = os.path.join(os.path.dirname(mount.dest), mount.link)
            inside = os.path.normpath(f"{target}/{inside[len(mount.dest) :]}")
        return inside

    def mounts(self) -> list[Mount]:
        """List everything that is mounted."""
        return [mount for mount in self._mounts.values() if mount.link is None]

    def mounted(self) -> list[str]:
        """List the paths at which something is mounted."""
        return [mount.dest for mount in self._mounts.values() if mount.link is None]

    def below(self, inside: str) -> list[str]:
        """List the paths below a directory at which something else is mounted."""
        return [dest for dest in self._mounts if is_inside(dest, inside)]

    def absolute(self, path: str | os.PathLike[str]) -> str:
        """Return an absolute path; a relative one counts from where commands start, "~" is their home.

        Raises ValueError for a path that no file can have, and AccessError for one that is too long.
        """
        text = check_path("path", path)
        if text == "~" or text.startswith("~/"):  # as in a shell's line
            text = self._home() + text[1:]
        path = absolute(os.path.join(self.policy.workdir or "", text))
        if len(os.fsencode(path)) > _MOST_BYTES:
            raise AccessError(f"{text[:60]}...", f"has more than {_MOST_BYTES} bytes")
        return path

    def _home(self) -> str:
        """Return HOME of commands."""
        from nsbox._spawn.prepare import prepare  # seldom needed

        environment = prepare(self.policy, host_for(self.policy)).environment.variables(dict(os.environ))
        return environment.get("HOME") or "/"

    def walk(self, path: str | os.PathLike[str]) -> Walk:
        """Return the walk along a path that a command would make."""
        return Walk(self.absolute(path), self._link)

    def place(self, path: str | os.PathLike[str]) -> Place:
        """Return where a path leads for a command, through links and "..". What doesn't exist stays as written."""
        walk = self.walk(path)
        try:
            for at, target in walk:
                if walk.names >= _MOST_NAMES or (target is None and not self._is_known(at)):
                    break
        except OSError as error:
            check_answer(error)
            raise AccessError(os.fspath(path), "is a chain of symlinks without an end") from None
        if walk.names >= _MOST_NAMES:
            raise AccessError(os.fspath(path), "leads through too many symlinks")
        mount = self.mount_of(walk.at)
        return Place(walk.at, self._here(walk.at, mount), mount)

    def _is_known(self, inside: str) -> bool:
        """Return whether names below a path are known. They aren't if it is hidden, or if only commands make names."""
        mount = self.mount_of(inside)
        return not mount.is_hidden and bool(mount.source or mount.dest == inside or self.below(inside))

    @staticmethod
    def _here(inside: str, mount: Mount) -> str | None:
        if mount.source is None or mount.is_hidden:
            return None
        rest = inside[len(mount.dest) :].strip("/")
        return os.path.join(mount.source, rest) if rest else mount.source

    def _link(self, inside: str) -> str | None:
        """Return the target of a symlink; None for anything else, and for what this process can't look at."""
        mount = self.mount_of(inside)
        if mount.dest == inside:
            return mount.link
        here = self._here(inside, mount)
        if here is None:
            return None
        try:
            return os.readlink(here) if stat.S_ISLNK(os.lstat(here).st_mode) else None
        except OSError as error:
            check_answer(error)
            return None

    # ---- answers

    def problem(self, path: str | os.PathLike[str], *, write: bool) -> tuple[Place, str]:
        """Return where a path leads, and why commands can't read (or write) what this process finds there.

        The reason is "" if they can.
        """
        place = self.place(path)
        if self.is_denied(place) or place.mount.is_hidden:
            return place, _HIDDEN
        if place.here is None and place.mount.dest != "/":
            return place, f"is outside of the sandbox, which has a {place.mount.dest} of its own"
        if place.here is None:
            return place, "is outside of the sandbox, which has nothing of this machine there"
        source = place.mount.source or ""
        if place.mount.is_fixed and os.path.realpath(source) != source:
            return place, f"lies in {source}, which has become a symlink"
        if write and not place.mount.is_writable:
            return place, "is read-only in the sandbox"
        return place, ""

    def exceeds(self, other: View) -> str:
        """Return a path at which this view grants more than another policy's; "": there is none.

        Rights change only at mounts, so it is enough to look at these.
        """
        for dest in {**self._mounts, **other._mounts}:
            ours, theirs = self.mount_of(dest), other.mount_of(dest)
            if ours.source is None:
                continue
            is_same = theirs.source is not None and self._here(dest, ours) == other._here(dest, theirs)
            if not is_same or (ours.is_writable and not theirs.is_writable):
                return dest
        return ""

    def is_denied(self, place: Place) -> bool:
        """Return whether the policy hides a path, even if nothing exists there yet."""
        return any(hides(path, place.inside) for path in self.policy.deny)

    def resolve(self, path: str | os.PathLike[str], *, write: bool = False) -> Path:
        """Return the path of the same file for this process; raises AccessError if commands can't read or write it."""
        place, problem = self.problem(path, write=write)
        if problem or place.here is None:
            raise self.refusal(path, problem, write=write)
        return Path(place.here)

    def refusal(self, path: str | os.PathLike[str], problem: str, *, write: bool) -> AccessError:
        """Return the error for a path, which also says what is allowed."""
        return AccessError(os.fspath(path), f"{problem}; {self.allowed(write=write)}")

    def allowed(self, *, write: bool) -> str:
        """Return a text that says which paths are readable, or writable."""
        more = ", and system directories" if not write and self.policy.base == "workspace" else ""
        return f"{self.named(write=write)}{more}"

    def named(self, *, write: bool) -> str:
        """Return the same for those paths that the policy names."""
        paths = self.writable() if write else self.readable()
        return f"{'writable' if write else 'readable'}: {printable(', '.join(paths)) or 'nothing'}"

    def readable(self) -> list[str]:
        """List the directories, and single files, of this machine that the policy itself names."""
        policy = self._named
        if policy.base == "workspace":
            return [*policy.write, *policy.read]
        return sorted(mount.dest for mount in self._mounts.values() if mount.source is not None)

    def writable(self) -> list[str]:
        """List those of them that commands can write to."""
        if self.policy.base == "workspace":
            return list(self._named.write)
        return sorted(mount.dest for mount in self._mounts.values() if mount.source and mount.is_writable)

    # ---- rules about files

    def rule(self, path: str) -> PathRule | None:
        """Return the innermost rule for a path without symlinks."""
        return innermost_rule(self.policy.paths, path)

    def check_suffix(self, inside: str, shown: str) -> None:
        """Raise AccessError for a name that the rules don't accept."""
        rule = self.rule(inside)
        if rule is not None and not rule.takes(os.path.basename(inside)):
            raise AccessError(shown, f"has no suffix that {rule.name} takes: {', '.join(rule.suffixes)}")

    def check_size(self, inside: str, size: int, shown: str) -> None:
        """Raise AccessError for more bytes than the rules allow."""
        rule = self.rule(inside)
        most = None if rule is None else rule.max_file_bytes
        if rule is not None and isinstance(most, int) and size > most:
            raise AccessError(shown, f"is too large: {size} bytes; {rule.name} takes {most} at most")


class MacView(View):
    """The same on macOS, where nothing is mounted: a file has the same path for commands and for this process."""

    refuses_by_eperm = True

    def __init__(self, policy: Policy, host: Host) -> None:
        self.policy, self._host, self._named = policy, host, with_matches(policy, host)
        self._destinations = None
        self._mounts = {"/": Mount("/", None)}
        for grant in seatbelt.grants(policy, host):
            is_hidden = grant.right == "deny"
            source = None if is_hidden else grant.path
            self._mounts[grant.path] = Mount(grant.path, source, grant.right == "write", is_hidden)
        self._inmost_first = sorted(self._mounts.values(), key=lambda mount: -len(mount.dest))

    def place(self, path: str | os.PathLike[str]) -> Place:
        """Return where a path leads, by the kernel's own name for it."""
        from nsbox._machine.darwin import spelled

        inside = seatbelt.canonical(spelled(os.path.realpath(self.absolute(path))), self._host)
        mount = self.mount_of(inside)
        return Place(inside, self._here(inside, mount), mount)

    def problem(self, path: str | os.PathLike[str], *, write: bool) -> tuple[Place, str]:
        """Return where a path leads, and why commands can't read or write what is there; "": they can."""
        place = self.place(path)
        if self.is_denied(place) or place.mount.is_hidden:
            return place, _HIDDEN
        if place.here is None:
            return place, "is outside of the sandbox"
        return place, "is read-only in the sandbox" if write and not place.mount.is_writable else ""

    def is_denied(self, place: Place) -> bool:
        """Return whether the policy hides a path, even if nothing exists there yet."""
        return any(is_below(place.inside, seatbelt.canonical(path, self._host)) for path in self.policy.deny)


def _make(policy: Policy, host: Host) -> View:
    return MacView(policy, host) if host.system == "Darwin" else View(policy, host)


_view = remembered(_make)


def view(policy: Policy) -> View:
    """Return the view for a policy on this machine."""
    host = host_for(policy)
    seen = _view(policy, host)
    return seen if seen.is_current() else _make(policy, host)


def can_read(policy: Policy, path: str | os.PathLike[str]) -> bool:
    """Return whether commands can read what this process finds at a path; nothing need exist there."""
    return not view(policy).problem(path, write=False)[1]


def can_write(policy: Policy, path: str | os.PathLike[str]) -> bool:
    """Return whether commands can change what this process finds at a path; nothing need exist there."""
    return not view(policy).problem(path, write=True)[1]


def check_suffix(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Raise AccessError if the rules don't accept a file of this name."""
    seen = view(policy)
    seen.check_suffix(seen.place(path).inside, os.fspath(path))


def check_size(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Raise AccessError if the file has more bytes than the rules allow; OSError if it can't be looked at."""
    seen = view(policy)
    here = seen.resolve(path)
    seen.check_size(seen.place(path).inside, os.stat(here).st_size, os.fspath(path))
