"""Code that damages the process it runs in: there is a reply, or the line ends, and the end is told truly."""

from __future__ import annotations

import inspect
import os
import signal

import pytest
from nsbox_testing.guests import Branch, Interpreter

_DAMAGE = {
    "stdout": "import sys, io; sys.stdout = io.StringIO(); print('lost')",
    "no stdout": "import sys; del sys.stdout, sys.stderr, sys.stdin",
    "odd stdout": "import sys; sys.stdout = sys.stderr = 5",
    "raising stdout": "import sys\nclass S:\n  def flush(self): raise SystemExit(5)\nsys.stdout = sys.stderr = S()",
    "closed stdout": "import sys; sys.stdout.close(); sys.stderr.close()",
    "closed outputs": "import os; os.close(1); os.close(2); os.close(0)",
    "few descriptors": "import os; os.closerange(0, 400)",
    "no builtins": "import builtins; vars(builtins).clear()",
    "few builtins": "del __builtins__.len, __builtins__.print, __builtins__.isinstance, __builtins__.__import__",
    "other builtins": "import builtins\nf = setattr\nfor n in dir(builtins):\n  if n[0] != '_': f(builtins, n, None)",
    "no __builtins__": "del __builtins__",
    "namespace": "globals().clear()",
    "modules": "import sys; sys.modules.clear()",
    "no meta_path": "import sys; sys.meta_path.clear(); sys.path.clear()",
    "os": "import os\nfor n in dir(os):\n  if n[0] != '_': setattr(os, n, None)",
    "json": "import json, json.encoder\njson.dumps = json.encoder.JSONEncoder = json.encoder.c_make_encoder = None",
    "libraries": "import traceback, linecache, signal, socket, select, struct\n"
    "for m in (traceback, linecache, signal, socket, select, struct):\n  vars(m).clear()",
    "trace": "import sys\ndef t(*a): raise ValueError\nsys.settrace(t); sys.setprofile(t)",
    "slow trace": "import sys, threading\ndef t(*a): return t\nsys.settrace(t); threading.settrace(t)",
    "stack": "import sys; sys.setrecursionlimit(40)",
    "hooks": "import sys\nsys.excepthook = sys.displayhook = sys.unraisablehook = None",
    "exit hook": "import sys\nsys.exit = None; exit = None",
    "signals": "import signal\nfor n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE): signal.signal(n, signal.SIG_DFL)",
    "audit": "import sys\nsys.addaudithook(lambda *a: None)",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "gc": "import gc; gc.unfreeze(); gc.set_threshold(1); gc.collect();",
    "warnings": "import warnings; warnings.simplefilter('error')",
    "directory": "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "nice": "import os; os.nice(5); os.setsid() if os.getsid(0) != os.getpid() else None;",
    "frames": "import sys\nf = sys._getframe()\nwhile f: f.f_trace = 5 if 0 else None; f = f.f_back",
    "atexit": "import atexit\natexit.register(lambda: 1 / 0)",
    "finalizer": "class D:\n  def __del__(self): raise ValueError\nd = D(); del d",
    "a fork": "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)",
    "an exception in a fork": "import os\npid = os.fork()\nif pid == 0: 1 / 0\nos.waitpid(pid, 0)",
    "an exit of a fork": "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(3)\nassert os.waitpid(pid, 0)[1] == 3 << 8",
    "the end of a fork": "import os\npid = os.fork()\nif pid:\n  os.waitpid(pid, 0)\nelse:\n  os._exit(0)",
}


@pytest.mark.parametrize("name", _DAMAGE)
def test_damage(warm: Interpreter, name: str) -> None:
    """A reply comes, for a single run and in a kernel; the kernel computes on."""
    code = _DAMAGE[name]
    branch = warm.branch()
    reply = branch.run(code)
    if name == "trace":  # it traces the call that sets it
        assert reply["exception"] is None or reply["exception"]["lines"][0][0] == 3
    else:
        assert reply["exception"] is None, reply["exception"]
        assert branch.status() == 0
    assert branch.receive() is None
    kernel = warm.kernel()
    kernel.run(code)
    assert kernel.run("6 * 7")["value"] == 42
    assert kernel.run("x = [1, {'a': (2,)}]\nx")["value"] == [1, {"a": [2]}]
    error = kernel.run("nothing_of_this_name")["exception"]
    assert error["type"] == "NameError" and error["traceback"]


def test_builtins_stay_changed(kernel: Branch) -> None:
    """A kernel keeps what its code has made of builtins, though replies don't depend on it."""
    kernel.run("import builtins\nbuiltins.len = lambda x: -1\nbuiltins.answer = 42\ndel builtins.sum")
    assert kernel.run("len([]), answer, hasattr(builtins, 'sum')")["value"] == [-1, 42, False]


_ENDS = {
    "os._exit": ("import os; os._exit(3)", 3),
    "kill": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "abort": ("import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()", -signal.SIGABRT),
    "term": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "segfault": (
        "import ctypes, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)",
        -signal.SIGSEGV,
    ),
}


@pytest.mark.parametrize("name", _ENDS)
def test_sudden_ends(warm: Interpreter, name: str) -> None:
    """Where code ends its process, the line ends without a reply, and the status is the true one."""
    code, status = _ENDS[name]
    for branch in (warm.branch(), warm.kernel()):
        branch.begin(code)
        assert branch.receive() is None
        assert branch.status() == status


def test_stack_overflow(warm: Interpreter) -> None:
    """A stack that overflows in C ends the process by a signal, or is an exception; both are told."""
    branch = warm.branch()
    code = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.setrecursionlimit(1 << 30)
        class A:
            def __getattr__(self, name): return getattr(self, name + 'x')
        try:
            A().a
        except BaseException as e:
            del e
            raise RecursionError from None
    """
    branch.begin(inspect.cleandoc(code))
    reply = branch.receive()
    if reply is None:
        assert branch.status() == -signal.SIGSEGV
    else:
        assert reply["exception"]["type"] in ("RecursionError", "MemoryError")


def test_all_descriptors_closed(warm: Interpreter) -> None:
    """Without its line a branch can't reply; it ends as the code does, and a kernel ends."""
    code = "import os\nos.closerange(0, 100_000)"
    for branch, status in ((warm.branch(), 0), (warm.kernel(), 0)):
        branch.begin(code)
        assert branch.receive() is None
        assert branch.status() == status


def test_another_file_in_the_lines_place(warm: Interpreter) -> None:
    """The reply isn't written to what code has opened under the line's number."""
    code = inspect.cleandoc("""
        import os
        r, w = os.pipe()
        numbers = [int(n) for n in os.listdir("/proc/self/fd")]
        for n in numbers:
            if n > 100: os.dup2(w, n)
        os.set_blocking(r, False)
        import atexit
        @atexit.register
        def look():
            try: os.write(1, os.read(r, 100))
            except BlockingIOError: os.write(1, b"nothing")
    """)
    branch = warm.branch()
    branch.begin(code)
    assert branch.receive() is None
    assert branch.status() == 0
    assert branch.text() == "nothing"


def test_a_fork_never_talks(warm: Interpreter) -> None:
    """Of a process that forks, only itself replies; what its copies print is there, and their tracebacks."""
    code = "import os\nfor _ in range(3): pid = os.fork()\nif pid == 0: 1 / 0\nwhile True:\n  try: os.wait()\n  except ChildProcessError: break\nprint('one')"
    branch = warm.branch()
    assert branch.run(code)["exception"] is None
    assert branch.receive() is None
    assert branch.status() == 0
    assert branch.text().count("one") == 4 and branch.text().count("ZeroDivisionError") == 4


def test_a_daemon_doesnt_hold_the_line(warm: Interpreter) -> None:
    """A process that outlives the branch has no end of the line: the caller sees where it ends."""
    ours, theirs = os.pipe()
    branch = warm.branch(extra=[theirs], fds=[7])
    os.close(theirs)
    code = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(7, f"{os.getpid()}\\n".encode())
                time.sleep(1000)
            os._exit(0)
        os.wait()
    """
    assert branch.run(inspect.cleandoc(code))["exception"] is None
    assert branch.receive() is None
    assert branch.status() == 0
    daemon = os.pidfd_open(int(os.read(ours, 20)))
    signal.pidfd_send_signal(daemon, signal.SIGKILL)
    os.close(daemon)
    os.close(ours)


def test_a_fork_by_libc_never_talks(warm: Interpreter) -> None:
    """Also one that Python knows nothing of."""
    code = "import ctypes, os\npid = ctypes.CDLL(None).fork()\nif pid: os.waitpid(pid, 0)\n'value'"
    kernel = warm.kernel()
    assert kernel.run(code)["value"] == "value"
    assert kernel.run("6 * 7")["value"] == 42


def test_output_before_a_signal(warm: Interpreter) -> None:
    """What was printed before SIGTERM, by which a time limit ends code, is there, though nobody has flushed it."""
    ready = "import os, time\nprint('before')\nos.write(7, b'.')\nwhile True: pass"
    ours, theirs = os.pipe()
    branch = warm.branch(extra=[theirs], fds=[7])
    os.close(theirs)
    branch.begin(ready)
    assert os.read(ours, 1) == b"."
    os.close(ours)
    signal.pidfd_send_signal(branch.pidfd, signal.SIGTERM)
    assert branch.receive() is None
    assert branch.status() == -signal.SIGTERM
    assert branch.text() == "before\n"


def test_children_are_as_of_any_program(warm: Interpreter) -> None:
    """Processes that code starts have Python's signal handlers, or the system's; multiprocessing works."""
    code = inspect.cleandoc("""
        import multiprocessing, os, signal, subprocess, sys, time
        context = multiprocessing.get_context("fork")
        with context.Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
        child = context.Process(target=time.sleep, args=(1000,))
        child.start()
        child.terminate()
        child.join()
        print(child.exitcode)
        done = subprocess.run([sys.executable, "-c", "import signal; print(repr(signal.getsignal(signal.SIGTERM)).strip('<>: 0'))"])
        print(done.returncode)
    """)
    branch = warm.branch()
    reply = branch.run(code)
    assert reply["exception"] is None, reply["exception"]["traceback"]
    assert branch.status() == 0
    assert sorted(branch.text().split("\n")) == ["", "-15", "0", "Handlers.SIG_DFL", "[1, 2]"]


def test_long_output(warm: Interpreter) -> None:
    """Output isn't gathered in memory: it is written as it comes."""
    branch = warm.branch()
    assert branch.run("for _ in range(1000): print('x' * 10_000)")["exception"] is None
    assert branch.status() == 0
    assert len(branch.text()) == 10_001_000


def test_surrogates_are_printed(warm: Interpreter) -> None:
    """A name that isn't UTF-8 is printed as the bytes that it is; standard error takes any text."""
    branch = warm.branch()
    branch.run("import sys\nprint('\\udce9é')\nsys.stdout.flush()\nprint('\\ud800', file=sys.stderr)")
    assert branch.status() == 0
    assert branch.text() == "\udce9é\n\\ud800\n"
