"""How code ends, and what it does to the program around it: each is bounded, and told as it was."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from nsbox import Limits, Policy, Python, Sandbox


@pytest.mark.vm
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT", "SIGUSR1"])
def test_signals(py: Python, name: str) -> None:
    """Code that a signal ends is told to have ended so, even by itself."""
    result = py.run(
        f"import os, signal\nprint('on', flush=True)\nos.kill(os.getpid(), signal.{name})\nwhile True: pass"
    )
    assert (result.signal, result.cause, result.returncode) == (name, "signal", -signal.Signals[name])
    assert (result.stdout, result.has_value) == ("on\n", False)
    assert result.why or name in ("SIGTERM", "SIGUSR1")


def test_sigint_is_an_exception(py: Python) -> None:
    """As in any interpreter."""
    result = py.run("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass")
    assert result.exception is not None and result.exception.type == "KeyboardInterrupt"
    assert result.returncode == -signal.SIGINT or result.returncode == 130


def test_a_full_stack(py: Python) -> None:
    """Recursion is an exception; where Python's bound is lifted, it is SIGSEGV, and the hint says why."""
    result = py.run("def f(): return f()\nf()")
    assert result.exception is not None and result.exception.type == "RecursionError"
    code = "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nclass A:\n def __repr__(s): return repr([s])\nf = lambda n: repr([A()])\nf(1)"
    result = py.run(code, timeout=50)
    if result.signal == "SIGSEGV":
        assert [hint.kind for hint in result.why].count("crash") >= 1
        assert any("stack" in hint.message for hint in result.why)
    assert py.run("1").value == 1


def test_a_memory_limit(policy: Policy) -> None:
    """The limit of addresses makes MemoryError; the hint names it."""
    with Sandbox(policy.with_(limits=Limits(memory="300M")), stock=0) as box:
        py = box.python()
        result = py.run("x = bytearray(1 << 30)")
        assert result.exception is not None and result.exception.type == "MemoryError"
        assert any(hint.kind == "limit" and "limits.memory" in hint.message for hint in result.why)
        assert py.run("len(bytearray(1 << 20))").value == 1 << 20


def test_processor_time(policy: Policy) -> None:
    """Each branch has the whole limit: what the interpreter and earlier branches have used doesn't count."""
    with Sandbox(policy.with_(limits=Limits(cpu_seconds=1)), stock=0) as box:
        py = box.python()
        for _ in range(3):
            assert (
                py.run("import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass").returncode
                == 0
            )
        result = py.run("while True: pass", timeout=40)
        assert (result.cause, result.signal) == ("limit", "SIGXCPU")
        assert result.why[0].kind == "limit"


@pytest.mark.parametrize(
    ("limits", "code", "error"),
    [
        (Limits(open_files=20), "fs = [open('/dev/null') for _ in range(30)]", "OSError"),
        (Limits(file_size="1M"), "open('/tmp/x', 'wb').write(b'x' * (2 << 20))", "OSError"),
    ],
)
def test_other_limits(policy: Policy, limits: Limits, code: str, error: str) -> None:
    """They hold in each branch."""
    with Sandbox(policy.with_(limits=limits), stock=0) as box:
        py = box.python()
        result = py.run(code)
        assert result.returncode != 0
        assert result.cause == "limit" or (result.exception is not None and result.exception.type == error)
        assert [hint.kind for hint in result.why] == ["limit"]


# ---- what it leaves behind


def test_nothing_stays(py: Python, workspace: Path) -> None:
    """Variables, modules, files in /tmp, processes: another branch finds none. The workspace is the policy's."""
    code = (
        "import builtins, os, sys, time\nx = 1; builtins.y = 2; sys.z = 3\nopen('/tmp/left', 'w').close()\n"
        "open('kept', 'w').close()\nos.environ['LEFT'] = '1'\nos.chdir('/')\nos.umask(0)\n"
        "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  time.sleep(1000)\n os._exit(0)"
    )
    assert py.run(code).returncode == 0
    look = (
        "import builtins, os, sys\n['x' in globals(), hasattr(builtins, 'y'), hasattr(sys, 'z'), os.listdir('/tmp'), "
        "'LEFT' in os.environ, len([p for p in os.listdir('/proc') if p.isdigit()]), os.listdir('.')]"
    )
    found = py.run(look).value
    assert found[:3] == [False] * 3
    assert "left" not in found[3]
    assert found[4:6] == [False, 2]
    assert "kept" in found[6] and (workspace / "kept").exists()


def test_branches_are_apart(py: Python) -> None:
    """Each has namespaces of its own, and random numbers of its own."""
    code = "import os, random, uuid\n[os.readlink('/proc/self/ns/' + n) for n in ('pid', 'mnt', 'ipc', 'net')], random.random(), str(uuid.uuid4())"
    seen = [py.run(code).value for _ in range(3)]
    assert len({names[2] for names in seen}) == len({names[1] for names in seen}) == 3


def test_no_privileges(py: Python) -> None:
    """No capabilities, no new ones, a filter; none of the masks can be lifted."""
    status = py.run("open('/proc/self/status').read()").value
    assert set(re.findall(r"Cap\w+:\s+(\w+)", status)) == {"0" * 16}
    assert re.search(r"NoNewPrivs:\s+1", status)
    assert re.search(r"Seccomp:\s+2", status)
    code = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n[libc.umount2(b'/etc/shadow', 2), libc.unshare(0x10000000), libc.unshare(0x20000)]"
    assert py.run(code).value == [-1, -1, -1]


# ---- what it does to the program around it


HOSTILE = {
    "no stdout": "import sys\nsys.stdout = sys.__stdout__ = None",
    "another stdout": "import sys\nclass O:\n def write(self, t): raise OSError\n flush = write\nsys.stdout = O()",
    "no builtins": "import builtins\nfor name in dir(builtins):\n if name != 'delattr': delattr(builtins, name)",
    "no descriptors": "import os\nos.closerange(0, 10000)",
    "no modules": "import sys\nsys.modules.clear()",
    "a tracer": "import sys\nsys.settrace(lambda *a: 1/0)",
    "a profiler": "import sys, threading\nsys.setprofile(lambda *a: None)",
    "an exit handler": "import atexit\natexit.register(lambda: 1/0)",
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(0.1,)).start()",
    "a daemon thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "a fork": "import os\nos.fork()",
    "frozen": "import gc\ngc.disable(); gc.set_threshold(1); gc.collect()",
    "no recursion": "import sys\nsys.setrecursionlimit(60)",
    "stopped": "import os, signal, threading\nthreading.Timer(0.1, lambda: 0).start()",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_accidents(py: Python, what: str) -> None:
    """The record says something true, in time, and the next code finds nothing of it."""
    result = py.run(HOSTILE[what], timeout=20)
    assert not result.timed_out
    assert result.cause in ("exit", "signal")
    assert py.run("print(sum([1, 2]))").stdout == "3\n"


VALUES = {
    "a raising repr": ("class C:\n def __repr__(self): raise ValueError('no')\nC()", None),
    "a repr that lies": ("class C:\n def __repr__(self): return 5\nC()", None),
    "a raising class": ("class C:\n @property\n def __class__(self): raise ValueError\nC()", None),
    "deep": ("x = []\nfor _ in range(1_000_000): x = [x]\nx", None),
    "itself": ("x = []\nx.append(x)\nx", None),
    "large": ("[0] * 10_000_000", None),
    "a str subclass": ("class S(str):\n def __str__(self): raise ValueError\nS('a')", "a"),
    "surrogates": ("['\\ud800']", ["\ud800"]),
    "bytes": ("b'\\xff'", None),
    "NaN": ("[float('nan')]", None),
    "a key that isn't text": ("{1: 2}", None),
}


@pytest.mark.parametrize("what", VALUES)
def test_values_that_are_hard_to_show(py: Python, what: str) -> None:
    """A repr, or what can be said of it; never an error of ours, nor much memory."""
    code, value = VALUES[what]
    result = py.run(code, timeout=50)
    assert (result.returncode, result.exception) == (0, None), result.stderr
    assert result.value == value
    assert result.repr is not None
    assert len(result.as_json()) < 4_000_000


@pytest.mark.parametrize(
    "code",
    [
        "class E(Exception):\n def __str__(self): raise ValueError\nraise E",
        "class E(Exception):\n def __repr__(self): raise ValueError\nraise E(1)",
        "class E(Exception):\n __module__ = 5\nraise E('x' * 10_000_000)",
        "e = ValueError('a')\ne.add_note('n\\ud800')\nraise e",
        "e = ValueError()\ne.__notes__ = 5\nraise e",
        "raise ExceptionGroup('many', [ValueError(i) for i in range(100)])",
        "try: 1/0\nexcept ZeroDivisionError as e: raise KeyError('\\ud800') from e",
        "class B(BaseException): pass\nraise B('b')",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "exec('1/0')",
        "import json\njson.loads('{')",
    ],
)
def test_exceptions_that_are_hard_to_show(py: Python, code: str) -> None:
    """An exception is told, whatever it is like."""
    result = py.run(code, timeout=50)
    assert result.exception is not None
    assert result.returncode not in (0, -9)
    assert len(result.as_json()) < 2_000_000


def test_forged_replies(py: Python) -> None:
    """Code that writes to its own line can make up its result, and nothing else: no error, no memory, no hang."""
    send = "import os, socket\nfd = max(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists('/proc/self/fd/' + n))\n"
    forged = '{"id":1,"done":true,"has_value":true,"value":"forged","repr":"x","type":"y"}'
    for data in (
        f"len(d).to_bytes(4, 'little') + d for d in [{forged.encode()!r}]",
        "b'\\xff' * 100 for _ in '1'",
        "b'\\x05\\x00\\x00\\x00{' for _ in '1'",
        "b'\\x00\\x00\\x00\\x00' for _ in '1'",
        "(30_000_000).to_bytes(4, 'little') + b'[' * 30_000_000 for _ in '1'",
        "(4).to_bytes(4, 'little') + b'null' for _ in range(10)",
    ):
        code = send + f"for data in ({data}):\n while data:\n  data = data[os.write(fd, data):]\nos._exit(0)"
        began = time.monotonic()
        result = py.run(code, timeout=40)
        assert not result.timed_out and time.monotonic() - began < 30
        assert result.value in (None, "forged")
        if result.value is None:
            assert result.returncode in (0, -9)
            assert {hint.kind for hint in result.why} <= {"reply"}, result.why
    assert py.run("1").value == 1


def test_a_flood_on_the_line(py: Python) -> None:
    """Frames without an end are stopped; the caller keeps none of them."""
    code = (
        "import os\nfd = max(int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists('/proc/self/fd/' + n))\n"
        'd = b\'{"id":1,"display":{"text/plain":"\' + b"x" * 1_000_000 + b\'"}}\'\nd = len(d).to_bytes(4, "little") + d\n'
        "while True:\n b = d\n while b: b = b[os.write(fd, b):]"
    )
    result = py.run(code, timeout=50)
    assert not result.timed_out
    assert result.signal == "SIGKILL"
    assert [hint.kind for hint in result.why] == ["reply"]
    assert "nsbox killed the code for that" in str(result.why[0])


def test_ten_gigabytes(py: Python) -> None:
    """Output without an end is bounded by the time limit; memory isn't needed for it."""
    result = py.run("import os\nb = b'x' * 65536\nwhile True: os.write(1, b)", timeout=1, grace=0)
    assert (result.cause, result.is_truncated) == ("timeout", True)
    assert len(result.stdout) < 101_000
    assert result.stdout_bytes > 1 << 20
