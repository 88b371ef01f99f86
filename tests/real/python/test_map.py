"""Python.map: many snippets with real branches; crashes, time limits, memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG

from nsbox import CancelToken, MapProgress, PolicyError, Python


@pytest.mark.vm
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_of_them(py: Python, workers: int) -> None:
    """Each result is its snippet's, in order."""
    codes = [f"print({n}); {n} ** 2" for n in range(60)]
    results = list(py.map(codes, workers=workers))
    assert [one.value for one in results] == [n * n for n in range(60)]
    assert [one.index for one in results] == list(range(60))
    assert [one.args for one in results] == codes
    assert results[7].stdout == "7\n"
    assert results[7].as_dict()["index"] == 7


def test_as_completed(py: Python) -> None:
    """A slow snippet doesn't hold up the others."""
    codes = ["import time; time.sleep(1000)", *("1" for _ in range(20))]
    with py.map(codes, workers=2, ordered=False) as results:
        assert sorted(one.index or 0 for one in itertools.islice(results, 20)) == list(range(1, 21))


def test_what_they_have_in_common(py: Python) -> None:
    """inputs, args, env, input and time limits hold for each."""
    codes = [
        "import os, sys; print(n, m, sys.argv[1], os.environ['A'], input())",
        ("print(n, m)", {"m": 3}),
        "while True: pass",
    ]
    found = list(
        py.map(codes, inputs={"n": 1, "m": 2}, args=["a"], env={"A": "b"}, input="c\n", timeout=1.0, grace=0.2)
    )
    assert [one.stdout for one in found] == ["1 2 a b c\n", "1 3\n", ""]
    assert [one.cause for one in found] == ["exit", "exit", "timeout"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"max_output": "x"}, "max_output"),
        ({"grace": -1}, "grace is -1"),
        ({"nothing": 1}, "nothing"),
        ({"env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
        ({"cancel": 3}, "cancel is an int"),
    ],
)
def test_bad_options(py: Python, options: dict[str, Any], problem: str) -> None:
    """They are errors of map() itself."""
    with pytest.raises((TypeError, ValueError, PolicyError), match=problem):
        py.map(["1"], **options)


def test_failures(py: Python) -> None:
    """Each record says why; none of them disturbs the others."""
    codes = [
        "1 / 0",
        "x =",
        "import os; os._exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "import sys; sys.exit(4)",
        "while True: print('x' * 1000)",
        "input()",
        "import os\nif os.fork(): os._exit(0)\nwhile True: pass",
        "5",
    ]
    found = list(py.map(codes, timeout=2.0, grace=0.2))
    assert [one.returncode for one in found] == [1, 1, 3, -9, 4, found[5].returncode, 1, 0, 0]
    assert found[5].timed_out
    assert found[8].value == 5


def test_a_killed_interpreter(py: Python) -> None:
    """What ran in it is reported as lost, and isn't run again. Another interpreter runs the rest."""
    py.start()
    marks = "import os, time; open(f'{os.getcwd()}/{n}', 'a').write('x')\nif n == 3: time.sleep(1000)\nn"

    def codes() -> Iterator[tuple[str, dict[str, int]]]:
        for n in range(20):
            if n == 8:  # 3 runs: it was read long ago, and whatever is read now comes after its beginning
                _await_file(py, "3")
                current = py._supply.current
                assert current is not None and current._process is not None
                os.kill(current._process.pid, signal.SIGKILL)
            yield marks, {"n": n}

    found = list(py.map(codes(), workers=2, ordered=False, timeout=LONG))
    assert sorted(one.index or 0 for one in found) == list(range(20))
    lost = [one for one in found if one.cause == "unknown"]
    assert 3 in [one.index for one in lost]
    assert len(lost) <= 2
    for one in lost:
        assert any(hint.kind == "interpreter" for hint in one.why)
    assert all(one.value == one.index for one in found if one not in lost)
    workdir = py._policy().workdir
    assert workdir is not None
    for n in range(20):
        path = f"{workdir}/{n}"
        assert not os.path.exists(path) or os.path.getsize(path) <= 1  # 0: it was killed before it wrote


def _await_file(py: Python, name: str) -> None:
    workdir = py._policy().workdir
    event = threading.Event()
    for _ in range(int(LONG * 100)):
        if os.path.exists(f"{workdir}/{name}"):
            return
        event.wait(0.01)
    raise AssertionError(f"{name} didn't begin")


def test_stopping_early(py: Python) -> None:
    """At the end of the block, nothing runs any more; so says the fixture that every test has."""
    with py.map(itertools.chain(["1"], itertools.repeat("import time; time.sleep(1000)")), workers=3) as results:
        assert next(results).value == 1
    for one in py.map(itertools.chain(["1"], itertools.repeat("import time; time.sleep(1000)"))):
        assert one.value == 1
        break
    with contextlib.suppress(LookupError):
        for _ in py.map(itertools.chain(["1"], itertools.repeat("import time; time.sleep(1000)"))):
            raise LookupError


def test_closing_the_python(py: Python) -> None:
    """A map whose Python is closed meanwhile is an error, and nothing is left."""
    with pytest.raises(ValueError, match="closed"):
        for one in py.map(map(str, itertools.count())):
            if one.index == 5:
                py.close()


def test_a_token(py: Python) -> None:
    """It ends what runs and the reading; the results so far come."""
    token = CancelToken()
    seen = []
    for one in py.map(itertools.chain("1", itertools.repeat("import time; time.sleep(1000)")), cancel=token, grace=0.1):
        token.cancel()
        seen.append(one.cause)
    assert seen[0] == "exit"
    assert set(seen[1:]) == {"cancelled"}
    assert len(seen) <= 8


def test_memory(py: Python) -> None:
    """It doesn't grow with the number of snippets."""
    import resource

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    results = py.map(("print('x' * 10_000)" for _ in range(400)), workers=2)
    for _ in itertools.islice(results, 100):
        pass
    before = peak()
    assert sum(1 for _ in results) == 300
    assert peak() - before < 10_000  # KiB; 300 records of 10 kB are 3 MB, but here nothing keeps them


def test_progress(py: Python) -> None:
    """A function gets how far it is."""
    seen: list[MapProgress] = []
    list(py.map(["1", "1 / 0", "2"], progress=seen.append))
    assert [(one.done, one.total) for one in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].failed == 1


def test_progress_on_a_terminal(py: Python, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich draws a line on stderr: how many, of how many, how many failed."""
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        list(py.map(["1", "1 / 0", "2"], progress=True))
        stream.flush()
        os.set_blocking(ours, False)
        shown = ""
        with contextlib.suppress(BlockingIOError):
            while True:
                shown += os.read(ours, 100_000).decode()
    os.close(ours)
    assert "3/3" in shown
    assert "1 failed" in shown


def test_progress_without_rich(py: Python, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn, and nothing fails."""
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        assert [one.value for one in py.map(["1", "2"], progress=True)] == [1, 2]
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            os.read(ours, 100)
    os.close(ours)


def test_two_maps_at_once(py: Python) -> None:
    """They share the interpreter."""
    one, two = py.map(f"{n}" for n in range(30)), py.map(f"-{n}" for n in range(30))
    for n, (first, second) in enumerate(zip(one, two, strict=True)):
        assert (first.value, second.value) == (n, -n)


@pytest.mark.parametrize("name", ["check", "on_output", "tmieout"])
def test_an_option_that_it_lacks(py: Python, name: str) -> None:
    """The error names map(), not what is called underneath."""
    with pytest.raises(TypeError, match=rf"^map\(\) has no {name}="):
        py.map(["1"], **{name: True})
