"""Asks macOS. The answers are fields of a Host; nothing is decided here."""

from __future__ import annotations

import fcntl
import os
import sys

from nsbox._backends.seatbelt import DATA
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import PACKAGE
from nsbox._core import abi, darwin
from nsbox._core.darwin import HELPER, PROGRAM
from nsbox._machine import accounts
from nsbox._machine.caller import hard_limits, state
from nsbox._machine.interpreter import imports, own_prefixes, prefixes
from nsbox._machine.minimal import kernel_version
from nsbox._machine.private import private_files, secrets
from nsbox._plan.host import Host

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsbox._policy.policy import Policy

# Not the whole of /System: below Volumes everything else has its other names. Nor of /Library, which has keychains,
# logs and settings of services.
_DIRECTORIES = (
    *("/bin", "/sbin", "/usr", "/opt", "/nix", "/Applications"),
    *("/System/Applications", "/System/Cryptexes", "/System/DriverKit", "/System/Library", "/System/iOSSupport"),
    *("/System/Volumes/Preboot/Cryptexes", "/private/preboot/Cryptexes"),  # where the loader's libraries are
    *("/Library/Apple", "/Library/Developer", "/Library/Fonts", "/Library/Frameworks", "/Library/Java"),
    *("/private/etc", "/private/var/db/dyld", "/private/var/db/oah", "/private/var/db/timezone"),  # oah: Rosetta
    "/private/var/select",  # which shell is /bin/sh
    "/Library/Preferences/com.apple.dt.Xcode.plist",  # says that the licence has been accepted
)
_XCODE = "/private/var/db/xcode_select_link"  # for the programs in /usr/bin that stand for those of Xcode
_FIRMLINKS = "/usr/share/firmlinks"
_USUAL_FIRMLINKS = ("/Applications", "/Library", "/Users", "/Volumes", "/cores", "/opt", "/private", "/usr/local")
_CS_DARWIN_USER_TEMP_DIR = 65537  # <unistd.h>
_PC_CASE_SENSITIVE = 11
_LINKS = ("/etc", "/tmp", "/var")  # every profile has these
_MOST_LINKS = 40
_O_EVTONLY = 0x8000  # <fcntl.h>: enough to ask for the path, and less than reading


def directories() -> tuple[tuple[str, str | None], ...]:
    """Return the system's directories and files that commands may read, if they exist."""
    return tuple((path, None) for path in _DIRECTORIES if os.path.exists(path) and os.path.realpath(path) == path)


def links_to(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the symlinks on the way to these paths, each with its directory as the kernel spells it."""
    links: dict[str, None] = {}
    left = [path for path in paths if os.path.isabs(path)]
    while left and len(links) < _MOST_LINKS:
        at, rest = "/", left.pop().strip("/").split("/")
        for i, name in enumerate(rest):
            at = os.path.join(spelled(os.path.realpath(at)), name)
            if os.path.islink(at) and at not in _LINKS and at not in links:
                links[at] = None
                left.append(os.path.normpath(os.path.join(os.path.dirname(at), os.readlink(at), *rest[i + 1 :])))
                break
    return tuple(links)


def _interpreter() -> list[str]:
    """Return the paths under which the running interpreter is executed: its own, and those in its prefixes."""
    names = ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    return [sys.executable or "", *(os.path.join(p, "bin", n) for p in (sys.prefix, sys.base_prefix) for n in names)]


def host() -> Host:
    """Return what macOS offers to this process."""
    host = Host(
        system="Darwin",
        kernel=kernel_version(os.uname().release),
        machine=os.uname().machine,
        core_problem=abi.problem,
        euid=os.geteuid(),
        egid=os.getegid(),
        can_set_ids=os.geteuid() == 0,
        can_set_groups=os.geteuid() == 0,
        directories=directories(),
        prefixes=prefixes(),
        programs=tuple(os.path.join(prefix, "bin") for prefix in own_prefixes() if prefix != "/usr"),
        package=os.path.realpath(PACKAGE),  # also in a prefix: the helper program is executed outside
        imports=imports(),
        resolv_conf=accounts.resolv_conf(),
        secrets=("/etc/master.passwd", *secrets()),
        private=(hidden := private_files())[0],
        private_unknown=hidden[1],
        state=(own := state())[0],
        state_detours=own[1],
        has_key=bool(own[0]) and os.path.lexists(os.path.join(own[0], "key")),
        hard_limits=hard_limits(),
    )
    return with_seatbelt(host)


def with_seatbelt(host: Host) -> Host:
    """Return the host with the facts about Seatbelt, and with paths as the file system spells them."""
    if host.core_problem:
        return host
    host = replace(host, prefixes=tuple(map(spelled, host.prefixes)), package=spelled(host.package))
    compiles, initializes = darwin.ways()
    has_helper = os.access(HELPER, os.X_OK)
    ways = ["compiled"] if compiles else []
    ways += ["helper"] if initializes else []
    ways += ["sandbox-exec"] if os.access(PROGRAM, os.X_OK) else []
    problem = "" if has_helper else f"{HELPER} is missing: nsbox is not installed as a whole"
    if darwin.is_confined():
        problem = "this process is in a sandbox already, and in one macOS refuses another (EPERM)"
    return replace(
        host,
        seatbelt_ways=tuple(ways),
        seatbelt_problem=problem,
        temporary=spelled(_temporary()),
        links=links_to([*_interpreter(), _XCODE]),
        names_are_exact=_is_exact("/"),
        firmlinks=_firmlinks(),
    )


def with_spellings(policy: Policy, host: Host) -> Host:
    """Return the host with the file system's spelling of this policy's paths."""
    if policy.base != "workspace" or host.core_problem:
        return host
    named = dict.fromkeys((*policy.write, *policy.read, *policy.deny))
    spellings = tuple((path, own) for path in named if (own := spelled(path)) != path)
    exact = host.names_are_exact and all(_is_exact(path) for path in policy.write)
    if not spellings and exact == host.names_are_exact:
        return host
    return replace(host, spellings=spellings, names_are_exact=exact)


def spelled(path: str) -> str:
    """Return a path as the file system spells the part that exists; on most volumes case may differ."""
    at, rest = path, ""
    while at != "/":
        try:
            fd = os.open(at, _O_EVTONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            at, name = os.path.split(at)
            rest = f"/{name}{rest}"
            continue
        try:
            own = fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).partition(b"\0")[0]  # type: ignore[attr-defined,unused-ignore]
        finally:
            os.close(fd)
        return f"{os.fsdecode(own)}{rest}"
    return path


def _is_exact(path: str) -> bool:
    """Say if the volume of a path distinguishes "a" and "A"; False if that is unknown."""
    try:
        return os.pathconf(path, _PC_CASE_SENSITIVE) == 1
    except OSError:
        return False


def _firmlinks() -> tuple[str, ...]:
    try:
        with open(_FIRMLINKS, encoding="utf-8") as file:
            return tuple(line.partition("\t")[0].strip() for line in file if line.startswith("/"))
    except OSError:
        return _USUAL_FIRMLINKS


def _temporary() -> str:
    """Return the user's own directory for temporary files, which other users can't read."""
    try:
        path = os.confstr(_CS_DARWIN_USER_TEMP_DIR)
    except (OSError, ValueError):
        path = None
    path = os.path.realpath(path or os.environ.get("TMPDIR") or "/tmp")
    return path[len(DATA) :] if path.startswith(f"{DATA}/private/") else path
