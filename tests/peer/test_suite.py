"""Bubblewrap's own tests with our bwrap: what passes with theirs passes with ours.

Their source isn't in this repository: `tests/peer/obtain DIR` gets it, NSBOX_PEER_SOURCE=DIR says where it is.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)

LIMIT = 120.0  # seconds for one script
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"  # first on PATH: their `python3` is one that is also there inside a sandbox

_FOLLOWED = "0.12 refuses a destination that is a symlink; ours follows it inside the new root, as all before 0.12 do"
DIFFERENCES = {
    "test_bind_to_symlink_dest_fails": _FOLLOWED,
    "test_bind_to_symlink_dest_fails_file": _FOLLOWED,
    "test_bind_fd_to_symlink_dest_fails": _FOLLOWED,
}
"""Checks that fail with ours, and are meant to."""
if os.geteuid() == 0 and not os.path.ismount("/dev/mqueue"):
    # Root of a user namespace can't mount the queues of the machine, only show them where they are mounted already.
    DIFFERENCES["test_mqueue"] = "in the ipc namespace of the machine"

EDITS = {
    # A fault is injected into the 39th prctl(2) of the program: a number that is theirs alone.
    "command -v strace": "command -v strace-is-not-for-us",
    # Temporary files go where they are found again; `mktemp` of theirs below /tmp is never removed.
    "/var/tmp/tap-test.": "{directory}/tap.",
    "/tmp/bwrap-test-": "/tmp/{name}.",
}
"""What is replaced in a copy of the scripts, and why."""


# ---- the suite


@dataclass(frozen=True)
class Suite:
    """A copy of their tests, made fit for a bwrap that is a Python program; and the bwrap that came with them."""

    directory: Path
    real: str | None

    def find(self, script: str) -> Path:
        """Return the path of a script; skip if there is none in this version."""
        path = self.directory / script
        if not path.exists():
            pytest.skip(f"this bubblewrap has no {script}")
        return path


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    given = os.environ.get("NSBOX_PEER_SOURCE", "")
    source, build = Path(given, "source", "tests"), Path(given, "build")
    if not (given and source.is_dir()):
        pytest.skip("needs bubblewrap's source in NSBOX_PEER_SOURCE (tests/peer/obtain gets it)")
    # Not below /tmp: many of their sandboxes have a /tmp of their own.
    directory = Path(tempfile.mkdtemp(prefix="nsbox-peer-", dir="/var/tmp"))
    try:
        for file in source.glob("*.[sp][hy]"):
            text = file.read_text()
            for old, new in EDITS.items():
                text = text.replace(old, new.format(directory=directory, name=directory.name))
            (directory / file.name).write_text(text)
        shutil.copy(build / "tests" / "try-syscall", directory)
        real = build / "bwrap"
        yield Suite(directory, str(real) if real.exists() else None)
    finally:
        shutil.rmtree(directory)
        for left in glob.glob(f"/tmp/{directory.name}.*"):
            os.unlink(left)


# ---- one run of a script


@dataclass
class Outcome:
    """What a script found out about a program."""

    status: int
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    log: str = ""


_TAP = re.compile(r"^(?P<bad>not )?ok\b *\d* *(- )?(?P<name>.*?) *(?P<skip># SKIP.*)?$")


def run(arguments: list[str | Path], program: str) -> Outcome:
    """Run a script with this program as its bwrap, to the end of all that it has started."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        script = subprocess.Popen(
            arguments,
            env=os.environ | {"BWRAP": program, "PATH": f"{SYSTEM}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        pidfd = os.pidfd_open(script.pid)
        ended = select.select([pidfd], [], [], LIMIT)[0]
        os.close(pidfd)
        os.killpg(script.pid, signal.SIGKILL)  # not reaped yet, so the group is its own: what it left in the background
        outcome = Outcome(script.wait())
        for file in (out, err):
            file.seek(0)
        for line in out:
            found = _TAP.match(line)
            if found:
                kind = outcome.failed if found["bad"] else outcome.skipped if found["skip"] else outcome.passed
                kind.append(found["name"] or found["skip"])
            elif line.startswith("#"):
                outcome.log += line  # what an `ok` or `not ok` of theirs says besides
        outcome.log += err.read() + ("" if ended else f"\nnot done after {LIMIT} s")
    return outcome


def check(suite: Suite, arguments: list[str | Path], ours: Outcome, known: frozenset[str] = frozenset()) -> None:
    """Assert that ours passes whatever theirs does. Theirs runs only where ours doesn't pass it all."""
    assert ours.passed, report(ours, [])
    complete = ours.status == 0 or bool(ours.failed)  # a shell script ends at what fails, and doesn't name it
    if complete and not {*ours.failed, *ours.skipped} - known:
        return
    if suite.real is None:
        assert complete and not set(ours.failed) - known, report(ours, ours.failed)
        return
    real = run(arguments, suite.real)
    assert real.passed, f"theirs passes nothing here:\n{real.log[-3000:]}"
    missing = [name for name in real.passed if name not in ours.passed and name not in known]
    assert not missing, report(ours, missing)


def report(ours: Outcome, missing: list[str]) -> str:
    lines = [f"status {ours.status}; {len(ours.passed)} checks pass, {len(ours.skipped)} are skipped. Not these:"]
    return "\n".join([*lines, *(f"  {name}" for name in missing), ours.log[-4000:]])


@functools.lru_cache
def python_with_seccomp() -> str:
    """Return a Python that can import libseccomp's module: Debian has it for its own alone."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import seccomp"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    pytest.skip("needs the Python module seccomp (Debian: python3-seccomp)")


# ---- tests


@pytest.mark.parametrize("script", ["test-run.sh", "test-specifying-userns.sh", "test-specifying-pidns.sh"])
def test_script(suite: Suite, bwrap: str, script: str) -> None:
    """Each check of a shell script that passes with their bwrap passes with ours; the first that fails ends the script."""
    path = suite.find(script)
    arguments: list[str | Path] = ["bash", path]
    check(suite, arguments, run(arguments, bwrap))


def test_seccomp(suite: Suite, bwrap: str) -> None:
    """Filters by descriptor do what theirs do: one, several, in which order, and none that is malformed."""
    path, python = suite.find("test-seccomp.py"), python_with_seccomp()
    names = re.findall(r"def (test_\w+)", path.read_text())
    assert names
    for name in names:
        ours = run([python, path, f"Test.{name}"], bwrap)
        assert ours.status == 0, f"{name}: {report(ours, ours.failed)}"
        assert "skipped=" not in ours.log, ours.log


def test_sandbox(suite: Suite, bwrap: str) -> None:
    """Each check of what a sandbox looks like passes, except for those that are listed; and all that are listed fail."""
    path = suite.find("test-sandbox.py")
    arguments: list[str | Path] = ["python3", path]
    ours = run(arguments, bwrap)
    check(suite, arguments, ours, frozenset(DIFFERENCES))
    if "NSBOX_PEER_BWRAP" not in os.environ:
        assert not DIFFERENCES.keys() & set(ours.passed), sorted(DIFFERENCES.keys() & set(ours.passed))
