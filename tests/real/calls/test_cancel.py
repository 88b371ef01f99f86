"""Cancelling a tool call: by a token, from another thread, before and after; nothing of it is left."""

from __future__ import annotations

import subprocess
import threading
import time

import psutil
import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import CancelToken, Policy, Sandbox


def kinds(result: nsbox.ToolResult) -> list[str]:
    return [hint.kind for hint in result.why]


def when_printed(token: CancelToken) -> object:
    """Return an on_output that cancels in another thread as soon as something is printed."""
    return lambda event: threading.Thread(target=token.cancel).start()


@pytest.mark.parametrize(
    ("line", "by"),
    [
        ("echo go; sleep 1000", "SIGTERM"),
        ("trap '' TERM; echo go; while :; do sleep 1000; done", "SIGKILL"),
        ("echo go; exec >&- 2>&-; sleep 1000", "SIGTERM"),
        ("sleep 1000 & echo go; wait", "SIGTERM"),
        ("echo go; kill -STOP $$", ""),
        ("echo go; yes", "SIGTERM"),
        ("(setsid sleep 1000 >/dev/null 2>&1 &); echo go; sleep 1000", ""),
    ],
    ids=["sleeps", "ignores", "silent", "forks", "stopped", "prints", "daemonizes"],
)
def test_from_another_thread(box: Sandbox, line: str, by: str) -> None:
    """A command is ended as after a time limit, whatever it does, and the record says by what.

    by: ""; if it forks or stops just then, it may need either.
    """
    token = CancelToken()
    grace = 50 if by == "SIGTERM" else 0.3
    result = box.shell(line, cancel=token, grace=grace, on_output=when_printed(token), timeout=LONG)  # type: ignore[arg-type]
    assert (result.cause, result.cancelled, result.timed_out) == ("cancelled", True, False)
    assert result.returncode < 0
    assert result.ended_by in ({by} if by else {"SIGTERM", "SIGKILL"})
    assert "cancelled" in kinds(result)
    assert result.as_dict()["cause"] == "cancelled"


def test_before_the_start(box: Sandbox) -> None:
    """Nothing is started; twice is no error."""
    token = CancelToken()
    token.cancel()
    token.cancel()
    result = box.shell("echo x", cancel=token)
    assert (result.cause, result.stdout, result.usage) == ("cancelled", "", None)
    assert "before it was started" in str(result.why[0])
    with pytest.raises(subprocess.CalledProcessError, match="'echo x' was cancelled before it was started"):
        box.shell("echo x", cancel=token, check=True)


def test_during_the_start(box: Sandbox) -> None:
    """Whenever it comes, the call ends, and either nothing was started or everything has gone."""
    for i in range(12):
        token = CancelToken()
        timer = threading.Timer(i / 2000, token.cancel)
        timer.start()
        result = box.shell("sleep 1000", cancel=token, grace=50)
        timer.join()
        assert (result.cause, result.returncode < 0) == ("cancelled", True)


def test_after_the_end(box: Sandbox) -> None:
    """The record stays what it was."""
    token = CancelToken()
    result = box.shell("echo x", cancel=token)
    token.cancel()
    assert (result.cause, result.cancelled, result.stdout) == ("exit", False, "x\n")


def test_a_handler_that_exits_with_0(box: Sandbox) -> None:
    """It hasn't done its work: the status isn't 0."""
    token = CancelToken()
    line = "trap 'exit 0' TERM; echo go; sleep 1000 & wait"
    result = box.shell(line, cancel=token, on_output=when_printed(token), timeout=LONG)  # type: ignore[arg-type]
    assert (result.returncode, result.cause) == (-15, "cancelled")


def test_one_token_for_many(policy: Policy) -> None:
    """It ends all calls that have it, and children of it."""
    token = CancelToken()
    results: list[nsbox.ToolResult] = []
    started = threading.Barrier(5)
    with Sandbox(policy) as box:

        def call(own: CancelToken) -> None:
            def begun(_: object) -> None:
                started.wait(LONG)

            results.append(box.shell("echo; sleep 1000", cancel=own, on_output=begun, timeout=LONG))

        threads = [threading.Thread(target=call, args=(token.child() if i % 2 else token,)) for i in range(4)]
        for thread in threads:
            thread.start()
        started.wait(LONG)
        token.cancel()
        for thread in threads:
            thread.join()
    assert [result.cause for result in results] == ["cancelled"] * 4


def test_a_child_alone() -> None:
    """A child that is cancelled leaves its parent as it is."""
    token = CancelToken()
    child = token.child()
    child.cancel()
    assert (token.is_cancelled, child.is_cancelled) == (False, True)
    assert repr(child) == "<nsbox.CancelToken cancelled>"


def test_deep_children() -> None:
    """A token can be a child of a child, any number of times."""
    first = token = CancelToken()
    for _ in range(5000):
        token = token.child()
    first.cancel()
    assert token.is_cancelled


def test_too_late(policy: Policy) -> None:
    """A command that has ended by itself wasn't cancelled, even if others still have its streams."""
    token = CancelToken()

    def has_parent() -> bool:
        """Say if the sleep is still the shell's, not pid 1's."""
        for one in psutil.process_iter(["cmdline"]):
            if one.info["cmdline"] == ["sleep", "1000.25"]:
                try:
                    return one.parent().name() == "sh"
                except psutil.NoSuchProcess:  # the shell ends just now
                    return True
        return True

    def cancel_later(_: object) -> None:
        until = time.monotonic() + LONG
        while has_parent() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)  # until pid 1 has said that the shell has ended
        token.cancel()

    with Sandbox(policy) as box, box.session() as session:
        result = session.shell("echo; sleep 1000.25 & exit 3", cancel=token, on_output=cancel_later)
        assert (result.returncode, result.cause) == (3, "exit")


def test_a_kept_shell_that_is_cancelled(policy: Policy) -> None:
    """It leaves directory and variables as they were, as one does that took too long."""
    token = CancelToken()
    line = "trap 'exit 0' TERM; cd /tmp; export A=1; echo; while :; do sleep 0.02; done"
    with Sandbox(policy) as box, box.session() as session:
        result = session.shell(line, keep=True, cancel=token, on_output=when_printed(token))  # type: ignore[arg-type]
        assert result.cause == "cancelled"
        assert session.shell("pwd; echo A$A", keep=True).stdout == f"{policy.workdir}\nA\n"


def test_no_token(box: Sandbox) -> None:
    """Anything else is named."""
    with pytest.raises(TypeError, match="cancel is an Event, must be a CancelToken"):
        box.shell("true", cancel=threading.Event())  # type: ignore[arg-type]


def test_grace_bounds_it(policy: Policy) -> None:
    """From cancel to nothing left: the grace time and little more. No figure, but it isn't the command's own time."""
    token = CancelToken()
    with Sandbox(policy) as box:
        began = time.monotonic()
        box.shell(
            "trap '' TERM; echo; sleep 1000 & wait; sleep 1000", cancel=token, grace=0.2, on_output=when_printed(token)
        )  # type: ignore[arg-type]
        assert time.monotonic() - began < LONG


def test_output_by_callback(box: Sandbox) -> None:
    """Each event as it comes, in this thread, stdout and stderr told apart."""
    seen: list[tuple[str, str, bool]] = []
    here = threading.get_ident()
    result = box.shell(
        "echo a; sleep 0.2; echo b >&2; sleep 0.2; printf c",
        on_output=lambda event: seen.append((event.kind, event.text, threading.get_ident() == here)),
    )
    assert seen == [("stdout", "a\n", True), ("stderr", "b\n", True), ("stdout", "c", True)]
    assert result.stdout == "a\nc"


def test_a_callback_that_raises(box: Sandbox) -> None:
    """The command is killed, and the error is raised."""

    def fail(_: object) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        box.shell("echo; sleep 1000", on_output=fail)
    with pytest.raises(TypeError, match="on_output is an int"):
        box.shell("true", on_output=3)  # type: ignore[arg-type]
