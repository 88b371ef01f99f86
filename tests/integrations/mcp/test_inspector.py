"""The protocol's own inspector, in its form for scripts: a client in another language, by other people."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nsbox_mcp_clients import LONG, NSBOX

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"

pytestmark = [
    pytest.mark.skipif(shutil.which("npx") is None, reason="needs npx, of npm"),
    pytest.mark.timeout(600),  # the first run downloads it
]


def inspect(workspace: Path, *words: str) -> tuple[int, Any]:
    """Return the exit status of the inspector, and what it has printed."""
    command = ["npx", "--yes", INSPECTOR, "--cli", "--connect-timeout", f"{LONG * 1000}", *words]
    command += ["--", NSBOX, "mcp", "-w", str(workspace)]
    environ = {**os.environ, "npm_config_update_notifier": "false"}
    done = subprocess.run(command, cwd=workspace, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    text = done.stdout or done.stderr
    assert text.lstrip().startswith("{"), text
    return done.returncode, json.loads(text)


def test_tools(workspace: Path) -> None:
    """It lists them, calls them, and checks what comes back by their schemas."""
    status, listed = inspect(workspace, "--method", "tools/list")
    assert status == 0
    assert {"shell", "python", "edit"} <= {tool["name"] for tool in listed["tools"]}
    assert all(tool["outputSchema"]["type"] == "object" for tool in listed["tools"])
    call = ("--method", "tools/call", "--tool-name")
    status, done = inspect(workspace, *call, "shell", "--tool-arg", "command=echo hi; touch /usr/x")
    assert status == 0 and done["structuredContent"]["stdout"] == "hi\n"
    assert done["structuredContent"]["why"][0]["kind"] == "read-only"
    _, done = inspect(workspace, *call, "python", "--tool-arg", "code=6 * 7")
    assert done["structuredContent"]["value"] == 42
    status, done = inspect(workspace, *call, "read_lines", "--tool-arg", "path=/etc/shadow")
    assert "in no directory that the policy names" in str(done)
