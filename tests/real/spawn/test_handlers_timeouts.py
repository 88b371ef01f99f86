"""Signal handlers that raise TimeoutError, which is an OSError too: nsbox never takes it for the kernel's answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

THOROUGH = bool(int(os.environ.get("NSBOX_THOROUGH", "0")))

# A profile function may raise wherever a function in C is called, as a handler may. The error takes the place of the
# call, at the first call of each line. The others are the same to whoever catches errors around them.
CODE = """
import collections, json, logging, os, sys, nsbox
logging.disable()
sys.unraisablehook = lambda *_: None
here = os.path.dirname(nsbox.__file__)
counts, aim, seen = collections.Counter(), None, False
step = int(sys.argv[1])

def hook(frame, event, called):
    global seen
    if event == "c_call" and frame.f_code.co_filename.startswith(here):
        name = getattr(called, "__name__", "")
        if name in ("release", "close"):
            return  # a handler runs before or after it: it never takes the place of an end
        place = frame.f_code.co_filename[len(here) + 1:], frame.f_code.co_name, frame.f_lineno, name
        counts[place] += 1
        if place == aim and counts[place] == 1:
            seen = True
            sys.setprofile(None)
            raise TimeoutError("now")

def attempt(place):
    global aim, seen
    counts.clear()
    aim, seen = place, False
    sys.setprofile(hook)
    try:
        use()
        return "went on" if seen else "not reached"
    except BaseException as error:
        return "raised" if (type(error), error.args) == (TimeoutError, ("now",)) else repr(error)
    finally:
        sys.setprofile(None)

use(), use()
attempt(None)
places = list(counts)
print(json.dumps([(place, attempt(place)) for place in places[::step]]))
"""
POLICY = "policy = nsbox.Policy.workspace('.', deny=['/etc/passwd', './*.x'], read=['..'])\n"
BOX = "with nsbox.Sandbox(nsbox.Policy.workspace('.'), stock=0) as box: "
CALLS = [
    ("shell", {"command": "echo x"}),
    ("write", {"path": "a/b.txt", "content": "one\n"}),
    ("read_lines", {"path": "a/b.txt"}),
    ("edit", {"path": "a/b.txt", "old": "one", "new": "two"}),
    ("grep", {"pattern": "two"}),
    ("glob", {"pattern": "**/*.txt"}),
]
USES = {
    "a command": (1, f"def use():\n    {POLICY}    nsbox.run(['true'], policy=policy, check=True)\n"),
    "a Sandbox": (3, f"def use():\n    {BOX}box.run(['true'], check=True)\n"),
    "tools": (
        9,
        f"""def use():
    {BOX}
        for name, given in {CALLS!r}:
            answer = nsbox.call_tool(box, name, given)
            assert "error" not in answer, answer
            assert answer.get("stdout", "x\\n") == "x\\n" and answer.get("paths", 1), answer
""",
    ),
    "code": (5, f"def use():\n    {BOX}assert box.python().run('1').value == 1\n"),
}
# Rooms whose answers decide what is shown, hidden and protected: nothing there goes on as if there were no error.
DECIDING = ("_lookup/", "_paths/", "_plan/", "_policy/", "_layout/", "_interpreter/environments/", "_tools/")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("use", USES)
def test_at_each_call(use: str, tmp_path: Path) -> None:
    """The caller gets the handler's own error, or the result; where something is decided, never the result."""
    step, code = USES[use]
    place = tmp_path / "workspace"
    place.mkdir()
    argv = [sys.executable, "-c", f"import nsbox\n{code}{CODE}", str(1 if THOROUGH else step)]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr
    found = [(tuple(where), what) for where, what in json.loads(done.stdout)]
    assert sum(what == "raised" for _, what in found) > 60
    assert not [one for one in found if one[1] not in ("raised", "went on", "not reached")]
    assert not [where for where, what in found if what == "went on" and where[0].startswith(DECIDING)]
