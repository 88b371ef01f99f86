"""What a root file system consists of, before anything is written: each path in it, and where it comes from.

Paths are those of this machine, with the links on the way: if /bin leads to usr/bin and sh to dash, they do in the root
as well. Nothing is copied from behind a link unless the root gets the link too, and nothing is put behind one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._files.files import Tree, join
from nsbox._paths.resolution import Walk
from nsbox._rootfs import elf as rootfs_elf
from nsbox._rootfs.libraries import Libraries, Library, opened
from nsbox._rootfs.policy import MANIFEST, MOUNT_POINTS, PATH

if TYPE_CHECKING:
    from typing import TypeAlias

_DIRECTORIES = ("/etc", "/root", "/usr", "/var")
# Links of a machine with merged directories. The root gets them before anything is put below them.
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr/bin", "usr/sbin", "usr/lib32", "usr/lib64")
_NOT_FILES = ("/proc", "/sys", "/dev")
_SHEBANG = 256  # BINPRM_BUF_SIZE
_ENV_TAKES_ONE = ("-u", "--unset", "-C", "--chdir")

_TEXTS = {
    "/etc/passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        "sandbox:x:1000:1000:sandbox:/workspace:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/bin/false\n"
    ),
    "/etc/group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "/etc/resolv.conf": "# Without a network there is no name server; with the host's, its file is mounted here.\n",
}


@frozen
class Dir(Frozen):
    """A directory of the root."""


@frozen
class Link(Frozen):
    """A symbolic link."""

    target: str


@frozen
class Text(Frozen):
    """A file with these contents."""

    data: str


@frozen
class Copy(Frozen):
    """A copy of a file of this machine. tree: the directory to which path is relative; None: path is absolute."""

    path: str
    tree: str | None
    size: int
    mtime_ns: int
    identity: tuple[int, int]
    is_program: bool
    is_linked: bool

    @property
    def source(self) -> str:
        """The absolute path on this machine."""
        return self.path if self.tree is None else f"{self.tree}/{self.path}"


Entry: TypeAlias = Dir | Link | Text | Copy


def copy_of(path: str, status: os.stat_result, tree: str | None = None) -> Copy:
    """Return the entry for a file of this status."""
    identity, is_program = (status.st_dev, status.st_ino), bool(status.st_mode & 0o111)
    return Copy(path, tree, status.st_size, status.st_mtime_ns, identity, is_program, status.st_nlink > 1)


class Contents:
    """The entries of a root, by their absolute paths in it. Every method raises PolicyError and OSError.

    skipped: what a tree has that isn't copied: sockets, FIFOs, device nodes.
    missing: libraries that files of trees need and this machine lacks, by the file's path in the root.
    """

    def __init__(self) -> None:
        rootfs_elf.check_reader()
        self.entries: dict[str, Entry] = {}
        self.skipped: list[str] = []
        self.missing: dict[str, list[str]] = {}
        self._libraries = Libraries()
        self._machine = os.uname().machine
        self._done: set[tuple[str, str]] = set()
        self._aliases: list[tuple[str, str]] = []
        self._field = "files"  # the argument for which something is being added, for errors
        for name in _MERGED:
            if os.path.islink(f"/{name}") and name.split("/")[0] not in self._links():
                self._put(f"/{name}", Link(os.readlink(f"/{name}")))

    def _links(self) -> set[str]:
        return {path.lstrip("/") for path, entry in self.entries.items() if isinstance(entry, Link)}

    # ---- what there is

    def add_programs(self, wished: Iterable[tuple[str | None, str]]) -> None:
        """Add programs: the path in the root (None: the same as here), and the path or the name here."""
        self._field = "programs"
        todo = [(inside, self._program(name)) for inside, name in wished]
        while todo:
            inside, host = todo.pop()
            real, place = self._add_file(inside, host)
            if (real, place) in self._done:
                continue
            self._done.add((real, place))
            todo += [(None, name) for name in self._needs_of_program(real, place)]

    def add_files(self, wished: Iterable[tuple[str | None, str]]) -> None:
        """Add files and directories: the path in the root (None: the same as here), and the path here."""
        self._field = "files"
        for inside, host in wished:
            if os.path.isdir(host):
                self._add_tree(inside, host)
            else:
                real, place = self._add_file(inside, host)
                self._add_needs_of_file(real, place, None)

    def finish(self, mount_points: Iterable[str]) -> None:
        """Add policy()'s mount points, these directories, and what the root still lacks of its own texts and links."""
        self._field = "mount_points"
        for path in (*_DIRECTORIES, *MOUNT_POINTS, *mount_points):
            place = self._resolved(path)
            if place != path:
                raise PolicyError(self._field, f"{path} lies behind a link, at {place}")
            self._put(path, Dir())
        for path, data in _TEXTS.items():
            self.entries.setdefault(path, Text(data))
        for alias, target in (*self._aliases, ("/var/tmp", "/tmp"), ("/var/run", "/run")):
            place = self._resolved(alias)
            if place not in self.entries and place not in MOUNT_POINTS:
                self._put(place, Link(target))

    # ---- programs

    def _program(self, name: str) -> str:
        """Return the path of a program. A name without "/" is looked up."""
        if "/" in name:
            return os.path.abspath(name)
        paths = [os.path.join(directory, name) for directory in PATH.split(":")]
        files = [path for path in paths if os.path.isfile(path)]
        for path in files:
            if os.access(path, os.X_OK):
                return path
        if files:
            raise PermissionError(errno.EACCES, "can't be executed", files[0])
        raise FileNotFoundError(errno.ENOENT, f"no such program in {PATH}", name)

    def _needs_of_program(self, real: str, place: str) -> list[str]:
        """Add the libraries of a program; return the programs that it needs if it is a script."""
        fd = opened(real)
        try:
            head = os.pread(fd, _SHEBANG, 0)
            if head.startswith(b"#!"):
                return [self._interpreter(name, real) for name in _interpreters(head, real)]
            if not rootfs_elf.is_elf(head):
                raise OSError(
                    errno.ENOEXEC, "is no program: neither an ELF file nor a script that begins with #!", real
                )
            elf = rootfs_elf.read(fd, real)
        finally:
            os.close(fd)
        problem = elf.problem_as_program(self._machine)
        if problem:
            raise OSError(errno.ENOEXEC, problem, real)
        found, missing = self._libraries.of(elf, real, place)
        for name, whose, sought in missing:
            raise FileNotFoundError(errno.ENOENT, f"no such library in {':'.join(sought)}; {whose} needs it", name)
        self._add_libraries(found)
        return []

    def _interpreter(self, name: str, script: str) -> str:
        try:
            path = self._program(name)
            os.stat(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno, f"{error.strerror}; {script} needs it by its first line", name
            ) from None
        return path

    def _add_libraries(self, found: Iterable[Library]) -> None:
        for library in found:
            same = library.host == library.inside
            _, place = self._add_file(None if same else library.inside, library.host)
            if library.alias is not None:
                self._aliases.append((library.alias, place))

    def _add_needs_of_file(self, real: str, place: str, fd: int | None) -> None:
        """Add the libraries of a file that a program may load. A file for another machine needs none."""
        opened_fd = opened(real) if fd is None else fd
        try:
            if not rootfs_elf.is_elf(os.pread(opened_fd, 4, 0)):
                return
            try:
                elf = rootfs_elf.read(opened_fd, real)
                if elf.problem_as_program(self._machine):
                    return
                found, missing = self._libraries.of(elf, real, place)
            except OSError as error:  # it is copied like any other file: it can't be loaded on this machine either
                self.missing[place] = [f"{error.filename} {error.strerror}"]
                return
        finally:
            if fd is None:
                os.close(opened_fd)
        if missing:
            self.missing[place] = [name for name, _, _ in missing]
        self._add_libraries(found)

    # ---- files

    def _add_file(self, inside: str | None, host: str) -> tuple[str, str]:
        """Add one file; return its real paths, here and in the root."""
        if inside is None:
            real = place = self._follow(host)
        else:
            real, place = os.path.realpath(host, strict=True), self._resolved(inside)
        _check_source(real)
        fd = opened(real)  # raises for what is no file, or can't be read
        try:
            self._put(place, copy_of(real, os.fstat(fd)))
        finally:
            os.close(fd)
        return real, place

    def _add_tree(self, inside: str | None, host: str) -> None:
        real = self._follow(host) if inside is None else os.path.realpath(host, strict=True)
        top = real if inside is None else self._resolved(inside)
        if top == "/":
            raise PolicyError("files", f"{host} can't be the whole root: name the directories that are needed")
        _check_source(real)
        with _naming(real), Tree(real) as tree, tree.walking():
            todo = [""]
            while todo:
                path = todo.pop()
                self._put(join(top, path) if path else top, Dir())
                for name, status in tree.entries(path):
                    at = join(path, name)
                    place = f"{top}/{at}"
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(at)
                    elif stat.S_ISLNK(status.st_mode):
                        self._put(place, Link(tree.link(at)))
                    elif stat.S_ISREG(status.st_mode):
                        self._put(place, copy_of(at, status, real))
                        with tree.file(at) as fd:
                            self._add_needs_of_file(f"{real}/{at}", place, fd)
                    else:
                        self.skipped.append(place)

    # ---- paths

    def _put(self, path: str, entry: Entry) -> None:
        for covered in MOUNT_POINTS:
            if is_below(path, covered) and not (path == covered and isinstance(entry, Dir)):
                raise PolicyError(
                    self._field,
                    f"{path} would be below {covered}, on which something is mounted; a mapping puts it elsewhere",
                )
        if path == f"/{MANIFEST}":
            raise PolicyError(self._field, f"{path} is the root's own")
        have = self.entries.get(path)
        if have is None:
            parent = os.path.dirname(path)
            if parent != "/" and not isinstance(self.entries.get(parent), Dir):
                self._put(parent, Dir())
            self.entries[path] = entry
        elif not _is_same(have, entry):
            raise PolicyError(
                self._field, f"{path} would be two things: {_description(have)}, and {_description(entry)}"
            )

    def _follow(self, path: str) -> str:
        """Add the links on the way to a path of this machine, and return the real path."""

        def link_here(at: str) -> str | None:
            try:
                return os.readlink(at)
            except OSError as error:
                if error.errno != errno.EINVAL:  # it is no link
                    raise OSError(error.errno, error.strerror, path) from None
                return None

        walk = Walk(path, link_here)
        for at, target in walk:
            if target is not None:
                _check_source(at)
                self._put(at, Link(target))
        return walk.at

    def _resolved(self, path: str) -> str:
        """Return where a path of the root leads, by the links that the root has so far."""

        def link_inside(at: str) -> str | None:
            entry = self.entries.get(at)
            return entry.target if isinstance(entry, Link) else None

        walk = Walk(path, link_inside)
        try:
            for _ in walk:
                pass
        except OSError as error:
            raise PolicyError(self._field, f"{path}: {error.strerror}") from None
        return walk.at


@contextlib.contextmanager
def _naming(tree: str) -> Iterator[None]:
    """Add the tree to errors: names in it are relative, and don't show it."""
    try:
        yield
    except OSError as error:
        name = error.filename
        if isinstance(name, str) and not name.startswith("/"):
            raise OSError(error.errno, f"{error.strerror} (in {tree})", name) from None
        raise


def _check_source(path: str) -> None:
    for top in _NOT_FILES:
        if is_below(path, top):
            raise PolicyError("files", f"{path}: the contents of {top} aren't files, and can't be copied")


def _is_same(have: Entry, entry: Entry) -> bool:
    if isinstance(have, Copy) and isinstance(entry, Copy):
        return have.source == entry.source or have.identity == entry.identity
    return have == entry


def _description(entry: Entry) -> str:
    match entry:
        case Dir():
            return "a directory"
        case Link(target=target):
            return f"a link to {target}"
        case Text():
            return "a text of the root's own"
        case _:
            return entry.source


def _interpreters(head: bytes, script: str) -> list[str]:
    """Return the programs that a script's first line names: the interpreter, and the one that env(1) looks up."""
    words = os.fsdecode(head[2:].partition(b"\n")[0]).split()
    if not words or not words[0].startswith("/"):
        raise OSError(errno.ENOEXEC, "is a script whose first line names no interpreter by an absolute path", script)
    if os.path.basename(words[0]) != "env":
        return words[:1]
    rest = [word.removeprefix("-S") for word in words[1:]]
    while rest and (not rest[0] or rest[0].startswith("-") or "=" in rest[0]):
        del rest[: 2 if rest[0] in _ENV_TAKES_ONE else 1]
    return [words[0], *rest[:1]]
