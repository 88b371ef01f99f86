"""The warm interpreter: which one it is, how it starts, why it doesn't, and what its end does to the code in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from nsbox import AccessError, InterpreterError, Limits, Policy, Python, PythonResult, Sandbox

FAKE = "#!/bin/sh\n"


def script(path: Path, text: str) -> Path:
    """Make a program that stands for an interpreter."""
    path.write_text(FAKE + text)
    path.chmod(0o755)
    return path


@pytest.fixture
def programs(box: Sandbox, tmp_path: Path) -> Path:
    """A directory for programs: commands can read it, and can't write to it."""
    made = tmp_path / "programs"
    made.mkdir()
    box.update(box.policy.with_(read=[str(made)]))
    return made


def processes(py: Python) -> list[psutil.Process]:
    """Return the processes of the interpreter's sandbox: the first one, and the interpreter itself below it."""
    current = py._supply.current
    assert current is not None and current._process is not None
    first = psutil.Process(current._process.pid)
    found = [first]
    for one in first.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a branch has just ended
            if one.name() != "nsbox-init":
                found.append(one)
    return found


# ---- which one


def test_the_callers_own(py: Python) -> None:
    """Without a virtual environment, it is the one that runs the tests, with its packages."""
    assert not py.is_warm
    assert py.version == sys.version_info[:3]
    assert os.path.realpath(py.executable) == os.path.realpath(sys.executable)
    assert py.is_warm
    assert py.run("import sys; sys.prefix").value == sys.prefix
    assert py.run("import psutil; psutil.__name__").value == "psutil"
    assert repr(py) == f"<nsbox.Python {py.executable}>"


@pytest.mark.parametrize("name", [".venv", "venv"])
def test_the_projects_own(box: Sandbox, workspace: Path, name: str) -> None:
    """A virtual environment of the workspace is the project's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", workspace / name], check=True)
    packages = next((workspace / name / "lib").glob("python3*")) / "site-packages"
    (packages / "own.py").write_text("x = 5")
    py = box.python(imports=["own"])
    assert py.run("import sys; [own.x, sys.prefix]").value == [5, str(workspace / name)]


@pytest.mark.parametrize("python", ["python3", "/usr/bin/python3"])
def test_a_chosen_one(box: Sandbox, python: str) -> None:
    """By its path, or by a name in the sandbox's PATH."""
    py = box.python(python=python)
    assert py.run("6 * 7").value == 42
    assert py.executable.startswith("/")


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python", "outside"),
        ("no-such-python", "No such file"),
        ("./no-such", "doesn't exist"),
        ("/etc/passwd", "is no program"),
        ("/etc", "is no program"),
        ("/root/python", "outside"),
    ],
)
def test_one_that_isnt_there(box: Sandbox, python: str, words: str) -> None:
    """The error names it, and what would help."""
    with pytest.raises(InterpreterError, match=words) as caught:
        box.python(python=python).start()
    assert caught.value.stage == "start"
    assert python.rpartition("/")[2] in str(caught.value)
    assert "python=" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit 3", "status 3"),
        ("echo Unknown option: -I >&2; exit 2", "isn't Python 3.9 or later"),
        ("kill -9 $$", "signal 9"),
        ("echo hello; exit 0", "hello"),
        ("head -c 10000000 /dev/zero; exit 4", "status 4"),
    ],
)
def test_one_that_isnt_python(box: Sandbox, programs: Path, text: str, words: str) -> None:
    """What it has said, and how it has ended, are in the error."""
    with pytest.raises(InterpreterError, match=words):
        box.python(python=str(script(programs / "fake", text))).start()


def test_a_version_that_is_too_old(box: Sandbox, programs: Path) -> None:
    """It is told by its number; nothing of the program is tried in it."""
    text = f'shift 3; code=$1; shift\nexec {sys.executable} -I -c "import sys; sys.version_info, sys.version = (3, 8, 1, \'final\', 0), \'3.8.1 (main)\'\nexec(sys.argv.pop(1))" "$code" "$@"'
    with pytest.raises(InterpreterError, match=r"3\.8") as caught:
        box.python(python=str(script(programs / "old", text))).start()
    assert "3.9" in str(caught.value)


# ---- its start


def test_imports_and_setup(box: Sandbox) -> None:
    """What they define, all code has; each piece of code has its own copy."""
    py = box.python(
        imports=["json", "os.path"], setup="counter = [0]\ndef add(n):\n    counter[0] += n\n    return counter[0]"
    )
    assert py.run("json.dumps([os.path.sep, add(1)])").value == '["/", 1]'
    assert py.run("add(1)").value == 1


@pytest.mark.parametrize(
    ("wish", "stage", "what", "words"),
    [
        ({"imports": ["no_such_module"]}, "import", "no_such_module", "ModuleNotFoundError: No module named"),
        ({"setup": "x = 1\n1/0"}, "setup", "", "ZeroDivisionError"),
        ({"setup": "x ="}, "setup", "", "SyntaxError"),
        ({"setup": "import sys; sys.exit(3)"}, "setup", "", "SystemExit"),
        ({"setup": "raise ValueError('\\ud800\\x1b[0m')"}, "setup", "", "ValueError"),
    ],
)
def test_a_start_that_fails(box: Sandbox, wish: dict[str, object], stage: str, what: str, words: str) -> None:
    """The error says at which stage, with the last lines of the traceback."""
    with pytest.raises(InterpreterError, match=words) as caught:
        box.python(**wish).start()  # type: ignore[arg-type]
    error = caught.value
    assert (error.stage, what in error.what) == (stage, True)
    assert stage in str(error)
    assert "Traceback" in error.traceback or "SyntaxError" in error.traceback
    str(error).encode()
    assert "\x1b" not in str(error)


def test_threads_are_named(box: Sandbox) -> None:
    """A fork would lack them, and keep their locks."""
    setup = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), name='my-thread', daemon=True).start()"
    with pytest.raises(InterpreterError, match="my-thread") as caught:
        box.python(setup=setup).start()
    assert caught.value.stage == "threads"


def test_a_start_that_hangs(box: Sandbox) -> None:
    """It is ended at its time limit, which the error names; nothing of it is left."""
    py = box.python(setup="import time\ntime.sleep(1000)", imports=["json"], start_timeout=1)
    with pytest.raises(InterpreterError, match=r"start_timeout.*json") as caught:
        py.start()
    assert caught.value.stage == "timeout"
    assert not py.is_warm


@pytest.mark.parametrize(
    "setup",
    ["import os; os._exit(7)", "import os; os.kill(os.getpid(), 9)", "print('x' * 10_000_000)\nimport os; os._exit(7)"],
)
def test_a_start_that_dies(box: Sandbox, setup: str) -> None:
    """How it ended is told."""
    with pytest.raises(InterpreterError, match=r"status 7|signal 9|killed"):
        box.python(setup=setup).start()


def test_a_setup_that_changes_the_process(box: Sandbox, workspace: Path) -> None:
    """Directory, environment, signals, streams: code begins as it is told to."""
    (workspace / "sub").mkdir()
    setup = (
        "import os, signal, sys\nos.chdir('sub'); os.environ['X'] = '1'; os.umask(0o077)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('noise'); sys.stdout.write('more')"
    )
    py = box.python(setup=setup)
    result = py.run("import os; print('out')\n[os.getcwd(), 'X' in os.environ]")
    assert result.value == [str(workspace), False]
    assert result.stdout == "out\n"


def test_it_starts_again_after_a_failure(box: Sandbox, workspace: Path) -> None:
    """A failed start isn't remembered."""
    py = box.python(imports=["later"], setup="import sys")
    with pytest.raises(InterpreterError):
        py.run("1")
    (workspace / ".venv").mkdir()
    (workspace / ".venv").rmdir()
    py = box.python(setup="import sys; sys.path.insert(0, '.')\nimport later")
    with pytest.raises(InterpreterError, match="later"):
        py.run("1")
    (workspace / "later.py").write_text("x = 3")
    assert py.run("later.x").value == 3


# ---- its end


def test_it_is_made_again_when_it_was_killed(py: Python) -> None:
    """The next code runs in a new one."""
    assert py.run("1").value == 1
    first = py._supply.current
    assert first is not None
    processes(py)[1].kill()
    while not first.has_ended:
        time.sleep(0.01)
    for _ in range(20):
        assert py.run("1").value == 1
    assert py._supply.current is not first


def test_a_parked_branch_that_was_killed(py: Python) -> None:
    """Another one runs the code: it hadn't begun."""
    assert py.run("1").value == 1
    current = py._supply.current
    assert current is not None
    branch = current._parked[0]
    branch.start(current.fileno())
    branch.await_entered(current.fileno())  # what it says next is that it has ended
    os.kill(branch.pid, signal.SIGKILL)
    while not branch.ends_within(1):
        pass
    assert py.run("2").value == 2
    assert py._supply.current is current


def test_code_whose_interpreter_is_killed(py: Python) -> None:
    """Its record says that how it ended isn't known, and why. It isn't run again."""
    results: list[PythonResult] = []
    code = "print('on', flush=True)\nimport time\ntime.sleep(1000)"
    started = threading.Event()
    thread = threading.Thread(target=lambda: results.append(py.run(code, on_output=lambda _: started.set())))
    thread.start()
    assert started.wait(30)
    first, interpreter, *_ = processes(py)
    interpreter.kill()
    thread.join(30)
    (result,) = results
    assert (result.cause, result.returncode, result.stdout) == ("unknown", 255, "on\n")
    assert result.why[0].kind == "interpreter"
    assert "signal 9" in result.why[0].message
    assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
    assert py.run("1").value == 1


def test_a_new_policy_makes_a_new_one(box: Sandbox, py: Python, workspace: Path) -> None:
    """Code that starts after update() has the new policy; code that runs keeps the old one."""
    (workspace / "f").write_text("x")
    results: list[PythonResult] = []
    started = threading.Event()
    code = "import os, time\nprint('on', flush=True)\ntime.sleep(2)\nos.path.exists('f')"
    thread = threading.Thread(target=lambda: results.append(py.run(code, on_output=lambda _: started.set())))
    thread.start()
    assert started.wait(30)
    old = py._supply.current
    box.update(box.policy.with_(deny=[str(workspace / "f")]))
    result = py.run("open('f').read()")
    assert result.exception is not None
    thread.join(30)
    assert results[0].value is True
    assert old is not None and old._is_closed
    assert py._supply.current is not old


def test_a_missing_module_is_explained(py: Python) -> None:
    """The hint says which interpreter lacks it, and what would help."""
    result = py.run("import no_such_module_at_all")
    (hint,) = [hint for hint in result.why if hint.kind == "missing-module"]
    assert py.executable in hint.message
    assert "no_such_module_at_all" in hint.message


def test_a_refused_file_is_explained(py: Python) -> None:
    """Hints about paths are those of commands."""
    result = py.run("open('/usr/new', 'w')")
    assert result.exception is not None and result.exception.type in ("OSError", "PermissionError")
    assert any(hint.kind == "read-only" and "/usr/new" in hint.message for hint in result.why)
    result = py.run("import socket; socket.create_connection(('example.org', 80))")
    assert any(hint.kind == "network" for hint in result.why)
    with pytest.raises(AccessError):
        py.run("1", cwd="/proc/nothing")


def test_it_says_how_long_it_took(py: Python) -> None:
    """Making one takes longer than a branch; start() makes it before the first code."""
    began = time.monotonic()
    assert py.start() is py
    current = py._supply.current
    assert current is not None
    assert 0 < current.facts.seconds <= time.monotonic() - began
    assert current.facts.implementation == "cpython"


@pytest.mark.parametrize(
    ("limits", "named"), [({"memory": "8M"}, "limits.memory=8 MiB"), ({"open_files": 3}, "limits.open_files=3")]
)
def test_a_limit_that_is_too_low(limits: dict[str, Any], named: str, workspace: Path) -> None:
    """The error names the limit, and has the loader's own words; it doesn't blame the policy's paths."""
    policy = Policy.workspace(workspace, limits=Limits(**limits))
    with Sandbox(policy, stock=0) as box, pytest.raises(InterpreterError) as caught:
        box.python().run("1")
    assert f"a limit may have been reached: {named}" in str(caught.value)
    assert "shared object" in str(caught.value) and "can write to" not in str(caught.value)
