"""Absolute paths, compared by name; and where this package is, which is asked here and nowhere else."""

# No import here, not even of __future__: this is loaded before nsbox looks at where it imports from.

# Commands must not write to any part of the package: Host.package, the relay's program, and the rest start from here.
PACKAGE = __file__.rpartition("/_base/")[0]


def is_below(path: str, root: str) -> bool:
    """Is path root itself, or inside of it? Both absolute and normal; purely by name."""
    return path == root or root == "/" or path.startswith(root + "/")
