"""The story of one command, as observers and the log hear it: its start, why it has none, its end.

popen.py makes one only if somebody listens. A forked copy of this process tells nothing: the command is the parent's.
"""

from __future__ import annotations

import os
import time

from nsbox._base.display import encodable, printable
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import buffers
from nsbox._logs import logger, observers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy
    from nsbox._spawn.prepare import Prepared

_LONGEST = 200  # letters of a program's name in a log


class Story:
    """One command, as far as it is known.

    id: 32 hex digits, random. label: what the caller says it is for; "": nothing.
    kind: what started it: "command", "session", "transaction", "task", "python", "kernel" or "interpreter". "sandbox":
        a Sandbox that can't be made ready.
    argv, program: as Popen got them. cwd: the directory that it starts in.
    policy: None before that is known. plan: None if none could be made.
    call: what a tool call says of it. began_ns: nanoseconds since 1970.
    environment: what observers want the command to have, besides or instead of what it has.
    pid: once it runs.
    popen: its Popen, while observers hear of its start or its end; None otherwise, so that it isn't kept alive.
    """

    def __init__(self, args: Any, kind: str) -> None:
        self.id, self.label = os.urandom(16).hex(), observers.label.get()
        self.kind = kind
        self.popen: Any = None
        self.pid: int | None = None
        self.argv: Sequence[str | bytes] = _words(args)
        self.program: str | bytes = self.argv[0] if self.argv else ""
        self.cwd: str | bytes | None = None
        self.policy: Policy | None = None
        self.plan: Plan | None = None
        self.environment: dict[str, str] = {}
        self.began_ns = time.time_ns()
        self.call = None if kind == "interpreter" else observers.call.get()
        if self.call is not None:
            self.call.id = self.id
        self._told: tuple[observers.Observer, ...] = ()
        self._process = os.getpid()
        self._is_over = False
        self._problem: Exception | None = None

    def begin(self, policy: Policy, prepared: Prepared, argv: Sequence[Any], program: Any, cwd: Any) -> None:
        """Tell that it is about to start. What an observer raises refuses it."""
        self.policy, self.plan = policy, prepared.plan
        self.argv, self.program = _words(list(argv)), os.fspath(program)
        self.cwd = None if cwd is None else os.fspath(cwd)
        for observer in observers.active:
            self._told = (*self._told, observer)
            observer.begin(self)

    def added(self, envp: buffers.Strings, *, is_built: bool) -> buffers.Strings:
        """Return the environment with what observers want in it. is_built: the policy has made it, not the caller."""
        if not self.environment or not (is_built or self.call is not None):
            return envp
        names = tuple(os.fsencode(name) + b"=" for name in self.environment)
        kept = [item for item in envp.items if not item.startswith(names)]
        return buffers.Strings([*kept, *(os.fsencode(f"{name}={value}") for name, value in self.environment.items())])

    def started(self, popen: Any) -> None:
        """Tell that it runs."""
        self.popen, self.pid = popen, popen.pid
        try:
            logger.debug("command %s: pid %d, %s: %s", self.id, popen.pid, _name(self.program), _summary(self))
            for observer in self._told:
                observer.started(self)
        finally:
            self.popen = None

    def refused(self, policy: Any, error: BaseException) -> None:
        """Tell why it was not started. policy: what is known of it."""
        self.policy = self.policy or policy
        logger.debug(
            "command %s: not started, %s: %s", self.id, _name(self.program), printable(encodable(repr(error)))[:1000]
        )
        self._is_over = True
        for observer in self._told or observers.active:
            observer.refused(self, error)

    def ended(self, popen: Any) -> None:
        """Tell that it is over, once. What an observer raises is for check()."""
        if self._is_over or self._process != os.getpid():
            return
        self._is_over, self.popen = True, popen
        try:
            logger.debug("command %s: pid %d ended, status %s", self.id, popen.pid, popen.returncode)
            for observer in self._told:
                try:
                    observer.ended(self)
                except Exception as error:
                    self._problem = error
        finally:
            self.popen = None

    def check(self) -> None:
        """Raise what an observer has raised at the end, once."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem


class Attempt:
    """A start without a Popen, such as a Sandbox's, which is told of only if it fails: a context manager.

    kind: as Story's, or "sandbox". args: the words of a command, if there is one. cwd: where it would have started.
    """

    def __init__(self, kind: str, args: Any = (), *, policy: Policy | None = None, cwd: str | None = None) -> None:
        self._kind, self._args, self._policy, self._cwd = kind, args, policy, cwd

    def __enter__(self) -> None:
        """Begin; nothing is told yet."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and observers.listen():
            story = Story(self._args, self._kind)
            story.cwd = self._cwd
            story.refused(self._policy, error)


def _words(args: Any) -> tuple[str | bytes, ...]:
    """Return a command's words, whatever it was given as."""
    if isinstance(args, str | bytes | os.PathLike):
        return (os.fspath(args),)
    try:
        return tuple(word if isinstance(word, str | bytes) else os.fspath(word) for word in args)
    except TypeError:  # Popen will say so
        return ()


def _name(program: str | bytes) -> str:
    return printable(encodable(os.path.basename(os.fsdecode(program))))[:_LONGEST]


def _summary(story: Story) -> str:
    """Return the plan in one line, without what could be secret."""
    policy, plan = story.policy, story.plan
    if policy is None or plan is None:
        return "no plan"
    network: Any = policy.network
    network = network if isinstance(network, str) else f"list of {len(network.allow)}"
    parts = [
        f"backend {plan.backend}",
        f"{policy.base} {printable(policy.workdir or '-')}",
        f"network {network}",
        f"{len(plan.ops)} ops",
        f"not enforced: {len(plan.not_enforced)}",
    ]
    return ", ".join([*parts, *(["warm"] if story.popen.sandbox.is_warm else [])])


def told(popen: Any, args: Any, way: Any, start: Callable[[tuple[Any, ...]], None], options: tuple[Any, ...]) -> None:
    """Start a command by a function, and tell the story of that. way: None: it has a sandbox of its own.

    A command that no policy is about has no story.
    """
    popen._story = story = Story(args, "command" if way is None else way.kind)
    try:
        start(options)
    except BaseException as error:
        policy = popen._policy
        if policy is not None or story.policy is not None or not popen._is_plain:
            story.refused(policy, error)
        popen._story = None
        raise
    if popen.sandbox is None:
        popen._story = None
    else:
        story.started(popen)
