"""The reader of Markdown beside this file is imported by its name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsbox._core import orphans

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def put_right() -> Iterator[None]:
    """What a document does to the process isn't there for the other tests.

    confined() has replaced subprocess.Popen by a class of nsbox's; a sandbox with kill_on_exit=False that was
    killed is noticed when another one ends.
    """
    popen = subprocess.Popen
    yield
    subprocess.Popen = popen  # type: ignore[misc]
    while orphans.leftovers.pidfds:
        orphans.leftovers.sweep()
