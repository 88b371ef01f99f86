"""Observers: those that hear of each command's start and end, and of what else is worth a record.

A command is told of in this order: begin(), then started() or refused(), and ended() once it is over. All are called in
the thread that starts the command, or that notices its end. begin() may raise: then the command isn't started.

A tool call knows more of its command than Popen does: the line as the caller gave it, and the secrets that its
environment has. It says so by `call`.
"""

from __future__ import annotations

from contextvars import ContextVar

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    class Scrubber(Protocol):
        """_leaks.scrub's."""

        def scrub(self, text: str) -> str: ...
        def lowered(self) -> Scrubber: ...

    class Story(Protocol):
        """_popen.story's: one command, as far as it is known."""

        id: str
        label: str
        kind: str
        argv: Sequence[str | bytes]
        program: str | bytes
        cwd: str | bytes | None
        policy: Any
        plan: Any
        call: Call | None
        began_ns: int
        environment: dict[str, str]
        pid: int | None
        popen: Any

    class Told(Story, Protocol):
        """The same, with what Popen and its lifetime call."""

        def begin(self, policy: Any, prepared: Any, argv: Sequence[Any], program: Any, cwd: Any) -> None: ...
        def added(self, envp: Any, *, is_built: bool) -> Any: ...
        def ended(self, popen: Any) -> None: ...
        def check(self) -> None: ...

    class Observer(Protocol):
        """Hears of commands."""

        def begin(self, story: Story) -> None:
            """Hear of a command that is about to start; raise to refuse it."""

        def started(self, story: Story) -> None:
            """Hear that it runs."""

        def refused(self, story: Story, error: BaseException) -> None:
            """Hear that it was not started, and why."""

        def ended(self, story: Story) -> None:
            """Hear that it is over: its Popen has returncode and usage."""

        def note(self, event: str, id: str, facts: Mapping[str, Any]) -> None:
            """Hear of something else. id: of the command that it is about; "": of none."""


class Call:
    """What a tool call knows of its command.

    shown: the line, words or code, as the caller gave them. scrubber: of the secrets that it was given; None: there are
    none. id: of the command, once it is told of.
    """

    __slots__ = ("_scrubber", "id", "shown")

    def __init__(self, shown: object, scrubber: Scrubber | None) -> None:
        self.shown, self._scrubber, self.id = shown, scrubber, ""

    @property
    def scrub(self) -> Callable[[str], str] | None:
        """Masks the secrets in a text; None: there are none."""
        return None if self._scrubber is None else self._scrubber.scrub

    def scrubbed(self, text: str) -> str:
        """Return a text that may have names of hosts, without the secrets: names are in lower case."""
        return text if self._scrubber is None else self._scrubber.lowered().scrub(self._scrubber.scrub(text))


active: tuple[Observer, ...] = ()
"""The observers, in the order in which they came."""

label: ContextVar[str] = ContextVar("nsbox.label", default="")
"""What the caller works on now, in its own words, for records."""

call: ContextVar[Call | None] = ContextVar("nsbox.call", default=None)
"""The tool call that starts a command now."""


def listen() -> bool:
    """Return whether anybody hears of commands: an observer, or a log at the level debug."""
    return bool(active) or logger.listens(logger.DEBUG)


def add(observer: Observer) -> None:
    """Add an observer."""
    global active
    active = (*active, observer)


def remove(observer: Observer) -> None:
    """Remove an observer, if it is there."""
    global active
    active = tuple(one for one in active if one is not observer)


def note(event: str, id: str, **facts: Any) -> None:
    """Tell all observers of something other than a command's start or end."""
    for observer in active:
        observer.note(event, id, facts)
