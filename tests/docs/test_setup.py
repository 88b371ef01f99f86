"""The set-up that the README names, where something is missing: it ends in one sentence that says what to do.

What it does where all is well is shown by .ci/readme, on bare machines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "cat", "dirname", "env", "grep", "mktemp", "rm", "sort", "tail", "tr", "uname")
OLD = 'case "$1" in --version) echo Python 3.10.13 ;; *) exit 1 ;; esac'
LOCKED = "echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)'; exit 100"
UNREACHABLE = "echo \"E: Failed to fetch InRelease  Temporary failure resolving 'a.example'\"; exit 100"

Setup = Callable[..., "list[str]"]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """Return a function that runs the set-up of a clone on a machine that has only some programs.

    A keyword in capitals is an environment variable. Any other is a program: its value is a script for sh, or True for
    the real program. The function returns the lines of standard error. It asserts that the set-up fails.
    """
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    (clone / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/setup", clone / ".ci")
    shutil.copy(ROOT / "pyproject.toml", clone)
    programs.mkdir()

    def run(*arguments: str, **having: str | bool) -> list[str]:
        environ = {"PATH": str(programs), "HOME": str(tmp_path), "TMPDIR": os.environ["TMPDIR"], "LC_ALL": "C.UTF-8"}
        environ |= {name: str(value) for name, value in having.items() if name.isupper()}
        for name in (*TOOLS, *having):
            what = having.get(name, True)
            if name.isupper():
                continue
            path = programs / name.replace("_", "-")
            if what is True:
                path.symlink_to(str(shutil.which(path.name)))
            else:
                path.write_text(f"#!/bin/sh\n{what}\n")
                path.chmod(0o755)
        command = [shutil.which("sh"), ".ci/setup", *arguments]
        done = subprocess.run(command, cwd=clone, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        print(done.stderr)
        assert done.returncode != 0
        assert "Traceback" not in done.stdout + done.stderr
        assert os.listdir(os.environ["TMPDIR"]) == []
        return done.stderr.splitlines()

    return run


def python() -> str:
    return f"exec '{getattr(sys, '_base_executable', sys.executable)}' \"$@\""


@pytest.mark.parametrize("arguments", [("--test",), ("--tests", "x"), ("",)])
def test_wrong_argument(setup: Setup, arguments: tuple[str, ...]) -> None:
    """Another argument gets the usage."""
    assert setup(*arguments) == ["usage: sh .ci/setup [--tests | --editable]"]


def test_old_python(setup: Setup) -> None:
    """A Python that is too old is named, with its version; nothing is installed instead of one that was asked for."""
    (line,) = setup(old=OLD, apt_get="exit 0", id="echo 0", PYTHON="old")
    assert line.startswith("setup: nsbox needs Python 3.11 or later, and ")
    assert line.endswith("/old is Python 3.10.13: install one, or name it with PYTHON=PATH")


def test_no_such_python(setup: Setup) -> None:
    """One that isn't there is none either."""
    (line,) = setup(PYTHON="nothing")
    assert line == "setup: nsbox needs Python 3.11 or later: install one, or name it with PYTHON=PATH"


def test_a_python_that_is_named_like_something_else(setup: Setup) -> None:
    """PYTHON may be any program's name: here one of the set-up's own functions."""
    (line,) = setup(fail=OLD, PYTHON="fail")
    assert line.startswith("setup: nsbox needs Python 3.11 or later")


def test_relative_python(setup: Setup) -> None:
    """PYTHON is relative to where the reader is."""
    (line,) = setup(PYTHON="./nothing")
    assert line.startswith("setup: nsbox needs Python 3.11 or later: ")


def test_no_compiler(setup: Setup) -> None:
    """CC names a compiler that there is."""
    (line,) = setup(python3=python(), CC="nothing -O2")
    assert line == "setup: there is no compiler nothing -O2: unset CC, or name another one"


def test_no_place_for_temporary_files(setup: Setup, tmp_path: Path) -> None:
    """TMPDIR is named if it is the trouble."""
    (line,) = setup(python3=python(), TMPDIR=str(tmp_path / "nothing"))
    assert line.startswith(f"setup: no temporary file can be made in {tmp_path}/nothing: set TMPDIR to ")


@pytest.mark.parametrize("kind", ["link", "directory", "file"])
def test_something_else_in_the_way(setup: Setup, tmp_path: Path, kind: str) -> None:
    """What is called .venv and isn't one is left alone, with what is in it."""
    venv, other = tmp_path / "clone/.venv", tmp_path / "other"
    other.mkdir()
    if kind == "link":
        venv.symlink_to(other)
    elif kind == "directory":
        other = venv
        venv.mkdir()
    if kind == "file":
        venv.touch()
    else:
        (other / "precious").touch()
    line = setup(python3=python(), cc="exit 0")[-1]
    assert line.startswith("setup: .venv is ") and line.endswith(" first")
    assert kind == "file" or (other / "precious").exists()


def test_no_sudo(setup: Setup) -> None:
    """A user who may not install anything reads what root has to run."""
    (line,) = setup(python3=python(), id="echo 1000", apt_get="exit 1")
    assert line == (
        "setup: this machine lacks gcc libc6-dev, and there is no sudo: "
        "have root run 'apt-get install gcc libc6-dev' first"
    )


def test_sudo_refuses(setup: Setup) -> None:
    """What sudo says is shown."""
    *said, line = setup(
        python3=python(), id="echo 1000", apt_get="exit 1", sudo="echo 'sudo: a password is required' >&2; exit 1"
    )
    assert set(said) == {"sudo: a password is required"}
    assert line.startswith("setup: this machine lacks gcc libc6-dev, and sudo refuses: have root run 'apt-get install ")


def test_no_apt(setup: Setup) -> None:
    """On another system it says what is missing."""
    (line,) = setup(python3=python())
    assert line == ("setup: this machine lacks gcc libc6-dev (Debian's names), and has no apt-get: install them first")


@pytest.mark.parametrize(
    ("apt", "sentence"),
    [
        (LOCKED, "setup: another program is installing packages: wait until it ends, then try again"),
        (UNREACHABLE, "setup: this machine lacks gcc libc6-dev, and apt-get can't reach the package archive: "),
        ("exit 100", "setup: apt-get can't install gcc libc6-dev: see above"),
        (f'case "$*" in *update) ;; *) {LOCKED} ;; esac', "setup: another program is installing packages: "),
        # apt-get is content with lists that it can't bring up to date
        (
            f'case "$*" in *update) {UNREACHABLE.replace("100", "0")} ;; *) exit 100 ;; esac',
            "setup: this machine lacks gcc ",
        ),
    ],
    ids=["locked", "unreachable", "broken", "locked later", "offline"],
)
def test_apt_fails(setup: Setup, apt: str, sentence: str) -> None:
    """It says why nothing can be installed, after apt-get's own words."""
    assert setup(python3=python(), id="echo 0", apt_get=apt)[-1].startswith(sentence)


def test_what_was_installed_does_not_help(setup: Setup) -> None:
    """Where apt-get was content and something is missing still, that is said."""
    line = setup(python3=python(), id="echo 0", apt_get="exit 0")[-1]
    assert "can't build nsbox: what Debian calls gcc libc6-dev is missing for it. Name another with PYTHON=PATH" in line


def test_no_index(setup: Setup) -> None:
    """Without a network pip's errors end in a sentence."""
    index = "http://127.0.0.1:9/simple"  # the port of "discard", where nothing listens
    options = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
    assert setup(python3=python(), cc="exit 0", **options)[-1] == (
        "setup: pip can't reach the package index: connect this machine, or tell pip of an index that it can reach"
    )


def test_no_space(setup: Setup) -> None:
    """A full disk is named."""
    venv = 'mkdir -p .venv/bin; printf "#!/bin/sh\\necho No space left on device; exit 1\\n" >.venv/bin/python; chmod +x .venv/bin/python'
    fake = f'case "$*" in *venv*clear*) {venv} ;; *) {python()} ;; esac'
    line = setup(python3=fake, cc="exit 0", mkdir=True, chmod=True)[-1]
    assert line == "setup: no space is left: free some, or set TMPDIR to a directory with a few hundred MB"
