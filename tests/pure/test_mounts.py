"""What lies where once ops are carried out, by the table; tests/differential/test_mounts.py asks the kernel."""

from __future__ import annotations

from nsbox._base.paths import innermost, is_inside
from nsbox._plan import ops
from nsbox._plan.mounts import MountTable

HOST = ops.RoBind("/", "/")


def test_what_covers_what() -> None:
    """A mount covers what is at its place and below, by whole names; on one place the last one is seen."""
    steps = (HOST, ops.Bind("/x", "/a/b"), ops.Tmpfs("/ab"), ops.Bind("/y", "/a/b"), ops.Tmpfs("/a"))
    table = MountTable(steps)
    assert list(table) == ["/", "/ab", "/a"]
    pairs = [(covered.op, mount.op) for covered, mount in table.covered() if covered.op is not None]
    assert pairs == [(steps[1], steps[3]), (steps[1], steps[4]), (steps[3], steps[4])]
    assert table.nearest("/a/b").op == steps[4] and table.nearest("/abc").op == HOST
    assert table.top("/a/b") is None and table.stack("/a/b") == ()
    assert table.above("/a") == "/" and table.below("/") == ["/ab", "/a"]


def test_read_only() -> None:
    """A flag is the mount's own: not that of mounts in it, and not that of a later one on the same place."""
    table = MountTable((ops.Bind("/x", "/a"), ops.Bind("/y", "/a/b"), ops.RemountRo("/a"), ops.RemountRo("/none")))
    assert [table.is_read_only(path) for path in ("/", "/a", "/a/c", "/a/b")] == [False, True, True, False]
    table.add(ops.Bind("/x", "/a"))
    assert not table.is_read_only("/a")
    assert table.is_read_only("/a/b") is False and table.top("/a/b") is None


def test_nodes() -> None:
    """What an op makes hides no mount, is a bind's own where it lies in one, and goes when a mount covers it."""
    link = ops.Symlink("t", "/l")
    table = MountTable((ops.Dir("/d"), link, ops.Bind("/x", "/a"), ops.Dir("/a"), ops.Dir("/a/b"), ops.Tmpfs("/d")))
    assert list(table) == ["/", "/l", "/a", "/d"]
    assert table.node("/l") == link and table.top("/l") is None
    assert table.node("/d") is None and table.node("/a") is None


def test_optional() -> None:
    """What may be missing covers nothing for sure; unless asked, everything counts as carried out."""
    steps = (ops.Bind("/x", "/a"), ops.Bind("/y", "/a/b"), ops.RoBind("/z", "/a", optional=True))
    assert MountTable(steps).top("/a/b") is None
    table = MountTable(steps, optional=True)
    assert [mount.op for mount in table.candidates("/a")] == [steps[2], steps[0]]
    assert table.top("/a/b") is not None
    table.add(ops.RemountRo("/a"))
    assert all(mount.is_read_only for mount in table.candidates("/a"))


def test_paths() -> None:
    """Only whole names count, and the root is above everything but itself."""
    assert is_inside("/a", "/") and not is_inside("/", "/") and not is_inside("/ab", "/a")
    assert innermost("/a/b/c", ["/", "/a", "/a/b/", "/a/b", "/a/bc"]) == "/a/b"
    assert innermost("/a", ["/b"]) is None
