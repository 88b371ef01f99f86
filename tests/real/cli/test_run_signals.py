"""`nsbox run` without a terminal: signals are the command's process group's; a time limit, and an end in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nsbox_testing import needs

RUN = [sys.executable, "-P", "-m", "nsbox", "run"]


@contextmanager
def started(workspace: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start it in a session without a terminal, and wait until the command says that it is there."""
    with subprocess.Popen(
        [*RUN, *words],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("options", [(), ("--host",), ("--keep-session",), ("--backend", "bwrap")])
@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1"])
def test_the_group_is_signalled(workspace: Path, options: tuple[str, ...], name: str) -> None:
    """A program that waits for another (make, a shell) gets it too, as does that other."""
    if "bwrap" in options and os.geteuid() == 0:
        pytest.skip("bwrap isn't used for root")
    if "bwrap" in options:
        needs.require("bwrap")
    number = getattr(signal, name)
    script = f"trap 'echo outer >> got' {name[3:]}; sh -c 'trap \"echo inner >> got; exit\" {name[3:]}; echo ready; while :; do read x < fifo; done'; exit 5"
    os.mkfifo(workspace / "fifo")
    with started(workspace, *options, "--", "sh", "-c", script) as process:
        process.send_signal(number)
        assert process.wait(50) == 5
    assert sorted((workspace / "got").read_text().split()) == ["inner", "outer"]


def test_a_second_interrupt_kills(workspace: Path) -> None:
    """A command that ignores SIGINT ends at the second, with all that it has started."""
    with started(
        workspace, "--", "sh", "-c", "trap '' INT; setsid sleep 600 & echo ready; while :; do wait; done"
    ) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGUSR2)  # the first has been heard when this has
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        # Or it is hit by another one when it has nothing to do any more but to end.
        assert process.wait(50) in (128 + signal.SIGKILL, 128 + signal.SIGUSR2, -signal.SIGINT)


@pytest.mark.parametrize(("grace", "status"), [("30", 7), ("0", 137), ("0.05", 137)])
def test_terminated_in_order(workspace: Path, grace: str, status: int) -> None:
    """SIGTERM gives the command time to put away what it has begun, unless there is no grace."""
    end = "rm lock; exit 7" if status == 7 else ":"
    script = f"touch lock; trap '{end}' TERM; echo ready; while :; do read x < fifo; done"
    os.mkfifo(workspace / "fifo")
    with started(workspace, "--grace", grace, "--", "sh", "-c", script) as process:
        process.terminate()
        assert process.wait(50) == status
    assert (workspace / "lock").exists() == (status != 7)


def test_a_stopped_command_is_terminated(workspace: Path) -> None:
    """What has stopped itself, and nsbox with it, ends by SIGTERM too."""
    with started(workspace, "--grace", "30", "--", "sh", "-c", "echo ready; kill -STOP $$; exit 4") as process:
        assert os.waitpid(process.pid, os.WUNTRACED)[1] & 0xFF == 0x7F
        process.terminate()
        process.send_signal(signal.SIGCONT)
        assert process.wait(50) in (4, 143)


@pytest.mark.parametrize(
    "script", ["sleep 600", "trap '' TERM; sleep 600 & wait; sleep 600", "kill -STOP $$; sleep 600"]
)
def test_timeout(workspace: Path, script: str) -> None:
    """A time limit ends all of it, with a status and a line of its own."""
    if "STOP" in script:
        pytest.skip("nsbox stops as its command does")
    done = subprocess.run(
        [*RUN, "--timeout", "0.3", "--grace", "0.1", "--", "sh", "-c", script],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (124, "")
    assert done.stderr == "nsbox: --timeout: the command was ended after 0.3 s\n"


def test_the_end_comes_first(workspace: Path) -> None:
    """A command that ends in time has its own status; so has one of status 124."""
    for status in (0, 3, 124):
        done = subprocess.run(
            [*RUN, "--timeout", "50s", "-c", f"exit {status}"], cwd=workspace, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (status, b"")


def test_ignored_children(workspace: Path) -> None:
    """A caller that ignores SIGCHLD, which is inherited, doesn't make a failure a success."""
    for status in (7, 0):
        done = subprocess.run(
            [*RUN, "-c", f"exit {status}"],
            cwd=workspace,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
            check=False,
        )
        assert done.returncode == status


def test_nohup(workspace: Path) -> None:
    """A signal that the caller ignores isn't handed on, and is ignored by the command as well."""
    script = "echo ready; read x; kill -HUP $$; echo here"
    with subprocess.Popen(
        ["sh", "-c", "trap '' HUP; exec \"$@\"", "-", *RUN, "--", "sh", "-c", script],
        cwd=workspace,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "here\n"
        assert process.wait(50) == 0
