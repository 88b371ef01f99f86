"""The interpreter's end: objects that are finalized then wait, kill and close without a word about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = {
    "run": "import nsbox; p = nsbox.Popen(['sleep', '60'], stdout=nsbox.PIPE)",
    "over": "import nsbox; p = nsbox.Popen(['true']); p.communicate()",
    "not reaped": "import nsbox; p = nsbox.Popen(['true'], stdout=nsbox.PIPE); p.stdout.read()",
    "host": "import nsbox; p = nsbox.Popen(['sleep', '60'], policy=nsbox.Policy.host())",
    "nested": "import nsbox; p = nsbox.Popen(['sleep', '60'], policy=nsbox.Policy.workspace('.', nested=True))",
    "goes on": "import nsbox; p = nsbox.Popen(['sleep', '60'], kill_on_exit=False)",
    "sandbox": "import nsbox; box = nsbox.Sandbox(nsbox.Policy.workspace('.')); box.run(['true']); p = box.Popen(['sleep', '60'])",
    "session": "import nsbox; s = nsbox.Sandbox(nsbox.Policy.workspace('.')).session(); p = s.Popen(['sleep', '60'])",
    "limits": "import nsbox; p = nsbox.Popen(['sleep', '60'], policy=nsbox.Policy.workspace('.', limits=nsbox.Limits(cpu_seconds=9)))",
    "secrets": "import nsbox; box = nsbox.Sandbox(nsbox.Policy.workspace('.')); box.shell('true'); p = box.Popen(['sleep', '60'])",
}
KEPT = "import sys\n{start}\nkept = {{'p': p}}\n"
# An object of a library's, as GitPython's, that ends its command in the end, after all modules have been emptied.
HELD = """\
import os
{start}
class Held:
    def __init__(self, p): self.p = p
    def __del__(self, write=os.write, repr=repr, kill=9):
        try:
            for step in {steps!r}.split(): getattr(self.p, step)()
            write(1, repr(self.p.returncode).encode())
        except BaseException as error:
            write(2, repr(error).encode())
held = Held(p)
"""


def ended(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a module of that code, whose objects live until the interpreter ends."""
    (tmp_path / "mymod.py").write_text(code)
    return subprocess.run(
        [sys.executable, *options, "-c", "import mymod"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=40,
    )


@pytest.mark.parametrize("start", START)
def test_nothing_is_said(tmp_path: Path, start: str) -> None:
    """Whatever is alive when the interpreter ends."""
    done = ended(tmp_path, KEPT.format(start=START[start]))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize(
    ("steps", "status"),
    [("terminate wait", "-15"), ("kill wait poll", "-9"), ("kill communicate", "-9"), ("poll", "None")],
)
def test_what_is_asked_for(tmp_path: Path, start: str, steps: str, status: str) -> None:
    """Signals, waiting and reading from a __del__() of another object."""
    done = ended(tmp_path, HELD.format(start=START[start], steps=steps))
    expected = "0" if start in ("over", "not reaped") else status
    if (start, steps) == ("not reaped", "poll") and done.stdout == "None":  # it may be just ending
        expected = "None"
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


def test_time_limits_and_blocks(tmp_path: Path) -> None:
    """wait(timeout), with a TimeoutExpired; `with` around the object; terminate() twice."""
    code = HELD.format(start=START["run"], steps="x").replace(
        "for step in 'x'.split(): getattr(self.p, step)()",
        "\n            try: self.p.wait(0.05)\n            except Expired as error: write(1, b'expired ')\n"
        "            with self.p: self.p.terminate(); self.p.terminate()",
    )
    code = code.replace("kill=9", "Expired=__import__('subprocess').TimeoutExpired")
    done = ended(tmp_path, code)
    assert (done.stdout, done.stderr) == ("expired -15", "")


@pytest.mark.parametrize(
    "object_",
    [
        "nsbox.Sandbox(nsbox.Policy.workspace('.')).start()",
        "nsbox.Sandbox(nsbox.Policy.workspace('.')).session()",
        "nsbox.Sandbox(nsbox.Policy.workspace('.')).transaction(dir=os.path.abspath('../tx'))",
    ],
)
@pytest.mark.parametrize("end", ["", "self.p.close()", "self.p.__exit__(None, None, None)"])
def test_what_is_kept(tmp_path: Path, object_: str, end: str) -> None:
    """Sandboxes, sessions and transactions that nobody has closed, and those that are closed then."""
    if "transaction" in object_:
        end = end.replace("close", "discard")
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "tx").mkdir()
    code = HELD.format(start=f"import nsbox, os; p = {object_}", steps="x")
    code = code.replace("for step in 'x'.split(): getattr(self.p, step)()", end or "pass").replace(
        "self.p.returncode", "0"
    )
    done = ended(work, code)
    assert (done.stdout, done.stderr) == ("0", "")


def test_a_resource_warning(tmp_path: Path) -> None:
    """What the standard library warns of where warnings are shown, as it does: no traceback."""
    done = ended(tmp_path, KEPT.format(start=START["run"]), "-X", "dev")
    assert "Traceback" not in done.stderr
    assert "is still running" in done.stderr


@pytest.mark.parametrize("imported", ["", "import nsbox; nsbox.Popen"])
def test_first_use_at_the_end(tmp_path: Path, imported: str) -> None:
    """From atexit, and in a thread that goes on after the main one."""
    code = f"""
import atexit, threading, time
{imported}
def at_exit():
    import nsbox
    print(nsbox.run(["echo", "atexit"], capture_output=True, text=True).stdout, end="", flush=True)
def thread():
    threading.main_thread().join()
    import nsbox
    with nsbox.Sandbox(nsbox.Policy.workspace(".")) as box:
        for _ in range(3):
            print(box.run(["echo", "thread"], capture_output=True, text=True).stdout, end="", flush=True)
atexit.register(at_exit)
threading.Thread(target=thread).start()
"""
    done = ended(tmp_path, code)
    assert (done.stdout, done.stderr) == ("thread\n" * 3 + "atexit\n", "")


def test_a_forked_child(tmp_path: Path) -> None:
    """A forked copy that ends doesn't end the command, nor wait for it."""
    code = HELD.format(
        start="import nsbox; p = nsbox.Popen(['cat'], stdin=nsbox.PIPE, stdout=nsbox.PIPE)", steps="poll kill wait"
    )
    code += "pid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    print(p.communicate(b'alive')[0], flush=True)\n"
    done = ended(tmp_path, code)
    assert (done.stdout, done.stderr) == ("Noneb'alive'\n0", "")


def test_under_a_debugger(tmp_path: Path) -> None:
    """Imported and used with a trace function, and under pdb."""
    (tmp_path / "mymod.py").write_text("import nsbox\nprint(nsbox.run(['echo', 'x'], capture_output=True).stdout)\n")
    for options, answers in ((["-m", "trace", "-t", "--ignore-dir=/"], ""), (["-m", "pdb"], "continue\nquit\n")):
        done = subprocess.run(
            [sys.executable, *options, str(tmp_path / "mymod.py")],
            input=answers,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert "b'x\\n'" in done.stdout
        assert done.stderr == ""
