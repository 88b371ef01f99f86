"""CPython's own tests of subprocess and asyncio: what passes with the standard library's Popen passes with nsbox's.

With each Python that this machine has, from 3.11 on; after install() alone, and under two policies: host(), which
contains least, and workspace(), where only what containment itself forbids may fail.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nsbox

sys.path.insert(0, str(Path(__file__).parent.parent / "seatbelt/lib"))

from nsbox_seatbelt import pretend

RUNNER = Path(__file__).with_name("runner.py")
SUBPROCESS = "test.test_subprocess"
ASYNCIO = "test.test_asyncio.test_subprocess"

EXCEPTIONS = {
    "test_exception_errpipe_bad_data": "replaces subprocess's private fork_exec, and writes to its private pipe",
    "test_exception_errpipe_normal": "the same",
    "test__use_vfork": "looks at the arguments of subprocess's private fork_exec",
}
"""Besides runner.py's SKIPPED: tests that can't pass, none of them about anything that is documented."""

ASYNCIO_EXCEPTIONS = {
    "test_popen_error": "replaces subprocess.Popen, which nsbox.asyncio doesn't call",
    "test_popen_error_with_stdin_pipe": "the same",
    "test_create_subprocess_fails_with_inactive_watcher": "nsbox.asyncio needs no child watcher",
}
"""What fails when nsbox.asyncio's functions stand for asyncio's."""

_ONE_ID = "the sandbox has one user and one group, so that other groups can't be had"
CONTAINED = {
    "test_preexec": "preexec_fn sets a variable of its process, but the command's environment is built, not inherited",
    "test_extra_groups": _ONE_ID,
    "test_extra_groups_empty_list": _ONE_ID,  # to which it adds one
}
"""What fails in a workspace with no wishes but the directory, and is meant to."""

GRANTED = {"inherit_env": True, "ids": "auto"}
"""The wishes with which the tests of CONTAINED pass as well: nothing else is in their way."""

LENIENT = {"3.11": {"test_extra_groups"}}
"""Tests of CONTAINED that took an error for a pass in this series."""

QUESTION = """
import importlib.util, json, platform, sys
tests = importlib.util.find_spec("test") is not None and importlib.util.find_spec("test.test_subprocess") is not None
print(json.dumps([platform.python_implementation(), *sys.version_info[:2], platform.python_version(), sys.abiflags, tests]))
"""
"""What each interpreter is asked."""

pytestmark = pytest.mark.timeout(900)


# ---- interpreters


@dataclass(frozen=True)
class Interpreter:
    """A CPython from 3.11 on. running: the one at hand, or what its virtual environment was made from."""

    program: str
    series: str  # such as "3.12"
    name: str
    has_tests: bool
    running: bool


def ask(program: str, running: bool) -> Interpreter | None:
    """Return what there is to know about a program; None if it can't be run or isn't a CPython for us."""
    try:
        done = subprocess.run([program, "-c", QUESTION], capture_output=True, timeout=30, check=True)
        implementation, major, minor, version, flags, has_tests = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if implementation != "CPython" or (major, minor) < (3, 11):
        return None
    return Interpreter(program, f"{major}.{minor}", version + flags, has_tests, running)


def interpreters() -> list[Interpreter]:
    """List the interpreters of this machine, the running one first, each series once."""
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)  # the one below a venv
    patterns = ("/usr/bin/python3.*", "/usr/local/bin/python3.*", "~/.pyenv/versions/*/bin/python3")
    found = [path for pattern in patterns for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    programs = dict.fromkeys([own, *(os.path.realpath(path) for path in found if not path.endswith("-config"))])
    answers = [ask(program, program == own) for program in programs if os.access(program, os.X_OK)]
    series: dict[str, Interpreter] = {}
    for answer in answers:
        if answer is not None:
            series.setdefault(f"{answer.series}{'t' if answer.name.endswith('t') else ''}", answer)
    return list(series.values())


def install(interpreter: Interpreter, site: Path) -> None:
    """Put nsbox, and what it needs of cffi, where this interpreter can import it; skip if that can't be had.

    nsbox's extension is for all versions. cffi's is for one: that of another interpreter comes from the package index.
    """
    package = site / "nsbox"
    shutil.copytree(Path(nsbox.__file__).parent, package)
    extension, backend = importlib.util.find_spec("nsbox._nsbox"), importlib.util.find_spec("_cffi_backend")
    assert extension is not None and extension.origin is not None
    shutil.copy(extension.origin, package)  # an editable install has it elsewhere
    if interpreter.running:
        assert backend is not None and backend.origin is not None
        shutil.copy(backend.origin, site)
        return
    if interpreter.name.endswith("t"):
        pytest.skip("a free-threaded Python has no stable ABI")
    options = ["--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=10", "--no-deps"]
    options += [f"--target={site}", f"--python-version={interpreter.series}", "--only-binary=:all:"]
    pip = [sys.executable, "-m", "pip", "install", *options, "cffi>=2.1"]
    done = subprocess.run(pip, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs a wheel of cffi for Python {interpreter.series}, and a package index that has it")


# ---- runs


@dataclass(frozen=True)
class Bench:
    """Where the tests of one interpreter run."""

    interpreter: Interpreter
    directory: Path
    site: Path | None = None  # another one than the directory has

    def outcomes(
        self, suite: str, face: str, wishes: dict[str, Any] | None = None, only: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Run the tests, or only those with these names, and return the outcome of each."""
        name = f"{suite}-{face}-{len(only)}"
        workspace, results = self.directory / name, self.directory / f"{name}.json"
        workspace.mkdir()
        arguments = [
            suite,
            face,
            str(results),
            str(self.site or self.directory / "site"),
            json.dumps(wishes or {}),
            *only,
        ]
        done = subprocess.run(
            [self.interpreter.program, "-P", str(RUNNER), *arguments],
            cwd=workspace,
            env=os.environ | {"TMPDIR": str(workspace)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # some tests signal their process group
            check=False,
        )
        assert results.exists(), f"the run with {face} didn't come to its end:\n{done.stdout[-5000:]}"
        print(done.stdout)  # what failed how, where pytest shows it
        found: dict[str, str] = json.loads(results.read_text())
        return found

    @functools.lru_cache  # noqa: B019 - benches live as long as the tests
    def passing(self, suite: str) -> set[str]:
        """Return the names of the tests that pass with subprocess as it is."""
        return {name for name, outcome in self.outcomes(suite, "plain").items() if outcome == "ok"}

    def beside_plain(self, suite: str, face: str) -> tuple[set[str], dict[str, str]]:
        """Return what passes with subprocess as it is, and all outcomes with this face: most tests wait, so both run at once."""
        with ThreadPoolExecutor(1) as pool:
            passing = pool.submit(self.passing, suite)
            outcomes = self.outcomes(suite, face)
        return passing.result(), outcomes


THOROUGH = bool(int(os.environ.get("NSBOX_THOROUGH", "0")))


def spare_time(bench: Bench, *others: Interpreter) -> None:
    """Skip what would take too long with each interpreter of a machine that has many: all but the running one and these."""
    if not (bench.interpreter.running or bench.interpreter in others or THOROUGH):
        pytest.skip("with other interpreters than the running one and, for some tests, the newest by NSBOX_THOROUGH=1")


ALL = interpreters()
NEWEST = max((one for one in ALL if one.has_tests), key=lambda one: int(one.series.split(".")[1]), default=ALL[0])


@pytest.fixture(scope="session")
def benches() -> dict[Interpreter, Bench]:
    """Keep what was made for each interpreter: in random order pytest comes back to one often."""
    return {}


@pytest.fixture(scope="module", params=ALL, ids=lambda interpreter: interpreter.name)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, benches: dict[Interpreter, Bench]
) -> Bench:
    interpreter: Interpreter = request.param
    if interpreter in benches:
        return benches[interpreter]
    if not interpreter.has_tests:
        pytest.skip(f"needs CPython's tests of {interpreter.series} (Debian: libpython{interpreter.series}-testsuite)")
    directory = tmp_path_factory.mktemp("compat")
    install(interpreter, directory / "site")
    return benches.setdefault(interpreter, Bench(interpreter, directory))


def short(names: Iterable[str]) -> set[str]:
    return {name.rsplit(".", 1)[1] for name in names}


@pytest.mark.parametrize("face", ["host", "workspace"])
def test_subprocess(bench: Bench, face: str) -> None:
    """Each test that passes with plain subprocess.Popen passes with nsbox.Popen, except for those that are listed; and all that are listed fail."""
    spare_time(bench, *([NEWEST] if face == "host" else []))
    passing, ours = bench.beside_plain(SUBPROCESS, face)
    assert len(passing) > 200
    worse = {name for name in passing if ours.get(name) != "ok"}
    lenient = LENIENT.get(bench.interpreter.series, set())
    known = EXCEPTIONS.keys() | (CONTAINED.keys() - lenient if face == "workspace" else set())
    unexpected = short(worse) - known
    assert not unexpected, sorted(name for name in worse if name.rsplit(".", 1)[1] in unexpected)
    fixed = (short(passing) & known) - short(worse)
    assert not fixed, f"these pass now: {sorted(fixed)}"


@pytest.mark.parametrize(
    ("suite", "face"),
    [
        pytest.param(SUBPROCESS, "installed", id="installed"),
        *(pytest.param(ASYNCIO, face, id=f"asyncio-{face}") for face in ("host", "asyncio")),
    ],
)
def test_other_faces(bench: Bench, suite: str, face: str) -> None:
    """All of subprocess's pass when no policy is in force, and of asyncio's by nsbox.Popen; by nsbox.asyncio all but mocks."""
    spare_time(bench)
    passing, ours = bench.beside_plain(suite, face)
    assert len(passing) > 20
    worse = {name for name in passing if ours.get(name) != "ok"}
    known = ASYNCIO_EXCEPTIONS.keys() & short(passing) if face == "asyncio" else set()
    assert not short(worse) - known, sorted(worse)
    assert not known - short(worse), "these pass now"


@pytest.mark.as_root("an ordinary user's run takes as long, and tests less: tests of other users are skipped")
def test_with_the_core_for_macos(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As on macOS, with what confines a command there replaced by a stand-in, the same tests pass as on Linux."""
    if not bench.interpreter.running:
        pytest.skip("the C core for macOS is built for one interpreter")
    site = tmp_path_factory.mktemp("macos")
    pretend.site(pretend.build(tmp_path_factory), site)
    ours = Bench(bench.interpreter, site.parent, site).outcomes(SUBPROCESS, "macos")
    worse = {name for name in bench.passing(SUBPROCESS) if ours[name] == "failed"}  # some are for Linux, and skipped
    assert short(worse) == short(bench.passing(SUBPROCESS)) & EXCEPTIONS.keys(), sorted(worse)


def test_what_containment_forbids_can_be_granted(bench: Bench) -> None:
    """The tests that fail in a workspace pass there when the wish is made that each lacks."""
    spare_time(bench)
    names = short(bench.passing(SUBPROCESS)) & CONTAINED.keys()
    assert names
    outcomes = bench.outcomes(SUBPROCESS, "workspace", GRANTED, tuple(names))
    assert short(outcomes) == names
    assert set(outcomes.values()) == {"ok"}, outcomes
