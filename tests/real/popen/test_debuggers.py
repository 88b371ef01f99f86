"""A caller under a debugger: nsbox works when it is imported and used in one, whose breakpoints and hooks stay.

Those of pdb, and of what debuggers are made of: sys.settrace, sys.setprofile, bdb, sys.monitoring, threading.settrace.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
import sys
import nsbox

def preexec():
    return None

def work(at):
    policy = nsbox.Policy.workspace(at)
    told = [nsbox.run(["echo", "run"], policy=policy, capture_output=True, text=True).stdout]
    told.append(nsbox.run(["echo", "preexec"], policy=policy, preexec_fn=preexec, capture_output=True, text=True).stdout)
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE, stdout=nsbox.PIPE, text=True) as process:
        told.append(process.communicate("popen\\n")[0])
    with nsbox.Sandbox(policy) as box:
        told.append(box.shell("echo shell").stdout)
        with box.session() as session:
            told.append(session.shell("echo session").stdout)
    return told

def main():
    told = work(sys.argv[1])
    print(*map(str.strip, told))

if __name__ == "__main__":
    main()
"""
TOLD = "run preexec popen shell session"
LINES = [number for number, text in enumerate(PROGRAM.splitlines(), 1) if "told.append" in text]

HOOKS = {
    "settrace": """
        import sys, threading
        seen = set()
        def hook(frame, event, arg):
            seen.add((frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno))
            frame.f_trace_opcodes = True
            return hook
        sys.settrace(hook); threading.settrace(hook)
        import program
        program.main()
        assert sys.gettrace() is hook
        sys.settrace(None)
    """,
    "setprofile": """
        import sys
        def hook(frame, event, arg): names.add(frame.f_code.co_name)
        names = set()
        sys.setprofile(hook)
        import program
        program.main()
        assert sys.getprofile() is hook
        sys.setprofile(None)
        assert {"work", "main"} <= names
        seen = {("program.py", line) for line in LINES}
    """,
    "bdb": """
        import bdb
        seen = set()
        class Debugger(bdb.Bdb):
            def user_line(self, frame):
                if self.break_here(frame):
                    seen.add(("program.py", frame.f_lineno))
                self.set_continue()
        debugger = Debugger()
        import program
        for line in LINES:
            assert debugger.set_break(program.__file__, line) is None
        debugger.runcall(program.main)
    """,
    "monitoring": """
        import sys
        seen = set()
        tool = sys.monitoring.DEBUGGER_ID
        sys.monitoring.use_tool_id(tool, "test")
        events = sys.monitoring.events
        add = lambda code, line: seen.add((code.co_filename.rpartition("/")[2], line))
        sys.monitoring.register_callback(tool, events.LINE, add)
        sys.monitoring.set_events(tool, events.LINE | events.PY_START | events.RAISE)
        import program
        program.main()
    """,
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "work").mkdir()
    return tmp_path / "program.py"


def run(program: Path, *words: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *words, str(program.parent / "work")],
        input=text,
        capture_output=True,
        text=True,
        cwd=program.parent,
        env={**os.environ, "PYTHONPATH": str(program.parent)},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks(hook: str, program: Path) -> None:
    """Import, run(), preexec_fn, Popen, a Sandbox and a session work; the caller's lines are seen, the hook stays."""
    if hook == "monitoring" and not hasattr(sys, "monitoring"):
        pytest.skip("Python 3.12 has sys.monitoring")
    code = f"LINES = {LINES}\n{textwrap.dedent(HOOKS[hook])}\n"
    code += 'assert {("program.py", line) for line in LINES} <= seen, seen\n'
    assert run(program, "-c", code) == f"{TOLD}\n"


def test_pdb(program: Path) -> None:
    """Breakpoints of pdb, before nsbox is imported: each is reached, once, and what it shows is right."""
    breaks = [f"b {line}" for line in LINES]
    steps = [text for _ in LINES for text in ("c", "p len(told)")]
    told = run(program, "-m", "pdb", str(program), text="\n".join([*breaks, *steps, "cl", "y", "c", "q", ""]))
    assert re.findall(r"^\(Pdb\) (\d+)$", told, re.MULTILINE) == [str(i + 1) for i in range(len(LINES))]
    assert TOLD in told
