"""The reader of Markdown beside this file is imported by its name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    """What nsbox.confined() in a document puts in the place of subprocess.Popen isn't there for the other tests."""
    popen = subprocess.Popen
    yield
    subprocess.Popen = popen  # type: ignore[misc]
