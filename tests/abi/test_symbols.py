"""What the C core is made of: nothing between clone and exec is from a C library, and pid 1 has nothing but itself."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs

from nsbox._core import linux

pytestmark = pytest.mark.timeout(300)  # builds the core up to three times

LINKERS_OWN = {"_GLOBAL_OFFSET_TABLE_"}  # made by the linker, not a call
ARCHES = {62: "x86_64", 183: "aarch64"}


def objects(build: Path) -> list[Path]:
    return sorted((build / "libnsbox_core.a.p").glob("*.o"))


def test_no_libc_between_clone_and_exec(each_build: Path, elf: Any) -> None:
    """The core's objects need no function of a C library, whichever compiler made them."""
    defined: set[str] = set()
    needed: dict[str, set[str]] = {}
    for path in objects(each_build):
        symbols = elf(path).symbols(elf.SYMTAB)
        defined |= {symbol.name for symbol in symbols if symbol.defined and symbol.binding}
        needed[path.name] = {symbol.name for symbol in symbols if not symbol.defined and symbol.name}
    missing = {name: names - defined - LINKERS_OWN for name, names in needed.items()}
    assert {name: names for name, names in missing.items() if names} == {}


def listed(source: Path) -> set[str]:
    """Return the C files of the core, as meson lists them: below csrc."""
    body = re.search(r"^core_sources = files\((.*?)^\)", (source / "csrc/meson.build").read_text(), re.M | re.S)
    assert body is not None
    return set(re.findall(r"'([^']+\.c)'", body[1]))


def test_every_source_was_looked_at(core_build: Path, source: Path) -> None:
    """There is an object for each C file of these rooms, and none but those and what the build generates."""
    rooms = ("bwrap/line", "linux")
    files = {str(path.relative_to(source / "csrc")) for room in rooms for path in (source / "csrc" / room).rglob("*.c")}
    assert files == listed(source)
    assert len(files) >= 30
    names = {path.name for path in objects(core_build)}
    generated = {
        f"meson-generated_.._{name}.c.o"
        for name in ("init_image", "session_image", "branch_image", "options", "syscall_table")
    }
    assert names == {f"{name.replace('/', '_')}.o" for name in files} | generated


@pytest.fixture(params=["nsbox-init", "nsbox-session"])
def image(request: pytest.FixtureRequest) -> str:
    """Each program that becomes a pid 1."""
    return str(request.param)


@pytest.fixture(params=["nsbox-init", "nsbox-session", "nsbox-bwrap"])
def program(request: pytest.FixtureRequest) -> str:
    """Each freestanding program."""
    return str(request.param)


def test_init_is_static(each_build: Path, program: str, elf: Any) -> None:
    """Pid 1 of a sandbox, and bwrap, are each one static program: no interpreter, no dynamic section, no symbol left open."""
    init = elf(each_build / program)
    assert init.type == elf.EXEC
    kinds = [segment.kind for segment in init.segments()]
    assert elf.LOAD in kinds
    assert elf.INTERP not in kinds
    assert elf.DYNAMIC not in kinds
    assert not [symbol for symbol in init.symbols(elf.SYMTAB) if not symbol.defined]
    assert not init.symbols(elf.DYNSYM)


def test_init_object_needs_nothing(each_build: Path, elf: Any) -> None:
    """The init's one object has no symbol open before it is linked either."""
    symbols = elf(each_build / "nsbox-init.p/init_init.c.o").symbols(elf.SYMTAB)
    assert {symbol.name for symbol in symbols if not symbol.defined and symbol.name} == set()
    assert "nsbox_init_main" in {symbol.name for symbol in symbols}


PAGES = {62: 4096, 183: 65536}  # the largest that a kernel for the processor may have


def test_pages(each_build: Path, program: str, elf: Any) -> None:
    """No page has parts of two segments: the kernel would give it the rights of the last, and code there couldn't be run."""
    path = each_build / program
    page = PAGES[int.from_bytes(path.read_bytes()[18:20], "little")]
    seen: set[int] = set()
    for segment in elf(path).segments():
        if segment.kind == elf.LOAD:
            end = segment.address + segment.memory_size
            pages = {*range(segment.address // page, -(-end // page))}
            assert pages and not pages & seen
            seen |= pages
    assert seen


def test_init_memory(each_build: Path, program: str, elf: Any) -> None:
    """No memory of the program is writable and executable, its stack isn't executable, and it starts in its code."""
    init = elf(each_build / program)
    segments = init.segments()
    assert not [segment for segment in segments if segment.flags & 3 == 3]
    assert [segment.flags for segment in segments if segment.kind == elf.STACK] == [6]
    code = [s for s in segments if s.kind == elf.LOAD and s.address <= init.entry < s.address + s.file_size]
    assert [segment.flags for segment in code] == [5]


def test_init_is_small(each_build: Path, image: str) -> None:
    """The init costs each spawn a copy into a memfd: it stays below 8 kB."""
    assert 0 < (each_build / image).stat().st_size < 8192


def test_embedded_init(elf: Any, tmp_path: Path) -> None:
    """The image in the installed extension is such an init, for this machine."""
    image = linux.init_image()
    (tmp_path / "init").write_bytes(image)
    init = elf(tmp_path / "init")
    assert init.type == elf.EXEC
    assert len(image) < 8192
    assert ARCHES[int.from_bytes(image[18:20], "little")] == platform.machine()
    assert not [segment for segment in init.segments() if segment.kind in (elf.INTERP, elf.DYNAMIC)]


def test_extension_exports_only_itself(elf: Any) -> None:
    """The extension gives the process no name but its own entry points: it can't stand in for a function of libc."""
    from nsbox import _nsbox  # type: ignore[attr-defined]

    symbols = elf(Path(_nsbox.__file__)).symbols(elf.DYNSYM)
    exported = {symbol.name for symbol in symbols if symbol.defined and symbol.binding}
    assert exported - {"_init", "_fini"} <= {"PyInit__nsbox", "_cffi_pypyinit__nsbox"}
    assert "PyInit__nsbox" in exported


NEEDED, TEXTREL = 1, 22  # of a dynamic section, elf(5)
SHOWN = {"nsbox_branch_begin", "nsbox_branch_end", "nsbox_branch_enter", "nsbox_branch_fork", "nsbox_branch_look"}


def check_branch_library(elf: Any, path: Path) -> None:
    """Check that any interpreter can load it: it needs no library and no symbol, and changes no code."""
    library = elf(path)
    assert library.type == elf.DYN
    symbols = [symbol for symbol in library.symbols(elf.DYNSYM) if symbol.name]
    assert {symbol.name for symbol in symbols if symbol.defined} - {"_init", "_fini"} == SHOWN
    assert [symbol for symbol in symbols if not symbol.defined] == []
    segments = library.segments()
    assert elf.INTERP not in {segment.kind for segment in segments}
    assert not [segment for segment in segments if segment.kind == elf.LOAD and segment.flags & 3 == 3]
    assert [segment.flags for segment in segments if segment.kind == elf.STACK] == [6]
    tags = [tag for tag, _ in library.dynamic()]
    assert len(tags) > 5
    assert not {NEEDED, TEXTREL} & set(tags)
    assert set(library.relocations()) <= {8, 1027}  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE


def test_branch_library(each_build: Path, elf: Any) -> None:
    """What makes branches needs nothing of the interpreter that loads it, whichever compiler made it."""
    check_branch_library(elf, each_build / "libnsbox-branch.so")


def test_embedded_branch_library(elf: Any, tmp_path: Path) -> None:
    """The library in the installed extension is such a one, for this machine."""
    (tmp_path / "library").write_bytes(linux.branch_library())
    check_branch_library(elf, tmp_path / "library")
    assert ARCHES[int.from_bytes(linux.branch_library()[18:20], "little")] == platform.machine()


LOADS = """
#include <dlfcn.h>
#include <stdio.h>
#include <sys/prctl.h>
int main(int n, char **args)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    void *library = dlopen(args[n - 1], RTLD_NOW);
    int (*fork)(void) = library ? (int (*)(void))dlsym(library, "nsbox_branch_fork") : 0;
    if (!fork) {
        puts(dlerror());
        return 1;
    }
    return fork();
}
"""


def test_branch_library_with_another_c_library(tmp_path: Path) -> None:
    """A program whose C library is musl, as Alpine's CPython, loads it and calls it."""
    needs.require("musl-gcc")
    (tmp_path / "loads.c").write_text(LOADS)
    (tmp_path / "library.so").write_bytes(linux.branch_library())
    subprocess.run(["musl-gcc", "-o", "loads", "loads.c"], cwd=tmp_path, check=True)
    done = subprocess.run(["./loads", "./library.so"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
