"""Batch and PythonMap with a function in the place of an interpreter: order, memory, errors, early ends."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG

from nsbox._batches.map import PythonMap
from nsbox._batches.pool import Batch
from nsbox._batches.progress import MapProgress
from nsbox._calls.token import CancelToken

OPTIONS: dict[str, Any] = {"inputs": None, "workers": 2, "ordered": True, "progress": None}


class Record:
    """Stands for a PythonResult."""

    def __init__(self, index: int, code: str, inputs: Any) -> None:
        self.index, self.code, self.inputs = index, code, inputs
        self.returncode = int(code == "fail")


class Runs:
    """Runs snippets: nothing happens, except that "wait" waits until it may go on, or is cancelled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.most = self._now = 0
        self._lock = threading.Condition()
        self.may_go = threading.Event()
        self.cancelled = 0

    def __call__(self, index: int, code: str, inputs: Any, token: CancelToken) -> Any:
        with self._lock:
            self.begun.append(code)
            self._now += 1
            self.most = max(self.most, self._now)
            self._lock.notify_all()
        try:
            while code == "wait" and not self.may_go.wait(0.01):
                if token.is_cancelled:
                    self.cancelled += 1
                    break
            if code == "raise":
                raise OSError(5, "broken")
            return Record(index, code, inputs)
        finally:
            with self._lock:
                self._now -= 1

    def await_begun(self, count: int) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.begun) >= count, LONG)


@pytest.fixture
def runs() -> Iterator[Runs]:
    yield Runs()
    _no_threads()


def _no_threads() -> None:
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "nsbox-map":
            thread.join(LONG)
            assert not thread.is_alive()


def mapped(runs: Runs, codes: Any, **options: Any) -> PythonMap:
    return PythonMap(runs, codes, **{**OPTIONS, **options})


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("ordered", [True, False])
def test_all_of_them(runs: Runs, workers: int, ordered: bool) -> None:
    """Each runs once, and has its index."""
    found = list(mapped(runs, map(str, range(500)), workers=workers, ordered=ordered))
    assert sorted((one.index or 0) for one in found) == list(range(500))
    assert not ordered or [one.index for one in found] == list(range(500))
    assert sorted(map(int, runs.begun)) == list(range(500))
    assert runs.most <= workers


def test_order_of_completion(runs: Runs) -> None:
    """A slow snippet doesn't hold up the others; in order, it does, and what follows waits for it."""
    with mapped(runs, ["wait", "a", "b"], ordered=False) as results:
        assert [next(results).index, next(results).index] == [1, 2]
        runs.may_go.set()
        assert [one.index for one in results] == [0]
    runs.may_go.clear()
    with mapped(runs, ["wait", "a", "b"]) as results:
        free = threading.Thread(target=lambda: (runs.await_begun(6), runs.may_go.set()))
        free.start()
        assert [one.index for one in results] == [0, 1, 2]
        free.join()


def test_lazy(runs: Runs) -> None:
    """Only a few codes are read ahead, also of an endless iterable, and nothing before the first result is wanted."""
    read = 0

    def codes() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "x"

    results = mapped(runs, codes(), workers=3)
    assert (read, runs.begun) == (0, [])
    for count in range(1, 200):
        next(results)
        assert read <= count + 3 * 4
    results.close()
    assert next(results, None) is None
    before = read
    assert list(results) == []
    assert read == before


def test_none(runs: Runs) -> None:
    """No codes, no results, no threads."""
    assert list(mapped(runs, [])) == []
    assert list(mapped(runs, iter(()), ordered=False)) == []


def test_inputs(runs: Runs) -> None:
    """Those of all snippets, and those of one, which come on top."""
    found = list(mapped(runs, ["a", ("b", {"x": 2, "y": 3})], inputs={"x": 1}))
    assert [one.inputs for one in found] == [{"x": 1}, {"x": 2, "y": 3}]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("codes", "options", "problem"),
    [
        ("x = 1", {}, "codes is a str"),
        (7, {}, "codes is an int"),
        (["a"], {"workers": 0}, "workers is 0"),
        (["a"], {"workers": 257}, "workers is 257"),
        (["a"], {"workers": True}, "workers is a bool"),
        (["a"], {"workers": 1.5}, "workers is a float"),
        (["a"], {"progress": 3}, "progress is an int"),
        (["a"], {"inputs": ["x"]}, "inputs is a list"),
        (["a"], {"inputs": {"not a name": 1}}, "names must be"),
    ],
)
def test_bad_parameters(runs: Runs, codes: Any, options: dict[str, Any], problem: str) -> None:
    """They are errors before anything is read or run."""
    with pytest.raises((TypeError, ValueError), match=problem):
        mapped(runs, codes, **options)
    assert runs.begun == []


@pytest.mark.parametrize("item", [3, None, b"x", ("a",), ("a", 3), ("a", {}, "b"), ("a", {"1": 2}), ["a", {}]])
def test_bad_items(runs: Runs, item: Any) -> None:
    """An item that is no code is an error, after the results of what came before it; nothing runs after it."""
    results = mapped(runs, ["a", "b", item, "c"])
    assert [next(results).index, next(results).index] == [0, 1]
    with pytest.raises((TypeError, ValueError), match=r"item 2|names must be"):
        next(results)
    assert next(results, None) is None
    assert "c" not in runs.begun


def test_an_error_of_the_iterable(runs: Runs) -> None:
    """It comes after the results of the codes before it."""

    def codes() -> Iterator[str]:
        yield from ("a", "b", "c")
        raise LookupError("no more")

    found = []
    with pytest.raises(LookupError, match="no more"):
        for one in mapped(runs, codes()):
            found.append(one.index)
    assert found == [0, 1, 2]


def test_an_iterable_without_an_iterator(runs: Runs) -> None:
    """An error of iter() is the caller's too."""

    class Codes:
        def __iter__(self) -> Iterator[str]:
            raise LookupError("no iterator")

    with pytest.raises(LookupError, match="no iterator"):
        next(mapped(runs, Codes()))


def test_an_error_of_a_run(runs: Runs) -> None:
    """What isn't the code's fault is raised in the place of its result, and the rest ends."""
    results = mapped(runs, ["a", "raise", "wait", "wait", "wait"])
    assert next(results).index == 0
    with pytest.raises(OSError, match="broken"):
        next(results)
    assert next(results, None) is None
    assert runs._now == 0


def test_an_error_in_the_loop(runs: Runs) -> None:
    """What runs is cancelled as soon as nothing refers to the iterator."""

    def loop() -> None:
        for _ in mapped(runs, itertools.chain(["a"], itertools.repeat("wait"))):
            runs.await_begun(3)
            raise LookupError

    with contextlib.suppress(LookupError):
        loop()
    _no_threads()
    assert runs.cancelled == 2


def test_stopping_early(runs: Runs) -> None:
    """At the end of the block, nothing runs any more; what was waiting was never begun."""
    with mapped(runs, itertools.chain(["a"], itertools.repeat("wait"))) as results:
        next(results)
        runs.await_begun(3)
    assert (runs._now, runs.cancelled, len(runs.begun)) == (0, 2, 3)


@pytest.mark.parametrize("where", ["iterable", "wait"])
def test_a_signal_handler_that_raises(runs: Runs, where: str) -> None:
    """KeyboardInterrupt ends what runs, in the caller's iterable or while it waits."""

    def codes() -> Iterator[str]:
        yield from ["wait", "wait"]
        if where == "iterable":
            raise KeyboardInterrupt
        runs.await_begun(2)
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(mapped(runs, codes()))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert runs._now == 0


def test_another_thread_closes_it(runs: Runs) -> None:
    """A loop that waits ends then."""
    results = mapped(runs, itertools.repeat("wait"))
    closer = threading.Thread(target=lambda: (runs.await_begun(2), results.close()))
    closer.start()
    assert list(results) == []
    closer.join(LONG)


def test_progress(runs: Runs) -> None:
    """A function gets how far it is, after each snippet; the total if the iterable says it."""
    seen: list[MapProgress] = []
    assert len(list(mapped(runs, ["a", "fail", "b"], progress=seen.append))) == 3
    assert [(one.done, one.total) for one in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].failed == 1
    assert seen[-1].rate > 0
    seen.clear()
    list(mapped(runs, (code for code in "ab"), progress=seen.append))
    assert [(one.done, one.total) for one in seen] == [(1, None), (2, None)]


def test_an_error_of_progress(runs: Runs) -> None:
    """It ends what runs, and is raised in the loop."""

    def progress(_: MapProgress) -> None:
        raise LookupError("unwanted")

    with pytest.raises(LookupError, match="unwanted"):
        list(mapped(runs, itertools.chain(["a"], itertools.repeat("wait", 3)), progress=progress))
    assert runs._now == 0


def test_progress_elsewhere(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is drawn where stderr is no terminal."""
    list(mapped(runs, ["a", "b"], progress=True))
    assert capfd.readouterr() == ("", "")


def test_a_forked_copy(runs: Runs) -> None:
    """A forked child can't use it, and leaves it alone."""
    with mapped(runs, ["a", "wait", "wait"]) as results:
        next(results)
        pid = os.fork()
        if not pid:
            try:
                next(results)
            except ValueError:
                results.close()
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        runs.may_go.set()
        assert [one.index for one in results] == [1, 2]


def test_no_thread(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, that is an error, and nothing waits for ever."""

    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        next(mapped(runs, ["a"]))


def test_a_batch_tells() -> None:
    """Listeners are called when results come and when it is cancelled."""
    told = threading.Semaphore(0)
    batch = Batch(lambda index, item, token: index, 1, ordered=True)
    leave: Callable[[], object] = batch.listen(told.release)
    batch.put("a")
    assert told.acquire(timeout=LONG)
    assert batch.has_news()
    assert batch.take() == [0]
    batch.cancel()
    assert told.acquire(timeout=LONG)
    batch.await_gone()
    leave()
