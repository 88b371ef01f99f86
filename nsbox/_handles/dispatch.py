"""From a model's call of a tool to the method that carries it out, and to an answer as values for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.environment import check_environment
from nsbox._handles.schemas import BY_NAME

if TYPE_CHECKING:
    from typing import Any

    from nsbox._handles.schemas import Tool

_TIMEOUT = 120.0  # seconds, if neither the model nor the caller names a limit: a model can't wait for ever
_KINDS: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}


def call_tool(box: Any, name: str, arguments: Mapping[str, Any] | str, **options: Any) -> dict[str, Any]:
    """Return the answer to a model's call of a tool of tool_schemas(), as values for JSON.

    If the model made a mistake, the answer is {"error": ...}, which tells the model what is wrong: an argument, a path
    that the policy doesn't allow, a file that doesn't exist, a text that doesn't occur.

    box: a Sandbox, Session or Task.
    name: the name of the tool.
    arguments: a mapping, or JSON as a str.
    options: more parameters for shell and background: env, secrets, cancel, max_output and the like. timeout is the
        longest that the model can name. Default: an hour, and 120 seconds if it names none.

    Raises what is no fault of the model: UnavailableError, SetupError and KillError, PolicyError and TypeError for
    options, and ValueError if box is closed.
    """
    box.way()  # closed?
    tool = BY_NAME.get(name)
    if tool is None:
        return {"error": f"there is no tool {name!r}; there are {', '.join(BY_NAME)}"}
    try:
        chosen = _checked(tool, arguments)
    except ValueError as error:
        return {"error": f"{name}: {error}"}
    return _answer(box, name, chosen, options)


def _checked(tool: Tool, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return the arguments; raises ValueError for what the schema doesn't allow."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise ValueError(f"the arguments aren't JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ValueError("the arguments must be a JSON object of names and values")
    chosen: dict[str, Any] = {}
    for name, value in dict(arguments).items():
        schema = tool.parameters.get(name)
        if schema is None:
            raise ValueError(f"there is no parameter {name!r}; there are {', '.join(tool.parameters)}")
        if value is None and name not in tool.required:
            continue  # models write null for a parameter that they leave out
        _check(name, value, schema)
        chosen[name] = value
    missing = [name for name in tool.required if name not in chosen]
    if missing:
        raise ValueError(f"{', '.join(missing)} must be given")
    return chosen


def _check(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    kind = schema["type"]
    if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise ValueError(f"{name} is {value!r:.60}, must be {'an' if kind == 'integer' else 'a'} {kind}")
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum")
    if (
        (low is not None and not value >= low)
        or (above is not None and not value > above)
        or (most is not None and not value <= most)
    ):
        least = f"from {low}" if low is not None else f"above {above}"
        raise ValueError(f"{name} is {value!r}, must be a number {least} to {most}")


def _answer(box: Any, name: str, chosen: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    from nsbox._base.errors import AccessError, KillError, NsboxError, PolicyError

    check_environment(options.get("env") or {})  # the caller's mistakes aren't the model's
    try:
        if name == "shell":
            most = options.get("timeout", _TIMEOUT if "timeout" not in chosen else None)
            wish = chosen.get("timeout")
            limit = wish if most is None else most if wish is None else min(wish, most)
            return _dict(box.shell(**{**options, **chosen, "timeout": limit}))
        if name == "background":
            job = box.background(**{key: value for key, value in {**options, **chosen}.items() if key != "timeout"})
            return {"job": job.id}
        if name.startswith("job_"):
            return _of_job(box, name, chosen)
        return _dict(getattr(box, name)(**chosen))
    except KillError:
        raise
    except (AccessError, PolicyError) as error:
        return {"error": str(error)}
    except NsboxError as error:
        if isinstance(error, ValueError):
            return {"error": str(error)}
        raise
    except OSError as error:
        shown = f": {error.filename}" if error.filename else ""
        return {"error": f"{error.strerror or error}{shown}"}
    except (ValueError, LookupError) as error:
        return {"error": str(error)}


def _of_job(box: Any, name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    job = box.job(chosen.pop("job"))
    if name == "job_output":
        answer = _dict(job.output(**chosen))
        if job.result is not None:
            answer["result"] = {key: job.result.as_dict()[key] for key in ("status", "signal", "cause", "why")}
        return answer
    if name == "job_send":
        job.send(chosen["text"], timeout=5)
        return {"sent": len(chosen["text"])}
    return _dict(job.kill())


def _dict(record: Any) -> dict[str, Any]:
    values: dict[str, Any] = record.as_dict()
    return values
