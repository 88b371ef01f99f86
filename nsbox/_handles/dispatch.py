"""From a model's call of a tool to the method that carries it out, and to an answer as values for JSON."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import time
from collections.abc import Mapping

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.environment import check_environment
from nsbox._handles.schemas import BY_NAME
from nsbox._tools.arguments import check_encodable

if TYPE_CHECKING:
    from typing import Any, Protocol

    from nsbox._calls.token import CancelToken
    from nsbox._handles.job import Job
    from nsbox._handles.schemas import Tool

    class Runner(Protocol):
        """What runs Python code, as nsbox.Python."""

        @property
        def is_closed(self) -> bool:
            """Whether it was closed."""

        def run(self, code: str, **options: Any) -> Any:
            """Run code, and return its record."""


_TIMEOUT = 120.0  # seconds, if neither the model nor the caller names a limit: a model can't wait for ever
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
}
_COMMANDS = ("shell", "exec", "python")  # the tools that run something to its end
_TURN = 0.05  # seconds between two looks at a token, as in a call
_WAIT = 60.0  # seconds that job_wait waits if the model names none


def call_tool(
    box: Any, name: str, arguments: Mapping[str, Any] | str, *, python: Runner | None = None, **options: Any
) -> dict[str, Any]:
    """Return the answer to a model's call of a tool of tool_schemas(), as values for JSON.

    If the model made a mistake, the answer is {"error": ...}, which tells the model what is wrong: an argument, a path
    that the policy doesn't allow, a file that doesn't exist, a text that doesn't occur.

    box: a Sandbox, Session or Task. Only a Sandbox has the tool python.
    name: the name of the tool.
    arguments: a mapping, or JSON as a str.
    options: more parameters for shell, exec, python and background: env, secrets, cancel, max_output and the like.
        timeout is the longest that the model can name. Default: an hour, and 120 seconds if it names none. cancel also
        ends grep, and the waiting of job_output and job_wait.
    python: keyword only; the Python that the tool python runs code in. Default: one that Sandbox.python() makes at the
        first such call, and that ends with the Sandbox.

    Raises an error for what isn't the model's fault: UnavailableError, SetupError, InterpreterError and KillError,
    PolicyError and TypeError for options, and ValueError if box is closed.
    """
    box._open_way()  # closed?
    tool = BY_NAME.get(name)
    if tool is None:
        return {"error": f"there is no tool {name!r}; there are {', '.join(BY_NAME)}"}
    try:
        chosen = _checked(tool, arguments)
    except ValueError as error:
        return {"error": f"{name}: {error}"}
    return _answer(box, name, chosen, options, python)


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
            raise ValueError(f"there is no parameter {name!r}; there are {', '.join(tool.parameters) or 'none'}")
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
        raise ValueError(f"{name} is {value!r:.60}, must be {'an' if kind[0] in 'ai' else 'a'} {kind}")
    if isinstance(value, list | tuple) and not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} is {value!r:.60}, must be an array of strings")
    for text in (value,) if isinstance(value, str) else value if isinstance(value, list | tuple) else ():
        check_encodable(name, text)
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum")
    if (
        (low is not None and not value >= low)
        or (above is not None and not value > above)
        or (most is not None and not value <= most)
    ):
        least = f"from {low}" if low is not None else f"above {above}"
        raise ValueError(f"{name} is {value!r}, must be a number {least} to {most}")


def _answer(
    box: Any, name: str, chosen: dict[str, Any], options: dict[str, Any], python: Runner | None
) -> dict[str, Any]:
    from nsbox._base.errors import AccessError, KillError, NsboxError, PolicyError

    check_environment(options.get("env") or {})  # the caller's mistakes aren't the model's
    try:
        if name in _COMMANDS:
            most = options.get("timeout", _TIMEOUT if "timeout" not in chosen else None)
            wish = chosen.get("timeout")
            limit = wish if most is None else most if wish is None else min(wish, most)
            run = _python_of(box, python).run if name == "python" else getattr(box, name)
            return _dict(run(**{**options, **chosen, "timeout": limit}))
        if name == "background":
            job = box.background(**{key: value for key, value in {**options, **chosen}.items() if key != "timeout"})
            return {"job": job.id}
        if name.startswith("job_"):
            return _of_job(box, name, chosen, options.get("cancel"))
        more = {"cancel": options.get("cancel")} if name == "grep" else {}
        return _dict(getattr(box, name)(**chosen, **more))
    except KillError:
        raise
    except (AccessError, PolicyError) as error:
        return {"error": str(error)}
    except NsboxError as error:
        if isinstance(error, ValueError):
            return {"error": str(error)}
        raise
    except OSError as error:
        if error.errno is None:  # a signal handler's, such as the caller's TimeoutError: no mistake of the model
            raise
        shown = f": {error.filename}" if error.filename else ""
        return {"error": f"{error.strerror or error}{shown}"}
    except (ValueError, LookupError) as error:
        return {"error": str(error)}


def _python_of(box: Any, python: Runner | None) -> Runner:
    """Return what runs a model's Python code; raises ValueError for a box that can't have it."""
    if python is not None:
        return python
    if not hasattr(box, "python"):
        what = f"a {type(box).__name__} has no warm interpreter of its own, and call_tool() was given none as python="
        raise ValueError(f"python: this tool isn't available here ({what}); run python3 by a command")
    kept: Runner | None = vars(box).get("_python_of_tools")
    if kept is None or kept.is_closed:
        vars(box).pop("_python_of_tools", None)
        kept = vars(box).setdefault("_python_of_tools", box.python())  # in one step: threads share a box
    return kept


def _of_job(box: Any, name: str, chosen: dict[str, Any], cancel: CancelToken | None) -> dict[str, Any]:
    if name == "job_list":
        return {"jobs": [_summary(job) for job in box.jobs()]}
    job: Job = box.job(chosen.pop("job"))
    if name == "job_output":
        _await(job, chosen.get("since", 0), chosen.pop("wait", 0), cancel)
        answer = _dict(job.output(**chosen))
        if job.result is not None:
            answer["result"] = {key: job.result.as_dict()[key] for key in ("status", "signal", "cause", "why")}
        return answer
    if name == "job_wait":
        _await(job, None, chosen.get("timeout", _WAIT), cancel)
        record = job.result
        return {"is_over": record is not None, "result": None if record is None else _dict(record)}
    if name == "job_send":
        job.send(chosen["text"], timeout=5)
        return {"sent": len(chosen["text"])}
    return _dict(job.kill())


def _summary(job: Job) -> dict[str, Any]:
    """Return what a list of jobs says of one."""
    result = job.result
    args: Any = job.args  # a line, or a program and its arguments
    return {
        "job": job.id,
        "command": args if isinstance(args, str) else shlex.join(args),
        "is_running": job.is_running,
        "cause": None if result is None else result.cause,
    }


def _await(job: Job, since: int | None, seconds: float, cancel: CancelToken | None) -> None:
    """Wait for output of a job after a position, or with None for its end; no longer than a token lets it."""
    until = time.monotonic() + seconds
    while job.is_running if since is None else not job._has_news(since):
        left = until - time.monotonic()
        if left <= 0 or (cancel is not None and cancel.is_cancelled):
            return
        if since is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(min(left, _TURN))
        else:
            job._await_news(since, min(left, _TURN))


def _dict(record: Any) -> dict[str, Any]:
    values: dict[str, Any] = record.as_dict()
    return values
