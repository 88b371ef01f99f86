"""What the tests with a real Ray have in common."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Ray reads these when it is imported, and in the processes that it starts. A loaded machine needs long to start them.
ENV = {
    "RAY_AUTH_MODE": "disabled",  # otherwise a token is written to the home directory
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path, outside of what the test's own temporary directory is."""
    path = tempfile.mkdtemp(prefix="r", dir="/tmp")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture
def env(short: Path) -> dict[str, str]:
    """The environment of Ray's processes. Temporary directories are in `short`/tmp."""
    (short / "tmp").mkdir()
    return {**os.environ, **ENV, "TMPDIR": str(short / "tmp")}
