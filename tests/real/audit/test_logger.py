"""The logger nsbox: silent by default except for errors, and each event at its level."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy


def test_debug(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the level debug, a command has a line for its start and one for its end, without its arguments."""
    policy = Policy.workspace(tmp_path)
    with caplog.at_level(logging.DEBUG, "nsbox"):
        nsbox.run(["echo", "--password", "hunter2"], policy=policy, stdout=nsbox.DEVNULL)
        with pytest.raises(FileNotFoundError):
            nsbox.run(["/no/such/program\x1b"], policy=policy)
    start, end, refused = (record.getMessage() for record in caplog.records if record.levelname == "DEBUG")
    assert "echo: backend namespaces, workspace" in start and "network none" in start
    assert end.endswith("ended, status 0")
    assert "not started" in refused and "FileNotFoundError" in refused
    assert "hunter2" not in caplog.text and "\x1b" not in caplog.text
    caplog.clear()
    nsbox.run(["true"], policy=policy)
    assert caplog.records == []


def test_info(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the level info, what is made besides commands has a line: a kept sandbox, an interpreter."""
    with caplog.at_level(logging.INFO, "nsbox"), nsbox.Sandbox(Policy.workspace(tmp_path)) as box:
        box.run(["true"])
        box.python().run("1")
    texts = [record.getMessage() for record in caplog.records]
    assert any("is kept for" in text for text in texts)
    assert any("is ready after" in text for text in texts)
    assert any("was closed" in text for text in texts)


def test_a_replaced_interpreter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An interpreter that has ended before its time, and is replaced, is a warning."""
    with nsbox.Sandbox(Policy.workspace(tmp_path)) as box:
        python = box.python()
        python.run("1")
        interpreter = python._supply.current
        assert interpreter is not None
        interpreter.give_up("a test has killed it")
        assert python.run("2").value == 2
    assert [record.levelname for record in caplog.records if "is replaced" in record.getMessage()] == ["WARNING"]


def said(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stderr


def test_silence(tmp_path: Path) -> None:
    """A program without a handler sees warnings on standard error only if nothing contains its commands, and errors."""
    shown = "from nsbox._logs import logger\nlogger.warning('one')\nlogger.error('two %s', 3)\n"
    assert said(shown, tmp_path) == "two 3\n"
    free = "import nsbox; nsbox.run(['true'], policy=nsbox.Policy.host(backend='passthrough', require='nothing'))\n"
    assert "without any containment" in said(free, tmp_path)
    kept = "import logging; logging.basicConfig(format='%(levelname)s %(message)s')\n"
    assert said(kept + shown, tmp_path) == "WARNING one\nERROR two 3\n"
    assert said("from nsbox._logs import logger; logger.show_warnings(); logger.warning('one')", tmp_path) == "one\n"
