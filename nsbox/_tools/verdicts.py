"""How a command ended, as hints: by its time limit, a signal, a limit of the policy's, or for no known reason.

Also what the relay of a network list has reported about it.
"""

from __future__ import annotations

import re
import signal

from nsbox._base.display import seconds_phrase, size_phrase
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._lifetime.usage import reaches
from nsbox._network.messages import messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    from nsbox._lifetime.usage import Usage
    from nsbox._network.events import NetworkEvent
    from nsbox._network.network import Network
    from nsbox._policy.policy import Policy

    # Of pipes that a command leaves to others: the session reads them; they are open, but nothing reads them; closed.
    Fate = Literal["read", "unread", "closed"]

# What programs say when memory runs out: each runtime has its own words.
_NO_MEMORY = (
    *(r"[Cc]annot allocate memory", "MemoryError", "bad_alloc", r"[Oo]ut of memory", "ENOMEM", "OutOfMemory"),
    *(r"[Nn]ot enough (?:memory|space)", r"[Ii]nsufficient memory", r"[Mm]emory exhausted"),
    *(r"[Cc]ould not (?:reserve|allocate|commit|map)\b", r"[Ff]ailed to (?:reserve|allocate|map|commit)\b"),
    *(r"[Cc]annot (?:reserve|allocate|map)\b", r"[Uu]nable to (?:allocate|mmap)\b", r"allocation failed"),
    *(r"memory allocation of \d+ bytes failed", r"mmap(?:\(\))? failed"),
)
LIMITS = (
    ("memory", re.compile("|".join(_NO_MEMORY))),
    (
        "processes",
        re.compile(
            r"Resource temporarily unavailable|fork: retry|Cannot fork|[Cc]an't start new thread|EAGAIN|"
            r"[Ff]ailed to create new OS thread|[Uu]nable to create (?:new )?native thread|pthread_create failed"
        ),
    ),
    ("open_files", re.compile(r"Too many open files|EMFILE|shared object file: Error 24\b")),
    ("file_size", re.compile(r"File too large|[Ff]ile size limit exceeded|EFBIG")),
)
_SIZES = {"memory", "file_size", "total_memory"}
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
_BY_SHELL = 128  # plus the number of a signal: the status of a shell whose command it has killed


@frozen
class Hint(Frozen):
    """One thing that may have made a command fail. kind: a word that stays the same, for programs. message: a text."""

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class Ending(Frozen):
    """How a command was ended that took too long, or was cancelled.

    timeout: the time limit in seconds; 0: there was none.
    by: the last signal that it needed.
    grace: seconds between the first and the last signal.
    in_session: whether others go on in its sandbox.
    """

    timeout: float
    by: str
    grace: float
    in_session: bool
    cause: Literal["timeout", "cancelled"] = "timeout"

    def __str__(self) -> str:
        text = f"it was ended after {seconds_phrase(self.timeout)}, the time limit of this call, by {self.by}"
        if self.cause == "cancelled":
            text = f"it was cancelled, and ended by {self.by}"
        if self.by == "SIGKILL" and self.grace:
            text += f", {seconds_phrase(self.grace)} after a SIGTERM"
        return text + (", with all that it had started; what earlier commands left goes on" if self.in_session else "")


@frozen
class Background(Frozen):
    """What becomes of the output of processes that a command has left running. file: the file that gets it, if any."""

    file: str | None
    fate: Fate
    has_secrets: bool

    def hint(self) -> Hint:
        """Return it as a hint."""
        if self.file is not None:
            text = f"what it has left running prints to {self.file} from now on: read it there, in this session"
        elif self.fate == "closed":
            text = (
                "what it has left running can't print any more, which ends most programs (SIGPIPE, EPIPE): too many "
                "other commands have left something running; redirect its output, or end what isn't needed"
            )
        elif self.fate == "unread":
            text = (
                "nothing reads the output of what it has left running, which stops when a pipe is full: redirect that "
                "output"
            )
        elif self.has_secrets:
            text = "the output of what it has left running isn't kept, since the command was given secrets: redirect it"
        else:
            text = (
                "the output of what it has left running isn't kept, since the session has no /tmp of its own: "
                "redirect it"
            )
        return Hint("background", text)


def ended(policy: Policy, status: int, usage: Usage | None, ending: Ending | None) -> Iterator[Hint]:
    """Yield hints about how a failed command ended; none contradicts Usage.cause.

    ending: how it was ended, if it took too long or was cancelled.
    """
    is_limited = usage is not None and usage.cause == "limit" and ending is not None and ending.cause == "timeout"
    number = -status if status < 0 else status - _BY_SHELL if _BY_SHELL < status <= _BY_SHELL + 64 else 0
    if ending is not None and not is_limited:
        yield Hint(ending.cause, str(ending))
    elif usage is not None and usage.cause == "unknown":
        yield Hint(
            "unknown",
            "how it ended isn't known, 255 stands for that: this process ignores SIGCHLD, or reaps all children, not "
            "only its own commands (waitpid(-1))",
        )
    elif usage is not None and usage.cause == "timeout":
        by = f", by {signal.Signals(number).name}" if number in {*signal.Signals} else ""
        yield Hint("timeout", f"it was ended after a time limit{by}")
    elif number == signal.SIGKILL or (usage is not None and usage.oom_kills):
        yield _killed(policy, usage)
    elif number in (signal.SIGXCPU, signal.SIGXFSZ):
        yield _by_limit(policy, number, usage)
    elif number in _CRASHES:
        yield Hint("crash", f"it crashed ({signal.Signals(number).name})")
        if policy.limits.memory is not None:
            yield Hint(
                "limit",
                f"it may have run out of memory and crashed: {_amount(policy, 'memory')} bounds the addresses "
                "of each process, and many programs reserve more than they use; limits.total_memory counts what is "
                "used",
            )
    elif number == signal.SIGSYS:
        yield Hint("not-permitted", "it made a system call that the sandbox's filter doesn't allow")


def _by_limit(policy: Policy, number: int, usage: Usage | None) -> Hint:
    """Return a hint about a signal by which a limit ends a process. Any process can send it too."""
    name, of_caller = ("file_size", "ulimit -f") if number == signal.SIGXFSZ else ("cpu_seconds", "ulimit -t")
    text = f"it was killed by {signal.Signals(number).name}"
    if getattr(policy.limits, name) is None:
        return Hint(
            "killed", f"{text}, and the policy has no limit for that; perhaps it was the caller's own ({of_caller})"
        )
    if name == "file_size":
        return Hint("limit", f"perhaps a file became too large ({_amount(policy, name)}): {text}")
    if usage is None or usage.cause == "limit" or reaches(usage.user + usage.system, policy.limits.cpu_seconds):
        return _used_up(policy)
    return Hint("killed", f"{text}, and no limit of the policy has done that")


def _used_up(policy: Policy) -> Hint:
    return Hint("limit", f"it used up its processor time ({_amount(policy, 'cpu_seconds')})")


def _killed(policy: Policy, usage: Usage | None) -> Hint:
    """Return a hint about a SIGKILL: the kernel's for a limit, as far as can be seen, or another process's."""
    limits = policy.limits
    if usage is not None:
        # The kernel sends SIGKILL five seconds after SIGXCPU.
        hard = None if limits.cpu_seconds is None else limits.cpu_seconds + 5
        if not usage.oom_kills and reaches(usage.user + usage.system, hard):
            return _used_up(policy)
        if usage.oom_kills or (usage.cause == "limit" and limits.total_memory is not None):
            return Hint("limit", f"its processes together used too much memory ({_amount(policy, 'total_memory')})")
    seen = "" if usage is None else "no limit of the policy seems to have been reached; "
    text = "it was killed by SIGKILL, by itself or by another process"
    return Hint("killed", f"{text}; {seen}perhaps this machine is short of memory")


def limited(policy: Policy, text: str, known: Sequence[Hint] = ()) -> Iterator[Hint]:
    """Yield a hint for each limit that the output speaks of, except for those that the hints so far have."""
    for name, pattern in LIMITS:
        if any(f"limits.{name}=" in hint.message for hint in known):
            continue
        if getattr(policy.limits, name) is not None and pattern.search(text):
            yield Hint("limit", f"a limit may have been reached: {_amount(policy, name)}")


def _amount(policy: Policy, name: str) -> str:
    """Return a limit of the policy's as people write it, such as "limits.file_size=50 MiB"."""
    value = getattr(policy.limits, name)
    return f"limits.{name}={size_phrase(int(value)) if name in _SIZES else value}"


def network_hints(network: Network, events: Sequence[NetworkEvent], words: str = "network=") -> tuple[Hint, ...]:
    """Return a hint for each event of a network list that may have made a command fail.

    words: how the caller gave the list: "network=" or "--allow-net".
    """
    return tuple(Hint("network", text) for text in messages(network, events, words))
