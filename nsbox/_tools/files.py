"""Files that a policy's commands can reach, which this process reads and writes without being led elsewhere.

A command may change names and links at any moment, even between a check and an open. So no name is first checked and
then opened. openat2(2) walks from the directory that the policy names (Linux 5.6), and refuses to leave it. The checks
look at what it has opened.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fnmatch
import io
import os
import stat
from collections.abc import Iterator

from nsbox._base.checks import check_size
from nsbox._base.errors import AccessError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen
from nsbox._base.paths import is_below
from nsbox._core import abi
from nsbox._files.files import open_beneath
from nsbox._paths.patterns import hides
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import Any, TypeVar

    from nsbox._policy.policy import Policy
    from nsbox._tools.view import Mount, View

    Path = str | os.PathLike[str]
    _T = TypeVar("_T")

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # without waiting for a FIFO's writer
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_SYMLINKS, _BENEATH = 4, 8  # openat2(2)
_MOST_CHARS = 64 << 20  # that read() returns
_MOST_ENTRIES = 1_000_000  # that list_files() looks at
_MOST_TOOLS = 100_000  # that tools() looks at
_DEEPEST = 256  # levels of directories that list_files() enters


@frozen
class Attachment(Frozen):
    """A file to be passed out of the sandbox.

    name: the last part of its path.
    path: as the caller gave it.
    size: in bytes.
    data: what was in it when it was read.
    """

    name: str
    path: str
    size: int
    data: bytes = field(repr=False)


@frozen
class Binary(Frozen):
    """A program in tools_bin: its name, size in bytes, and when it was last changed (UTC)."""

    name: str
    size: int
    modified: datetime.datetime

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return {"name": self.name, "size": self.size, "modified": f"{self.modified:%Y-%m-%dT%H:%M:%SZ}"}


@frozen
class _Target(Frozen):
    """A path in a directory that the policy names.

    shown: as the caller gave it. inside: as commands see it. mount: the mount that it is on. rest: the path from there.
    """

    shown: str
    inside: str
    mount: Mount
    rest: str


class Files:
    """Reads and writes the files that a policy names."""

    def __init__(self, policy: Policy) -> None:
        if not abi.on_linux:
            raise UnavailableError(Reason("files are guarded by openat2(2), which only Linux has"))
        self._policy = policy
        self._view: View = view(policy)
        self._resolve = _BENEATH | (_NO_SYMLINKS if policy.symlinks == "refuse" else 0)

    # ---- finding

    def _target(self, path: Path, *, write: bool) -> _Target:
        """Return where a path leads by its name alone; raises AccessError if the policy doesn't allow access to it."""
        shown, seen = os.fspath(path), self._view
        inside = os.path.normpath(seen.absolute(path))
        inside = seen.without_own_links("/" + inside.lstrip("/"))  # normpath() leaves two at the start
        mount = seen.mount_of(inside)
        named = seen.readable()
        if not any(is_below(inside, root) for root in named):
            raise AccessError(shown, f"is in no directory that the policy names; {seen.named(write=write)}")
        if self._is_denied(inside) or mount.is_hidden:
            raise seen.refusal(shown, "is hidden in the sandbox", write=write)
        if mount.source is None:
            raise seen.refusal(shown, "is the sandbox's own, and not on this machine", write=write)
        if write and not mount.is_writable:
            raise seen.refusal(shown, "is read-only", write=True)
        return _Target(shown, inside, mount, inside[len(mount.dest) :].strip("/"))

    def _open(self, target: _Target, rest: str, flags: int) -> int:
        """Open the path `rest` below the target's mount; raises AccessError if a link stands in the way."""
        assert target.mount.source is not None
        try:
            root = open_beneath(-1, target.mount.source, os.O_PATH, _NO_SYMLINKS)  # absolute
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise AccessError(target.shown, f"lies in {target.mount.source}, which has become a symlink") from None
            raise _named(error, target.shown) from None
        try:
            if not rest and not stat.S_ISDIR(os.fstat(root).st_mode):  # the policy names a file
                return _reopened(root, flags)
            return open_beneath(root, rest or ".", flags, self._resolve)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):
                raise AccessError(target.shown, self._link_problem(error.errno or 0)) from None
            raise _named(error, target.shown) from None
        finally:
            os.close(root)

    def _link_problem(self, number: int) -> str:
        if self._policy.symlinks == "refuse" and number == errno.ELOOP:
            return "has a symlink in it; name the file itself, or say symlinks='beneath' in the policy"
        return "leads out of the directory that the policy names by a symlink"

    def _check_opened(self, fd: int, target: _Target, rest: str, *, write: bool) -> str:
        """Return the path of the opened file as commands name it: links may have led to where other rules hold.

        Hidden files can't be moved meanwhile: the way to them has mount points in the mount namespace of the commands.
        """
        top, source = target.mount.dest, target.mount.source
        assert source is not None
        if self._policy.symlinks != "refuse":
            here = os.readlink(f"/proc/self/fd/{fd}")
            if not os.fstat(fd).st_nlink:
                here = here.removesuffix(" (deleted)")
            if not is_below(here, source):
                raise AccessError(target.shown, "was moved away meanwhile")
            rest = here[len(source) :].strip("/")
        inside = os.path.join(top, rest) if rest else top
        mount = self._view.mount_of(inside)
        if mount.source is None or self._is_denied(inside):
            raise self._view.refusal(target.shown, "leads by a symlink to what is hidden", write=write)
        if write and not mount.is_writable:
            raise self._view.refusal(target.shown, "leads by a symlink to what is read-only", write=True)
        return inside

    def _is_denied(self, inside: str) -> bool:
        return any(hides(denied, inside) for denied in self._policy.deny)

    def _opened_file(self, path: Path) -> int:
        """Open a regular file that the rules accept; raises AccessError and OSError."""
        target = self._target(path, write=False)
        fd = self._open(target, target.rest, _READ)
        try:
            status = os.fstat(fd)
            inside = self._check_opened(fd, target, target.rest, write=False)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target.shown)
            if not stat.S_ISREG(status.st_mode):
                raise AccessError(target.shown, "is no regular file")
            if target.shown.endswith("/"):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target.shown)
            for name in dict.fromkeys((target.inside, inside)):
                self._view.check_suffix(name, target.shown)
                self._view.check_size(name, status.st_size, target.shown)
        except BaseException:
            os.close(fd)
            raise
        return fd

    # ---- reading

    def open(self, path: Path, mode: str, **options: Any) -> Any:
        """Open a file for reading."""
        if mode not in ("r", "rb"):
            raise ValueError(f"mode is {mode!r}, must be 'r' or 'rb'; write() replaces files as a whole")
        fd = self._opened_file(path)
        file = open(fd, "rb")  # noqa: SIM115 - it is the caller's
        try:
            return file if mode == "rb" else io.TextIOWrapper(file, **options)
        except BaseException:
            file.close()
            raise

    def read(self, path: Path, max_chars: int, encoding: str, errors: str) -> str:
        """Return the beginning of a text file."""
        _check_number("max_chars", max_chars, _MOST_CHARS)
        with self.open(path, "r", encoding=encoding, errors=errors, newline="") as file:
            try:
                text: str = file.read(max_chars)
            except UnicodeDecodeError as error:
                what = f"{os.fspath(path)} is no {encoding} text (byte {error.object[error.start]:#04x})"
                raise ValueError(f"{what}; errors='replace' reads it anyway, open(path, 'rb') as bytes") from None
        return text

    def attach(self, paths: Iterable[Path], max_count: int, max_bytes: int | str, suffixes: Sequence[str]) -> list[Any]:
        """Return files with their contents."""
        if isinstance(paths, str | os.PathLike):
            raise TypeError("paths is one path, must be a sequence of them")
        chosen, most = list(paths), check_size("max_bytes", max_bytes)
        if isinstance(suffixes, str) or not all(isinstance(end, str) and end.startswith(".") for end in suffixes):
            raise ValueError(f"suffixes is {suffixes!r}, must be a sequence such as ['.md']")
        _check_number("max_count", max_count)
        if len(chosen) > max_count:
            raise ValueError(f"{len(chosen)} files are too many: {max_count} at most")
        ends = tuple(suffix.lower() for suffix in suffixes)
        attachments = []
        for path in chosen:
            shown = os.fspath(path)
            if ends and not shown.lower().endswith(ends):
                raise AccessError(shown, f"has no suffix that can be attached: {', '.join(ends)}")
            with self.open(path, "rb") as file:
                data = file.read(most + 1)  # it may grow meanwhile
                self._view.check_size(self._target(path, write=False).inside, len(data), shown)
            if len(data) > most:
                raise AccessError(shown, f"is too large to be attached: {most} bytes at most")
            attachments.append(Attachment(os.path.basename(os.path.normpath(shown)), shown, len(data), data))
        return attachments

    # ---- writing

    def write(self, path: Path, content: str | bytes, *, parents: bool) -> None:
        """Replace a file, or make it."""
        if not isinstance(content, str | bytes | bytearray | memoryview):
            raise TypeError(f"content is a {type(content).__name__}, must be a str or bytes")
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)
        target = self._target(path, write=True)
        above, _, name = target.rest.rpartition("/")
        if not name or target.shown.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target.shown)
        self._check_written(target.inside, len(data), target.shown)
        with self._directory(target, above, parents=parents) as (fd, inside_dir):
            self._check_written(os.path.join(inside_dir, name), len(data), target.shown)
            _replace(fd, name, data, target.shown)

    def _check_written(self, inside: str, size: int, shown: str) -> None:
        mount = self._view.mount_of(inside)
        names = inside[len(mount.dest) :].casefold().split("/")
        for protected in self._policy.protected:
            if protected.casefold() in names:
                raise AccessError(shown, f"is protected: {protected} is never written")
        if self._is_denied(inside) or mount.dest == inside:
            raise self._view.refusal(shown, "is a mount point in the sandbox, or hidden", write=True)
        self._view.check_suffix(inside, shown)
        self._view.check_size(inside, size, shown)

    @contextlib.contextmanager
    def _directory(self, target: _Target, above: str, *, parents: bool) -> Iterator[tuple[int, str]]:
        """Open the directory that is written to. parents: make missing directories."""
        fd = -1
        try:
            try:
                fd = self._open(target, above, _DIRECTORY)
            except FileNotFoundError:
                if not parents:
                    raise
                fd = self._make_above(target, above)
            yield fd, self._check_opened(fd, target, above, write=True)
        finally:
            if fd >= 0:
                os.close(fd)

    def _make_above(self, target: _Target, above: str) -> int:
        fd = self._open(target, "", _DIRECTORY)
        try:
            names = above.split("/")
            for i, name in enumerate(names):
                self._check_opened(fd, target, "/".join(names[:i]), write=True)
                try:
                    os.mkdir(name, dir_fd=fd)
                except FileExistsError:
                    pass
                except OSError as error:
                    raise _named(error, target.shown) from None
                inner = open_beneath(fd, name, _DIRECTORY, self._resolve)
                os.close(fd)
                fd = inner
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.EXDEV):
                raise AccessError(target.shown, self._link_problem(error.errno)) from None
            raise
        return fd

    # ---- listing

    def list_files(self, path: Path, pattern: str, max_files: int) -> list[str]:
        """Return the regular files below a directory whose relative paths match a pattern."""
        target = self._target(path, write=False)
        if not isinstance(pattern, str) or not pattern.strip("/"):
            raise ValueError(f"pattern is {pattern!r}, must be a pattern such as '**/*.py'")
        _check_number("max_files", max_files)
        parts = pattern.strip("/").split("/")
        if len(pattern) > 4096 or len(parts) > _DEEPEST:
            raise ValueError(f"pattern has {len(pattern)} characters and {len(parts)} parts, too many")
        deepest = _DEEPEST if "**" in parts else len(parts) - 1
        found: list[str] = []
        fd = self._open(target, target.rest, _DIRECTORY)
        try:
            inside = self._check_opened(fd, target, target.rest, write=False)
            walked = self._walk(fd, inside, self._here(inside), "", target.shown, deepest)
            with contextlib.closing(walked):
                for name in _counted(walked, _MOST_ENTRIES, target.shown, "name a directory in it"):
                    if name and _fits(name.split("/"), parts):
                        found.append(name)
                    if len(found) > max_files:
                        what = f"has more than {max_files} such files; ask for fewer by pattern"
                        raise ValueError(f"{target.shown} {what}")
        finally:
            os.close(fd)
        return sorted(found)

    def tools(self) -> list[Binary]:
        """List the programs in tools_bin."""
        if self._policy.tools_bin is None:
            return []
        found = []
        shown = self._policy.tools_bin
        fd = open_beneath(-1, shown, _DIRECTORY, _NO_SYMLINKS)
        try:
            with os.scandir(fd) as scanned:
                for entry in _counted(scanned, _MOST_TOOLS, shown, "tools_bin is for a few programs"):
                    with contextlib.suppress(OSError):  # a dangling link, or it has just gone
                        st = os.stat(entry.name, dir_fd=fd)
                        if stat.S_ISREG(st.st_mode) and st.st_mode & 0o111:
                            changed = datetime.datetime.fromtimestamp(st.st_mtime, datetime.UTC)
                            found.append(Binary(entry.name, st.st_size, changed))
        finally:
            os.close(fd)
        return sorted(found, key=lambda binary: binary.name)

    def _here(self, inside: str) -> str:
        mount = self._view.mount_of(inside)
        return os.path.normpath(f"{mount.source}/{inside[len(mount.dest) :]}")

    def _walk(self, fd: int, inside: str, here: str, above: str, shown: str, deepest: int) -> Generator[str]:
        """Yield the relative path of each regular file, and "" for anything else, without keeping a list of names."""
        try:
            with os.scandir(fd) as scanned:
                for entry in scanned:
                    name, relative = entry.name, f"{above}{entry.name}"
                    at = os.path.join(inside, name)
                    mount = self._view.mount_of(at)
                    is_other = mount.dest == at and mount.source != os.path.join(here, name)
                    if mount.source is None or is_other or self._is_denied(at):
                        yield ""
                        continue
                    yield relative if entry.is_file(follow_symlinks=False) else ""
                    if not entry.is_dir(follow_symlinks=False) or relative.count("/") >= deepest:
                        continue
                    inner = _inner(fd, name)
                    if inner < 0:
                        continue
                    try:
                        yield from self._walk(inner, at, os.path.join(here, name), f"{relative}/", shown, deepest)
                    finally:
                        os.close(inner)
        except OSError as error:
            raise _named(error, shown) from None


def _inner(fd: int, name: str) -> int:
    """Open a directory; -1 if it has become something else, or may not be read. Raises OSError."""
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            return -1
        raise


def _counted(entries: Iterable[_T], most: int, shown: str, remedy: str) -> Iterator[_T]:
    """Yield the entries; raises ValueError as soon as there are more than `most`."""
    for count, one in enumerate(entries):
        if count >= most:
            raise ValueError(f"{shown} has more than {most} entries; {remedy}")
        yield one


def _check_number(name: str, value: object, most: int = _MOST_ENTRIES) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r}, must be a number from 0 to {most}")


def _named(error: OSError, shown: str) -> OSError:
    return OSError(error.errno, error.strerror, shown)


def _reopened(handle: int, flags: int) -> int:
    return os.open(f"/proc/self/fd/{handle}", flags)


def _replace(directory: int, name: str, data: bytes, shown: str) -> None:
    """Make a file or, in one step, replace the one of this name, which has to be a regular file."""
    old = None
    try:
        old = os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _named(error, shown) from None
    if old is not None:
        if stat.S_ISLNK(old.st_mode):
            raise AccessError(shown, "is a symlink; write to the file that it names")
        if stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
        if not stat.S_ISREG(old.st_mode):
            raise AccessError(shown, "is no regular file")
    new = f".nsbox-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(new, flags, 0o666 if old is None else 0o600, dir_fd=directory)
    except OSError as error:
        raise _named(error, shown) from None
    try:
        with open(fd, "wb") as file:
            if old is not None and os.geteuid() == 0:
                os.fchown(fd, old.st_uid, old.st_gid)
            if old is not None:
                os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)
            file.write(data)
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=directory)
        if isinstance(error, OSError):
            raise _named(error, shown) from None
        raise


def _fits(names: list[str], parts: list[str]) -> bool:
    """Return whether a path matches a pattern, part by part: ** is any number of directories."""
    at = {0}  # how many names the parts so far may have matched
    for part in parts:
        if part == "**":
            at = set(range(min(at, default=len(names) + 1), len(names) + 1))
        else:
            at = {i + 1 for i in at if i < len(names) and fnmatch.fnmatchcase(names[i], part)}
    return len(names) in at
