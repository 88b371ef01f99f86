"""Where the source is, a build of the C core, and a reader of ELF files: what the tests of the boundary look at."""

from __future__ import annotations

import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from nsbox_testing import needs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def source() -> Path:
    """Return the root of the source tree."""
    assert (ROOT / "csrc/abi.h").is_file()
    return ROOT


def build(folder: Path, *options: str, **env: str) -> Path:
    """Build the core alone with meson, and return the folder of the build that has csrc's files."""
    meson, ninja = needs.builder()
    setup = [meson, "setup", str(folder), str(ROOT), "-Dcore_only=true", "-Dbuildtype=release", *options]
    for command in (setup, [meson, "compile", "-C", str(folder)]):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"NINJA": ninja} | env
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "csrc"


@pytest.fixture(scope="session")
def core_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the csrc folder of a release build of the core: NSBOX_CORE_BUILD, as .ci/run exports it, or a new one."""
    given = os.environ.get("NSBOX_CORE_BUILD")
    return Path(given) / "csrc" if given else build(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="session")
def other_builds() -> dict[str, Path]:
    """Return the folders of what was built, by compiler: a fixture with parameters is made once for each change of them."""
    return {}


@pytest.fixture(params=["native", "clang", "aarch64"])
def each_build(
    request: pytest.FixtureRequest, other_builds: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the core as each compiler makes it that is there: what they make calls of differs."""
    kind = request.param
    if kind == "native":
        return request.getfixturevalue("core_build")
    needs.require({"clang": "clang", "aarch64": "aarch64-linux-gnu-gcc"}[kind])
    given = os.environ.get("NSBOX_AARCH64_BUILD") if kind == "aarch64" else None  # as .ci/run exports it
    if given:
        return Path(given) / "csrc"
    if kind not in other_builds:
        cross = ["--cross-file", str(ROOT / "csrc/cross/aarch64-linux-gnu.ini")] if kind == "aarch64" else []
        other_builds[kind] = build(
            tmp_path_factory.mktemp(kind), *cross, **({"CC": "clang"} if kind == "clang" else {})
        )
    return other_builds[kind]


@dataclass(frozen=True)
class Symbol:
    """One row of an ELF symbol table."""

    name: str
    defined: bool
    binding: int  # 0: local, 1: global, 2: weak


@dataclass(frozen=True)
class Segment:
    """One program header."""

    kind: int
    flags: int  # 1: executable, 2: writable, 4: readable
    offset: int
    address: int
    file_size: int
    memory_size: int


class Elf:
    """A 64-bit little-endian ELF file, as far as these tests look."""

    EXEC, DYN, REL = 2, 3, 1
    LOAD, DYNAMIC, INTERP, STACK = 1, 2, 3, 0x6474E551
    SYMTAB, RELA, DYNSYM = 2, 4, 11

    def __init__(self, path: Path) -> None:
        self.bytes = path.read_bytes()
        assert self.bytes[:6] == b"\x7fELF\x02\x01", path
        header = struct.unpack_from("<HHIQQQIHHHHHH", self.bytes, 16)
        self.type, self.entry = header[0], header[3]
        self._programs = header[4], header[8], header[9]
        self._sections = header[5], header[10], header[11]

    def segments(self) -> list[Segment]:
        """Return the program headers."""
        start, size, count = self._programs
        found = []
        for i in range(count):
            kind, flags, offset, address, _, file_size, memory_size, _ = struct.unpack_from(
                "<IIQQQQQQ", self.bytes, start + i * size
            )
            found.append(Segment(kind, flags, offset, address, file_size, memory_size))
        return found

    def dynamic(self) -> list[tuple[int, int]]:
        """Return tag and value of each entry of the dynamic section."""
        found = []
        for segment in self.segments():
            if segment.kind == self.DYNAMIC:
                for at in range(segment.offset, segment.offset + segment.file_size, 16):
                    found.append(struct.unpack_from("<qQ", self.bytes, at))
        return found

    def relocations(self) -> list[int]:
        """Return the type of each relocation with an addend."""
        start, size, count = self._sections
        found = []
        for i in range(count):
            _, kind, _, _, offset, length = struct.unpack_from("<IIQQQQ", self.bytes, start + i * size)
            if kind == self.RELA:
                found += [struct.unpack_from("<QIIq", self.bytes, at)[1] for at in range(offset, offset + length, 24)]
        return found

    def symbols(self, table: int) -> list[Symbol]:
        """Return the rows of a symbol table, SYMTAB or DYNSYM; empty where there is none."""
        start, size, count = self._sections
        sections = [struct.unpack_from("<IIQQQQIIQQ", self.bytes, start + i * size) for i in range(count)]
        found = []
        for _, kind, _, _, offset, length, link, _, _, _ in sections:
            if kind != table:
                continue
            names = sections[link][4]
            for at in range(offset + 24, offset + length, 24):
                name, info, _, section = struct.unpack_from("<IBBH", self.bytes, at)
                end = self.bytes.index(b"\0", names + name)
                found.append(Symbol(self.bytes[names + name : end].decode(), section != 0, info >> 4))
        return found


@pytest.fixture(scope="session")
def elf() -> type[Elf]:
    """Return the reader of ELF files."""
    return Elf
