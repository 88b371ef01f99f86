"""The JSON Schema of a record: what each event has, and of which type."""

from __future__ import annotations

from typing import Any

from nsbox._audit.line import MOST_LINE
from nsbox._audit.record import SCHEMA
from nsbox._lifetime.ends import CAUSES
from nsbox._lifetime.usage import usage_schema

_KINDS = ("command", "session", "transaction", "task", "python", "kernel", "interpreter", "sandbox")

_TEXT: dict[str, Any] = {"type": "string"}
_TEXT_OR_NONE: dict[str, Any] = {"type": ["string", "null"]}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
_TIME: dict[str, Any] = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"}
_PID: dict[str, Any] = {"type": ["integer", "null"]}


def _object(needed: dict[str, Any], more: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = needed | (more or {})
    return {"type": "object", "properties": properties, "required": [*needed], "additionalProperties": False}


_CALLER = _object({"host": _TEXT, "pid": _COUNT, "uid": _COUNT, "euid": _COUNT, "gid": _COUNT})
_DIGEST: dict[str, Any] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_POLICY = _object(
    {
        "digest": _DIGEST,
        "base": {"enum": ["workspace", "host", "layers"]},
        "require": _TEXT,
        "degrade": _TEXTS,
        "limits": {"type": "object"},
        "workdir": _TEXT_OR_NONE,
        "network": {"type": ["string", "array"], "items": _TEXT},
        "write": _TEXTS,
    }
)
_USAGE = usage_schema()
_CONTACT = _object(
    {
        "kind": _TEXT,
        "name": _TEXT,
        "address": _TEXT,
        "port": _COUNT,
        "protocol": _TEXT,
        "reason": _TEXT,
        "sni": _TEXT,
    }
)
_CONTACTS: dict[str, Any] = {"type": "array", "items": _CONTACT}
_NETWORK = _object(
    dict.fromkeys(("allowed", "refused", "failed", "sent", "received", "lost"), _COUNT)
    | {"complete": {"type": "boolean"}, "refusals": _CONTACTS, "granted": _CONTACTS}
)
_COMMAND: dict[str, Any] = {"kind": {"enum": [*_KINDS]}, "program": _TEXT, "argv": _TEXTS, "cwd": _TEXT_OR_NONE}
_MORE: dict[str, Any] = {"code": _TEXT, "policy": _POLICY, "backend": _TEXT}
_ERROR = _object({"type": _TEXT, "message": _TEXT, "errno": {"type": ["integer", "null"]}})
_CHANGE = _object({"kind": _TEXT, "path": _TEXT}, {"old_path": _TEXT})

# By event: what a record always has besides its head, and what it can have.
EVENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "start": (
        _COMMAND | {"policy": _POLICY, "backend": _TEXT, "enforced": _TEXTS, "not_enforced": _TEXTS},
        {"code": _TEXT},
    ),
    "refused": (
        _COMMAND | {"error": _ERROR},
        _MORE,
    ),
    "end": (
        {
            "kind": {"enum": [*_KINDS]},
            "program": _TEXT,
            "pid": _PID,
            "backend": _TEXT,
            "began": _TIME,
            "status": {"type": ["integer", "null"]},
            "signal": _TEXT_OR_NONE,
            "cause": {"enum": [*CAUSES]},
        },
        {"seconds": _NUMBER, "usage": _USAGE, "network": _NETWORK},
    ),
    "left": ({"kind": {"enum": [*_KINDS]}, "program": _TEXT, "pid": _PID, "began": _TIME}, {}),
    "explained": (
        {
            "ended": {"enum": ["timeout", "cancelled", None]},
            "hints": {"type": "array", "items": _object({"kind": _TEXT, "message": _TEXT})},
        },
        {},
    ),
    "code": ({"pid": _PID, "code": _TEXT}, {}),
    "files": (
        {
            "kind": {"enum": ["sandbox", "session", "transaction", "task"]},
            "workspace": _TEXT_OR_NONE,
            "digest": {**_DIGEST, "type": ["string", "null"]},
            "tool": _TEXT,
            "count": _COUNT,
            "paths": _TEXTS,
            "cwd": _TEXT_OR_NONE,
            "error": {"anyOf": [_ERROR, {"type": "null"}]},
        },
        {},
    ),
    "commit": ({"workspace": _TEXT, "count": _COUNT, "changes": {"type": "array", "items": _CHANGE}}, {}),
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a record."""
    head = {
        "schema": {"const": SCHEMA},
        "time": _TIME,
        "process": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
        "seq": {"type": "integer", "minimum": 1},
        "id": {"type": ["string", "null"], "pattern": "^[0-9a-f]{32}$"},
        "caller": _CALLER,
    }
    marks = {"label": _TEXT, "cut": _TEXTS, "escaped": _TEXTS}
    rows = [
        _object({"event": {"const": event}} | head | needed, more | marks) for event, (needed, more) in EVENTS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "description": f"An audit record: a line of at most {MOST_LINE} bytes.",
        "oneOf": rows,
    }
