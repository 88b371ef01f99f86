"""How calls and kernels end: time limits, interrupts, cancellations, exits, kills, and code that does its worst."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from nsbox_testing.verdicts import LONG

from nsbox import CancelToken, Limits, Policy, Python, PythonKernel, PythonResult, Sandbox, python_schema

VALID = jsonschema.Draft202012Validator(python_schema())
STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun', flush=True)\nwhile True: pass"
FOREVER = "print('begun', flush=True)\nwhile True: pass"


@pytest.fixture
def kernel(py: Python) -> Iterator[PythonKernel]:
    with py.kernel() as kernel:
        kernel.run("x = 1")
        yield kernel


def ran(kernel: PythonKernel, code: str, **options: Any) -> PythonResult:
    """Run code; its record is what the schema says, whatever has happened."""
    result = kernel.run(code, **options)
    VALID.validate(json.loads(result.as_json()))
    return result


def goes_on(kernel: PythonKernel) -> bool:
    """Return whether the kernel still has its state."""
    result = kernel.run("x", timeout=LONG)
    return (result.value, kernel.ended) == (1, None)


class Begun:
    """Knows when code has printed something."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self, _: object) -> None:
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(LONG)


def in_thread(kernel: PythonKernel, code: str, **options: Any) -> tuple[threading.Thread, list[PythonResult]]:
    """Run code in another thread; return once it has printed something."""
    begun, found = Begun(), []  # type: tuple[Begun, list[PythonResult]]
    thread = threading.Thread(target=lambda: found.append(ran(kernel, code, on_output=begun, **options)))
    thread.start()
    begun.wait()
    return thread, found


# ---- time limits


@pytest.mark.vm
@pytest.mark.parametrize(
    "code", [FOREVER, "print(1, flush=True); import time; time.sleep(1000)", "input_ = 1\nwhile 1: input_ += 1"]
)
def test_a_time_limit(kernel: PythonKernel, code: str) -> None:
    """The code is interrupted, and the kernel goes on with its variables."""
    result = ran(kernel, code, timeout=0.3)
    assert (result.timed_out, result.ended_by, result.ended, result.cause) == (True, "SIGINT", False, "timeout")
    assert (result.returncode, result.signal) == (-2, "SIGINT")
    assert result.exception is not None
    assert result.exception.type == "KeyboardInterrupt"
    assert result.duration < LONG
    assert "the kernel goes on" in str(result.why[0])
    assert goes_on(kernel)


def test_code_that_handles_the_interrupt(kernel: PythonKernel) -> None:
    """It has its time until the end of the grace; the record still says that it took too long."""
    code = "try:\n    import time; time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('cleaned'); y = 2\ny"
    result = ran(kernel, code, timeout=0.3, grace=LONG)
    assert (result.timed_out, result.ended_by, result.returncode) == (True, "SIGINT", -2)
    assert (result.stdout, result.value, result.exception) == ("cleaned\n", 2, None)
    assert goes_on(kernel)


def test_code_that_ignores_the_interrupt(kernel: PythonKernel) -> None:
    """After the grace it is killed, with its kernel. reset() begins a fresh one."""
    result = ran(kernel, STUBBORN, timeout=0.3, grace=0.2)
    assert (result.timed_out, result.ended_by, result.ended, result.cause) == (True, "SIGKILL", True, "timeout")
    assert (result.returncode, result.stdout) == (-9, "begun\n")
    assert "reset()" in str(result.why[0])
    assert kernel.ended == "it was ended by SIGKILL"
    with pytest.raises(ValueError, match=r"the kernel has ended: it was ended by SIGKILL; reset\(\)"):
        kernel.run("x")
    kernel.reset()
    assert kernel.ended is None
    assert ran(kernel, "'x' in globals()").value is False


def test_no_grace(kernel: PythonKernel) -> None:
    """The kernel is killed at once."""
    result = ran(kernel, FOREVER, timeout=0.3, grace=0)
    assert (result.ended_by, result.ended, result.returncode) == ("SIGKILL", True, -9)


def test_much_output_doesnt_delay_the_end(kernel: PythonKernel) -> None:
    """Code that prints without an end is ended at its time limit all the same."""
    result = ran(kernel, "while True: print('x' * 1000)", timeout=0.5)
    assert (result.timed_out, result.ended_by) == (True, "SIGINT")
    assert result.is_truncated
    assert len(result.stdout) < 110_000
    assert goes_on(kernel)


def test_an_interrupt_in_a_repr(kernel: PythonKernel) -> None:
    """What the code's objects do when they are shown is code too."""
    code = "class A:\n    def __repr__(self):\n        while True: pass\nA()"
    result = ran(kernel, code, timeout=0.3, grace=LONG)
    assert (result.timed_out, result.ended_by, result.ended) == (True, "SIGINT", False)
    assert goes_on(kernel)


# ---- interrupts


def test_interrupt(kernel: PythonKernel) -> None:
    """Another thread interrupts a call; without one, nothing happens."""
    assert kernel.interrupt() is False
    thread, found = in_thread(kernel, FOREVER)
    assert kernel.interrupt() is True
    thread.join(LONG)
    assert (found[0].cancelled, found[0].cause, found[0].ended_by) == (True, "cancelled", "SIGINT")
    assert found[0].returncode == -2
    assert goes_on(kernel)


def test_interrupts_hit_no_later_call(kernel: PythonKernel) -> None:
    """However often it is interrupted, at whatever moment: a call that wasn't meant isn't hit."""
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            kernel.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    for _ in range(100):
        result = kernel.run("y = [n for n in range(1000)]")
        assert result.exception is None or result.exception.type == "KeyboardInterrupt"
    stop.set()
    thread.join()
    for _ in range(20):
        assert goes_on(kernel)


def test_a_token(kernel: PythonKernel) -> None:
    """A CancelToken ends a call as its time limit would, with cause "cancelled"."""
    token = CancelToken()
    thread, found = in_thread(kernel, FOREVER, cancel=token)
    token.cancel()
    thread.join(LONG)
    assert (found[0].cause, found[0].ended_by, found[0].ended, found[0].timed_out) == (
        "cancelled",
        "SIGINT",
        False,
        False,
    )
    assert goes_on(kernel)
    token = CancelToken()
    thread, found = in_thread(kernel, STUBBORN, cancel=token, grace=0.2)
    token.cancel()
    thread.join(LONG)
    assert (found[0].cause, found[0].ended_by, found[0].ended) == ("cancelled", "SIGKILL", True)


def test_an_error_of_on_output(kernel: PythonKernel) -> None:
    """The code is interrupted, the error is raised, and the kernel goes on."""

    def fail(_: object) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        kernel.run(FOREVER, on_output=fail)
    assert goes_on(kernel)
    with pytest.raises(LookupError, match="enough"):
        kernel.run(STUBBORN, on_output=fail, grace=0.2)
    assert kernel.ended == "it was ended by SIGKILL"


def test_ctrl_c(kernel: PythonKernel) -> None:
    """A signal handler of the caller's that raises interrupts the code too."""
    main = threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        kernel.run(FOREVER, on_output=lambda _: signal.pthread_kill(main, signal.SIGINT))
    assert goes_on(kernel)


def test_closing_from_another_thread(kernel: PythonKernel) -> None:
    """A call that is running returns its record."""
    thread, found = in_thread(kernel, FOREVER)
    kernel.close()
    thread.join(LONG)
    assert (found[0].ended, found[0].returncode) == (True, -9)
    with pytest.raises(ValueError, match="closed"):
        kernel.run("1")


def test_a_reset_from_another_thread(kernel: PythonKernel) -> None:
    """Likewise, and the kernel is a fresh one."""
    thread, found = in_thread(kernel, FOREVER)
    kernel.reset()
    thread.join(LONG)
    assert (found[0].ended, found[0].returncode) == (True, -9)
    assert ran(kernel, "'x' in globals()").value is False


def test_closing_the_python(py: Python) -> None:
    """It ends what runs in its kernels."""
    kernel = py.kernel()
    thread, found = in_thread(kernel, STUBBORN)
    py.close()
    thread.join(LONG)
    assert found[0].ended


# ---- kernels that end


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit", 0),
        ("exit()", 0),
        ("import sys; sys.exit('a message')", 1),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os; os.abort()", -6),
        ("import ctypes; ctypes.string_at(0)", -11),
        ("import os\nif os.fork(): os._exit(0)\nos.setsid()\nwhile True: pass", 0),
    ],
)
def test_a_kernel_that_exits(kernel: PythonKernel, code: str, status: int) -> None:
    """Its record says how; everything of it has gone, and reset() begins a fresh one."""
    result = ran(kernel, f"print('said')\n{code}", timeout=LONG)
    assert (result.returncode, result.ended) == (status, True)
    assert result.timed_out is False
    assert result.usage is not None
    assert result.cause == ("signal" if status < 0 else "exit")
    assert result.stdout == "said\n"
    assert result.exception is None
    assert kernel.ended is not None
    assert bool(result.why) == (bool(status) or "fork" in code)
    with pytest.raises(ValueError, match=r"has ended.*reset"):
        kernel.run("x")
    kernel.reset()
    assert ran(kernel, "1 + 1").value == 2


def test_atexit(kernel: PythonKernel) -> None:
    """What the code has registered runs when it exits, and what that prints is in the record; for how long, is bounded."""
    result = ran(kernel, "import atexit; atexit.register(print, 'bye'); raise SystemExit(2)")
    assert (result.stdout, result.returncode, result.ended) == ("bye\n", 2, True)
    kernel.reset()
    code = "import atexit, time\n@atexit.register\ndef f():\n    while True:\n        try: time.sleep(1000)\n        except BaseException: pass\nexit()"
    result = ran(kernel, code, timeout=0.5, grace=0.2)
    assert (result.ended, result.timed_out, result.ended_by) == (True, True, "SIGKILL")


LATER = """
import os, threading, time
def later():
    while not os.path.exists("go{0}"): time.sleep(0.01)
    os._exit({0})
threading.Thread(target=later).start()
"""


def test_an_end_between_two_calls(kernel: PythonKernel, workspace: Path) -> None:
    """It is noticed: `ended` says how, and so does the next call."""
    ran(kernel, LATER.format(7))
    (workspace / "go7").touch()
    deadline = time.monotonic() + LONG
    while kernel.ended is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kernel.ended == "it has exited with status 7"
    with pytest.raises(ValueError, match="it has exited with status 7"):
        kernel.run("x")
    kernel.reset()
    ran(kernel, LATER.format(8))
    (workspace / "go8").touch()
    assert kernel.pid is not None
    while os.path.exists(f"/proc/{kernel.pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # nobody but the next call is to ask what its parent has said
    with pytest.raises(ValueError, match="it has exited with status 8"):
        kernel.run("x")


def test_killed_from_outside(kernel: PythonKernel) -> None:
    """Another process kills it in the middle of a call."""
    thread, found = in_thread(kernel, FOREVER)
    assert kernel.pid is not None
    os.kill(kernel.pid, signal.SIGKILL)
    thread.join(LONG)
    assert (found[0].returncode, found[0].ended, found[0].cause) == (-9, True, "signal")
    assert found[0].stdout == "begun\n"


def test_the_interpreter_is_killed(py: Python) -> None:
    """Its kernels end with it; records say that how isn't known. The next kernel has another interpreter."""
    kernel = py.kernel()
    ran(kernel, "x = 1")
    current = py._supply.current
    assert current is not None and current._process is not None
    thread, found = in_thread(kernel, FOREVER)
    os.kill(current._process.pid, signal.SIGKILL)
    thread.join(LONG)
    assert found[0].ended
    assert found[0].cause == "unknown"
    assert found[0].why
    kernel.reset()
    assert ran(kernel, "1 + 1").value == 2
    kernel.close()


def test_background_processes_end_with_it(kernel: PythonKernel) -> None:
    """Also those in a session of their own, whose output isn't lost until then."""
    code = "import subprocess\nsubprocess.Popen('echo a; sleep 1000', shell=True, start_new_session=True).stdout\nx"
    assert ran(kernel, code).value == 1
    assert ran(kernel, "import time; time.sleep(0.2)").stdout in ("a\n", "")
    # The fixture that every test has sees that the sleep has gone.


# ---- code that does its worst


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout = None; sys.stderr = 3",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import builtins\nfor name in dir(builtins): delattr(builtins, name)",
        "__builtins__ = None",
        "globals().clear()",
        "import sys; sys.modules.clear()",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "import sys; sys.setprofile(lambda *a: 1 / 0)",
        "import sys; sys.excepthook = None; sys.displayhook = None",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import json; json.dumps = json.loads = None",
        "class A:\n    def __repr__(self): raise RuntimeError('no')\nA()",
        "class A:\n    def __repr__(self): return 3\nA()",
        "class A:\n    @property\n    def __class__(self): return int\nA()",
        "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E",
        "class M(type):\n    def __repr__(self): raise RuntimeError\n    def __name__(self): raise RuntimeError\nclass A(metaclass=M): pass\nA()",
        "a = []\nfor _ in range(100_000): a = [a]\na",
        "a = []; a.append(a); a",
        "float('nan'), float('inf')",
        "'\\ud800' * 10",
        "b'\\xff' * 1_000_000",
        "'x' * 50_000_000",
        "list(range(5_000_000))",
        "10 ** 100_000",
        "def f(): f()\nf()",
        "import sys; sys.setrecursionlimit(30)",
        "import signal; signal.signal(signal.SIGINT, lambda *a: None)",
        "import os; os.chdir('/'); os.umask(0o777)",
        "import os; os.environ.clear()",
        "import gc; gc.disable(); gc.get_objects() and None",
        "raise BaseExceptionGroup('a', [KeyboardInterrupt(), SystemExit(1)])",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "import threading; threading.Thread(target=lambda: 1 / 0).start()",
        "import os\npid = os.fork()\nif pid == 0: raise ValueError\nos.waitpid(pid, 0) and None",
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)",
    ],
)
def test_code_that_harms_itself(kernel: PythonKernel, code: str) -> None:
    """Its call has a record within bounds, and the next call runs."""
    result = ran(kernel, code, timeout=LONG)
    assert (result.ended, result.timed_out) == (False, False)
    assert len(result.as_json()) < 30 << 20
    result = ran(kernel, "2 + 3", timeout=LONG)
    assert (result.value, result.ended) == (5, False)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.closerange(0, 100_000)",
        "import os\nfor name in os.listdir('/proc/self/fd'):\n    try: os.close(int(name))\n    except OSError: pass",
        "import os\nr, w = os.pipe()\nfor fd in range(3, 1024):\n    try: os.dup2(w, fd)\n    except OSError: pass",
    ],
)
def test_closing_the_line(kernel: PythonKernel, code: str) -> None:
    """A kernel that can't talk any more ends, which the record says; nothing is left behind."""
    result = ran(kernel, code, timeout=LONG)
    assert result.ended
    assert result.why
    kernel.reset()
    assert ran(kernel, "1").value == 1


def test_closing_the_line_and_going_on(kernel: PythonKernel) -> None:
    """Code that closes its line, and doesn't end, is killed."""
    result = ran(kernel, "import os; os.closerange(3, 100_000)\nwhile True: pass", grace=0.2)
    assert (result.ended, result.returncode) == (True, -9)
    assert "closed the descriptor" in str(kernel.ended)
    assert "closed the descriptor" in str(result.why[0])
    assert [hint.kind for hint in result.why] == ["ended"]


def _line(kernel: PythonKernel) -> str:
    """Return code that finds the descriptor of the kernel's line, as code that means harm would."""
    return (
        "import os, socket, struct\n"
        "fds = [int(n) for n in os.listdir('/proc/self/fd')]\n"
        "def link(fd):\n"
        "    try: return os.readlink(f'/proc/self/fd/{fd}')\n"
        "    except OSError: return ''\n"
        "line = socket.socket(fileno=os.dup([fd for fd in fds if link(fd).startswith('socket')][-1]))\n"
        "def say(data): line.sendall(struct.pack('<I', len(data)) + data)\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "line.sendall(b'\\xff' * 100)",
        "line.sendall(struct.pack('<I', 1 << 31))",
        "say(b'[]')",
        "say(b'nothing')",
        "say(b'\\xff\\xff')",
        "say(b'{\"id\": 2, \"done\": true, \"value\": ' + b'[' * 100_000 + b']' * 100_000 + b'}')",
        'say(b\'{"id": 2, "done": true, "exit": "x"}\')',
        'say(b\'{"id": 2, "done": true, "displays": 7}\')',
        'say(b\'{"id": 2, "done": true, "exception": [1]}\')',
        'for _ in range(200): say(b\'{"id": 2, "display": {"text/plain": "\' + b\'x\' * 1_000_000 + b\'"}}\')',
    ],
)
def test_forged_frames(kernel: PythonKernel, code: str) -> None:
    """What makes no sense ends the kernel, and its record says so; nothing is raised, and memory is bounded."""
    result = ran(kernel, f"{_line(kernel)}{code}\nwhile True: pass", timeout=LONG)
    assert (result.ended, result.timed_out) == (True, False)
    assert "can't be read" in str(result.why[0])
    assert [hint.kind for hint in result.why] == ["ended"], "nsbox killed it, so nothing is to be guessed"
    kernel.reset()
    assert ran(kernel, "1").value == 1


def test_a_forged_reply(kernel: PythonKernel) -> None:
    """Code can make up its own result, and nothing else: the next call has its own."""
    result = ran(kernel, _line(kernel) + 'say(b\'{"id": 2, "done": true, "has_value": true, "value": 7}\')')
    assert result.value == 7
    assert goes_on(kernel)


def test_limits(workspace: Any) -> None:
    """A limit of the policy's that ends the kernel is told."""
    policy = Policy.workspace(workspace, limits=Limits(cpu_seconds=1, memory="2G"))
    with Sandbox(policy, stock=0) as box, box.python().kernel() as kernel:
        result = ran(kernel, "x = bytearray(3 << 30)")
        assert result.exception is not None
        assert (result.exception.type, result.ended) == ("MemoryError", False)
        assert any(hint.kind == "limit" for hint in result.why)
        result = ran(kernel, "while True: pass", timeout=LONG)
        assert (result.ended, result.cause) == (True, "limit")


def test_a_full_table_of_descriptors(py: Python) -> None:
    """Without a free descriptor, a kernel can't begin, which is an error; nothing is left, and later ones can."""
    import resource

    py.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    failed = 0
    for room in range(0, 16):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, hard))
        try:
            py.kernel().close()
        except OSError:
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed
    with py.kernel() as kernel:
        assert ran(kernel, "1").value == 1
