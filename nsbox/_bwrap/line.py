"""A command line of bubblewrap, read: by the parser in C that the program bwrap has too (csrc/bwrap/line/)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._core.abi import constants, ffi, lib
from nsbox._plan import ops
from nsbox._plan.capabilities import CAPABILITIES

if TYPE_CHECKING:
    from nsbox._core.abi import CData

_NAMESPACES = ("user", "ipc", "pid", "net", "uts", "cgroup")


class Refused(ValueError):
    """The command line is wrong. The text is the line that bwrap prints, without the newline."""


@frozen
class Line(Frozen):
    """What a command line asks for, in the order of its options where that matters.

    env: the environment that it leaves of the one that it got.
    ops: with sources as absolute paths. Those of a -try option that don't exist are left out.
    unshare: namespaces that must be new.
    attempts: namespaces that the -try forms want if they can be had; they may be in unshare too.
    fds: the descriptors of options that take one for the whole run, by the options' names.
    ids: those of --uid and --gid, by the options' names.
    texts: the arguments of the options that take one text for the whole run, by the options' names.
    flags: the options without arguments, by their names.
    capabilities: pairs of "add" or "drop" and a name of CAPABILITIES, or ALL.
    filters: the contents of each --add-seccomp-fd.
    named: all descriptors that options name, except those that were read meanwhile.
    """

    command: tuple[str, ...]
    env: dict[str, str]
    ops: tuple[ops.Op, ...]
    unshare: frozenset[str]
    attempts: frozenset[str]
    fds: dict[str, int]
    ids: dict[str, int]
    texts: dict[str, str]
    flags: frozenset[str]
    lock_files: tuple[str, ...]
    capabilities: tuple[tuple[str, str], ...]
    filters: tuple[bytes, ...]
    named: tuple[int, ...]
    warnings: tuple[str, ...]


def read(words: Sequence[str], environ: Mapping[str, str], *, uid: int, gid: int) -> Line:
    """Return what a command line asks for; raises Refused, also for one that asks for --help or --version.

    Descriptors of --args and --add-seccomp-fd are read and closed.

    words: those after the program's name.
    environ: the environment that the line begins with.
    uid, gid: the caller's real ones.
    """
    keep = [ffi.new("char[]", _passable(word)) for word in words]
    keep += [ffi.new("char[]", _passable(f"{name}={value}")) for name, value in environ.items()]
    argv = ffi.new("char *[]", [*keep[: len(words)], ffi.NULL])
    envp = ffi.new("char *[]", [*keep[len(words) :], ffi.NULL])
    line = ffi.new("nsbox_bwrap_line *")
    error = lib.nsbox_bwrap_parse(line, argv, envp, uid, gid)
    if error:
        raise OSError(-error, os.strerror(-error))
    try:
        return _line(line)
    finally:
        lib.nsbox_bwrap_forget(line)


def _passable(word: str) -> bytes:
    """Return a word as the kernel passes it, as it does all words of a real command line."""
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise Refused(f"bwrap: Invalid argument {word!r}")
    return data


def _text(pointer: CData) -> str:
    return os.fsdecode(ffi.string(pointer))


def _line(line: CData) -> Line:
    if line.outcome == constants.BWRAP_REFUSED:
        raise Refused(_text(line.message))
    if line.outcome != constants.BWRAP_READ:
        raise Refused("bwrap: there is no command" if line.outcome == constants.BWRAP_NO_COMMAND else _ASKS)
    env = (_text(line.env[i]).partition("=") for i in range(line.n_env))
    return Line(
        command=tuple(_text(line.command[i]) for i in range(line.n_command)),
        env={name: value for name, equals, value in env if equals},
        ops=tuple(op for i in range(line.n_ops) if (op := _op(line.ops[i])) is not None),
        unshare=_names(line.unshare),
        attempts=_names(line.wanted),
        fds={option: line.fd[i] for option, i in _by_name(_FDS) if line.fd[i] >= 0},
        ids={option: line.id[i] for option, i in _by_name(("--uid", "--gid")) if line.id[i] >= 0},
        texts={option: _text(line.text[i]) for option, i in _by_name(_TEXTS) if line.text[i] != ffi.NULL},
        flags=frozenset(option for option in _FLAGS if line.flags & _constant(option)),
        lock_files=tuple(_text(line.lock_files[i]) for i in range(line.n_lock_files)),
        capabilities=tuple(_capability(line.caps[i]) for i in range(line.n_caps)),
        filters=tuple(bytes(ffi.buffer(line.filters[i].code, line.filters[i].len)) for i in range(line.n_filters)),
        named=tuple(line.fds[i] for i in range(line.n_fds)),
        warnings=tuple(_text(line.warnings[i]) for i in range(line.n_warnings)),
    )


_ASKS = "bwrap: asks for --help or --version"
_FDS = (
    *("--userns", "--userns2", "--pidns", "--seccomp"),
    *("--sync-fd", "--block-fd", "--userns-block-fd", "--info-fd", "--json-status-fd"),
)
_TEXTS = ("--chdir", "--argv0", "--exec-label", "--file-label", "--hostname")
_FLAGS = (
    *("--disable-userns", "--assert-userns-disabled", "--new-session", "--die-with-parent", "--as-pid-1", "--cleared"),
    "--levels",
)


def _constant(option: str) -> int:
    word = option.removeprefix("--").removesuffix("-fd").replace("-", "_").upper()
    return int(getattr(constants, f"BWRAP_{word}"))


def _by_name(options: Sequence[str]) -> list[tuple[str, int]]:
    return [(option, _constant(option)) for option in options]


def _names(bits: int) -> frozenset[str]:
    return frozenset(name for name in _NAMESPACES if bits & _constant(name))


def _capability(cap: CData) -> tuple[str, str]:
    return "add" if cap.add else "drop", "ALL" if cap.number < 0 else CAPABILITIES[cap.number]


# ---- ops


def _refuse_source(path: str, number: int) -> NoReturn:
    raise Refused(f"bwrap: Can't find source path {path}: {os.strerror(number)}")


def _source(pointer: CData, optional: bool = False) -> str:
    """Return an absolute path; "" for a -try option's path that doesn't exist.

    The kernel follows links in it, as for all ops. Only "..", which no op accepts, is resolved here.
    """
    path = _text(pointer)
    if not path:
        if optional:
            return ""
        _refuse_source(path, errno.ENOENT)
    try:
        joined = path if path.startswith("/") else os.path.join(os.getcwd(), path)
        return os.path.realpath(joined, strict=True) if ".." in joined.split("/") else joined
    except OSError as error:
        if optional and error.errno == errno.ENOENT:
            return ""
        _refuse_source(path, error.errno or errno.ENOENT)


def _op(op: CData) -> ops.Op | None:
    """Return the op; None for one that a -try option leaves out."""
    what = op.what
    try:
        if what in (constants.BWRAP_BIND, constants.BWRAP_RO_BIND, constants.BWRAP_DEV_BIND):
            kind = {constants.BWRAP_BIND: ops.Bind, constants.BWRAP_RO_BIND: ops.RoBind}.get(what, ops.DevBind)
            path = _source(op.src, bool(op.optional))
            return kind(path, _text(op.dest), bool(op.optional)) if path else None
        return _MADE[what](op)
    except PolicyError as error:
        raise Refused(f"bwrap: {_text(op.option)}: {error.problem}") from None


def _overlay(op: CData) -> ops.Op:
    lower, dest = tuple(_source(op.layers[i]) for i in range(op.n_layers)), _text(op.dest)
    if op.what == constants.BWRAP_OVERLAY:
        return ops.Overlay(lower, dest, _source(op.upper), _source(op.work))
    return (ops.TmpOverlay if op.what == constants.BWRAP_TMP_OVERLAY else ops.RoOverlay)(lower, dest)


_MADE: dict[int, Callable[[CData], ops.Op]] = {
    constants.BWRAP_BIND_FD: lambda op: ops.BindFd(op.fd, _text(op.dest)),
    constants.BWRAP_RO_BIND_FD: lambda op: ops.BindFd(op.fd, _text(op.dest), read_only=True),
    constants.BWRAP_REMOUNT_RO: lambda op: ops.RemountRo(_text(op.dest)),
    constants.BWRAP_PROC: lambda op: ops.Proc(_text(op.dest)),
    constants.BWRAP_DEV: lambda op: ops.Dev(_text(op.dest)),
    constants.BWRAP_MQUEUE: lambda op: ops.Mqueue(_text(op.dest)),
    constants.BWRAP_TMPFS: lambda op: ops.Tmpfs(_text(op.dest), op.size or None, op.mode),
    constants.BWRAP_DIR: lambda op: ops.Dir(_text(op.dest), op.mode),
    constants.BWRAP_FILE: lambda op: ops.File(_text(op.dest), op.fd, op.mode),
    constants.BWRAP_BIND_DATA: lambda op: ops.BindData(_text(op.dest), op.fd, op.mode),
    constants.BWRAP_RO_BIND_DATA: lambda op: ops.BindData(_text(op.dest), op.fd, op.mode, read_only=True),
    constants.BWRAP_SYMLINK: lambda op: ops.Symlink(_text(op.src), _text(op.dest)),
    constants.BWRAP_CHMOD: lambda op: ops.Chmod(_text(op.dest), op.mode),
    constants.BWRAP_OVERLAY: _overlay,
    constants.BWRAP_TMP_OVERLAY: _overlay,
    constants.BWRAP_RO_OVERLAY: _overlay,
    constants.BWRAP_OP_HOSTNAME: lambda op: ops.Hostname(_text(op.src)),
}
