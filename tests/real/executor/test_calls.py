"""SandboxExecutor: which functions go inside, what comes back, and what a caller sees of a call that fails."""

from __future__ import annotations

import functools
import json
import math
import os
import os.path as paths
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.verdicts import LONG

from nsbox import NsboxError, Policy, PolicyError, RemoteError, Sandbox, SandboxExecutor

OFFSET = 3


def square(number: int) -> int:
    return number * number


def described(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": args, "kwargs": kwargs}


def root_of(number: float, of: Path | None = None) -> str:
    return f"{math.sqrt(number)} {paths.join('a', 'b')}"


def is_contained(marker: str) -> list[Any]:
    return [os.getpid(), os.path.exists(marker)]


def factorial(number: int) -> int:
    return 1 if number < 2 else number * factorial(number - 1)


def chatty() -> None:
    print("said")


@pytest.mark.vm
def test_results(executor: SandboxExecutor) -> None:
    """Arguments go in and results come out, by position and by name; None is a result too."""
    assert executor.submit(square, 12).result(LONG) == 144
    assert executor.submit(described, 1, "ä\0", n=[None, 1.5, {"a": True}]).result(LONG) == {
        "args": [1, "ä\0"],
        "kwargs": {"n": [None, 1.5, {"a": True}]},
    }
    assert executor.submit(factorial, number=10).result(LONG) == math.factorial(10)
    said = executor.submit(chatty)
    assert said.result(LONG) is None
    assert said.record is not None and said.record.stdout == "said\n"
    assert not said.cancelled() and not said.cancel()


def test_what_it_uses_of_its_module(executor: SandboxExecutor) -> None:
    """Modules are imported inside under the same names; annotations aren't evaluated."""
    assert executor.submit(root_of, 16).result(LONG) == "4.0 a/b"


def test_containment(executor: SandboxExecutor, tmp_path: Path) -> None:
    """The function sees the sandbox's files and processes. The control sees the host's."""
    marker = tmp_path / "secret"
    marker.write_text("x")
    pid, sees = executor.submit(is_contained, str(marker)).result(LONG)
    assert (pid == os.getpid(), sees) == (False, False)
    assert is_contained(str(marker)) == [os.getpid(), True]


def test_paths_and_partials(executor: SandboxExecutor) -> None:
    """A path names what is importable inside; a function in C has one; a partial brings its arguments."""
    assert executor.submit("math:factorial", 5).result(LONG) == 120
    assert executor.submit("os.path:join", "a", "b").result(LONG) == "a/b"
    assert executor.submit("datetime:date.fromisoformat", "2026-01-01").exception(LONG) is not None  # no JSON
    assert executor.submit(math.gcd, 12, 18).result(LONG) == 6
    assert executor.submit(functools.partial(described, 1, a=2), 3, b=4).result(LONG) == {
        "args": [1, 3],
        "kwargs": {"a": 2, "b": 4},
    }


def test_setup_and_modules_of_the_workspace(workspace: Path, policy: Policy) -> None:
    """setup= is there in each call, and can make the workspace's modules importable."""
    (workspace / "local_module.py").write_text("def twice(n):\n    return 2 * n\n")
    setup = f"import sys; sys.path.insert(0, {str(workspace)!r}); table = {{'a': 5}}"
    with SandboxExecutor(policy, setup=setup, imports=["json"]) as executor:
        assert executor.submit("local_module:twice", 4).result(LONG) == 8
        assert executor.submit(_in_table, "a").result(LONG) == 5


def _in_table(name: str) -> Any:
    return table[name]  # type: ignore[name-defined]  # noqa: F821


def test_each_call_begins_afresh(executor: SandboxExecutor) -> None:
    """What a call leaves in memory isn't there in the next one."""

    def count() -> int:
        import builtins

        builtins.calls = getattr(builtins, "calls", 0) + 1  # type: ignore[attr-defined]
        return builtins.calls  # type: ignore[attr-defined,no-any-return]

    assert [executor.submit(count).result(LONG) for _ in range(3)] == [1, 1, 1]
    assert list(executor.map(_count_with, range(4), chunksize=2)) == [1, 2, 1, 2]  # a chunk shares one


def _count_with(_: int) -> int:
    import builtins

    builtins.calls = getattr(builtins, "calls", 0) + 1  # type: ignore[attr-defined]
    return builtins.calls  # type: ignore[attr-defined,no-any-return]


# ---- what can't go inside


class Thing:
    def method(self) -> int:
        return 1

    def __call__(self) -> int:
        return 1


def _closure() -> Callable[[], int]:
    number = len(os.environ)
    return lambda: number


def _inner() -> Callable[[], int]:
    number = len(os.environ)

    def inner() -> int:
        return number

    return inner


@functools.lru_cache
def cached() -> int:
    return 1


def _wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    function.marked = True  # type: ignore[attr-defined]
    return function


@_wrap
def decorated() -> int:
    return 1


async def coroutine() -> int:
    return 1


_names: dict[str, Any] = {}
exec("def typed_in(): return 1", _names)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (lambda: 1, "is a lambda"),
        (_closure(), "is a lambda"),
        (_inner(), "is a closure: it uses number"),
        (Thing().method, "is a method"),
        ([].append, "is a method"),
        (Thing, "is a class"),
        (Thing(), "not a plain function"),
        (cached, "not a plain function"),
        (decorated, "is decorated"),
        (coroutine, "is a coroutine function"),
        (_names["typed_in"], "has no source"),
        (None, "not a plain function"),
        (5, "not a plain function"),
    ],
)
def test_other_functions(executor: SandboxExecutor, given: Any, problem: str) -> None:
    """They are errors of submit() and map(), which say what to submit instead."""
    with pytest.raises(TypeError, match=problem) as caught:
        executor.submit(given)
    assert "module:function" in str(caught.value)
    with pytest.raises(TypeError, match=problem):
        executor.map(given, [1])


@pytest.mark.parametrize(
    "path", ["", "math", "math:", ":sqrt", "math:sqrt()", "a b:c", "math:sqrt:x", "os;x:y", "if:x"]
)
def test_bad_paths(executor: SandboxExecutor, path: str) -> None:
    """A str that isn't a path is a ValueError; no code can hide in it."""
    with pytest.raises(ValueError, match="isn't the path of a function"):
        executor.submit(path)


def test_a_changed_file(executor: SandboxExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function whose file now says something else isn't called by the wrong source."""
    (tmp_path / "changed_module.py").write_text("def first():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import changed_module  # type: ignore[import-not-found]

    (tmp_path / "changed_module.py").write_text("def other():\n    return 2\n")
    try:
        with pytest.raises(TypeError, match="isn't what its file has now: other"):
            executor.submit(changed_module.first)
    finally:
        del sys.modules["changed_module"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (math.nan, "NaN"),
        (b"x", "bytes"),
        ({1: 2}, "a key that isn't a str"),
        ({1}, "set"),
        (object(), "object"),
        (10**5000, "digits"),
        (functools.reduce(lambda inner, _: [inner], range(200), 1), "levels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments(executor: SandboxExecutor, value: Any, problem: str) -> None:
    """What JSON doesn't have is an error of submit(), which names the argument."""
    with pytest.raises(TypeError, match=f"argument 2 of described .*{problem}.*codec="):
        executor.submit(described, 1, value)
    with pytest.raises(TypeError, match="argument name of described"):
        executor.submit(described, name=[value])


def test_a_large_argument(executor: SandboxExecutor) -> None:
    """More than 16 MiB is refused; 8 MiB go inside."""
    assert executor.submit("builtins:len", "x" * (8 << 20)).result(LONG) == 8 << 20
    with pytest.raises(TypeError, match="too large"):
        executor.submit("builtins:len", "x" * (17 << 20))


def test_arguments_are_copied(policy: Policy) -> None:
    """What the caller changes after submit() changes nothing."""
    with SandboxExecutor(policy, max_workers=1) as executor:
        first, numbers = executor.submit(_slow), [1, 2]
        later = executor.submit("builtins:sum", numbers)
        numbers.append(1000)
        assert (first.result(LONG), later.result(LONG)) == (None, 3)


def _slow() -> None:
    import time

    time.sleep(0.3)


# ---- what comes back of a call that fails


def failing(name: str) -> None:
    import builtins

    raise getattr(builtins, name)("it failed")


@pytest.mark.parametrize("kind", [ValueError, KeyError, ZeroDivisionError, FileNotFoundError, ImportError, NameError])
def test_ordinary_exceptions(executor: SandboxExecutor, kind: type[Exception]) -> None:
    """They are caught by their own class, and by RemoteError; the traceback inside is a note."""
    error = executor.submit(failing, kind.__name__).exception(LONG)
    assert isinstance(error, kind) and isinstance(error, RemoteError) and isinstance(error, NsboxError)
    assert error.exception is not None and error.exception.type == kind.__name__
    assert "it failed" in str(error) and str(error).startswith(f"{kind.__name__}: ")
    assert any('raise getattr(builtins, name)("it failed")' in note for note in error.__notes__)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__notes__) == (type(error), str(error), error.__notes__)
    assert again.exception == error.exception


@pytest.mark.parametrize(
    "name",
    ["StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "TimeoutError", "MemoryError"],
)
def test_exceptions_with_a_meaning(executor: SandboxExecutor, name: str) -> None:
    """Code can't make the caller's loops, generators or interpreter believe something: these are RemoteErrors alone."""
    error = executor.submit(failing, name).exception(LONG)
    assert type(error) is RemoteError
    assert error.exception is not None and error.exception.type == name


def own_class() -> None:
    class ValueError(Exception):
        def __str__(self) -> str:
            return "\x1b[2Jforged"

    raise ValueError


def test_an_exception_of_the_same_name(executor: SandboxExecutor) -> None:
    """Only the builtin class is one of the caller's; what the terminal would obey is escaped."""
    error = executor.submit(own_class).exception(LONG)
    assert type(error) is RemoteError
    assert "forged" in str(error) and "\x1b" not in str(error) and "\x1b" not in "".join(error.__notes__)


def uses_offset() -> int:
    return OFFSET


def test_what_is_left_behind(executor: SandboxExecutor) -> None:
    """A global that doesn't go inside is a NameError, with a note that says so."""
    error = executor.submit(uses_offset).exception(LONG)
    assert isinstance(error, NameError)
    assert any("what its module defines: OFFSET" in note for note in error.__notes__)
    missing = executor.submit("no_such_module:f").exception(LONG)
    assert isinstance(missing, ModuleNotFoundError)
    assert any("sys.path" in note for note in missing.__notes__)


def leaves(how: str) -> Any:
    import os
    import signal

    if how == "exit":
        os._exit(0)
    if how == "status":
        raise SystemExit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "nan":
        return [float("nan")]
    if how == "bytes":
        return b"abc"
    if how == "keys":
        return {1: 2}
    if how == "large":
        return "x" * (4 << 20)
    if how == "recursion":
        return leaves(how)
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("exit", "exited with status 0 before it returned"),
        ("status", "exited with status 3 before it returned"),
        ("kill", "was ended by SIGKILL before it returned"),
        ("nan", r"returned what JSON can't hold, or more than 1 MiB of it: \[nan\]"),
        ("bytes", "b'abc'"),
        ("keys", "{1: 2}"),
        ("large", r"xxx\.\.\."),
        ("deep", r"\[\["),
        ("recursion", "RecursionError"),
    ],
)
def test_no_result(executor: SandboxExecutor, how: str, problem: str) -> None:
    """A call that ends without a value of JSON is an error that says so; the next call works."""
    with pytest.raises(RemoteError, match=problem) as caught:
        executor.submit(leaves, how).result(LONG)
    assert caught.value.record.returncode in (0, 1, 3, -9)
    assert executor.submit(square, 3).result(LONG) == 9


def huge() -> str:
    return "x" * (1 << 30)


def test_a_result_of_a_gigabyte(executor: SandboxExecutor) -> None:
    """It never reaches the caller: it is refused inside, by size or for lack of memory."""
    error = executor.submit(huge).exception(LONG)
    assert type(error) is RemoteError
    assert "more than 1 MiB" in str(error) or "MemoryError" in str(error) or "SIG" in str(error)


def forges() -> None:
    import os
    import stat

    for fd in range(3, 1024):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                body = json.dumps({"id": 1, "done": True, "has_value": True, "type": "list", "value": [1, 2]}).encode()
                os.write(fd, len(body).to_bytes(4, "little") + body)
        except OSError:
            pass
    os._exit(0)


def test_a_forged_reply(executor: SandboxExecutor) -> None:
    """Code can make its own result up, and nothing more: what comes is JSON, and of the wrong form it is an error."""
    error = executor.submit(forges).exception(LONG)
    assert isinstance(error, RemoteError)


def spin() -> None:
    while True:
        pass


def test_time_limits(policy: Policy) -> None:
    """A call that takes too long is ended: a TimeoutError that is a RemoteError."""
    with SandboxExecutor(policy, max_workers=1, timeout=1.0, grace=0.1) as executor:
        with pytest.raises(TimeoutError, match="spin took longer than its time limit") as caught:
            executor.submit(spin).result(LONG)
        assert isinstance(caught.value, RemoteError) and caught.value.record.timed_out
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), TimeoutError)
        assert executor.submit(square, 2).result(LONG) == 4


# ---- codecs


def encode(value: Any) -> Any:
    import base64

    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def decode(value: Any) -> Any:
    import base64

    return base64.b64decode(value["bytes"]) if isinstance(value, dict) and "bytes" in value else value


def backwards(data: bytes, extra: bytes = b"") -> bytes:
    return data[::-1] + extra


def test_codec(policy: Policy) -> None:
    """A pair of functions makes bytes of JSON, and JSON of bytes, on both sides."""
    with SandboxExecutor(policy, codec=(encode, decode)) as executor:
        assert executor.submit(backwards, b"\x00ab").result(LONG) == b"ba\x00"
        assert executor.submit(backwards, b"ab", extra=b"\xff").result(LONG) == b"ba\xff"
        assert list(executor.map(backwards, [b"ab", b"cd"], chunksize=2)) == [b"ba", b"dc"]
        assert executor.submit(encode, 3).result(LONG) == 3  # a function of the same name
        with pytest.raises(TypeError, match=r"argument 1 of backwards .*the codec's encode\(\) returned it"):
            executor.submit(backwards, {1, 2})


@pytest.mark.parametrize("codec", [5, (encode,), (encode, 3), (lambda v: v, decode), ("pickle:dumps", "pickle:loads")])
def test_bad_codecs(policy: Policy, codec: Any) -> None:
    """They are errors at once."""
    with pytest.raises(TypeError):
        SandboxExecutor(policy, codec=codec)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_workers": 0}, "workers is 0"),
        ({"max_workers": "2"}, "workers is a str"),
        ({"timeout": -1}, "timeout"),
        ({"setup": 5}, "setup"),
        ({"imports": ["a b"]}, "imports"),
        ({"nothing": 1}, "nothing"),
        ({"env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
    ],
)
def test_bad_options(policy: Policy, options: dict[str, Any], problem: str) -> None:
    """They are errors at once."""
    with pytest.raises((TypeError, ValueError, PolicyError), match=problem):
        SandboxExecutor(policy, **options)


def test_a_policy_is_needed() -> None:
    """Nothing else stands for one."""
    for wrong in (None, {}, "workspace"):
        with pytest.raises(TypeError):
            SandboxExecutor(wrong)  # type: ignore[arg-type]


def test_a_sandbox_of_the_callers(policy: Policy) -> None:
    """It stays open after shutdown()."""
    with Sandbox(policy, stock=0) as box:
        with SandboxExecutor(box, max_workers=1) as executor:
            assert executor.submit(square, 2).result(LONG) == 4
        assert box.run(["true"]).returncode == 0


def test_threads_share_it(executor: SandboxExecutor) -> None:
    """Threads that submit get their own results."""
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        found[number] = list(executor.map(square, range(number, number + 10)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [n * n for n in range(number, number + 10)] for number in range(4)}
