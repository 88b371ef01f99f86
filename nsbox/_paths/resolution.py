"""From the names that a policy is given to the paths that are bound: links are resolved once, here.

A command can leave a link in any directory that it may write to. Whoever names the link later would give the next
command what it leads to. So a name that leads out of a writable directory by a link in it is refused.

What comes back has no link in it. It is opened without following any (openat2(2), RESOLVE_NO_SYMLINKS), and that
descriptor is bound: a link that is put there between the two is an error of the spawn.
"""

from __future__ import annotations

import errno

from nsbox._base.checks import check_path, check_text, is_path_like
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.imports import opened
from nsbox._base.lean_os import os
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, AnyStr

_KIND, _FIFO = 0o170000, 0o010000  # inode(7)
_MOST_LINKS = 40  # as the kernel has it: MAXSYMLINKS, path_resolution(7)


def links_on(path: str) -> tuple[str, list[str]]:
    """Return what an absolute path leads to, and the symlinks on the way, each by a path without any."""
    links: list[str] = []
    at, todo = "/", path.split("/")[::-1]
    while todo:
        name = todo.pop()
        if name == "..":
            at = os.path.dirname(at)
        if name in ("", ".", ".."):
            continue
        inner = os.path.join(at, name)
        try:
            target = os.readlink(inner)
        except OSError:  # no link, or nothing
            at = inner
            continue
        links.append(inner)
        if len(links) > _MOST_LINKS:
            break
        at = "/" if target.startswith("/") else at
        todo += target.split("/")[::-1]
    return at, links


@frozen
class _Name(Frozen):
    """A name with links on its way. beside: the current directory, where that counts as writable."""

    at: Any
    field: str
    text: str
    path: str
    links: tuple[str, ...]
    beside: str | None


class Resolution:
    """The names that one policy is given, each resolved once. check() when all that is writable is known.

    trusts_here: names below the current directory are looked at as any others if they are absolute. False for work
    in the current directory that was asked for without a policy, and from a shell: earlier commands had it as theirs.
    """

    def __init__(self, *, trusts_here: bool = True) -> None:
        self._trusts_here = trusts_here
        self._names: list[_Name] = []
        self._links: dict[str, str] = {}  # on the way to all names, and where they lead

    def existing(self, field: str, path: object) -> str:
        """Return the path without links, since that is what programs inside will find it to be; raises PolicyError."""
        return self._found(field, *_absolute(field, path))

    def denied(self, field: str, path: object) -> str:
        """Return the path without links as far as it exists: a mask on a link's name would hide nothing."""
        return self._found(field, *_absolute(field, path), must_exist=False)

    def entry(self, field: str, path: str, *, at: Any = None, must_exist: bool = True) -> str:
        """Return an absolute path without links; in it ".." counts after links. at: for problems()."""
        return self._found(field, path, False, at, must_exist)

    def _found(self, field: str, text: str, is_relative: bool, at: Any = None, must_exist: bool = True) -> str:
        if is_relative or text == _current():
            self.add_links(_links_to_here())
        try:
            real = os.path.realpath(text, strict=True)
        except OSError as error:
            if must_exist or error.errno == errno.ELOOP:
                raise PolicyError(field, f"{text}: {error.strerror}") from None
            real = None
        if real == text:
            return text
        real, links = links_on(text)  # from here on only this counts: a link may have come or gone since
        if len(links) > _MOST_LINKS:
            raise PolicyError(field, f"{text}: {os.strerror(errno.ELOOP)}")
        if field != "deny":  # of what isn't shown no names are either
            self.add_links(links)
        if links:
            beside = None if not is_relative and self._trusts_here else _here(is_relative)
            self._names.append(_Name(at, field, text, real, tuple(links), beside))
        return real

    def add_links(self, links: Iterable[str]) -> None:
        """Have these made inside too, so that what has been named has its other names there."""
        for link in links:
            if link not in self._links and (target := _target(link)):
                self._links[link] = target

    def links(self) -> tuple[tuple[str, str], ...]:
        """Return the links on the way to all names so far, each by a path without any, and their targets."""
        return tuple(self._links.items())

    def check(self, writable: Iterable[str] = ()) -> None:
        """Raise PolicyError for the first name that a command may have led astray. writable: the policy's paths."""
        for _, field, problem in self.problems(writable):
            raise PolicyError(field, problem)

    def problems(self, writable: Iterable[str] = ()) -> Iterator[tuple[Any, str, str]]:
        """Give each name that a command may have led astray: entry()'s `at` or None, the field, what is wrong."""
        places = {*writable, *opened}
        for name in self._names:
            problem = _problem(name, places if name.beside is None else places | {name.beside})
            if problem:
                yield name.at, name.field, problem


def _target(link: str) -> str:
    """Return where a link leads, in its own words if these need nothing inside that isn't on the way; "": nowhere."""
    try:
        target = os.readlink(link)
    except OSError:
        return ""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    while parts[:1] == [".."]:
        del parts[0]
    return links_on(link)[0] if ".." in parts else target


def _current() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _links_to_here() -> list[str]:
    """Return the links on the way to the current directory by the name that the shell has for it (PWD, as pwd -L)."""
    name = getattr(os, "environ", {}).get("PWD", "")
    here = _current()
    if not name.startswith("/") or here is None or name == here or "\0" in name:
        return []
    real, links = links_on(name)
    return links if real == here else []


def check_read(paths: Iterable[str]) -> None:
    """Raise PolicyError for a FIFO among what is to be readable: MS_RDONLY isn't about these (mount(2), fifo(7))."""
    for path in paths:
        try:
            mode = os.stat(path).st_mode
        except OSError:  # it has gone since, which is told when a sandbox is made
            continue
        if mode & _KIND == _FIFO:
            raise PolicyError(
                "read", f"{path} is a FIFO, which commands could write to and read empty; if that is meant, write=[...]"
            )


def _here(is_relative: bool) -> str | None:
    """Return the current directory, which the default policy lets commands write to; None for what it never does.

    A home directory is seldom work's, and full of links of its user's: there only relative names are looked at.
    """
    try:
        here = os.getcwd()
        home = os.path.realpath(os.path.expanduser("~"))
    except OSError:
        return None
    return None if here == "/" or (is_below(home, here) and not is_relative) else here


def current_directory() -> str:
    """Return this process's current directory; raises FileNotFoundError with its name when that has been removed."""
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
    """Return a path that counts from the current directory; raises FileNotFoundError when that has been removed."""
    if os.path.isabs(path):
        return path
    here = current_directory()
    return os.path.join(os.fsencode(here) if isinstance(path, bytes) else here, path)


def _absolute(field: str, path: object) -> tuple[str, bool]:
    """Return the name as an absolute path, and whether it wasn't one."""
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
