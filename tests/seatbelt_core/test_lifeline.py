"""The lifeline: a process of ours, outside of the sandbox, that ends the command when the caller ends."""

from __future__ import annotations

import errno
import signal
import subprocess
from pathlib import Path

import pytest
from nsbox_seatbelt_core.running import Core

# Starts a caller, which starts a command with a child of its own, waits until both of them run, and kills the caller.
# Whichever of the two is alive holds the pipe `alive`.
KILL_THE_CALLER = """
    adopt()
    alive, holds = os.pipe()
    told, tell = os.pipe()
    caller = os.fork()
    if caller == 0:
        os.close(alive)
        os.close(told)
        command = ["/bin/sh", "-c", "sleep 1000 & echo $$ $! >&3; exec sleep 1000"]
        os.dup2(tell, 3)
        found = start(command, profile=compile_profile("(x)"), pass_fds=[3, holds], flags=sys.argv[1])
        assert found.error == 0, found
        os.close(3)
        os.close(tell)
        signal.pause()
    os.close(holds)
    os.close(tell)
    with open(told) as file:
        command, child = map(int, file.readline().split())
    kill(caller)
"""


@pytest.mark.parametrize(
    ("flags", "n_ended"), [("SETSID", 0), ("SETSID LIFELINE", 1), ("SETSID LIFELINE LIFELINE_GROUP", 2)]
)
def test_the_caller_is_killed(core: Core, flags: str, n_ended: int) -> None:
    """Its command ends, and with it its process group, if that was asked for; without a lifeline both go on."""
    script = (
        KILL_THE_CALLER
        + """
    n_ended = int(sys.argv[2])
    for watcher in set(children()) - {command, child}:
        os.waitpid(watcher, 0)  # it ends when it has done its work
    found = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (command, child)[:n_ended]]
    for pid in (command, child)[n_ended:]:
        with open(f"/proc/{pid}/stat") as file:
            found.append("gone" if file.read().split()[2] in "ZX" else "there")
        kill(pid)
    assert os.read(alive, 1) == b""  # the end: there is nobody else
    say([found, no_child_left()])
    """
    )
    expected = [[-signal.SIGKILL] * n_ended + ["there"] * (2 - n_ended), True]
    assert core.run(script, flags, n_ended) == expected


def test_the_command_ends(core: Core) -> None:
    """The watcher ends with it, and well; the caller has no child but the command."""
    script = """
        adopt()
        read, write = os.pipe()
        found = start(["/bin/cat"], profile=compile_profile("(x)"), stdio=(read, -1, -1), flags="CLOSE_FDS LIFELINE")
        watcher, = set(children()) - {found.pid}
        os.close(write)
        assert found.status() == 0
        say([os.waitstatus_to_exitcode(os.waitpid(watcher, 0)[1]), no_child_left()])
    """
    assert core.run(script) == [0, True]


def test_the_caller_has_one_child(core: Core) -> None:
    """Waiting for any child finds the command, and then nobody: the others were never the caller's."""
    script = """
        found = spawn(["/bin/true"], profile=compile_profile("(x)"), flags="CLOSE_FDS LIFELINE")
        say([os.wait() == (found.pid, 0), no_child_left()])
    """
    assert core.run(script) == [True, True]


def test_the_command_has_no_child(core: Core) -> None:
    """Nor has the command a child that it didn't make, or what is left of one."""
    script = """
        wait = "import os\\ntry: os.wait()\\nexcept ChildProcessError: print('none')"
        say(output([sys.executable, "-ISc", wait], profile=compile_profile("(x)"), flags="CLOSE_FDS LIFELINE"))
    """
    assert core.run(script) == "none\n"


def test_the_watcher(core: Core) -> None:
    """It isn't confined, has a session of its own, no environment, no directory, and none of the caller's descriptors."""
    script = """
        adopt()
        read, write = os.pipe()
        os.dup2(os.memfd_create("secret"), 50)
        os.set_inheritable(50, True)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM])
        found = start(["/bin/cat"], profile=compile_profile("(x)"), stdio=(read, -1, -1), flags="LIFELINE")
        watcher, = set(children()) - {found.pid}
        def facts_of(pid):
            with open(f"/proc/{pid}/status") as file:
                facts = dict(line.rstrip("\\n").split(":\\t", 1) for line in file)
            with open(f"/proc/{pid}/environ") as file:
                environ = file.read()
            fds = {int(name): os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
            return [facts["NoNewPrivs"], facts["SigBlk"].strip("0"), os.getsid(pid) == pid, environ,
                    os.readlink(f"/proc/{pid}/cwd"), 50 in fds, sorted(set(fds.values()))]
        while os.readlink(f"/proc/{watcher}/cwd") != "/":  # the last thing that it does before it sleeps
            os.sched_yield()
        both = facts_of(watcher), facts_of(found.pid)
        os.close(write)
        found.status()
        os.waitpid(watcher, 0)
        say(both)
    """
    watcher, command = core.run(script)
    assert watcher == ["0", "", True, "", "/", False, ["/dev/null", "anon_inode:[pidfd]"]]
    assert command[:6] == ["1", "4", False, "PATH=/usr/bin:/bin\0", str(Path.cwd()), True]  # the control


@pytest.mark.parametrize(
    ("helper", "expected"),
    [("/no/such", 2), ("/etc", 13), ("/bin/true", 8), ("/bin/cat", 8)],
)
def test_no_helper(core: Core, tmp_path: Path, helper: str, expected: int) -> None:
    """Without the watcher there is no command: a program that is missing, or isn't ours, fails the spawn."""
    script = """
        mark, helper = sys.argv[1:]
        found = spawn(["/bin/touch", mark], profile=compile_profile("(x)"), helper=helper, flags="CLOSE_FDS LIFELINE")
        say([*found.refused(), os.path.exists(mark), no_child_left()])
    """
    assert core.run(script, tmp_path / "mark", helper) == [expected, "HELPER", False, True]
    assert "apply" not in core.names()


def watch(core: Core, *arguments: object) -> tuple[int, bytes]:
    """Run the helper's watch: its status, and what it says by descriptor 1."""
    command = [core.directory / "_helper", "watch", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={}, check=False)
    return done.returncode, done.stdout


def test_a_caller_that_is_gone_already(core: Core) -> None:
    """When it is gone before there is a watch, the command is killed, and told so in case it goes on."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    command = subprocess.Popen(["sleep", "1000"])
    status, said = watch(core, gone.pid, command.pid)
    assert (status, said) == (0, (3).to_bytes(4, "little") * 2)  # ESRCH, NSBOX_STEP_LIFELINE
    assert command.wait() == -signal.SIGKILL


def test_a_command_that_is_gone_already(core: Core) -> None:
    """When it is the command that is gone, nobody is killed."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as caller:
        status, said = watch(core, caller.pid, gone.pid)
        assert (status, said[:4]) == (0, (3).to_bytes(4, "little"))
        assert caller.poll() is None
    assert caller.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [(), ("{}",), ("{}", "-1"), ("{}", "0"), ("{}", "1", "group"), ("{}", "x"), ("0", "{}"), ("{}", "{}", "x"), ("{}", " {}"),
     ("{}", "99999999999"), ("{}", "{}", "group", "")],
)  # fmt: skip
def test_nonsense_for_the_watcher(core: Core, arguments: tuple[str, ...]) -> None:
    """What isn't two numbers of processes is refused without a word: -1 would be everybody, 0 the own group."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert watch(core, *(text.format(process.pid) for text in arguments)) == (127, b"")
        assert process.poll() is None
    assert process.returncode == 0


@pytest.mark.parametrize(("flags", "is_killed"), [("LIFELINE_GROUP", True), ("LIFELINE_GROUP STAY", False)])
def test_what_the_command_leaves(core: Core, flags: str, is_killed: bool) -> None:
    """At the command's end the rest of its process group is killed, whichever process waits; with STAY it goes on."""
    script = """
        adopt()
        told, tell = os.pipe()
        alive, holds = os.pipe()
        os.dup2(tell, 9)
        command = ["/bin/sh", "-c", "sleep 1000 9>&- & echo $! >&9; exec true"]
        found = start(command, profile=compile_profile("(x)"), pass_fds=[9, holds], flags="SETSID LIFELINE " + sys.argv[1])
        os.close(holds)
        os.close(tell)
        os.close(9)
        with open(told) as file:
            child = int(file.readline())
        watcher, = set(children()) - {found.pid, child}
        assert os.waitstatus_to_exitcode(os.waitpid(watcher, 0)[1]) == 0  # nothing is done after its end
        with open(f"/proc/{child}/stat") as file:
            is_there = file.read().split()[2] not in "ZX"
        if is_there:
            kill(child)
        assert os.read(alive, 1) == b""
        assert found.status() == 0
        say(is_there)
    """
    assert core.run(script, flags) is not is_killed


HOOK = r"""
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pid_t loaded_by;

static void prepare(void)
{
    if (getpid() != loaded_by)
        abort(); /* as libraries do that find a lock held by a thread of the parent */
}

__attribute__((constructor)) static void load(void)
{
    loaded_by = getpid();
    pthread_atfork(prepare, NULL, NULL);
}
"""


def test_hooks_of_libraries(core: Core, tmp_path: Path) -> None:
    """What libraries do at a fork isn't done a second time, in the child, where it can end in an abort."""
    (tmp_path / "hook.c").write_text(HOOK)
    library = tmp_path / "hook.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "hook.c"], check=True)
    script = """
        import ctypes, resource
        ctypes.CDLL(sys.argv[1])
        control = os.fork()
        if control == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.fork()
            os._exit(0)
        aborted = os.waitstatus_to_exitcode(os.waitpid(control, 0)[1])
        found = spawn(["/bin/true"], profile=compile_profile("(x)"), flags="CLOSE_FDS SETSID LIFELINE LIFELINE_GROUP")
        say([aborted, found.error, found.status()])
    """
    assert core.run(script, library) == [-signal.SIGABRT, 0, 0]


@pytest.mark.as_root("only it can start a command with other ids")
def test_the_watcher_is_the_callers(core: Core) -> None:
    """The process that watches keeps the caller's ids: the command, which gets others, can't signal it."""
    script = """
        os.chdir("/")
        adopt()
        read, write = os.pipe()
        found = start(["/bin/cat"], profile=compile_profile("(x)"), stdio=(read, -1, -1), uid=4711, gid=4711,
                      flags="CLOSE_FDS LIFELINE")
        assert found.error == 0, found
        watcher, = set(children()) - {found.pid}
        uids = [os.stat(f"/proc/{pid}").st_uid for pid in (watcher, found.pid)]
        os.close(write)
        assert found.status() == 0
        os.waitpid(watcher, 0)
        say(uids)
    """
    assert core.run(script, NSBOX_STUB_LOG="") == [0, 4711]  # which that user can't open


def test_a_given_pipe(core: Core) -> None:
    """A pipe that the caller has made is used for reports, and closed, whatever becomes of the command."""
    script = """
        def given(programs, **options):
            before = sorted(os.listdir("/proc/self/fd"))
            read, write = os.pipe()
            found = start(programs, pipe=(read, write), **options)
            return found, sorted(os.listdir("/proc/self/fd")) == before
        good, is_clean = given(["/bin/true"], profile=compile_profile("(x)"))
        missing, is_clean2 = given(["/none"], profile=compile_profile("(x)"))
        refused, is_clean3 = given(["/bin/true"], profile=compile_profile("(x)"), pass_fds=[99])
        say([good.error, good.status(), missing.error, refused.error, is_clean, is_clean2, is_clean3])
    """
    assert core.run(script) == [0, 0, errno.ENOENT, errno.EBADF, True, True, True]
