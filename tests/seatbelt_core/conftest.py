"""A build of macOS's C core for this machine, with a stub instead of libsandbox: what these tests drive."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "lib"))
sys.path.insert(0, str(Path(__file__).parent.parent / "seatbelt" / "lib"))

from nsbox_seatbelt import pretend
from nsbox_seatbelt_core.running import Core


@pytest.fixture(scope="session")
def darwin_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that has the extension, the helper and the stub: NSBOX_DARWIN_BUILD's, or a new build's."""
    return pretend.build(tmp_path_factory) / "csrc/darwin"


@pytest.fixture
def core(darwin_build: Path, tmp_path: Path) -> Core:
    """Return the build, with a log of the stub that is this test's."""
    return Core(darwin_build, tmp_path / "stub.log")
