"""Faults at every kind of system call of a set-up: one that fails, or a process that is killed just then.

Either the spawn stops with an error, or the command runs and sees what it would have seen; nothing is left behind.
"""

from __future__ import annotations

import errno
import os
import re
import select
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import faults
from nsbox_testing.faults import EXIT, NUMBERS, THOROUGH, Call, Decision, Spawn, outcome, samples
from nsbox_testing.joined import Joined, hide, joined
from nsbox_testing.running import Orphans

import nsbox
from nsbox import (
    BindData,
    Chmod,
    Details,
    Dev,
    Dir,
    File,
    Limits,
    Mask,
    Mqueue,
    Policy,
    Proc,
    RemountRo,
    RoBind,
    Symlink,
    Tmpfs,
    TmpOverlay,
)

pytestmark = [
    pytest.mark.skipif(not faults.is_possible(), reason="no seccomp user notification here"),
    pytest.mark.timeout(3000 if THOROUGH else 300),
]

FULL = pytest.mark.as_root("maps all ids")
BELOW = pytest.mark.as_root("who isn't dumpable sees nothing of itself in /proc otherwise")
NAMES = [
    "layers",
    "beside",
    pytest.param("full", marks=FULL),
    pytest.param("below", marks=BELOW),
    *(["workspace", "host"] if THOROUGH else []),
]

LOOK = """
cat /proc/self/status /proc/self/mountinfo; ls /proc/self/fd; pwd; hostname; ulimit -n; umask; id
ls -a / /dev; ls -ln /c /b /tmp /o; cat /tmp/a deny/secret file; cut -c 1-7 /proc/net/dev
for n in /proc/self/ns/*; do readlink $n; done; kill -0 1 && echo may signal pid 1
"""
"""What a command can see of its containment."""

STATUS = ("Cap", "NoNew", "Seccomp", "Sig", "ShdPnd", "Uid", "Gid", "Groups", "Umask", "NSpid", "NSsid", "NSpgid")


@pytest.fixture
def other(workspace: Path) -> Iterator[Joined]:
    """Another sandbox, whose pid namespace can be joined."""
    with joined(Policy.host()) as found:
        yield found


@pytest.fixture
def policies(workspace: Path, other: Joined) -> dict[str, Policy]:
    (workspace / "deny").mkdir()
    (workspace / "lower").mkdir()
    for name in ("deny/secret", "file"):
        (workspace / name).write_text(name)
    system = [Symlink(os.readlink(f"/{n}"), f"/{n}") for n in ("bin", "lib", "lib64") if os.path.islink(f"/{n}")]
    system += [
        RoBind(f"/{n}", f"/{n}")
        for n in ("bin", "lib", "lib64", "usr")
        if os.path.isdir(f"/{n}") and not os.path.islink(f"/{n}")
    ]
    # Every op once, the same one seldom twice: less than a workspace has.
    layers = Policy.layers(
        *system,
        Proc("/proc"),
        Dev("/dev"),
        Tmpfs("/tmp", size=1 << 20),
        File("/tmp/a", b"contents"),
        BindData("/b", b"bound", read_only=True),
        Dir("/c/d/e"),
        Chmod("/c/d", 0o700),
        TmpOverlay((str(workspace / "lower"),), "/o"),
        Mqueue("/mqueue"),
        Mask("/c/d/e"),
        RemountRo("/"),
        unshare={"net", "ipc", "uts", "cgroup"},
        hostname="box",
        limits=Limits(open_files=100),
        env={"PATH": "/usr/bin:/bin"},
        inherit_env=False,
        seccomp=nsbox.Filter(rules=(nsbox.Rule("acct"),)),
        landlock=nsbox.probe().landlock_abi >= 2,
        uid=1234,
        gid=1234,
    )
    # Where the command comes before the mounts, and makes file systems for the mediator; more than it takes (8).
    many = (*(Tmpfs(f"/t{i}", mode=0o700 + i) for i in range(9)), Proc("/second"), Tmpfs("/last"))
    beside = layers.with_(
        ops=(*layers.ops[:-1], *many, layers.ops[-1]), unshare={"ipc", "uts", "cgroup"}, network="host"
    )
    return {
        "layers": layers,
        "beside": beside,
        "workspace": Policy.workspace(workspace, deny=[workspace / "deny", workspace / "file"]),
        "host": Policy.host(),
        "full": Policy.host(uid=1234, gid=1234) if os.geteuid() == 0 else Policy.host(),
        "below": layers.with_(uid=0, gid=0, details=Details(userns=other.userns, pidns=other.pidns)),
    }


def seen(text: str, own: set[str]) -> list[str]:
    """Return what the command saw, without numbers that differ from run to run. own: our namespaces."""
    lines = []
    for line in text.splitlines():
        words = line.split()
        if " - " in line and len(words) > 8:
            lines.append(re.sub(r"/fd/\d+", "/fd/N", " ".join(words[3:6] + words[words.index("-") :])))
        elif ":\t" in line and words:
            lines += [line] if line.startswith(STATUS) else []
        elif ":[" in line:
            lines.append(line.split(":")[0] + (" shared" if line in own else " own"))
        elif line[:2] not in ("to", "dr", "-r", "lr"):  # of ls -l: times
            lines.append(line)
    return sorted(lines)


def look(policy: Policy) -> Callable[[], dict[str, Any]]:
    """Return a function that runs LOOK, and what came of that."""
    own = {os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}

    def run() -> list[Any]:
        cwd = policy.workdir or "/"
        done = nsbox.run(
            ["sh", "-c", LOOK],
            policy=policy,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return [done.returncode, seen(done.stdout.decode(errors="replace"), own)]

    return controlled(policy, run)


def controlled(policy: Policy, run: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """Return a function that tells what came of another one."""

    def start() -> dict[str, Any]:
        if policy.details.pidns is not None:
            hide()
        return outcome(run)

    return start


def spawn_of(policy: Policy, start: Callable[[], Any], decide: Decision) -> Spawn:
    return Spawn(start, decide, below=policy.details.pidns is not None)


def once(policy: Policy, start: Callable[[], Any]) -> tuple[Any, list[Call]]:
    """Run a function without any fault."""
    spawn = spawn_of(policy, start, lambda call, spawn: None)
    return spawn.run(), spawn.calls


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_fails(policies: dict[str, Policy], orphans: Orphans, name: str) -> None:
    """Whichever call fails: an OSError, or a command that sees exactly the same containment. Never less, nothing left."""
    start = look(policies[name])
    expected, calls = once(policies[name], start)
    assert expected["left"] == []
    status, view = expected["returned"]
    problems = []
    for target in samples(calls, THOROUGH + (name == "layers")):
        if target.number in faults.INFALLIBLE or target.role == "caller":
            continue

        def decide(call: Call, spawn: Spawn, target: Call = target) -> int | None:
            return errno.EPERM if call.is_(target) else None

        found = spawn_of(policies[name], start, decide).run()
        if found is None:
            problems.append(f"{target}: the caller died")
        elif found["left"]:
            problems.append(f"{target}: left {found['left']}")
        elif "returned" in found and found["returned"] != [status, view] and found["returned"][0] != -9:
            less = (
                [line for line in found["returned"][1] if line not in view],
                [line for line in view if line not in found["returned"][1]],
            )
            problems.append(f"{target}: not the same: {less}")
        elif "raised" in found and not found["text"]:
            problems.append(f"{target}: an error without a word")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *((name, role) for name in ("layers", "beside") for role in ("mediator", "init", "command")),
        *(pytest.param("full", role, marks=FULL) for role in ("mediator", "helper", "command")),
        *(pytest.param("below", role, marks=BELOW) for role in ("mediator", "helper", "init", "command")),
    ],
)
def test_a_process_that_is_killed(policies: dict[str, Policy], orphans: Orphans, name: str, role: str) -> None:
    """Whichever process of the set-up is killed, at whichever call: an error or -9 or nothing happened; no hang, nothing left."""
    policy = policies[name]

    start = controlled(policy, lambda: nsbox.run(["true"], policy=policy, cwd="/").returncode)
    _, calls = once(policy, start)
    problems, killed = [], 0
    for target in samples(calls, THOROUGH):
        hits: list[bool] = []

        def decide(call: Call, spawn: Spawn, target: Call = target, hits: list[bool] = hits) -> None:
            if call.is_(target):
                hits.append(spawn.kill(role))

        found = spawn_of(policy, start, decide).run()
        killed += any(hits)
        if found is None:
            problems.append(f"{target}: the caller died")
        elif found["left"]:
            problems.append(f"{target}: left {found['left']}")
        elif "returned" in found and found["returned"] not in (0, -9):
            problems.append(f"{target}: status {found['returned']}")
        elif "raised" in found and (not any(hits) or found["raised"] != "SetupError"):
            problems.append(f"{target}: {found['raised']}: {found['text']}")
    assert not problems, "\n".join(problems)
    assert killed > 3


@pytest.mark.parametrize("name", NAMES)
def test_a_caller_that_is_killed(policies: dict[str, Policy], orphans: Orphans, name: str) -> None:
    """Whenever the caller is killed, nothing survives: not what is being made, not the command, which would never end."""
    policy = policies[name]
    read, write = os.pipe()  # nothing is ever written to it

    def start() -> int:
        os.close(write)
        if policy.details.pidns is not None:
            hide()
        return nsbox.Popen(["cat"], policy=policy, stdin=read, cwd="/").pid and 0

    def stay() -> str:
        start()
        select.select([read], [], [], 3.0)
        return "lived"

    # To know the calls: a caller that exits by itself, which ends its command.
    _, calls = once(policy, start)
    killed = 0
    try:
        for target in samples(calls, THOROUGH):
            if target.number == EXIT and target.role == "init":
                continue  # never reached while the caller stays
            hits: list[bool] = []

            def decide(call: Call, spawn: Spawn, target: Call = target, hits: list[bool] = hits) -> None:
                if call.is_(target):
                    hits.append(spawn.kill("caller"))

            answer = spawn_of(policy, stay, decide).run(20)
            # How often one looks whether the other is ready isn't the same in each run.
            assert answer is None if hits else answer == "lived", f"{target}: {answer}"
            killed += bool(hits)
        assert killed > 20
    finally:
        os.close(read)
        os.close(write)


def test_a_command_that_takes_its_descriptors_while_a_file_is_written(
    policies: dict[str, Policy], orphans: Orphans
) -> None:
    """It has the mediator's, in a copy, so the file open for writing as well: a root that becomes read-only waits for that."""
    policy = policies["beside"].with_(ops=(*policies["beside"].ops[:-1], File("/w", b"w" * 4321), RemountRo("/")))
    writing, went_on = [], []

    def decide(call: Call, spawn: Spawn) -> Callable[[], bool] | None:
        kind = (call.role, call.number)
        if kind == ("mediator", NUMBERS["write"]) and call.args[2] == 4321:
            writing.append(1)
            return lambda: bool(went_on)
        if kind == ("command", NUMBERS["unshare"]) and call.nth == 0:
            return lambda: bool(writing)
        if call.role == "command" and writing:
            went_on.append(1)
        return None

    def start() -> int:
        return nsbox.run(["true"], policy=policy, cwd="/").returncode

    assert policy.uid == 1234  # so it waits for the root with what it has
    assert spawn_of(policy, controlled(policy, start), decide).run()["returned"] == 0
    assert writing
    assert went_on


def test_pid_1_that_fails_tells_why(policies: dict[str, Policy], orphans: Orphans) -> None:
    """Its end is the command's too, on whose file systems the mediator waits: but that is not what has failed."""
    policy = policies["beside"]

    def decide(call: Call, spawn: Spawn) -> int | Callable[[], bool] | None:
        if (call.role, call.number) == ("init", NUMBERS["execveat"]):
            return errno.EACCES
        if (call.role, call.number) == ("command", NUMBERS["fsopen"]):
            return lambda: spawn.is_gone("init")
        return None

    def start() -> int:
        return nsbox.run(["true"], policy=policy, cwd="/").returncode

    found = spawn_of(policy, controlled(policy, start), decide).run()
    assert found["text"] == "start pid 1: Permission denied"
    assert found["left"] == []


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM, errno.ENOENT])
def test_without_open_tree_attr(policies: dict[str, Policy], orphans: Orphans, error: int) -> None:
    """Whatever a kernel or a filter says in place of it: the same mounts with the same attributes."""
    start = look(policies["beside"])
    expected, _ = once(policies["beside"], start)

    def decide(call: Call, spawn: Spawn) -> int | None:
        return error if call.number == NUMBERS["open_tree_attr"] else None

    assert spawn_of(policies["beside"], start, decide).run() == expected


@BELOW
def test_pid_1_below_another_execs_when_the_old_root_is_gone(policies: dict[str, Policy], orphans: Orphans) -> None:
    """However long the mediator is about to enter the new root: till it has, pid 1 stays in memory that nobody may look at."""
    policy = policies["below"]
    waiting, executed, early = [0], [0], [0]

    def decide(call: Call, spawn: Spawn) -> Callable[[], bool] | None:
        if call.role == "mediator" and call.number == NUMBERS["pivot_root"]:
            waiting[0] = 1
            return lambda: waiting[0] > 20 or executed[0] > 0
        if call.role == "init" and call.number == NUMBERS["execveat"]:
            executed[0] += 1
            early[0] += 0 < waiting[0] <= 20
        elif call.role == "init" and call.number == NUMBERS["ppoll"] and waiting[0]:
            waiting[0] += 1  # it has looked whether the caller is still there, and goes on waiting
        return None

    def start() -> int:
        return nsbox.run(["true"], policy=policy, cwd="/").returncode

    found = spawn_of(policy, controlled(policy, start), decide).run()
    assert found["returned"] == 0
    assert executed[0] == 1
    assert waiting[0] > 20
    assert not early[0]


@pytest.mark.parametrize("is_open", [False, True], ids=["no root yet", "the old root still there"])
def test_a_caller_that_executes_another_program(policies: dict[str, Policy], orphans: Orphans, is_open: bool) -> None:
    """By another thread than the one that spawns: its process goes on, under the same pid; the set-up must not.

    A command whose death signal is set too late for the end of its parent, that thread, gets none. What stays until the
    new program ends, or reaps it, is a zombie, and pid 1, whose end waits for that.
    """
    policy = policies["layers"]
    read, write = os.pipe()

    def start() -> None:
        thread = threading.Thread(target=lambda: nsbox.run(["true"], policy=policy, cwd="/"), daemon=True)
        thread.start()
        os.read(read, 1)
        os.execv("/bin/sleep", ["sleep", "1000"])

    ready = []

    def decide(call: Call, spawn: Spawn) -> Callable[[], bool] | None:
        kind = (call.role, call.number)
        if kind == ("init", NUMBERS["ppoll"]):
            ready.append("init")
        if kind == ("mediator", NUMBERS["pivot_root"]):  # the command isn't held back for the init then
            return lambda: not is_open or "init" in ready
        first = kind == ("command", NUMBERS["prctl"]) and call.nth == 0
        if kind == ("mediator", NUMBERS["umount2"]) if is_open else first:
            os.write(write, b"x")
        if first or kind == ("mediator", NUMBERS["umount2"]):
            return lambda: spawn.is_gone("mediator")
        return None

    ended = []

    def watch() -> None:
        if not ended and spawn.is_gone("mediator") and spawn.is_gone("command"):
            ended.append(not spawn.is_gone("caller"))
            spawn.kill("caller")

    spawn = spawn_of(policy, start, decide)
    try:
        assert spawn.run(watch=watch) is None
    finally:
        os.close(read)
        os.close(write)
    assert ended == [True]
