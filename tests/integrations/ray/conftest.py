"""A real Ray on this machine: GCS, raylet and workers, each a process of its own."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read when Ray is imported, and by the processes that it starts. A loaded machine needs minutes to start them all.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",  # otherwise a token is written to the home directory
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: it has the paths of sockets
    ray.init(
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=place,
    )
    yield
    ray.shutdown()
    shutil.rmtree(place, ignore_errors=True)
