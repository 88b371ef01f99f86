"""Asks the machine where the system's directories are, on any distribution, where links in them lead, and for programs.

On some distributions they are links: /opt and /usr/local lead to /var (Silverblue), programs are in /run/current-system
(NixOS, Guix), in /home/linuxbrew or /snap. Everything is looked up below a root, so that tests can make up systems.
"""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.paths import is_below
from nsbox._paths.resolution import Walk, link_target

if TYPE_CHECKING:
    from collections.abc import Iterable

_DIRECTORIES = (
    *("/bin", "/sbin", "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu"),
    *("/snap", "/home/linuxbrew/.linuxbrew"),
)
# What packages keep in /var/lib for programs. Each has been reviewed: it has no data of users or services, and nothing
# that only root may read. Directories that have both are left out: databases, docker, private, cloud-init, systemd ...
_DATA = (
    *("alternatives", "aspell", "ca-certificates", "dictionaries-common", "dpkg", "emacsen-common", "gems", "ghc"),
    *("hunspell", "ispell", "pacman/local", "perl5", "rpm", "sgml-base", "tex-common", "texmf", "xml-core"),
)
# Links in directories that are shown anyway, whose targets may not be.
_INNER = (
    *("/usr/local", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/share", "/usr/include"),
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/share", "/usr/local/sbin", "/etc/static", "/etc/ssl"),
    *("/etc/ssl/certs", "/etc/pki", "/etc/alternatives", "/etc/profiles"),
)
_PROFILES = ("/run/current-system", "/run/opengl-driver")  # links into /nix, /gnu or /var/guix
_PROGRAMS = (
    *("/run/current-system/sw/bin", "/run/current-system/profile/bin", "/run/current-system/profile/sbin"),
    *("/etc/profiles/per-user/{user}/bin", "/nix/var/nix/profiles/default/bin"),
    *("/home/linuxbrew/.linuxbrew/bin", "/home/linuxbrew/.linuxbrew/sbin", "/snap/bin"),
)
_TOO_MUCH = ("/", "/dev", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/var/home", "/var/lib")


@frozen
class SystemDirs(Frozen):
    """The system's directories.

    directories: pairs of a path and its target, which is None unless the path is a link.
    links: more links on the way to these, with their targets.
    programs: directories for PATH.
    home_links: links on the way to /home/USER, with their targets.
    """

    directories: tuple[tuple[str, str | None], ...]
    links: tuple[tuple[str, str], ...]
    programs: tuple[str, ...]
    home_links: tuple[tuple[str, str], ...] = ()


class _Root:
    """A file system: the machine's, or one that a test has made up."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def link(self, path: str) -> str | None:
        return link_target(self._root + path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self._root + path) and not os.path.islink(self._root + path)

    def walk(self, path: str) -> tuple[str, list[tuple[str, str]]]:
        """Return where a path leads, and the links on the way with their targets; a loop of links leads to ""."""
        walk = Walk(path, self.link)
        try:
            links = [(at, target) for at, target in walk if target is not None]
        except OSError as error:
            check_answer(error)
            return "", []
        return walk.at, links


def _is_shown(path: str, shown: Iterable[str]) -> bool:
    return any(is_below(path, above) for above in shown)


def look(root: str = "/", *, user: str = "", home: str = "") -> SystemDirs:
    """Return the system's directories. root: where they are. user, home: as in getpwuid(3); "": not known."""
    system = _Root(root)
    directories: dict[str, str | None] = {}
    ways: dict[str, str] = {}
    for path in _DIRECTORIES:
        target = system.link(path)
        if target is not None or system.is_dir(path):
            directories[path] = target
    data = [f"/var/lib/{name}" for name in _DATA if system.is_dir(f"/var/lib/{name}")]
    shown = [path for path, target in directories.items() if target is None]
    for path in (*directories, *_INNER, *_PROFILES):
        real, links = system.walk(path)
        if not links or not (system.is_dir(real) and _may_show(real, home, shown)):
            continue
        if not _is_shown(real, shown):
            directories[real] = None
            shown.append(real)
        ways |= {link: target for link, target in links if link not in directories and not _is_shown(link, shown)}
    directories |= dict.fromkeys(path for path in data if not _is_shown(path, shown))
    programs = [path.format(user=user) for path in _PROGRAMS if user or "{user}" not in path]
    programs = [path for path in programs if _leads_to_shown(system, path, shown)]
    return SystemDirs(tuple(directories.items()), tuple(ways.items()), tuple(programs), _home_links(system, user))


def _home_links(system: _Root, user: str) -> tuple[tuple[str, str], ...]:
    """Return the links by which /home, or a user's directory in it, leads elsewhere, such as to /var/home."""
    real, links = system.walk(f"/home/{user}")
    return tuple(links) if real and (system.is_dir(real) or system.is_dir(os.path.dirname(real))) else ()


def _may_show(real: str, home: str, shown: list[str]) -> bool:
    """Say if the target of a link may be readable as a whole. It may not if it contains homes, or is in one."""
    if _is_shown(real, shown):
        return True
    return real not in _TOO_MUCH and not (home and (is_below(home, real) or is_below(real, home)))


def _leads_to_shown(system: _Root, path: str, shown: list[str]) -> bool:
    real, _ = system.walk(path)
    return system.is_dir(real) and _is_shown(real, shown)


def interpreter_links(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the links on the way to the interpreter, by these names of it, with their targets."""
    system = _Root("/")
    return tuple(dict(link for name in names if os.path.isabs(name) for link in system.walk(name)[1]).items())
