"""The bytes of a plan: each op encoded, then read by a small decoder that shares nothing with the encoder but abi.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsbox_testing import plans

import nsbox
from nsbox._core import abi
from nsbox._core.abi import constants as c
from nsbox._core.wire import encode
from nsbox._plan.ops import Freeze, primitives

pytestmark = pytest.mark.skipif(bool(abi.problem), reason="opcodes come from the C core")

calm = settings(deadline=None)


@dataclass
class Decoded:
    """One op as the C core reads it, its strings looked up."""

    code: int
    flags: int
    mode: int
    fd: int
    src: bytes | list[bytes] | None
    dst: bytes | None
    size: int


def string(blob: bytes, offset: int) -> bytes:
    end = blob.index(b"\0", offset)
    return blob[offset:end]


def decode(blob: bytes) -> list[Decoded]:
    """Read a blob by abi.h, looking at every offset that the op's handler would look at."""
    magic, version, size, nops = struct.unpack_from("<IIII", blob, 0)
    assert (magic, version, size) == (0x786F626E, 1, len(blob))
    assert blob[:4] == b"nbox"
    start = 16 + 40 * nops
    assert start <= len(blob)
    found = []
    for i in range(nops):
        code, flags, mode, fd, src, dst, count, reserved, bytes_ = struct.unpack_from("<IIIiIIIIQ", blob, 16 + 40 * i)
        assert reserved == 0
        assert start <= src <= len(blob)
        assert start <= dst <= len(blob)
        source: bytes | list[bytes] | None = None
        if code in (c.OP_FILE, c.OP_DATA):
            assert src + count <= len(blob)
            source = blob[src : src + count]
        elif code == c.OP_OVERLAY:
            source = []
            for _ in range(count):
                source.append(string(blob, src))
                src += len(source[-1]) + 1
        elif code in (c.OP_SYMLINK, c.OP_HOSTNAME) or (code == c.OP_BIND and not flags & c.FROM_FD):
            assert count == 0
            source = string(blob, src)
        dest = None if code in (c.OP_HOSTNAME, c.OP_LOOPBACK) else string(blob, dst)
        found.append(Decoded(code, flags, mode, fd, source, dest, bytes_))
    return found


def op(
    code: int,
    dst: bytes | None,
    src: bytes | list[bytes] | None = None,
    *,
    flags: int = 0,
    mode: int = 0,
    fd: int = -1,
    size: int = 0,
) -> Decoded:
    return Decoded(code, flags, mode, fd, src, dst, size)


CASES: list[tuple[nsbox.Op, tuple[object, ...], dict[str, int]]] = [
    (nsbox.Bind("/a", "/b"), ("BIND", b"/b", b"/a"), {}),
    (nsbox.Bind("/a", "/b", optional=True), ("BIND", b"/b", b"/a"), {"flags": 4}),
    (nsbox.Bind("/a", "/b", nofollow=True), ("BIND", b"/b", b"/a"), {"flags": 256}),
    (nsbox.RoBind("/a", "/b"), ("BIND", b"/b", b"/a"), {"flags": 1}),
    (nsbox.RoBind("/a", "/b", optional=True), ("BIND", b"/b", b"/a"), {"flags": 5}),
    (nsbox.DevBind("/a", "/b"), ("BIND", b"/b", b"/a"), {"flags": 2}),
    (nsbox.DevBind("/a", "/b", optional=True), ("BIND", b"/b", b"/a"), {"flags": 6}),
    (nsbox.BindFd(7, "/b"), ("BIND", b"/b"), {"flags": 8, "fd": 7}),
    (nsbox.BindFd(0, "/b", read_only=True), ("BIND", b"/b"), {"flags": 9, "fd": 0}),
    (nsbox.Console("/dev/console"), ("BIND", b"/dev/console", b"/dev/console"), {"flags": 128 | 2 | 1}),
    (nsbox.Device("/dev/null", "/d/null"), ("BIND", b"/d/null", b"/dev/null"), {"flags": 2 | 1}),
    (nsbox.Tmpfs("/t"), ("TMPFS", b"/t"), {"mode": 0o755}),
    (nsbox.Tmpfs("/t", size=2**63 - 1, mode=0o1777), ("TMPFS", b"/t"), {"mode": 0o1777, "size": 2**63 - 1}),
    (nsbox.Proc("/p"), ("PROC", b"/p"), {}),
    (nsbox.Proc("/p", cover=True), ("PROC", b"/p"), {"flags": 16}),
    (nsbox.Proc("/p", cover="sys"), ("PROC", b"/p"), {"flags": 4096}),
    (nsbox.Devpts("/p"), ("DEVPTS", b"/p"), {}),
    (nsbox.Mqueue("/m"), ("MQUEUE", b"/m"), {}),
    (nsbox.Dir("/d", 0o700), ("DIR", b"/d"), {"mode": 0o700}),
    (nsbox.File("/f", b"a\0b", 0o600), ("FILE", b"/f", b"a\0b"), {"mode": 0o600}),
    (nsbox.File("/f", b""), ("FILE", b"/f", b""), {"mode": 0o644}),
    (nsbox.BindData("/f", b"x"), ("DATA", b"/f", b"x"), {"mode": 0o600}),
    (nsbox.BindData("/f", b"", read_only=True), ("DATA", b"/f", b""), {"mode": 0o600, "flags": 1}),
    (nsbox.Symlink("a b", "/l"), ("SYMLINK", b"/l", b"a b"), {}),
    (nsbox.RemountRo("/"), ("REMOUNT_RO", b"/"), {}),
    (Freeze("/"), ("REMOUNT_RO", b"/"), {"flags": c.FREEZE}),
    (Freeze("/", thaw=True), ("REMOUNT_RO", b"/"), {"flags": c.THAW}),
    (nsbox.Chmod("/d", 0o7777), ("CHMOD", b"/d"), {"mode": 0o7777}),
    (nsbox.Overlay(("/1", "/2"), "/o", "/u", "/w"), ("OVERLAY", b"/o", [b"/1", b"/2", b"/u", b"/w"]), {}),
    (
        nsbox.Overlay(("/1",), "/o", "/u", "/w", nofollow=True),
        ("OVERLAY", b"/o", [b"/1", b"/u", b"/w"]),
        {"flags": 256},
    ),
    (nsbox.RoOverlay(("/1", "/2"), "/o"), ("OVERLAY", b"/o", [b"/1", b"/2"]), {"flags": 64}),
    (nsbox.TmpOverlay(("/1",), "/o"), ("OVERLAY", b"/o", [b"/1"]), {"flags": 32}),
    (nsbox.Mask("/m"), ("MASK", b"/m"), {}),
    (nsbox.Mask("/m", optional=True), ("MASK", b"/m"), {"flags": 4}),
    (nsbox.Mask("/m", nofollow=True), ("MASK", b"/m"), {"flags": 256}),
    (nsbox.Hostname("böx"), ("HOSTNAME", None, "böx".encode()), {}),
    (nsbox.Loopback(), ("LOOPBACK", None), {}),
    (nsbox.Dir("/\udcff"), ("DIR", b"/\xff"), {"mode": 0o755}),
]


@pytest.mark.parametrize(("given_op", "operands", "numbers"), CASES, ids=[case[0].describe() for case in CASES])
def test_each_op(given_op: nsbox.Op, operands: tuple[str, bytes | None], numbers: dict[str, int]) -> None:
    """An op's operands are where abi.h says, alone and between others, and the C core takes the blob."""
    name, *rest = operands
    expected = op(getattr(c, f"OP_{name}"), *rest, **numbers)  # type: ignore[arg-type]
    assert decode(encode([given_op])) == [expected]
    around = [nsbox.Tmpfs("/b"), given_op, nsbox.Symlink("/a", "/b")]
    assert decode(encode(around))[1] == expected
    for ops in ([given_op], around):
        assert plans.check(encode(ops)) == (0, -1)


def test_each_opcode_is_above() -> None:
    """The table has every opcode there is."""
    assert {getattr(c, f"OP_{operands[0]}") for _, operands, _ in CASES} == set(range(1, c.OP_END))


def test_no_ops() -> None:
    """A plan without ops is a plan."""
    assert decode(encode([])) == []
    assert plans.check(encode([])) == (0, -1)


def test_strings_are_shared() -> None:
    """A source that is also a destination is stored once: a thousand binds of a path on itself cost one string each."""
    one = len(encode([nsbox.RoBind("/some/path", "/some/path")]))
    assert one == 16 + 40 + len(b"/some/path\0")
    many = encode([nsbox.RoBind(f"/p{i:04}", f"/p{i:04}") for i in range(1000)])
    assert len(many) == 16 + 1000 * (40 + len(b"/p0000\0"))
    assert [d.dst for d in decode(many)] == [d.src for d in decode(many)]


def test_many_ops() -> None:
    """20,000 ops are no problem of the format."""
    ops = [nsbox.Dir(f"/d/{i}") for i in range(20_000)]
    blob = encode(ops)
    assert [d.dst for d in decode(blob)] == [op.dest.encode() for op in ops]
    assert plans.check(blob) == (0, -1)


@pytest.mark.parametrize("given_op", [nsbox.File("/f", 3), nsbox.BindData("/f", 0)], ids=lambda o: o.describe())
def test_descriptors_are_read_before(given_op: nsbox.Op) -> None:
    """Contents that are still in a descriptor can't be encoded: a caller forgot to read it."""
    with pytest.raises(TypeError, match="descriptor"):
        encode([given_op])


def test_composite_ops_are_taken_apart_before() -> None:
    """/dev isn't one op for C; what it is made of is."""
    with pytest.raises(TypeError, match="no encoding"):
        encode([nsbox.Dev("/dev")])
    ops = list(primitives([nsbox.Dev("/dev")]))
    assert len(decode(encode(ops))) == len(ops)
    assert plans.check(encode(ops)) == (0, -1)


paths = st.lists(
    st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=4), max_size=4
).map(lambda parts: "/" + "/".join(part for part in parts if part not in (".", "..")))
targets = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)
modes = st.integers(0, 0o7777)
layers = st.lists(paths, min_size=2, max_size=10).map(tuple)
ops_of_all_kinds = st.one_of(
    st.builds(nsbox.Bind, paths, paths, st.booleans()),
    st.builds(nsbox.RoBind, paths, paths, st.booleans(), st.booleans()),
    st.builds(nsbox.DevBind, paths, paths),
    st.builds(nsbox.BindFd, st.integers(0, 2**31 - 1), paths, st.booleans()),
    st.builds(nsbox.Tmpfs, paths, st.none() | st.integers(1, 2**63 - 1), modes),
    st.builds(nsbox.Proc, paths, st.booleans()),
    st.builds(nsbox.Dir, paths, modes),
    st.builds(nsbox.File, paths, st.binary(max_size=20), modes),
    st.builds(nsbox.BindData, paths, st.binary(max_size=20), modes, st.booleans()),
    st.builds(nsbox.Symlink, targets, paths),
    st.builds(nsbox.Chmod, paths, modes),
    st.builds(nsbox.Overlay, layers, paths, paths, paths),
    st.builds(nsbox.RoOverlay, layers, paths),
    st.builds(nsbox.TmpOverlay, layers, paths),
    st.builds(nsbox.Mask, paths, st.booleans()),
    st.builds(nsbox.Hostname, st.text("abc-ä", min_size=1, max_size=20)),
    st.just(nsbox.Loopback()),
)


def source_of(given_op: nsbox.Op) -> object:
    """Return what the decoder must find as the op's source."""
    match given_op:
        case nsbox.Bind() | nsbox.RoBind() | nsbox.DevBind():
            return given_op.src.encode()
        case nsbox.File() | nsbox.BindData():
            return given_op.data
        case nsbox.Symlink():
            return given_op.target.encode()
        case nsbox.Hostname():
            return given_op.name.encode()
        case nsbox.Overlay():
            return [path.encode() for path in (*given_op.lower, given_op.upper, given_op.work)]
        case nsbox.RoOverlay() | nsbox.TmpOverlay():
            return [path.encode() for path in given_op.lower]
    return None


@calm
@given(st.lists(ops_of_all_kinds, max_size=12))
def test_round_trip(ops: list[nsbox.Op]) -> None:
    """Whatever ops are put together, the decoder finds the same operands, and the C core finds nothing wrong."""
    blob = encode(ops)
    found = decode(blob)
    assert len(found) == len(ops)
    for given_op, seen in zip(ops, found, strict=True):
        assert seen.src == source_of(given_op)
        dest = getattr(given_op, "dest", None)
        assert seen.dst == (dest.encode() if dest is not None else None)
        assert seen.mode == getattr(given_op, "mode", 0)
        assert seen.size == (getattr(given_op, "size", 0) or 0)
        assert seen.fd == getattr(given_op, "fd", -1)
    assert plans.check(blob) == (0, -1)
