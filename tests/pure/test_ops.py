"""Ops: what each says and accepts."""

from __future__ import annotations

import dataclasses
import os
import pickle
from dataclasses import replace
from typing import Any

import pytest
from nsbox_pure import refused
from nsbox_pure.ops import DESCRIPTIONS

import nsbox
from nsbox import Plan
from nsbox._plan.ops import primitives
from nsbox._plan.plan import Identity


@pytest.mark.parametrize(("op", "text"), DESCRIPTIONS, ids=[text for _, text in DESCRIPTIONS])
def test_describe(op: nsbox.Op, text: str) -> None:
    """An op says what it does in one line; that is the voice of explain(), of errors and of logs."""
    assert op.describe() == text
    assert " ".join(filter(None, op.row())) == text


def test_each_op_is_described_above() -> None:
    """The table has every public op."""
    named = [getattr(nsbox, name) for name in nsbox.__all__]
    public = {t for t in named if isinstance(t, type) and issubclass(t, nsbox.Op) and t is not nsbox.Op}
    assert len(public) > 20
    assert {type(op) for op, _ in DESCRIPTIONS} == public


@pytest.mark.parametrize("op", [op for op, _ in DESCRIPTIONS], ids=lambda op: op.describe())
def test_ops_are_values(op: nsbox.Op) -> None:
    """An op is frozen, hashable, equal to its like and picklable."""
    again = replace(op)
    assert again == op
    assert hash(again) == hash(op)
    assert pickle.loads(pickle.dumps(op)) == op
    for field in dataclasses.fields(op):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(op, field.name, "/other")
    with pytest.raises((AttributeError, TypeError)):
        op.extra = 1  # type: ignore[attr-defined]


def test_binds_differ_by_kind() -> None:
    """A read-only bind is never equal to a writable one of the same paths."""
    assert len({nsbox.Bind("/a", "/b"), nsbox.RoBind("/a", "/b"), nsbox.DevBind("/a", "/b")}) == 3


DESTINED = [op for op, _ in DESCRIPTIONS if any(field.name == "dest" for field in dataclasses.fields(op))]
BAD_PATHS: list[Any] = [
    "",
    "rel",
    "a/b",
    "/a/../b",
    "..",
    "/..",
    "/a\0",
    "/" + "x" * 4095,
    "/\ud800",
    None,
    5,
    b"/x",
    ["/x"],
]


@pytest.mark.parametrize("bad", BAD_PATHS, ids=lambda v: repr(v)[:12].encode("ascii", "backslashreplace").decode())
def test_bad_destinations(bad: Any) -> None:
    """No op takes a destination that isn't an absolute path without '..' and NUL, of at most 4095 bytes."""
    assert len(DESTINED) > 20
    for op in DESTINED:
        refused(f"{type(op).__name__}.dest", lambda op=op: replace(op, dest=bad))


@pytest.mark.parametrize("bad", BAD_PATHS, ids=lambda v: repr(v)[:12].encode("ascii", "backslashreplace").decode())
def test_bad_sources(bad: Any) -> None:
    """Sources, layers, upper and work directories are checked like destinations."""
    for kind in (nsbox.Bind, nsbox.RoBind, nsbox.DevBind, nsbox.Device):
        refused(f"{kind.__name__}.src", lambda kind=kind: kind(bad, "/b"))
    for layered in (nsbox.RoOverlay, nsbox.TmpOverlay):
        refused(f"{layered.__name__}.lower", lambda layered=layered: layered(("/a", bad), "/b"))
    refused("Overlay.lower", lambda: nsbox.Overlay((bad,), "/b", "/u", "/w"))
    refused("Overlay.upper", lambda: nsbox.Overlay(("/a",), "/b", bad, "/w"))
    refused("Overlay.work", lambda: nsbox.Overlay(("/a",), "/b", "/u", bad))


BAD_OPERANDS: list[tuple[str, Any]] = [
    *[("BindFd.fd", lambda v=v: nsbox.BindFd(v, "/b")) for v in (-1, None, "3", True, 1.0, 2**31)],
    *[("Tmpfs.size", lambda v=v: nsbox.Tmpfs("/t", v)) for v in (0, -1, True, "64M", 1.5, 2**63)],
    *[("Dev.size", lambda v=v: nsbox.Dev("/dev", v)) for v in (0, -1, True, "64M", 1.5, 2**63)],
    *[("Tmpfs.mode", lambda v=v: nsbox.Tmpfs("/t", mode=v)) for v in (-1, 0o10000, True, None, "755")],
    *[("Dir.mode", lambda v=v: nsbox.Dir("/d", v)) for v in (-1, 0o10000, False, None, "755")],
    *[("Chmod.mode", lambda v=v: nsbox.Chmod("/d", v)) for v in (-1, 0o10000, True, None, 7.0)],
    *[("File.mode", lambda v=v: nsbox.File("/f", b"", v)) for v in (-1, 0o10000, True, None)],
    *[("File.data", lambda v=v: nsbox.File("/f", v)) for v in (-1, None, "text", True, 1.0, ["x"], 2**31)],
    *[("BindData.data", lambda v=v: nsbox.BindData("/f", v)) for v in (-1, None, "text", False, 1.0, ["x"])],
    *[("BindData.mode", lambda v=v: nsbox.BindData("/f", b"", v)) for v in (-1, 0o10000, True, None)],
    *[
        ("Symlink.target", lambda v=v: nsbox.Symlink(v, "/l"))
        for v in ("", "a\0b", None, 5, b"x", "x" * 4096, "\ud800")
    ],
    *[
        ("Hostname.name", lambda v=v: nsbox.Hostname(v))
        for v in ("", "a\0b", "x" * 65, "ä" * 33, None, 5, b"x", "\ud800")
    ],
    *[("RoOverlay.lower", lambda v=v: nsbox.RoOverlay(v, "/o")) for v in ((), ("/a",), "/a", ("/a",) * 11, 5, None)],
    *[("TmpOverlay.lower", lambda v=v: nsbox.TmpOverlay(v, "/o")) for v in ((), "/a", ("/a",) * 11, 5, None, b"/a")],
    *[("Overlay.lower", lambda v=v: nsbox.Overlay(v, "/o", "/u", "/w")) for v in ((), "/a", ("/a",) * 11, 5, None)],
    *[("Bind.optional", lambda v=v: nsbox.Bind("/a", "/b", v)) for v in ("ro", 1, None, [])],
    *[("RoBind.optional", lambda v=v: nsbox.RoBind("/a", "/b", v)) for v in ("", 0, [])],
    *[("DevBind.nofollow", lambda v=v: nsbox.DevBind("/a", "/b", nofollow=v)) for v in ("", 1, None)],
    *[("BindFd.read_only", lambda v=v: nsbox.BindFd(3, "/b", v)) for v in ("ro", 0, None, [])],
    *[("BindData.read_only", lambda v=v: nsbox.BindData("/f", b"", 0o600, v)) for v in ("no", 0, None, [])],
    *[("Proc.cover", lambda v=v: nsbox.Proc("/p", v)) for v in ("no", 0, None, [])],
    *[("Mask.nofollow", lambda v=v: nsbox.Mask("/m", nofollow=v)) for v in ("", 1, None)],
    *[("Mask.optional", lambda v=v: nsbox.Mask("/m", v)) for v in ("no", 1, None, [])],
]


@pytest.mark.parametrize(
    ("field", "make"), BAD_OPERANDS, ids=[f"{i}-{field}" for i, (field, _) in enumerate(BAD_OPERANDS)]
)
def test_bad_operand(field: str, make: Any) -> None:
    """An operand of a wrong type or out of range is refused with the op's and the field's name."""
    refused(field, make)


def test_the_limits_of_operands() -> None:
    """What is just within range is accepted."""
    assert len(nsbox.Bind("/" + "x" * 4094, "/b").src) == 4095
    assert nsbox.Symlink("x" * 4095, "/l").target == "x" * 4095
    assert nsbox.Hostname("x" * 64).name == "x" * 64
    assert nsbox.Tmpfs("/t", 2**63 - 1, 0o7777).mode == 0o7777
    assert len(nsbox.RoOverlay(("/a",) * 10, "/o").lower) == 10
    assert nsbox.BindFd(2**31 - 1, "/b").fd == 2**31 - 1


def test_paths_become_normal() -> None:
    """Equal paths are equal ops, however they are spelled; names outside of UTF-8 pass."""
    assert nsbox.Bind("//a/./b/", "/c//") == nsbox.Bind("/a/b", "/c")
    assert nsbox.Tmpfs("/").dest == nsbox.Tmpfs("//./").dest == "/"
    assert nsbox.RoOverlay(["/a/", "//b"], "/o") == nsbox.RoOverlay(("/a", "/b"), "/o")  # type: ignore[arg-type]
    assert nsbox.Dir(os.fsdecode(b"/\xff\xfe")).dest == "/\udcff\udcfe"


def test_contents_are_copied() -> None:
    """A buffer changed after the op was made changes nothing."""
    buffer = bytearray(b"abc")
    op = nsbox.File("/f", buffer)  # type: ignore[arg-type]
    buffer[0] = 0
    assert op.data == b"abc"
    assert nsbox.File("/f", memoryview(b"abc")) == op  # type: ignore[arg-type]
    hash(op)


def test_dev_primitives() -> None:
    """/dev is a tmpfs with six devices of the host that can't be changed, own ptys, shm, and links; no other device."""
    ops = nsbox.Dev("/dev").primitives()
    assert ops[0] == nsbox.Tmpfs("/dev")
    assert nsbox.Dev("/dev", 4096).primitives() == (nsbox.Tmpfs("/dev", size=4096), *ops[1:])
    assert [op for op in ops if isinstance(op, nsbox.Device)] == [
        nsbox.Device(f"/dev/{name}", f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")
    ]
    assert {op.dest: op.target for op in ops if isinstance(op, nsbox.Symlink)} == {
        "/dev/stdin": "/proc/self/fd/0",
        "/dev/stdout": "/proc/self/fd/1",
        "/dev/stderr": "/proc/self/fd/2",
        "/dev/fd": "/proc/self/fd",
        "/dev/core": "/proc/kcore",
        "/dev/ptmx": "pts/ptmx",
    }
    assert {type(op) for op in ops} == {
        nsbox.Tmpfs,
        nsbox.Device,
        nsbox.Symlink,
        nsbox.Dir,
        nsbox.Devpts,
        nsbox.Console,
    }
    assert nsbox.Dir("/dev/shm", 0o1777) in ops
    assert nsbox.Devpts("/dev/pts") in ops


@pytest.mark.parametrize("dest", ["/", "/a/dev"])
def test_dev_anywhere(dest: str) -> None:
    """All of a /dev lies below its destination, wherever that is."""
    ops = nsbox.Dev(dest).primitives()
    assert all(op.dest.startswith(dest) for op in ops)  # type: ignore[attr-defined]
    assert not any("//" in op.dest for op in ops)  # type: ignore[attr-defined]
    assert f"{dest.rstrip('/')}/null" in {op.dest for op in ops}  # type: ignore[attr-defined]


def test_other_primitives() -> None:
    """Every other op stands for itself, in its place."""
    ops = [op for op, _ in DESCRIPTIONS if not isinstance(op, nsbox.Dev)]
    assert list(primitives(ops)) == ops
    mixed = list(primitives([nsbox.Tmpfs("/a"), nsbox.Dev("/dev"), nsbox.Tmpfs("/b")]))
    assert mixed == [nsbox.Tmpfs("/a"), *nsbox.Dev("/dev").primitives(), nsbox.Tmpfs("/b")]
    assert not any(isinstance(op, nsbox.Dev) for op in mixed)


def test_table() -> None:
    """A plan's table has a line per op, with numbers and columns aligned."""
    ops = (*(nsbox.Tmpfs(f"/t{i}") for i in range(9)), nsbox.RemountRo("/"), nsbox.Loopback())
    lines = Plan(ops, frozenset(), Identity(0, 0, "", "")).table().splitlines()
    assert lines[0] == " 1  tmpfs       /t0 [mode 0755]"
    assert lines[9] == "10  remount-ro  /"
    assert lines[10] == "11  loopback    up"
    assert Plan((), frozenset(), Identity(0, 0, "", "")).table() == ""
