"""The tools as the protocol describes them: those of tool_schemas(), with the form of their answers and hints."""

from __future__ import annotations

import mcp_types as types

from nsbox._base.frozen import TYPE_CHECKING, fields
from nsbox._calls.record import ToolResult
from nsbox._handles.schemas import tool_schemas
from nsbox._python.result import PythonResult, python_schema

if TYPE_CHECKING:
    from typing import Any


def _object(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _result() -> dict[str, Any]:
    """Return the schema of ToolResult.as_dict(): that of a PythonResult without what only Python has."""
    whole = python_schema()
    more = {each.name for each in fields(PythonResult)} - {each.name for each in fields(ToolResult)}
    properties = {name: schema for name, schema in whole["properties"].items() if name not in more}
    return _object({**properties, "schema": {"type": "string"}})


_TEXT, _COUNT, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_RESULT = _result()
_CHANGE = _object(
    {
        "path": _TEXT,
        "kind": {"enum": ["created", "changed", "unchanged", "deleted", "moved", "copied"]},
        "diff": {"type": ["string", "null"], "description": "How the contents have changed."},
        "is_truncated": {**_FLAG, "description": "Whether the diff is cut."},
        "count": {**_COUNT, "description": "How many files or, for edit, how many occurrences."},
    }
)
_JOB = {"type": "integer", "minimum": 1, "description": "The number of the job."}
_MATCH = _object({"path": _TEXT, "line": _COUNT, "text": _TEXT, "is_context": _FLAG})
_ENDED = {name: _RESULT["properties"][name] for name in ("status", "signal", "cause", "why")}
OUTPUTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("shell", "exec", "job_kill"), _RESULT),
    "python": {name: value for name, value in python_schema().items() if name != "$schema"},
    "background": _object({"job": _JOB}),
    "job_output": _object(
        {
            "text": {**_TEXT, "description": "What was printed."},
            "next": {**_COUNT, "description": "The position for the next call's `since`."},
            "left_out": {**_COUNT, "description": "How many bytes before the text aren't kept any more."},
            "is_over": {**_FLAG, "description": "Whether the job has ended and this is the end of its output."},
            "result": _object(_ENDED),
        },
        "result",
    ),
    "job_send": _object({"sent": _COUNT}),
    "job_wait": _object({"is_over": _FLAG, "result": {"anyOf": [_RESULT, {"type": "null"}]}}),
    "job_list": _object(
        {
            "jobs": {
                "type": "array",
                "items": _object(
                    {"job": _JOB, "command": _TEXT, "is_running": _FLAG, "cause": {"type": ["string", "null"]}}
                ),
            }
        }
    ),
    "read_lines": _object(
        {
            "path": _TEXT,
            "text": {**_TEXT, "description": "The lines, with their numbers."},
            "first": _COUNT,
            "last": _COUNT,
            "total": {"type": ["integer", "null"], "description": "How many lines the file has; null if unknown."},
            "is_truncated": _FLAG,
        }
    ),
    **dict.fromkeys(("write", "append", "edit", "mkdir", "delete", "move", "copy"), _CHANGE),
    "grep": _object(
        {
            "matches": {"type": "array", "items": _MATCH},
            "is_truncated": _FLAG,
            "why": {**_TEXT, "description": "Which limit was reached: matches, chars or time; cancelled."},
            "engine": _TEXT,
        }
    ),
    "glob": _object({"paths": {"type": "array", "items": _TEXT}, "is_truncated": _FLAG}),
    "media": _object({"path": _TEXT, "type": {**_TEXT, "description": "Its MIME type."}, "size": _COUNT}),
}
READING = frozenset({"read_lines", "grep", "glob", "media", "job_output", "job_wait", "job_list"})
_ADDING = frozenset({"append", "mkdir", "copy", "job_send"})
_SAME_AGAIN = frozenset({"write", "mkdir", "job_kill"})  # the second time changes nothing
_COMMANDS = frozenset({"shell", "exec", "python", "background"})


def descriptions(has_network: bool) -> list[types.Tool]:
    """Return the tools.

    has_network: whether commands may reach any host, which the hints say.
    """
    tools = []
    for schema in tool_schemas(form="mcp"):
        name = schema["name"]
        hints = types.ToolAnnotations(
            read_only_hint=name in READING,
            destructive_hint=None if name in READING else name not in _ADDING,
            idempotent_hint=None if name in READING else name in _SAME_AGAIN,
            open_world_hint=has_network and name in _COMMANDS,
        )
        tools.append(
            types.Tool(
                name=name,
                description=schema["description"],
                input_schema=schema["inputSchema"],
                output_schema=OUTPUTS[name],
                annotations=hints,
            )
        )
    return tools
