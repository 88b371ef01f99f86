"""Plans as bytes: the layout of abi.h's nsbox_plan and nsbox_op, and filters. It knows offsets, and decides nothing."""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._core.abi import constants as c
from nsbox._plan import ops
from nsbox._seccomp.bpf import COMPATIBLE, LAST, Program, Table, assemble
from nsbox._seccomp.filter import COMPATIBLE_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsbox._plan.landlock import LandlockRule, Ruleset

# Bytes of each field. _struct would do this, but many interpreters have it in a shared library, and loading that takes
# longer than encoding a plan.
_HEAD = (4, 4, 4, 4)
_OP = (4, 4, 4, 4, 4, 4, 4, 4, 8)


class _Row:
    """The fields of one nsbox_op. src: text or data, as C reads it."""

    __slots__ = ("code", "count", "dest", "fd", "flags", "mode", "size", "src")

    def __init__(
        self,
        code: int,
        dest: str = "",
        src: bytes = b"",
        *,
        flags: int = 0,
        mode: int = 0,
        fd: int = -1,
        count: int = 0,
        size: int = 0,
    ) -> None:
        self.code, self.flags, self.mode, self.fd = code, flags, mode, fd
        self.src, self.dest, self.count, self.size = src, dest, count, size


@frozen
class RuleRow(Frozen):
    """The fields of one nsbox_path_rule. path: with its NUL. rights: bits of landlock(7)."""

    path: bytes
    rights: int
    flags: int


@frozen
class RulesetRow(Frozen):
    """The fields of an nsbox_ruleset: rights to files and to TCP, scopes, and the rules."""

    files: int
    net: int
    scoped: int
    rules: tuple[RuleRow, ...]


def _pack(widths: Sequence[int], *numbers: int) -> bytes:
    fields = zip(numbers, widths, strict=True)
    return b"".join([number.to_bytes(width, "little", signed=number < 0) for number, width in fields])


def _text(value: str) -> bytes:
    return os.fsencode(value) + b"\0"


def _data(op: ops.File | ops.BindData) -> bytes:
    if not isinstance(op.data, bytes):
        raise TypeError("a descriptor's contents are read before encoding")
    return op.data


def _bind(op: ops.Bind | ops.RoBind | ops.DevBind) -> _Row:
    flags = {ops.Bind: 0, ops.RoBind: c.RDONLY, ops.DevBind: c.DEVICES}[type(op)]
    flags |= (c.OPTIONAL if op.optional else 0) | (c.NOFOLLOW if op.nofollow else 0)
    return _Row(c.OP_BIND, op.dest, _text(op.src), flags=flags)


def _renewed(op: ops.Op) -> _Row:
    if isinstance(op, ops.Lifted):
        return _Row(c.OP_BIND, op.dest, flags=c.LIFTED, fd=op.index)
    if not isinstance(op, ops.Over):
        raise TypeError(f"no encoding for {op!r}")
    row = _op(op.op)
    row.src, row.count = b"".join(map(_text, op.lifted)), len(op.lifted)
    return row


def _overlay(op: ops.Overlay | ops.RoOverlay | ops.TmpOverlay) -> _Row:
    paths = [*op.lower, op.upper, op.work] if isinstance(op, ops.Overlay) else list(op.lower)
    flags = c.OVL_TMP if isinstance(op, ops.TmpOverlay) else c.OVL_RO if isinstance(op, ops.RoOverlay) else 0
    flags |= c.NOFOLLOW if isinstance(op, ops.Overlay) and op.nofollow else 0
    return _Row(c.OP_OVERLAY, op.dest, b"".join(map(_text, paths)), flags=flags, count=len(paths))


def _op(op: ops.Op) -> _Row:
    match op:
        case ops.Bind() | ops.RoBind() | ops.DevBind():
            return _bind(op)
        case ops.Device():
            return _Row(c.OP_BIND, op.dest, _text(op.src), flags=c.RDONLY | c.DEVICES)
        case ops.BindFd():
            return _Row(c.OP_BIND, op.dest, flags=c.FROM_FD | (c.RDONLY if op.read_only else 0), fd=op.fd)
        case ops.Console():
            return _Row(c.OP_BIND, op.dest, b"/dev/console\0", flags=c.PROBE_TTY | c.RDONLY | c.DEVICES)
        case ops.Tmpfs():
            return _Row(c.OP_TMPFS, op.dest, mode=op.mode, size=op.size or 0)
        case ops.Proc():
            flags = {False: 0, True: c.COVER, "sys": c.COVER_SYS}[op.cover] | (c.NESTS if op.nests else 0)
            return _Row(c.OP_PROC, op.dest, flags=flags)
        case ops.Devpts():
            return _Row(c.OP_DEVPTS, op.dest)
        case ops.Mqueue():
            return _Row(c.OP_MQUEUE, op.dest)
        case ops.Dir():
            return _Row(c.OP_DIR, op.dest, mode=op.mode)
        case ops.File():
            return _Row(c.OP_FILE, op.dest, _data(op), mode=op.mode, count=len(_data(op)))
        case ops.BindData():
            flags = c.RDONLY if op.read_only else 0
            return _Row(c.OP_DATA, op.dest, _data(op), flags=flags, mode=op.mode, count=len(_data(op)))
        case ops.Symlink():
            return _Row(c.OP_SYMLINK, op.dest, _text(op.target))
        case ops.RemountRo():
            return _Row(c.OP_REMOUNT_RO, op.dest)
        case ops.Freeze():
            return _Row(c.OP_REMOUNT_RO, op.dest, flags=c.THAW if op.thaw else c.FREEZE)
        case ops.Chmod():
            return _Row(c.OP_CHMOD, op.dest, mode=op.mode)
        case ops.Overlay() | ops.RoOverlay() | ops.TmpOverlay():
            return _overlay(op)
        case ops.Mask():
            flags = (c.OPTIONAL if op.optional else 0) | (c.NOFOLLOW if op.nofollow else 0)
            return _Row(c.OP_MASK, op.dest, flags=flags)
        case ops.Hostname():
            return _Row(c.OP_HOSTNAME, src=_text(op.name))
        case ops.Loopback():
            return _Row(c.OP_LOOPBACK)
        case _:
            return _renewed(op)


def encode(
    plan_ops: Sequence[ops.Op], idmaps: Mapping[str, int] | None = None, devices: Mapping[ops.Op, int] | None = None
) -> bytes:
    """Return the blob for these primitive ops. Equal bytes are stored once: ops often share a path.

    idmaps: the number, from 1 up, of the id mapping of a bind's files, by its destination.
    devices: the device that the directory of a bind must lie on, as in a stamp.
    """
    start = sum(_HEAD) + len(plan_ops) * sum(_OP)
    pool = bytearray()
    known: dict[bytes, int] = {}

    def put(data: bytes) -> int:
        offset = known.get(data)
        if offset is None:
            offset = known[data] = start + len(pool)
            pool.extend(data)
        return offset

    packed = bytearray()
    for op in plan_ops:
        row = _op(op)
        if idmaps and isinstance(op, ops.Bind | ops.RoBind):
            row.count = idmaps.get(row.dest, 0)
        if devices and isinstance(op, ops.Bind | ops.DevBind):
            row.size = devices.get(op, 0)
        src, dest = put(row.src), put(_text(row.dest) if row.dest else b"")
        packed += _pack(_OP, row.code, row.flags, row.mode, row.fd, src, dest, row.count, 0, row.size)
    return _pack(_HEAD, c.MAGIC, c.VERSION, start + len(pool), len(plan_ops)) + bytes(packed) + bytes(pool)


def encode_programs(programs: Sequence[Program], machine: str, numbers: Mapping[str, int]) -> list[bytes]:
    """Return each program as an array of struct sock_filter. numbers: the machine's system calls by name."""
    codes = []
    for program in programs:
        if program.code:
            codes.append(program.code)
            continue
        tables = [Table(machine, numbers, None if program.with_compatible else LAST)]
        if program.with_compatible:
            other = COMPATIBLE[machine]
            tables.append(Table(other, COMPATIBLE_NUMBERS[other], None))
        codes.append(assemble(program.rules, *tables))
    return codes


def _rule(rule: LandlockRule) -> RuleRow:
    flags = (c.OPTIONAL if rule.optional else 0) | (c.NOFOLLOW if rule.nofollow else 0)
    return RuleRow(_text(rule.path), rule.rights, flags)


def encode_ruleset(ruleset: Ruleset | None) -> RulesetRow | None:
    """Return a Landlock ruleset as Request expects it."""
    if ruleset is None:
        return None
    return RulesetRow(ruleset.files, ruleset.net, ruleset.scoped, tuple(map(_rule, ruleset.paths)))
