"""Where the dynamic loader finds the libraries of a program: ld.so(8) of glibc, and musl's. Nothing is executed.

A library has two paths: where it is on this machine, and where the loader of a root file system will look for it. They
differ if the program itself has another path in the root, and names its libraries by $ORIGIN.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._rootfs import elf as rootfs_elf
from nsbox._rootfs.elf import Elf

if TYPE_CHECKING:
    from typing import TypeAlias

    Pair: TypeAlias = tuple[str, str]  # on this machine, in the root

_CONF = "/etc/ld.so.conf"
_TRIPLETS = {
    (64, "EM_X86_64"): "x86_64-linux-gnu",
    (64, "EM_AARCH64"): "aarch64-linux-gnu",
    (32, "EM_386"): "i386-linux-gnu",
    (32, "EM_ARM"): "arm-linux-gnueabihf",
    (32, "EM_X86_64"): "x86_64-linux-gnux32",
}
_PLATFORMS = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i686", "EM_ARM": "v7l"}
_MUSL_DEFAULT = "/lib:/usr/local/lib:/usr/lib"
_MUSL_OWN = re.compile(r"lib(c|pthread|rt|m|dl|util|xnet)\.")  # for musl, these names are the loader itself
# glibc opens these by itself, to look up users or hosts, or to end a thread.
_BY_GLIBC = ("libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1")
_MOST_CONF = 1 << 20
_PARAMETER = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)\b)")


def opened(path: str) -> int:
    """Open a regular file for reading; a FIFO without a writer doesn't block it. Raises OSError, with the path."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "is no regular file", path)


@frozen
class Library(Frozen):
    """A library. host: its path on this machine. inside: its path in the root. alias: a second path that it needs."""

    host: str
    inside: str
    alias: str | None = None


@frozen
class _Loaded(Frozen):
    """A file that the loader has in memory. by: the file that needs it. origins: its $ORIGIN, here and in the root."""

    elf: Elf
    origins: Pair
    by: _Loaded | None = None


class Libraries:
    """The libraries of this machine. A file is read once."""

    def __init__(self, conf: str = _CONF) -> None:
        """Read the loader's configuration file, which may be missing."""
        self._configured = tuple(configured(conf))
        self._read: dict[str, Elf | None] = {}

    def of(self, elf: Elf, host: str, inside: str) -> tuple[list[Library], list[tuple[str, str, tuple[str, ...]]]]:
        """Return the libraries that a program or a library needs, and the missing ones.

        Of a missing one: its name, the file that needs it, and where it was looked for. host, inside: the file's own
        path, here and in the root. Raises OSError for a library that can't be read.
        """
        main = _Loaded(elf, (os.path.dirname(host), os.path.dirname(inside)))
        names, libraries, missing = set[str](), list[Library](), list[tuple[str, str, tuple[str, ...]]]()
        is_musl = False
        if elf.interpreter is not None:
            loader = self._loader(elf.interpreter)
            names |= {os.path.basename(elf.interpreter), loader.soname or ""}
            libraries.append(Library(elf.interpreter, elf.interpreter))
            is_musl = os.path.basename(elf.interpreter).startswith("ld-musl-")
        queue = [(main, host, name, False) for name in elf.needed]
        while queue:
            by, whose, name, is_optional = queue.pop(0)
            if name in names or (is_musl and _MUSL_OWN.match(name)):
                continue
            names.add(name)
            directories = tuple(dict.fromkeys(self._directories(name, by, main, is_musl)))
            library = self._first(name, directories, elf)
            if library is None:
                if not is_optional:
                    missing.append((name, whose, tuple(dict.fromkeys(here for here, _ in directories))))
                continue
            read = self._elf(library.host)
            assert read is not None
            names.add(read.soname or name)
            libraries.append(library)
            loaded = _Loaded(read, (os.path.dirname(library.host), os.path.dirname(library.inside)), by)
            queue += [(loaded, library.host, needed, False) for needed in read.needed]
            if name == "libc.so.6":
                queue += [(loaded, library.host, opened, True) for opened in _BY_GLIBC]
        return libraries, missing

    def _loader(self, path: str) -> Elf:
        if not path.startswith("/"):
            raise OSError(errno.ENOEXEC, "is the program's loader: not an absolute path", path)
        elf = self._elf(path)
        if elf is None:
            raise FileNotFoundError(errno.ENOENT, "is the program's loader: it doesn't exist here", path)
        return elf

    def _elf(self, path: str) -> Elf | None:
        """Return what a library says; None: the loader couldn't read it, and would go on."""
        if path not in self._read:
            self._read[path] = self._read_elf(path)
        return self._read[path]

    def _read_elf(self, path: str) -> Elf | None:
        try:
            fd = opened(path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        try:
            if not rootfs_elf.is_elf(os.pread(fd, 4, 0)):
                raise OSError(errno.ENOEXEC, "is needed as a library, and is no ELF file", path)
            return rootfs_elf.read(fd, path)
        finally:
            os.close(fd)

    def _first(self, name: str, directories: Iterable[Pair], program: Elf) -> Library | None:
        """Return the first library of that name that fits the program: the loader passes over those that don't."""
        at = os.path.basename(name)
        for here, there in directories:
            path = os.path.join(here, at)
            elf = self._elf(path)
            if elf is not None and elf.kind == program.kind:
                return Library(path, os.path.join(there, at), self._alias(at, there, program))
        return None

    def _alias(self, name: str, directory: str, program: Elf) -> str | None:
        """Return a second path that a library needs; None: it needs none.

        Without a cache, ld.so only looks in the directories built into it. So a library that is in another directory of
        the configuration needs a name in the first of these that exists.
        """
        defaults = _defaults(program)
        real = {os.path.realpath(path) for path in defaults}
        if directory not in self._configured or os.path.realpath(directory) in real:
            return None
        return os.path.join(next((path for path in defaults if os.path.isdir(path)), defaults[0]), name)

    def _directories(self, name: str, by: _Loaded, main: _Loaded, is_musl: bool) -> Iterator[Pair]:
        """Yield the directories in which the loader looks, in its order."""
        if "/" in name:  # a path, perhaps with $ORIGIN; a relative one would depend on the current directory
            yield from _expanded((os.path.dirname(name) or "/",), by)
            return
        # glibc uses the DT_RPATH of the file that needs the library, of the file that needed that one, and so on up to
        # the program. A file's DT_RPATH doesn't count if it has a DT_RUNPATH, which is for its own needs alone. musl
        # treats both alike.
        chain = [by]
        while (above := chain[-1].by) is not None:
            chain.append(above)
        if is_musl:
            for file in chain:
                yield from _expanded(file.elf.runpath or file.elf.rpath, file)
        elif not by.elf.runpath:
            for file in chain if main in chain else (*chain, main):
                if not file.elf.runpath:
                    yield from _expanded(file.elf.rpath, file)
        else:
            yield from _expanded(by.elf.runpath, by)
        if is_musl:
            yield from ((path, path) for path in _musl(main.elf))
        elif not by.elf.only_own_paths:
            yield from ((path, path) for path in (*self._configured, *_defaults(main.elf)))


def _defaults(elf: Elf) -> tuple[str, ...]:
    """Return the directories built into glibc's loader: Debian's, or other distributions'."""
    wide, machine = elf.kind[0], elf.machine
    names = [f"lib/{_TRIPLETS[wide, machine]}"] if (wide, machine) in _TRIPLETS else []
    names += ["lib64", "lib"] if wide == 64 else ["lib32", "lib"]
    return tuple(f"{above}/{name}" for name in names for above in ("", "/usr"))


def _musl(elf: Elf) -> list[str]:
    arch = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i386", "EM_ARM": "armhf"}.get(elf.machine, "")
    text = _text(f"/etc/ld-musl-{arch}.path") or _MUSL_DEFAULT
    return [path for path in re.split(r"[:\n]", text) if path.startswith("/")]


def _expanded(paths: Iterable[str], file: _Loaded) -> Iterator[Pair]:
    """Yield directories with $ORIGIN, $LIB and $PLATFORM replaced, except relative ones, which depend on the caller.

    $LIB was fixed when the loader was compiled: lib/x86_64-linux-gnu, lib64 or lib.
    """
    libs = [path.lstrip("/") for path in _defaults(file.elf) if not path.startswith("/usr")]
    for path in paths:
        for lib in libs if "LIB" in path else libs[:1]:
            here, there = (_replaced(path, origin, lib, file.elf) for origin in file.origins)
            if here.startswith("/"):
                yield here, there


def _replaced(path: str, origin: str, lib: str, elf: Elf) -> str:
    values = {"ORIGIN": origin, "LIB": lib, "PLATFORM": _PLATFORMS.get(elf.machine, "")}
    return _tidy(_PARAMETER.sub(lambda match: values[match[1] or match[2]], path))


def _tidy(path: str) -> str:
    return re.sub("/+", "/", path).rstrip("/") or "/"


# ---- /etc/ld.so.conf


def _text(path: str) -> str:
    try:
        fd = opened(path)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        return os.fsdecode(file.read(_MOST_CONF))


def configured(path: str) -> list[str]:
    """Return the directories that this file, and those that it includes, name for ldconfig(8), in their order."""
    directories: list[str] = []
    _configured(path, directories, set())
    return list(dict.fromkeys(directories))


def _configured(path: str, directories: list[str], seen: set[str]) -> None:
    real = os.path.realpath(path)
    if real in seen:
        return
    seen.add(real)
    for line in _text(path).splitlines():
        text = line.partition("#")[0].strip()
        word, _, rest = text.partition(" ")
        if word == "include":
            for pattern in rest.split():
                for name in sorted(glob.glob(os.path.join(os.path.dirname(path), pattern))):
                    _configured(name, directories, seen)
        elif text.startswith("/"):
            directories.append(_tidy(text.partition("=")[0].rstrip()))
