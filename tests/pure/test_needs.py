"""What a run of the tests says about the programs that it lacked, and which programs count as there."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsbox_testing import needs


@pytest.fixture(autouse=True)
def no_memory():
    """Each test asks afresh; what it has found isn't kept for the others."""
    needs.find.cache_clear()
    yield
    needs.find.cache_clear()


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes a program the only one there is; each line of its script is sh's."""

    def make(name: str, *lines: str) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(("#!/bin/sh", *lines, "")))
        path.chmod(0o755)
        return path

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(needs.sysconfig, "get_path", lambda name: str(tmp_path / "beside"))
    return make


@pytest.mark.parametrize("version", ["1.6", "1.6.0", "1.10.2", "meson 1.7.0rc1", "2"])
def test_new_enough(only, version: str) -> None:
    """A program with the wished version or a later one is there; versions are compared by numbers, not letters."""
    path = only("meson", f"echo {version}")
    assert needs.find("meson") == needs.require("meson") == str(path)


@pytest.mark.parametrize("line", ["echo 1.0.1", "echo 1.5.99", "echo", "exit 1", "echo 1.7; exit 3", r"printf '\377'"])
def test_too_old_is_not_there(only, line: str) -> None:
    """One that is too old, or doesn't run, counts as not there; the reason names it, the version and the package."""
    only("meson", line)
    assert needs.find("meson") is None
    with pytest.raises(pytest.skip.Exception, match=r"^needs meson 1\.6 or later \(Debian: meson\)$"):
        needs.require("meson")


def test_an_interpreter_that_is_gone(only) -> None:
    """A script whose interpreter is missing doesn't run."""
    path = only("meson")
    path.write_text("#!/nonexistent\n")
    assert needs.find("meson") is None


def test_beside_the_interpreter(only, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a virtual environment that isn't active, its own programs are found; a too old one there hides none on PATH."""
    other = only("meson", "echo 1.7")
    (tmp_path / "beside").mkdir()
    beside = only("beside/meson", "echo 1.8")
    assert needs.find("meson") == str(beside)
    needs.find.cache_clear()
    only("beside/meson", "echo 0.1")
    assert needs.find("meson") == str(other)


def test_summary() -> None:
    """The paragraph counts tests by what they lacked, most first, and leaves out those that lack nothing."""
    reasons = [
        *["Skipped: needs tinyscheme (Debian: tinyscheme)"] * 2,
        *["needs node 20 or later (Debian: nodejs)"] * 3,
        "Skipped: could not import 'yaml': No module named 'yaml'",
        "as_root: only root may",
    ]
    assert needs.summary(reasons) == (
        "Tests skipped because this machine lacks something: 6. They need node 20 or later "
        "(Debian: nodejs): 3; tinyscheme (Debian: tinyscheme): 2; the Python module yaml: 1."
    )
    assert needs.summary(["as_root: only root may"]) == needs.summary([]) == ""
