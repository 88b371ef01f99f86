"""The end of a command that takes too long: SIGTERM, a grace, SIGKILL; in a session, of all that it has started alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from nsbox_testing.running import python

import nsbox
import nsbox.asyncio
from nsbox import Policy, Sandbox, Session

LONG = 1000


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy, stock=0) as made:
        yield made


@pytest.fixture
def s(box: Sandbox) -> Iterator[Session]:
    with box.session() as made:
        yield made


def left(s: Session) -> list[str]:
    """Return the command lines of all that runs in a session, shells left out."""
    found = []
    for process in s.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and process.name() != "sh":
                found.append(" ".join(process.cmdline()))
    return sorted(found)


def begin(s: Session, *seconds: int) -> list[str]:
    """Leave sleepers in the background; return left() when they are there."""
    s.shell("".join(f"setsid sleep {n} >/dev/null 2>&1 & " for n in seconds))
    expected = [f"sleep {n}" for n in sorted(seconds)]
    while left(s) != expected:
        time.sleep(0.01)
    return expected


# ---- in order


CLEAN = "trap 'sleep 0.2; echo cleaned >&2; rm lock; exit 7' TERM; : > lock; echo up; while :; do sleep 0.05; done"


@pytest.mark.parametrize("where", ["sandbox", "session"])
@pytest.mark.parametrize("line", [CLEAN, f"({CLEAN}) & sleep {LONG}", "sh script; true"])
def test_a_grace_to_clean_up(box: Sandbox, s: Session, workspace: Path, where: str, line: str) -> None:
    """A lock is removed, also by a child of the shell, and what is printed meanwhile is kept."""
    (workspace / "script").write_text(CLEAN)
    result = (s if where == "session" else box).shell(line, timeout=1, grace=60)
    assert (result.timed_out, result.ended_by, result.stdout) == (True, "SIGTERM", "up\n")
    assert "cleaned" in result.stderr
    assert result.returncode in (7, -signal.SIGTERM)
    assert not (workspace / "lock").exists()
    assert left(s) == []


def test_git_leaves_no_lock(box: Sandbox, workspace: Path) -> None:
    """An index.lock that stays would refuse every later commit."""
    (workspace / "slow").write_text(f"#!/bin/sh\nexec sleep {LONG}\n")
    (workspace / "slow").chmod(0o755)
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    policy = box.policy.with_(env={**names, "GIT_EDITOR": f"{workspace}/slow"})
    with Sandbox(policy, stock=0) as git:
        git.shell("git init -q . && echo 1 > f && git add f && git commit -qm one && echo 2 >> f", check=True)
        assert git.shell("git commit -a", timeout=2, grace=60).ended_by == "SIGTERM"
        git.shell("git commit -qam two", check=True)


STUBBORN = {
    "ignores it": python(
        f"import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep({LONG})"
    ),
    "forks on it": python(
        "import os, signal, time\n"
        "def more(*_):\n    if os.fork() == 0: os.setsid()\n"
        f"signal.signal(15, more); print('up', flush=True)\nwhile True: time.sleep({LONG})"
    ),
    "stops itself on it": python(
        "import os, signal, time\nsignal.signal(15, lambda *_: os.kill(os.getpid(), 19)); print('up', flush=True)\n"
        f"while True: time.sleep({LONG})"
    ),
}


@pytest.mark.parametrize("where", ["sandbox", "session", "landlock"])
@pytest.mark.parametrize("how", STUBBORN)
def test_who_doesnt_end_is_killed(box: Sandbox, s: Session, where: str, how: str) -> None:
    program, *args = STUBBORN[how]
    if where == "landlock" and how == "forks on it":
        pytest.skip("what leaves the command's process group goes on, with this backend")
    if where == "landlock":
        policy = box.policy.with_(backend="landlock", require="nothing")
        with Sandbox(policy) as plain:
            result = plain.exec(program, args, timeout=1, grace=0.3)
    else:
        result = (s if where == "session" else box).exec(program, args, timeout=1, grace=0.3)
    assert (result.returncode, result.ended_by, result.stdout) == (-9, "SIGKILL", "up\n")
    assert "by SIGKILL, 0.3 seconds after a SIGTERM" in result.why[0].message
    assert left(s) == []


def test_what_is_stopped_can_act_on_it(box: Sandbox, s: Session) -> None:
    """It is continued: a stopped process would only keep the signal for later."""
    line = "trap 'echo cleaned; exit 3' TERM; kill -STOP $$"
    for keeper in (box, s):
        result = keeper.shell(line, timeout=1, grace=60)
        assert (result.returncode, result.stdout, result.ended_by) == (3, "cleaned\n", "SIGTERM")


def test_an_end_in_grace_is_no_success(box: Sandbox) -> None:
    """A handler that exits with 0 doesn't make of a command that took too long one that has done its work."""
    result = box.shell("trap 'exit 0' TERM; while :; do sleep 0.05; done", timeout=1, grace=60)
    assert (result.timed_out, result.returncode, result.signal) == (True, -15, "SIGTERM")
    with pytest.raises(subprocess.CalledProcessError):
        result.check_returncode()


def test_defaults(box: Sandbox, s: Session) -> None:
    """A grace for tools; none where subprocess has none."""
    line = "trap 'echo asked; exit 4' TERM; echo up; while :; do sleep 0.05; done"
    for keeper in (box, s):
        assert keeper.shell(line, timeout=1).stdout == "up\nasked\n"
        assert keeper.exec("sh", ["-c", line], timeout=1).ended_by == "SIGTERM"
        assert keeper.exec("sh", ["-c", line], timeout=1, grace=0).ended_by == "SIGKILL"
        for method in (keeper.run, keeper.check_output, keeper.call):
            with pytest.raises(subprocess.TimeoutExpired):
                method(["sh", "-c", "trap 'touch asked; exit' TERM; while :; do sleep 0.05; done"], timeout=0.5)
        assert not (Path(box.policy.workdir or "") / "asked").exists()


@pytest.mark.parametrize("method", ["run", "call", "check_call", "check_output"])
def test_a_grace_that_is_asked_for(box: Sandbox, workspace: Path, method: str) -> None:
    line = "trap 'head -c 200000 /dev/zero; touch asked; exit' TERM; while :; do sleep 0.05; done"
    pipes = {"stdout": subprocess.PIPE} if method == "run" else {}  # which is full before it ends, unless it is read
    if "call" in method:
        pipes = {"stdout": subprocess.DEVNULL}
    with pytest.raises(subprocess.TimeoutExpired):
        getattr(box, method)(["sh", "-c", line], timeout=1, grace=60, **pipes)
    assert (workspace / "asked").exists()


@pytest.mark.parametrize("grace", [-1, 601, True, "2", float("nan"), None])
def test_wrong_graces(box: Sandbox, grace: object) -> None:
    for call in (box.shell, box.run):
        with pytest.raises(ValueError, match="grace is"):
            call("true", grace=grace)  # type: ignore[operator]


# ---- Popen


@pytest.mark.parametrize("where", ["sandbox", "session", "landlock"])
def test_terminate_is_for_all(box: Sandbox, s: Session, workspace: Path, where: str) -> None:
    """The child of a shell does the work: it is asked as well, and may end in order."""
    keeper: Policy | Sandbox | Session = {"sandbox": box, "session": s}.get(where) or box.policy.with_(
        backend="landlock", require="nothing"
    )
    line = f"({CLEAN}) & sleep {LONG}"
    with nsbox.Popen(["sh", "-c", line], policy=keeper, stdout=-1, stderr=-1, text=True) as shell:
        assert shell.stdout.readline() == "up\n"
        shell.terminate()
        assert "cleaned" in shell.communicate()[1]
        assert shell.returncode == -15
    assert not (workspace / "lock").exists()


def test_a_signal_is_for_one(box: Sandbox) -> None:
    """send_signal(SIGTERM) goes to the command, as with subprocess; the rest of the sandbox ends at once then."""
    line = "trap 'exit 3' TERM; (trap 'touch asked' TERM; echo up; while :; do sleep 0.05; done) & wait"
    with box.Popen(["sh", "-c", line], stdout=-1, text=True) as shell:
        assert shell.stdout.readline() == "up\n"
        shell.send_signal(signal.SIGTERM)
        assert shell.wait() == 3


def test_who_is_left_two_seconds_after_is_killed(box: Sandbox) -> None:
    with box.Popen(
        ["sh", "-c", f"(trap '' TERM; echo up; while :; do sleep 0.05; done) & sleep {LONG}"], stdout=-1
    ) as shell:
        assert shell.stdout.readline() == b"up\n"
        shell.terminate()
        assert shell.wait(timeout=60) == -15
        assert shell.sandbox.usage.is_complete


def test_kill_with_a_grace(box: Sandbox, s: Session) -> None:
    for keeper in (box, s):
        with keeper.Popen(
            ["sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"], stdout=-1
        ) as shell:
            assert shell.stdout.readline() == b"up\n"
            shell.kill(grace=60)
            assert shell.wait() == 5
        with keeper.Popen(STUBBORN["ignores it"], stdout=-1) as other:
            assert other.stdout.readline() == b"up\n"
            other.kill(grace=0.1)
            assert other.wait() == -9


def test_asyncio(box: Sandbox, s: Session) -> None:
    async def ended(keeper: Sandbox | Session, how: str) -> int:
        line = f"(trap '' TERM; sleep {LONG}) & trap 'exit 6' TERM; echo up; wait"
        process = await nsbox.asyncio.create_subprocess_exec("sh", "-c", line, policy=keeper, stdout=-1)
        await process.stdout.readline()
        getattr(process, how)()
        return await process.wait()

    assert asyncio.run(ended(box, "terminate")) == 6
    assert asyncio.run(ended(box, "kill")) == -9
    assert asyncio.run(ended(s, "kill")) == -9
    assert left(s) == []


# ---- in a session

SPREAD = f"sleep {LONG} & setsid sleep {LONG} & (setsid sh -c 'sleep {LONG} & exec sleep {LONG}' &)"


@pytest.mark.parametrize("grace", [0, 0.2])
@pytest.mark.parametrize(
    "line",
    [
        f"sleep {LONG}",
        f"{SPREAD}; sleep {LONG}",
        f"trap '' TERM; {SPREAD}; while :; do :; done",
        f"nohup setsid sleep {LONG} >/dev/null 2>&1 </dev/null & exec sleep {LONG}",
    ],
)
@pytest.mark.parametrize("how", ["shell", "kept", "exec", "run"])
def test_all_that_it_has_started_ends(s: Session, how: str, line: str, grace: float) -> None:
    """And nothing that an earlier command has left, whose time limit is over."""
    before = begin(s, 998, 999)
    if how == "run":
        with pytest.raises(subprocess.TimeoutExpired):
            s.run(line, timeout=0.5, grace=grace)
    else:
        result = (
            s.exec("sh", ["-c", line], timeout=0.5, grace=grace)
            if how == "exec"
            else s.shell(line, timeout=0.5, grace=grace, keep=how == "kept")
        )
        assert result.timed_out
        assert result.why[0].message.endswith("with all that it had started; what earlier commands left goes on")
    assert left(s) == before
    assert s.shell("echo on").stdout == "on\n"


def test_two_at_once(s: Session) -> None:
    """The end of one is none of the other's."""
    with s.Popen(f"setsid sleep 997 & sleep {LONG}") as one, s.Popen(["sleep", "996"]) as other:
        s.shell(f"{SPREAD}; sleep {LONG}", timeout=0.5)
        assert other.poll() is None
        assert "sleep 997" in left(s)
        one.kill()
        one.wait()
        assert left(s) == ["sleep 996"]
        other.kill()


def test_a_child_that_goes_on_after_its_command(s: Session) -> None:
    """It has a command's mark, but what comes later doesn't end it."""
    begin(s, 995)
    for _ in range(3):
        s.shell(f"sleep {LONG}", timeout=0.2, grace=0)
    assert left(s) == ["sleep 995"]


MANY = """
import os, sys, time
for i in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        break
else:
    print("up", flush=True)
time.sleep(1000)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("many", [10_000 if "NSBOX_THOROUGH" in os.environ else 500])
def test_many_descendants(s: Session, many: int) -> None:
    with s.Popen(python(MANY, str(many)), stdout=-1) as parent:
        assert parent.stdout.readline() == b"up\n"
        parent.kill()
        assert parent.wait(timeout=120) == -9
    assert left(s) == []


HOP = """
import os
for i in range(4):
    os.fork()
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""


def test_those_that_fork_on_and_on(s: Session) -> None:
    """Sixteen, each of which forks and exits, without an end: none is missed."""
    for _ in range(5):
        with s.Popen(["sh", "-c", 'setsid "$@" & sleep 1000', "sh", *python(HOP)]) as parent:
            with pytest.raises(subprocess.TimeoutExpired):
                parent.wait(0.3)
            parent.kill()
            parent.wait()
            assert left(s) == []


@pytest.mark.parametrize("shown", ["no procfs", "the caller's"])
def test_without_a_procfs_of_its_own(shown: str) -> None:
    """Then pid 1 asks for each number there can be."""
    ops: list[Callable[[], nsbox.Op]] = [lambda: nsbox.RoBind("/", "/"), lambda: nsbox.Dev("/dev")]
    if shown == "no procfs":
        ops.append(lambda: nsbox.Tmpfs("/proc"))
    policy = Policy.layers(*(make() for make in ops))
    with Sandbox(policy, stock=0) as box, box.session() as s:
        begin(s, 994)
        assert s.shell(f"{SPREAD}; sleep {LONG}", timeout=1, grace=0).timed_out
        assert left(s) == ["sleep 994"]


def test_the_session_has_ended_meanwhile(box: Sandbox) -> None:
    with box.session() as s, s.Popen(["sleep", "1000"]) as sleep:
        s.close()
        sleep.kill()
        sleep.terminate()
        assert sleep.wait() == -9
