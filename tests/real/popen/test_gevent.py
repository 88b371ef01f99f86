"""gevent: after monkey.patch_all() commands are started and awaited, and the other greenlets go on meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from nsbox_testing import needs

pytestmark = needs.module("gevent")

HEAD = """
from gevent import monkey
monkey.patch_all()
import os, sys, time
import gevent
import gevent.subprocess
ticks = 0
def tick():
    global ticks
    while True:
        if os.path.exists("begun"):
            ticks += 1
        if ticks == 5:
            open("go", "w").close()
        gevent.sleep(0.005)
gevent.spawn(tick)
def went_on():
    global ticks
    assert ticks >= 5, ticks
    os.unlink("begun")
    os.unlink("go")
    ticks = 0
import nsbox
from nsbox import PIPE
WAIT = "touch begun; until [ -e go ]; do sleep 0.01; done"  # for ever, unless the other greenlets go on meanwhile
LINE = WAIT + "; echo x; exit 3"
"""


def run(tmp_path: Path, code: str, head: str = HEAD) -> str:
    (tmp_path / "main.py").write_text(head + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


WAYS = {
    "run": "assert nsbox.run(LINE, shell=True, stdout=PIPE).returncode == 3",
    "capture": "r = nsbox.run(LINE + ' ', shell=True, capture_output=True, text=True, input='y'); assert (r.stdout, r.stderr) == ('x\\n', '')",
    "output": "assert nsbox.check_output(WAIT + '; echo x', shell=True) == b'x\\n'",
    "wait": "p = nsbox.Popen(LINE, shell=True, stdout=PIPE); assert p.wait() == 3; assert p.stdout.read() == b'x\\n'; p.stdout.close()",
    "time limit": "p = nsbox.Popen(LINE, shell=True, stdout=PIPE); assert p.wait(timeout=5) == 3; p.stdout.close()",
    "reading": "p = nsbox.Popen(LINE, shell=True, stdout=PIPE, text=True); assert p.stdout.readline() == 'x\\n'; assert p.wait() == 3; p.stdout.close()",
    "text": "p = nsbox.Popen('read x; ' + WAIT + '; echo $x', shell=True, stdin=PIPE, stdout=PIPE, text=True, bufsize=1); p.stdin.write('w\\n'); assert p.stdout.read() == 'w\\n'; p.communicate()",
    "both": "p = nsbox.Popen('cat; ' + WAIT, shell=True, stdin=PIPE, stdout=PIPE); assert p.communicate(b'z' * 300000, timeout=9)[0] == b'z' * 300000",
    "host": "assert nsbox.run(LINE, shell=True, stdout=PIPE, policy=nsbox.Policy.host()).returncode == 3",
    "nested": "assert nsbox.run(LINE, shell=True, stdout=PIPE, policy=nsbox.Policy.workspace('.', nested=True)).returncode == 3",
    "rest": "assert nsbox.run('(' + WAIT + '; echo y) & exit 3', shell=True, stdout=PIPE, kill_on_exit=False).stdout == b'y\\n'",
    "sandbox": "box = nsbox.Sandbox(nsbox.Policy.workspace('.')); assert box.run(LINE, shell=True, stdout=PIPE).returncode == 3; box.close()",
    "tool": "box = nsbox.Sandbox(nsbox.Policy.workspace('.')); r = box.shell(LINE); assert (r.returncode, r.stdout) == (3, 'x\\n'), r; box.close()",
    "session": "s = nsbox.Sandbox(nsbox.Policy.workspace('.')).session(); r = s.shell(LINE); assert (r.returncode, r.stdout) == (3, 'x\\n'), r; s.close()",
    "session's run": "s = nsbox.Sandbox(nsbox.Policy.workspace('.')).session(); assert s.run(LINE, capture_output=True).stdout == b'x\\n'; s.close()",
}


@pytest.mark.parametrize("way", WAYS)
def test_others_go_on(tmp_path: Path, way: str) -> None:
    """Whatever waits for a command or its output, and what comes of it is right; also when gevent reaps all children."""
    code = f"""
        {WAYS[way]}
        went_on()
        gevent.subprocess.call(["true"])  # from here on the loop waits for all children
        {WAYS[way]}
        went_on()
        print("ok")
    """
    assert run(tmp_path, code) == "ok\n"


def test_many_at_once(tmp_path: Path) -> None:
    """Twenty greenlets with a command each take little longer than one, and each has its own status."""
    code = """
        def one(n):
            return nsbox.run(["sh", "-c", f"sleep 0.3; exit {n}"]).returncode
        began = time.monotonic()
        jobs = [gevent.spawn(one, n) for n in range(20)]
        gevent.joinall(jobs)
        assert [job.value for job in jobs] == list(range(20)), [job.value for job in jobs]
        assert time.monotonic() - began < 4
        print("ok")
    """
    assert run(tmp_path, code) == "ok\n"


def test_time_limits(tmp_path: Path) -> None:
    """subprocess's, the tools' and gevent's own."""
    code = """
        turns = []
        def turn():
            while True:
                turns.append(1)
                gevent.sleep(0.005)
        gevent.spawn(turn)
        for timeout in (lambda: nsbox.run(["sleep", "60"], timeout=0.1), lambda: nsbox.check_output(["sleep", "60"], timeout=0.1)):
            turns.clear()
            try:
                timeout()
            except nsbox.TimeoutExpired:
                assert turns
        with nsbox.Sandbox(nsbox.Policy.workspace(".")) as box:
            assert box.shell("sleep 60", timeout=0.1).timed_out
            try:
                with gevent.Timeout(0.1):
                    box.run(["sleep", "60"])
            except gevent.Timeout:
                print("ok")
            p = box.Popen(["sleep", "60"])
            gevent.spawn_later(0.1, p.kill)
            assert p.wait() == -9
    """
    assert run(tmp_path, code) == "ok\n"


def test_confined(tmp_path: Path) -> None:
    """In a block gevent's own Popen starts nothing uncontained, and nsbox's is contained."""
    code = """
        import subprocess
        with nsbox.confined(nsbox.Policy.workspace(".")):
            assert nsbox.run(["ls", "/root"], stderr=PIPE).returncode
            try:
                print(subprocess.call(["touch", "/tmp/nsbox-uncontained"]))
            except Exception as error:
                print(type(error).__name__)
    """
    assert run(tmp_path, code) in ("AccessError\n", "NsboxError\n", "PermissionError\n", "SubprocessError\n")
    assert not os.path.exists("/tmp/nsbox-uncontained")


@pytest.mark.parametrize("before", ["import nsbox", "import nsbox; nsbox.run(['true'])"])
def test_patched_late(tmp_path: Path, before: str) -> None:
    """nsbox is there, or in use, when gevent patches."""
    code = f"""
        {WAYS["capture"]}
        went_on()
        {WAYS["tool"]}
        went_on()
        print("ok")
    """
    assert run(tmp_path, code, f"{before}\n{HEAD}") == "ok\n"


def test_in_another_thread(tmp_path: Path) -> None:
    """Of gevent's pool of real threads, whose loop knows no children."""
    code = """
        pool = gevent.get_hub().threadpool
        assert pool.apply(lambda: nsbox.run(["sh", "-c", WAIT + "; exit 5"]).returncode) == 5
        went_on()
        print("ok")
    """
    assert run(tmp_path, code) == "ok\n"


def test_loaded_but_not_patched(tmp_path: Path) -> None:
    """Nothing changes: the streams are the standard library's."""
    code = """
        import gevent, io, nsbox
        p = nsbox.Popen(["echo", "x"], stdout=nsbox.PIPE)
        assert type(p.stdout) is io.BufferedReader
        print(p.communicate()[0])
    """
    assert run(tmp_path, code, "import gevent.monkey\n") == "b'x\\n'\n"
