"""nsbox_plan_check: whatever the bytes, it doesn't crash, and what it accepts can be read to the last byte."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsbox_testing import plans

from nsbox._core.abi import constants as c
from nsbox._core.wire import encode
from nsbox._plan import ops as p
from nsbox._plan.ops import Lifted, Over

calm = settings(deadline=None)

OPS: list[p.Op] = [
    p.Bind("/a", "/b", optional=True),
    p.RoBind("/usr", "/usr", nofollow=True),
    p.DevBind("/dev/null", "/dev/null"),
    p.BindFd(3, "/fd", read_only=True),
    p.Console("/dev/console"),
    p.Tmpfs("/tmp", size=4096, mode=0o1777),
    p.Proc("/proc", cover=True),
    p.Proc("/proc", cover="sys"),
    p.Devpts("/dev/pts"),
    p.Mqueue("/dev/mqueue"),
    p.Dir("/d"),
    p.File("/f", b"four"),
    p.BindData("/g", b"", read_only=True),
    p.Symlink("usr/bin", "/bin"),
    p.RemountRo("/"),
    p.Freeze("/"),
    p.Chmod("/d", 0o700),
    p.Overlay(("/1", "/2"), "/o", "/u", "/w"),
    p.RoOverlay(("/1", "/2"), "/o"),
    p.TmpOverlay(("/1",), "/o"),
    p.Mask("/etc/shadow", optional=True, nofollow=True),
    p.Hostname("box"),
    p.Loopback(),
    Over(p.Tmpfs("/tmp", size=4096), ("/tmp/a", "/tmp/b")),
    Over(p.Proc("/proc", cover=True)),
    Lifted(1, "/tmp/b"),
]
HEAD, OP = 16, 40
FIELDS = {"code": 0, "flags": 4, "mode": 8, "fd": 12, "src": 16, "dst": 20, "count": 24, "reserved": 28, "size": 32}
BLOB = encode(OPS)

# Written down once more, not taken from plan.c: which flags mean something to which op.
FLAGS: dict[int, int] = {
    c.OP_BIND: c.RDONLY | c.DEVICES | c.OPTIONAL | c.FROM_FD | c.NOFOLLOW | c.PROBE_TTY | c.LIFTED,
    c.OP_DATA: c.RDONLY,
    c.OP_PROC: c.COVER | c.COVER_SYS | c.NESTS,
    c.OP_OVERLAY: c.OVL_TMP | c.OVL_RO | c.NOFOLLOW,
    c.OP_MASK: c.OPTIONAL | c.NOFOLLOW,
    c.OP_REMOUNT_RO: c.FREEZE | c.THAW,
}


def accepted(blob: bytes) -> bool:
    """Ask the core; -EINVAL with an index of an op, or of the header, is the only other answer."""
    ret, bad = plans.check(blob)
    if ret == 0:
        assert bad == -1
        return True
    assert ret == -errno.EINVAL
    assert -1 <= bad < max(1, len(blob) // OP)
    return False


def string(blob: bytes, start: int, offset: int, *, path: bool = True) -> int:
    """Read a string as a handler does, and return where it ends. Fails where a handler would leave the blob."""
    assert start <= offset < len(blob)
    end = blob.index(b"\0", offset)
    assert 0 < end - offset < c.PATH_MAX
    assert not path or blob[offset] == ord("/")
    return end


def read(blob: bytes) -> None:
    """Read all that the handlers read. Raises where one would go wrong."""
    magic, version, size, nops = struct.unpack_from("<4I", blob)
    assert (magic, version, size) == (c.MAGIC, c.VERSION, len(blob))
    start = HEAD + OP * nops
    for i in range(nops):
        code, flags, mode, fd, src, dst, count, _, _ = struct.unpack_from("<3Ii4IQ", blob, HEAD + OP * i)
        assert 0 < code < c.OP_END
        assert mode <= 0o7777
        assert flags & ~FLAGS.get(code, 0) == 0
        if code not in (c.OP_HOSTNAME, c.OP_LOOPBACK):
            string(blob, start, dst)
        if code == c.OP_BIND and flags & c.LIFTED:
            assert 0 <= fd < c.MAX_LIFTED
            assert flags == c.LIFTED
        elif code == c.OP_BIND:
            assert fd >= 0 if flags & c.FROM_FD else string(blob, start, src)
        elif code in (c.OP_TMPFS, c.OP_PROC):
            assert count <= c.MAX_LIFTED
            for _ in range(count):
                src = string(blob, start, src) + 1
        elif code == c.OP_SYMLINK:
            string(blob, start, src, path=False)
        elif code == c.OP_HOSTNAME:
            assert string(blob, start, src, path=False) - src <= 64
        elif code in (c.OP_FILE, c.OP_DATA):
            assert start <= src <= src + count <= len(blob)
        elif code == c.OP_REMOUNT_RO:
            assert flags != c.FREEZE | c.THAW
        elif code == c.OP_OVERLAY:
            uppers = 0 if flags & (c.OVL_TMP | c.OVL_RO) else 2
            assert 1 <= count - uppers <= c.MAX_LAYERS
            assert not (flags & c.OVL_TMP and flags & c.OVL_RO)
            for _ in range(count):
                src = string(blob, start, src) + 1


def changed(blob: bytes, i: int, **values: int) -> bytes:
    """Return the blob with fields of its op i changed."""
    new = bytearray(blob)
    for name, value in values.items():
        kind = {"fd": "<i", "size": "<Q"}.get(name, "<I")
        struct.pack_into(kind, new, HEAD + OP * i + FIELDS[name], value)
    return bytes(new)


def test_valid() -> None:
    """A plan of every op is a plan."""
    assert accepted(BLOB)
    read(BLOB)


def test_the_fuzzers_first_plan(source: Path) -> None:
    """The fuzzer begins with this plan, as it is encoded today (NSBOX_SNAPSHOTS=write writes it again)."""
    file = source / "csrc/tests/corpus/every-op"
    if os.environ.get("NSBOX_SNAPSHOTS") == "write":
        file.write_bytes(BLOB)
    assert file.read_bytes() == BLOB


@pytest.mark.parametrize("length", [0, 1, 15])
def test_too_short_for_a_header(length: int) -> None:
    """Less than a header isn't a plan."""
    assert not accepted(BLOB[:length])


def test_truncated_anywhere() -> None:
    """No beginning of a plan is a plan, with its old size in the header or a mended one."""
    for length in range(len(BLOB)):
        cut = BLOB[:length]
        assert not accepted(cut)
        if length >= HEAD:
            mended = cut[:8] + struct.pack("<I", length) + cut[12:]
            if accepted(mended):
                read(mended)
                pytest.fail(f"accepts {length} of {len(BLOB)} bytes")


def test_trailing_bytes() -> None:
    """Bytes after the size that the header says aren't ignored."""
    assert not accepted(BLOB + b"\0")


def test_every_bit_flipped() -> None:
    """Whichever bit is wrong: it is refused, or what is left can still be read in bounds; each happens."""
    outcomes = {True: 0, False: 0}
    for at in range(len(BLOB)):
        for bit in range(8):
            blob = bytearray(BLOB)
            blob[at] ^= 1 << bit
            fine = accepted(bytes(blob))
            outcomes[fine] += 1
            if fine:
                read(bytes(blob))
    assert min(outcomes.values()) > 500, outcomes


@pytest.mark.parametrize("at", range(0, HEAD, 4), ids=["magic", "version", "size", "nops"])
def test_header(at: int) -> None:
    """Magic, version and size must be exact; more ops than there is room for are refused as a whole."""
    (value,) = struct.unpack_from("<I", BLOB, at)
    for other in (0, value + 1, value - 1, 2**31, 2**32 - 1):
        if at == 12 and other < value:
            continue  # fewer ops: the others become part of the pool
        blob = BLOB[:at] + struct.pack("<I", other) + BLOB[at + 4 :]
        assert not accepted(blob)


@pytest.mark.parametrize("i", range(len(OPS)), ids=[op.describe() for op in OPS])
def test_offsets_of_each_op(i: int) -> None:
    """No op may have a string in the header, in the ops, past the end, or without an end; the error says which op."""
    start = HEAD + OP * len(OPS)
    op = OPS[i]
    used = []
    if not isinstance(op, p.Hostname | p.Loopback):
        used.append("dst")
    if isinstance(
        op, p.Bind | p.RoBind | p.DevBind | p.Symlink | p.File | p.Hostname | p.Overlay | p.RoOverlay | p.TmpOverlay
    ):
        used.append("src")
    for name in used:
        for offset in (0, 1, HEAD, start - 1, len(BLOB) + 1, 2**31, 2**32 - 1, 2**32 - OP):
            assert plans.check(changed(BLOB, i, **{name: offset})) == (-errno.EINVAL, i), (name, offset)
    open_ended = BLOB[:-1] + b"/"  # the last string has no end
    for name in used:
        if not isinstance(op, p.File) or name == "dst":
            assert not accepted(changed(open_ended, i, **{name: len(BLOB) - 1}))


@pytest.mark.parametrize("i", range(len(OPS)), ids=[op.describe() for op in OPS])
def test_numbers_of_each_op(i: int) -> None:
    """Unknown codes, unknown flags and modes beyond the permission bits are refused, in each op."""
    for code in (0, c.OP_END, c.OP_END + 1, 2**31, 2**32 - 1):
        assert plans.check(changed(BLOB, i, code=code)) == (-errno.EINVAL, i)
    code = struct.unpack_from("<I", BLOB, HEAD + OP * i)[0]
    for flags in (*(1 << bit for bit in range(32) if not FLAGS.get(code, 0) >> bit & 1), 2**32 - 1):
        assert plans.check(changed(BLOB, i, flags=flags)) == (-errno.EINVAL, i)
    assert plans.check(changed(BLOB, i, mode=0o10000)) == (-errno.EINVAL, i)


def place(kind: type[p.Op]) -> int:
    return next(i for i, op in enumerate(OPS) if isinstance(op, kind))


def refuses(kind: type[p.Op], **values: int) -> bool:
    i = place(kind)
    return plans.check(changed(BLOB, i, **values)) == (-errno.EINVAL, i)


def test_counts() -> None:
    """Contents must lie in the blob, also where offset and count together leave 32 bits; layers have a number."""
    for count in (len(BLOB), 2**31, 2**32 - 1, 2**32 - 100):
        assert refuses(p.File, count=count)
        assert refuses(p.BindData, count=count)
    for kind in (p.Overlay, p.RoOverlay, p.TmpOverlay):
        for count in (0, c.MAX_LAYERS + 3, 2**32 - 1):
            assert refuses(kind, count=count)
    assert refuses(p.Overlay, count=2)  # upper and work, and nothing below
    assert refuses(p.TmpOverlay, flags=c.OVL_TMP | c.OVL_RO)
    assert refuses(p.Freeze, flags=c.FREEZE | c.THAW)


def test_descriptors() -> None:
    """A bind from a descriptor has one."""
    for fd in (-1, -2, -(2**31)):
        assert refuses(p.BindFd, fd=fd)
    assert not refuses(p.BindFd, fd=2**31 - 1)


def test_strings() -> None:
    """Paths begin with a slash and have at most 4095 bytes; host names 64; nothing is empty."""
    start = HEAD + OP

    def check(code: int, text: bytes, **values: Any) -> bool:
        pool = text + b"\0/b\0"
        op = {"code": code, "src": start, "dst": start + len(text) + 1} | values
        blob = struct.pack("<4I", c.MAGIC, c.VERSION, start + len(pool), 1) + bytes(OP) + pool
        return accepted(changed(blob, 0, **op))

    assert check(c.OP_BIND, b"/" + b"a" * 4094)
    assert not check(c.OP_BIND, b"/" + b"a" * 4095)
    assert not check(c.OP_BIND, b"a")
    assert not check(c.OP_BIND, b"")
    assert check(c.OP_SYMLINK, b"a" * 4095)
    assert not check(c.OP_SYMLINK, b"a" * 4096)
    assert not check(c.OP_SYMLINK, b"")
    assert check(c.OP_HOSTNAME, b"a" * 64)
    assert not check(c.OP_HOSTNAME, b"a" * 65)
    assert not check(c.OP_HOSTNAME, b"")
    for code in range(1, c.OP_END):
        if code not in (c.OP_HOSTNAME, c.OP_LOOPBACK):
            assert not check(code, b"relative", dst=start, count=0), code


mutations = st.lists(
    st.tuples(
        st.integers(0, len(OPS) - 1),
        st.sampled_from([name for name in FIELDS if name not in ("fd", "size")]),
        st.integers(0, len(BLOB) + 8) | st.integers(0, 2**32 - 1) | st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]),
    ),
    min_size=1,
    max_size=6,
)


@settings(calm, max_examples=500)
@given(mutations)
def test_fields_changed(chosen: list[tuple[int, str, int]]) -> None:
    """Whatever fields are wrong, in however many ops: what is accepted can be read in bounds."""
    blob = BLOB
    for i, name, value in chosen:
        blob = changed(blob, i, **{name: value})
    if accepted(blob):
        read(blob)


@settings(calm, max_examples=500)
@given(st.integers(0, 5), st.binary(max_size=300))
def test_arbitrary_bytes(nops: int, body: bytes) -> None:
    """Any bytes behind a right header are judged without a crash."""
    blob = struct.pack("<4I", c.MAGIC, c.VERSION, HEAD + len(body), nops) + body
    if accepted(blob):
        read(blob)
    assert not accepted(body)
