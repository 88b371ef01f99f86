"""The snippets of docs/integrations/clusters.md, each with its real engine; and the judge on Dask."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fences
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/integrations/clusters.md").read_text()
pytestmark = pytest.mark.timeout(600)


def snippet(word: str) -> fences.Block:
    """Return the block of the page that has this word."""
    (found,) = [block for block in fences.blocks(PAGE) if block.language in ("python", "yaml") and word in block.code]
    return found


def run(command: list[str], place: Path, **env: str) -> str:
    """Run a program in a directory; return what it printed."""
    # Spawned workers find the environment's own programs.
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    new = {**os.environ, "PATH": path, "TMPDIR": str(place), **env}
    done = subprocess.run(command, cwd=place, env=new, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("word", ["import submitit", "import parsl"])
def test_program(workspace: Path, word: str) -> None:
    block = snippet(word)
    (workspace / "program.py").write_text(block.code)
    printed = run([sys.executable, "program.py"], workspace)
    assert block.expected is not None and fences.is_like(block.expected, printed), printed


def test_celery(workspace: Path) -> None:
    """Prefork workers have a sandbox each, made after the fork; records are JSON."""
    (workspace / "judge.py").write_text(snippet("from celery").code)
    for name in ("queue", "results"):
        (workspace / name).mkdir()
    env = {**os.environ, "TMPDIR": str(workspace)}
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "judge",
        "worker",
        "-c",
        "2",
        "--without-gossip",
        "--without-mingle",
    ]
    with open(workspace / "log", "wb") as log:
        worker = subprocess.Popen([*command, "--loglevel=warning"], cwd=workspace, env=env, stdout=log, stderr=log)
    try:
        driver = (
            "from judge import evaluate\n"
            "waiting = [evaluate.delay(code) for code in ('6 * 7', '1 / 0', 'import os; os.abort()')]\n"
            "found = [one.get(timeout=300) for one in waiting]\n"
            "print([(one['value'], one['status'], one['signal'], one['cause']) for one in found])\n"
        )
        printed = run([sys.executable, "-c", driver], workspace)
    finally:
        worker.terminate()
        worker.wait()
    assert printed == "[(42, 0, None, 'exit'), (None, 1, None, 'exit'), (None, None, 'SIGABRT', 'signal')]\n"


def test_kubernetes() -> None:
    """The YAML parses, and says what the table does."""
    job: dict[str, Any] = yaml.safe_load(snippet("kind: Job").code)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["spec"]["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert pod["hostUsers"] is False and container["securityContext"]["procMount"] == "Unmasked"
    for name in ("seccompProfile", "appArmorProfile"):
        assert pod["securityContext"][name] == {"type": "Unconfined"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_judge(workspace: Path) -> None:
    """The judge's demonstration has the same verdicts on Dask."""
    printed = run(
        [sys.executable, str(ROOT / "examples/judge.py"), "--dask"], workspace, DASK_TEMPORARY_DIRECTORY=str(workspace)
    )
    assert "is due" not in printed
    assert re.search(r"^kills the judge +WA ", printed, re.M)
    assert len(printed.splitlines()) == 32
