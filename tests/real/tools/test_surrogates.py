"""Half of a surrogate pair, as a model's JSON can spell it: the error says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsbox import Policy, Sandbox


def test_in_commands_and_paths(policy: Policy) -> None:
    with Sandbox(policy) as box:
        with pytest.raises(ValueError, match=r"command has \\ud83d at character 5, half of a surrogate pair"):
            box.shell("echo \ud83d")
        with pytest.raises(ValueError, match=r"path has \\ud800 at character 0"):
            box.read("\ud800\udcff")


def test_names_that_are_not_utf8(policy: Policy, workspace: Path) -> None:
    """A surrogate that stands for a byte is none of these."""
    (workspace / "a\udcff").write_text("one\n")
    with Sandbox(policy) as box:
        assert box.shell("cat a\udcff").stdout == "one\n"
        assert box.read("a\udcff") == "one\n"
