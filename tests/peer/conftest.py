"""What the files here share: the program under test, instead of bubblewrap's bwrap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bwrap(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of our `bwrap`; of another, such as a real one, with NSBOX_PEER_BWRAP."""
    given = os.environ.get("NSBOX_PEER_BWRAP")
    if given:
        return given
    directory = tmp_path_factory.mktemp("bin")
    nsbox = Path(sys.executable).with_name("nsbox")
    subprocess.run([nsbox, "bwrap", "--install", directory], stdout=subprocess.DEVNULL, check=True)
    return str(directory / "bwrap")
