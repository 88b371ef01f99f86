"""The records: what is known of a command at its start and at its end, and the other events."""

from __future__ import annotations

import datetime
import os
import time
from typing import TYPE_CHECKING, Any

from nsbox._audit import policies
from nsbox._audit.redaction import MOST_WORDS, redacted, words
from nsbox._base.stdlib import RLock
from nsbox._lifetime import ends

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsbox._logs.observers import Call, Story
    from nsbox._network.events import NetworkEvent
    from nsbox._network.log import NetworkRecord

SCHEMA = "nsbox.audit/1"
MOST_CONTACTS = 20  # that a network list refused, or on_connect allowed, in the record of a command's end
MOST_CHANGES = 100  # of a commit; and paths of a file tool
MOST_HINTS = 20
_NODE = os.uname().nodename


class Writer:
    """Numbers the records of one process, so that a reader sees if one is missing."""

    def __init__(self) -> None:
        self._process, self._pid, self._seq = "", 0, 0
        self._lock = RLock()  # threads share the numbers; a signal handler may start a command too
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = RLock()

    def _number(self, pid: int) -> tuple[str, int]:
        with self._lock:
            if pid != self._pid:  # also in a forked child
                self._process, self._pid, self._seq = os.urandom(8).hex(), pid, 0
            self._seq += 1
            return self._process, self._seq

    def head(self, event: str, id: str, label: str) -> dict[str, Any]:
        """Return what every record begins with. id: of the command that it is about; "": of none. label: as id."""
        pid = os.getpid()
        process, seq = self._number(pid)
        head = {
            "schema": SCHEMA,
            "event": event,
            "time": stamp(time.time_ns()),
            "process": process,
            "seq": seq,
            "id": id or None,
            "caller": {"host": _NODE, "pid": pid, "uid": os.getuid(), "euid": os.geteuid(), "gid": os.getgid()},
        }
        return head | ({"label": redacted(label)} if label else {})


def stamp(nanoseconds: int) -> str:
    """Return a time since 1970 as RFC 3339 has it, in UTC, with microseconds."""
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"


def _decoded(word: Any) -> str:
    return os.fsdecode(word)


def command(story: Story) -> dict[str, Any]:
    """Return what a command is, as far as that is known."""
    scrub = None if story.call is None else story.call.scrub
    argv = [_decoded(word) for word in story.argv[:MOST_WORDS]]
    if story.kind == "interpreter":  # a text of nsbox's own, the same each time
        argv = [_purpose(word) if "\n" in word else word for word in argv]
    elif story.call is not None and isinstance(story.call.shown, str) and argv[1:2] == ["-c"]:
        argv[2:] = [story.call.shown]  # a session's shell is given more, to report its directory and variables
    facts: dict[str, Any] = {
        "kind": story.kind,
        "program": redacted(_decoded(story.program), scrub),
        "argv": words(argv, scrub),
        "cwd": None if story.cwd is None else redacted(_decoded(story.cwd), scrub),
    }
    if story.call is not None and isinstance(story.call.shown, str) and story.kind in ("python", "kernel"):
        facts["code"] = redacted(story.call.shown, scrub)
    if story.policy is not None:
        facts["policy"] = policies.summary(story.policy)
    if story.plan is not None:
        facts["backend"] = story.plan.backend
    return facts


def _purpose(text: str) -> str:
    """Return what a program of nsbox's own is for, from its docstring."""
    first, _, _ = text.strip('"').partition(":")
    return f"[a program of nsbox's: {first[:1].lower()}{first[1:]}]"


def start(story: Story) -> dict[str, Any]:
    """Return what is said of a command before it starts."""
    plan = story.plan
    return command(story) | {"enforced": list(plan.enforced), "not_enforced": list(plan.not_enforced)}


def refused(story: Story, error: BaseException) -> dict[str, Any]:
    """Return what is said of a command that was not started."""
    return command(story) | {"error": _failure(error, None if story.call is None else story.call.scrub)}


def _failure(error: BaseException, scrub: Callable[[str], str] | None = None) -> dict[str, Any]:
    text = "; ".join([str(error), *getattr(error, "__notes__", [])])
    number = getattr(error, "errno", None)
    return {"type": type_name(error), "message": redacted(text, scrub), "errno": number}


def type_name(error: BaseException) -> str:
    """Return the name of an exception's class: short for Python's own, and nsbox.X for those of nsbox."""
    module = type(error).__module__.partition(".")[0]
    return type(error).__qualname__ if module == "builtins" else f"{module}.{type(error).__qualname__}"


def end(story: Story) -> dict[str, Any]:
    """Return what is said of a command that is over."""
    popen = story.popen
    sandbox = popen.sandbox
    usage = sandbox.usage
    facts: dict[str, Any] = {
        "kind": story.kind,
        "program": redacted(_decoded(story.program), None if story.call is None else story.call.scrub),
        "pid": popen.pid,
        "backend": sandbox.backend,
        "began": stamp(story.began_ns),
        **ends.words(popen.returncode, "unknown" if usage is None else usage.cause),
    }
    if usage is not None:
        facts["seconds"] = round(usage.wall, 6)
        facts["usage"] = usage.as_dict()
    record = sandbox.network
    if record.tally or record.events or record.lost or record.granted:
        facts["network"] = _network(record, story.call)
    return facts


def _network(record: NetworkRecord, call: Call | None) -> dict[str, Any]:
    rows = {"refusals": _contacts(record.refusals, call), "granted": _contacts(record.granted, call)}
    return {
        "allowed": record.allowed,
        "refused": record.refused,
        "failed": record.failed,
        "sent": record.sent,
        "received": record.received,
        "lost": record.lost,
        "complete": record.is_complete and max(len(record.refusals), len(record.granted)) <= MOST_CONTACTS,
        **rows,
    }


def _contacts(events: Sequence[NetworkEvent], call: Call | None) -> list[dict[str, Any]]:
    """Return the first and the last of these destinations: no flood of others hides both."""
    if len(events) > MOST_CONTACTS:
        events = (*events[: MOST_CONTACTS // 2], *events[-MOST_CONTACTS // 2 :])
    return [
        {"kind": event.kind, "name": _host(event.name, call), "address": event.address, "port": event.port}
        | {"protocol": event.protocol, "reason": event.reason, "sni": _host(event.sni, call)}
        for event in events
    ]


def _host(name: str, call: Call | None) -> str:
    return redacted(name if call is None else call.scrubbed(name))


def left(story: Story) -> dict[str, Any]:
    """Return what is said of a command whose end this process won't see, because it ends itself."""
    program = redacted(_decoded(story.program), None if story.call is None else story.call.scrub)
    return {"kind": story.kind, "program": program, "pid": story.pid, "began": stamp(story.began_ns)}


def noted(event: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of another event: "explained", "code", "files" or "commit"."""
    if event == "explained":
        hints = [{"kind": kind, "message": redacted(message)} for kind, message in facts["hints"][:MOST_HINTS]]
        return {"ended": facts["ended"], "hints": hints}
    if event == "code":
        return {"pid": facts["pid"], "code": redacted(facts["code"])}
    if event == "files":
        paths = [redacted(os.fsdecode(path)) for path in facts["paths"][:MOST_CHANGES]]
        digest = None if facts["policy"] is None else policies.digest(facts["policy"])
        whose = {"kind": facts["kind"], "workspace": facts["workspace"], "digest": digest}
        told = {"tool": facts["tool"], "count": len(facts["paths"]), "paths": paths, "cwd": facts["cwd"]}
        return whose | told | {"error": None if facts["error"] is None else _failure(facts["error"])}
    changes = facts["changes"]
    rows = [
        {"kind": kind, "path": redacted(path)} | ({} if old is None else {"old_path": redacted(old)})
        for kind, path, old in changes[:MOST_CHANGES]
    ]
    return {"workspace": facts["workspace"], "count": len(changes), "changes": rows}
