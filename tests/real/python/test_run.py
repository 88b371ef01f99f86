"""Python.run: code in a branch, and what its record says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nsbox import (
    AccessError,
    CalledProcessError,
    CancelToken,
    Policy,
    PolicyError,
    Python,
    PythonResult,
    Sandbox,
    StreamEvent,
    UnavailableError,
    python_schema,
)
from nsbox._policy.losses import LOSSES

VALID = jsonschema.Draft202012Validator(python_schema())


def ran(py: Python, code: str, **options: Any) -> PythonResult:
    """Run code; its record is what the schema says, whatever has happened."""
    result = py.run(code, **options)
    VALID.validate(json.loads(result.as_json()))
    return result


# ---- what code does


@pytest.mark.vm
def test_what_it_prints(py: Python) -> None:
    """Streams, status, usage: a tool call's."""
    result = ran(py, "import sys; print(6*7); print('x', file=sys.stderr)")
    assert (result.returncode, result.stdout, result.stderr, result.cause) == (0, "42\n", "x\n", "exit")
    assert result.why == ()
    assert result.usage is not None and result.usage.is_complete and result.usage.max_rss > 1 << 20
    assert result.args == "import sys; print(6*7); print('x', file=sys.stderr)"
    assert (result.value, result.has_value, result.repr, result.exception) == (None, False, None, None)


@pytest.mark.parametrize(
    ("code", "value", "text", "kind"),
    [
        ("6*7", 42, "42", "int"),
        ("x = 1\nx + 1", 2, "2", "int"),
        ("{'a': [1, None, 2.5, 'é']}", {"a": [1, None, 2.5, "é"]}, "{'a': [1, None, 2.5, 'é']}", "dict"),
        ("'\\ud800'", "\ud800", "'\\ud800'", "str"),
        ("True", True, "True", "bool"),
    ],
)
def test_the_value_of_the_last_line(py: Python, code: str, value: object, text: str, kind: str) -> None:
    """As in a notebook; it isn't printed."""
    result = ran(py, code)
    assert (result.value, result.has_value, result.repr, result.type) == (value, True, text, kind)
    assert (result.stdout, result.returncode) == ("", 0)


@pytest.mark.parametrize("code", ["float('nan')", "b'x'", "object()", "{1: 2}.keys()", "10**5000", "float('inf')"])
def test_a_value_that_json_doesnt_have(py: Python, code: str) -> None:
    """It comes as its repr."""
    result = ran(py, code)
    assert (result.value, result.has_value) == (None, False)
    assert result.repr


@pytest.mark.parametrize("code", ["", "x = 1", "None", "print('a')", "pass"])
def test_no_value(py: Python, code: str) -> None:
    """A statement has none, and None isn't shown."""
    result = ran(py, code)
    assert (result.value, result.has_value, result.repr, result.returncode) == (None, False, None, 0)


def test_an_exception(py: Python) -> None:
    """It comes as parts, and as python -c prints it, with the code's own lines."""
    result = ran(py, "def f(d):\n    return d['k']\n\nf({})")
    error = result.exception
    assert (result.returncode, result.cause) == (1, "exit")
    assert error is not None
    assert (error.type, error.module, error.message, str(error)) == ("KeyError", "builtins", "'k'", "KeyError: 'k'")
    assert error.lines == ((4, "f({})"), (2, "    return d['k']")) or error.lines == (
        (4, "f({})"),
        (2, "return d['k']"),
    )
    assert error.traceback in result.stderr
    assert "return d['k']" in result.stderr
    assert "nsbox" not in result.stderr


@pytest.mark.parametrize("code", ["x = (", "def f(:", "'a", "return", "\x00", "if 1:\nx", "é = 'ü' +"])
def test_syntax_errors(py: Python, code: str) -> None:
    """A syntax error in any position is an exception like any other."""
    result = ran(py, code)
    assert result.returncode == 1
    assert result.exception is not None
    assert result.exception.type in ("SyntaxError", "IndentationError", "ValueError")


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("exit(4)", 4, ""),
        ("import os; os._exit(5)", 5, ""),
        ("import atexit; atexit.register(print, 'bye')", 0, ""),
    ],
)
def test_statuses_are_those_of_an_interpreter(py: Python, code: str, status: int, words: str) -> None:
    """An exit is no exception, and its status is what `python -c` would have."""
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    result = ran(py, code)
    assert (result.returncode, result.stdout, result.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert (result.returncode, result.stderr, result.exception, result.cause) == (status, words, None, "exit")


def test_inputs_that_json_lacks(py: Python) -> None:
    """The error names the input."""
    with pytest.raises(TypeError, match=r"inputs\['b'\] must be a value that JSON has: .*set"):
        py.run("1", inputs={"a": 1, "b": {2}})
    with pytest.raises(ValueError, match=r"bytes of code and inputs are more than"):
        py.run("1", inputs={"a": "x" * (33 << 20)})


def test_inputs_and_arguments(py: Python) -> None:
    """Inputs are variables; args are sys.argv's."""
    result = ran(py, "import sys; [n * n for n in numbers], sys.argv", inputs={"numbers": [1, 2]}, args=["a", "b"])
    assert result.value == [[1, 4], ["-c", "a", "b"]]


def test_standard_input(py: Python) -> None:
    """Code reads what it is given; without any, input() is an error."""
    assert ran(py, "input() + input()", input="a\nb\n").value == "ab"
    assert ran(py, "import sys; len(sys.stdin.buffer.read())", input=b"x" * 3_000_000).value == 3_000_000
    result = ran(py, "input()")
    assert result.returncode == 1
    assert result.exception is not None and result.exception.type == "EOFError"


def test_directory_and_environment(py: Python, workspace: Path) -> None:
    """Code starts where commands do, with their environment and more."""
    (workspace / "sub").mkdir()
    (workspace / "mine.py").write_text("x = 7")
    assert ran(py, "import os; os.getcwd()").value == str(workspace)
    assert ran(py, "import os; os.getcwd()", cwd="sub").value == str(workspace / "sub")
    assert ran(py, "import mine; mine.x").value == 7
    code = "import os; [os.environ.get('MINE'), os.environ['HOME']]"
    mine, home = ran(py, code, env={"MINE": "1"}).value
    assert (mine, ran(py, code).value) == ("1", [None, home])


def test_a_directory_outside(py: Python, workspace: Path) -> None:
    """It is refused as for any tool call."""
    with pytest.raises(AccessError, match="readable"):
        py.run("1", cwd="/nowhere")
    assert py.run("1").value == 1


def test_output_is_bounded_and_streamed(py: Python) -> None:
    """The record keeps the ends; on_output gets all of it as it comes."""
    events: list[StreamEvent] = []
    result = ran(py, "for i in range(1000): print('x' * 999)", max_output=1000, on_output=events.append)
    assert (result.stdout_bytes, result.is_truncated) == (1_000_000, True)
    assert len(result.stdout) < 1100
    assert sum(len(event.data) for event in events) == 1_000_000


def test_a_slow_caller_loses_nothing(py: Python) -> None:
    """Code that has ended before the caller looks again has its result: it waits on the line."""
    result = ran(py, "print('on', flush=True)\n7", on_output=lambda _: time.sleep(0.4))
    assert (result.stdout, result.value) == ("on\n", 7)


def test_an_error_of_on_output_ends_it(py: Python) -> None:
    """It is raised, and the next code runs."""

    def refuse(event: StreamEvent) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        py.run("print(1, flush=True)\nwhile True: pass", on_output=refuse)
    assert py.run("1").value == 1


def test_check(py: Python) -> None:
    """check=True makes a failure an exception."""
    assert py.run("1", check=True).value == 1
    with pytest.raises(CalledProcessError, match="status 3"):
        py.run("raise SystemExit(3)", check=True)


def test_secrets_are_masked(py: Python) -> None:
    """In the streams, the value, its repr, its bundle, displays and the exception."""
    secret = "correct-horse-battery"
    code = (
        "import os, sys\ns = os.environ['TOKEN']\nprint(s)\nprint(s, file=sys.stderr)\n"
        "class C:\n def __repr__(self): return s\n def _repr_html_(self): return '<b>' + s\n{s: [s, C()]} if 0 else C()"
    )
    result = ran(py, code, secrets={"TOKEN": secret})
    assert secret not in repr(result)
    assert result.repr and result.mime
    value = ran(py, "import os; [os.environ['TOKEN'], {os.environ['TOKEN']: 1}]", secrets={"TOKEN": secret})
    assert secret not in repr(value)
    assert value.has_value
    failed = ran(py, "import os; raise ValueError(os.environ['TOKEN'])", secrets={"TOKEN": secret})
    assert secret not in repr(failed)
    assert failed.exception is not None and failed.exception.type == "ValueError"
    assert "TOKEN" not in (py.run("import os; sorted(os.environ)").repr or "")


# ---- time limits and cancelling


def test_a_time_limit(py: Python) -> None:
    """SIGTERM, grace, SIGKILL, as for any tool call; the record says so."""
    result = ran(py, "while True: pass", timeout=0.3, grace=1)
    assert (result.cause, result.ended_by, result.returncode) == ("timeout", "SIGTERM", -15)
    assert result.why[0].kind == "timeout"
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass"
    result = ran(py, code, timeout=0.5, grace=0.2)
    assert (result.cause, result.ended_by, result.returncode, result.stdout) == ("timeout", "SIGKILL", -9, "on\n")


def test_cancelling(py: Python) -> None:
    """A token ends code from another thread, and before it starts."""
    token = CancelToken()
    timer = threading.Timer(0.3, token.cancel)
    timer.start()
    result = ran(py, "while True: pass", cancel=token)
    timer.join()
    assert (result.cause, result.cancelled) == ("cancelled", True)
    result = ran(py, "1", cancel=token)
    assert (result.cause, result.has_value, result.usage) == ("cancelled", False, None)


# ---- bad input


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"code": b"1"}, TypeError),
        ({"code": None}, TypeError),
        ({"inputs": [1]}, TypeError),
        ({"inputs": {"a b": 1}}, ValueError),
        ({"inputs": {1: 1}}, ValueError),
        ({"inputs": {"a": object()}}, TypeError),
        ({"inputs": {"a": float("nan")}}, ValueError),
        ({"args": "ab"}, TypeError),
        ({"args": [1]}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": "1"}, ValueError),
        ({"grace": -1}, ValueError),
        ({"max_output": -1}, PolicyError),
        ({"cancel": 1}, TypeError),
        ({"on_output": 1}, TypeError),
        ({"env": {"LD_PRELOAD": "x"}}, PolicyError),
        ({"shell": True}, TypeError),
        ({"code": "x" * (33 << 20)}, ValueError),
    ],
)
def test_arguments_that_make_no_sense(py: Python, options: dict[str, Any], error: type[Exception]) -> None:
    """They raise before anything runs."""
    with pytest.raises(error):
        py.run(**{"code": "1", **options})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"imports": "numpy"}, TypeError),
        ({"imports": [1]}, TypeError),
        ({"imports": ["a b"]}, ValueError),
        ({"imports": ["os; x"]}, ValueError),
        ({"setup": b""}, TypeError),
        ({"stock": -1}, ValueError),
        ({"stock": True}, ValueError),
        ({"start_timeout": 0}, ValueError),
        ({"start_timeout": None}, ValueError),
        ({"python": 3}, TypeError),
        ({"python": ""}, ValueError),
        ({"python": "a\0b"}, ValueError),
    ],
)
def test_wishes_that_make_no_sense(box: Sandbox, options: dict[str, Any], error: type[Exception]) -> None:
    """So does what can't be wished for."""
    with pytest.raises(error):
        box.python(**options)


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "landlock", "degrade": LOSSES},
        {"kill_on_exit": False},
        {"backend": "passthrough", "require": "nothing"},
    ],
)
def test_policies_without_branches(policy: Policy, changes: dict[str, Any]) -> None:
    """A policy under which there can be none says why; nothing runs with less containment."""
    with Sandbox(policy.with_(**changes), stock=0) as box, pytest.raises(UnavailableError, match=r"branch|Python"):
        box.python().run("1")


def test_the_disabled_mode(policy: Policy) -> None:
    """Nothing is contained there, so there are no branches."""
    with Sandbox(policy, mode="disabled") as box, pytest.raises(UnavailableError, match="disabled"):
        box.python()
    with Sandbox(policy, stock=0) as box:
        py = box.python()
        assert py.run("1").value == 1
        box.update(mode="disabled")
        with pytest.raises(UnavailableError, match="disabled"):
            py.run("1")


def test_large_code_and_large_results(py: Python) -> None:
    """What doesn't fit into a socket's buffer goes through it in pieces, both ways at once."""
    text = "é" * 2_000_000
    result = ran(py, f"x = {text!r}\nprint(x)\nlen(x)", max_output="8M")
    assert (result.value, len(result.stdout)) == (2_000_000, 2_000_001)
    assert ran(py, "'x' * 500_000").value == "x" * 500_000
    result = ran(py, "'x' * 50_000_000")
    assert not result.has_value
    assert result.returncode == 0
    assert result.omissions


def test_descriptors_of_the_caller(py: Python) -> None:
    """Code has the three standard ones and, above them, only what the program in the branch needs."""
    read, write = os.pipe()
    try:
        os.set_inheritable(read, True)
        fds = py.run("import os; sorted(map(int, os.listdir('/proc/self/fd')))").value
    finally:
        os.close(read)
        os.close(write)
    assert fds[:3] == [0, 1, 2]
    assert len(fds) <= 6


def test_what_the_time_limit_counts(workspace: Path) -> None:
    """The interpreter's start, which a run may have to wait for, isn't the code's time."""
    with Sandbox(Policy.workspace(workspace)) as box, box.python(setup="import time; time.sleep(3)") as py:
        result = py.run("41 + 1", timeout=3)
        assert (result.value, result.cause) == (42, "exit")


def test_what_the_time_limit_counts_in_a_cold_branch(workspace: Path) -> None:
    """Where each branch does the imports itself, their time counts; the record says if the code hadn't begun."""
    (workspace / "own_module.py").write_text("import os, time\nif os.environ.get('SLOW'): time.sleep(1000)\n")
    setup = "import os, sys; sys.path.insert(0, os.getcwd()); import own_module"
    with Sandbox(Policy.workspace(workspace)) as box, box.python(setup=setup) as py:
        assert py.run("1").value == 1 and py.why_cold
        found = [
            [hint.message for hint in py.run(code, timeout=5, grace=0, env=env).why if "hadn't begun" in hint.message]
            for code, env in (("1", {"SLOW": "1"}), ("while True: pass", {}))
        ]
    assert [len(messages) for messages in found] == [1, 0]
    assert "own_module.py" in found[0][0]
