"""What a reply says of exceptions: the code's own lines, and nothing that their methods can break."""

from __future__ import annotations

import inspect

import pytest
from nsbox_testing.guests import Branch, Interpreter


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x =", 1),
        ("\n\nx = = 1", 3),
        ("def f(:\n  pass", 1),
        ("if 1:\npass", 2),
        ("  x = 1", 1),
        ("x = 1\n  y = 2", 2),
        ("'unterminated", 1),
        ("x = '''never\nended", None),
        ("(1,\n2", None),
        (")", 1),
        ("return 1", 1),
        ("f(x for x in y, 1)", 1),
        ("x = 1\nbreak", 2),
        ("def f():\n  nonlocal x", 2),
        ("a = 1\nb\0 = 2", 2),
        ("\0", 1),
        ("x = 5 \x01", 1),
        ("é = 1\nü ü", 2),
        ("1 = x", 1),
        ("from __future__ import nothing", 1),
        ("f'{'", 1),
        ("async def f(): yield 1; return 2", 1),
        ("\\", None),
        ("print 'old'", 1),
        ("(" * 300, None),
        ("x = 0777", 1),
        ("'\\N{nothing}'", 1),
        ("b'é'", 1),
        ("\t\tx", 1),
        ("if 1:\n\tx\n        y", None),
    ],
)
def test_syntax_errors(kernel: Branch, code: str, line: int | None) -> None:
    """A syntax error is told with its line, without frames of any program, and the kernel goes on."""
    error = kernel.run(code)["exception"]
    assert error["type"] in ("SyntaxError", "IndentationError", "TabError", "_IncompleteInputError")
    assert error["traceback"].startswith('  File "<python>", line ')
    assert error["traceback"].count("File ") == 1
    if line is not None:
        assert f'File "<python>", line {line}\n' in error["traceback"]
        assert error["lines"] == [[line, code.split("\n")[line - 1]]]
    assert kernel.run("6 * 7")["value"] == 42


@pytest.mark.parametrize(
    "code",
    [
        "-" * 200_000 + "1",
        "not " * 100_000 + "1",
        "1" + "+1" * 200_000,
        "a" + ".b" * 200_000,
        "a" + "[0]" * 100_000,
        "lambda: " * 10_000 + "1",
        "a if b else " * 50_000 + "c",
        "x = " * 100_000 + "1",
        "[" * 150 + "]" * 150,
        "".join(" " * i + "if 1:\n" for i in range(99)) + " " * 99 + "pass",
        "".join(" " * i + "if 1:\n" for i in range(200)) + " " * 200 + "pass",
        "f(" * 150 + ")" * 150,
        "x = 1\n" * 100_000,
        "'" + "x" * 5_000_000 + "'",
        "\ud800",
        "x = '\ud800'",
    ],
    ids=range(16),
)
def test_deep_and_long_code(kernel: Branch, code: str) -> None:
    """Code that is too deep for the compiler is an exception, no crash."""
    reply = kernel.run(code)
    if reply["exception"] is not None:
        assert reply["exception"]["type"] in (
            *("RecursionError", "MemoryError", "SyntaxError", "IndentationError"),
            *("NameError", "UnicodeEncodeError"),
        )
    assert kernel.run("6 * 7")["value"] == 42


def test_lines_are_the_codes_own(kernel: Branch) -> None:
    """A traceback shows the lines of each piece that the exception came through, and frames of libraries between."""
    kernel.run("def inner(x):\n    return 1 / x")
    error = kernel.run("def outer():\n    return list(map(inner, [0]))\n\nouter()")["exception"]
    assert error["lines"] == [[4, "outer()"], [2, "    return list(map(inner, [0]))"], [2, "    return 1 / x"]]
    error = kernel.run("import json\njson.loads('{')")["exception"]
    assert error["lines"] == [[2, "json.loads('{')"]]
    assert "json/decoder.py" in error["traceback"]
    assert (error["type"], error["module"]) == ("JSONDecodeError", "json.decoder")


def test_what_a_long_traceback_lacks_is_counted(kernel: Branch) -> None:
    """Its ends are there; the number of frames between them is said, so that no other number misleads."""
    error = kernel.run("def f(n):\n    if n == 0: 1 / 0\n    f(n - 1)\nf(500)")["exception"]
    assert error["traceback"].startswith("[382 frames in the middle are left out]\nTraceback (most recent call last):")
    error = kernel.run("f(100)")["exception"]
    assert error["traceback"].startswith("Traceback (most recent call last):")


def test_chains_notes_and_groups(kernel: Branch) -> None:
    """Causes, contexts, notes and groups are in the traceback, as Python has them."""
    error = kernel.run("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e")["exception"]
    assert "The above exception was the direct cause" in error["traceback"]
    assert error["traceback"].count("Traceback (most recent call last):") == 2
    assert "nsbox" not in error["traceback"]
    if kernel.run("import sys\nsys.version_info >= (3, 11)")["value"]:
        error = kernel.run("e = ValueError('bad')\ne.add_note('a note')\nraise e")["exception"]
        assert error["notes"] == ["a note"] and error["traceback"].endswith("ValueError: bad\na note\n")
        error = kernel.run("raise ExceptionGroup('several', [ValueError(1), TypeError(2)])")["exception"]
        assert error["type"] == "ExceptionGroup" and "ValueError: 1" in error["traceback"]
        assert "nsbox" not in error["traceback"]


def test_awaited_code_has_its_own_frames(kernel: Branch) -> None:
    """An exception of a coroutine comes without the event loop's frames."""
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\nawait f()"
    error = kernel.run(code)["exception"]
    assert error["lines"] == [[5, "await f()"], [4, "    1 / 0"]]
    assert error["traceback"].count("File ") == 2


_HOSTILE = {
    "raising str": "class E(Exception):\n  def __str__(self): raise ValueError('no')\nraise E",
    "str of another type": "class E(Exception):\n  def __str__(self): return 5\nraise E",
    "deep str": "class E(Exception):\n  def __str__(self): return str(self)\nraise E",
    "exiting str": "class E(Exception):\n  def __str__(self): raise SystemExit(3)\nraise E",
    "large str": "raise ValueError('x' * 30_000_000)",
    "surrogates": "raise ValueError('\\ud800')",
    "raising attributes": "class E(Exception):\n  def __getattribute__(self, name): raise OSError(name)\nraise E",
    "lying links": "class E(Exception):\n  __cause__ = __context__ = __traceback__ = property(lambda s: 1 / 0)\nraise E",
    "lying notes": "class E(Exception):\n  __notes__ = property(lambda s: 1 / 0)\nraise E",
    "odd notes": "e = ValueError(1); e.__notes__ = [1, None, 'x' * 1_000_000] * 100; raise e",
    "lying metaclass": "class M(type):\n  __name__ = __module__ = property(lambda c: 1 / 0)\n"
    "class E(Exception, metaclass=M): pass\nraise E",
    "circle": "a, b = ValueError('a'), ValueError('b'); a.__cause__ = b; b.__cause__ = a; raise a",
    "long chain": "e = None\nfor i in range(20_000):\n  new = ValueError(i); new.__cause__ = e; e = new\nraise e",
    "deep recursion": "def f(): f()\nf()",
    "deeper recursion": "import sys; sys.setrecursionlimit(20_000)\ndef f(n):\n  if n == 0: 1 / 0\n  f(n - 1)\nf(15_000)",
    "syntax error of lies": "raise SyntaxError('m', ('f', 'x', object(), 5))",
    "syntax error of numbers": "raise SyntaxError('m', ('<python>', -5, 1 << 70, 'text'))",
    "odd base": "class E(BaseException): pass\nraise E('base')",
    "generator exit": "raise GeneratorExit",
    "stop": "raise StopIteration(5)",
    "not an exception": "raise 5",
    "long lines": "x = '" + "y" * 1_000_000 + "'; 1 / 0",
    "memory": "raise MemoryError",
    "no file": "exec(compile('1 / 0', '\\0', 'exec'))",
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_exceptions(warm: Interpreter, name: str) -> None:
    """No exception breaks the reply, makes it large, or ends a kernel."""
    kernel = warm.kernel()
    error = kernel.run(_HOSTILE[name])["exception"]
    assert error is not None and error["type"]
    assert len(error["traceback"]) <= (1 << 18) + 100 and len(error["message"]) <= (1 << 16) + 100
    assert "_nsbox_guest" not in error["traceback"]
    assert kernel.run("6 * 7")["value"] == 42


def test_groups_of_groups(kernel: Branch) -> None:
    """Deep and wide groups are bounded."""
    if not kernel.run("import sys\nsys.version_info >= (3, 11)")["value"]:
        return
    code = "e = ValueError(1)\nfor i in range(5000): e = ExceptionGroup('g', [e])\nraise e"
    assert kernel.run(code)["exception"]["type"] == "ExceptionGroup"
    code = "raise ExceptionGroup('g', [ValueError(i) for i in range(10_000)])"
    assert len(kernel.run(code)["exception"]["traceback"]) < 1 << 18


def test_chains_are_as_they_were(kernel: Branch) -> None:
    """What is cut for the report isn't cut in the exceptions themselves."""
    kernel.run("e = None\nfor i in range(200):\n  new = ValueError(i); new.__cause__ = e; e = new\nraise e")
    code = "n = 0\nwhile e is not None: e, n = e.__cause__, n + 1\nn"
    assert kernel.run(code)["value"] == 200


def test_memory_errors(warm: Interpreter) -> None:
    """Where memory is limited, code that wants more gets a MemoryError, and a reply; a kernel can go on."""
    code = inspect.cleandoc("""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
        def f():
            x = []
            while True: x.append("x" * 100_000 + str(len(x)))
        f()
    """)
    kernel = warm.kernel()
    error = kernel.run(code)["exception"]
    assert error["type"] == "MemoryError" and error["lines"][0] == [6, "f()"]
    assert kernel.run("6 * 7")["value"] == 42


def test_a_hook_for_exceptions(branch: Branch) -> None:
    """sys.excepthook is called at the end of a branch, as Python would."""
    branch.run("import sys\nsys.excepthook = lambda kind, value, tb: print('hook', kind.__name__)\n1 / 0")
    assert branch.status() == 1
    assert branch.text() == "hook ZeroDivisionError\n"
