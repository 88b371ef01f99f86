"""Absolute paths, compared by name; and where this package is. No other module works that out."""

# No import here, not even of __future__: this is loaded before nsbox looks at where it imports from.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Commands must not write to any part of the package: Host.package, the relay's program, and the rest start from here.
PACKAGE = __file__.rpartition("/_base/")[0]


def is_below(path: str, root: str) -> bool:
    """Say if a path is root itself or inside of it. Both are absolute and normal; only names are compared."""
    return path == root or root == "/" or path.startswith(root + "/")


def is_inside(path: str, root: str) -> bool:
    """Say if a path is strictly inside of root."""
    return path != root and is_below(path, root)


def innermost(path: str, roots: "Iterable[str]") -> str | None:
    """Return the longest root that a path is below, or equal to; None if there is none."""
    return max((root for root in roots if is_below(path, root)), key=len, default=None)
