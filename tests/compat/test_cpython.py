"""CPython's own tests of subprocess: what passes with the standard library's Popen passes with nsbox's under Policy.host()."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("runner.py")

EXCEPTIONS = {
    "test_exception_errpipe_bad_data": "replaces subprocess's private fork_exec, and writes to its private pipe",
    "test_exception_errpipe_normal": "the same",
    "test__use_vfork": "looks at the arguments of subprocess's private fork_exec",
}
"""Besides runner.py's SKIPPED: tests that can't pass, none of them about anything that is documented."""

OPEN_AS_USER = {
    "test_group": "SetupError has the errno of a PermissionError, but isn't one",
    "test_preexec_fork_failure": "the same for BlockingIOError",
}
"""To be mended."""

has_tests = (
    importlib.util.find_spec("test") is not None and importlib.util.find_spec("test.test_subprocess") is not None
)

pytestmark = [
    pytest.mark.skipif(not has_tests, reason="this Python comes without its tests (Debian: libpython3.N-testsuite)"),
    pytest.mark.timeout(900),
]


def outcomes(face: str, directory: Path) -> dict[str, str]:
    results = directory / f"{face}.json"
    done = subprocess.run(
        [sys.executable, "-P", RUNNER, face, results],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # some tests signal their process group
        check=False,
    )
    assert results.exists(), f"the run with {face} didn't come to its end:\n{done.stdout[-5000:]}"
    found: dict[str, str] = json.loads(results.read_text())
    return found


def test_subprocess(tmp_path: Path) -> None:
    """Each test that passes with plain subprocess.Popen passes with nsbox.Popen, but for the few that mock its inside."""
    plain, ours = outcomes("plain", tmp_path), outcomes("host", tmp_path)
    passing = {name for name, outcome in plain.items() if outcome == "ok"}
    assert len(passing) > 200
    worse = sorted(name for name in passing if ours.get(name) != "ok")
    known = EXCEPTIONS if os.geteuid() == 0 else EXCEPTIONS | OPEN_AS_USER
    unexpected = [name for name in worse if name.rsplit(".", 1)[1] not in known]
    assert not unexpected, unexpected
    fixed = [name for name in EXCEPTIONS if not any(test.endswith(f".{name}") for test in worse)]
    assert not fixed, f"these pass now: {fixed}"
