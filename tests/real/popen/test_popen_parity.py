"""Popen as subprocess.Popen: ending, talking, naming. The same test for the plain class, and for nsbox under two policies."""

from __future__ import annotations

import functools
import io
import os
import signal
import subprocess
import sys

import psutil
import pytest
from nsbox_testing.running import Face, in_fork, python

import nsbox

# ---- the end of a command


@pytest.mark.parametrize("status", [0, 1, 2, 127, 255])
def test_returncode_is_the_exit_status(sub: Face, status: int) -> None:
    """An exit status comes out as it is, with wait() and in returncode."""
    p = sub.Popen(["sh", "-c", f"exit {status}"])
    assert p.wait() == status
    assert p.returncode == status
    assert p.poll() == status


@pytest.mark.parametrize(
    "name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGPIPE", "SIGABRT", "SIGUSR1", "SIGXCPU", "SIGHUP"]
)
def test_death_by_signal_is_negative(sub: Face, name: str) -> None:
    """A command that a signal has killed has the negative signal number as its status."""
    done = sub.run(["sh", "-c", f"ulimit -c 0; kill -{name.removeprefix('SIG')} $$"])
    assert done.returncode == -getattr(signal, name)


def test_poll_is_none_until_the_end(sub: Face) -> None:
    """poll() says None while the command runs, and its status after that."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        assert p.poll() is None
        assert p.returncode is None
        p.stdin.close()
        assert p.wait() == 0
        assert p.poll() == 0


def test_wait_with_timeout(sub: Face) -> None:
    """wait() raises TimeoutExpired with the command and the time in it, and can be called again."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            p.wait(timeout=0.01)
        assert caught.value.cmd == ["cat"]
        assert caught.value.timeout == 0.01
        assert p.returncode is None
        p.stdin.close()
        assert p.wait(timeout=30) == 0


@pytest.mark.parametrize("timeout", [0, -1])
def test_wait_with_no_time_left(sub: Face, timeout: int) -> None:
    """A timeout of zero or less doesn't block."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p, pytest.raises(subprocess.TimeoutExpired):
        p.wait(timeout=timeout)


def test_waiting_twice(sub: Face) -> None:
    """wait() after the end returns the same status again."""
    p = sub.Popen(["false"])
    assert [p.wait(), p.wait(), p.wait(timeout=1)] == [1, 1, 1]


def test_wait_from_many_threads(sub: Face) -> None:
    """All threads that wait for one command get its status."""
    import threading

    with sub.Popen(["sh", "-c", "read x; exit 7"], stdin=subprocess.PIPE) as p:
        statuses: list[int] = []
        threads = [threading.Thread(target=lambda: statuses.append(p.wait())) for _ in range(5)]
        for thread in threads:
            thread.start()
        p.stdin.close()
        for thread in threads:
            thread.join()
    assert statuses == [7] * 5


def test_context_manager_waits_and_closes(sub: Face) -> None:
    """Leaving the with block closes the pipes and waits."""
    with sub.Popen(["sh", "-c", "cat; exit 3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        pass
    assert p.returncode == 3
    assert p.stdin.closed and p.stdout.closed


def test_context_manager_with_an_exception(sub: Face) -> None:
    """An exception in the with block comes out of it, after the command has been waited for."""
    with pytest.raises(ZeroDivisionError), sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        raise ZeroDivisionError
    assert p.returncode == 0


# ---- signals to a command


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_send_signal_reaches_handlers(sub: Face, name: str) -> None:
    """A signal runs the command's own handler."""
    code = """
import os, signal, sys
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal.signal(getattr(signal, sys.argv[1]), lambda n, f: (os.write(1, b"got %d\\n" % n), os._exit(9)))
os.write(1, b"ready\\n")
os.read(read, 1)
"""
    with sub.Popen(python(code, name), stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "ready\n"
        p.send_signal(getattr(signal, name))
        assert p.stdout.readline() == f"got {int(getattr(signal, name))}\n"
    assert p.returncode == 9


def test_terminate_and_kill(sub: Face) -> None:
    """terminate() is SIGTERM, kill() SIGKILL."""
    for method, number in (("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
        with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
            getattr(p, method)()
        assert p.returncode == -number


def test_signals_after_the_end(sub: Face) -> None:
    """Signals to a command that has ended are no error, and hit nobody."""
    p = sub.Popen(["true"])
    p.wait()
    p.send_signal(signal.SIGTERM)
    p.terminate()
    p.kill()
    assert p.returncode == 0


def test_signals_to_an_unreaped_command(sub: Face) -> None:
    """A command that has ended without being waited for takes signals without an error, and keeps its status."""
    with sub.Popen(["sh", "-c", "echo x; exit 5"], stdout=subprocess.PIPE) as p:
        os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
        p.send_signal(signal.SIGTERM)
        p.kill()
        assert p.wait() == 5


def test_stop_and_continue(sub: Face) -> None:
    """SIGSTOP and SIGCONT by pid stop and continue the command itself."""
    with sub.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        os.kill(p.pid, signal.SIGSTOP)
        assert os.waitid(os.P_PID, p.pid, os.WSTOPPED).si_status == signal.SIGSTOP
        assert psutil.Process(p.pid).status() == psutil.STATUS_STOPPED
        p.stdin.write(b"x")
        p.stdin.flush()
        os.kill(p.pid, signal.SIGCONT)
        assert os.waitid(os.P_PID, p.pid, os.WCONTINUED).si_code == os.CLD_CONTINUED
        assert p.stdout.read(1) == b"x"


# ---- talking to a command


def test_communicate_with_input(sub: Face) -> None:
    """communicate() passes bytes in, and returns what comes out on both pipes."""
    pipe = subprocess.PIPE
    with sub.Popen(["sh", "-c", "cat; echo err >&2"], stdin=pipe, stdout=pipe, stderr=pipe) as p:
        assert p.communicate(b"hello") == (b"hello", b"err\n")
    assert p.returncode == 0


def test_communicate_only_returns_what_is_piped(sub: Face) -> None:
    """Streams that aren't pipes are None."""
    with sub.Popen(["echo", "x"], stdout=subprocess.PIPE) as p:
        assert p.communicate() == (b"x\n", None)
    with sub.Popen(["true"]) as p:
        assert p.communicate() == (None, None)


def test_a_megabyte_both_ways(sub: Face) -> None:
    """Far more than a pipe holds passes in both directions at once."""
    data = os.urandom(1 << 20)
    done = sub.run(["tee", "/dev/stderr"], input=data, capture_output=True)
    assert done.stdout == data
    assert done.stderr == data


def test_communicate_after_kill(sub: Face) -> None:
    """What has been read ahead with a line isn't lost when the command is killed."""
    with sub.Popen("printf 'ready\\nmore\\n'; exec sleep 60", shell=True, stdout=subprocess.PIPE) as p:
        assert p.stdout.readline() == b"ready\n"
        p.kill()
        assert p.communicate() == (b"more\n", None)


def test_communicate_with_timeout_goes_on_later(sub: Face) -> None:
    """After TimeoutExpired communicate() can be called again, and nothing is lost."""
    code = "import sys; print('first', flush=True); sys.stdin.readline(); print('second', flush=True)"
    gate_read, gate_write = os.pipe()
    with sub.Popen(python(code), stdin=gate_read, stdout=subprocess.PIPE, text=True) as p:
        os.close(gate_read)
        with pytest.raises(subprocess.TimeoutExpired):
            p.communicate(timeout=0.1)
        os.write(gate_write, b"\n")
        os.close(gate_write)
        assert p.communicate(timeout=30) == ("first\nsecond\n", None)


def test_text_mode(sub: Face) -> None:
    """text=True and universal_newlines=True give str, with newlines translated."""
    for name in ("text", "universal_newlines"):
        done = sub.run(["printf", r"a\r\nb\rc\n"], stdout=subprocess.PIPE, **{name: True})
        assert done.stdout == "a\nb\nc\n"


def test_encoding_and_errors(sub: Face) -> None:
    """encoding= and errors= decide how bytes become str."""
    assert sub.run(["printf", r"\344"], stdout=subprocess.PIPE, encoding="latin-1").stdout == "ä"
    assert sub.run(["printf", r"\377"], stdout=subprocess.PIPE, encoding="utf-8", errors="replace").stdout == "\ufffd"
    assert sub.run(["cat"], input="äöü", stdout=subprocess.PIPE, encoding="utf-16").stdout == "äöü"


def test_bufsize_and_line_buffering(sub: Face) -> None:
    """bufsize=1 with text flushes each line; bufsize=0 gives raw pipes."""
    pipe = subprocess.PIPE
    with sub.Popen(["cat"], stdin=pipe, stdout=pipe, text=True, bufsize=1) as p:
        p.stdin.write("line\n")
        assert p.stdout.readline() == "line\n"
    with sub.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0) as p:
        assert isinstance(p.stdin, io.FileIO)
        p.stdin.write(b"raw")
        assert p.stdout.read(3) == b"raw"


def test_pipesize(sub: Face) -> None:
    """pipesize= sets the size of the pipes."""
    import fcntl

    with sub.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=8192) as p:
        assert fcntl.fcntl(p.stdin, fcntl.F_GETPIPE_SZ) == 8192
        assert fcntl.fcntl(p.stdout, fcntl.F_GETPIPE_SZ) == 8192


def test_command_that_reads_nothing(sub: Face) -> None:
    """Input for a command that ends without reading it is no error."""
    assert sub.run(["true"], input=b"x" * (1 << 20)).returncode == 0


# ---- the other names of the module


def test_run(sub: Face) -> None:
    """run() returns a CompletedProcess."""
    done = sub.run(["sh", "-c", "echo out; echo err >&2; exit 4"], capture_output=True, text=True)
    assert (done.args, done.returncode, done.stdout, done.stderr) == (
        ["sh", "-c", "echo out; echo err >&2; exit 4"],
        4,
        "out\n",
        "err\n",
    )
    assert isinstance(done, subprocess.CompletedProcess)


def test_run_check(sub: Face) -> None:
    """check=True raises CalledProcessError with status and output."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sub.run(["sh", "-c", "echo out; exit 4"], check=True, capture_output=True)
    assert (caught.value.returncode, caught.value.output, caught.value.stderr) == (4, b"out\n", b"")
    with pytest.raises(subprocess.CalledProcessError, match="SIGKILL"):
        sub.run(["sh", "-c", "kill -9 $$"], check=True)


def test_run_timeout_kills(sub: Face) -> None:
    """run(timeout=) kills the command and says what it has written until then."""
    for timeout in (0.2, 1, 5, 20):  # the first that is long enough for a shell to start here
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            sub.run(["sh", "-c", "echo before; while :; do :; done"], capture_output=True, timeout=timeout)
        if caught.value.stdout:
            break
    assert caught.value.stdout == b"before\n"
    assert caught.value.timeout == timeout


def test_run_refuses_contradictions(sub: Face) -> None:
    """input= with stdin=, capture_output= with stdout=: ValueError, as in the standard library."""
    with pytest.raises(ValueError, match="stdin and input"):
        sub.run(["true"], input=b"", stdin=subprocess.PIPE)
    with pytest.raises(ValueError, match="capture_output"):
        sub.run(["true"], capture_output=True, stdout=subprocess.PIPE)
    with pytest.raises(ValueError):
        sub.check_output(["true"], stdout=subprocess.PIPE)


def test_call_and_check_call(sub: Face) -> None:
    """call() returns the status, check_call() raises unless it is zero."""
    assert sub.call(["sh", "-c", "exit 3"]) == 3
    assert sub.check_call(["true"]) == 0
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sub.check_call(["false"])
    assert caught.value.cmd == ["false"]
    with pytest.raises(subprocess.TimeoutExpired):
        sub.call(["sh", "-c", "while :; do :; done"], timeout=0.05)


def test_check_output(sub: Face) -> None:
    """check_output() returns the output; input=None means empty input."""
    assert sub.check_output(["echo", "x"]) == b"x\n"
    assert sub.check_output(["cat"], input=b"in") == b"in"
    assert sub.check_output(["cat"], input=None) == b""
    assert sub.check_output(["cat"], input=None, text=True) == ""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sub.check_output(["sh", "-c", "echo x; exit 2"], stderr=subprocess.STDOUT)
    assert (caught.value.returncode, caught.value.output) == (2, b"x\n")


def test_getoutput(sub: Face) -> None:
    """getoutput() and getstatusoutput() run a shell command, without its last newline."""
    assert sub.getoutput("echo a; echo b >&2") == "a\nb"
    assert sub.getstatusoutput("echo a; exit 3") == (3, "a")
    assert sub.getstatusoutput("true") == (0, "")
    assert sub.getstatusoutput("kill -9 $$")[0] == -9


# ---- what a Popen is


def test_is_a_popen(sub: Face) -> None:
    """The object is a subprocess.Popen, and looks like one."""
    with sub.Popen(["true"]) as p:
        assert isinstance(p, subprocess.Popen)
        assert type(p).__name__ == "Popen"
        assert repr(p) == "<Popen: returncode: None args: ['true']>"
    assert repr(p) == "<Popen: returncode: 0 args: ['true']>"


def test_pid_is_the_command_itself(sub: Face) -> None:
    """The pid is that of the program: its parent is this process, and /proc shows its file, arguments, environment."""
    pipe = subprocess.PIPE
    with sub.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0, env={"X": "1", "PATH": os.environ["PATH"]}) as p:
        p.stdin.write(b"x")
        p.stdout.read(1)  # it runs; before that the kernel may not have put its arguments in place
        seen = psutil.Process(p.pid)
        assert seen.ppid() == os.getpid()
        assert seen.exe() == os.path.realpath("/bin/cat")
        assert seen.cmdline() == ["cat"]
        assert seen.environ()["X"] == "1"
        assert [child.pid for child in psutil.Process().children()] == [p.pid]


CAP_SYS_RESOURCE = 24


def test_controls_by_pid(sub: Face) -> None:
    """Priority, affinity and limits set by pid are the command's."""
    import resource

    code = (
        "import os, resource, sys; sys.stdin.read(); print(os.nice(0), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    with sub.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        os.setpriority(os.PRIO_PROCESS, p.pid, 7)
        if nsbox.probe().capabilities >> CAP_SYS_RESOURCE & 1 or not sub.contained:  # for a process of other ids
            resource.prlimit(p.pid, resource.RLIMIT_NOFILE, (77, 77))
            expected = "7 77\n"
        else:
            expected = f"7 {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}\n"
        assert p.communicate("")[0] == expected


def test_wait4_gives_the_commands_rusage(sub: Face) -> None:
    """os.wait4() on the pid returns the program's own use of resources."""
    code = "x = bytearray(150 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nsum(range(3000000))"
    p = sub.Popen(python(code))
    pid, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    assert (pid, p.returncode) == (p.pid, 0)
    assert usage.ru_maxrss >= 150 << 10
    assert usage.ru_utime > 0


def test_pidfd_of_the_command(sub: Face) -> None:
    """A pidfd for the pid tells of the end, gives the status, and takes signals."""
    import select

    with sub.Popen(["cat"], stdin=subprocess.PIPE) as p:
        pidfd = os.pidfd_open(p.pid)
        assert not select.select([pidfd], [], [], 0)[0]
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        assert select.select([pidfd], [], [], 30)[0]
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert (info.si_pid, info.si_status) == (p.pid, signal.SIGTERM)
        os.close(pidfd)
    assert p.returncode == -signal.SIGTERM


def test_psutil_popen(sub: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil.Popen, which wraps the class and waits by itself."""
    if sub.contained:
        monkeypatch.setattr(subprocess, "Popen", functools.partial(nsbox.Popen, policy=sub.policy))
    with psutil.Popen(["sh", "-c", "read x; exit 3"], stdin=subprocess.PIPE) as p:
        assert p.name() == "sh" or p.cmdline()[0] == "sh"
        p.stdin.close()
        assert p.wait(timeout=30) == 3
    assert p.returncode == 3


def test_reaped_by_somebody_else(sub: Face) -> None:
    """After a foreign waitpid() nothing hangs, and the status is 255: the standard library's 0 would be a success."""
    p = sub.Popen(["false"])
    os.waitpid(p.pid, 0)
    assert p.wait() == (255 if sub.contained else 0)
    assert p.poll() == p.returncode


def test_audit_event(sub: Face) -> None:
    """subprocess.Popen is audited once, with the rewritten arguments, before anything is started."""

    def watch() -> list[object]:
        seen: list[object] = []
        sys.addaudithook(
            lambda name, args: seen.append([repr(x) for x in args]) if name == "subprocess.Popen" else None
        )
        sub.run("exit 0", shell=True, cwd=".", env={"A": "1"})
        return seen

    assert in_fork(watch) == [["'/bin/sh'", "['/bin/sh', '-c', 'exit 0']", "'.'", "{'A': '1'}"]]


def test_audit_hook_can_refuse(sub: Face) -> None:
    """A hook that raises stops the start; no process is made."""

    def refuse() -> str:
        def hook(name: str, args: object) -> None:
            if name == "subprocess.Popen":
                raise PermissionError("no")

        sys.addaudithook(hook)
        try:
            sub.run(["true"])
        except PermissionError as error:
            with pytest.raises(ChildProcessError):
                os.waitpid(-1, 0x40000000)  # __WALL
            return str(error)
        return "started"

    assert in_fork(refuse) == "no"


def test_resource_warning(sub: Face) -> None:
    """A Popen that is dropped while its command runs warns; the command is reaped later."""
    read, write = os.pipe()
    p = sub.Popen(["cat"], stdin=read)
    os.close(read)
    pid = p.pid
    with pytest.warns(ResourceWarning, match=f"subprocess {pid} is still running"):
        del p
    os.close(write)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    while any(q.pid == pid for q in getattr(subprocess, "_active", None) or ()):
        sub.Popen(["true"]).wait()  # each constructor tries to reap those that were dropped
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def test_pickled_exceptions() -> None:
    """nsbox's names for the standard exceptions are the standard ones."""
    assert nsbox.CalledProcessError is subprocess.CalledProcessError
    assert nsbox.TimeoutExpired is subprocess.TimeoutExpired
    assert (nsbox.PIPE, nsbox.STDOUT, nsbox.DEVNULL) == (subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL)
