"""Command lines of bubblewrap, read by the parser in C, and a table of wrong ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nsbox._bwrap import line as bwrap
from nsbox._bwrap.line import Line, Refused
from nsbox._core.abi import ffi, lib

UNDECODABLE = os.fsdecode(b"\xff\xfe")
COMMAND = ("--", "sh", "-c", "--help")
STRAY_LAYER = (
    "--overlay-src must be followed by another --overlay-src or one of --overlay, --tmp-overlay, or --ro-overlay"
)
_NUMBERS = (*range(16), 77)


def words(line: str) -> list[str]:
    """Return the words of a command line without quotes."""
    return line.split()


@contextlib.contextmanager
def descriptors(contents: Mapping[int, bytes]) -> Iterator[None]:
    """Have descriptors of these numbers and contents, and none of others that tests name; then the former ones again."""
    saved = {}
    for number in _NUMBERS:
        with contextlib.suppress(OSError):
            saved[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100), os.get_inheritable(number)
            os.close(number)
    try:
        for number, data in contents.items():
            made = os.memfd_create("contents")
            fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 100)
            os.close(made)
            os.write(fd, data)
            os.lseek(fd, 0, os.SEEK_SET)
            os.dup2(fd, number)
            os.close(fd)
        yield
    finally:
        for number in _NUMBERS:
            with contextlib.suppress(OSError):
                os.close(number)
        for number, (fd, is_inheritable) in saved.items():
            os.dup2(fd, number, is_inheritable)
            os.close(fd)


def read(*argv: str, fds: Mapping[int, bytes] | None = None, **changes: Any) -> Line:
    """Return what a command line asks for."""
    given = {"uid": 1000, "gid": 1000} | changes
    environ = given.pop("environ", {"HOME": "/h"})
    with descriptors(fds or {}):
        return bwrap.read(argv, environ, **given)


def outcome(*argv: str, fds: Mapping[int, bytes] | None = None, uid: int = 1000) -> int:
    """Return how the reading of a command line ends, as abi_bwrap.h names it."""
    keep = [ffi.new("char[]", os.fsencode(word)) for word in argv]
    line = ffi.new("nsbox_bwrap_line *")
    with descriptors(fds or {}):
        assert (
            lib.nsbox_bwrap_parse(line, ffi.new("char *[]", [*keep, ffi.NULL]), ffi.new("char *[]", 1), uid, uid) == 0
        )
    found = int(line.outcome)
    lib.nsbox_bwrap_forget(line)
    return found


def asked(*argv: str, **changes: Any) -> Line:
    """Return what options ask for, about which nothing is said."""
    value = read(*argv, *COMMAND, **changes)
    assert value.warnings == ()
    assert value.command == COMMAND[1:]
    return value


def refusal(*argv: str, **changes: Any) -> str:
    """Return the line that is said about a wrong command line."""
    with pytest.raises(Refused) as caught:
        read(*argv, **changes)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


MISTAKES = [
    ("--nonsense", "Unknown option --nonsense"),
    ("-", "Unknown option -"),
    ("-h", "Unknown option -h"),
    ("--bind=a", "Unknown option --bind=a"),
    ("--argv0 a --argv0 a", "--argv0 used multiple times"),
    ("--uid -1 x", "Invalid uid: -1"),
    ("--uid 4294967295 x", "Invalid uid: 4294967295"),
    ("--gid 1x x", "Invalid gid: 1x"),
    ("--setenv =a b", "setenv failed"),
    ("--setenv a=b c", "setenv failed"),
    ("--unsetenv a=", "unsetenv failed"),
    ("--perms 8 --dir d", "--perms takes an octal argument <= 07777"),
    ("--perms 10000 --dir d", "--perms takes an octal argument <= 07777"),
    ("--perms -1 --dir d", "--perms takes an octal argument <= 07777"),
    ("--perms 0o7 --dir d", "--perms takes an octal argument <= 07777"),
    ("--perms 7 --perms 7 --dir d", "--perms given twice for the same action"),
    ("--perms 7 --bind a b", "--perms must be followed by an option that creates a file"),
    ("--perms 7 --symlink a b", "--perms must be followed by an option that creates a file"),
    ("--perms 7 --chmod 7 b", "--perms must be followed by an option that creates a file"),
    ("--perms 7 --new-session --dir d", "--perms must be followed by an option that creates a file"),
    ("--size 0 --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size -1 --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size +1 --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size 08 --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size 0x --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size 1k --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size 18446744073709551616 --tmpfs t", "--size takes a non-zero number of bytes"),
    ("--size 9223372036854775808 --tmpfs t", "--size (for tmpfs) is limited to 9223372036854775807"),
    ("--size 1 --size 1 --tmpfs t", "--size given twice for the same action"),
    ("--size 1 --dir t", "--size must be followed by --tmpfs"),
    ("--size 1 --perms 7 --dir t", "--size must be followed by --tmpfs"),
    ("--chmod 8 x", "--chmod takes an octal argument <= 07777"),
    ("--overlay a b c", "--overlay requires at least one --overlay-src"),
    ("--tmp-overlay a", "--tmp-overlay requires at least one --overlay-src"),
    ("--ro-overlay a", "--ro-overlay requires at least two --overlay-src"),
    ("--overlay-src a --ro-overlay a", "--ro-overlay requires at least two --overlay-src"),
    ("--overlay-src a", STRAY_LAYER),
    ("--overlay-src a sh", STRAY_LAYER),
    ("--overlay-src a -- sh", STRAY_LAYER),
    ("--overlay-src a --dir b --tmp-overlay c", STRAY_LAYER),
    ("--args 9 x", "Can't read --args data: Bad file descriptor"),
    ("--add-seccomp-fd 9 x", "Can't read seccomp data: Bad file descriptor"),
    ("--args 1 x", "--args not supported in arguments file"),
    ("--args 2 x", "--args not supported in arguments file"),
    ("--add-seccomp-fd 3 x", "Invalid seccomp data, must be multiple of 8"),
    ("--add-seccomp-fd 4 --seccomp x", "--seccomp cannot be combined with --add-seccomp-fd"),
    ("--seccomp 3 --add-seccomp-fd x", "--add-seccomp-fd cannot be combined with --seccomp"),
    ("--cap-add SYS_ADMIN x", "unknown cap: SYS_ADMIN"),
    ("--cap-drop cap_ x", "unknown cap: cap_"),
    ("--cap-drop 64 x", "unknown cap: 64"),
    ("--userns-block-fd 3", "--userns-block-fd requires --unshare-user"),
    ("--userns-block-fd 3 --unshare-all", "--userns-block-fd requires --unshare-user"),
    ("--userns-block-fd 3 --unshare-user", "--userns-block-fd requires --info-fd"),
    ("--userns 3 --unshare-user", "--userns is not compatible with --unshare-user"),
    ("--userns 3 --unshare-user-try", "--userns is not compatible with --unshare-user-try"),
    ("--userns 3 --unshare-all", "--userns is not compatible with --unshare-user-try"),
    ("--disable-userns", "--disable-userns requires --unshare-user"),
    ("--disable-userns --unshare-all", "--disable-userns requires --unshare-user"),
    (
        "--disable-userns --unshare-user --userns-block-fd 3 --info-fd 4",
        "--disable-userns is not compatible with --userns-block-fd",
    ),
    ("--hostname a x", "Specifying --hostname requires --unshare-uts"),
    ("--as-pid-1 x", "Specifying --as-pid-1 requires --unshare-pid"),
    ("--unshare-pid --as-pid-1 --lock-file a x", "Specifying --as-pid-1 and --lock-file is not permitted"),
]
HELD = {1: b"--args\x002", 2: b"--args", 3: b"1234567", 4: b"12345678"}
