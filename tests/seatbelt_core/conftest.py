"""A build of macOS's C core for this machine, with a stub in the place of libsandbox: what these tests drive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from nsbox_seatbelt_core.running import Core

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path) -> Path:
    """Build the core with meson, and return the folder of the build."""
    meson = shutil.which("meson")
    if meson is None:
        pytest.skip(
            "needs meson, or NSBOX_DARWIN_BUILD: a folder made by `meson setup -Dcore_only=true -Ddarwin_core=true`"
        )
    setup = [meson, "setup", str(folder), str(ROOT), "-Dcore_only=true", "-Ddarwin_core=true"]
    for command in (setup, [meson, "compile", "-C", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def darwin_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that has the extension, the helper and the stub: NSBOX_DARWIN_BUILD's, or a new build's."""
    given = os.environ.get("NSBOX_DARWIN_BUILD")
    return (Path(given) if given else build(tmp_path_factory.mktemp("darwin"))) / "csrc/darwin"


@pytest.fixture
def core(darwin_build: Path, tmp_path: Path) -> Core:
    """Return the build, with a log of the stub that is this test's."""
    return Core(darwin_build, tmp_path / "stub.log")
