"""Patterns in paths: which names are patterns, and what they match. Pure: _lookup looks for the files.

`*` and `?` stand for what has no slash, `[...]` for one character, `**` as a whole component for directories at any
depth, none too. A leading dot is a character as any other: what hides ".env" should hide it by "*.env" too.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable
    from typing import TypeAlias

    Positions: TypeAlias = frozenset[tuple[int, int]]

_NONE: frozenset[int] = frozenset()

SECRET_FILES = (
    *("**/.env*", "**/*.pem", "**/*.key", "**/*.p12", "**/*.pfx", "**/*.jks", "**/*.keystore", "**/*.kdbx"),
    *("**/.ssh", "**/id_rsa", "**/id_dsa", "**/id_ecdsa", "**/id_ed25519", "**/.gnupg"),
    *("**/.aws", "**/.azure", "**/.kube", "**/.docker", "**/.netrc", "**/_netrc", "**/.npmrc", "**/.pypirc"),
    *("**/.pgpass", "**/.my.cnf", "**/.htpasswd", "**/.git-credentials", "**/.vault-token", "**/credentials.json"),
    *("**/service-account*.json", "**/*.tfstate", "**/*.tfvars"),
)


def is_wild(part: str) -> bool:
    """Say if one component of a path is a pattern."""
    start = part.find("[")
    return "*" in part or "?" in part or (start >= 0 and "]" in part[start + 2 :])


def is_pattern(path: str) -> bool:
    """Say if a path has a component that is a pattern."""
    return ("*" in path or "?" in path or "[" in path) and any(map(is_wild, path.split("/")))


def split(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Return the path before the first wildcard, and the components from there on."""
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if is_wild(part))
    rest: list[str] = []
    for part in parts[first:]:
        if part != "**" or rest[-1:] != ["**"]:
            rest.append(part)
    return "/".join(parts[:first]) or "/", tuple(rest)


class Steps:
    """What components of several patterns match, at some depth. Positions are pairs: which pattern, which component."""

    def __init__(self, patterns: Iterable[tuple[str, ...]]) -> None:
        # To end in "**" is to match all that is in there, for which its first level is enough.
        self._patterns = [(*parts, "*") if parts[-1] == "**" else parts for parts in patterns]
        self._plans: dict[Positions, tuple[re.Pattern[str] | None, Positions]] = {}
        self.start = self._closed((i, 0) for i in range(len(self._patterns)))

    def _closed(self, positions: Iterable[tuple[int, int]]) -> Positions:
        found = set(positions)
        for i, at in tuple(found):
            if self._patterns[i][at] == "**":
                found.add((i, at + 1))
        return frozenset(found)

    def step(self, positions: Positions, name: str) -> tuple[frozenset[int], Positions]:
        """Return the patterns that a name matches as their last component, and where those stand that go on below."""
        plan = self._plans.get(positions)
        if plan is None:
            plan = self._plans[positions] = self._plan(positions)
        regex, stay = plan
        if regex is None or regex.match(name) is None:
            return _NONE, stay
        return self._step(positions, name)

    def _plan(self, positions: Positions) -> tuple[re.Pattern[str] | None, Positions]:
        """Return what any component there matches, by which most names are known to match none, and what stays."""
        import re
        from fnmatch import translate  # seldom needed

        parts = {self._patterns[i][at] for i, at in positions} - {"**"}
        regex = re.compile("|".join(map(translate, sorted(parts)))) if parts else None
        return regex, self._closed((i, at) for i, at in positions if self._patterns[i][at] == "**")

    def _step(self, positions: Positions, name: str) -> tuple[frozenset[int], Positions]:
        from fnmatch import fnmatchcase

        matched: set[int] = set()
        below: set[tuple[int, int]] = set()
        for i, at in positions:
            parts = self._patterns[i]
            if parts[at] == "**":
                below.add((i, at))
            elif not fnmatchcase(name, parts[at]):
                continue
            elif at + 1 == len(parts):
                matched.add(i)
            else:
                below.add((i, at + 1))
        return frozenset(matched), self._closed(below)


_steps: dict[tuple[str, ...], Steps] = {}


def covers(pattern: str, path: str) -> bool:
    """Say if a pattern matches a path, or a directory that it is in; by the names alone."""
    base, rest = split(pattern)
    if path == base or not is_below(path, base):
        return False
    steps = _steps.get(rest)
    if steps is None:
        if len(_steps) > 256:
            _steps.clear()
        steps = _steps[rest] = Steps([rest])
    at = steps.start
    for name in path[len(base) :].strip("/").split("/"):
        matched, at = steps.step(at, name)
        if matched:
            return True
        if not at:
            return False
    return False


def anywhere(patterns: Iterable[str], named: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns that begin with "**/" below a path that is named, as of all paths: "/**/*.pem"."""
    tops = tuple(f"{path.rstrip('/')}/**/" for path in named)
    return tuple(dict.fromkeys(f"/**/{p[len(top) :]}" for p in patterns for top in tops if p.startswith(top)))


def hides(denied: str, path: str) -> bool:
    """Say if what `deny` has, a path or a pattern, hides a path."""
    return is_below(path, denied) or (is_pattern(denied) and covers(denied, path))
