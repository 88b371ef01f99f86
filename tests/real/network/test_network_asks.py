"""on_connect: one verdict for each question, whatever the user's function does, and nobody waits for it who needn't."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG, Verdicts, wish

from nsbox import NetworkRequest
from nsbox._relay import asks
from nsbox._relay.asks import MOST, Answers

pytestmark = pytest.mark.usefixtures("no_threads")


# ---- what the function returns


@pytest.mark.parametrize(("answer", "allow"), [(True, True), (False, False), ("always", True), ("never", False)])
def test_answers(verdicts: Verdicts, answer: Any, allow: bool) -> None:
    """The function gets the request, in another thread, and its answer is the verdict."""
    seen: list[tuple[NetworkRequest, threading.Thread]] = []

    def decide(request: NetworkRequest) -> Any:
        seen.append((request, threading.current_thread()))
        return answer

    answers = Answers(decide)
    answers.ask(wish(), 5, verdicts)
    assert verdicts.next() == (5, allow)
    ((request, thread),) = seen
    assert request == wish() and thread is not threading.current_thread() and thread.daemon


def test_always(verdicts: Verdicts) -> None:
    """ "always" and "never" are asked once for a host and its port, True and False each time that a sandbox asks."""
    asked = []

    def decide(request: NetworkRequest) -> Any:
        asked.append(str(request))
        return {"a.example": "always", "b.example": True, "c.example": False, "d.example": "never"}[request.name]

    answers = Answers(decide)
    for number, (name, port) in enumerate([(n, 443) for n in "abcdabcd"] + [("a", 22), ("a", 22)]):
        answers.ask(wish(f"{name}.example", port), number, verdicts)
        assert verdicts.next() == (number, name in "ab")
    assert asked == [
        *("a.example:443", "b.example:443", "c.example:443", "d.example:443"),
        *("b.example:443", "c.example:443", "a.example:22"),
    ]


def test_never_is_bounded(verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that makes up names for ever doesn't fill the memory: later ones are asked about each time."""
    monkeypatch.setattr(asks, "_MOST_KEPT", 2)
    asked = []
    answers = Answers(lambda request: asked.append(request.name) or "never")  # type: ignore[arg-type, func-returns-value]
    for number, name in enumerate("abcabc"):
        answers.ask(wish(name), number, verdicts)
        assert verdicts.next() == (number, False)
    assert asked == ["a", "b", "c", "c"]


@pytest.mark.parametrize("answer", [None, "yes", 1, 0, "", b"always", [], "Always", "Never", object()])
def test_other_answers(verdicts: Verdicts, raised: queue.Queue[BaseException], answer: Any) -> None:
    """Whatever else it returns is a no, and a TypeError that says what it has to be."""
    Answers(lambda _: answer).ask(wish(), 5, verdicts)
    assert verdicts.next() == (5, False)
    error = raised.get(timeout=LONG)
    assert isinstance(error, TypeError)
    assert "for a.example:443, must be True, False, 'always' or 'never'" in str(error) and type(answer).__name__ in str(
        error
    )


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(0), KeyboardInterrupt(), RecursionError()])
def test_exceptions(verdicts: Verdicts, raised: queue.Queue[BaseException], error: BaseException) -> None:
    """An exception means no, and goes to threading.excepthook. The next question is asked as the first was."""

    def decide(request: NetworkRequest) -> bool:
        if request.name == "a.example":
            raise error
        return True

    answers = Answers(decide)
    answers.ask(wish(), 5, verdicts)
    assert verdicts.next() == (5, False)
    assert raised.get(timeout=LONG) is error
    answers.ask(wish("b.example"), 6, verdicts)
    assert verdicts.next() == (6, True)


def test_hook_that_raises(verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook of the user's that raises stops nothing."""
    told: queue.Queue[object] = queue.Queue()

    def hook(_: object) -> None:
        raise RuntimeError("hook")

    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(sys, "excepthook", lambda *args: told.put(args[1]))
    answers = Answers(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    for number in range(3):
        answers.ask(wish(f"n{number}"), number, verdicts)
    assert verdicts.several(3) == {0: False, 1: False, 2: False}
    assert str(told.get(timeout=LONG)) == "hook"


@pytest.mark.parametrize("given", [None, True, "always", 7])
def test_no_function(given: Any) -> None:
    """What can't be called is refused when it is given, not when it would be asked."""
    with pytest.raises(TypeError, match=f"on_connect is an? {type(given).__name__}, must be a function"):
        Answers(given)


def test_relay_has_gone() -> None:
    """A verdict that nobody takes any more is no error."""
    done = threading.Event()

    def send(number: int, allow: bool) -> None:
        done.set()
        raise BrokenPipeError

    Answers(lambda _: True).ask(wish(), 1, send)
    assert done.wait(LONG)


# ---- at the same time


def test_nobody_blocks_another(verdicts: Verdicts) -> None:
    """A question that waits for a user doesn't hold up another, and ask() itself never waits. At most 8 at once."""
    go, running, most = threading.Event(), [], []

    def decide(request: NetworkRequest) -> bool:
        running.append(request)
        most.append(len(running))
        go.wait(LONG)
        running.remove(request)
        return True

    answers = Answers(decide)
    for number in range(3 * MOST):
        answers.ask(wish(f"n{number}"), number, verdicts)
    while len(running) < MOST:
        time.sleep(0.001)
    assert len([thread for thread in threading.enumerate() if thread.name == "nsbox-ask"]) == MOST
    assert verdicts.all.empty()
    go.set()
    assert verdicts.several(3 * MOST) == dict.fromkeys(range(3 * MOST), True)
    assert max(most) == MOST


def test_same_host_one_after_the_other(verdicts: Verdicts) -> None:
    """Sandboxes that ask about the same host at the same time ask the user once, if the answer is "always"."""
    go, asked = threading.Event(), []

    def decide(request: NetworkRequest) -> Any:
        asked.append(request.name)
        go.wait(LONG)
        return "always" if request.name == "a.example" else True

    answers = Answers(decide)
    for number in range(6):
        answers.ask(wish("a.example" if number < 3 else "b.example"), number, verdicts)
    go.set()
    assert verdicts.several(6) == dict.fromkeys(range(6), True)
    assert sorted(asked) == ["a.example", "b.example", "b.example", "b.example"]


def test_function_that_hangs(verdicts: Verdicts) -> None:
    """A function that doesn't return is a no when the time is up, and what waits behind it too. Later it is too late."""
    go = threading.Event()

    def decide(_: NetworkRequest) -> bool:
        go.wait(LONG)
        return True

    answers = Answers(decide, patience=0.05, most=1)
    for number in range(3):
        answers.ask(wish(f"n{number}"), number, verdicts)
    assert verdicts.several(3) == {0: False, 1: False, 2: False}
    go.set()
    answers.ask(wish("n9"), 9, verdicts)
    assert verdicts.next()[0] == 9
    assert verdicts.all.empty()


def test_always_that_is_late(verdicts: Verdicts) -> None:
    """An "always" after the time is for the next one that asks."""
    go, done = threading.Event(), threading.Event()

    def decide(_: NetworkRequest) -> Any:
        go.wait(LONG)
        done.set()
        return "always"

    answers = Answers(decide, patience=0.05)
    answers.ask(wish(), 1, verdicts)
    assert verdicts.next() == (1, False)
    go.set()
    assert done.wait(LONG)
    number = 2
    while True:
        answers.ask(wish(), number, verdicts)
        if verdicts.next() == (number, True):
            break
        number += 1


def test_close(verdicts: Verdicts) -> None:
    """Closing refuses what waits, without waiting for anybody, and what is asked later."""
    go = threading.Event()
    answers = Answers(lambda _: go.wait(LONG), most=1)
    answers.ask(wish("a"), 1, verdicts)
    answers.ask(wish("b"), 2, verdicts)
    answers.close()
    answers.ask(wish("c"), 3, verdicts)
    assert verdicts.several(3) == {1: False, 2: False, 3: False}
    go.set()


def test_no_threads_left_to_have(verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started the answer is no, and later ones are asked again."""
    start = threading.Thread.start

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    answers = Answers(lambda _: True)
    monkeypatch.setattr(threading.Thread, "start", fail)
    answers.ask(wish(), 1, verdicts)
    assert verdicts.next() == (1, False)
    monkeypatch.setattr(threading.Thread, "start", start)
    answers.ask(wish(), 2, verdicts)
    assert verdicts.next() == (2, True)


def test_nothing_is_kept(verdicts: Verdicts) -> None:
    """What has been decided is garbage: no thread, and no list, has it."""
    import weakref

    answers = Answers(lambda _: True)
    request = wish()
    seen = weakref.ref(request)
    answers.ask(request, 1, verdicts)
    verdicts.next()
    del request
    end = time.monotonic() + LONG
    while seen() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.001)
    assert seen() is None


# ---- the end of the interpreter, and forks


def python(code: str) -> subprocess.CompletedProcess[str]:
    head = """
import os, sys, threading, time
from nsbox import NetworkRequest
from nsbox._relay.asks import Answers
request = NetworkRequest("a.example", "", 443, "tcp", "")
"""
    return subprocess.run(
        [sys.executable, "-W", "error", "-P", "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )


@pytest.mark.parametrize("how", ["", "async ", "import asyncio; asyncio.run"])
def test_interpreter_ends(how: str) -> None:
    """A function that is still being asked doesn't keep the interpreter, and nothing is printed for it."""
    body = "await asyncio.sleep(1000)" if how else "time.sleep(1000)"
    done = python(f"""
        import asyncio
        started = threading.Event()
        {"async " if how else ""}def decide(_):
            started.set()
            {body}
        def begin():
            Answers(decide).ask(request, 1, lambda *_: None)
            return started
        async def main():
            await asyncio.to_thread(begin().wait)
        {"asyncio.run(main())" if how.startswith("import") else "begin().wait()"}
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_fork_of_the_caller(verdicts: Verdicts) -> None:
    """A forked child has no question of its parent's, and asks its own; the parent's are answered by the parent."""
    go, started = threading.Event(), threading.Event()

    def decide(request: NetworkRequest) -> bool:
        if request.name == "parent":
            started.set()
            go.wait(LONG)
        return True

    answers = Answers(decide)
    answers.ask(wish("parent"), 1, verdicts)
    started.wait(LONG)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = Verdicts()
            answers.ask(wish("child"), 2, own)
            status = 0 if own.next() == (2, True) and own.all.empty() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    assert verdicts.next() == (1, True)


def test_fork_while_others_ask(verdicts: Verdicts) -> None:
    """Whatever lock a thread has at a fork, the child asks and is answered."""
    answers = Answers(lambda _: True)
    stop = threading.Event()
    room = threading.Semaphore(100)  # for questions without an answer, all of which are waited for in the end

    def keep_asking() -> None:
        number = 100
        while not stop.is_set():
            room.acquire()
            answers.ask(wish(f"n{number % 7}"), number, lambda *_: room.release())
            number += 1

    threads = [threading.Thread(target=keep_asking) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                own = Verdicts()
                answers.ask(wish(), 2, own)
                os._exit(0 if own.next() == (2, True) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_function_that_forks(verdicts: Verdicts) -> None:
    """The child of a function that forks gives no verdict in the parent's name."""

    def decide(_: NetworkRequest) -> bool:
        child = os.fork()
        if child == 0:
            return True  # as a function that has forgotten where it is
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    sent = os.pipe()
    answers = Answers(decide)
    answers.ask(wish(), 1, lambda number, allow: os.write(sent[1], b"%d %d %d\n" % (os.getpid(), number, allow)))
    line = os.read(sent[0], 100).decode()
    os.close(sent[1])
    assert line == f"{os.getpid()} 1 1\n"
    assert os.read(sent[0], 100) == b""
    os.close(sent[0])


def test_a_relay_that_goes_in_a_thread_of_ours(verdicts: Verdicts) -> None:
    """A thread that drops a relay while it holds the lock of that relay's questions closes them, and waits for nothing."""
    answers = Answers(lambda _: True)
    held = []

    class Owner:
        def __del__(self) -> None:
            answers.close()
            held.append(answers._changed._is_owned())  # type: ignore[attr-defined]

    owners = [Owner()]

    def drop() -> None:
        with answers._changed:
            owners.clear()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(LONG)
    assert held == [True]
    answers.ask(wish(), 7, verdicts)
    assert verdicts.next() == (7, False)
