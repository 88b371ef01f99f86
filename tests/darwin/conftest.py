"""What the tests that need a Mac share: they aren't collected elsewhere, and leave nothing behind, as all tests.

The helpers are a package of its own, in lib. Nothing here has been run by those who wrote it: they had no Mac. Each
test of an escape therefore has a control, which shows that what is refused works without a sandbox.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent / "lib"))

USER_TEMPORARY = 65537  # of confstr(3): where a command's directory for temporary files is made, whatever TMPDIR says
PATIENCE = 10.0  # seconds until a process that is about to end counts as left behind


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Elsewhere there is nothing to skip: what is tested isn't there."""
    return True if sys.platform != "darwin" and collection_path.name.startswith("test_") else None


def _temporary(temporary: str) -> set[str]:
    """Return what there is of temporary files, of tests and of commands; other processes' files aren't counted."""
    ours = f"nsbox-{os.getpid()}-"
    return {
        *os.listdir(temporary),
        *(name for name in os.listdir(os.confstr(USER_TEMPORARY) or temporary) if name.startswith(ours)),
    }


def _descriptors() -> int:
    return psutil.Process().num_fds()


def _watchers() -> list[psutil.Process]:
    """Return the processes that watch this one, for commands that are to end with it; they aren't its children."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[1:3] == ["watch", str(os.getpid())]:
                found.append(process)
        except psutil.Error:  # another user's, or gone
            continue
    return found


@pytest.fixture(autouse=True)
def leaves_nothing_behind(temporary: str) -> Iterator[None]:
    """No process, descriptor or temporary file is left. In the place of the fixture that looks into /proc."""
    gc.collect()
    fds, files = _descriptors(), _temporary(temporary)
    yield
    gc.collect()
    left = psutil.Process().children(recursive=True) + _watchers()
    alive = psutil.wait_procs(left, timeout=PATIENCE)[1]
    assert not alive, f"left behind: {alive}"
    assert _descriptors() == fds, "descriptors are left open, or were closed"
    assert _temporary(temporary) == files, "temporary files are left behind"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host, with the file `secret`, that no policy of these tests names."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("secret\n")
    return path


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """A second workspace, in which the control does what is refused in the first."""
    path = tmp_path / "twin"
    path.mkdir()
    return path
