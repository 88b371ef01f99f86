"""Where git keeps its data if a workspace's .git is a file: in a linked worktree (git-worktree(1)) or a submodule.

A command may have written that file. So the directory that it names counts only if that directory names the workspace
in turn. Git wrote that when the user made the worktree, at a place where no command of the workspace could write.

Whatever git runs or obeys outside stays read-only: configuration, hooks, and the files that say where these are. In a
repository with other worktrees, only objects, references and their logs are writable.
"""

from __future__ import annotations

import errno
import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.imports import opened
from nsbox._base.paths import is_below
from nsbox._paths.resolution import links_on

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 65536  # bytes that are read of a file


@frozen
class Directories(Frozen):
    """What git needs besides the workspace.

    write, read: absolute paths.
    links: symlinks on the way to them.
    problem: why the .git file isn't followed; "" if it is.
    """

    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    problem: str = ""


class _NotFollowedError(Exception):
    """Why a .git file isn't followed."""


def directories(workspace: str) -> Directories:
    """Return what git needs besides a workspace whose .git is a file. workspace: an absolute path without links."""
    try:
        return _followed(workspace)
    except _NotFollowedError as error:
        return Directories(problem=str(error))
    except OSError as error:
        check_answer(error)
        return Directories(problem=f"{error.filename or workspace}: {error.strerror}")


def _followed(workspace: str) -> Directories:
    own = f"{workspace}/.git"
    text = _text(own)
    if not text.startswith("gitdir: "):
        raise _NotFollowedError(f"{own} has no gitdir")
    links: list[str] = []
    gitdir = _real(workspace, text.removeprefix("gitdir: "), workspace, links)
    if is_below(gitdir, workspace):
        raise _NotFollowedError(f"{gitdir} is in the workspace")
    _check_kind(gitdir, stat.S_ISDIR)
    try:
        common = _real(gitdir, _text(f"{gitdir}/commondir"), workspace, links)
    except FileNotFoundError:
        return _submodule(workspace, own, gitdir, links)
    return _worktree(workspace, own, gitdir, common, links)


def _worktree(workspace: str, own: str, gitdir: str, common: str, links: list[str]) -> Directories:
    """Return the directories of a linked worktree; gitrepository-layout(5) describes them."""
    if os.path.dirname(gitdir) != f"{common}/worktrees":
        raise _NotFollowedError(f"{gitdir} isn't among the worktrees of {common}")
    back, name = os.path.split(_text(f"{gitdir}/gitdir"))
    if name != ".git" or _real(gitdir, back, "", []) != workspace:
        raise _NotFollowedError(f"{gitdir}/gitdir doesn't name {own}")
    for name in ("objects", "refs"):
        _check_kind(f"{common}/{name}", stat.S_ISDIR)
    config = f"{common}/config"
    _check_kind(config, stat.S_ISREG)
    per_tree = f"{gitdir}/config.worktree"
    if "worktreeconfig" in _text(config).lower() and not os.path.lexists(per_tree):
        raise _NotFollowedError(f"{per_tree} isn't there, so a command could make it")
    write = [gitdir, *(f"{common}/{name}" for name in ("objects", "refs")), *_there([f"{common}/logs"])]
    read = [common, own, f"{gitdir}/commondir", f"{gitdir}/gitdir", *_there([per_tree])]
    return Directories(tuple(write), tuple(read), tuple(links))


def _submodule(workspace: str, own: str, gitdir: str, links: list[str]) -> Directories:
    """Return the directories of a submodule, or of a git init --separate-git-dir repository with core.worktree."""
    config, hooks = f"{gitdir}/config", f"{gitdir}/hooks"
    named = _core_worktree(_text(config))
    if named is None or _real(gitdir, named, "", []) != workspace:
        raise _NotFollowedError(f"{config} doesn't name {workspace} as core.worktree")
    _check_kind(hooks, stat.S_ISDIR)  # if it didn't exist, a command could make it
    return Directories((gitdir,), (own, config, hooks), tuple(links))


def _there(paths: Iterable[str]) -> list[str]:
    """Return those paths that exist and are no links."""
    return [path for path in paths if os.path.lexists(path) and not os.path.islink(path)]


def _check_kind(path: str, is_kind: object) -> None:
    mode = os.lstat(path).st_mode
    if not callable(is_kind) or not is_kind(mode):
        raise _NotFollowedError(f"{path} isn't what git makes")


def _real(base: str, text: str, workspace: str, links: list[str]) -> str:
    """Return where a path leads, counted from base, and add the links on the way; none of these may be a command's."""
    path = os.path.join(base, text)
    if "\0" in path or not text:
        raise _NotFollowedError(f"{base} names no path")
    real, way = links_on(path)
    for link in way:
        if any(is_below(link, place) for place in (*filter(None, [workspace]), *opened)):
            raise _NotFollowedError(f"the link {link} on the way to {real} is where commands can write")
    links += way
    return real


def _text(path: str) -> str:
    """Return the text of one of git's files, without the line end at its end. No link is followed."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return os.read(fd, _MOST).decode("utf-8", "surrogateescape").rstrip("\r\n")
    finally:
        os.close(fd)


def _core_worktree(config: str) -> str | None:
    """Return core.worktree in a configuration file; None if there is none, or if git wouldn't have written it so."""
    section, worktree = "", None
    for line in map(str.strip, config.splitlines()):
        if line.startswith("["):
            section = line.lower()
        name, is_set, value = line.partition("=")
        if section == "[core]" and is_set and name.strip().lower() == "worktree":
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] == '"'
            worktree = value[1:-1] if quoted else value
            if "\\" in worktree or '"' in worktree or "#" in worktree or ";" in worktree:
                return None
    return worktree


def notes(write: tuple[str, ...], deny: tuple[str, ...]) -> list[str]:
    """Return lines for explain(): what a policy shows of git outside of its workspace, or why it doesn't.

    write, deny: the policy's; the workspace is the first path of write.
    """
    workspace = write[0] if write else "/"
    top = above(workspace)
    if top is not None:
        return [f"git: the top of its repository is {top}, above the workspace: to use git, work in that"]
    if not os.path.isfile(f"{workspace}/.git"):
        return []
    git = directories(workspace)
    if git.problem:
        return [f"git: {workspace}/.git isn't followed: {git.problem}; if you mean it, name the directory in write"]
    if not all(path in write for path in git.write):
        return [f"git: {', '.join(git.write)}: not in write"]
    return [f"git: {', '.join(git.write)} are writable too, as {workspace}/.git says"]


def above(workspace: str) -> str | None:
    """Return the top of the repository that contains a workspace; None if none does, or the workspace is its top."""
    at = workspace
    while at != "/":
        if os.path.lexists(f"{at}/.git"):
            return at if at != workspace else None
        at = os.path.dirname(at)
    return None
