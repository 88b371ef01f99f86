"""The program of examples/integrations runs, and nothing of it is left."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/integrations/langchain_agent.py"


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent finds the answer, and neither a key nor the network."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert "\n42\n" in shown and "[sandbox] the network is off" in shown and "/etc/shadow: Permission denied" in shown
    assert "PRIVATE KEY" not in shown and "answer.py" in shown
