"""ELF files, and where the dynamic loader finds libraries: files made for the purpose; nothing is executed.

That a real loader finds the same is tested by tests/real/rootfs/test_rootfs.py.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsbox_testing.elves import elf

from nsbox import UnavailableError
from nsbox._rootfs import elf as rootfs_elf
from nsbox._rootfs.contents import _interpreters
from nsbox._rootfs.elf import Elf
from nsbox._rootfs.libraries import Libraries, configured, opened

pytest.importorskip("elftools")

X86 = "EM_X86_64"


def read(path: Path) -> Elf:
    fd = os.open(path, os.O_RDONLY)
    try:
        return rootfs_elf.read(fd, str(path))
    finally:
        os.close(fd)


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write a file below the test's directory; return its path."""

    def write(name: str, data: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return write


# ---- what a file says


@pytest.mark.parametrize("machine", ["EM_X86_64", "EM_AARCH64", "EM_386", "EM_RISCV"])
@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_all_that_is_said(put: Callable[..., Path], machine: str, little: bool, wide: bool) -> None:
    """Each class, byte order and machine: interpreter, needs in their order, names and paths."""
    names = {"soname": "libown.so.1", "rpath": "/a:$ORIGIN/b::", "runpath": "/c"}
    data = elf(machine, wide=wide, little=little, interpreter="/lib/ld.so", needed=["z.so", "a.so"], **names)
    assert read(put("f", data)) == Elf(
        kind=(64 if wide else 32, little, machine),
        type="ET_DYN",
        interpreter="/lib/ld.so",
        needed=("z.so", "a.so"),
        soname="libown.so.1",
        rpath=("/a", "$ORIGIN/b"),
        runpath=("/c",),
    )


def test_the_running_python_is_read() -> None:
    """A real program names an interpreter that is there, or needs nothing."""
    found = read(Path(os.path.realpath(sys.executable)))
    assert found.interpreter is None or os.path.exists(found.interpreter)
    assert found.problem_as_program(os.uname().machine) == ""


def test_a_static_program_needs_nothing(put: Callable[..., Path]) -> None:
    """Without PT_INTERP and needs there is nothing to be found."""
    path = put("static", elf(X86, kind=2))
    assert Libraries("/nowhere").of(read(path), str(path), "/bin/static") == ([], [])


@pytest.mark.parametrize(
    ("cut", "message"),
    [(5, "can't be read"), (40, "can't be read"), (100, "can't be read"), (-1, "is truncated")],
)
def test_truncated(put: Callable[..., Path], cut: int, message: str) -> None:
    """A file that ends too early is an error with its name, wherever it ends."""
    path = put("f", elf(X86, interpreter="/lib/ld.so", needed=["a.so"])[:cut])
    with pytest.raises(OSError, match=message) as caught:
        read(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (54, struct.pack("<H", 0), "program headers of 0 bytes"),
        (56, struct.pack("<H", 0xFFFF), "has 65535 program headers"),
        (64 + 56 + 8, struct.pack("<Q", 2**64 - 8), "is truncated"),
        (64 + 56 + 32, struct.pack("<Q", 2**63), "is truncated"),
        (64 + 32, struct.pack("<Q", 8), "has no table of names"),
        (4, b"\7", "can't be read"),
    ],
    ids=["headers without a size", "too many headers", "far offset", "endless section", "names nowhere", "no class"],
)
def test_nonsense(put: Callable[..., Path], offset: int, value: bytes, message: str) -> None:
    """Headers that lie are an error, not a loop."""
    data = bytearray(elf(X86, interpreter="/lib/ld.so", needed=["a.so"]))
    data[offset : offset + len(value)] = value
    with pytest.raises(OSError, match=message):
        read(put("f", bytes(data)))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(put: Callable[..., Path], data: st.DataObject) -> None:
    """Whatever is changed in a file, it is read or it is an OSError."""
    made = bytearray(elf(X86, interpreter="/lib/ld.so", needed=["a.so"], runpath="/x"))
    for at in data.draw(st.lists(st.integers(4, len(made) - 1), max_size=6)):
        made[at] = data.draw(st.integers(0, 255))
    try:
        read(put("f", bytes(made)))
    except OSError as error:
        assert error.filename


def test_programs_of_other_machines() -> None:
    """Another machine's program, and a file that is no program, are distinguished from programs that run here."""
    found = Elf(kind=(64, True, "EM_RISCV"), type="ET_EXEC")
    assert found.problem_as_program("x86_64") == "is a program for EM_RISCV, this machine is x86_64"
    assert Elf(kind=(64, True, X86), type="ET_REL").problem_as_program("x86_64").startswith("is an ELF file of type")
    assert Elf(kind=(32, True, "EM_386"), type="ET_DYN").problem_as_program("x86_64") == ""


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyelftools the error says what to install."""
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(UnavailableError, match=re.escape("pip install 'nsbox[rootfs]'")):
        rootfs_elf.check_reader()


# ---- where libraries are


def found(program: Path, conf: Path | str = "/nowhere", inside: str | None = None) -> list[str]:
    """Return the paths of what is found, in the root."""
    libraries, missing = Libraries(str(conf)).of(read(program), str(program), inside or str(program))
    return [library.inside for library in libraries] + [f"no {name}" for name, _, _ in missing]


def test_needs_of_needs(put: Callable[..., Path], tmp_path: Path) -> None:
    """Breadth first, each name once, also in a circle."""
    put("lib/a.so", elf(X86, needed=["c.so", "b.so"]))
    put("lib/b.so", elf(X86, needed=["a.so", "d.so"]))
    put("lib/c.so", elf(X86))
    program = put("bin/p", elf(X86, needed=["a.so", "b.so"], rpath=f"{tmp_path}/lib"))
    assert found(program) == [*(f"{tmp_path}/lib/{name}.so" for name in "abc"), "no d.so"]


def test_runpath_is_for_own_needs(put: Callable[..., Path], tmp_path: Path) -> None:
    """DT_RPATH is inherited by the needs of needs, DT_RUNPATH isn't; beside it DT_RPATH counts for nothing."""
    put("lib/a.so", elf(X86, needed=["b.so"]))
    put("lib/b.so", elf(X86))
    lib = f"{tmp_path}/lib"
    assert found(put("p", elf(X86, needed=["a.so"], rpath=lib))) == [f"{lib}/a.so", f"{lib}/b.so"]
    assert found(put("q", elf(X86, needed=["a.so"], runpath=lib))) == [f"{lib}/a.so", "no b.so"]
    assert found(put("r", elf(X86, needed=["a.so"], rpath=lib, runpath="/nowhere"))) == ["no a.so"]


def test_origin_and_lib(put: Callable[..., Path], tmp_path: Path) -> None:
    """$ORIGIN is where the file lies that says it, here and in the root; $LIB is one of the usual names."""
    put("lib64/a.so", elf(X86, needed=["b.so"], runpath="${ORIGIN}/deep"))
    put("lib64/deep/b.so", elf(X86))
    program = put("bin/p", elf(X86, needed=["a.so"], runpath="$ORIGIN/../$LIB"))
    assert found(program) == [f"{tmp_path}/bin/../lib64/a.so", f"{tmp_path}/bin/../lib64/deep/b.so"]
    assert found(program, inside="/opt/x/p") == ["/opt/x/../lib64/a.so", "/opt/x/../lib64/deep/b.so"]


def test_what_does_not_fit_is_passed_over(put: Callable[..., Path], tmp_path: Path) -> None:
    """Libraries of another class or machine, and missing directories, as ld.so does; what is no library is an error."""
    put("one/a.so", elf("EM_386", wide=False))
    put("two/a.so", elf("EM_AARCH64"))
    put("three/a.so", elf(X86))
    path = ":".join(f"{tmp_path}/{name}" for name in ("zero", "one", "two", "three"))
    program = put("p", elf(X86, needed=["a.so"], runpath=path))
    assert found(program) == [f"{tmp_path}/three/a.so"]
    put("zero/a.so", "/* GNU ld script */")
    with pytest.raises(OSError, match="is needed as a library") as caught:
        found(program)
    assert caught.value.filename == f"{tmp_path}/zero/a.so"


def test_a_fifo_is_no_library(put: Callable[..., Path], tmp_path: Path) -> None:
    """Nobody waits for the other end of a FIFO."""
    os.mkfifo(tmp_path / "a.so")
    with pytest.raises(OSError, match="is no regular file"):
        found(put("p", elf(X86, needed=["a.so"], runpath=str(tmp_path))))


def test_known_by_its_own_name(put: Callable[..., Path], tmp_path: Path) -> None:
    """A library that is there under one name isn't sought under its DT_SONAME again."""
    put("lib/a.so", elf(X86, soname="liba.so.1"))
    program = put("p", elf(X86, needed=["a.so", "liba.so.1"], runpath=f"{tmp_path}/lib"))
    assert found(program) == [f"{tmp_path}/lib/a.so"]


def test_needs_that_are_paths(put: Callable[..., Path], tmp_path: Path) -> None:
    """A need with a "/" is a path; one that depends on the current directory is never found."""
    path = put("lib/a.so", elf(X86))
    program = put("p", elf(X86, needed=[str(path), "$ORIGIN/lib/a.so", "lib/a.so"]))
    assert found(program) == [str(path), str(path), "no lib/a.so"]


def test_the_loader_itself(put: Callable[..., Path], tmp_path: Path) -> None:
    """PT_INTERP comes first and stands for its name; one that is missing, or relative, is an error."""
    loader = put("ld.so", elf(X86, soname="ld-linux.so.2"))
    assert found(put("p", elf(X86, interpreter=str(loader), needed=["ld-linux.so.2"]))) == [str(loader)]
    for name, message in ((f"{tmp_path}/none", "doesn't exist here"), ("ld.so", "not an absolute path")):
        with pytest.raises(OSError, match=message):
            found(put("p", elf(X86, interpreter=name)))


def test_musl(put: Callable[..., Path], tmp_path: Path) -> None:
    """By musl's loader libc is the loader itself, and each DT_RUNPATH is inherited."""
    loader = put("ld-musl-x86_64.so.1", elf(X86))
    put("lib/a.so", elf(X86, needed=["b.so", "libc.musl-x86_64.so.1"]))
    put("lib/b.so", elf(X86))
    needed = ["a.so", "libc.so", "libpthread.so.0"]
    program = put("p", elf(X86, interpreter=str(loader), needed=needed, runpath=f"{tmp_path}/lib"))
    assert found(program) == [str(loader), f"{tmp_path}/lib/a.so", f"{tmp_path}/lib/b.so"]


def test_configuration(put: Callable[..., Path], tmp_path: Path) -> None:
    """/etc/ld.so.conf: one directory a line, comments, includes by pattern, also in a circle."""
    put("d/a.conf", "/a\n\tinclude ../conf\n")
    put("d/b.conf", "/b=libc6  # old\n/c/\nhwcap 1 x\nrelative\n")
    conf = put("conf", "# first\ninclude d/*.conf\n/a\n/z")
    assert configured(str(conf)) == ["/a", "/b", "/c", "/z"]
    assert configured(str(tmp_path / "none")) == []


def test_configured_directories(put: Callable[..., Path], tmp_path: Path) -> None:
    """What lies there gets a second name where a loader without a cache looks; DF_1_NODEFLIB keeps away from it."""
    put("lib/a.so", elf(X86))
    conf = put("conf", f"{tmp_path}/lib\n")
    program = read(put("p", elf(X86, needed=["a.so"])))
    [library], _ = Libraries(str(conf)).of(program, "/bin/p", "/bin/p")
    assert library.inside == f"{tmp_path}/lib/a.so"
    assert library.alias is not None and re.fullmatch(r"(/usr)?/lib(64|/x86_64-linux-gnu)?/a\.so", library.alias)
    alone = put("q", elf(X86, needed=["a.so"], flags_1=0x800))
    assert found(alone, conf) == ["no a.so"]


def test_what_is_missing_says_where_it_was_sought(put: Callable[..., Path], tmp_path: Path) -> None:
    """The name, who needs it, and the directories."""
    put("lib/a.so", elf(X86, needed=["none.so"]))
    program = put("p", elf(X86, needed=["a.so"], rpath=f"{tmp_path}/lib"))
    _, [(name, whose, sought)] = Libraries("/nowhere").of(read(program), str(program), "/bin/p")
    assert (name, whose) == ("none.so", f"{tmp_path}/lib/a.so")
    assert sought[0] == f"{tmp_path}/lib" and "/usr/lib" in sought


def test_opened(tmp_path: Path) -> None:
    """Only regular files are opened, and without waiting."""
    os.mkfifo(tmp_path / "fifo")
    for path, error in (
        (tmp_path, IsADirectoryError),
        (tmp_path / "fifo", OSError),
        (tmp_path / "x", FileNotFoundError),
    ):
        with pytest.raises(error) as caught:
            opened(str(path))
        assert caught.value.filename == str(path)


# ---- scripts


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("#!/bin/sh", ["/bin/sh"]),
        ("#! /bin/sh -e ", ["/bin/sh"]),
        ("#!/usr/bin/env python3", ["/usr/bin/env", "python3"]),
        ("#!/usr/bin/env -S python3 -u", ["/usr/bin/env", "python3"]),
        ("#!/usr/bin/env -Spython3 -u", ["/usr/bin/env", "python3"]),
        ("#!/usr/bin/env -i A=b -u C node", ["/usr/bin/env", "node"]),
        ("#!/usr/bin/env", ["/usr/bin/env"]),
    ],
)
def test_interpreters(line: str, names: list[str]) -> None:
    """A script needs its interpreter, and what env(1) looks up for it."""
    assert _interpreters(line.encode() + b"\nrest", "/script") == names


@pytest.mark.parametrize("line", ["#!", "#!python3", "#!\n/bin/sh"])
def test_no_interpreter(line: str) -> None:
    """A first line without an absolute path is an error that names the script."""
    with pytest.raises(OSError, match="names no interpreter") as caught:
        _interpreters(line.encode(), "/script")
    assert caught.value.filename == "/script"
