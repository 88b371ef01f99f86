"""The words by which a policy chooses HOME: private, private:NAME, workspace, tmp, or an absolute path. Pure."""

from __future__ import annotations

from nsbox._base.checks import check_path
from nsbox._base.errors import PolicyError

PRIVATE = "private"
WORDS = (PRIVATE, "workspace", "tmp")
HOMES = "homes"  # where they are, in nsbox's directory for state
_OF_BOXES = "box-"  # names that Sandboxes give their own
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_home(field: str, value: str, *, is_workspace: bool) -> str:
    """Return a home as a policy keeps it; raises PolicyError."""
    name = name_of(value)
    if value not in WORDS and name is None:
        if not value.startswith("/"):
            known = "'private', 'private:NAME', 'workspace', 'tmp' or an absolute path"
            raise PolicyError(field, f"{value!r} is unknown, must be {known}")
        return check_path(field, value)
    if not is_workspace:
        raise PolicyError(field, f"{value!r} belongs to Policy.workspace(); elsewhere it is a path")
    if name is not None and not (name and len(name) <= 64 and _LETTERS.issuperset(name) and name.strip(".")):
        raise PolicyError(field, f"{name!r} is no name: 1 to 64 letters, digits, '.', '_' and '-'")
    return value


def name_of(home: str | None) -> str | None:
    """Return the name of a home that is kept; None for any other."""
    word, colon, name = (home or "").partition(":")
    return name if word == PRIVATE and colon else None


def of_box(number: str) -> str:
    """Return the home of one Sandbox."""
    return f"{PRIVATE}:{_OF_BOXES}{number}"


def is_of_box(home: str | None) -> bool:
    """Say if a home ends with the Sandbox that it belongs to."""
    return (name_of(home) or "").startswith(_OF_BOXES)
