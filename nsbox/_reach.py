"""Whether commands can reach a directory of nsbox's own, in which what is found is carried out, kept or shown again."""

from __future__ import annotations

from nsbox import _spawn
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._files.links import ways

if TYPE_CHECKING:
    from nsbox._policy.policy import Policy


def check_place(policy: Policy, base: str, named: str, *, field: str = "dir") -> None:
    """Raise PolicyError if commands could reach a directory of nsbox's own, or what it is reached through.

    Commands of this policy, and of all others that this process has had so far. base: the directory, without links;
    named: how it was named; field: what the error is about. For field="home" what is below it are homes, which commands
    have as their own.
    """
    on_the_way = [base, *ways(named)]
    for path in sorted(_spawn.writable(policy)):
        _check_apart(field, base, on_the_way, path, "this policy")
    for path, masked in sorted(_spawn.reached, key=lambda one: one[0]):
        if not (is_below(base, path) and any(is_below(base, hidden) for hidden in masked)):
            _check_apart(field, base, on_the_way, path, "another policy of this process")


def _check_apart(field: str, base: str, ways: list[str], path: str, whose: str) -> None:
    inside = next((way for way in ways if is_below(way, path)), None)
    if inside is not None or (is_below(path, base) and field == "dir"):
        where = f"{base} contains {path}" if inside is None else f"{inside} lies in {path}"
        what = f"{where}, which commands of {whose} may write to"
        instead = "give a directory" if field == "dir" else "set XDG_STATE_HOME to one"
        raise PolicyError(field, f"{what}: {instead} that is out of their reach")
