"""What the files here share: how many examples, a probe program, a place for trees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from nsbox_testing import needs

sys.path.insert(0, str(Path(__file__).parent / "lib"))  # importlib mode doesn't

from nsbox_differential import EXAMPLES
from nsbox_differential.arena import Arena

from nsbox._machine import probe as machine_probe

# In CI the examples are the same in each run; elsewhere a failure prints how to reproduce it.
hypothesis.settings.register_profile(
    "differential",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", autouse=True)
def no_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No directory for the key and transactions, as other tests leave one: nsbox alone masks it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("no state")))
        machine_probe._known.clear()
        yield
    machine_probe._known.clear()


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of probe.c's program; static, so that it runs in a sandbox that has nothing else."""
    compiler = os.environ.get("CC") or needs.find("gcc") or needs.require("cc")
    program = tmp_path_factory.mktemp("probe") / "probe"
    source = Path(__file__).with_name("probe.c")
    subprocess.run([compiler, "-static", "-O1", "-Wall", "-Werror", "-o", program, source], check=True)
    return str(program)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, probe: str) -> Iterator[Arena]:
    """Two copies of the tree that sandboxes are given."""
    arena = Arena(str(tmp_path_factory.mktemp("arena")), probe)
    yield arena
    arena.close()
