"""PythonResult: what code did, as one value, and the JSON Schema of its form for models and programs."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, frozen
from nsbox._calls.record import ToolResult
from nsbox._lifetime.ends import CAUSES
from nsbox._lifetime.usage import usage_schema
from nsbox._python.reply import PythonException

if TYPE_CHECKING:
    from typing import Any

SCHEMA = "nsbox.python/1"


@frozen
class PythonResult(ToolResult):
    """What code did and, if it failed, why: a ToolResult with what only Python has. `args` is the code.

    value: the value of the last line, if that is an expression and JSON has such values; otherwise None.
    has_value: whether there is such a value, other than None.
    repr: repr() of the last line's value, even if JSON has no such value; None if there is no value, or it is None.
    type: the name of its class; None where repr is.
    mime: how the value shows itself: contents by MIME type, such as "text/html"; "image/png" and other bytes are
        base64. None if there is no value.
    displays: what the code has displayed before that, matplotlib's figures included: a mapping like mime for each.
    exception: what ended the code; None if nothing did. After SystemExit, it is None too: `returncode` says the status.
    ended: whether a kernel has ended with this call; False for code that wasn't run in a kernel.
    index: the position of the code among those of Python.map(), from 0; None for a single run.
    omissions: names of what was too large to be kept in full, such as "value", "mime" or "traceback".

    The code shares a process with the program that reports all these, so code that means to can make them up. status,
    cause, usage and why are nsbox's own.
    """

    value: Any = None
    has_value: bool = False
    repr: str | None = None
    type: str | None = None
    mime: dict[str, Any] | None = None
    displays: tuple[dict[str, Any], ...] = ()
    exception: PythonException | None = None
    omissions: tuple[str, ...] = ()
    ended: bool = False
    index: int | None = None

    def at(self, index: int) -> PythonResult:
        """Return it as the result of one of many snippets."""
        return PythonResult(**{**vars(self), "index": index})

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON, for a model: what ToolResult has, and what python_schema() says."""
        return {
            **super().as_dict(),
            "schema": SCHEMA,
            "value": self.value,
            "has_value": self.has_value,
            "repr": self.repr,
            "type": self.type,
            "mime": self.mime,
            "displays": list(self.displays),
            "exception": None if self.exception is None else self.exception.as_dict(),
            "omissions": list(self.omissions),
            "ended": self.ended,
            "index": self.index,
        }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _or_null(kind: str, description: str) -> dict[str, Any]:
    return {"type": [kind, "null"], "description": description}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_COUNT = {"type": "integer", "minimum": 0}
_BUNDLE = {"type": "object", "description": "Contents by MIME type; base64 unless the type is text's, JSON's or SVG's."}
_EXCEPTION = {
    "type": ["object", "null"],
    "description": "What ended the code.",
    "properties": {
        "type": _text("The name of its class."),
        "module": _text("Where that class is defined."),
        "message": _text("str() of it."),
        "traceback": _text("What the interpreter would print."),
        "lines": {
            "type": "array",
            "items": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2},
            "description": "The lines of the code that it passed through: number and source.",
        },
        "notes": _texts("What add_note() has added."),
    },
    "required": ["type", "module", "message", "traceback", "lines", "notes"],
    "additionalProperties": False,
}
_WHY = {
    "type": "array",
    "description": "What may have made it fail.",
    "items": {
        "type": "object",
        "properties": {"kind": _text("A word that stays the same."), "message": _text("A sentence.")},
        "required": ["kind", "message"],
    },
}
_PROPERTIES: dict[str, dict[str, Any]] = {
    "schema": {"const": SCHEMA},
    "status": _or_null("integer", "The exit status; null after a signal."),
    "signal": _or_null("string", "The signal that ended it."),
    "cause": {"enum": [*CAUSES, "not-started"], "description": "Why it ended."},
    "timed_out": {"type": "boolean"},
    "cancelled": {"type": "boolean"},
    "ended_by": _or_null("string", "If it took too long or was cancelled: SIGINT, SIGTERM or SIGKILL."),
    "background_output": {"type": ["string", "null"]},
    "duration": {"type": "number", "minimum": 0, "description": "Seconds."},
    "stdout": _text("What was printed."),
    "stderr": _text("What was printed as errors, with the traceback of an exception."),
    "stdout_bytes": _COUNT,
    "stderr_bytes": _COUNT,
    "truncated": {"type": "boolean", "description": "Whether some of stdout or stderr was left out."},
    "shell": {"type": ["string", "null"]},
    "why": _WHY,
    "usage": {**usage_schema(), "type": ["object", "null"], "description": "What it used; null if it wasn't started."},
    "network": {"type": "object"},
    "value": {"description": "The value of the last line, if it is an expression and JSON has such values."},
    "has_value": {"type": "boolean", "description": "Whether there is such a value."},
    "repr": _or_null("string", "repr() of the last line's value."),
    "type": _or_null("string", "The name of its class."),
    "mime": {**_BUNDLE, "type": ["object", "null"]},
    "displays": {"type": "array", "items": _BUNDLE},
    "exception": _EXCEPTION,
    "omissions": _texts("What was too large to be kept in full."),
    "ended": {"type": "boolean", "description": "Whether the kernel has ended with this call."},
    "index": _or_null("integer", "The position of the code among many."),
}


def python_schema() -> dict[str, Any]:
    """Return the JSON Schema of PythonResult.as_dict(). A copy: change it as you like."""
    import copy

    made: dict[str, Any] = copy.deepcopy(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": SCHEMA,
            "type": "object",
            "properties": _PROPERTIES,
            "required": list(_PROPERTIES),
            "additionalProperties": False,
        }
    )
    return made
