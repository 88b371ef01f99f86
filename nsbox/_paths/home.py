"""How a policy spells HOME: private, private:NAME, workspace, tmp, or an absolute path. Pure."""

from __future__ import annotations

from nsbox._base.checks import check_path
from nsbox._base.errors import PolicyError

PRIVATE = "private"
WORDS = (PRIVATE, "workspace", "tmp")
HOMES = "homes"  # the directory of kept homes, in nsbox's directory for state
_OF_BOXES = "box-"  # how the names begin that Sandboxes give their homes
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_home(field: str, value: str, *, is_workspace: bool) -> str:
    """Return a value of a policy's home field; raises PolicyError."""
    name = name_of(value)
    if value not in WORDS and name is None:
        if not value.startswith("/"):
            known = "'private', 'private:NAME', 'workspace', 'tmp' or an absolute path"
            raise PolicyError(field, f"{value!r} is unknown, must be {known}")
        return check_path(field, value)
    if not is_workspace:
        raise PolicyError(field, f"{value!r} belongs to Policy.workspace(); elsewhere it is a path")
    if name is not None and not (name and len(name) <= 64 and _LETTERS.issuperset(name) and name.strip(".")):
        raise PolicyError(field, f"{name!r} isn't a name: 1 to 64 letters, digits, '.', '_' and '-'")
    return value


def name_of(home: str | None) -> str | None:
    """Return the name of a kept home, "private:NAME"; None for any other home."""
    word, colon, name = (home or "").partition(":")
    return name if word == PRIVATE and colon else None


def of_box(number: str) -> str:
    """Return the home, "private:NAME", of the Sandbox with this number."""
    return f"{PRIVATE}:{_OF_BOXES}{number}"


def is_of_box(home: str | None) -> bool:
    """Say if a home belongs to a Sandbox, and is removed with it."""
    return (name_of(home) or "").startswith(_OF_BOXES)
