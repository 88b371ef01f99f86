"""Pieces of code, once or in a kernel: what the reply says, what is printed, how the branch ends."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from nsbox_testing.guests import Branch, Interpreter


def test_a_branch_runs_once(branch: Branch) -> None:
    """The reply has the value of the last expression; the output was written before it; the branch ends."""
    reply = branch.run("print('hello')\n6 * 7")
    assert (reply["has_value"], reply["value"], reply["repr"], reply["type"]) == (True, 42, "42", "int")
    assert branch.text() == "hello\n"
    assert reply["exception"] is reply["exit"] is reply["mime"] is None
    assert reply["displays"] == reply["truncated"] == []
    assert branch.status() == 0
    assert branch.receive() is None


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("x = 1", None),
        ("print(1)", None),
        ("None", None),
        ("", None),
        ("# only a comment", None),
        ("1; 2", "2"),
        ("1; 2;", None),
        ("2; # no more", None),
        ("'a;b'", "'a;b'"),
        ("'é;'; 'é'", "'é'"),
        ("'a docstring'", "'a docstring'"),
        ("x = 3\nx", "3"),
        ("(\n1 +\n2\n)", "3"),
        ("for i in range(3): i", None),
        ("if 1:\n    5", None),
        ("x = 1\r\nx + 1\r\n", "2"),
        ("lambda: 1", "<function <lambda> at"),
        ("import asyncio\nawait asyncio.sleep(0, 'awaited')", "'awaited'"),
        ("async def f(): return 1\nx = await f()\nx", "1"),
    ],
)
def test_values_of_last_expressions(kernel: Branch, code: str, shown: str | None) -> None:
    """A value is what a notebook shows: of the last expression, unless it is None or a semicolon follows."""
    reply = kernel.run(code)
    assert reply["exception"] is None
    assert reply["has_value"] is (shown is not None)
    assert (reply["repr"] or "").startswith(shown or "") and (reply["repr"] is None) is (shown is None)


def test_a_kernel_keeps_its_state(kernel: Branch) -> None:
    """Variables, imports, functions and `from __future__` last from call to call, also after an exception."""
    kernel.run("import math\nx = 41\ndef f(): return x + 1")
    assert kernel.run("1 / 0")["exception"]["type"] == "ZeroDivisionError"
    assert kernel.run("f(), math.floor(1.5)")["value"] == [42, 1]
    kernel.run("from __future__ import annotations")
    kernel.run("def g(a: NoSuchName): pass")
    assert kernel.run("g.__annotations__")["value"] == {"a": "NoSuchName"}
    assert "Error" not in kernel.text()


def test_code_is_the_main_module(kernel: Branch) -> None:
    """As with `python -c`: __main__ is the code's, has no file, and the current directory is on sys.path."""
    kernel.run("import sys, __main__\nx = 1\nclass C: pass")
    assert kernel.run("__name__, __main__.x, C.__module__, hasattr(__main__, '__file__')")["value"] == [
        "__main__",
        1,
        "__main__",
        False,
    ]
    assert kernel.run("sys.path[0], sys.argv")["value"] == ["", ["-c"]]
    assert kernel.run("import pickle\npickle.loads(pickle.dumps(C)) is C")["value"] is True


def test_sources_can_be_inspected(kernel: Branch) -> None:
    """Functions of earlier calls have their source, each piece under a name of its own."""
    kernel.run("import inspect\ndef first():\n    return 1\n")
    kernel.run("def second():\n    return 2\n")
    assert kernel.run("inspect.getsource(first)")["value"] == "def first():\n    return 1\n"
    assert kernel.run("inspect.getsource(second)")["value"] == "def second():\n    return 2\n"


def test_imports_and_setup_are_there(start: Callable[..., Interpreter]) -> None:
    """What the interpreter has imported or set up is in the namespace of each branch, and no branch changes another."""
    warm = start(imports=["json", "os.path", "collections as c"], setup="table = [1]\ndef double(x): return 2 * x")
    assert warm.hello is not None and warm.hello["ready"], warm.hello
    one = warm.branch().run("table.append(2)\njson.dumps(double(len(table))), os.path.sep, c.Counter('a')['a']")
    assert one["value"] == ["4", "/", 1]
    assert warm.branch().run("table")["value"] == [1]


def test_inputs_are_variables(branch: Branch) -> None:
    """Inputs are JSON, and variables of the code."""
    assert branch.run("a + len(b['c'])", inputs={"a": 1, "b": {"c": [1, 2]}})["value"] == 3


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("raise SystemExit(None)", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(True)", 1, ""),
        ("import sys; sys.exit(256 + 7)", 7, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit(2 ** 70)", 255, ""),
        ("import sys; sys.exit('the reason')", 1, "the reason\n"),
        ("exit(4)", 4, ""),
        ("class E(SystemExit): pass\nraise E(5)", 5, ""),
    ],
)
def test_exits(warm: Interpreter, code: str, status: int, said: str) -> None:
    """sys.exit() ends a branch as it ends a program, and a kernel too."""
    for branch in (warm.branch(), warm.kernel()):
        reply = branch.run(code)
        assert reply["exit"] == status and reply["exception"] is None
        assert branch.status() == status
        assert branch.text() == said


def test_an_exception_ends_a_branch_with_1(branch: Branch) -> None:
    """The traceback is printed as Python prints it, and is in the reply."""
    reply = branch.run("x = 1\ndef f():\n    raise ValueError('bad')\nf()")
    assert branch.status() == 1
    error = reply["exception"]
    assert (error["type"], error["module"], error["message"]) == ("ValueError", "builtins", "bad")
    assert error["lines"] == [[4, "f()"], [3, "    raise ValueError('bad')"]]
    assert branch.text() == error["traceback"]
    assert error["traceback"].startswith('Traceback (most recent call last):\n  File "<python>", line 4, in <module>\n')
    assert "nsbox" not in error["traceback"]


def test_a_kernel_prints_no_traceback(kernel: Branch) -> None:
    """The reply has it; the kernel lives on."""
    assert kernel.run("1 / 0")["exception"]["message"] == "division by zero"
    assert kernel.text() == ""
    assert kernel.run("1")["value"] == 1


def test_endings_of_the_code(branch: Branch) -> None:
    """At the end of a run, threads are waited for, atexit functions run, and finalizers."""
    code = inspect.cleandoc("""
        import atexit, threading, time, weakref
        class Holder: pass
        holder = Holder()
        atexit.register(print, "atexit")
        weakref.finalize(holder, print, "finalizer")
        def late():
            while not may_end: time.sleep(0.001)
            print("thread")
        may_end = []
        threading.Thread(target=late).start()
        may_end.append(1)
    """)
    assert branch.run(code)["exception"] is None
    assert branch.status() == 0
    assert branch.text().split() == ["thread", "finalizer", "atexit"]


def test_files_left_open_are_flushed(warm: Interpreter, workspace: Path) -> None:
    """What was written to a file that nobody closed is in it, wherever the file object is."""
    code = "import os, json\nf = open('one', 'w'); f.write('1')\njson.kept = open('two', 'wb'); json.kept.write(b'2')"
    branch = warm.branch(cwd=str(workspace))
    branch.run(code)
    assert branch.status() == 0
    assert ((workspace / "one").read_text(), (workspace / "two").read_text()) == ("1", "2")
    kernel = warm.kernel(cwd=str(workspace))
    kernel.run("f = open('three', 'w'); f.write('3');")
    kernel.send({"op": "end"})
    assert kernel.status() == 0
    assert (workspace / "three").read_text() == "3"


def test_the_interpreters_own_endings_dont_run(start: Callable[..., Interpreter]) -> None:
    """Its atexit functions and finalizers run once, at its own end: not in branches."""
    setup = "import atexit, weakref, os\nclass C: pass\nkept = C()\n"
    setup += "weakref.finalize(kept, print, 'finalizer')\natexit.register(print, 'atexit')"
    warm = start(setup=setup)
    branch = warm.branch()
    branch.run("del kept\nimport gc\ngc.collect();")
    assert branch.status() == 0
    assert branch.text() == ""


def test_stdin(warm: Interpreter) -> None:
    """input() reads what was given; without anything, its error says so."""
    reply = warm.branch().run("input('name? ')")
    assert reply["exception"]["type"] == "EOFError"
    assert "given no standard input" in reply["exception"]["message"]
    assert reply["exception"]["lines"] == [[1, "input('name? ')"]]
    ours, theirs = os.pipe()
    os.write(theirs, "né\n".encode())
    os.close(theirs)
    branch = warm.kernel(stdin=ours)
    os.close(ours)
    assert branch.run("input('name? ')")["value"] == "né"
    assert branch.text() == "name? "
    assert branch.run("input()")["exception"]["message"] == "EOF when reading a line"


def test_go_sets_the_process_up(warm: Interpreter, workspace: Path) -> None:
    """Environment, directory, arguments, umask and descriptors are as `go` says."""
    ours, theirs = os.pipe()
    env = {"A": "1", "PATH": "/nowhere", "TZ": "Asia/Tokyo", "PYTHONPATH": "/somewhere", "ODD": "\udc80"}
    argv = ["-c", "one", "two"]
    branch = warm.branch(env=env, cwd=str(workspace), argv=argv, umask=0o027, extra=[theirs], fds=[7])
    os.close(theirs)
    code = "import os, sys, time\nos.write(7, b'seven')\ntime.tzset()\n"
    code += "dict(os.environ), os.getcwd(), sys.argv, os.umask(0), time.tzname[0], '/somewhere' in sys.path"
    reply = branch.run(code)
    assert reply["exception"] is None, reply["exception"]
    assert reply["value"] == [{**env, "MPLBACKEND": "agg"}, str(workspace), argv, 0o027, "JST", True]
    assert os.read(ours, 10) == b"seven"
    os.close(ours)


def test_descriptors_may_have_any_numbers(warm: Interpreter) -> None:
    """Also those that have the line's own number, or each other's."""
    pipes = [os.pipe() for _ in range(3)]
    kernel = warm.kernel()
    number = max(int(name) for name in kernel.run("import os\nos.listdir('/proc/self/fd')")["value"])
    fds = [number, 3, 4]
    branch = warm.kernel(extra=[theirs for _, theirs in pipes], fds=fds)
    branch.run(f"import os\nfor n in {fds}: os.write(n, str(n).encode())")
    for (ours, theirs), expected in zip(pipes, fds, strict=True):
        os.close(theirs)
        assert os.read(ours, 100) == str(expected).encode()
        os.close(ours)


def test_a_directory_that_isnt_there(warm: Interpreter, workspace: Path) -> None:
    """What `go` can't do is told with its errno; the branch ends."""
    branch = warm.branch(cwd=str(workspace / "missing"))
    frame = branch.receive()
    assert frame is not None and frame["failed"]["what"] == "cwd" and frame["failed"]["errno"] == 2
    assert branch.status() == 127


def test_random_numbers_differ(start: Callable[..., Interpreter]) -> None:
    """Branches have random numbers of their own, also where the interpreter has begun a sequence; a seed repeats one."""
    warm = start(imports=["random", "uuid", "ssl", "tempfile"], setup="random.seed(1); tempfile.gettempdir()")
    code = "random.random(), str(uuid.uuid4()), str(uuid.uuid1()), ssl.RAND_bytes(8).hex()"
    replies = [warm.branch().run(code)["value"] for _ in range(3)]
    for values in zip(*replies, strict=True):
        assert len(set(values)) == 3
    seeded = [warm.branch(seed="07" * 32).run("random.random()")["value"] for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_an_unbuffered_environment(warm: Interpreter) -> None:
    """PYTHONUNBUFFERED is heeded: output is there before the code ends, however it ends."""
    for env, expected in (({"PYTHONUNBUFFERED": "1"}, "now"), ({}, "")):
        branch = warm.branch(env=env)
        branch.begin("import os\nprint('now', end='')\nos._exit(0)")
        assert branch.status() == 0
        assert branch.text() == expected


def test_the_end_of_the_line_ends_the_branch(warm: Interpreter) -> None:
    """A parked branch, and a kernel, end when their caller closes the line."""
    for branch in (warm.branch(), warm.kernel()):
        branch.line.shutdown(2)
        assert branch.status() == 0


def test_the_interpreter_ends_with_its_caller(start: Callable[..., Interpreter]) -> None:
    """When the control socket is closed, the interpreter exits, and its branches end."""
    warm = start()
    kernel = warm.kernel()
    kernel.begin("while True: pass")
    warm.control.close()
    assert warm.process.wait(30) == 0
    while kernel.receive() is not None:
        pass
