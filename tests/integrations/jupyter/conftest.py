"""Fixtures: a place for kernels of its own, with a contained one and the ordinary one, and a notebook's directory."""

from __future__ import annotations

import glob
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_core.utils import ensure_event_loop
from nsbox_processes import below

from nsbox.integrations.jupyter import install

sys.path.insert(0, str(Path(__file__).parent / "lib"))


@pytest.fixture(autouse=True, scope="session")
def event_loop_of_jupyter() -> None:
    """jupyter_client's blocking calls keep an event loop for this process: it is there before a test looks."""
    ensure_event_loop()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, and no directory with sockets, is left."""
    pattern = os.path.join(tempfile.gettempdir(), "nsbox-kernel-*")
    before = {*glob.glob(pattern)}
    yield
    assert {*glob.glob(pattern)} <= before
    assert not below(lambda one: "ipykernel_launcher" in one.cmdline())


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """The directory of the notebooks; beside it lies a secret."""
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the kernels `contained` and `python3`, that Jupyter looks in; it writes nowhere else."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    assert Path(sys.prefix, "share/jupyter/kernels/python3").exists()  # ipykernel's own, the control
    install("contained", prefix=tmp_path, check=False)  # each test that starts it sees whether it can
    return tmp_path / "share/jupyter/kernels"
