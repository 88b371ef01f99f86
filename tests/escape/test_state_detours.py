"""A link on the way to nsbox's own directory, in which the key is, isn't for commands to replace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsbox._files import links

PLANT = """
import os, sys
way, state = sys.argv[1:]
os.rename(way, way + "-away")
os.makedirs(state)
for at in (state, os.path.dirname(state)): os.chmod(at, 0o700)
os.close(os.open(state + "/key", os.O_CREAT, 0o600)); open(state + "/key", "wb").write(bytes(32))
"""
UP = """
os.mkdir(os.path.dirname(way) + "/y/z"); os.symlink("y/z", way)
"""
FIRST = """
import nsbox, sys
from nsbox import Bind, Overlay, Policy, PolicyError, RoBind; from nsbox._transaction import journal as _journal; from nsbox._machine import probe as _probe; from nsbox._spawn import prepare as _spawn; from nsbox._homes import state as _state
home, ws, base, is_guarded, code, way, state = sys.argv[1:]
lower = ws + "-lower"
if is_guarded == "off": _spawn.check_detours = _spawn.check_overlays = lambda *_: None
_journal.key(_probe.probe().state)
policy = {
    "workspace": lambda: Policy.workspace(ws, write=[home]),
    "layers": lambda: Policy.layers(RoBind("/", "/"), Bind(home, home)),
    "overlay": lambda: Policy.layers(RoBind("/", "/"), Overlay((lower,), home, home, lower + "-work")),
    "other": lambda: Policy.workspace(ws),
    "read": lambda: Policy.workspace(ws, read=[home]),
}[base]()
try:
    done = nsbox.run([sys.executable, "-I", "-S", "-c", code, way, state], policy=policy, cwd="/", stderr=nsbox.DEVNULL)
    print("planted" if done.returncode == 0 else "failed")
except PolicyError as error: print("refused", error.field, way in str(error))
"""
SECOND = "from nsbox._transaction import journal as _journal; from nsbox._machine import probe as _probe; print(_journal.key(_probe.probe().state) == bytes(32))"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("home/dots/local", "home/x", "ws", "ws-lower", "ws-lower-work", "outside"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "home"


def python(home: Path, state: str, *args: str) -> str:
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": state}
    done = subprocess.run([sys.executable, "-I", "-c", *args], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def planted(home: Path, how: str, base: str, is_guarded: str = "on") -> tuple[str, bool]:
    """Return what came of the attempt, and whether the next process takes a command's key for the user's."""
    state, code, way = "", PLANT, home / ".local"
    at = way / "state/nsbox"
    if how == "in it":
        way.symlink_to("dots/local")
    elif how == "out of it":
        way.symlink_to("../outside")
    elif how == "by two":
        way.symlink_to("x/link/local")
        way = home / "x/link"
        way.symlink_to(home / "dots")
        at = way / "local/state/nsbox"
    else:  # x becomes a link to elsewhere, above which is another directory
        state, code, way, at = f"{home}/x/../dots", PLANT + UP, home / "x", home / "y/dots/nsbox"
    said = python(home, state, FIRST, str(home), str(home.parent / "ws"), base, is_guarded, code, str(way), str(at))
    return said.strip(), python(home, state, SECOND) == "True\n"


HOW = ["in it", "out of it", "by two", "up"]


@pytest.mark.parametrize("base", ["workspace", "layers", "overlay"])
@pytest.mark.parametrize("how", HOW)
def test_a_link_that_commands_could_replace(home: Path, how: str, base: str) -> None:
    """A policy that opens what the link is in is refused, and says which it is."""
    said, is_planted = planted(home, how, base)
    assert said.startswith("refused write" if base == "workspace" else "refused ops")
    assert said.endswith("True") or how == "by two"
    assert not is_planted


@pytest.mark.parametrize("base", ["workspace", "layers", "overlay"])
@pytest.mark.parametrize("how", HOW)
def test_control_a_link_that_commands_could_replace(home: Path, how: str, base: str) -> None:
    """The control: else the next process has the key of a command, and carries out what it has left."""
    assert planted(home, how, base, "off") == ("planted", True)


@pytest.mark.parametrize("base", ["other", "read"])
@pytest.mark.parametrize("how", HOW)
def test_a_link_out_of_reach(home: Path, how: str, base: str) -> None:
    """Where the link can't be replaced, it is nobody's business."""
    assert planted(home, how, base) == ("failed", False)


def test_the_remedy(home: Path) -> None:
    """The place itself, by its own name, has no link on its way; what is on it stays where it is."""
    (home / ".local").symlink_to("dots/local")
    state = str(home / "dots/local/state")
    at = [str(home / "dots/local"), f"{state}/nsbox"]
    said = python(home, state, FIRST, str(home), str(home.parent / "ws"), "workspace", "on", PLANT, *at)
    assert said == "failed\n"
    assert python(home, state, SECOND) == "False\n"


UNMADE = """
import nsbox, sys
from nsbox import Policy, PolicyError; from nsbox._homes import state as _state
home, ws, is_guarded, code = sys.argv[1:]
if is_guarded == "off": _state._may_make = lambda _: False
policy = Policy.workspace(ws, write=[home])
try: done = nsbox.run([sys.executable, "-I", "-S", "-c", code, home], policy=policy, stderr=nsbox.DEVNULL)
except PolicyError as error: print("refused")
else: print("planted" if done.returncode == 0 else "failed")
"""
CLEAR = """
import os, sys
way = sys.argv[1] + "/.local"
os.chmod(way, 0o700) if os.path.isdir(way) else os.unlink(way)
os.makedirs(way + "/state/nsbox"); open(way + "/state/nsbox/key", "wb").write(bytes(32))
"""


@pytest.mark.as_user("root may write everywhere")
@pytest.mark.parametrize(
    ("how", "is_guarded", "outcome"),
    [("read-only", "on", "refused"), ("read-only", "off", "planted"), ("a file", "on", "failed")],
)
def test_a_directory_that_cannot_be_made(home: Path, how: str, is_guarded: str, outcome: str) -> None:
    """It can't now, but a command can change what keeps it from being made; the control: if that doesn't count.

    A file in its place is bound onto itself, and stays.
    """
    if how == "a file":
        (home / ".local").write_text("")
    else:
        (home / ".local").mkdir(mode=0o500)
    assert python(home, "", UNMADE, str(home), str(home.parent / "ws"), is_guarded, CLEAR) == f"{outcome}\n"


def test_detours(tmp_path: Path) -> None:
    """They are what isn't on the way that a path really has; circles end."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "d").symlink_to("e")
    (tmp_path / "e").symlink_to("d")

    def found(path: str) -> list[str]:
        named = f"{tmp_path}/{path}"
        return [os.path.relpath(at, tmp_path) for at in links.detours(named, os.path.realpath(named))]

    assert found("a/b") == []
    assert found("c/b") == ["c"]
    assert found("a/b/../../c/b/new") == ["c"]
    assert found("c/../new") == ["c", "a"]
    assert {"d", "e"} & {*found("d/x")}
