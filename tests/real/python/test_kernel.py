"""PythonKernel: state that stays, streams, values, what one call leaves for the next."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from nsbox_testing.verdicts import LONG

from nsbox import (
    AccessError,
    CalledProcessError,
    CancelToken,
    PolicyError,
    Python,
    PythonKernel,
    PythonResult,
    Sandbox,
    python_schema,
)

VALID = jsonschema.Draft202012Validator(python_schema())


@pytest.fixture
def kernel(py: Python) -> Iterator[PythonKernel]:
    with py.kernel() as kernel:
        yield kernel


def ran(kernel: PythonKernel, code: str, **options: Any) -> PythonResult:
    """Run code; its record is what the schema says, whatever has happened."""
    result = kernel.run(code, **options)
    VALID.validate(json.loads(result.as_json()))
    return result


@pytest.mark.vm
def test_state_stays(kernel: PythonKernel) -> None:
    """Variables, functions, modules, the working directory and /tmp are there in the next call."""
    assert ran(kernel, "x = 41").value is None
    assert ran(kernel, "x + 1").value == 42
    ran(kernel, "import os, math\ndef double(n): return 2 * n\nos.mkdir('/tmp/a'); os.chdir('/tmp/a')")
    assert ran(kernel, "double(math.floor(x)), os.getcwd()").value == [82, "/tmp/a"]
    assert ran(kernel, "class A: pass\na = A(); a.b = [1]; a.b").value == [1]
    assert ran(kernel, "a.b.append(2); a.b").value == [1, 2]


def test_records(kernel: PythonKernel) -> None:
    """Output, value, status and usage of one call alone."""
    result = ran(kernel, "import sys\nprint('out'); print('err', file=sys.stderr)\n{'a': 1}")
    assert (result.stdout, result.stderr, result.value, result.returncode) == ("out\n", "err\n", {"a": 1}, 0)
    assert (result.ended, result.cause, result.timed_out, result.cancelled) == (False, "exit", False, False)
    assert result.why == ()
    assert result.usage is not None and result.usage.max_rss > 1 << 20
    assert result.index is None
    result = ran(kernel, "sum(range(3_000_000))")
    assert (result.stdout, result.value) == ("", 4499998500000)
    assert result.usage is not None
    assert 0 < result.usage.user + result.usage.system <= result.usage.wall
    small = ran(kernel, "1").usage
    assert small is not None and small.user + small.system < result.usage.user + result.usage.system


def test_an_exception(kernel: PythonKernel) -> None:
    """It is in the record, with the lines of the code, and ends neither the kernel nor what came before it."""
    result = ran(kernel, "y = 1\ndef f():\n    raise KeyError('a')\nf()")
    assert (result.returncode, result.ended, result.stderr) == (1, False, "")
    assert result.exception is not None
    assert (result.exception.type, result.exception.lines) == ("KeyError", ((4, "f()"), (3, "    raise KeyError('a')")))
    assert ran(kernel, "y").value == 1
    result = ran(kernel, "f()")  # a function of an earlier call
    assert result.exception is not None
    assert result.exception.lines[-1] == (3, "    raise KeyError('a')")
    with pytest.raises(CalledProcessError):
        kernel.run("f()", check=True)


@pytest.mark.parametrize("code", ["x =", "  x", "'abc", "def f(:", "\0", "x = (", "\ufeff)", "class", "f'{'"])
def test_syntax_errors(kernel: PythonKernel, code: str) -> None:
    """In any position; the kernel goes on."""
    result = ran(kernel, code)
    assert result.exception is not None
    assert result.exception.type in ("SyntaxError", "IndentationError")
    assert ran(kernel, "1 + 1").value == 2


def test_inputs(kernel: PythonKernel) -> None:
    """Variables by their names; they stay."""
    assert ran(kernel, "a + b['c']", inputs={"a": 1, "b": {"c": 2}}).value == 3
    assert ran(kernel, "a").value == 1


def test_stdin(kernel: PythonKernel) -> None:
    """Each call has its own, which its children read too; without one, input() says so."""
    assert ran(kernel, "[input(), input()]", input="a\nb\n").value == ["a", "b"]
    assert ran(kernel, "import sys; sys.stdin.read()", input=b"\xff\n").value == "\udcff\n"
    assert ran(kernel, "sys.stdin.read()", input="second").value == "second"
    assert ran(kernel, "sys.stdin.read()").value == ""
    result = ran(kernel, "import subprocess; subprocess.run(['cat'], check=True)", input="x" * 300_000)
    assert result.stdout_bytes == 300_000
    for code in ("input()", "input('prompt ')"):
        result = ran(kernel, code)
        assert result.exception is not None
        assert (result.exception.type, "no standard input" in result.exception.message) == ("EOFError", True)
    assert ran(kernel, "input()", input="").exception is not None


def test_large_input_and_code(kernel: PythonKernel) -> None:
    """A frame larger than a socket's buffer goes over in pieces."""
    assert ran(kernel, f"len({'a' * 3_000_000!r})").value == 3_000_000
    assert ran(kernel, "len(a), sum(a)", inputs={"a": [1] * 500_000}).value == [500_000, 500_000]
    assert ran(kernel, "len(input())", input="y" * 5_000_000).value == 5_000_000


def test_output_is_bounded(kernel: PythonKernel) -> None:
    """The first and last part of much output is kept; the kernel isn't held up."""
    result = ran(kernel, "for i in range(200_000): print(i)", max_output=1000)
    assert result.is_truncated
    assert result.stdout_bytes == 1_288_890
    assert result.stdout.startswith("0\n1\n")
    assert result.stdout.endswith("199999\n")
    assert len(result.stdout) < 1100


def test_on_output(kernel: PythonKernel) -> None:
    """Pieces come as they are printed, in this thread."""
    seen: list[tuple[str, str, int]] = []
    result = ran(
        kernel,
        "import sys\nprint('a', flush=True); print('b', file=sys.stderr)",
        on_output=lambda event: seen.append((event.kind, event.text, threading.get_ident())),
    )
    assert sorted(seen) == [("stderr", "b\n", threading.get_ident()), ("stdout", "a\n", threading.get_ident())]
    assert result.stdout == "a\n"


def test_output_without_an_end_of_line(kernel: PythonKernel) -> None:
    """What is in buffers is flushed with each call."""
    assert ran(kernel, "import sys; sys.stdout.write('a') and None").stdout == "a"
    assert ran(kernel, "print('b', end='')").stdout == "b"
    assert ran(kernel, "import os; os.write(1, b'c') and None").stdout == "c"


def test_background_threads(kernel: PythonKernel) -> None:
    """What they print between two calls comes with the next one, and they never stop at a full pipe."""
    code = """
import threading
done = threading.Event()
def work():
    go.wait()
    for i in range(100_000): print("x" * 9)
    done.set()
go = threading.Event()
threading.Thread(target=work).start()
"""
    assert ran(kernel, code).stdout == ""
    assert ran(kernel, "go.set()").returncode == 0
    # It prints a megabyte, more than a pipe holds, while no call is running.
    done = kernel.run("done.wait(); print('end')", timeout=LONG)
    assert done.stdout.endswith("xxxxxxxxx\nend\n")
    assert done.stdout_bytes <= 1_000_004
    assert ran(kernel, "1").stdout == ""


def test_output_between_calls(kernel: PythonKernel) -> None:
    """It is kept, up to a bound: with a note of how much is missing."""
    code = """
import threading
def work():
    for i in range(100_000): print("x" * 9)
    print("last", flush=True)
    open("/tmp/done", "w")
threading.Timer(0.2, work).start()
"""
    assert ran(kernel, code).stdout == ""
    result = kernel.run(
        "import os, time\nwhile not os.path.exists('/tmp/done'): time.sleep(0.01)\nprint('next')", timeout=LONG
    )
    assert result.stdout.endswith("last\nnext\n")


def test_secrets(py: Python) -> None:
    """They are in the environment of all calls, and masked in all that the records have."""
    with py.kernel(secrets={"TOKEN": "s3cr3t-value"}, env={"OTHER": "plain"}) as kernel:
        result = ran(kernel, "import os; t = os.environ['TOKEN']; print(t); print(os.environ['OTHER']); t")
        assert "s3cr3t" not in result.as_json()
        assert result.stdout.endswith("plain\n")
        result = ran(kernel, "raise ValueError(t)")
        assert result.exception is not None
        assert "s3cr3t" not in result.as_json()
        assert ran(kernel, "t == 's3cr3t-' + 'value'").value is True


def test_cwd_and_environment(py: Python, workspace: Path) -> None:
    """As for a run; they hold for all calls, and in a child too."""
    (workspace / "sub").mkdir()
    with py.kernel(cwd="sub", env={"A": "b"}) as kernel:
        code = "import os, subprocess\nos.getcwd(), os.environ['A'], subprocess.check_output('echo $A', shell=True, text=True)"
        assert ran(kernel, code).value == [f"{workspace}/sub", "b", "b\n"]
    with pytest.raises(PolicyError, match="LD_PRELOAD"):
        py.kernel(env={"LD_PRELOAD": "x"})
    with pytest.raises(AccessError, match="nothing/there is no directory"):
        py.kernel(cwd="nothing/there")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"code": 3}, "code is an int"),
        ({"code": b"1"}, "code is a bytes"),
        ({"inputs": [1]}, "inputs is a list"),
        ({"inputs": {"a b": 1}}, "names must be"),
        ({"inputs": {"a": object()}}, "value that JSON has"),
        ({"inputs": {"a": float("nan")}}, "value that JSON has"),
        ({"input": 3}, "input is 3"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "x"}, "timeout is 'x'"),
        ({"grace": -1}, "grace is -1"),
        ({"grace": 601}, "grace is 601"),
        ({"max_output": "x"}, "max_output"),
        ({"max_output": "1G"}, "max_output"),
        ({"cancel": 3}, "cancel is an int"),
        ({"on_output": 3}, "on_output is an int"),
        ({"nothing": 3}, "nothing"),
    ],
)
def test_bad_parameters(kernel: PythonKernel, options: dict[str, Any], problem: str) -> None:
    """They are errors, and nothing runs; the kernel goes on."""
    with pytest.raises((TypeError, ValueError), match=problem):
        kernel.run(**{"code": "x = 1", **options})
    result = ran(kernel, "x")
    assert result.exception is not None
    assert result.exception.type == "NameError"


def test_several_threads(kernel: PythonKernel) -> None:
    """Their calls run one after another, and each gets its own record."""
    ran(kernel, "n = 0")
    found: list[Any] = []

    def work(number: int) -> None:
        for _ in range(10):
            found.append(kernel.run(f"n += 1; print({number}); {number}"))
            assert found[-1].args == found[-1].args

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran(kernel, "n").value == 80
    assert all(one.stdout == f"{one.value}\n" and one.args.endswith(str(one.value)) for one in found)


def test_a_call_within_a_call(kernel: PythonKernel) -> None:
    """A function that is called meanwhile can't use the kernel that calls it: it would wait for itself."""
    problems: list[str] = []

    def again(_: object) -> None:
        for method in (lambda: kernel.run("1"), kernel.fork, kernel.reset, kernel.close):
            with pytest.raises(ValueError, match="running a call of this thread") as caught:
                method()
            problems.append(str(caught.value))

    assert ran(kernel, "print(1)", on_output=again).returncode == 0
    assert len(problems) == 4
    assert ran(kernel, "2").value == 2


def test_a_cancelled_wait(kernel: PythonKernel) -> None:
    """A call whose token is cancelled before its turn comes isn't begun."""
    token = CancelToken()
    begun = threading.Event()
    first = threading.Thread(
        target=lambda: kernel.run(
            "print(1, flush=True); import time; time.sleep(1000)", on_output=lambda _: begun.set()
        )
    )
    first.start()
    assert begun.wait(LONG)
    threading.Timer(0.1, token.cancel).start()
    result = ran(kernel, "x = 1", cancel=token)
    assert (result.cause, result.returncode, result.ended) == ("cancelled", -2, False)
    kernel.interrupt()
    first.join(LONG)
    assert ran(kernel, "1", cancel=token).cause == "cancelled"
    assert ran(kernel, "'x' in globals()").value is False


def test_reset(kernel: PythonKernel) -> None:
    """Nothing is left: variables, files, processes."""
    pid = ran(kernel, "x = 1; open('/tmp/a', 'w'); import os; os.getpid()").value
    before = kernel.pid
    kernel.reset()
    assert kernel.pid != before
    found = ran(kernel, "import os; os.path.exists('/tmp/a'), os.getpid(), 'x' in globals()").value
    assert found == [False, pid, False]
    kernel.reset()
    assert ran(kernel, "1").value == 1


def test_a_new_policy(box: Sandbox, workspace: Path) -> None:
    """A kernel keeps the policy that it began with until it is reset."""
    py = box.python()
    with py.kernel() as kernel:
        path = workspace / "file"
        ran(kernel, f"open({str(path)!r}, 'w').write('a')", check=True)
        box.update(box.policy.with_(write=[], read=[str(workspace)]))
        ran(kernel, f"open({str(path)!r}, 'w').write('b')", check=True)
        kernel.reset()
        result = ran(kernel, f"open({str(path)!r}, 'w').write('c')")
        assert result.exception is not None
        assert result.exception.type in ("OSError", "PermissionError")
        assert path.read_text() == "b"


def test_many_kernels(py: Python) -> None:
    """Each has its own state, files and processes; they run at the same time."""
    kernels = [py.kernel() for _ in range(20)]
    try:
        for number, kernel in enumerate(kernels):
            ran(kernel, f"x = {number}; open('/tmp/{number}', 'w')")
        for number, kernel in enumerate(kernels):
            found = ran(kernel, "import os; x, [name for name in os.listdir('/tmp') if name.isdigit()]").value
            assert found == [number, [str(number)]]
        pids = ran(kernels[0], "[name for name in os.listdir('/proc') if name.isdigit()]").value
        assert sorted(pids) == ["1", "2"]
    finally:
        for kernel in kernels:
            kernel.close()


def test_a_kernel_that_is_dropped(py: Python) -> None:
    """It ends as soon as nothing refers to it."""
    kernel = py.kernel()
    ran(kernel, "1")
    pid = kernel.pid
    del kernel
    gc.collect()
    assert not os.path.exists(f"/proc/{pid}")


def test_closing(py: Python) -> None:
    """A closed kernel does nothing more; so does one of a closed Python."""
    kernel = py.kernel()
    assert kernel.ended is None
    assert "PythonKernel" in repr(kernel)
    kernel.close()
    kernel.close()
    assert kernel.ended == "it was closed"
    assert kernel.pid is None
    for method in (lambda: kernel.run("1"), kernel.fork, kernel.reset):
        with pytest.raises(ValueError, match="closed"):
            method()
    other = py.kernel()
    ran(other, "1")
    py.close()
    with pytest.raises(ValueError, match="closed"):
        other.run("1")
    with pytest.raises(ValueError, match="closed"):
        py.kernel()


def test_a_forked_process(kernel: PythonKernel) -> None:
    """In a forked child of the caller, a kernel is the parent's: it does nothing, and nothing happens to it."""
    ran(kernel, "x = 1")
    pid = os.fork()
    if not pid:
        status = 1
        try:
            try:
                kernel.run("x = 2")
            except ValueError:
                status = 0
            kernel.close()
            assert not kernel.interrupt()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ran(kernel, "x").value == 1


def test_forks_keep_their_kernel(py: Python) -> None:
    """A search refers only to the newest forks: what they were forked from stays as long as they do."""
    newest = py.kernel()
    newest.run("x = 1")
    first = newest.pid
    for _ in range(3):
        (newest,) = newest.fork()
        gc.collect()
        assert newest.run("x").value == 1
    assert first is not None and os.path.exists(f"/proc/{first}")
    newest.close()
    gc.collect()
    assert not os.path.exists(f"/proc/{first}")


@pytest.mark.parametrize(
    "end", [PythonKernel.close, PythonKernel.reset, lambda kernel: kernel.run("import os; os._exit(3)")]
)
def test_forks_say_that_their_kernel_has_ended(py: Python, end: Callable[[PythonKernel], object]) -> None:
    """Their own end says little: they were killed."""
    with py.kernel() as kernel:
        (fork,) = kernel.fork()
        (second,) = fork.fork()
        end(kernel)
        for orphan in (second, fork):
            with pytest.raises(
                ValueError, match="SIGKILL, and the kernel that it was forked from has ended too; reset"
            ):
                orphan.run("1")
            orphan.reset()
            assert orphan.run("1 + 1").value == 2
            orphan.close()
