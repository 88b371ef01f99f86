"""Asks the machine, at each spawn, which files the patterns of a policy match; the Host holds the answer.

Commands may have written there. So no link is followed, and only what is below the path before a pattern's first
wildcard is looked at. The answer is complete, or a PolicyError.
"""

from __future__ import annotations

import errno
import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._paths.patterns import SECRET_FILES, Steps, hides, is_pattern, split
from nsbox._paths.resolution import check_read

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

MOST_ENTRIES = 200_000  # entries that are looked at for one path before a wildcard
MOST_MATCHES = 1_000  # each is a mount
_PATH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # not on macOS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_DEPTH = 200

_latest: dict[Policy, tuple[Host, Host]] = {}


def matched(policy: Policy, host: Host) -> Host:
    """Return the host with what the policy's patterns match now; raises PolicyError if that can't be found out in full.

    With `strict`, also raises PolicyError for an entry of deny that hides nothing.
    """
    paths = matches(policy)
    if policy.strict:
        _check_all(policy, paths)
    rows = tuple(paths.items())
    known = _latest.get(policy)
    if known is not None and known[0] is host and known[1].matches == rows:
        return known[1]  # the same object, so that what was prepared for it is paths without a comparison
    new = replace(host, matches=rows)
    if len(_latest) >= 64:
        _latest.clear()
    _latest[policy] = host, new
    return new


def check_deny(policy: Policy) -> None:
    """Raise PolicyError if an entry of deny hides nothing."""
    _check_all(policy, matches(policy))


def _check_all(policy: Policy, found: dict[str, tuple[str, ...]]) -> None:
    for denied in policy.deny:
        _check_hides(denied, found.get(denied))


def matches(policy: Policy) -> dict[str, tuple[str, ...]]:
    """Return each pattern of the policy, and the paths that it matches."""
    paths: dict[str, tuple[str, ...]] = {}
    groups: dict[tuple[str, str], list[str]] = {}
    for field in ("deny", "read"):
        for pattern in filter(is_pattern, getattr(policy, field)):
            groups.setdefault((field, split(pattern)[0]), []).append(pattern)
    for (field, base), patterns in groups.items():
        places = tuple(policy.write)
        for pattern, (names, links) in zip(patterns, _Walk(field, base, patterns).done(), strict=True):
            if field == "deny":
                _check_links(policy, pattern, links)
            paths.setdefault(pattern, _with_literal(field, pattern, names, places))
    return paths


def _with_literal(field: str, pattern: str, names: list[str], writable: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a pattern matches, including a file that has the pattern as its name.

    In read, only that file is meant if it exists, unless a command may have made it: then what the pattern has matched
    so far would become writable.
    """
    if not os.path.lexists(pattern):
        return tuple(sorted(names))
    if os.path.realpath(pattern) != pattern:
        raise PolicyError(field, f"{pattern} is, by a link, {os.path.realpath(pattern)}: name that instead")
    if field == "read" and not any(is_below(pattern, path) for path in writable):
        check_read([pattern])
        return (pattern,)
    if field == "read" and stat.S_ISFIFO(os.lstat(pattern).st_mode):
        return tuple(sorted(names))
    return tuple(sorted({*names, pattern}))


def _check_links(policy: Policy, pattern: str, links: list[str]) -> None:
    """Raise PolicyError for a link that a pattern of deny matches, and that leads to a path that the policy shows.

    A mask would hide neither the link nor its target. Links that lead elsewhere lead nowhere for commands.
    """
    for link in links:
        real = os.path.realpath(link)
        is_shown = any(is_below(real, path) for path in (*policy.write, *policy.read) if not is_pattern(path))
        if is_shown and not any(hides(denied, real) for denied in policy.deny):
            raise PolicyError(
                "deny", f"{link}, which {pattern} matches, is a link to {real}: deny that, or remove the link"
            )


def _check_hides(denied: str, found: tuple[str, ...] | None) -> None:
    is_usual = any(denied.endswith(f"/{pattern}") for pattern in SECRET_FILES)
    if found == () and not is_usual:
        raise PolicyError("deny", f"{denied} matches nothing, so it hides nothing")
    if found is None and not os.path.lexists(denied):
        raise PolicyError("deny", f"{denied} isn't there, so it hides nothing")


def notes(policy: Policy) -> list[str]:
    """Return lines for explain(): what patterns match, and which entries of deny hide nothing."""
    paths = matches(policy)
    lines = []
    for field in ("deny", "read"):
        for path in getattr(policy, field):
            here = paths.get(path)
            if here:
                more = f" and {len(here) - 4} more" if len(here) > 5 else ""
                lines.append(f"{field} {path} matches {', '.join(here[: 4 if more else 5])}{more}")
            elif field == "deny":
                try:
                    _check_hides(path, here)
                except PolicyError as error:
                    lines.append(f"warning: deny {error.problem}")
            elif here is not None and is_pattern(path):
                lines.append(f"warning: read {path} matches nothing")
    return lines


def _is_fifo(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    except OSError as error:
        check_answer(error)
        return False  # it no longer exists


class _Walk:
    """One walk below a directory, for several patterns at once.

    field: the policy's field that has them. base: the directory, without wildcards.
    """

    def __init__(self, field: str, base: str, patterns: list[str]) -> None:
        self._field, self._base, self._patterns = field, base, patterns
        self._steps = Steps(split(pattern)[1] for pattern in patterns)
        self._names: list[list[str]] = [[] for _ in patterns]
        self._links: list[list[str]] = [[] for _ in patterns]
        self._left = MOST_ENTRIES

    def done(self) -> list[tuple[list[str], list[str]]]:
        """Return, for each pattern, the files and directories that it matches, and the links."""
        try:
            fd = self._opened()
        except OSError as error:
            check_answer(error)
            real = os.path.realpath(self._base)
            if real != self._base:
                raise PolicyError(self._field, f"{self._base} has become a link, to {real}") from None
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return list(zip(self._names, self._links, strict=True))
            raise self._problem(f"{self._base}: {error.strerror}") from None
        self._directory(fd, self._base.rstrip("/"), self._steps.start, 0)
        return list(zip(self._names, self._links, strict=True))

    def _opened(self) -> int:
        """Open the directory before the first wildcard; no link on the way is followed."""
        names = [name for name in self._base.split("/") if name]
        fd = os.open("/", _PATH if names else _DIRECTORY)
        for i, name in enumerate(names):
            how = _DIRECTORY if i == len(names) - 1 else _PATH
            try:
                inner = os.open(name, how, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _directory(self, fd: int, path: str, at: frozenset[tuple[int, int]], depth: int) -> None:
        """Look at a directory, and close its descriptor."""
        below = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    below += self._entry(entry, path, at)
            for name, next_at in below:
                self._below(fd, name, f"{path}/{name}", next_at, depth)
        finally:
            os.close(fd)

    def _entry(
        self, entry: os.DirEntry[str], path: str, at: frozenset[tuple[int, int]]
    ) -> list[tuple[str, frozenset[tuple[int, int]]]]:
        self._left -= 1
        if self._left < 0:
            raise self._problem(f"there are more than {MOST_ENTRIES} entries below {self._base}")
        matched, below = self._steps.step(at, entry.name)
        if matched and self._field == "read" and _is_fifo(entry):
            return []  # a read-only mount doesn't stop writes to a FIFO: it has to be named, in write
        for i in matched:
            paths = self._links if entry.is_symlink() else self._names
            paths[i].append(f"{path}/{entry.name}")
            self._check_count(i)
        # A pattern that matches a directory as a whole needs no look inside.
        below = frozenset(position for position in below if position[0] not in matched) if matched else below
        return [(entry.name, below)] if below and entry.is_dir(follow_symlinks=False) else []

    def _below(self, above: int, name: str, path: str, at: frozenset[tuple[int, int]], depth: int) -> None:
        if depth >= _MOST_DEPTH:
            raise self._problem(f"{path[:60]}... is more than {_MOST_DEPTH} directories deep")
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            check_answer(error)
            if error.errno == errno.EACCES and self._field == "deny":
                # Its owner could make it readable again, so it is hidden as a whole.
                for i in {i for i, _ in at}:
                    self._names[i].append(path)
                    self._check_count(i)
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                raise self._problem(f"{path}: {error.strerror}") from None
            return
        self._directory(fd, path, at, depth + 1)

    def _check_count(self, i: int) -> None:
        if len(self._names[i]) > MOST_MATCHES or len(self._links[i]) > MOST_MATCHES:
            raise PolicyError(
                self._field,
                f"{self._patterns[i]} matches more than {MOST_MATCHES} paths, each of which would be a mount: "
                "name their directory, or fewer of them",
            )

    def _problem(self, problem: str) -> PolicyError:
        shown = ", ".join(self._patterns[:3])
        return PolicyError(self._field, f"{shown}: {problem}: name a narrower directory before the first wildcard")
