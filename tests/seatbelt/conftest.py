"""What the tests of Seatbelt share is a package of its own, in lib; random policies are those of the pure tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "lib"))
sys.path.insert(0, str(Path(__file__).parent.parent / "pure" / "lib"))

from nsbox_seatbelt import pretend


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with nsbox and its C core for macOS, built for this machine; see pretend.py."""
    if sys.platform == "darwin":
        pytest.skip("on a Mac the real one is tested, by tests/darwin")
    build = pretend.build(tmp_path_factory)
    return pretend.site(build, tmp_path_factory.mktemp("site"))
