"""The warm interpreter: what it says of itself, and of imports, a set-up or threads that can't be."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.guests import Interpreter

Start = Callable[..., Interpreter]


def test_it_says_what_it_is(warm: Interpreter, python: str) -> None:
    """Version, implementation and paths, and how long it took."""
    hello = warm.hello
    assert hello is not None and hello["implementation"] == "cpython"
    assert os.path.samefile(hello["executable"], python)
    assert Path(hello["prefix"]).is_dir() and len(hello["version"]) == 3 and 0 < hello["seconds"] < 60


@pytest.mark.parametrize(
    ("config", "stage", "what", "kind", "said"),
    [
        (
            {"imports": ["json", "nothing_like_it"]},
            "import",
            "nothing_like_it",
            "ModuleNotFoundError",
            "No module named",
        ),
        ({"imports": ["json.nothing"]}, "import", "json.nothing", "ModuleNotFoundError", "json.nothing"),
        ({"imports": ["os; print(1)"]}, "import", "os; print(1)", "ValueError", "a module's name"),
        ({"imports": ["os\n"]}, "import", "os\n", "ValueError", "a module's name"),
        ({"imports": [""]}, "import", "", "ValueError", "a module's name"),
        ({"imports": ["class"]}, "import", "class", "SyntaxError", "invalid syntax"),
        ({"setup": "x = 1\n1 / 0"}, "setup", "setup", "ZeroDivisionError", "division by zero"),
        ({"setup": "x ="}, "setup", "setup", "SyntaxError", ""),
        ({"setup": "raise SystemExit(5)"}, "setup", "setup", "SystemExit", "5"),
        ({"setup": "raise KeyboardInterrupt"}, "setup", "setup", "KeyboardInterrupt", ""),
        ({"setup": "raise ValueError('\\ud800' * 1_000_000)"}, "setup", "setup", "ValueError", "\ud800"),
        ({"cwd": "/nowhere/at/all"}, "setup", "cwd", "FileNotFoundError", "/nowhere/at/all"),
    ],
)
def test_failures(start: Start, config: dict[str, Any], stage: str, what: str, kind: str, said: str) -> None:
    """An interpreter that can't be made says why, and exits with 1."""
    warm = start(**config)
    assert warm.hello is not None
    failed = warm.hello["failed"]
    assert (failed["stage"], failed["what"], failed["type"]) == (stage, what, kind)
    assert said in failed["message"]
    if stage == "setup" and what == "setup" and "x" in config["setup"]:
        assert '"<setup>", line ' in failed["traceback"]
    assert warm.process.wait(30) == 1


@pytest.mark.parametrize(
    ("setup", "name"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), name='pool 1', daemon=True).start()",
            "pool 1",
        ),
        ("import _thread, time\n_thread.start_new_thread(time.sleep, (1000,))", "1 of the module _thread's"),
    ],
)
def test_threads_are_told_by_name(start: Start, setup: str, name: str) -> None:
    """A thread beside the main one would be missing in each branch."""
    if "_thread.start" in setup:
        setup += "\ntime.sleep(0.2)"  # until it has a frame
    warm = start(setup=setup)
    assert warm.hello is not None
    failed = warm.hello["failed"]
    assert failed["stage"] == "threads" and name in failed["what"] and name in failed["message"]
    assert warm.process.wait(30) == 1


def test_threads_that_have_ended_dont_matter(start: Start) -> None:
    """Only those that run are counted."""
    warm = start(setup="import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()")
    assert warm.hello is not None and warm.hello["ready"]


def test_setup_that_exits(start: Start) -> None:
    """Where the set-up ends the process, the control socket ends."""
    warm = start(setup="import os; os._exit(7)")
    assert warm.hello is None
    assert warm.process.wait(30) == 7


def test_environment_and_directory(start: Start, workspace: Path) -> None:
    """They are the interpreter's own, and a branch's, which says nothing else."""
    warm = start(env={"A": "1"}, cwd=str(workspace), setup="import os\nseen = os.environ['A'], os.getcwd()")
    branch = warm.branch()
    assert branch.run("[seen, (os.environ['A'], os.getcwd())]")["value"] == [["1", str(workspace)]] * 2


def test_set_up_that_changes_things(start: Start) -> None:
    """What a set-up does to the process, branches start with; SIGINT ends none of it."""
    setup = "import os, sys, signal\nos.chdir('/')\nsys.settrace(lambda *a: None)\nsys.setrecursionlimit(500)"
    warm = start(setup=setup + "\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nimport builtins\nbuiltins.extra = 5")
    warm.process.send_signal(signal.SIGINT)
    kernel = warm.kernel()
    assert kernel.run("os.getcwd(), extra")["value"] == ["/", 5]
    kernel.begin("while True: pass")
    kernel.interrupt()
    assert kernel.end()["exception"]["type"] == "KeyboardInterrupt"


def test_set_up_files_stay_open(start: Start, workspace: Path) -> None:
    """What a set-up has opened is there in branches, which share its place in the file."""
    (workspace / "data").write_text("content")
    warm = start(setup=f"file = open({str(workspace / 'data')!r})")
    assert warm.branch().run("file.read()")["value"] == "content"


def test_messages_that_are_wrong(warm: Interpreter) -> None:
    """A message without its two descriptors is nothing; the interpreter goes on."""
    for content in (b"x", b"{}", json.dumps({"branch": 1}).encode(), b"\xff" * 1000):
        warm.control.send(content)
    assert warm.branch().run("6 * 7")["value"] == 42


@pytest.mark.parametrize("frame", [{"op": "nothing"}, {"op": 5}, {}, {"op": "sync", "id": [1]}])
def test_frames_that_are_wrong(warm: Interpreter, frame: dict[str, Any]) -> None:
    """A frame that nobody knows is nothing."""
    kernel = warm.kernel()
    kernel.send(frame)
    if frame.get("op") == "sync":
        assert kernel.receive() == {"id": [1], "synced": True}
    assert kernel.run("6 * 7")["value"] == 42


def test_branches_inherit_no_descriptors(warm: Interpreter) -> None:
    """A branch has its standard streams, its line, and nothing of the interpreter's or of other branches."""
    others = [warm.kernel() for _ in range(3)]
    kernel = warm.kernel()
    code = "import os\nsorted(os.readlink(f'/proc/self/fd/{n}').partition(':')[0] for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}'))"
    assert kernel.run(code)["value"] == ["/dev/null", "/memfd", "/memfd", "socket"]
    assert all(other.run("1")["value"] == 1 for other in others)


def test_many_branches_one_after_another(warm: Interpreter) -> None:
    """The interpreter keeps nothing of branches that have ended."""
    before = len(os.listdir(f"/proc/{warm.process.pid}/fd"))
    for number in range(50):
        branch = warm.branch()
        assert branch.run(f"{number}")["value"] == number
        assert branch.status() == 0
        warm.end_branches()
    deadline = time.monotonic() + 30  # it closes the last ones after it has told the end
    while (after := len(os.listdir(f"/proc/{warm.process.pid}/fd"))) != before:
        assert time.monotonic() < deadline, after
        time.sleep(0.01)


def test_what_is_rehearsed_changes_nothing(start: Callable[..., Interpreter]) -> None:
    """The interpreter's own paths and streams are what they were: PYTHONPATH counts in branches that have it."""
    setup = (
        "import os, sys\nstate = sys.stdout, list(sys.path), dict(os.environ), os.umask(18), os.getcwd(), os.umask(18)"
    )
    warm = start(env={"PATH": "/usr/bin", "PYTHONPATH": "/nowhere", "TZ": "Asia/Tokyo"}, setup=setup)
    same = "[sys.stdout is state[0], [path for path in sys.path if path] == state[1], dict(os.environ) == state[2], "
    same += "os.umask(18) == 18, os.getcwd() == state[4], '_' in globals()]"
    assert warm.branch().run(same)["value"] == [True, True, True, True, True, False]
    assert warm.branch(env={"PYTHONPATH": "/nowhere"}).run("'/nowhere' in sys.path")["value"] is True


@pytest.mark.parametrize("setup", [f"import os\nos.close({fd})" for fd in range(3)])
def test_a_set_up_that_closes_a_stream(start: Callable[..., Interpreter], setup: str) -> None:
    """What is rehearsed needs none of them."""
    warm = start(setup=setup)
    assert warm.hello is not None and warm.hello.get("ready") is True, warm.hello
    assert warm.branch().run("6 * 7")["value"] == 42


@pytest.mark.parametrize("most", [9, 16, 64])
def test_few_descriptors(start: Callable[..., Interpreter], most: int) -> None:
    """A branch that may have few begins all the same, and has no other descriptors than one that may have many."""
    setup = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))"
    code = "import os\nlen(os.listdir('/proc/self/fd'))"
    assert start(setup=setup).branch().run(code)["value"] == start().branch().run(code)["value"]
