"""ELF files: what a program or a library says about itself, as far as the dynamic loader acts on it.

Section headers are never looked at: neither the kernel nor the loader uses them, and they may lie. Whatever the bytes
are, reading ends: with an answer, or with an OSError that names the file. libraries.py says where the libraries are.
"""

from __future__ import annotations

import errno
import os

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from typing import Any, BinaryIO

_MAGIC = b"\x7fELF"
_MOST_HEADERS = 65536  # bytes of program headers, as load_elf_phdrs() of the kernel has it
_MOST_ENTRIES = 65536
_LONGEST = 4096  # bytes of a name, with its NUL
_NODEFLIB = 0x800  # DF_1_NODEFLIB
_TEXTS = {"DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
_RUNNABLE = {  # by the name in uname(2): the machines whose programs such a kernel executes
    "x86_64": ("EM_X86_64", "EM_386"),
    "aarch64": ("EM_AARCH64", "EM_ARM"),
}


@frozen
class Elf(Frozen):
    """What an ELF file says. kind: its class, byte order and machine, which a program's libraries must share."""

    kind: tuple[int, bool, str]
    type: str
    interpreter: str | None = None
    needed: tuple[str, ...] = ()
    soname: str | None = None
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    only_own_paths: bool = False

    @property
    def machine(self) -> str:
        """The machine, by its name in elf(5)."""
        return self.kind[2]

    def problem_as_program(self, machine: str) -> str:
        """Return why a machine, named as in uname(2), doesn't execute this; "" if it does."""
        if self.type not in ("ET_EXEC", "ET_DYN"):
            return f"is an ELF file of type {self.type}, no program"
        if self.machine not in _RUNNABLE.get(machine, (self.machine,)):
            return f"is a program for {self.machine}, this machine is {machine}"
        return ""


def check_reader() -> None:
    """Raise UnavailableError if pyelftools, which reads ELF files, isn't installed."""
    try:
        import elftools.elf.elffile  # noqa: F401
    except ImportError:
        raise UnavailableError(
            Reason("root file systems need the library pyelftools", "pip install 'nsbox[rootfs]'")
        ) from None


def is_elf(head: bytes) -> bool:
    """Return whether a file that begins like this is meant to be an ELF file."""
    return head.startswith(_MAGIC)


def read(fd: int, path: str) -> Elf:
    """Return what an open ELF file says. path: its name, for errors. Raises OSError (ENOEXEC) if it makes no sense."""
    from elftools.elf.elffile import ELFFile  # costs 30 ms

    size = os.fstat(fd).st_size
    with open(fd, "rb", closefd=False) as stream:
        try:
            return _Reader(ELFFile(stream), stream, size).read()
        except OSError as error:  # EINVAL: an offset that no file can have
            number = errno.ENOEXEC if error.errno == errno.EINVAL else error.errno
            raise OSError(number, f"is an ELF file that can't be read ({error.strerror})", path) from None
        except _Nonsense as problem:
            raise OSError(errno.ENOEXEC, f"is an ELF file that {problem}", path) from None
        except Exception as error:  # whatever a parser makes of bytes that any user may have written
            raise OSError(errno.ENOEXEC, f"is an ELF file that can't be read ({error})", path) from None


class _Nonsense(Exception):
    """What is wrong with the file."""


class _Reader:
    """The way from headers to names, through the segments."""

    def __init__(self, elf: Any, stream: BinaryIO, size: int) -> None:
        self._elf, self._stream, self._size = elf, stream, size
        self._loaded: list[tuple[int, int, int]] = []  # address, offset, size

    def read(self) -> Elf:
        header = self._elf.header
        interpreter, dynamic = None, None
        for segment in self._segments():
            start, length = segment["p_offset"], segment["p_filesz"]
            if segment["p_type"] not in ("PT_LOAD", "PT_INTERP", "PT_DYNAMIC"):
                continue
            if start + length > self._size:
                raise _Nonsense(f"is truncated: it has {self._size} bytes, a segment ends at {start + length}")
            if segment["p_type"] == "PT_LOAD":
                self._loaded.append((segment["p_vaddr"], start, length))
            elif segment["p_type"] == "PT_INTERP":
                interpreter = self._text(start)
            else:
                dynamic = (start, length)
        fields = self._dynamic(*dynamic) if dynamic is not None else {}
        return Elf(
            kind=(self._elf.elfclass, self._elf.little_endian, str(header["e_machine"])),
            type=str(header["e_type"]),
            interpreter=interpreter,
            **fields,
        )

    def _parse(self, struct: Any, offset: int) -> Any:
        from elftools.common.utils import struct_parse

        return struct_parse(struct, self._stream, offset)

    def _segments(self) -> list[Any]:
        header, struct = self._elf.header, self._elf.structs.Elf_Phdr
        count, width = header["e_phnum"], struct.sizeof()
        if count and header["e_phentsize"] != width:
            raise _Nonsense(f"has program headers of {header['e_phentsize']} bytes instead of {width}")
        if count * width > _MOST_HEADERS:
            raise _Nonsense(f"has {count} program headers")
        return [self._parse(struct, header["e_phoff"] + i * width) for i in range(count)]

    def _dynamic(self, start: int, length: int) -> dict[str, Any]:
        struct = self._elf.structs.Elf_Dyn
        count = length // struct.sizeof()
        if count > _MOST_ENTRIES:
            raise _Nonsense(f"has {count} dynamic entries")
        entries: list[tuple[str, int]] = []
        for i in range(count):
            entry = self._parse(struct, start + i * struct.sizeof())
            if entry["d_tag"] == "DT_NULL":
                break
            entries.append((str(entry["d_tag"]), entry["d_val"]))
        numbers = dict(entries)
        texts: dict[str, list[str]] = {}
        for tag, value in entries:
            if tag in _TEXTS:
                texts.setdefault(_TEXTS[tag], []).append(self._text(self._offset(numbers.get("DT_STRTAB")) + value))
        return {
            "needed": tuple(texts.get("needed", ())),
            "soname": texts.get("soname", [None])[-1],
            "rpath": _paths(texts.get("rpath", [])),
            "runpath": _paths(texts.get("runpath", [])),
            "only_own_paths": bool(numbers.get("DT_FLAGS_1", 0) & _NODEFLIB),
        }

    def _offset(self, address: int | None) -> int:
        for first, offset, length in self._loaded:
            if address is not None and first <= address < first + length:
                return address - first + offset
        raise _Nonsense("has no table of names")

    def _text(self, offset: int) -> str:
        self._stream.seek(offset)
        text, end, _ = self._stream.read(_LONGEST).partition(b"\0")
        if not end:
            raise _Nonsense("has a name without an end")
        return os.fsdecode(text)


def _paths(texts: list[str]) -> tuple[str, ...]:
    return tuple(path for path in texts[-1].split(":") if path) if texts else ()
