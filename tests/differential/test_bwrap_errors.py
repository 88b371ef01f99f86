"""Wrong command lines are refused in the words of the system's bwrap, and with its exit status.

Both get the same descriptors; options that the installed bwrap doesn't know are left out.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
from nsbox_differential.arena import BWRAP
from nsbox_testing import needs

from nsbox._bwrap import program
from nsbox._bwrap.options import options

pytestmark = needs.programs("bwrap")


OPTIONS = options()
BY_NAME = {option.name: option for option in OPTIONS}
REWORDED = {  # bwrap 0.8, and what 0.11 says
    "--userns not compatible ": "--userns is not compatible with ",
    "--disable-userns is not compatible with  ": "--disable-userns is not compatible with ",
}


def ours(line: Sequence[str], fds: Sequence[int] = ()) -> tuple[int, list[str]]:
    """Return our exit status and lines, of the usage only the first."""
    return said_by(program(), line, fds)


def theirs(line: Sequence[str], fds: Sequence[int] = ()) -> tuple[int, list[str]]:
    """Return bwrap's exit status and lines, of the usage only the first."""
    return said_by(str(BWRAP), line, fds)


def said_by(path: str, line: Sequence[str], fds: Sequence[int]) -> tuple[int, list[str]]:
    command = ["bwrap", *map(os.fsencode, line)]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "pass_fds": fds}
    done = subprocess.run(command, executable=path, check=False, **options)
    text = os.fsdecode(done.stderr)
    for old, new in REWORDED.items():
        text = text.replace(old, new)
    said = text.splitlines()
    shown = [at for at, text in enumerate(said) if text.startswith("usage: ")]
    return done.returncode, said[: shown[0] + 1] if shown else said


@functools.cache
def known() -> frozenset[str]:
    """Return the options that the installed bwrap says it has."""
    text = subprocess.run([str(BWRAP), "--help"], capture_output=True, text=True, check=True).stdout
    return frozenset(word for line in text.splitlines() for word in line.split()[:1] if word.startswith("--"))


def compare(line: Sequence[str]) -> None:
    """Fail if bwrap says something else about a wrong command line than we do."""
    unknown = sorted({*line} & {*BY_NAME} - known())
    if unknown:
        pytest.skip(f"this bwrap has no {unknown[0]}")
    assert ours(line) == theirs(line)


SHORT = [[option.name, *["1"] * given] for option in OPTIONS for given in range(len(option.args))]
NO_FD = ["-1", "0a", "", " ", "x", "3 ", "0x3", "-", "99999999999999999999"]
FDS = [[o.name, text, *["/d"] * (len(o.args) - 1)] for o in OPTIONS if "FD" in o.args for text in NO_FD]
ONCE = [[o.name, "1", o.name, "2", "--nonsense"] for o in OPTIONS if o.once and "label" not in o.name]

LINES = """
--
-
-h
--nonsense
--bind=a
--new-session
--new-session --
--level-prefix --nonsense
--level-prefix --chdir a --chdir b --uid x
--argv0 a --argv0 b x
--setenv =a b x
--setenv a=b c x
--unsetenv a= x
--perms 8 --dir d
--perms 10000 --dir d
--perms -1 --dir d
--perms 0o7 --dir d
--perms 7 --perms 7 --dir d
--perms 7 --bind a b x
--perms 7 --symlink a b x
--perms 7 --chmod 7 b x
--perms 7 --new-session --dir d
--perms 7 --unshare-all x
--chmod 8 x
--chmod 10000 x
--size 0 --tmpfs t
--size -1 --tmpfs t
--size +1 --tmpfs t
--size 08 --tmpfs t
--size 0x --tmpfs t
--size 1k --tmpfs t
--size 18446744073709551616 --tmpfs t
--size 9223372036854775808 --tmpfs t
--size 1 --size 1 --tmpfs t
--size 1 --dir t
--size 1 --perms 7 --dir t
--size 1 --perms 7 --bind a t
--overlay a b c
--tmp-overlay a
--ro-overlay a
--overlay-src a --ro-overlay a
--overlay-src a
--overlay-src a sh
--overlay-src a -- sh
--overlay-src a --dir b --tmp-overlay c
--args 99
--add-seccomp-fd 99
--seccomp 3 --add-seccomp-fd x
--cap-add SYS_ADMIN
--cap-drop cap_
--cap-drop 64
--cap-add 3 --cap-drop all --cap-add cap_chown
--userns-block-fd 3
--userns-block-fd 3 --unshare-all
--userns-block-fd 3 --unshare-user
--userns 3 --unshare-user
--userns 3 --unshare-user-try
--userns 3 --unshare-all
--disable-userns
--disable-userns --unshare-all
--disable-userns --unshare-user --userns-block-fd 3 --info-fd 4
--uid -1
--uid 4294967295
--gid 1x
--hostname a x
--as-pid-1 x
--unshare-pid --as-pid-1 --lock-file a x
"""


@pytest.mark.parametrize("line", [*SHORT, *FDS, *ONCE, *(line.split() for line in LINES.strip().splitlines())])
def test_the_same_words(line: list[str]) -> None:
    """Status and lines are bwrap's, of which the last is the error."""
    compare(line)


@pytest.mark.parametrize("line", [["--bind", "", "/d", "x"], ["--ro-bind", "gone/../x", "/d", "x"]])
def test_a_source_that_isnt_there(line: list[str]) -> None:
    """Both say the same of a source that can't be resolved."""
    compare(line)


def test_bytes_come_back() -> None:
    """What is no UTF-8 is said as it was given."""
    compare([os.fsdecode(b"-\xff\xfe")])
    compare(["--sync-fd", os.fsdecode(b"\xff")])


def test_too_many_words() -> None:
    """The words of the command count as well."""
    compare(["x"] * 9001)


@pytest.mark.as_root("only root can be without a user namespace")
@pytest.mark.parametrize("option", ["--uid", "--gid"])
def test_ids_of_others(option: str) -> None:
    """They need a user namespace."""
    compare([option, "1", "x"])


FILES = [
    (["--args", "FD", "x"], b"--args\0003"),
    (["--args", "FD", "x"], b"--args"),
    (["--args", "FD"], b"--new-session\0sh"),
    (["--args", "FD", "--dir", "/d"], b"--perms\x00700"),
    (["--args", "FD", "x"], b"--new-session\0" * 9000),
    (["--args", "FD", "--nonsense"], b"--chdir\0a\0--chdir\0b"),
    (["--args", "FD", "x"], b"--nonsense\xff"),
    (["--add-seccomp-fd", "FD", "x"], b"1234567"),
    (["--add-seccomp-fd", "FD", "--seccomp", "x"], b"12345678"),
]


@pytest.mark.parametrize(("line", "data"), FILES)
def test_descriptors_that_are_read(line: list[str], data: bytes) -> None:
    """Both say the same of what is wrong in a file."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        words = [str(file.fileno()) if word == "FD" else word for word in line]
        file.seek(0)
        expected = theirs(words, [file.fileno()])
        file.seek(0)
        assert ours(words, [file.fileno()]) == expected
