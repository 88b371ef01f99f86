"""From the names in a policy to the paths that are bound: links are resolved once, here.

A command can leave a link in any directory that it may write to. A caller who names that link later would give the next
command whatever it leads to. So a name is refused if a link in a writable directory leads it out of that directory.

The resulting path has no link in it. It is opened without following any (openat2(2), RESOLVE_NO_SYMLINKS), and that
descriptor is bound: if a link appears there in between, the spawn fails.
"""

from __future__ import annotations

import errno
import os

from nsbox._base.checks import check_answer, check_path, check_text, is_path_like
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.imports import opened
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import AnyStr, TypeAlias

    At: TypeAlias = tuple[str | int, ...]  # the place of a name in a file

_KIND, _FIFO = 0o170000, 0o010000  # inode(7)
_MOST_LINKS = 40  # the kernel's own limit: MAXSYMLINKS, path_resolution(7)


def link_target(path: str) -> str | None:
    """Return a symlink's target; None if there is no link at this path."""
    try:
        return os.readlink(path)
    except OSError as error:
        check_answer(error)
        return None


class Walk:
    """The kernel's walk along an absolute path, through links and "..". Names that don't exist stay as written.

    Iterate over it once. It yields each path that is looked up, with the target if it is a link, else None. No link is
    above any of these paths. Beyond the number of links that the kernel follows, it raises OSError (ELOOP).

    at: where the walk is now, without links.
    rest: the names that are left, the next one last.
    names: how many names it has read.
    """

    def __init__(self, path: str, target: Callable[[str], str | None] = link_target) -> None:
        self.at, self.rest, self.names = "/", path.split("/")[::-1], 0
        self._path, self._target = path, target

    def __iter__(self) -> Iterator[tuple[str, str | None]]:
        links = 0
        while self.rest:
            name = self.rest.pop()
            self.names += 1
            if name == "..":
                self.at = os.path.dirname(self.at)
            if name in ("", ".", ".."):
                continue
            inner = os.path.join(self.at, name)
            target = self._target(inner)
            if target is None:
                self.at = inner
                yield inner, None
                continue
            yield inner, target
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
            if target.startswith("/"):
                self.at = "/"
            self.rest += target.split("/")[::-1]


def links_on(path: str) -> tuple[str, list[str]]:
    """Return where an absolute path leads, and the symlinks on the way; none of these paths has a link in it.

    A loop leads nowhere: it has one link more than the kernel follows.
    """
    walk, links = Walk(path), []
    try:
        for at, target in walk:
            if target is not None:
                links.append(at)
    except OSError as error:
        check_answer(error)
    return walk.at, links


@frozen
class _Name(Frozen):
    """A name with links on its way. beside: the current directory, if that counts as writable, else None."""

    at: At | None
    field: str
    text: str
    path: str
    links: tuple[str, ...]
    beside: str | None


class Resolution:
    """The names in one policy, each resolved once. Call check() when everything that is writable is known.

    trusts_here: treat absolute names below the current directory like any others. False for work in the current
        directory without a policy, and from a shell: earlier commands could write there.
    """

    def __init__(self, *, trusts_here: bool = True) -> None:
        self._trusts_here = trusts_here
        self._names: list[_Name] = []
        self._links: dict[str, str] = {}  # on the way to all names, and where they lead

    def existing(self, field: str, path: object) -> str:
        """Return a path without links, as programs inside will see it; raises PolicyError if it doesn't exist."""
        return self._real(field, *_absolute(field, path))

    def denied(self, field: str, path: object) -> str:
        """Return a path without links, as far as it exists: a mask over the link itself would hide nothing."""
        return self._real(field, *_absolute(field, path), must_exist=False)

    def entry(self, field: str, path: str, *, at: At | None = None, must_exist: bool = True) -> str:
        """Return an absolute path without links; ".." in it applies after links. at: a label for problems()."""
        return self._real(field, path, False, at, must_exist)

    def _real(self, field: str, text: str, is_relative: bool, at: At | None = None, must_exist: bool = True) -> str:
        if is_relative or text == _current():
            self.add_links(_links_to_here())
        try:
            real = os.path.realpath(text, strict=True)
        except OSError as error:
            check_answer(error)
            if must_exist or error.errno == errno.ELOOP:
                raise PolicyError(field, f"{text}: {error.strerror}") from None
            real = None
        if real == text:
            return text
        real, links = links_on(text)  # from here on only this result counts: links may have changed in between
        if len(links) > _MOST_LINKS:
            raise PolicyError(field, f"{text}: {os.strerror(errno.ELOOP)}")
        if field != "deny":  # what is hidden needs no other names inside
            self.add_links(links)
        if links:
            beside = None if not is_relative and self._trusts_here else _here(is_relative)
            self._names.append(_Name(at, field, text, real, tuple(links), beside))
        return real

    def add_links(self, links: Iterable[str]) -> None:
        """Have these links made inside too, so that the paths behind them have their other names there."""
        for link in links:
            if link not in self._links and (target := _target(link)):
                self._links[link] = target

    def links(self) -> tuple[tuple[str, str], ...]:
        """Return the links on the way to all names so far, and their targets. No link's path has a link in it."""
        return tuple(self._links.items())

    def check(self, writable: Iterable[str] = ()) -> None:
        """Raise PolicyError for the first name that a command may have redirected. writable: the policy's paths."""
        for _, field, problem in self.problems(writable):
            raise PolicyError(field, problem)

    def problems(self, writable: Iterable[str] = ()) -> Iterator[tuple[At | None, str, str]]:
        """Yield each name that a command may have redirected: entry()'s `at` or None, the field, what is wrong."""
        places = {*writable, *opened}
        for name in self._names:
            problem = _problem(name, places if name.beside is None else places | {name.beside})
            if problem:
                yield name.at, name.field, problem


def _target(link: str) -> str:
    """Return a link's target; "" if it is no link.

    This is the target as it is written, unless a ".." in it leads through directories that may be missing inside.
    """
    target = link_target(link) or ""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    while parts[:1] == [".."]:
        del parts[0]
    return links_on(link)[0] if ".." in parts else target


def _current() -> str | None:
    try:
        return os.getcwd()
    except OSError as error:
        check_answer(error)
        return None


def _links_to_here() -> list[str]:
    """Return the links on the way to the current directory, by the shell's name for it (PWD, as in pwd -L)."""
    name = getattr(os, "environ", {}).get("PWD", "")
    here = _current()
    if not name.startswith("/") or here is None or name == here or "\0" in name:
        return []
    real, links = links_on(name)
    return links if real == here else []


def check_read(paths: Iterable[str]) -> None:
    """Raise PolicyError for a FIFO among readable paths: MS_RDONLY doesn't stop writes to it (mount(2), fifo(7))."""
    for path in paths:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:  # it is gone; making the sandbox will report that
            check_answer(error)
            continue
        if mode & _KIND == _FIFO:
            raise PolicyError(
                "read", f"{path} is a FIFO, which commands could write to and drain; if you mean that, write=[...]"
            )


def _here(is_relative: bool) -> str | None:
    """Return the current directory if it counts as writable, as under the default policy; else None.

    "/" never counts. A home directory, or one above it, is seldom a workspace, and full of the user's own links: it
    counts for relative names alone.
    """
    try:
        here = os.getcwd()
        home = os.path.realpath(os.path.expanduser("~"))
    except OSError as error:
        check_answer(error)
        return None
    return None if here == "/" or (is_below(home, here) and not is_relative) else here


def current_directory() -> str:
    """Return this process's current directory; raises FileNotFoundError with its name if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        try:
            name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        except OSError:
            name = "."
        text = "the current directory has been removed; change to another, or name directories by absolute paths"
        raise FileNotFoundError(error.errno, text, name) from None


def absolute(path: AnyStr) -> AnyStr:
    """Return a path as an absolute one; raises FileNotFoundError if it is relative and the directory was removed."""
    if os.path.isabs(path):
        return path
    here = current_directory()
    return os.path.join(os.fsencode(here) if isinstance(path, bytes) else here, path)


def _absolute(field: str, path: object) -> tuple[str, bool]:
    """Return a name as an absolute path, and whether it was relative."""
    text = check_text(field, os.fspath(path) if is_path_like(path) else path)
    return check_path(field, os.path.normpath(absolute(text))), not text.startswith("/")


def _problem(name: _Name, places: set[str]) -> str:
    for link in name.links:
        for place in sorted(places):
            if not is_below(link, place):
                continue
            risk = f"commands can write to {place}, so one of them may have made the link"
            if name.field == "deny":
                instead = f"deny {name.path} instead, or remove the link"
                return f"{name.text} is, by the link {link}, {name.path}: {risk}, or may replace it; {instead}"
            if not is_below(name.path, place):
                instead = f"name {name.path} itself if you mean it"
                return f"{name.text} leads out of {place} by the link {link}, to {name.path}: {risk}; {instead}"
    return ""
