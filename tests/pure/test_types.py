"""Types: what mypy and pyright say to uses that are right, and to each that is wrong; and what happens to those."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
import nsbox.asyncio
from nsbox._policy import policy

USES = Path(__file__).parent.parent / "typing"
WRONG = (USES / "wrong.py").read_text().splitlines()
BEGIN = WRONG.index("# here they begin") + 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mypy keeps what it knows of the modules that are imported."""
    return tmp_path_factory.mktemp("mypy")


def said(checker: str, name: str, cache: Path) -> tuple[int, str]:
    program = needs.require(checker)
    options = ["--strict", "--cache-dir", str(cache), "--python-executable", sys.executable]
    if checker == "pyright":
        options = ["--pythonpath", sys.executable]
    done = subprocess.run([program, *options, name], cwd=USES, capture_output=True, text=True, timeout=250)
    if checker == "pyright" and re.search("nodeenv|npm|ENOTFOUND|urlopen|getaddrinfo", done.stdout + done.stderr):
        pytest.skip(needs.reason("pyright", ", which gets its other half when it is first run"))
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_right(checker: str, cache: Path) -> None:
    """Nothing is said, and the types are those of typeshed."""
    status, text = said(checker, "right.py", cache)
    assert status == 0, text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_wrong(checker: str, cache: Path) -> None:
    """Each line is an error, and no other is."""
    _, text = said(checker, "wrong.py", cache)
    found = {int(n) for n in re.findall(r"wrong\.py:(\d+):(?:\d+ -)? error", text)}
    assert found == set(range(BEGIN + 1, len(WRONG) + 1)), text


@pytest.mark.parametrize("line", [line for line in WRONG[BEGIN:] if "=" in line and ": " not in line])
def test_when_they_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are errors when they run, too, before anything is started."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError)):  # a PolicyError is one
        answer = eval(line.partition(" = ")[2] or line, {"nsbox": nsbox, "policy": nsbox.Policy.workspace(".")})
        asyncio.run(answer)


def test_every_field_is_there() -> None:
    """The keywords that checkers know are the fields of Policy."""
    from nsbox._policy import keywords

    fields = set(policy._FIELDS) - {"links"}  # which policies find out
    assert set(keywords.Changes.__annotations__) == fields
    assert set(keywords.Wishes.__annotations__) == fields - {"base", "write", "read", "deny", "ops"}
    assert set(keywords.Layered.__annotations__) == fields - {
        "base",
        "write",
        "read",
        "deny",
        "ops",
        "unshare",
        "devices",
        "strict",
    }
