"""PathRule: what is asked of files in a directory besides the sandbox's boundaries, by those who pass files on.

The kernel knows neither suffixes nor sizes of single files: Sandbox.read() and its kin keep to these, commands don't.
"""

from __future__ import annotations

from nsbox._base.checks import check_path, check_size, check_text, is_iterable
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import Frozen, frozen


@frozen
class PathRule(Frozen):
    """A directory of the policy with a name, and what is asked of its files.

    name: what messages call it. root: its absolute path, which has to be in the policy's read or write. suffixes: names
    end in one of these, in any case, such as ".md" or ".tar.gz"; empty: in whatever. max_file_bytes: no file has more,
    "10M" is a number too; None: no limit. Raises PolicyError.
    """

    name: str
    root: str
    suffixes: tuple[str, ...] = ()
    max_file_bytes: int | str | None = None

    def __post_init__(self) -> None:
        check_text("paths.name", self.name)
        object.__setattr__(self, "root", check_path("paths.root", self.root))
        given: object = self.suffixes
        if isinstance(given, str) or not is_iterable(given):
            raise PolicyError("paths.suffixes", f"is a {type(given).__name__}, must be a sequence, such as ['.md']")
        suffixes = tuple(check_text("paths.suffixes", suffix) for suffix in given)
        for suffix in suffixes:
            if not suffix.startswith(".") or "/" in suffix or len(suffix) < 2:
                raise PolicyError("paths.suffixes", f"{suffix!r} is no suffix, such as '.md'")
        object.__setattr__(self, "suffixes", tuple(dict.fromkeys(suffix.lower() for suffix in suffixes)))
        if self.max_file_bytes is not None:
            object.__setattr__(self, "max_file_bytes", check_size("paths.max_file_bytes", self.max_file_bytes))

    def takes(self, name: str) -> bool:
        """Say if a file of this name may be there."""
        return not self.suffixes or name.lower().endswith(self.suffixes)
