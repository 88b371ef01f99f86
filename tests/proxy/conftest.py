"""macOS's proxy of network lists, built for this machine, on a host with an internet of its own: see host.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nsbox_testing import needs

ROOT = Path(__file__).resolve().parents[2]
Client = Callable[..., list[str]]


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the program: of NSBOX_CORE_BUILD, or of a new build."""
    given = os.environ.get("NSBOX_CORE_BUILD")
    if given and Path(given, "csrc/proxy/nsbox-proxy").exists():
        return str(Path(given, "csrc/proxy/nsbox-proxy"))
    meson, ninja = needs.builder()
    folder = str(tmp_path_factory.mktemp("proxy"))
    setup = [meson, "setup", folder, str(ROOT), "-Dcore_only=true", "-Dbuildtype=release"]
    for command in (setup, [meson, "compile", "-C", folder, "nsbox-proxy"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NINJA": ninja})
        assert done.returncode == 0, done.stdout + done.stderr
    return f"{folder}/csrc/proxy/nsbox-proxy"


@pytest.fixture
def client(tmp_path: Path, proxy: str) -> Client:
    """Run Python on a host that has an internet of its own; return the lines of its output."""
    for program in ("ip", "unshare"):
        needs.require(program)

    def run(code: str, *, timeout: int = 100) -> list[str]:
        own = [] if os.geteuid() == 0 else ["-Ur"]
        command = ["unshare", *own, "-nmpf", "--mount-proc", "--kill-child", sys.executable, "-P", "-S"]
        done = subprocess.run(
            [*command, str(Path(__file__).with_name("host.py")), str(tmp_path), proxy],
            input=code,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run
