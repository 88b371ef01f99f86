"""Callers of all kinds: with odd signal settings, in threads, after fork, in asyncio, with foreign waitpid() loops."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import signal
import subprocess
import threading
from typing import Any

import psutil
import pytest
from nsbox_testing.running import Face, in_fork

import nsbox
from nsbox._core import call

# ---- threads and forks


def test_a_handler_that_raises_when_the_arena_is_given_back(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then another thread may use it: what is ended is the own command, no other one."""
    policy = nsbox.Policy.workspace(workspace)
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=policy) as other:

        def give_back(arena: Any, _: int) -> None:
            arena.result.pid = other.pid  # as another thread's spawn would
            raise KeyboardInterrupt

        monkeypatch.setattr(call, "_give_back", give_back)
        with pytest.raises(KeyboardInterrupt):
            nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=policy)
        assert other.poll() is None
    assert other.returncode == 0


def test_such_a_handler_and_what_would_go_on(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody owns that sandbox: it is ended whole, also where background processes are to outlive the command."""

    def give_back(arena: Any, _: int) -> None:
        while not psutil.Process(arena.result.pid).children():
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(call, "_give_back", give_back)
    policy = nsbox.Policy.workspace(workspace, kill_on_exit=False)
    with pytest.raises(KeyboardInterrupt):
        nsbox.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], policy=policy)


def test_thread_that_started_it_ends_first(sub: Face) -> None:
    """A command lives on after the thread that has started it (PR_SET_PDEATHSIG would end it: bubblewrap #692)."""
    started: list[Any] = []

    def start() -> None:
        started.append(sub.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    while any(task != str(os.getpid()) for task in os.listdir("/proc/self/task")):
        pass  # join() returns a moment before the kernel's thread has gone
    with started[0] as p:
        assert p.communicate(b"still here") == (b"still here", None)
    assert p.returncode == 0


def test_from_a_fork(sub: Face) -> None:
    """A forked child can start commands, also while its parent has some."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        assert in_fork(lambda: sub.run(["echo", "x"], stdout=subprocess.PIPE, text=True).stdout) == "x\n"
        assert p.poll() is None


def test_a_fork_does_not_own_its_parents_commands(sub: Face) -> None:
    """In a forked child the parent's Popen is nobody's child; that ends no sandbox and hangs nobody."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:

        def look() -> Any:
            return p.poll()

        assert in_fork(look) in (None, 255 if sub.contained else 0)
        assert p.communicate(b"alive")[0] == b"alive"
    assert p.returncode == 0


def test_a_fork_that_waits(sub: Face) -> None:
    """wait() in a forked child returns at once, as subprocess's does, and leaves the parent's command alone."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        assert in_fork(lambda: p.wait()) in (None, 255 if sub.contained else 0)
        assert p.poll() is None
        assert p.communicate(b"alive")[0] == b"alive"


def test_from_multiprocessing(sub: Face) -> None:
    """multiprocessing's fork method and its pool of processes can start commands."""
    context = multiprocessing.get_context("fork")
    read, write = context.Pipe(duplex=False)

    def work() -> None:
        write.send(sub.run(["echo", "x"], stdout=subprocess.PIPE).stdout)

    process = context.Process(target=work)
    process.start()
    assert read.recv() == b"x\n"
    process.join()
    assert process.exitcode == 0
    process.close()
    read.close()
    write.close()


@pytest.mark.filterwarnings("ignore:.*is multi-threaded.*:DeprecationWarning")
def test_sixty_four_threads_while_another_forks(sub: Face) -> None:
    """64 threads start commands at once while another thread forks: all commands run, and no two are mixed up."""
    barrier = threading.Barrier(65)
    outputs: dict[int, list[bytes]] = {}
    done = threading.Event()
    forks = 0

    def spawn(number: int) -> None:
        barrier.wait()
        outputs[number] = [sub.run(["echo", f"{number} {i}"], stdout=subprocess.PIPE).stdout for i in range(2)]

    def fork() -> None:
        nonlocal forks
        barrier.wait()
        while not done.is_set():
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            forks += 1

    threads = [threading.Thread(target=spawn, args=(n,)) for n in range(64)]
    forker = threading.Thread(target=fork)
    for thread in (*threads, forker):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    forker.join()
    assert outputs == {n: [f"{n} {i}\n".encode() for i in range(2)] for n in range(64)}
    assert forks > 0


def test_threads_that_fail(policy: nsbox.Policy) -> None:
    """Failing spawns in many threads at once: each gets its own error."""
    barrier = threading.Barrier(16)
    errors: dict[int, str] = {}

    def spawn(number: int) -> None:
        barrier.wait()
        for i in range(5):
            name = f"/nowhere/{number}-{i}"
            try:
                nsbox.run([name], policy=policy)
            except FileNotFoundError as error:
                assert error.filename == name
                errors[number] = name

    threads = [threading.Thread(target=spawn, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == {n: f"/nowhere/{n}-4" for n in range(16)}


# ---- asyncio with subprocess.Popen replaced


@pytest.fixture
def replaced(sub: Face, monkeypatch: pytest.MonkeyPatch) -> Face:
    """subprocess.Popen is nsbox's with the face's policy (nsbox.install() will do this properly)."""
    if sub.contained:
        monkeypatch.setattr(subprocess, "Popen", functools.partial(nsbox.Popen, policy=sub.policy))
    return sub


def test_asyncio_exec(replaced: Face) -> None:
    """asyncio.create_subprocess_exec: pipes, status, signals."""

    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        p = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        assert await p.communicate(b"through asyncio") == (b"through asyncio", None)
        assert p.returncode == 0
        p = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
        assert await p.wait() == 3
        p = await asyncio.create_subprocess_exec("cat", stdin=pipe)
        p.terminate()
        assert await p.wait() == -signal.SIGTERM

    asyncio.run(main())


def test_asyncio_many_at_once(replaced: Face) -> None:
    """Twenty commands of one event loop."""

    async def one(number: int) -> bytes:
        p = await asyncio.create_subprocess_shell(f"echo {number}", stdout=asyncio.subprocess.PIPE)
        return (await p.communicate())[0]

    async def main() -> list[bytes]:
        return await asyncio.gather(*(one(n) for n in range(20)))

    assert asyncio.run(main()) == [f"{n}\n".encode() for n in range(20)]


def test_asyncio_failed_start(replaced: Face) -> None:
    """A program that isn't there is FileNotFoundError."""

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/nowhere/nothing")

    asyncio.run(main())


def test_asyncio_timeout(replaced: Face) -> None:
    """A wait that is cancelled leaves a process that can be killed."""

    async def main() -> int:
        p = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(p.wait(), 0.01)
        p.kill()
        return await p.wait()

    assert asyncio.run(main()) == -signal.SIGKILL


# ---- users and groups


def ids(sub: Face, **options: Any) -> str:
    """Return real, effective and saved ids of a command, then its groups. (Not by Python, which may be private to root.)"""
    done = sub.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True, cwd="/", **options)
    facts = dict(line.split(":", 1) for line in done.stdout.splitlines())
    groups = sorted(map(int, facts["Groups"].split()))
    return " ".join([*facts["Uid"].split()[:3], *facts["Gid"].split()[:3], *map(str, groups)])


@pytest.mark.as_root("changes ids")
@pytest.mark.parametrize("sub", ["plain", "host"], indirect=True)
def test_user_and_group(sub: Face) -> None:
    """user=, group=, extra_groups= as root: the plain class and a host policy, which maps all ids."""
    assert ids(sub, user=1234, group=4321, extra_groups=[7, 8]) == "1234 1234 1234 4321 4321 4321 7 8"
    assert ids(sub, user="nobody", group="nogroup", extra_groups=[]) == "65534 65534 65534 65534 65534 65534"
    assert ids(sub, group=4321, extra_groups=["daemon"]) == "0 0 0 4321 4321 4321 1"


@pytest.mark.as_root("changes ids")
def test_user_in_a_workspace_with_all_ids(workspace: Any) -> None:
    """ids="full" makes user= work in a workspace too; the file it writes has that owner outside."""
    policy = nsbox.Policy.workspace(workspace, ids="full")
    workspace.chmod(0o777)
    path = workspace.parent
    while path != path.parent and not path.stat().st_mode & 0o001:  # pytest's directories are its user's alone
        path.chmod(path.stat().st_mode | 0o011)
        path = path.parent
    done = nsbox.run(
        ["sh", "-c", "id -u; id -g; echo x > made"], user=1234, group=4321, policy=policy, capture_output=True
    )
    assert (done.stdout, done.stderr) == (b"1234\n4321\n", b"")
    assert ((workspace / "made").stat().st_uid, (workspace / "made").stat().st_gid) == (1234, 4321)


@pytest.mark.parametrize("options", [{"user": 1234}, {"group": 4321}, {"extra_groups": [7]}])
def test_ids_that_are_not_mapped(workspace: Any, options: dict[str, Any]) -> None:
    """Where one id exists only, another one is an error that says so and starts nothing."""
    with pytest.raises(nsbox.SetupError, match="ids=") as caught:
        nsbox.Popen(["true"], policy=nsbox.Policy.workspace(workspace), **options)
    assert isinstance(caught.value, PermissionError)  # as the plain class has it
    assert caught.value.errno == 1


def test_own_ids_are_always_allowed(sub: Face) -> None:
    """user= and group= that are the caller's own are no change."""
    p = sub.Popen(["true"], user=os.geteuid(), group=os.getegid())
    assert p.wait() == 0


@pytest.mark.as_user("root may change")
def test_ids_without_privileges(sub: Face) -> None:
    """Other ids are PermissionError for an ordinary user, in the plain class as here."""
    for options in ({"user": 0}, {"group": 0}, {"extra_groups": []}):
        with pytest.raises(PermissionError) as caught:
            sub.Popen(["true"], **options)
        assert caught.value.errno == 1


@pytest.mark.as_root("others can't drop their groups")
def test_no_groups_where_there_are_none(workspace: Any) -> None:
    """extra_groups=[] in a sandbox with one id: root's are gone anyway."""
    assert nsbox.run(["true"], policy=nsbox.Policy.workspace(workspace), extra_groups=[]).returncode == 0


def test_wrong_ids(sub: Face) -> None:
    """Names and numbers that can't be: the errors of the standard library."""
    with pytest.raises(ValueError):
        sub.Popen(["true"], user=-1)
    with pytest.raises((KeyError, LookupError)):
        sub.Popen(["true"], user="no such user")
    with pytest.raises(TypeError):
        sub.Popen(["true"], user=1.5)
    with pytest.raises((OverflowError, ValueError)):
        sub.Popen(["true"], user=2**64)
    with pytest.raises(ValueError):
        sub.Popen(["true"], extra_groups=[2**40])
