"""Sandbox: one policy, many commands. What holds for each of them is tested by all the other tests (NSBOX_TESTS_WARM)."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import Orphans, in_fork, python
from nsbox_testing.warm import await_ready

import nsbox
from nsbox import Limits, Policy, Sandbox
from nsbox._core import orphans as core_orphans
from nsbox._kept import tree
from nsbox._spawn import prepare

# Leaves something in each place that a command can write to without being asked to, and prints what is there already.
LEAVE = """
import json, os
seen = []
for place in ("/tmp", "/dev/shm", "/dev"):
    seen += [f"{place}/{name}" for name in os.listdir(place) if name.startswith("left")]
    open(f"{place}/left", "w").close()
seen += [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 2]
if os.fork() == 0:
    os.setsid()
    while True: os.read(os.pipe()[0], 1)
print(json.dumps(seen))
"""


@pytest.fixture(params=[0, 2], ids=["anew", "ready"])
def box(request: pytest.FixtureRequest, policy: Policy) -> Iterator[Sandbox]:
    """A Sandbox whose commands have their copies made, or find one that is ready."""
    with Sandbox(policy, stock=request.param) as made:
        await_ready(made)
        yield made


def output(box: Sandbox, *command: str) -> str:
    """Run a command that has to be in a copy, and return what it says. Once more, if the machine's mounts have changed."""
    for _ in range(3):
        await_ready(box)
        with box.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            said = process.communicate()[0]
        if process.sandbox.is_warm:
            return str(said)
    pytest.fail(f"it isn't in a copy: {box.why_cold}")


# ---- one of many


@pytest.mark.vm
def test_nothing_is_left_for_the_next(box: Sandbox) -> None:
    """Whatever a command leaves behind, files or processes, the next one doesn't find it."""
    for _ in range(4):
        assert output(box, *python(LEAVE)) == "[]\n"


def test_all_at_once_are_alone(box: Sandbox) -> None:
    """Commands that run at the same time don't see each other, and have their own host names, queues and networks."""
    names = ("pid", "mnt", "ipc", "uts", "net")
    with box.Popen(["cat"], stdin=subprocess.PIPE) as one:
        other = output(box, "sh", "-c", f"ls /proc | grep -c '^[0-9]'; cd /proc/self/ns; readlink {' '.join(names)}")
        mine = [os.readlink(f"/proc/{one.pid}/ns/{name}") for name in names]
    count, *others = other.split()
    assert int(count) <= 6  # pid 1, sh, ls, grep
    assert not set(mine) & set(others)


@pytest.mark.vm
def test_the_network_is_one_s_own(box: Sandbox) -> None:
    """Loopback is up, and another command listens on the same port."""
    code = "import socket; s = socket.create_server(('127.0.0.1', 8000)); socket.create_connection(('127.0.0.1', 8000)); print(1)"
    hold = "import socket, sys; s = socket.create_server(('127.0.0.1', 8000)); print(2, flush=True); sys.stdin.read()"
    with box.Popen(python(hold), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"2\n"
        assert output(box, *python(code)) == "1\n"


@pytest.mark.vm
def test_as_with_the_policy(box: Sandbox, policy: Policy) -> None:
    """A command sees the same mounts, in front, the same privileges, limits and environment as one of its own.

    Only the home is another: the Sandbox keeps one.
    """
    look = "cat /proc/self/status | grep -E '^(Cap|NoNew|Seccomp|Groups|NSpid|Umask|Sig)'; ulimit -a; env; id; pwd; ls -la /dev /tmp"
    mounts = python(
        "import os\n"
        "seen = {line.split()[4]: line for line in open('/proc/self/mountinfo')}\n"
        "for at in sorted(seen):\n"
        "    f = seen[at].split(); dash = f.index('-')\n"
        "    print(at, f[3], f[5], f[dash + 1], *(os.access(at, way) for way in (os.R_OK, os.W_OK, os.X_OK)))\n"
    )
    for command in (["sh", "-c", look], mounts):
        alone = nsbox.run(command, policy=policy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        same = output(box, *command)
        cold, warm = (_timeless(text) for text in (alone, same))
        other = ("/proc/1/autogroup", "/home/")
        assert [line for line in warm if not line.startswith(other)] == [
            line for line in cold if not line.startswith(other)
        ]


def _timeless(text: str) -> list[str]:
    """Without times of files."""
    return [
        " ".join(w for w in line.split() if ":" not in w or "=" in w or line[0] in "CNSGU")
        for line in text.splitlines()
    ]


def test_its_own_child(box: Sandbox) -> None:
    """The command is this process's child: pid, status and signals are what they are without a Sandbox."""
    await_ready(box)
    with box.Popen(["sh", "-c", "kill -STOP $$; exit 7"]) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 7
    await_ready(box)
    with box.Popen(["sleep", "100"]) as process:
        assert process.sandbox.init_pid > 0
        process.terminate()
        assert process.wait() == -signal.SIGTERM


def test_all_ways_to_start(box: Sandbox, workspace: Path) -> None:
    """The methods do what the functions do, and the functions take a Sandbox for a policy."""
    assert box.run(["true"]).returncode == 0
    assert box.call("exit 3", shell=True) == 3
    assert box.check_call(["true"]) == 0
    assert box.check_output(["echo", "x"], text=True) == "x\n"
    assert box.shell("echo $0 y").stdout == "/bin/bash y\n"
    assert nsbox.run(["pwd"], policy=box, capture_output=True, text=True).stdout == f"{workspace}\n"
    with pytest.raises(TypeError, match="own policy"):
        box.run(["true"], policy=Policy.host())

    async def main() -> list[bytes]:
        one = await box.create_subprocess_exec("echo", "1", stdout=subprocess.PIPE)
        two = await box.create_subprocess_shell("echo 2", stdout=subprocess.PIPE)
        assert one.sandbox.is_warm
        assert two.sandbox.is_warm
        return [(await process.communicate())[0] for process in (one, two)]

    assert asyncio.run(main()) == [b"1\n", b"2\n"]


def test_confined(child: Callable[..., Any]) -> None:
    """A block takes one too: what libraries start in it is in copies."""
    code = """
with nsbox.Sandbox(policy) as box, nsbox.confined(box):
    seen = [where(), subprocess.Popen(["true"]).sandbox.is_warm]
report(seen)
"""
    assert child("import warnings; warnings.simplefilter('ignore', ResourceWarning)\n" + code) == ["in", True]


def test_a_command_that_is_not_there(box: Sandbox, policy: Policy) -> None:
    """The exceptions are the same ones, nothing is left, and the next command works."""
    for missing in ({"args": ["/no/such"]}, {"args": ["true"], "cwd": "/no/such"}, {"args": ["/etc/passwd"]}):
        with pytest.raises((FileNotFoundError, PermissionError, nsbox.AccessError)) as cold:
            nsbox.run(**missing, policy=policy)
        await_ready(box)
        with pytest.raises(type(cold.value)) as warm:
            box.run(**missing)
        assert (str(warm.value), warm.value.__notes__ if hasattr(warm.value, "__notes__") else []) == (
            str(cold.value),
            cold.value.__notes__ if hasattr(cold.value, "__notes__") else [],
        )
    assert output(box, "echo", "on") == "on\n"


# ---- the host meanwhile


@pytest.fixture
def guarded(workspace: Path) -> Policy:
    """Something hidden and something read-only in the workspace; more to be hidden isn't there yet."""
    (workspace / "hidden").write_text("secret")
    (workspace / "fixed").mkdir()
    (workspace / "fixed/file").write_text("old")
    return Policy.workspace(
        workspace, deny=[workspace / "hidden", workspace / "later"], read=[workspace / "fixed"], seccomp="off"
    )


def rename_over(workspace: Path) -> str:
    (workspace / "new").write_text("secret")
    (workspace / "new").rename(workspace / "hidden")
    return "cat hidden"


def come_into_being(workspace: Path) -> str:
    (workspace / "later").write_text("secret")
    return "cat later"


def replace_directory(workspace: Path) -> str:
    (workspace / "fixed").rename(workspace / "away")
    (workspace / "fixed").mkdir()
    (workspace / "fixed/file").write_text("secret")
    return "echo x >fixed/file; echo x >fixed/more"


@pytest.mark.vm
@pytest.mark.parametrize("stock", [0, 2])
@pytest.mark.parametrize("change", [rename_over, come_into_being, replace_directory])
def test_what_changes_on_the_host_is_noticed(
    guarded: Policy, workspace: Path, stock: int, change: Callable[[Path], str]
) -> None:
    """What is hidden or read-only is so for the next command, whatever somebody has put in its place meanwhile."""
    with Sandbox(guarded, stock=stock) as box:
        await_ready(box)
        assert "secret" not in box.shell("cat hidden later 2>&1").stdout
        await_ready(box)
        command = change(workspace)
        for _ in range(2):  # the first starts anew, the second in a copy of what was made anew
            done = box.shell(command)
            assert done.returncode != 0
            assert "secret" not in done.stdout
            await_ready(box)
        assert not (workspace / "fixed/more").exists()
        assert output(box, "sh", "-c", "cat hidden 2>/dev/null; echo on") == "on\n"


@pytest.mark.parametrize("optional", [False, True])
def test_devices_that_are_others(workspace: Path, tmp_path: Path, optional: bool) -> None:
    """A source with working devices is looked after as others are, also one that wasn't there."""
    source = tmp_path / "source"
    base = (nsbox.RoBind("/", "/"), nsbox.Tmpfs("/mnt"))
    policy = Policy.layers(*base, nsbox.DevBind(str(source), "/mnt/d", optional=optional))
    if not optional:
        source.mkdir()
    with Sandbox(policy) as box:
        await_ready(box)
        assert box.call(["test", "-e", "/mnt/d/new"]) == 1
        if not optional:
            source.rename(tmp_path / "old")
        source.mkdir()
        (source / "new").touch()
        assert box.call(["test", "-e", "/mnt/d/new"]) == 0
        await_ready(box)
        assert box.call(["test", "-e", "/mnt/d/new"]) == 0


@pytest.mark.as_root("mounts something")
def test_mounts_of_another_namespace(policy: Policy, workspace: Path) -> None:
    """The caller enters another mount namespace: its mounts are the ones that count."""
    (workspace / "m").mkdir()

    def move() -> None:
        with Sandbox(policy) as box:
            await_ready(box)
            assert box.check_output(["ls", "m"]) == b""
            assert ctypes.CDLL(None).unshare(0x20000) == 0
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "none", workspace / "m"], check=True)
            (workspace / "m/on").touch()
            assert box.check_output(["ls", "m"]) == b"on\n"

    in_fork(move)


@pytest.mark.parametrize("change", [rename_over, replace_directory])
def test_control_without_looking(guarded: Policy, workspace: Path, change: Callable[[Path], str]) -> None:
    """In a sandbox that runs on, the change takes the mount along: that is what has to be noticed."""
    with nsbox.Popen(["sh"], policy=guarded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print("echo up", file=process.stdin, flush=True)
        assert process.stdout.readline() == "up\n"
        print(f"{change(workspace)} && echo done", file=process.stdin, flush=True)
        process.stdin.close()
        assert process.stdout.read() in ("secretdone\n", "done\n")


def test_a_workspace_that_is_another(box: Sandbox, workspace: Path) -> None:
    """Moved away and made again: commands are in the new one. Gone: the error is the one that there is without a Sandbox."""
    (workspace / "old").touch()
    assert "old" in output(box, "ls")
    workspace.rename(workspace.with_name("away"))
    await_ready(box)
    with pytest.raises(nsbox.SetupError, match="open source: No such file"):
        box.run(["true"])
    workspace.mkdir(mode=0o777)
    assert box.run(["touch", "new"]).returncode == 0
    assert output(box, "ls") == "new\n"
    assert os.listdir(workspace) == ["new"]
    shutil.rmtree(workspace.with_name("away"))


@pytest.mark.as_root("mounts something")
def test_what_is_mounted_and_unmounted(box: Sandbox, workspace: Path) -> None:
    """A file system that is mounted on the host is seen by the next command, and can be unmounted for good."""
    (workspace / "m").mkdir()
    assert output(box, "ls", "m") == ""
    subprocess.run(["mount", "-t", "tmpfs", "none", workspace / "m"], check=True)
    try:
        (workspace / "m/on").touch()
        assert box.check_output(["ls", "m"]) == b"on\n"
        assert output(box, "ls", "m") == "on\n"
    finally:
        subprocess.run(["umount", workspace / "m"], check=True)
    assert box.check_output(["ls", "m"]) == b""
    assert output(box, "ls", "m") == ""


# ---- another policy


def test_update(box: Sandbox, workspace: Path, tmp_path: Path) -> None:
    """Commands that run keep the policy they had; the next has the new one."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("read")
    await_ready(box)
    look = f"cat {data}/file 2>/dev/null || echo nothing"
    with box.Popen(["sh", "-c", f"echo up; read x; {look}"], stdin=-1, stdout=-1, text=True) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == "up\n"
        box.update(box.policy.with_(read=[data]))
        assert output(box, "sh", "-c", look) == "read"
        assert old.communicate("go\n")[0] == "nothing\n"
    for wrong in ({"policy": "no"}, {"policy": box.policy, "mode": "off"}, {"mode": None, "policy": 1}):
        with pytest.raises((TypeError, ValueError)):
            box.update(**wrong)
    assert output(box, "sh", "-c", look) == "read"


def test_mode(box: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disabled: nothing is contained, and HOME is the caller's, but the environment is built, the directory the policy's."""
    monkeypatch.setenv("FROM_CALLER", "1")
    monkeypatch.setenv("HOME", "/of-the-caller")
    command = ["sh", "-c", "readlink /proc/self/ns/pid; pwd; echo $FROM_CALLER $HOME"]
    here = os.readlink("/proc/self/ns/pid")
    box.update(mode="disabled")
    assert box.mode == "disabled"
    with box.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0] == f"{here}\n{workspace}\n/of-the-caller\n"
    assert process.sandbox.backend == "passthrough"
    box.update(mode="enabled")
    assert here not in output(box, *command)
    assert here not in output(box, *command)


def test_updates_while_threads_start_commands(policy: Policy) -> None:
    """Each command has one policy or the other, whole."""
    hosts = [policy.with_(hostname=name, env={"NAME": name}) for name in ("one", "two")]
    seen: list[str] = []
    with Sandbox(hosts[0]) as box:

        def work() -> None:
            for _ in range(8):
                seen.append(box.shell('echo "$(uname -n) $NAME"').stdout)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for i in range(20):
            box.update(hosts[i % 2])
            time.sleep(0.005)
        for thread in threads:
            thread.join()
    assert len(seen) == 32
    assert set(seen) <= {"one one\n", "two two\n"}


# ---- where nothing can be kept

SYSTEM = ("usr", "bin", "lib", "lib64")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: Policy.layers(*(nsbox.RoBind(f"/{at}", f"/{at}", optional=True) for at in SYSTEM)), "writable"),
        (
            lambda p: Policy.layers(nsbox.RoBind("/", "/"), nsbox.TmpOverlay((str(p.workdir),), str(p.workdir))),
            "overlay",
        ),
        (lambda p: Policy.host(backend="passthrough", require="nothing"), "passthrough"),
    ],
)
def test_cold(policy: Policy, change: Callable[[Policy], Policy], why: str) -> None:
    """Commands are started as without a Sandbox, and it says why."""
    with Sandbox(change(policy)) as box:
        assert why in box.why_cold
        with box.Popen(["/bin/true"]) as process:
            assert process.wait() == 0
        assert not process.sandbox.is_warm


def test_kill_on_exit_of_one_s_own(box: Sandbox) -> None:
    """A command that wishes it otherwise than the policy is started anew."""
    await_ready(box)
    with box.Popen(["true"], kill_on_exit=False) as process:
        assert process.wait() == 0
    assert not process.sandbox.is_warm
    while core_orphans.leftovers.pidfds:  # its pid 1 may take a moment
        box.run(["true"])


def test_a_terminal(box: Sandbox) -> None:
    """A command on a terminal has it as /dev/console, as without a Sandbox."""
    master, slave = os.openpty()
    try:
        assert box.run(["test", "-c", "/dev/console"], stdout=slave).returncode == 0
        assert box.run(["test", "-e", "/dev/console"], stdout=subprocess.PIPE).returncode == 1
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.as_user("the kernel exempts its uid 0 from RLIMIT_NPROC")
def test_limits_are_each_command_s(policy: Policy) -> None:
    """A limit of processes is for one command, however many run at a time; or each is started anew."""
    with Sandbox(policy.with_(limits=Limits(processes=4), ids="auto")) as box:
        running = [box.Popen(["sleep", "100"]) for _ in range(5)]
        done = box.shell("sleep 0 & sleep 0 & wait; echo all")
        for process in running:
            process.kill()
            process.wait()
    assert (done.stdout, done.stderr) == ("all\n", "")


# ---- its life


def test_closed(policy: Policy) -> None:
    """It takes no commands any more; those that run go on. Closing twice is no error."""
    box = Sandbox(policy)
    with box, box.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        box.close()
        for call in (lambda: box.run(["true"]), box.start, box.update):
            with pytest.raises(ValueError, match="closed"):
                call()
        assert process.communicate(b"on")[0] == b"on"
    box.close()
    assert repr(box) == "<nsbox.Sandbox closed workspace>"


def test_wrong_arguments(policy: Policy) -> None:
    """They are refused with an error that says what is right."""
    for wrong in ({"policy": None}, {"policy": "workspace"}):
        with pytest.raises(TypeError, match=r"must be nsbox\.Policy"):
            Sandbox(**wrong)
    for stock in (-1, 65, True, "2", None):
        with pytest.raises(ValueError, match="0 to 64"):
            Sandbox(policy, stock=stock)
    with pytest.raises(nsbox.PolicyError, match="mode: 'off' is unknown"):
        Sandbox(policy, mode="off")


def test_closed_while_something_is_made(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread has just made, to be kept, is let go of by another one's close(): nobody makes copies of it."""
    box = Sandbox(policy)
    way, make, made = box._way, box._way._make, []
    closer = threading.Thread(target=box.close)

    def make_slowly(prepared: Any) -> Any:
        made.append(make(prepared))
        closer.start()
        while not way._is_closed:
            os.sched_yield()
        return made[0]

    monkeypatch.setattr(way, "_make", make_slowly)
    box.start()
    closer.join()
    assert way._kept is None
    assert made[0].stale
    assert not tree._refiller.is_busy(made[0])


def test_nothing_is_made_when_it_is_closed(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that gets the lock only after close() makes nothing."""

    class Lock:
        def __enter__(self) -> None:
            way._is_closed = True  # as close() does before it waits for the lock

        def __exit__(self, *_: object) -> None:
            pass

    box = Sandbox(policy)
    way = box._way
    monkeypatch.setattr(way, "_make", lambda prepared: pytest.fail("it was made"))
    monkeypatch.setattr(way, "_lock", Lock())
    box.start()
    box.close()
    assert way._kept is None


def test_unclosed(policy: Policy) -> None:
    """One that is forgotten says so, and leaves nothing behind. One that has never been used is no matter."""
    box = Sandbox(policy).start()
    await_ready(box)
    with pytest.warns(ResourceWarning, match=r"unclosed <nsbox\.Sandbox enabled workspace>"):
        del box
        gc.collect()
    Sandbox(policy)
    gc.collect()


@pytest.mark.vm
@pytest.mark.parametrize("stock", [0, 2])
def test_fork(policy: Policy, stock: int) -> None:
    """A forked child uses it too, by something of its own, and its end is not the parent's business."""
    with Sandbox(policy, stock=stock) as box:
        await_ready(box)
        kept = box._way._kept
        ready = [made.result.init_pid for made in kept._ready] if kept is not None else []

        def use() -> None:
            assert box._way._kept is None
            assert output(box, "echo", "child") == "child\n"
            box.close()

        in_fork(use)
        assert all(os.path.exists(f"/proc/{pid}") for pid in ready)
        assert box._way._kept is kept
        assert output(box, "echo", "parent") == "parent\n"


def test_forks_meanwhile(box: Sandbox) -> None:
    """Whenever this process forks, what its commands run in isn't ended by the child."""
    for _ in range(15):
        with box.Popen(["sh", "-c", "sleep 0.01; exit 3"]) as process:
            for _ in range(3):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
        assert process.returncode == 3


def test_no_thread(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, commands have their copies made."""

    def start_new_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tree, "_refiller", tree._Refiller())  # without a thread of an earlier test
    monkeypatch.setattr(tree, "start_new_thread", start_new_thread)
    with Sandbox(policy) as box:
        for _ in range(3):
            assert output(box, "echo", "on") == "on\n"
        assert box._way._kept is not None
        assert box._way._kept._ready == []


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_thread_ends(policy: Policy) -> None:
    """Who makes copies is gone soon when there is nothing to do; of all boxes there is one."""

    def await_end() -> None:
        end = time.monotonic() + 10
        while tasks() > 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert tasks() == 1

    await_end()  # of an earlier test's
    with Sandbox(policy) as one, Sandbox(policy.with_(network="host")) as two:
        for box in (one, two, one):
            assert output(box, "echo", "on") == "on\n"
            assert await_ready(box) and tasks() <= 2
        await_end()
        assert output(one, "echo", "on") == "on\n"
        assert await_ready(one)


def test_copies_whose_descriptors_do_not_come(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of which something is missing is ended, and commands have theirs made."""
    received, come = tree._received, [0]

    def interrupted(*arguments: Any) -> list[int]:
        come[0] += 1
        if come[0] > 1:
            raise OSError("nothing came")
        return received(*arguments)

    monkeypatch.setattr(tree, "_received", interrupted)
    with Sandbox(policy) as box:
        while come[0] < 2:  # they are made in a thread
            assert output(box, "echo", "on") == "on\n"
        assert output(box, "echo", "on") == "on\n"


def test_another_plan_for_the_policy(box: Sandbox) -> None:
    """What is kept is for what the policy came to; if that is something else now (ids, a machine's facts), it goes."""
    assert output(box, "echo", "on") == "on\n"
    before = box._way._kept
    prepare.forget()
    assert output(box, "echo", "on") == "on\n"
    assert box._way._kept is not before


def test_ready_ones_that_are_killed(policy: Policy) -> None:
    """Whatever happens to a sandbox that waits, the next command runs."""
    with Sandbox(policy) as box:
        for _ in range(5):
            await_ready(box)
            kept = box._way._kept
            assert kept is not None
            for made in kept._ready:
                os.kill(made.result.init_pid, signal.SIGKILL)
                select.select([made.result.init_pidfd], [], [])
            assert box.check_output(["echo", "on"]) == b"on\n"


@pytest.mark.parametrize(
    "end", ["sys.exit()", "os._exit(0)", "os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['true'])"]
)
def test_end_of_the_caller(workspace: Path, orphans: Orphans, end: str) -> None:
    """With it ends all that is kept, is ready, or runs."""
    code = f"""
import nsbox, os, sys, time
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=3).start()
running = [box.Popen(["sleep", "1000"]) for _ in range(3)]
time.sleep(0.05)
{end}
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, workspace], cwd=workspace, check=False)
    orphans.reap()


@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.01, 0.03, 0.1])
def test_caller_killed_with_fifty_commands(workspace: Path, orphans: Orphans, after: float) -> None:
    """At whatever moment that is."""
    code = """
import nsbox, sys
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=4).start()
running = [box.Popen(["sleep", "1000"]) for _ in range(20)]
print("up", flush=True)
running += [box.Popen(["sleep", "1000"]) for _ in range(30)]
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, workspace]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=workspace) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        time.sleep(after)
        process.kill()
    orphans.reap()


def test_threads(policy: Policy) -> None:
    """Eight threads share one, and each command is a child of this process."""
    with Sandbox(policy, stock=3) as box:
        results: list[bytes] = []

        def work(i: int) -> None:
            results.extend(box.check_output(["echo", f"{i} {j}"]) for j in range(10))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == sorted(f"{i} {j}\n".encode() for i in range(8) for j in range(10))


def test_a_thousand_at_once(policy: Policy) -> None:
    """All run, each in a copy, and all end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"this process may have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Sandbox(policy.with_(network="host")) as box:
            processes = [box.Popen(["sleep", "1000"]) for _ in range(1000)]
            assert sum(process.sandbox.is_warm for process in processes) > 900
            for process in processes:
                process.kill()
            assert {process.wait() for process in processes} == {-signal.SIGKILL}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nothing_grows(policy: Policy) -> None:
    """After many commands this process has the memory and the descriptors that it had after some."""

    def used() -> tuple[int, int]:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]), len(os.listdir("/proc/self/fd"))

    with Sandbox(policy) as box:
        for _ in range(150):
            box.call(["true"])
        await_ready(box)
        pages, descriptors = used()
        for _ in range(150):
            box.call(["true"])
        await_ready(box)
        more, now = used()
    assert more - pages < 256
    assert now <= descriptors + 8  # what is ready just then


LIMITED = """
import nsbox, os, sys, time
with open(f"/proc/sys/user/max_{sys.argv[1]}_namespaces", "w") as file:
    file.write(sys.argv[2])
seen = set()
box = nsbox.Sandbox(nsbox.Policy.workspace(os.getcwd()))
for i in range(4):
    try:
        seen.add(box.run(["true"]).returncode)
    except OSError as error:
        seen.add(type(error).__name__)
    time.sleep(0.003)
box.close()
print(*sorted(map(str, seen)))
"""


@pytest.mark.parametrize("name", ["user", "mnt", "pid", "net"])
def test_namespaces_used_up(policy: Policy, name: str) -> None:
    """With a few of a kind allowed: commands run, or the error is one that there is without a Sandbox."""
    for limit in (1, 3, 5, 8, 60):
        # In a user namespace of its own, whose limits are those of this test alone (namespaces(7)).
        command = ["unshare", "-U", "-r", "--", sys.executable, "-c", LIMITED, name, str(limit)]
        done = subprocess.run(command, cwd=policy.workdir, capture_output=True, text=True)
        if "unshare failed" in done.stderr:
            pytest.skip(done.stderr)
        assert done.stderr == ""
        assert set(done.stdout.split()) <= {"0", "SetupError", "UnavailableError"}
    assert done.stdout == "0\n"


@pytest.mark.parametrize("left", [3, 6, 9, 12, 16, 20, 30])
def test_few_descriptors(policy: Policy, left: int) -> None:
    """With however few descriptors: an error that says so, or a command that runs; nothing is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    box = Sandbox(policy)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, hard))
    try:
        for _ in range(4):
            try:
                assert box.run(["true"], stdin=subprocess.DEVNULL).returncode == 0
            except OSError as error:
                assert "Too many open files" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        box.close()


def test_copies_are_encoded_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to the C core for a copy is the same each time, except for what each one has found itself."""
    with Sandbox(policy, stock=0) as box:
        box.run(["true"], check=True)
        kept = box.way()._kept
        assert kept is not None
        monkeypatch.setattr(tree._request, "template", None)
        first, second = kept._park(), kept._park()
        assert first.stamps is not second.stamps
        found = [[(s.dev, s.ino) for s in one.stamps.array] for one in (first, second)]
        assert any(any(stamp) for stamp in found[0]) and found[0] != found[1]


def test_what_python_does_for_a_command(policy: Policy) -> None:
    """How many functions of nsbox's a command calls: 104, and 110 for root. They are most of what Python's time is."""
    calls: list[str] = []

    def count(frame: Any, event: str, _: object) -> None:
        if event == "call" and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(nsbox.__file__):
            calls.append(frame.f_code.co_qualname)

    with Sandbox(policy) as box:
        found = []
        for _ in range(5):
            await_ready(box)
            calls.clear()
            sys.setprofile(count)
            try:
                box.run(["/bin/true"])
            finally:
                sys.setprofile(None)
            found.append(len(calls))
        assert min(found) <= 120, calls
