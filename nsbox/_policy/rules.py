"""PathRule: names and sizes that files in a directory may have when a program passes them on.

The kernel knows no suffixes, and no sizes of single files. So only Sandbox.read() and the other methods for files obey
these rules; commands don't.
"""

from __future__ import annotations

from nsbox._base.checks import check_path, check_size, check_text, is_iterable
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@frozen
class PathRule(Frozen):
    """A directory of a policy, and the names and sizes that files in it may have. Raises PolicyError.

    name: what messages call the directory.
    root: its absolute path, which must be in the policy's read or write.
    suffixes: endings that names must have, in any case of letters, such as ".md" or ".tar.gz"; empty: any.
    max_file_bytes: the most bytes that a file may have, an int or such as "10M"; None: any number.
    """

    name: str
    root: str
    suffixes: tuple[str, ...] = ()
    max_file_bytes: int | str | None = None

    def __post_init__(self) -> None:
        check_text("paths.name", self.name)
        object.__setattr__(self, "root", check_path("paths.root", self.root))
        value: object = self.suffixes
        if isinstance(value, str) or not is_iterable(value):
            raise PolicyError("paths.suffixes", f"is {type_phrase(value)}, must be a sequence, such as ['.md']")
        suffixes = tuple(check_text("paths.suffixes", suffix) for suffix in value)
        for suffix in suffixes:
            if not suffix.startswith(".") or "/" in suffix or len(suffix) < 2:
                raise PolicyError("paths.suffixes", f"{suffix!r} isn't a suffix, such as '.md'")
        object.__setattr__(self, "suffixes", tuple(dict.fromkeys(suffix.lower() for suffix in suffixes)))
        if self.max_file_bytes is not None:
            object.__setattr__(self, "max_file_bytes", check_size("paths.max_file_bytes", self.max_file_bytes))

    def takes(self, name: str) -> bool:
        """Say if the rule allows a file of this name."""
        return not self.suffixes or name.lower().endswith(self.suffixes)


def innermost_rule(rules: Iterable[PathRule], path: str) -> PathRule | None:
    """Return the rule whose root is nearest above a path without symlinks, or at it; None if there is none."""
    return max((rule for rule in rules if is_below(path, rule.root)), key=lambda rule: len(rule.root), default=None)


def check_rules(rules: Sequence[object], roots: Sequence[str]) -> None:
    """Raise PolicyError unless these are PathRules, with names and roots of their own. roots: the allowed ones."""
    for rule in rules:
        if not isinstance(rule, PathRule):
            raise PolicyError("paths", f"has {type_phrase(rule)}, must have nsbox.PathRule")
        if rule.root not in roots:
            raise PolicyError("paths", f"{rule.name}: {rule.root} is neither in read nor in write")
    for what in ("name", "root"):
        values = [getattr(rule, what) for rule in rules]
        if len({*values}) < len(values):
            raise PolicyError("paths", f"two rules have the same {what}")
