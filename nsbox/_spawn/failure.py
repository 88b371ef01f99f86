"""The exception for a spawn that failed, made of its errno and its step. No other module does that."""

from __future__ import annotations

import errno
import os

from nsbox._backends.refusals import refused_calls, refused_userns
from nsbox._base.display import printable
from nsbox._base.errors import AccessError, IdsError, ProcessesError, SetupError, StaleError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._core import command
from nsbox._core.abi import constants as c
from nsbox._paths.patterns import hides
from nsbox._plan.ops import Op
from nsbox._plan.plan import Plan
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._plan.host import Host
    from nsbox._spawn.start import Named, Start

_STEPS = {
    "PLAN": "malformed plan",
    "CLONE": "clone",
    "LIFELINE": "tie the sandbox to this process",
    "UNSHARE": "unshare namespaces",
    "UID_MAP": "write uid_map",
    "GID_MAP": "write gid_map",
    "SETGROUPS": "write setgroups",
    "ROOT": "make the root file system",
    "SOURCE": "open source",
    "DEST": "resolve destination",
    "CREATE": "create destination",
    "HOST": "would change the host",
    "FS": "make file system",
    "ATTR": "set mount attributes",
    "ATTACH": "mount",
    "WRITE": "write contents",
    "SET": "set",
    "PIVOT": "pivot_root",
    "SECOND_USERNS": "unshare second user namespace",
    "INIT": "start pid 1",
    "COMMAND": "clone the command",
    "STDIO": "set up stdin, stdout, stderr",
    "CHDIR": "chdir",
    "SESSION": "setsid",
    "PGID": "setpgid",
    "RLIMIT": "setrlimit",
    "GROUPS": "setgroups",
    "GID": "setgid",
    "UID": "setuid",
    "CAPS": "drop capabilities",
    "NNP": "set no_new_privs",
    "FDS": "pass_fds",
    "EXEC": "exec",
    "KILLED": "the set-up was killed from outside",
    "SECCOMP": "install the seccomp filter",
    "PREEXEC": "preexec_fn",
    "LANDLOCK": "Landlock",
    "JOIN": "join a namespace",
    "LIMIT_USERNS": "limit user namespaces",
    "HOLD": "wait for the word to go on",
    "STALE": "enter a sandbox that is kept",
    "SANDBOX": "apply the profile",
    "HELPER": "execute the helper program",
    "KERNEL_ID": "take unused kernel ids",
    "IDMAP": "map the owner of the source",
    "INOTIFY": "limit inotify's instances",
    "TERMINAL": "make it the command's terminal",
    "NET": "network list",
}


_TOO_MANY_PROCESSES = "too many processes: RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max is reached"
_TOO_MANY_FILES = "this process has too many open files: raise RLIMIT_NOFILE (ulimit -n)"


def step_name(step: int) -> str:
    """Return the words for a step of a spawn."""
    for name, text in _STEPS.items():
        if getattr(c, f"STEP_{name}") == step:
            return text
    return f"step {step}"


def _userns_hint(step: int, number: int, host: Host) -> str:
    if number not in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.ENOSYS, errno.EINVAL):
        return ""
    reason = refused_userns(number, host, is_uid_map=step == c.STEP_UID_MAP)
    return f"{reason.what}: {reason.remedy}" if reason.remedy else reason.what


def _op_hint(result: command.Result, op: Op | None) -> str:
    step = result.step
    if step == c.STEP_HOST:
        return (
            "a bound directory of the host lacks this destination, or it leads there by a symlink: "
            "make it on the host first, or mount a tmpfs above it"
        )
    if step == c.STEP_SOURCE and result.error == errno.ENOENT and op is not None:
        return "the source doesn't exist (any more); optional=True lets it be missing"
    if step == c.STEP_DEST and result.error == errno.ELOOP:
        return "a part of the path has become a symlink since the policy was made; it is not followed"
    if step == c.STEP_SOURCE and result.error == errno.ELOOP:
        return "a part of the source has become a symlink since the policy was made; it is not followed"
    if step == c.STEP_SOURCE and result.error == errno.ESTALE:
        return "something else is at this path by now: end what renames files there"
    if step == c.STEP_IDMAP:
        return (
            "what is mounted there, or below, has no idmapped mounts (any more), which a root caller's commands use: "
            "ids='full' does without them"
        )
    if step == c.STEP_FS and result.error == errno.EPERM:
        return (
            "a new procfs needs a fully visible /proc: in a container, run with --security-opt systempaths=unconfined; "
            "in a sandbox of nsbox, its policy needs nested=True"
            if op is not None and op.row()[0] == "proc"
            else "this kernel doesn't allow this file system in a user namespace"
        )
    if step == c.STEP_ATTACH and result.error in (errno.EINVAL, errno.ENOTDIR):
        return "a directory can't be mounted on a file, nor a file on a directory"
    if step == c.STEP_CREATE and result.error == errno.EEXIST:
        return "something else is at the destination already; a link there is not followed"
    if step == c.STEP_CREATE and result.error == errno.EROFS:
        return "an earlier op made this place read-only"
    if step == c.STEP_FS and op is not None and op.row()[0] == "overlay" and result.error == errno.EINVAL:
        return "overlayfs refuses a layer with mounts below it, and an upper directory on another overlay"
    return ""


_FILTER_HINTS = {
    errno.EINVAL: "the kernel refuses a program of Filter.programs",
    errno.ENOMEM: "all filters of a process together have at most 32768 instructions",
    errno.EPERM: "a program of Filter.programs refuses prctl(2), by which the next one is installed",
}


def _pidns_hint(step: int, number: int) -> str:
    """Return a hint about a pid namespace that is joined; "" if there is none."""
    if step == c.STEP_JOIN and number == errno.EPERM:
        return (
            "a process that joins a pid namespace must be non-dumpable (prctl(2)), and have power over it: join its "
            "userns too"
        )
    if step == c.STEP_UNSHARE and number == errno.EINVAL:
        return "pidns belongs to a user namespace that the sandbox's isn't below: join that one too, by userns"
    if step in (c.STEP_INIT, c.STEP_COMMAND) and number in (errno.ENOMEM, errno.ESRCH):  # before, or just now
        return "pid 1 of pidns has ended"
    if step == c.STEP_INIT and number == errno.ENOENT:
        return "/proc must be that of this process's pid namespace"
    return ""


def _hint(result: command.Result, op: Op | None, host: Host) -> str:
    step, number = result.step, result.error
    if number == errno.EMFILE:
        return _TOO_MANY_FILES
    if number == errno.EAGAIN and step in (c.STEP_CLONE, c.STEP_INIT, c.STEP_COMMAND, c.STEP_UID_MAP):
        return _TOO_MANY_PROCESSES
    if step == c.STEP_CLONE and number == errno.ENOSYS:
        return "a seccomp filter of this process refuses clone3(2), by which a process starts in a cgroup"
    if step == c.STEP_CLONE and number in (errno.EPERM, errno.EACCES) and host.is_filtered:
        reason = refused_calls((("clone", number),))
        return f"{reason.what}: {reason.remedy}"
    if step == c.STEP_INIT and number == errno.EINVAL:
        return "this kernel can't begin a time namespace here: Linux 6.1 can't, 6.12 can"
    if step == c.STEP_LANDLOCK and number in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
        return "the path is gone, or a part of it has become a symlink, since the policy was made"
    if step == c.STEP_SECCOMP and number in _FILTER_HINTS:
        return _FILTER_HINTS[number]
    if step == c.STEP_SESSION and number == errno.EPERM:
        return "preexec_fn has made it the leader of a process group; a session (new_session=True) has one anyway"
    if step == c.STEP_SANDBOX and number == errno.EPERM:
        return "inside a sandbox, macOS refuses another one: is this process in one?"
    if step == c.STEP_HELPER:
        return "it belongs to the package, as nsbox/_helper: install that again"
    if step == c.STEP_COMMAND and number == errno.EPERM:
        return "a seccomp filter refuses CLONE_PARENT: in another sandbox of nsbox, its policy needs nested=True"
    if step in (c.STEP_UNSHARE, c.STEP_UID_MAP, c.STEP_GID_MAP, c.STEP_SETGROUPS, c.STEP_SECOND_USERNS):
        return _userns_hint(step, number, host)
    if step == c.STEP_ROOT and number in (errno.EPERM, errno.EACCES):
        return _userns_hint(step, number, host)
    return _op_hint(result, op)


def _hidden_by(policy: Policy, path: str) -> str | None:
    """Return the entry of the policy's deny= that hides this path; None if there is none."""
    real = os.path.realpath(path)
    return next((entry for entry in policy.deny if hides(entry, real)), None)


def _other_place(path: str, start: Start) -> str | None:
    """Return where a command starts if a relative path of its program leads elsewhere from there than from here."""
    place = os.fsdecode((start.policy.workdir or "") if start.cwd is None else start.cwd)
    is_elsewhere = not path.startswith("/") and os.path.realpath(os.path.join(place, path)) != os.path.realpath(path)
    return place if is_elsewhere else None


def _note_invisible(error: OSError, start: Start, host: Host) -> OSError:
    """Add a note to an error for a program that the host has and the sandbox lacks, or that the policy hides."""
    policy, name = start.policy, os.fsdecode(start.program)
    import shutil  # seldom needed, and not small

    path = name if "/" in name else shutil.which(name) or name
    if error.errno == errno.ENOENT and "/" in path and os.path.exists(path):
        if (place := _other_place(path, start)) is not None:
            error.add_note(f"nsbox: a relative path counts from where the command starts, {printable(place)}")
            return error
        real = os.path.realpath(path)
        shown = (*policy.write, *policy.read, *(top for top, link in host.directories if link is None))
        if policy.base == "workspace" and real != path and not any(is_below(real, top) for top in shown):
            from nsbox._lookup.pythons import prefix_of  # seldom needed

            prefix = prefix_of(real)
            help = "" if prefix is None else f": add read=[{printable(prefix)!r}] for that Python"
            led = f"is a link to {printable(real)}, which isn't in the sandbox"
            error.add_note(f"nsbox: {printable(path)} {led}{help}")
            return error
        error.add_note(
            f"nsbox: {printable(path)} exists on the host; the sandbox lacks it, or the interpreter or loader that it "
            "names"
        )
    elif error.errno == errno.EACCES and (denied := _hidden_by(policy, path)) is not None:
        error.add_note(f"nsbox: the policy denies {printable(denied)}")
    return error


def _chdir_error(result: command.Result, policy: Policy, host: Host, cwd: Named | None) -> OSError:
    path = os.fsdecode(cwd) if cwd is not None else "?"
    if result.error == errno.ENOENT and os.path.lexists(path) and policy.base == "workspace":
        inside = ", ".join((*policy.write, *policy.read))
        return AccessError(path, f"is not in the sandbox; readable there, besides the system: {inside}")
    if result.error == errno.EACCES and (denied := _hidden_by(policy, path)) is not None:
        return AccessError(path, f"is hidden in the sandbox: the policy denies {denied}")
    is_policys = isinstance(cwd, bytes) and path == policy.workdir  # unless a caller named the same path as bytes
    error = OSError(result.error, os.strerror(result.error), path if is_policys else cwd)
    if is_policys:
        error.add_note(f"nsbox: it is the policy's workdir, where commands start: {printable(path)}")
    if result.error == errno.EACCES and policy.base == "workspace":
        from nsbox._layout.owner import remedy

        if instead := remedy(policy, host, os.path.realpath(path)):
            error.add_note(f"nsbox: {instead}")
    return error


def _what(result: command.Result, plan: Plan, ops: Sequence[Op]) -> str | None:
    """Return what a step was about: an op, or a path that Landlock was to allow."""
    if result.step == c.STEP_LANDLOCK:
        paths = plan.ruleset.paths if plan.ruleset else ()
        return f"allow {paths[result.op].path}" if 0 <= result.op < len(paths) else None
    return ops[result.op].describe() if 0 <= result.op < len(ops) else None


def exception(result: command.Result, start: Start, host: Host, in_session: str = "") -> Exception:
    """Return what to raise for a spawn that failed. in_session: what helps in one that has no room for a process."""
    policy, plan, ops, program = start.policy, start.prepared.plan, start.prepared.ops, start.program
    if result.step == c.STEP_EXEC:
        error = _note_invisible(OSError(result.error, os.strerror(result.error), program), start, host)
        if plan.backend == "seatbelt" and result.error == errno.EPERM:
            error.add_note("nsbox: the sandbox doesn't let this be executed: it can't be read there, or is set-user-ID")
        return error
    if result.step == c.STEP_PREEXEC:
        from subprocess import SubprocessError

        return SubprocessError("Exception occurred in preexec_fn.")
    if result.step == c.STEP_CHDIR:
        return _chdir_error(result, policy, host, start.cwd)
    op = ops[result.op] if result.step != c.STEP_LANDLOCK and 0 <= result.op < len(ops) else None
    hint = (_pidns_hint(result.step, result.error) if plan.pidns is not None else "") or _hint(result, op, host)
    kind: type[SetupError] = StaleError if result.step == c.STEP_STALE else SetupError
    if result.step in (c.STEP_GROUPS, c.STEP_GID, c.STEP_UID) and result.error == errno.EPERM:
        kind = IdsError
    elif result.step in (c.STEP_CLONE, c.STEP_INIT, c.STEP_COMMAND) and result.error == errno.EAGAIN:
        kind = ProcessesError
        limit = policy.limits.processes if in_session else None
        if limit is not None:
            hint = hint.replace("RLIMIT_NPROC", f"limits.processes={limit}, RLIMIT_NPROC")
        hint += f"; {in_session}" if in_session else ""
    return kind(result.error, step_name(result.step), _what(result, plan, ops), hint)
