"""Asks the machine for users and groups, for root's files that ssh includes, and for the caller's certificates."""

from __future__ import annotations

import errno
import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import is_below
from nsbox._paths.patterns import anywhere, covers, hides
from nsbox._paths.resolution import Resolution
from nsbox._policy.variables import CERTIFICATES

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_SSH = ("/etc/ssh/ssh_config", "/usr/etc/ssh/ssh_config")
_MOST_FILES, _MOST_LEVELS = 64, 16  # ssh(1) itself goes no deeper than 16 levels
_LARGEST = 1 << 20  # bytes of one of ssh's files
_FILES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")  # the other variables may name directories too
_MOST_ENTRIES = 10_000  # of a directory of certificates
_MOST_KEPT = 64

_hosts: dict[tuple[object, ...], Host] = {}


def contents(path: str, most: int = 64 << 20) -> bytes | None:
    """Return the contents of a file; b"" if it can't be read, None if there is no regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        check_answer(error)
        return b"" if error.errno in (errno.EACCES, errno.EPERM) else None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        try:
            return file.read(most)
        except OSError as error:
            check_answer(error)
            return b""


def of_system(path: str) -> bytes | None:
    """Return the contents of a file in /etc; None if it doesn't exist, or is a link that leads out of /etc."""
    return contents(path) if is_below(os.path.realpath(path), "/etc") else None


def resolv_conf() -> str | None:
    """Return where /etc/resolv.conf leads, if that is a file outside of /etc; else None."""
    target = os.path.realpath("/etc/resolv.conf")
    return target if not target.startswith("/etc/") and os.path.isfile(target) else None


# ---- users


def with_user(host: Host, uid: int, gid: int) -> Host:
    """Return the host with what its files, or a directory service (nss(5)), say about a user and a group."""
    import grp
    import pwd

    name, info, shell = "", "", ""
    try:
        entry = pwd.getpwuid(uid)
        name, info, shell = entry.pw_name, entry.pw_gecos, entry.pw_shell
    except (KeyError, OverflowError):
        pass
    try:
        group = grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        group = ""
    return replace(host, user=_safe(name), user_info=_line(info), shell=_line(shell) or "/bin/sh", group=_safe(group))


def _safe(name: str) -> str:
    """Return a name if it can name a directory as well; else ""."""
    is_bad = name in (".", "..") or any(ch in "/:" or ch.isspace() or not ch.isprintable() for ch in name)
    return "" if is_bad or len(os.fsencode(name)) > 200 else name


def _line(text: str) -> str:
    return "".join(ch for ch in text if ch not in ":\n\0")


# ---- ssh


def ssh_files() -> tuple[tuple[str, bytes], ...]:
    """Return the files that the system's configuration of ssh includes, with their contents: only root's public ones.

    ssh(1) accepts such a file if it belongs to root or to its own user, and no other user may write to it.
    """
    files: dict[str, bytes] = {}
    for path in _SSH:
        text = contents(path, _LARGEST)
        if text:
            _add_included(text, os.path.dirname(path), files, 1)
    return tuple(files.items())


def _add_included(text: bytes, base: str, found: dict[str, bytes], level: int) -> None:
    for pattern in _patterns(text):
        import glob  # seldom needed

        for path in sorted(glob.glob(os.path.join(base, pattern))):
            real = os.path.realpath(path)
            if real in found or len(found) >= _MOST_FILES:
                continue
            inner = _roots(real)
            if inner is not None:
                found[real] = inner
                if level < _MOST_LEVELS:
                    _add_included(inner, base, found, level + 1)


def _patterns(text: bytes) -> list[str]:
    """Return the arguments of Include, ssh_config(5), except those in a home, which are the user's own."""
    patterns: list[str] = []
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).replace("\t", " ").partition(" ")
        if word.lower() == "include":
            patterns += [item.strip('"') for item in rest.split() if not item.startswith(("#", "~", "${"))]
    return patterns


def _roots(path: str) -> bytes | None:
    """Return the contents of a file of root that all users may read and only root may write; None for any other."""
    try:
        status = os.stat(path)
    except OSError as error:
        check_answer(error)
        return None
    public = stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH and not status.st_mode & 0o022
    return contents(path, _LARGEST) if public and status.st_uid == 0 and status.st_size < _LARGEST else None


# ---- for one policy


def with_accounts(policy: Policy, host: Host) -> Host:
    """Return the host as a workspace's plan needs it: with this policy's user, and the caller's certificates.

    For equal facts it is the same object, so that what was prepared for it is found again.
    """
    uid = host.euid if policy.uid is None else policy.uid
    gid = host.egid if policy.gid is None else policy.gid
    variables = () if policy.network == "none" else tuple((n, v) for n in CERTIFICATES if (v := os.environ.get(n)))
    if (uid, gid) == (host.euid, host.egid) and not variables:
        return host
    where = policy if variables else None  # its paths decide which certificates have to be shown
    here = os.getcwd() if variables and not all(v.startswith("/") for _, v in variables) else ""
    hidden = _denied(policy, host, variables) if variables and policy.deny else frozenset()
    key = (host, uid, gid, variables, where, here, hidden)
    known = _hosts.get(key)
    if known is None:
        known = host if (uid, gid) == (host.euid, host.egid) else with_user(host, uid, gid)
        if variables:
            known = _with_certificates(policy, known, variables, hidden)
        if len(_hosts) >= _MOST_KEPT:
            _hosts.clear()
        _hosts[key] = known
    return known


def _entries(name: str, value: str) -> list[str]:
    """Return the paths in a variable: SSL_CERT_DIR may have several directories (OpenSSL), all others have one path."""
    return [entry for entry in (value.split(":") if name == "SSL_CERT_DIR" else [value]) if entry]


def _denied(policy: Policy, host: Host, variables: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Return the paths in these variables that deny hides, by their names or by their targets, even in part.

    A pattern that begins with "**/" also applies to what is only shown because a variable names it.
    """
    patterns = anywhere(policy.deny, (*policy.write, *policy.read))
    paths = set()
    for path in {entry for name, value in variables for entry in _entries(name, value)}:
        names, real = {os.path.abspath(path), os.path.realpath(path)}, os.path.realpath(path)
        more = () if _is_visible(policy, host, real) else patterns
        is_hidden = any(hides(denied, one) for denied in (*policy.deny, *more) for one in names)
        if is_hidden or (more and os.path.isdir(real) and _holds(real, more)):
            paths.add(path)
    return frozenset(paths)


def _holds(directory: str, patterns: tuple[str, ...]) -> bool:
    """Say if a directory contains something that a pattern covers, or too much to find out."""
    left = _MOST_ENTRIES
    for at, directories, files in os.walk(directory):
        left -= len(directories) + len(files)
        if left < 0 or any(covers(pattern, f"{at}/{name}") for name in (*directories, *files) for pattern in patterns):
            return True
    return False


def _with_certificates(
    policy: Policy, host: Host, variables: tuple[tuple[str, str], ...], hidden: frozenset[str]
) -> Host:
    values: list[tuple[str, str]] = []
    files: list[str] = []
    for name, value in variables:
        entries = [entry for entry in _entries(name, value) if entry not in hidden]
        paths = [real for entry in entries if (real := _certificate(policy, host, name, entry)) is not None]
        files += [path for path in paths if os.path.exists(path) and not _is_visible(policy, host, path)]
        if paths:
            values.append((name, ":".join(paths)))
    return replace(host, certificates=tuple(values), certificate_files=tuple(dict.fromkeys(files)))


def _certificate(policy: Policy, host: Host, name: str, path: str) -> str | None:
    """Return where a path leads, or the path itself if it leads nowhere; None if that must not be shown.

    A link in a directory that commands can write to isn't followed out of it: see _paths.resolution. A directory
    that contains a home, a workspace or something hidden isn't shown, since only certificates are meant.
    """
    if not os.path.exists(path):
        return path
    names = Resolution()
    try:
        real = names.existing("certificates", path)
        names.check(policy.write)
    except PolicyError:
        return None
    if _is_visible(policy, host, real):
        return real
    around = (os.path.realpath(os.path.expanduser("~")), *policy.write, *policy.deny)
    hidden = (*host.secrets, *host.private, *filter(None, [host.state]))
    own = ("/proc", "/dev", "/sys", *hidden)
    if any(is_below(real, top) for top in own) or any(is_below(top, real) for top in (*around, *hidden)):
        return None
    mode = os.stat(real).st_mode
    return real if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and name not in _FILES) else None


def _is_visible(policy: Policy, host: Host, path: str) -> bool:
    shown = (*policy.write, *policy.read, *(top for top, link in host.directories if link is None))
    return any(is_below(path, top) for top in shown)
