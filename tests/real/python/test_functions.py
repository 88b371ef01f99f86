"""Functions of this process that a kernel's code calls: values, errors, limits, and code that abuses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsbox import AsyncSandbox, CancelToken, Policy, Python, PythonKernel

CALLS: list[Any] = []


def add(a: Any, b: Any = 0) -> Any:
    """Note what it was called with, and add."""
    CALLS.append((a, b))
    return a + b


def fail(kind: str) -> None:
    """Raise one of several exceptions."""

    class OwnError(Exception):
        pass

    raise {"own": OwnError("mine"), "value": ValueError("no good"), "key": KeyError("k"), "code": b_error()}[kind]


def b_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")


def odd() -> object:
    return object()


def slow() -> str:
    time.sleep(1.5)
    return "late"


FUNCTIONS: dict[str, Callable[..., Any]] = {"add": add, "fail": fail, "odd": odd, "slow": slow}


@pytest.fixture
def kernel(py: Python) -> Iterator[PythonKernel]:
    CALLS.clear()
    with py.kernel(functions=FUNCTIONS) as kernel:
        yield kernel


def raised(kernel: PythonKernel, code: str) -> tuple[str, str]:
    """Return the type and the message of what code raises."""
    result = kernel.run(code)
    assert result.exception is not None, result
    return result.exception.type, result.exception.message


def test_values(kernel: PythonKernel) -> None:
    """Values of JSON go there and back, by position and by name."""
    result = kernel.run("add([1, None, 'ä\\ud800'], b=[{'x': 1.5}])")
    assert result.value == [1, None, "ä\ud800", {"x": 1.5}] or result.repr == "[1, None, 'ä\\ud800', {'x': 1.5}]"
    assert CALLS == [([1, None, "ä\ud800"], [{"x": 1.5}])]
    assert kernel.run("x = add((1, 2), [3])\nx").value == [1, 2, 3]


def test_many(kernel: PythonKernel) -> None:
    """Calls may go on for as long as the code does, of any size together."""
    result = kernel.run("big = 'x' * 3_000_000\nfor i in range(40): add(big, '')\nadd(1, 1)")
    assert result.value == 2, result
    assert len(CALLS) == 41


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("fail('value')", "ValueError", "no good"),
        ("fail('key')", "KeyError", "k"),
        ("fail('own')", "RuntimeError", "OwnError: mine"),
        ("fail('code')", "RuntimeError", "UnicodeDecodeError"),
        ("odd()", "TypeError", "odd() returned what JSON can't say"),
        ("add()", "TypeError", "missing 1 required positional argument"),
        ("add(object())", "TypeError", "add(): the arguments must be values that JSON has"),
        ("add(float('nan'))", "TypeError", "add(): the arguments must be values that JSON has"),
        ("add('x' * 5_000_000)", "ValueError", "bytes of arguments are more than 4194304"),
        ("x = []\nx.append(x)\nadd(x)", "TypeError", "add()"),
        ("missing()", "NameError", "missing"),
    ],
)
def test_errors(kernel: PythonKernel, code: str, kind: str, words: str) -> None:
    """What goes wrong is an exception in the code, and the kernel goes on."""
    found, message = raised(kernel, code)
    assert found == kind
    assert words in message
    assert kernel.run("add(1, 2)").value == 3


def test_own_thread_and_process_only(kernel: PythonKernel) -> None:
    """Neither a thread of the code's nor a fork of its process can call: the line has one reader."""
    result = kernel.run(
        """
import os, threading
def attempt():
    try:
        add(1)
    except RuntimeError as error:
        print(error, flush=True)
thread = threading.Thread(target=attempt)
thread.start()
thread.join()
pid = os.fork()
if not pid:
    attempt()
    os._exit(0)
os.waitpid(pid, 0)
"""
    )
    assert result.stdout.count("only by the thread that runs the code") == 2
    assert CALLS == []


def test_after_the_run(kernel: PythonKernel) -> None:
    """A function that is kept for later can't be called when no code runs."""
    code = """
import atexit
kept = add
def late():
    try:
        kept(7)
    except RuntimeError as error:
        print("refused")
atexit.register(late)
raise SystemExit
"""
    assert "refused" in kernel.run(code).stdout
    assert CALLS == []


def test_time_limit(kernel: PythonKernel) -> None:
    """A function runs to its end; then the limit holds. What comes after it is refused."""
    result = kernel.run("slow()\nwhile True: pass", timeout=0.5)
    assert result.timed_out and result.duration > 1.4
    assert result.ended is False and result.exception is not None and result.exception.type == "KeyboardInterrupt"
    code = """
try:
    while True:
        add(1)
except KeyboardInterrupt:
    try:
        add(2)
    except RuntimeError as error:
        print(error)
"""
    result = kernel.run(code, timeout=0.5)
    assert "no function can be called any more" in result.stdout
    assert (2, 0) not in CALLS
    assert kernel.run("add(3, 4)").value == 7


def test_cancel_by_a_function(py: Python) -> None:
    """A function may cancel the call that it is part of."""
    token = CancelToken()
    with py.kernel(functions={"stop": token.cancel}) as kernel:
        result = kernel.run("stop()\nwhile True: pass", cancel=token)
        assert result.cancelled and not result.ended


def test_what_is_no_exception(py: Python) -> None:
    """What isn't an Exception, such as Ctrl-C, ends the call here; the code is interrupted."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with py.kernel(functions={"interrupt": interrupt}) as kernel:
        with pytest.raises(KeyboardInterrupt):
            kernel.run("x = 1\ninterrupt()\nx = 2")
        assert kernel.run("x").value == 1


def test_no_call_within_a_call(py: Python) -> None:
    """A function can't use the kernel that waits for it: an error, and no deadlock."""
    kernels: list[PythonKernel] = []
    with py.kernel(functions={"again": lambda: kernels[0].run("1").value}) as kernel:
        kernels.append(kernel)
        kind, message = raised(kernel, "again()")
        assert kind == "ValueError" and "of this thread" in message


def test_forks_and_reset(kernel: PythonKernel) -> None:
    """Forks call too, each for itself; a fresh branch has the functions again."""
    (fork,) = kernel.fork()
    with fork:
        assert fork.run("add(1, 1)").value == 2
    assert kernel.run("add(2, 2)").value == 4
    kernel.reset()
    assert kernel.run("add(3, 3)").value == 6


def test_names_are_the_codes(kernel: PythonKernel) -> None:
    """Code may put something else under a function's name; that stays."""
    kernel.run("def add(*args): return 'mine'")
    assert kernel.run("add(1)").value == "mine"


_FORGE = """
import gc
line = next(one for one in gc.get_objects() if type(one).__name__ == "Channel")
number = next(one for one in gc.get_objects() if type(one).__name__ == "Functions")._number
"""


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        (
            "for n in range(1000): line.send({'id': number, 'call': {'n': n, 'name': 'slow', 'args': [], 'kwargs': {}}})",
            "without waiting",
        ),
        ("line.send({'id': number, 'call': {'name': 'x' * (5 << 20)}})", "a call of"),
        ("line.send_bytes(b'{' * 100)", "JSON"),
    ],
)
def test_flood(kernel: PythonKernel, forged: str, words: str) -> None:
    """Code that writes to the line by itself, and breaks the rules, is killed; here nothing grows."""
    result = kernel.run(_FORGE + forged + "\nimport time\ntime.sleep(60)")
    assert result.ended
    assert any(words in hint.message for hint in result.why), result.why


def test_answers_that_nobody_reads(py: Python) -> None:
    """Code that calls, and reads no answer, gets no more answers than its socket and this process hold for it."""
    asked = []

    def big() -> str:
        asked.append(1)
        return "x" * (1 << 20)

    forge = f"""{_FORGE}
import json, os, socket, time
content = json.dumps({{"id": number, "call": {{"n": 1, "name": "big", "args": [], "kwargs": {{}}}}}}).encode()
raw = socket.socket(fileno=os.dup(line.fd))
for _ in range(8):
    raw.sendall(len(content).to_bytes(4, 'little') + content)
    time.sleep(0.05)
"""
    with py.kernel(functions={"big": big}) as kernel:
        assert kernel.run(forge).returncode == 0
    assert len(asked) == 1


@pytest.mark.parametrize(
    "call",
    [
        "{}",
        "{'n': 1, 'name': 'os.system', 'args': ['true'], 'kwargs': {}}",
        "{'n': 1, 'name': '__class__', 'args': [], 'kwargs': {}}",
        "{'n': 1, 'name': ['add'], 'args': [], 'kwargs': {}}",
        "{'n': 1, 'name': 'add', 'args': 'ab', 'kwargs': {}}",
        "{'n': 1, 'name': 'add', 'args': [], 'kwargs': [1]}",
        "{'n': 'x' * 3000000, 'name': 'none', 'args': [], 'kwargs': {}}",
        "{'n': {'x': []}, 'name': None, 'args': None, 'kwargs': None}",
    ],
)
def test_forged_call(kernel: PythonKernel, call: str) -> None:
    """A call that names no function, or can't be read, calls nothing; it is answered with an error."""
    result = kernel.run(_FORGE + f"line.send({{'id': number, 'call': {call}}})\nprint(line.receive()['error']['type'])")
    assert result.stdout.strip() in ("NameError", "TypeError"), result
    assert CALLS == []
    assert kernel.run("add(1, 2)").value == 3


def test_forged_answer(kernel: PythonKernel) -> None:
    """Code can't answer for this process: what it sends comes here, where it is no answer."""
    result = kernel.run(_FORGE + "line.send({'op': 'answer', 'id': number, 'n': 1, 'value': 'forged'})\nadd(1, 2)")
    assert result.value == 3


def test_call_outside_of_a_run(kernel: PythonKernel) -> None:
    """A thread that writes calls to the line between two runs has nothing called."""
    kernel.run(
        _FORGE
        + """
import threading, time
def later():
    time.sleep(0.5)
    for _ in range(10):
        line.send({"id": number, "call": {"n": 1, "name": "add", "args": [1], "kwargs": {}}})
threading.Thread(target=later, daemon=True).start()
"""
    )
    time.sleep(1)
    kernel.run("1")
    assert CALLS == []


def test_without_functions(py: Python) -> None:
    """A kernel that was given none calls nothing, whatever the code sends."""
    with py.kernel() as kernel:
        code = "import gc\nline = next(one for one in gc.get_objects() if type(one).__name__ == 'Channel')\n"
        call = "{'n': 1, 'name': 'add', 'args': [1], 'kwargs': {}}"
        CALLS.clear()
        assert kernel.run(code + f"for n in range(100): line.send({{'id': 1, 'call': {call}}})\n7").value == 7
        assert CALLS == []


async def _coroutine() -> None: ...


@pytest.mark.parametrize(
    ("functions", "error"),
    [
        ([add], TypeError),
        ({"a b": add}, ValueError),
        ({1: add}, ValueError),
        ({"x": 1}, TypeError),
        ({"x": _coroutine}, TypeError),
    ],
)
def test_bad_functions(py: Python, functions: Any, error: type[Exception]) -> None:
    """What can't be called by a name is an error, before anything begins."""
    with pytest.raises(error, match="functions"):
        py.kernel(functions=functions)


def test_coroutines(policy: Policy) -> None:
    """A kernel for coroutines calls functions in the thread of its run."""

    async def main() -> object:
        async with AsyncSandbox(policy, stock=0) as box, box.python().kernel(functions={"add": add}) as kernel:
            return (await kernel.run("add(20, 22)")).value

    assert asyncio.run(main()) == 42
