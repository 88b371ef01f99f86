"""doctor(): which parts of sandboxes work on this machine, found out by trying them, and what helps if one doesn't."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Literal

from nsbox._backends import compile_policy, namespaces, seatbelt
from nsbox._backends.limits import DELEGATION
from nsbox._base.errors import NsboxError, SetupError, UnavailableError
from nsbox._base.frozen import Frozen, frozen, replace
from nsbox._base.paths import PACKAGE
from nsbox._core import darwin, linux
from nsbox._lookup.host import host_for
from nsbox._machine import cgroup
from nsbox._machine.probe import probe
from nsbox._network.network import Network
from nsbox._plan.host import Host
from nsbox._plan.ops import Dev, Mqueue, Proc, RoBind, TmpOverlay
from nsbox._policy.losses import LOSSES, Losses, words_for
from nsbox._policy.policy import Policy
from nsbox._popen.popen import Popen
from nsbox._relay import proxy
from nsbox._relay.relay import Relay

State = Literal["works", "fails", "not tried"]
DEFAULT = "the default policy, whole"
DEGRADED = "the default policy, degraded"


@frozen
class Check(Frozen):
    """The result of trying one thing.

    name: what was tried.
    state: "works", "fails" or "not tried".
    is_needed: whether the default policy needs it, if namespaces contain that.
    said: what came out, in words; "" if there is nothing to add.
    remedy: what helps if it fails, or for DEGRADED what to write; "" if nothing is known.
    """

    name: str
    state: State
    is_needed: bool
    said: str = ""
    remedy: str = ""


_TRUE = shutil.which("true", path="/usr/bin:/bin") or sys.executable
_ROOT = RoBind("/", "/")

# Each is tried in a sandbox that uses it, in this order, since most of them need the first.
_SANDBOXES: tuple[tuple[str, bool, Policy], ...] = tuple(
    (name, is_needed, policy.with_(backend="namespaces"))
    for name, is_needed, policy in (
        ("user, mount and pid namespaces", True, Policy.layers(_ROOT)),
        ("ipc, uts, cgroup namespaces", True, Policy.layers(_ROOT, unshare={"ipc", "uts", "cgroup"})),
        ("net namespace", True, Policy.layers(_ROOT, unshare={"net"})),
        ("procfs", True, Policy.layers(_ROOT, Proc("/proc"))),
        ("devices, devpts", True, Policy.layers(_ROOT, Dev("/dev"))),
        ("message queues", False, Policy.layers(_ROOT, Mqueue("/dev"), unshare={"ipc"})),
        ("overlayfs in a user namespace", False, Policy.layers(_ROOT, TmpOverlay(("/usr",), "/usr"))),
        ("time namespace", False, Policy.layers(_ROOT, unshare={"time"})),
        ("all ids mapped", False, Policy.layers(_ROOT, ids="full")),
        ("Landlock, rules about files", False, Policy.layers(_ROOT, Proc("/proc"), landlock=True)),
    )
)
# The other backends: they contain less, or leave it to another program to contain.
_INSTEAD: tuple[tuple[str, Policy], ...] = (
    ("bubblewrap, where namespaces are refused", Policy.layers(_ROOT, Dev("/dev"), Proc("/proc"), backend="bwrap")),
    ("Landlock alone, where namespaces are refused", Policy.host(backend="landlock", degrade={"processes"})),
)


def _attempt(policy: Policy) -> Exception | str:
    """Run a program that does nothing; return the backend that contained it, or what went wrong."""
    command = [_TRUE, "-c", ""] if sys.executable == _TRUE else [_TRUE]
    try:
        with Popen(command, policy=policy, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            status = process.wait()
    except (NsboxError, OSError) as error:
        return error
    return (
        process.sandbox.backend
        if status == 0
        else ChildProcessError(errno.ECHILD, f"{_TRUE} ended with status {status}")
    )


def _failed(name: str, is_needed: bool, error: Exception, backend: str = "") -> Check:
    """Return the Check of what failed. backend: the only one that was tried, so that it needs no name; "": several."""
    if isinstance(error, UnavailableError):
        words, remedy = (  # two backends can have the same remedy
            "; ".join(dict.fromkeys(filter(None, (getattr(r, part) for r in error.reasons))))
            for part in ("what", "remedy")
        )
        return Check(name, "fails", is_needed, words.removeprefix(f"{backend}: "), remedy)
    if isinstance(error, SetupError):
        where = f"{error.op}: {error.step}" if error.op else error.step
        number = errno.errorcode.get(error.errno or 0, str(error.errno))
        return Check(name, "fails", is_needed, f"{where}: {error.strerror} ({number})", error.hint)
    return Check(name, "fails", is_needed, str(error))


def _sandboxes() -> Iterator[Check]:
    works = True
    for name, is_needed, policy in _SANDBOXES:
        if not works:
            yield Check(name, "not tried", is_needed, "it needs user namespaces")
            continue
        result = _attempt(policy)
        if not isinstance(result, str) and policy is _SANDBOXES[0][2]:
            works = False
        yield (
            Check(name, "works", is_needed)
            if isinstance(result, str)
            else _failed(name, is_needed, result, policy.backend)
        )
    for name, policy in _INSTEAD:
        result = _attempt(policy)
        yield Check(name, "works", False) if isinstance(result, str) else _failed(name, False, result, policy.backend)


def _default_policy() -> Iterator[Check]:
    """Try the default policy as a whole. If that fails, first say how few losses let it run here, if any do."""
    try:
        with tempfile.TemporaryDirectory(prefix="nsbox-doctor-") as directory:
            policy = Policy.workspace(directory)
            result = _attempt(policy)
            if isinstance(result, UnavailableError | SetupError):
                yield from _degraded(policy)
    except OSError as error:  # there is no place for the directory
        result = error
    if isinstance(result, str):
        yield Check(DEFAULT, "works", True, f"by {result}")
    else:
        yield _failed(DEFAULT, True, result)


def _degraded(policy: Policy) -> Iterator[Check]:
    """Try a policy that fails here with what its plan has to lose, and with no other loss."""
    for weaker, way, option in (
        (policy, "", ""),
        (policy.with_(backend="landlock"), 'backend="landlock", ', "--backend landlock "),  # if a mount is refused
    ):
        try:
            lost = compile_policy(weaker.with_(degrade=LOSSES), host_for(weaker)).lost
        except UnavailableError:
            continue
        words = words_for(lost)
        result = _attempt(weaker.with_(degrade=words)) if lost else None
        if isinstance(result, str):
            spelled = ", ".join(f'"{word}"' for word in words)
            line = f"Policy.workspace(..., {way}degrade={{{spelled}}})"
            command = f"nsbox run {option}--degrade {','.join(words)}"
            said = f"by {result}; lost: {Losses(lost).details()}"
            yield Check(DEGRADED, "works", False, said, f"{line}, or {command}")
            return


# ---- what needs no sandbox


def _pidfds() -> str:
    fd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)
    return ""


def _memfd_exec() -> str:
    """Execute a file in memory, as each sandbox's init is executed."""
    with open(os.memfd_create("nsbox-doctor"), "wb") as file:
        file.write(f"#!{_TRUE}\n".encode())
        file.flush()
        path = f"/proc/self/fd/{file.fileno()}"
        subprocess.run([path], pass_fds=[file.fileno()], check=True, stdin=subprocess.DEVNULL, timeout=60)
    return ""


def _seccomp_actions() -> str:
    path = "/proc/sys/kernel/seccomp/actions_avail"
    with open(path, encoding="ascii") as file:
        actions = file.read().split()
    lacking = {"errno", "allow"} - set(actions)
    if lacking:
        raise OSError(errno.ENOTSUP, f"seccomp can't {', '.join(sorted(lacking))}")
    return "" if "user_notif" in actions else "without user notification"


def _landlock() -> str:
    abi = linux.landlock_abi()
    if abi == 0:
        raise OSError(errno.ENOTSUP, "the kernel has no Landlock, or it was switched off at boot")
    return f"version {abi}"


def _cgroups() -> str:
    """Make a cgroup where sandboxes would have theirs."""
    place = cgroup.look()
    if not place.directory:
        raise OSError(errno.ENOTSUP, place.problem)
    path = f"{place.directory}/nsbox-doctor-{os.getpid()}"
    os.mkdir(path)
    os.rmdir(path)
    lacking = [name for name in cgroup.CONTROLLERS if name not in place.controllers]
    if lacking:
        raise OSError(errno.ENOTSUP, f"{place.directory} lacks the controllers {' '.join(lacking)}")
    return place.directory


_GET_RULE, _RULE, _ERROR = 34, 32, 2  # <linux/rtnetlink.h>, <linux/netlink.h>
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP


def _network_lists() -> str:
    """Look for the relay's program, and for the kernel's routing rules, which lead a sandbox's packets to it."""
    program = os.path.join(PACKAGE, "nsbox-net")
    if not os.access(program, os.X_OK):
        raise OSError(errno.ENOENT, "the program nsbox-net isn't in this package")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as netlink:
        netlink.settimeout(60)
        netlink.send(struct.pack("=IHHIIB11x", 28, _GET_RULE, _DUMP, 1, 0, socket.AF_INET))
        kind, number = struct.unpack_from("=4xH10xi", netlink.recv(1 << 16))
    if kind != _RULE:
        code = -number if kind == _ERROR else errno.EOPNOTSUPP
        raise OSError(code, "the kernel has no rules about routes")
    return program


_OTHERS: tuple[tuple[str, bool, Callable[[], str], str], ...] = (
    ("pidfds", True, _pidfds, "Linux 5.4 or later"),
    (
        "programs in memory (memfd)",
        False,
        _memfd_exec,
        "sysctl vm.memfd_noexec=0; without it, nsbox uses a file in a tmpfs",
    ),
    ("seccomp filters", True, _seccomp_actions, "a kernel with CONFIG_SECCOMP_FILTER"),
    ("Landlock", False, _landlock, "Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and landlock in lsm= at boot"),
    (
        "network lists",
        False,
        _network_lists,
        "a kernel with CONFIG_IP_MULTIPLE_TABLES, and nsbox from a wheel, or built with its relay",
    ),
    (
        "cgroup v2, delegated",
        False,
        _cgroups,
        DELEGATION,
    ),
)


def _others(checks: tuple[tuple[str, bool, Callable[[], str], str], ...]) -> Iterator[Check]:
    for name, is_needed, attempt, remedy in checks:
        try:
            words = attempt()
        except (OSError, subprocess.SubprocessError) as error:
            number = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
            text = getattr(error, "strerror", None) or str(error)
            is_ours = number in ("", "ENOTSUP")  # the text says it all
            yield Check(name, "fails", is_needed, text if is_ours else f"{text} ({number})", remedy)
        else:
            yield Check(name, "works", is_needed, words)


def _core_check(host: Host) -> Check:
    name = "Linux, and the C core"
    # The check that tries user namespaces says what forbids them.
    reasons = namespaces.missing(replace(host, max_user_namespaces=None, unprivileged_userns=None, userns_error=0))
    if reasons:
        return _failed(name, True, UnavailableError(*reasons))
    return Check(name, "works", True, f"Linux {'.'.join(map(str, host.kernel))} on {host.machine}")


# ---- macOS

_ANYTHING = "(version 1)\n(allow default)\n"


def _not_confined() -> str:
    if darwin.is_confined():
        raise OSError(errno.EPERM, "this process is in a sandbox, and macOS refuses another inside of it")
    return ""


def _compiles() -> str:
    try:
        darwin.compile(_ANYTHING.encode(), ())
    except ValueError as error:
        raise OSError(errno.EINVAL, f"libsandbox: {error}") from None
    return ""


def _helper() -> str:
    """Run the helper program without arguments: then it does nothing."""
    subprocess.run([darwin.HELPER], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    return darwin.HELPER


def _proxy() -> str:
    """Start the proxy, which says its port, and end it."""
    relay = Relay(Network())
    try:
        relay.line()
    finally:
        relay.close()
    return proxy.PROGRAM


def _sandbox_exec() -> str:
    subprocess.run([darwin.PROGRAM, "-p", _ANYTHING, _TRUE], check=True, stdin=subprocess.DEVNULL, timeout=60)
    return darwin.PROGRAM


_OF_SEATBELT: tuple[tuple[str, bool, Callable[[], str], str], ...] = (
    ("not in a sandbox already", True, _not_confined, "start nsbox outside of that sandbox"),
    ("profiles compiled in this process", False, _compiles, "without it, each start needs one more program"),
    ("the helper program", True, _helper, "install nsbox again, from a wheel for macOS"),
    ("the proxy of network lists", False, _proxy, "install nsbox again, from a wheel for macOS"),
    ("sandbox-exec(1)", False, _sandbox_exec, "only needed where libsandbox's functions are missing"),
)


def _seatbelts(host: Host) -> Iterator[Check]:
    name = "macOS, and the C core"
    if host.core_problem:
        yield _failed(name, True, UnavailableError(*seatbelt.missing(host)))
        return
    yield Check(name, "works", True, f"Darwin {'.'.join(map(str, host.kernel))} on {host.machine}")
    yield from _others(_OF_SEATBELT)
    yield from _default_policy()


def doctor() -> tuple[Check, ...]:
    """Return a Check for each thing that sandboxes need, tried for real; the default policy itself is last.

    This takes some hundredths of a second, and leaves nothing behind. All is well if the last one works. It needs those
    with is_needed, unless another backend stands in for namespaces.
    """
    host = probe(refresh=True)
    if host.system == "Darwin":
        return tuple(_seatbelts(host))
    first = _core_check(host)
    if first.state == "fails":
        return (first,)
    return (first, *_sandboxes(), *_others(_OTHERS), *_default_policy())
