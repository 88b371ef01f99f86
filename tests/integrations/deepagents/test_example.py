"""The program of examples/integrations runs, and nothing of it is left."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/integrations/deep_agent.py"


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent makes the test pass; the fix is committed, and what it installed isn't."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert "+    return a + b" in shown and "committed: return a + b" in shown and "on the host: False" in shown
