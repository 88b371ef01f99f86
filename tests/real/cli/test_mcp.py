"""`nsbox mcp` where its extra isn't installed, and what the other subcommands load of it: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(workspace: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=workspace, capture_output=True, text=True, input="")


def test_nothing_is_loaded(workspace: Path) -> None:
    """Neither `import nsbox` nor `nsbox --help` nor `nsbox mcp --help` loads the server or the SDK."""
    code = """if True:
        import contextlib, sys
        import nsbox
        from nsbox._cli import main
        for words in ["--help"], ["mcp", "--help"]:
            with contextlib.suppress(SystemExit):
                main(words)
        print([name for name in sys.modules if name.split(".")[0] in ("mcp", "mcp_types", "anyio") or "._mcp" in name])
    """
    done = run(workspace, code)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("missing", ["mcp", "mcp_types"])
def test_without_the_sdk(workspace: Path, missing: str) -> None:
    """One line says what to install; version 1 of the SDK lacks mcp_types."""
    code = f"import sys; sys.modules[{missing!r}] = None; from nsbox._cli import main; sys.exit(main(['mcp']))"
    done = run(workspace, code)
    assert done.returncode == 125 and done.stdout == ""
    assert (
        done.stderr == 'nsbox: `nsbox mcp` needs the official MCP SDK, version 2.3 or later: pip install "nsbox[mcp]"\n'
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--client-roots", "all"], "--client-roots: 'all' isn't one of narrow, allow, ignore"),
        (["--policy", "x.toml"], "--policy: x.toml: No such file or directory"),
        (["--grace", "-1"], "nsbox mcp: --grace: "),
        (["command"], "unexpected argument: command"),
    ],
)
def test_wrong_options(workspace: Path, words: list[str], text: str) -> None:
    """They are named, before anything of the protocol."""
    code = f"import sys; from nsbox._cli import main; sys.exit(main({['mcp', *words]!r}))"
    done = run(workspace, code)
    assert done.returncode == 2 and done.stdout == "" and text in done.stderr
