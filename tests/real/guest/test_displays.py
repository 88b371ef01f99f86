"""What code shows: bundles of objects, display(), and figures of matplotlib and tables of pandas, if they are there."""

from __future__ import annotations

import base64
import inspect
import struct
import sys
from collections.abc import Iterator

import pytest
from nsbox_testing.guests import Branch, Interpreter

_PNG = b"\x89PNG\r\n\x1a\n"


def test_bundles(kernel: Branch) -> None:
    """The methods that notebooks ask are asked, on the class; text stays text, bytes are base64."""
    code = inspect.cleandoc("""
        class R:
            def _repr_html_(self): return "<b>é</b>"
            def _repr_png_(self): return b"image", {"width": 5}
            def _repr_json_(self): return {"a": [1]}
            def _repr_latex_(self): return None
            def _repr_markdown_(self): raise ValueError
            def __repr__(self): return "R!"
        R()
    """)
    reply = kernel.run(code)
    image = base64.b64encode(b"image").decode()
    assert reply["mime"] == {"text/html": "<b>é</b>", "image/png": image, "application/json": {"a": [1]}}
    assert reply["repr"] == "R!"
    code = "class M:\n  def _repr_mimebundle_(self, include=None, exclude=None):\n    return {'text/x': 'y', 'text/plain': 'z'}, {}\nM()"
    assert kernel.run(code)["mime"] == {"text/x": "y"}
    assert kernel.run("R")["mime"] is None
    assert kernel.run("6 * 7")["mime"] is None


def test_display(kernel: Branch) -> None:
    """display() is a builtin: each object is in the reply, with its text, in order, also before an exception."""
    reply = kernel.run("display(1, 'two')\ndisplay({'text/html': '<i>'}, raw=True)\n1 / 0")
    assert reply["displays"] == [{"text/plain": "1"}, {"text/plain": "'two'"}, {"text/html": "<i>"}]
    assert reply["exception"]["type"] == "ZeroDivisionError"
    assert kernel.run("1")["displays"] == []
    assert kernel.text() == ""


def test_displays_are_bounded(kernel: Branch) -> None:
    """In number and size; the reply says so."""
    reply = kernel.run("for i in range(10_000): display(i)")
    assert len(reply["displays"]) <= 200 and reply["truncated"] == ["displays"]
    reply = kernel.run("for i in range(100): display('x' * 1_000_000)", limits={"mime_bytes": 1000})
    assert sum(len(shown["text/plain"]) for shown in reply["displays"]) < 10_000
    assert reply["truncated"] == ["displays"]


@pytest.fixture(scope="module")
def plotting(temporary: str, apart: None) -> Iterator[Interpreter]:
    """The running interpreter, with matplotlib."""
    pytest.importorskip("matplotlib")
    interpreter = Interpreter(sys.executable)
    assert interpreter.hello is not None and interpreter.hello.get("ready"), interpreter.hello
    yield interpreter
    interpreter.close()


@pytest.fixture
def plots(plotting: Interpreter) -> Iterator[Branch]:
    yield plotting.kernel()
    plotting.end_branches()


def _size(shown: str) -> tuple[int, int]:
    data = base64.b64decode(shown, validate=True)
    assert data.startswith(_PNG)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_figures_are_shown_at_the_end(plots: Branch) -> None:
    """Figures that are open at the end of a run are PNGs in the reply, and closed; nothing is printed."""
    code = "import matplotlib.pyplot as plt\nfor i in range(2):\n  plt.figure(); plt.plot([1, i])\n1 / 0"
    reply = plots.run(code)
    assert [sorted(shown) for shown in reply["displays"]] == [["image/png", "text/plain"]] * 2
    assert _size(reply["displays"][0]["image/png"])[0] > 300
    assert reply["displays"][0]["text/plain"].startswith("<Figure size ")
    assert plots.run("plt.get_fignums()")["value"] == []
    assert plots.run("1")["displays"] == []
    assert plots.text() == ""


def test_show_shows(plots: Branch) -> None:
    """plt.show() shows the open figures where it stands, however it was imported, also with an explicit backend."""
    code = inspect.cleandoc("""
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib.pyplot import plot, show
        plot([1, 2])
        display("before")
        show()
        display("after")
    """)
    reply = plots.run(code)
    assert reply["exception"] is None, reply["exception"]
    assert ["image/png" in shown for shown in reply["displays"]] == [False, True, False]
    assert plots.text() == ""


def test_a_figure_as_the_value(plots: Branch) -> None:
    """A figure that is the last expression's value is that value's image, and not shown a second time."""
    reply = plots.run("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2])\nfig")
    assert list(reply["mime"]) == ["image/png"] and reply["displays"] == []
    assert _size(reply["mime"]["image/png"])[0] > 300


def test_figures_of_an_interpreter_that_has_imported_it() -> None:
    """The same where pyplot was imported before."""
    pytest.importorskip("matplotlib")
    interpreter = Interpreter(sys.executable, imports=["numpy", "matplotlib.pyplot as plt"])
    try:
        assert interpreter.hello is not None and interpreter.hello.get("ready"), interpreter.hello
        branch = interpreter.branch()
        reply = branch.run("plt.plot(numpy.arange(3)); plt.show(); display(1)")
        assert ["image/png" in shown for shown in reply["displays"]] == [True, False]
    finally:
        interpreter.close()


def test_tables(plots: Branch) -> None:
    """A data frame is HTML."""
    pytest.importorskip("pandas")
    reply = plots.run("import pandas\npandas.DataFrame({'a': [1, 2]})")
    assert "<table" in reply["mime"]["text/html"]
    assert reply["repr"].split() == ["a", "0", "1", "1", "2"]
    assert reply["no_value"] == "JSON has no pandas.core.frame.DataFrame" or "pandas" in reply["no_value"]


def test_numbers_of_numpy(plots: Branch) -> None:
    """A scalar is a number, an array text; each branch has random numbers of its own."""
    pytest.importorskip("numpy")
    assert plots.run("import numpy\nnumpy.arange(3).sum()")["value"] == 3
    assert plots.run("numpy.float64(0.5), numpy.bool_(True), numpy.str_('a')")["value"] == [0.5, True, "a"]
    assert "no_value" in plots.run("numpy.float64('nan')")
    assert plots.run("numpy.arange(3)")["repr"] == "array([0, 1, 2])"
    interpreter = Interpreter(sys.executable, imports=["numpy"], setup="numpy.random.seed(1)")
    try:
        assert interpreter.hello is not None and interpreter.hello.get("ready"), interpreter.hello
        values = {interpreter.branch().run("numpy.random.random()")["value"] for _ in range(3)}
        assert len(values) == 3
    finally:
        interpreter.close()
