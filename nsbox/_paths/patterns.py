"""Patterns in paths: which names are patterns, and what they match. Pure; _lookup looks for the files.

`*` matches any text without a slash, `?` and `[...]` one character, and `**` as a whole component any number of
directories, even none. A leading dot is like any other character, since "*.env" should hide ".env" too.

Lean: `re` and `fnmatch` (7 ms) are imported for the first pattern.
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

KEY_DIRECTORIES = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker")  # of programs' keys, in a home
# For `deny`: names that usually are secrets.
SECRET_FILES = (
    *("**/.env*", "**/*.pem", "**/*.key", "**/*.p12", "**/*.pfx", "**/*.jks", "**/*.keystore", "**/*.kdbx"),
    *(f"**/{name}" for name in KEY_DIRECTORIES),
    *("**/id_rsa", "**/id_dsa", "**/id_ecdsa", "**/id_ed25519", "**/.netrc", "**/_netrc", "**/.npmrc", "**/.pypirc"),
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
    """Match several patterns at once, one component of a path at a time.

    A position is a pair: which pattern, and which of its components comes next.
    """

    def __init__(self, patterns: Iterable[tuple[str, ...]]) -> None:
        # A pattern that ends in "**" matches everything in a directory; matching the first level is enough.
        self._patterns = [(*parts, "*") if parts[-1] == "**" else parts for parts in patterns]
        self._plans: dict[Positions, tuple[re.Pattern[str] | None, Positions]] = {}
        self.start = self._closed((i, 0) for i in range(len(self._patterns)))

    def _closed(self, positions: Iterable[tuple[int, int]]) -> Positions:
        closed = set(positions)
        for i, at in tuple(closed):
            if self._patterns[i][at] == "**":
                closed.add((i, at + 1))
        return frozenset(closed)

    def step(self, positions: Positions, name: str) -> tuple[frozenset[int], Positions]:
        """Return the patterns that end with a match of this name, and the positions from which others go on below."""
        plan = self._plans.get(positions)
        if plan is None:
            plan = self._plans[positions] = self._plan(positions)
        regex, stay = plan
        if regex is None or regex.match(name) is None:
            return _NONE, stay
        return self._step(positions, name)

    def _plan(self, positions: Positions) -> tuple[re.Pattern[str] | None, Positions]:
        """Return one regex for all components at these positions, and the positions that any name leaves as they are.

        Most names match none of the components, and the regex finds that out in one step.
        """
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
    """Say if a pattern matches a path or a directory above it. Only names are compared."""
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
    """Return the patterns that have "**/" right below a named path, spelled for any path: "/**/*.pem"."""
    tops = tuple(f"{path.rstrip('/')}/**/" for path in named)
    return tuple(dict.fromkeys(f"/**/{p[len(top) :]}" for p in patterns for top in tops if p.startswith(top)))


def hides(denied: str, path: str) -> bool:
    """Say if an entry of `deny`, a path or a pattern, hides a path."""
    return is_below(path, denied) or (is_pattern(denied) and covers(denied, path))
