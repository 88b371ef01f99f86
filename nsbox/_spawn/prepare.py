"""What is made once for each policy and host: the plan, checked, its request, and what its commands start with.

Lean: a function imports `_spawn.seatbelt` (12 ms) for macOS.
"""

from __future__ import annotations

import os

from nsbox import _backends
from nsbox._base.checks import check_answer
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, remembered
from nsbox._base.paths import is_below
from nsbox._core import linux
from nsbox._core.request import Request, request_for
from nsbox._homes.reach import note
from nsbox._homes.state import check_detours, check_overlays, make_state, with_sources
from nsbox._logs import logger
from nsbox._plan.ops import BindData, BindFd, Dev, File, Op, Overlay, Proc, Tmpfs, primitives
from nsbox._plan.plan import Plan
from nsbox._seccomp.bpf import NEWER
from nsbox._seccomp.filter import profiled
from nsbox._spawn.environment import Environment

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._spawn.seatbelt import Places


@frozen
class Prepared(Frozen):
    """A policy ready for this host: its plan, and everything in a request that doesn't depend on the command."""

    plan: Plan
    ops: tuple[Op, ...]
    request: Request | None  # None: contents come from descriptors, so it is made for each spawn
    says_empty: bool  # the init's word is enough for the end: nothing else depends on its unmounting
    environment: Environment
    starts: dict[str, bytes]  # where commands without a cwd start, by the caller's current directory
    places: Places | None = None  # with the backend of macOS


def check_resolved(policy: Policy) -> None:
    """Refuse paths that a link leads elsewhere: something else would be bound or masked there."""
    for name in ("write", "read", "deny"):
        for path in getattr(policy, name):
            real = os.path.realpath(path)
            if real != path:
                raise PolicyError(
                    name, f"{path} is, by a symlink, {real}; Policy.workspace() and with_() resolve paths"
                )


def _check_calls(policy: Policy) -> None:
    """Refuse unknown names of system calls: with a misspelled one, the call meant would stay allowed."""
    names = policy.filter.names()
    if not names:
        return
    here = NEWER.keys() | linux.syscalls()[1].keys()
    unknown = names - here - profiled()
    for rule in policy.filter.rules:
        if here.isdisjoint(rule.calls):  # all of them are another machine's
            unknown |= frozenset(rule.calls)
    if unknown:
        raise PolicyError("seccomp", f"{', '.join(sorted(unknown))}: no system call that this machine's headers know")


@remembered
def _warn_once(text: str, is_shown: bool = False) -> None:
    logger.warning("%s", text, is_shown=is_shown)


def _warn_of_imports(policy: Policy, host: Host) -> None:
    """Warn if the caller imports from a path that commands can write to: it can't be made read-only.

    It warns only in a log that the program keeps. A program in its own workspace is usual, and its standard error is
    its own.
    """
    path = next((path for path in host.imports if path in policy.write), None)
    if path is not None and logger.has_handler():
        _warn_once(
            f"commands can write to {path}, from which this program imports modules: what they leave there can run "
            "outside. Start it with python -P, or keep it elsewhere"
        )


def _warn_of_passthrough(policy: Policy, host: Host) -> None:
    reasons = "; ".join(str(reason) for reason in _backends.choose(policy, host)[1]) or "so asked for by backend="
    _warn_once(f"commands run without any containment: {reasons}", True)


_latest: tuple[Policy, Host, Prepared] | None = None


def prepare(policy: Policy, host: Host) -> Prepared:
    """Compile and encode, once for each policy and host."""
    global _latest
    latest = _latest
    if latest is not None and latest[0] is policy and latest[1] is host:  # a comparison would read all of their fields
        return latest[2]
    if any(isinstance(op, BindFd) for op in policy.ops):  # the same number may be another directory's each time
        prepared = _prepared(policy, with_sources(policy, host))
        note(policy, prepared.plan)
        return prepared
    prepared = _prepared(policy, host)
    _latest = (policy, host, prepared)
    return prepared


def forget() -> None:
    """Forget everything that was prepared."""
    global _latest
    _latest = None
    _prepared.cache_clear()  # type: ignore[attr-defined]


@remembered
def _prepared(policy: Policy, host: Host) -> Prepared:
    host = host if host.sources else with_sources(policy, host)
    plan = _backends.compile_policy(policy, host)
    if plan.backend == "passthrough":
        _warn_of_passthrough(policy, host)
    else:
        check_resolved(policy)
        check_detours(policy, host)
        check_overlays(policy, host)
        make_state(policy, host)
        note(policy, plan)
        _warn_of_imports(policy, host)
        if plan.programs:
            _check_calls(policy)
    ops = () if plan.wrapper or plan.backend == "seatbelt" else tuple(primitives(plan.ops))
    from_fds = any(isinstance(op, File | BindData) and isinstance(op.data, int) for op in ops)
    outlasts = policy.nested or plan.plain or plan.cgroup or any(isinstance(op, Overlay) for op in ops)
    return Prepared(
        plan=plan,
        ops=ops,
        request=None if from_fds or plan.backend == "passthrough" else request_for(plan, ops),
        says_empty=not outlasts,
        environment=Environment(policy, host, plan),
        starts={},
        places=_places(plan),
    )


def _places(plan: Plan) -> Places | None:
    if plan.backend != "seatbelt":
        return None
    from nsbox._spawn.seatbelt import Places

    return Places(plan)


def _is_covered(plan: Plan, path: str) -> bool:
    """Return whether a file system of the sandbox's own lies over a path, as its /tmp does under read=["/"]."""
    above = [(len(op.dest), op) for op in plan.ops if hasattr(op, "dest") and is_below(path, op.dest)]
    top = max(reversed(above), key=lambda row: row[0], default=(0, None))[1]
    return isinstance(top, Tmpfs | Proc | Dev)


def start_directory(policy: Policy, prepared: Prepared) -> bytes:
    """Return where a command without a cwd starts, under a policy that has a workdir."""
    assert policy.workdir is not None
    try:
        here = os.getcwd()
    except OSError as error:  # it has been removed, or a directory above it can't be read
        check_answer(error)
        return os.fsencode(policy.workdir)
    start = prepared.starts.get(here)
    if start is None:
        is_shown = policy.sees(here) and not _is_covered(prepared.plan, here)
        start = os.fsencode(here if here == policy.workdir or is_shown else policy.workdir)
        if len(prepared.starts) < 64:
            prepared.starts[here] = start
    return start
