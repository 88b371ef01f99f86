"""What the framework's page says is true: each block of code runs and prints what stands there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import fences
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/integrations" / f"{os.environ['NSBOX_FRAMEWORK'].replace('_', '-')}.md"


@pytest.mark.smoke
def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """All blocks of the page run, and print what it says."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):  # `jupyter run` writes there
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    assert fences.Runner(PAGE, lambda: "".join(capfd.readouterr())).run() > 0
    shutil.rmtree(Path(tempfile.gettempdir(), "dask-scratch-space"), ignore_errors=True)  # Dask keeps it
