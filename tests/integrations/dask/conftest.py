"""A real cluster for each test: a scheduler, and workers that are processes of their own."""

from __future__ import annotations

import multiprocessing.resource_tracker
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # workers import dask_functions; they inherit the path
# What Dask keeps as long as this process lives is there before the first test.
multiprocessing.resource_tracker.ensure_running()
_OPTIONS: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., distributed.Client]]:
    """A function that starts a cluster and returns its client; both end with the test."""
    opened: list[Any] = []

    def start(**options: Any) -> distributed.Client:
        opened.append(distributed.LocalCluster(**{**_OPTIONS, **options}))
        opened.append(distributed.Client(opened[-1]))
        return opened[-1]

    with dask.config.set({"temporary-directory": str(tmp_path / "scratch")}):
        yield start
        for one in reversed(opened):
            one.close()
