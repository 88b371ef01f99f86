"""What the options of `nsbox python` mean: which code, at a prompt or as a program."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tokenize

from nsbox._base.errors import InterpreterError, NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.messages import complain, of_chdir
from nsbox._cli.policy import policy_of, record_of
from nsbox._cli.python.program import Program, no_interpreter, python_of, record, run
from nsbox._popen.story import Attempt

if TYPE_CHECKING:
    from nsbox._policy.policy import Policy


def main(options: argparse.Namespace) -> int:
    """Run a program, and return its exit status as `nsbox run` does; or show the prompt.

    Without a program, stdin is one, unless it is a terminal.
    """
    record_of(options)
    with Attempt("python", ["python"], cwd=options.chdir):
        policy = policy_of(options)
        program = _program(options)
        if program is None and options.json:
            raise PolicyError("--json", "is for a program, not for the prompt")
        if program is not None and options.save_images is not None:
            raise PolicyError("--save-images", "is for the prompt; --json has a program's images")
    try:
        if program is None:
            return _prompt(policy, options)
        return (record if options.json else run)(program, policy, options)
    except InterpreterError as error:
        return no_interpreter(error)
    except NsboxError as error:
        if (named := of_chdir(error, options.chdir)) is error:
            raise
        return complain(named, 125)


# ---- the program


def _program(options: argparse.Namespace) -> Program | None:
    """Return the program; None for the prompt. Raises PolicyError, whose field is an option or a file."""
    if options.code is not None:
        words = [*options.code, *options.words]
        if not words:
            options.parser.error("argument -c: expected one argument")
        return Program(words[0], "<string>", ("-c", *words[1:]))
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if words[:1] not in ([], ["-"]):
        try:
            with open(words[0], "rb") as file:
                return Program(_decoded(file.read(), words[0]), words[0], tuple(words))
        except OSError as error:
            raise PolicyError(words[0], str(error.strerror)) from None
    if not words and _is_terminal():
        return None
    if sys.stdin is None:
        raise PolicyError("stdin", "is closed: name a program, or give one after -c")
    return Program(_decoded(sys.stdin.buffer.read(), "<stdin>"), "<stdin>", ("-", *words[1:]), is_input=True)


def _decoded(data: bytes, name: str) -> str:
    """Return the text of a program, by its coding line or mark as Python reads it (PEP 263)."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise PolicyError(name, f"isn't Python source: {error}") from None


def _is_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


# ---- the prompt


def _prompt(policy: Policy, options: argparse.Namespace) -> int:
    from nsbox._cli.python.display import Display
    from nsbox._cli.python.history import History
    from nsbox._cli.python.prompt import Prompt
    from nsbox._machine.probe import probe
    from nsbox.sandbox import Sandbox

    with contextlib.closing(Display(options.save_images)) as display, Sandbox(policy) as box:
        py = python_of(box, options).start()
        version, where = ".".join(map(str, py.version)), policy.workdir or "/"
        print(f"Python {version} in a sandbox, in {where}. Ctrl-C interrupts, Ctrl-D ends.")
        cwd = None if options.chdir is None else os.path.abspath(options.chdir)
        with py.kernel(cwd=cwd) as kernel:
            return Prompt(kernel, display, History(probe().state), options.timeout).run()
