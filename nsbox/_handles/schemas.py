"""The tools of an agent as a model sees them: names, descriptions, and parameters as JSON Schema."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    Form = Literal["openai", "anthropic", "mcp"]

_FORMS = ("openai", "anthropic", "mcp")


@frozen
class Tool(Frozen):
    """A tool. parameters: the JSON Schema of each, by name. required: the names of those that must be given."""

    name: str
    description: str
    parameters: dict[str, dict[str, Any]]
    required: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": self.parameters,
            "required": list(self.required),
            "additionalProperties": False,
        }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str, least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "minimum": least, "maximum": most}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


_PATH = _text(
    "A path as commands see it. A relative one counts from the sandbox's working directory, whatever a `cd` did."
)
_LINE = _text("A command line for the shell, which is bash where the sandbox has it.")
_CWD = _text(
    "A directory. A relative one counts from the sandbox's working directory, which is the default; a `cd` of an "
    "earlier command changes neither."
)
_JOB = _number("The number of the job.", 1, 1 << 31)
_SECONDS = {
    "type": "number",
    "description": "Seconds after which the command is ended. Default: 120.",
    "exclusiveMinimum": 0,
    "maximum": 3600,
}

TOOLS = (
    Tool(
        "shell",
        "Run a command line to its end, in a sandbox. Returns its status, stdout and stderr and, if it failed, why.",
        {"command": _LINE, "timeout": _SECONDS, "cwd": _CWD, "input": _text("What the command reads from stdin.")},
        ("command",),
    ),
    Tool(
        "exec",
        "Run a program with arguments, without a shell, in a sandbox. Returns what shell returns.",
        {
            "program": _text("A path in the sandbox, or a name to look for in its PATH."),
            "args": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Its arguments, without the program itself. Default: none.",
            },
            "timeout": _SECONDS,
            "cwd": _CWD,
            "input": _text("What the program reads from stdin."),
        },
        ("program",),
    ),
    Tool(
        "python",
        "Run Python code in a warm interpreter, in a sandbox. Returns what it printed, the value of its last line if "
        "that is an expression, and the exception that ended it, if any. Variables don't stay.",
        {
            "code": _text("The code, as after `python -c`."),
            "timeout": _SECONDS,
            "cwd": _CWD,
            "input": _text("What the code reads from stdin."),
        },
        ("code",),
    ),
    Tool(
        "background",
        "Start a command line in the background, such as a server. Returns the number of the job.",
        {"command": _LINE, "cwd": _CWD},
        ("command",),
    ),
    Tool(
        "job_output",
        "Return what a job has printed since a position, and the position for the next call.",
        {
            "job": _JOB,
            "since": _number("A position: `next` of your last call. Default: 0, for the beginning.", 0, 1 << 53),
            "wait": _number("Seconds to wait for something new. Default: 0.", 0, 60),
        },
        ("job",),
    ),
    Tool(
        "job_send",
        "Send text to the stdin of a job. End lines with a newline.",
        {"job": _JOB, "text": _text("The text.")},
        ("job", "text"),
    ),
    Tool(
        "job_wait",
        "Wait until a job has ended. Returns whether it has and, if so, its record, as shell does.",
        {
            "job": _JOB,
            "timeout": {
                "type": "number",
                "description": "Seconds to wait at most. Default: 60.",
                "exclusiveMinimum": 0,
                "maximum": 3600,
            },
        },
        ("job",),
    ),
    Tool("job_list", "List the jobs that run, and those that ended last.", {}, ()),
    Tool("job_kill", "End a job and everything that it has started.", {"job": _JOB}, ("job",)),
    Tool(
        "read_lines",
        "Read a text file, with line numbers.",
        {
            "path": _PATH,
            "offset": _number("The first line. Default: 1.", 1, 10**9),
            "limit": _number("How many lines. Default: 2000.", 1, 100_000),
        },
        ("path",),
    ),
    Tool("write", "Make a file, or replace one.", {"path": _PATH, "content": _text("The text.")}, ("path", "content")),
    Tool(
        "append",
        "Write at the end of a file, or make it.",
        {"path": _PATH, "content": _text("The text.")},
        ("path", "content"),
    ),
    Tool(
        "edit",
        "Replace a text in a file with another. The text must occur exactly once, or exactly `count` times.",
        {
            "path": _PATH,
            "old": _text("The text exactly as it is in the file, without line numbers."),
            "new": _text("The text that replaces it."),
            "count": _number("How many times it occurs. Default: 1.", 1, 100_000),
        },
        ("path", "old", "new"),
    ),
    Tool(
        "grep",
        "Search files for a regular expression.",
        {
            "pattern": _text("A regular expression."),
            "path": _PATH,
            "glob": _text("Which files, such as '**/*.py'. Default: all."),
            "ignore_case": _flag("Whether upper and lower case are the same. Default: false."),
            "context": _number("Lines before and after each match. Default: 0.", 0, 20),
        },
        ("pattern",),
    ),
    Tool(
        "glob",
        "List files whose paths match a pattern, the newest first.",
        {
            "pattern": _text(
                "A pattern of paths relative to `path`, such as '**/*.py': ** is any number of directories."
            ),
            "path": _PATH,
        },
        ("pattern",),
    ),
    Tool("mkdir", "Make a directory, and those above it.", {"path": _PATH}, ("path",)),
    Tool(
        "delete",
        "Remove a file or a directory.",
        {"path": _PATH, "recursive": _flag("Whether to remove a directory with everything in it. Default: false.")},
        ("path",),
    ),
    Tool(
        "move",
        "Rename a file or a directory.",
        {"source": _PATH, "destination": _PATH, "overwrite": _flag("Whether a file is replaced. Default: false.")},
        ("source", "destination"),
    ),
    Tool(
        "copy",
        "Copy a file.",
        {"source": _PATH, "destination": _PATH, "overwrite": _flag("Whether a file is replaced. Default: false.")},
        ("source", "destination"),
    ),
    Tool(
        "media",
        "Read an image, or another file that isn't text, as base64 with its MIME type.",
        {"path": _PATH},
        ("path",),
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def chosen(names: Iterable[str] | None) -> list[Tool]:
    """Return the tools of these names; None: all. Raises ValueError for a name that no tool has."""
    if names is None:
        return list(TOOLS)
    if isinstance(names, str):
        raise TypeError("names is a str, must be a sequence of names")
    wish = list(names)
    unknown = [name for name in wish if name not in BY_NAME]
    if unknown:
        raise ValueError(f"no tool is called {', '.join(map(repr, unknown))}; there are {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in wish]


def tool_schemas(names: Iterable[str] | None = None, *, form: Form = "openai") -> list[dict[str, Any]]:
    """Return descriptions of the tools, for a model's function calling. call_tool() carries out the calls.

    names: which tools, such as ["shell", "edit"]. Default: None, for all.
    form: "openai" (compatible servers use it too), "anthropic", or "mcp". Default: "openai".

    Raises ValueError for a tool or a form that doesn't exist.
    """
    if form not in _FORMS:
        raise ValueError(f"form is {form!r}, must be one of {', '.join(_FORMS)}")
    found: list[dict[str, Any]] = []
    for tool in chosen(names):
        head = {"name": tool.name, "description": tool.description}
        if form == "openai":
            found.append({"type": "function", "function": {**head, "parameters": tool.schema()}})
        else:
            found.append({**head, "input_schema" if form == "anthropic" else "inputSchema": tool.schema()})
    return found
