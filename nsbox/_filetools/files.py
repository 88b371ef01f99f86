"""Files that a policy's commands can reach, found and opened in such a way that no command can lead us elsewhere.

A command may change names and links at any moment, even between a check and an open. So no name is first checked and
then opened. openat2(2) walks from the top of a mount (Linux 5.6), and refuses to leave it. The checks look at the
O_PATH descriptor that it returns. What passes them is then opened by that descriptor: never a device or a FIFO.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from nsbox._base.errors import AccessError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._core import abi
from nsbox._files.files import open_beneath
from nsbox._filetools.ground import BENEATH, NO_SYMLINKS, HostGround, named
from nsbox._logs import observers
from nsbox._paths.patterns import hides
from nsbox._tools.view import Place
from nsbox._tools.view import view as view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from nsbox._filetools.ground import Ground
    from nsbox._policy.policy import Policy
    from nsbox._tools.view import Mount, View

    Path = str | os.PathLike[str]

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_NUMBER = 1_000_000
_HOST = HostGround()


@frozen
class Target(Frozen):
    """A path in a place that tools may use.

    shown: as the caller gave it. inside: as commands see it. mount: the mount that it is on. rest: its path from there.
    """

    shown: str
    inside: str
    mount: Mount
    rest: str
    ground: Ground

    @property
    def above(self) -> str:
        """The directory that it is in, as a path from the mount."""
        return self.rest.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last part, "" for the top of a mount."""
        return self.rest.rpartition("/")[2]


@frozen
class Found(Frozen):
    """What is at a path: its descriptor (O_PATH), its path as commands see it, and its status."""

    fd: int
    inside: str
    status: os.stat_result


class Files:
    """Finds and opens the files of a policy.

    grounds: returns the ground that a mount is on. Default: this machine, for all.
    """

    def __init__(
        self, policy: Policy, grounds: Callable[[Mount], Ground] | None = None, view: View | None = None
    ) -> None:
        if not abi.on_linux:
            raise UnavailableError(Reason("file tools need openat2(2), which only Linux has"))
        self.policy = policy
        self.view: View = view or view_of(policy)
        self._grounds = grounds or (lambda _: _HOST)
        self._resolve = BENEATH | (NO_SYMLINKS if policy.symlinks == "refuse" else 0)

    # ---- finding

    def target(self, path: Path, *, write: bool) -> Target:
        """Return where a path leads by its name alone; raises AccessError if tools may not reach it."""
        shown, seen = os.fspath(path), self.view
        inside = os.path.normpath(seen.absolute(path))
        inside = seen.without_own_links("/" + inside.lstrip("/"))  # normpath() leaves two at the start
        mount = seen.mount_of(inside)
        ground = self._grounds(mount)
        problem = ground.problem(seen, Place(inside, None, mount), is_denied=self.is_denied(inside), write=write)
        if problem:
            raise AccessError(shown, problem)
        if write and not ground.may_write(mount):
            raise seen.refusal(shown, "is read-only", write=True)
        return Target(shown, inside, mount, inside[len(mount.dest) :].strip("/"), ground)

    @contextlib.contextmanager
    def found(self, target: Target, rest: str, *, write: bool) -> Iterator[Found]:
        """Find what is at the path `rest` below the target's mount; raises AccessError if tools may not reach it."""
        top = target.ground.top(target.mount, target.shown)
        fd = -1
        try:
            try:
                fd = open_beneath(top.fd, rest or ".", os.O_PATH, self._resolve | top.resolve) if rest else top.fd
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EXDEV):
                    raise AccessError(target.shown, self._link_problem(error.errno or 0)) from None
                raise named(error, target.shown) from None
            inside = self._checked(fd, target, rest, top.path, write=write)
            yield Found(fd, inside, os.fstat(fd))
        finally:
            os.close(top.fd)
            if fd not in (-1, top.fd):
                os.close(fd)

    def _link_problem(self, number: int) -> str:
        if self.policy.symlinks == "refuse" and number == errno.ELOOP:
            return "has a symlink in it; name the file itself, or set symlinks='beneath' in the policy"
        return "leads by a symlink out of the directory that the policy names"

    def _checked(self, fd: int, target: Target, rest: str, top: str, *, write: bool) -> str:
        """Return what was found as a path that commands use; links may have led to a place with other rules.

        Hidden files can't be moved meanwhile: in the commands' mount namespace, the way to them has mount points.
        """
        here = os.path.join(top, rest) if rest else top
        if self.policy.symlinks != "refuse":
            here = os.readlink(f"/proc/self/fd/{fd}")
            if not os.fstat(fd).st_nlink:
                here = here.removesuffix(" (deleted)")
            if not is_below(here, top):
                raise AccessError(target.shown, "was moved away meanwhile")
            rest = here[len(top) :].strip("/")
        inside = os.path.join(target.mount.dest, rest) if rest else target.mount.dest
        mount = self.view.mount_of(inside)
        is_led = mount.dest != target.mount.dest
        is_lost = is_led and (self._grounds(mount) is not target.ground or not target.ground.leads(mount, inside, here))
        if is_lost or self.is_denied(inside):
            raise self.view.refusal(target.shown, "leads by a symlink to what is hidden", write=write)
        if write and not target.ground.may_write(mount):
            raise self.view.refusal(target.shown, "leads by a symlink to what is read-only", write=True)
        return inside

    def is_denied(self, inside: str) -> bool:
        """Return whether the policy hides a path."""
        return any(hides(denied, inside) for denied in self.policy.deny)

    def grounds_of(self, mount: Mount) -> Ground:
        """Return the ground that a mount is on."""
        return self._grounds(mount)

    # ---- opening

    def opened_file(self, path: Path, flags: int = READ, *, write: bool = False) -> int:
        """Open a regular file that the rules accept; raises AccessError and OSError."""
        target = self.target(path, write=write)
        with self.found(target, target.rest, write=write) as found:
            check_regular(found.status, target.shown)
            for name in dict.fromkeys((target.inside, found.inside)):
                self.view.check_suffix(name, target.shown)
                self.view.check_size(name, found.status.st_size, target.shown)
                if write:
                    self.check_written(name, found.status.st_size, target.shown)
            return reopened(found.fd, flags, target.shown)

    @contextlib.contextmanager
    def directory(self, path: Path) -> Iterator[tuple[int, Found]]:
        """Open a directory, to list it."""
        target = self.target(path, write=False)
        with self.found(target, target.rest, write=False) as found:
            fd = reopened(found.fd, DIRECTORY, target.shown)
            try:
                yield fd, found
            finally:
                os.close(fd)

    def check_name(self, inside: str, shown: str) -> None:
        """Raise AccessError for a name that tools may not make, change or remove."""
        mount = self.view.mount_of(inside)
        names = inside[len(mount.dest) :].casefold().split("/")
        for protected in self.policy.protected:
            if protected.casefold() in names:
                raise AccessError(shown, f"is protected: {protected} is never written")
        if self.is_denied(inside) or mount.dest == inside:
            raise self.view.refusal(shown, "is a mount point in the sandbox, or hidden", write=True)

    def check_written(self, inside: str, size: int, shown: str) -> None:
        """Raise AccessError for a file that tools may not make, change or remove. size: its new size in bytes."""
        self.check_name(inside, shown)
        self.view.check_suffix(inside, shown)
        self.view.check_size(inside, size, shown)

    @contextlib.contextmanager
    def parent(self, target: Target, *, parents: bool = False) -> Iterator[tuple[int, str]]:
        """Find the directory in which a name will change; yield its descriptor, and its path as commands see it.

        parents: whether to make missing directories.
        """
        if not target.name:
            raise self.view.refusal(target.shown, "is a mount point in the sandbox", write=True)
        with contextlib.ExitStack() as stack:
            try:
                found = stack.enter_context(self.found(target, target.above, write=True))
            except FileNotFoundError:
                if not parents:
                    raise
                made = self._make_above(target)
                stack.callback(os.close, made[0])
                yield made
                return
            if not stat.S_ISDIR(found.status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target.shown)
            yield found.fd, found.inside

    def _make_above(self, target: Target) -> tuple[int, str]:
        top = target.ground.top(target.mount, target.shown)
        fd = top.fd
        try:
            names = target.above.split("/")
            inside = ""
            for i, name in enumerate(names):
                inside = self._checked(fd, target, "/".join(names[:i]), top.path, write=True)
                try:
                    target.ground.make_directory(fd, name)
                except FileExistsError:
                    pass
                except OSError as error:
                    raise named(error, target.shown) from None
                inner = open_beneath(fd, name, os.O_PATH | os.O_DIRECTORY, self._resolve | top.resolve)
                os.close(fd)
                fd = inner
            inside = self._checked(fd, target, target.above, top.path, write=True)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.EXDEV):
                raise AccessError(target.shown, self._link_problem(error.errno)) from None
            raise
        return fd, inside


def check_regular(status: os.stat_result, shown: str) -> None:
    """Raise OSError or AccessError unless it is a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
    if stat.S_ISLNK(status.st_mode):
        raise AccessError(shown, "is a symlink; name the file that it leads to")
    if not stat.S_ISREG(status.st_mode):
        raise AccessError(shown, "is no regular file")
    if shown.endswith("/"):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)


def check_number(name: str, value: object, most: int = _MOST_NUMBER, least: int = 0) -> None:
    """Raise ValueError unless it is a number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, must be a number from {least} to {most}")


def reopened(handle: int, flags: int, shown: str) -> int:
    """Open what a descriptor (O_PATH) has found; raises OSError."""
    try:
        return os.open(f"/proc/self/fd/{handle}", flags)
    except OSError as error:
        raise named(error, shown) from None


def set_mode(fd: int, mode: int) -> None:
    """Give an open file its permissions. Another user's file passes if it has them already. Raises OSError."""
    try:
        os.fchmod(fd, mode)
    except PermissionError:
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            raise


def is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether a file has stayed the same between two looks at its status."""
    keys = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


class Account:
    """The Files of one call, as a context manager. At its end, observers hear of its paths and its error.

    They never hear what is in the files. whose: more that they hear: a kind, a workspace, a policy, and the cwd that
    relative paths count from.
    """

    def __init__(
        self,
        files: contextlib.AbstractContextManager[Files],
        tool: str,
        paths: Sequence[Path],
        **whose: object,
    ) -> None:
        self._files, self._tool, self._paths, self._whose = files, tool, paths, whose

    def __enter__(self) -> Files:
        try:
            return self._files.__enter__()
        except Exception as error:
            self._tell(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return self._files.__exit__(kind, error, traceback)
        except BaseException as other:
            error = other
            raise
        finally:
            self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        observers.note("files", "", tool=self._tool, paths=self._paths, error=error, **self._whose)
