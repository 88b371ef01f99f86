"""Which system calls a command may make: Filter, which is the wish; calls that no command may make; rules of a profile.

The tables of the profiles are in profiles.py, the assembler of rules in bpf.py. Backends decide when programs are
installed.

Lean: `profiles` (0.6 ms) is imported for a profile; the filters of most command lines of bwrap are ready-made.
"""

from __future__ import annotations

from nsbox._base.checks import is_iterable
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen_by_name, remembered
from nsbox._seccomp.bpf import ENOSYS, EPERM, MAX_INSTRUCTIONS, Arg, Rule, has_bit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

PROFILES = ("default", "hardened", "off")
_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


@frozen_by_name
class Filter(Frozen):
    """A seccomp filter of your own: a profile, with changes.

    base: the profile: "default", "hardened" or "off".
    allow: names of system calls whose rules in the profile are dropped. "ptrace" also lets processes trace each other's
        exit, which can make them unkillable.
    rules: Rules that refuse more. They are installed right before the command's program is executed, so that they don't
        stop the set-up. A rule that refuses execve lets no program start at all.
    programs: ready BPF programs, which are installed last, in this order. Each is an array of struct sock_filter, as
        bwrap's --seccomp takes it.

    If there are rules, system calls of 32-bit programs don't exist, as in every profile except "off".
    Raises PolicyError for a malformed field, and later, when the policy is used, for a name that no machine has.
    """

    base: Literal["default", "hardened", "off"] = "default"
    allow: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    programs: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.base not in PROFILES:
            raise PolicyError("seccomp.base", f"{self.base!r} is unknown, must be one of {', '.join(PROFILES)}")
        for name in ("allow", "rules", "programs"):
            value: object = getattr(self, name)
            if isinstance(value, str | bytes) or not is_iterable(value):
                raise PolicyError(f"seccomp.{name}", f"is {type_phrase(value)}, must be a sequence")
            object.__setattr__(self, name, tuple(value))
        for call in self.allow:
            if not isinstance(call, str) or not call or not _IN_NAMES.issuperset(call):
                raise PolicyError("seccomp.allow", f"{call!r} isn't a name of a system call")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise PolicyError("seccomp.rules", f"{rule!r} isn't an nsbox.Rule")
        for program in self.programs:
            if not isinstance(program, bytes) or len(program) % 8 or not 0 < len(program) <= 8 * MAX_INSTRUCTIONS:
                raise PolicyError(
                    "seccomp.programs", f"must be bytes, 8 for each of 1 to {MAX_INSTRUCTIONS} instructions"
                )

        rules = (*_liftable(self.base, set_ids=True), *no_more_filters(self.base))
        liftable = {call for rule in rules for call in rule.calls}
        for call in self.allow:
            if call not in liftable:
                raise PolicyError(
                    "seccomp.allow", f"{call} is nothing that the profile {self.base!r} refuses by itself"
                )

    def names(self) -> frozenset[str]:
        """Return the names of all system calls in allow and rules."""
        return frozenset((*self.allow, *(call for rule in self.rules for call in rule.calls)))


# ---- rules that hold for every command, under any policy
#
# The command is the caller's own child, shares its session keyring, and has the init's kernel uid. No namespace closes
# these ways out.

_CLONE_PARENT, _CLONE_NEWUSER = 0x00008000, 0x10000000
_INIT = 1  # pid 1 of the sandbox


_NO_PARENT = Rule(("clone",), EPERM, (has_bit(0, _CLONE_PARENT),))
_NO_CLONE3 = Rule(("clone3",), ENOSYS)
# A traced exit stops before the process has released anything, and the kernel drops every further SIGKILL (ptrace(2),
# PTRACE_O_TRACEEXIT); only the end of the tracer helps. Two processes that trace each other's exit stay forever, and
# keep pid 1 in zap_pid_ns_processes(). x86_64 also has i386's old request for the options (PTRACE_OLDSETOPTIONS).
_SET_OPTIONS, _OLD_SET_OPTIONS, _SEIZE, _TRACE_EXIT = 0x4200, 21, 0x4206, 0x40
_NO_EXIT_TRACING = Rule(("ptrace",), EPERM, (Arg(0, (_SET_OPTIONS, _OLD_SET_OPTIONS, _SEIZE)), has_bit(3, _TRACE_EXIT)))
_GUARD = (
    # keyctl(2) reads the credentials in the keyring; KEYCTL_SESSION_TO_PARENT replaces the caller's keyring.
    Rule(("add_key", "request_key", "keyctl"), ENOSYS),
    # A traced thread can't even die without its tracer.
    Rule(("ptrace",), EPERM, (Arg(0, 0),)),  # PTRACE_TRACEME
    # A lease needs no write access, and delays every open(2) of the file on the host by 45 seconds.
    Rule(("fcntl", "fcntl64"), EPERM, (Arg(1, (1024, 1040)),)),  # F_SETLEASE, F_SETDELEG (of directories, Linux 6.19)
    # If pid 1 were starved, or its limit of descriptors lowered, the sandbox would outlive the command by minutes. With
    # another RLIMIT_SIGPENDING, signals that are queued for a session's pid 1 would count as the caller's.
    Rule(
        ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr", "prlimit64"),
        EPERM,
        (Arg(0, _INIT),),
    ),
    Rule(("setpriority",), EPERM, (Arg(0, 2),)),  # PRIO_USER: the init is of the same user
    Rule(("setpriority",), EPERM, (Arg(1, _INIT),)),
    Rule(("ioprio_set",), EPERM, (Arg(0, 3),)),  # IOPRIO_WHO_USER
    Rule(("ioprio_set",), EPERM, (Arg(1, _INIT),)),
    # Nothing is queued for pid 1. A signal whose sender fills in the siginfo then arrives without one, as if it came
    # from outside, and pid 1 would end all (collect_signal() in kernel/signal.c). A pidfd may be pid 1's.
    Rule(("rt_sigqueueinfo", "rt_tgsigqueueinfo"), EPERM, (Arg(0, _INIT),)),
    Rule(("pidfd_send_signal",), EPERM, (Arg(2, 0, inverted=True),)),
    Rule(("pidfd_send_signal",), EPERM, (Arg(2, 0, inverted=True, high=True),)),
)

# With RLIMIT_CORE at 0 a core_pattern that is a pipe still gets a dump; at 1 it doesn't (fs/coredump.c). So the limit
# stays at 1. gpg and shell scripts set it to 0, and give up if they can't: their calls return success and do nothing. A
# call that also asks for the old limit is refused, since nothing would fill that in. Both halves of its pointer are
# tested, since the low one may be 0 on purpose.
_CORE = (Arg(1, 4),)  # RLIMIT_CORE
_CORE_STAYS = (
    Rule(("prlimit64",), 0, (*_CORE, Arg(2, 0), Arg(2, 0, high=True))),
    Rule(("prlimit64",), EPERM, (*_CORE, Arg(3, 0, inverted=True))),
    Rule(("prlimit64",), EPERM, (*_CORE, Arg(3, 0, inverted=True, high=True))),
    Rule(("prlimit64",), None, _CORE),
    Rule(("setrlimit",), None, (Arg(0, 4),)),
)

# Calls whose rules also hold for 32-bit programs, by their numbers in those tables, which our headers don't have.
_SHARED = {
    "ptrace": 26,
    "fcntl": 55,
    "setrlimit": 75,
    "setpriority": 97,
    "clone": 120,
    "sched_setparam": 154,
    "sched_setscheduler": 156,
}
_SHARED |= {"truncate": 92, "truncate64": 193, "fcntl64": 221, "sched_setaffinity": 241, "clone3": 435}
_SHARED |= {"open": 5, "openat2": 437, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
COMPATIBLE_NUMBERS = {
    "i386": _SHARED
    | {"add_key": 286, "request_key": 287, "keyctl": 288, "ioprio_set": 289, "unshare": 310}
    | {"openat": 295, "prlimit64": 340, "open_by_handle_at": 342, "sched_setattr": 351},
    "arm": _SHARED
    | {"add_key": 309, "request_key": 310, "keyctl": 311, "ioprio_set": 314, "unshare": 337}
    | {"openat": 322, "prlimit64": 369, "open_by_handle_at": 371, "sched_setattr": 380},
}


def _liftable(base: str, *, may_nest: bool = False, for_net: bool = False, set_ids: bool = False) -> tuple[Rule, ...]:
    """Return the rules that Filter.allow can lift: the profile's own, and the one about traced exits."""
    if base == "off":
        return (_NO_EXIT_TRACING,)
    from nsbox._seccomp import profiles

    rules = (*profiles.making_namespaces(may_nest, for_net), *profiles.DEFAULT)
    if set_ids:
        rules += profiles.SET_IDS if may_nest else (*profiles.SET_IDS, profiles.NO_OPENAT2)
    more = profiles.HARDENED if base == "hardened" else ()
    return (_NO_EXIT_TRACING, *more, *rules)


def _without(rules: Iterable[Rule], names: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules without the calls of these names."""
    kept = ((rule, tuple(call for call in rule.calls if call not in names)) for rule in rules)
    return tuple(Rule(calls, rule.errno, rule.when) for rule, calls in kept if calls)


@remembered
def profile(
    base: str,
    *,
    nested: bool,
    for_net: bool,
    may_nest: bool = False,
    set_ids: bool = False,
    allow: tuple[str, ...] = (),
    core_stays: bool = False,
) -> tuple[Rule, ...]:
    """Return the rules that can be in force before the set-up ends; for user namespaces see no_user_namespaces().

    The guard's rules come first. allow can't lift them, except for the one about traced exits.

    base: the profile.
    nested: allow namespaces, mounts, and children of the caller.
    for_net: allow the set-up to enter the command's net namespace.
    may_nest: allow namespaces and mounts.
    set_ids: refuse set-user-ID and set-group-ID bits. That refuses openat2(2) as well, whose mode no filter sees; but
        not for nested sandboxes, which can't be made without it.
    allow: calls whose rules are dropped.
    core_stays: refuse changes of RLIMIT_CORE.
    """
    guard = _GUARD if nested else (*_GUARD, _NO_PARENT, _NO_CLONE3)
    return (
        *guard,
        *(_CORE_STAYS if core_stays else ()),
        *_without(_liftable(base, may_nest=nested or may_nest, for_net=for_net, set_ids=set_ids), frozenset(allow)),
    )


def no_more_filters(base: str, allow: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the rules against the command's own filters. Installed earlier, they would stop the set-up's filters."""
    if base != "hardened":
        return ()
    from nsbox._seccomp.profiles import NO_MORE_FILTERS

    return _without(NO_MORE_FILTERS, frozenset(allow))


@remembered
def no_user_namespaces(allow: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """Return the rules against user namespaces; the set-up would break them if it enters a second one."""
    newuser = (has_bit(0, _CLONE_NEWUSER),)
    return (*_without([Rule(("clone", "unshare"), EPERM, newuser)], frozenset(allow)), _NO_CLONE3)


def profiled() -> frozenset[str]:
    """Return the names in all rules of this package. Not every machine has all of these system calls."""
    from nsbox._seccomp.profiles import NAMES

    return NAMES | {call for rule in (*_GUARD, *_CORE_STAYS) for call in rule.calls}
