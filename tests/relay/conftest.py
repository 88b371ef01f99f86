"""A world to ask: see world.py. Each request makes namespaces of its own, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from nsbox_relay import CLIENT, Answer, Ask
from nsbox_testing import needs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def relay(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the program: of NSBOX_CORE_BUILD, or of a new build."""
    given = os.environ.get("NSBOX_CORE_BUILD")
    if given and Path(given, "csrc/nsbox-net").exists():
        return str(Path(given, "csrc/nsbox-net"))
    meson, ninja = needs.builder()
    folder = str(tmp_path_factory.mktemp("relay"))
    setup = [meson, "setup", folder, str(ROOT), "-Dcore_only=true", "-Dbuildtype=release", "-Dctests=true"]
    for command in (setup, [meson, "compile", "-C", folder, "nsbox-net"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NINJA": ninja})
        assert done.returncode == 0, done.stdout + done.stderr
    return f"{folder}/csrc/nsbox-net"


@pytest.fixture
def ask(relay: str) -> Ask:
    """Have a client run in a sandbox whose network is a list."""
    for program in ("ip", "unshare", "setpriv"):
        needs.require(program)

    def request(rules: list[tuple[object, ...]], client: str, **options: object) -> Answer:
        text = json.dumps({"rules": rules, "client": client, "prelude": CLIENT, **options})
        command = ["unshare", "-Urnmpf", "--mount-proc", "--kill-child", sys.executable]
        done = subprocess.run(
            [*command, str(Path(__file__).with_name("world.py")), relay],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=55,
        )
        assert done.stdout, done.stderr
        answer = Answer(**json.loads(done.stdout))
        assert answer.relay == 0 or answer.ready["value"], f"the relay ended with {answer.relay}: {done.stderr}"
        return answer

    return request
