"""The trail: hears of commands, and hands a record of each event to the logger nsbox.audit.

A start is on record before the command runs, so that one that ends this process, or never ends, is there all the same.
Records that a handler can't write are an error only if it is required: then no command starts without its record.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from typing import TYPE_CHECKING, Any

from nsbox._audit import record
from nsbox._audit.sinks import AuditError, Sink
from nsbox._base.display import shown
from nsbox._base.errors import NsboxError, PolicyError
from nsbox._logs import logger, observers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsbox._logs.observers import Story
    from nsbox._policy.policy import Policy

NAME = "nsbox.audit"
_MOST_KNOWN = 256  # policies
_HOW = {"start": logging.INFO, "refused": logging.WARNING}


class Trail:
    """The observer. There is one for a process, and forked copies go on with it."""

    def __init__(self) -> None:
        self._sinks: list[Sink] = []
        self._writer = record.Writer()
        self._open: weakref.WeakValueDictionary[str, Story] = weakref.WeakValueDictionary()
        self._known: dict[tuple[Policy, str, str], bool] = {}
        self._has_warned = False
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._open.clear)

    # ---- its sinks

    def attach(self, handler: logging.Handler, *, is_required: bool) -> None:
        """Send records to a handler from now on. Raises ValueError for one that gets them already."""
        if any(sink.handler is handler for sink in self._sinks):
            raise ValueError(f"the handler {handler!r:.200} gets records already")
        log = logging.getLogger(NAME)
        log.propagate = False
        log.setLevel(logging.INFO)
        self._sinks.append(Sink(handler, is_required=is_required))
        log.addHandler(handler)
        if self not in observers.active:
            observers.add(self)

    def detach(self) -> None:
        """Close all handlers, and hear of nothing any more. Raises what a handler raises that can't be closed."""
        observers.remove(self)
        log = logging.getLogger(NAME)
        sinks, self._sinks = self._sinks, []
        self._known.clear()
        with contextlib.ExitStack() as stack:
            for sink in sinks:
                log.removeHandler(sink.handler)
                stack.callback(sink.release)
                stack.callback(sink.handler.close)

    @property
    def lost(self) -> int:
        """How many records could not be written."""
        return sum(sink.lost for sink in self._sinks)

    # ---- what it hears

    def begin(self, story: Story) -> None:
        """Write that a command is about to start. Raises AuditError and PolicyError."""
        for sink in self._sinks:
            if sink.path is not None:
                self._check_reach(story, sink, sink.path)
        self._write("start", story.id, story.label, record.start(story))
        self._open[story.id] = story

    def started(self, story: Story) -> None:
        """Do nothing: the record is there."""

    def refused(self, story: Story, error: BaseException) -> None:
        """Write that a command was not started."""
        self._open.pop(story.id, None)
        self._write_late("refused", story.id, story.label, record.refused(story, error))

    def ended(self, story: Story) -> None:
        """Write how a command has ended. Raises AuditError, which says how."""
        self._open.pop(story.id, None)
        try:
            self._write("end", story.id, story.label, record.end(story))
        except AuditError as error:
            raise AuditError(error.place, error.problem, story.popen.returncode) from None

    def note(self, event: str, id: str, facts: Mapping[str, Any]) -> None:
        """Write another event. Raises AuditError for code that is about to run, and for a call of a file tool."""
        write = self._write if event in ("code", "files") else self._write_late
        write(event, id, observers.label.get(), record.noted(event, facts))

    def _leave(self) -> None:
        """At the interpreter's end, write which commands it hasn't waited for."""
        for story in list(self._open.values()):
            self._write_late("left", story.id, story.label, record.left(story))

    # ---- writing

    def _write(self, event: str, id: str, label: str, facts: dict[str, Any]) -> None:
        """Hand a record to all handlers. Then raise AuditError if one that must have it hasn't."""
        if not (sinks := self._sinks):
            return
        log = logging.getLogger(NAME)
        log.disabled = False  # by a configuration that disables all loggers which it doesn't name
        level, more = _HOW.get(event, logging.INFO), {"audit": self._writer.head(event, id, label) | facts}
        told = log.makeRecord(NAME, level, "nsbox", 0, "%s %s", (event, id or "-"), None, extra=more)
        log.handle(told)
        for sink in sinks:
            if sink.is_required and sink in self._sinks and (problem := self._problem(log, sink, told)):
                raise AuditError(sink.place, problem)

    @staticmethod
    def _problem(log: logging.Logger, sink: Sink, told: logging.LogRecord) -> str:
        """Return why a record isn't where it must be; "" if it is."""
        if sink.has(told):
            return sink.problem(told)
        if sink.handler not in log.handlers:
            problem = f"its handler was removed from the logger {NAME}"
        else:
            problem = "a filter or a level keeps records from it"
        sink.lose(problem)
        return problem

    def _write_late(self, event: str, id: str, label: str, facts: dict[str, Any]) -> None:
        """Write what has happened already: there is nothing left to refuse."""
        try:
            self._write(event, id, label, facts)
        except AuditError as error:
            logger.error("%s", error)

    # ---- out of reach

    def _check_reach(self, story: Story, sink: Sink, path: str) -> None:
        """Raise PolicyError if commands could write to the file, or replace it; only warn if nothing contains them."""
        policy, backend = story.policy, story.plan.backend
        key = (policy, backend, path)
        can_write = self._known.get(key)
        if can_write is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            can_write = self._known[key] = backend == "passthrough" or can_change(policy, path)
        if not can_write:
            return
        what = f"{shown(path)} is where commands of this policy can write, so they could change records"
        if policy.base == "workspace" and backend != "passthrough":
            raise PolicyError("audit", f"{what}: give a file that is out of their reach")
        if sink.is_required:
            raise PolicyError("audit", f"{what}: contain them, or don't ask for required=True")
        if not self._has_warned:
            self._has_warned = True
            logger.warning("audit: %s", what, is_shown=True)


def can_change(policy: Policy, path: str) -> bool:
    """Return whether a policy's commands can change a file, or the directory that it is in. If in doubt, True."""
    places = {path, os.path.dirname(path), os.path.realpath(path), os.path.dirname(os.path.realpath(path))}
    try:
        return any(policy.can_write(place) for place in places)
    except (NsboxError, OSError):
        return True


trail = Trail()
