"""A program on a host that has an internet of its own: see ../host.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nsbox_testing import needs

Client = Callable[..., list[str]]
# Variables that would have clients ask others, or trust others: proxies, registries, certificates.
_OWN = re.compile(r"(?i)_proxy$|^pip_|^npm_|^node_|ca_bundle$|^ssl_cert|^git_|^curl_|^pg[a-z]+$|^java_|^go[a-z]+$")
_HOST = Path(__file__).resolve().parents[1] / "host.py"


def client_in(directory: Path) -> Client:
    """Return what runs Python there, with a workspace in this directory, and returns the lines of its output."""
    for program in ("ip", "unshare"):
        needs.require(program)
    is_root = os.geteuid() == 0

    def run(code: str, *, timeout: int = 1000 if "RUN_IN_VM" in os.environ else 100) -> list[str]:
        directory.joinpath("ws").mkdir(exist_ok=True)
        own = [] if is_root else ["-Ur"]
        command = ["unshare", *own, "-nmpf", "--mount-proc", "--kill-child", sys.executable, "-P", "-S"]
        environment = {name: value for name, value in os.environ.items() if not _OWN.search(name)}
        done = subprocess.run(
            [*command, str(_HOST), str(directory)],
            input=code,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=environment | {"AS_USER": "" if is_root else "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run
