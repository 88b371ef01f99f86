"""A plugin of pytest: tests, or workers of pytest-xdist, that run in sandboxes. It does nothing unless it is asked.

Every pytest of an environment that has nsbox loads this file. So it lies beside the package nsbox, which takes some
milliseconds to import, and imports nothing but pytest. nsbox is imported for the first test that has a mark, or by an
option.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

_MARK = "nsbox(**fields): run this test in a sandbox; fields of nsbox.Policy override those of the policy"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line and of the configuration file."""
    group = parser.getgroup("nsbox", "sandboxes (nsbox)")
    group.addoption(
        "--nsbox", action="store_true", help="run every test in a sandbox, not only those with the mark nsbox"
    )
    group.addoption("--nsbox-policy", metavar="FILE", help="the policy of these sandboxes; default: the ini option")
    group.addoption(
        "--nsbox-workers", metavar="N", type=int, help="run tests in N workers of pytest-xdist, each in a sandbox"
    )
    group.addoption("--nsbox-audit", metavar="FILE", help="append a JSON record of each sandbox to this file")
    parser.addini(
        "nsbox_policy", "a file with the policy for tests in sandboxes; default: the root directory is writable"
    )
    parser.addini("nsbox_section", "the table of that file, such as tool.nsbox")
    parser.addini("nsbox_audit", "a file that gets a JSON record of each sandbox")
    parser.addini("nsbox_scope", "how many tests share a sandbox: test (one, the default) or module", default="test")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let pytest-xdist start its workers in sandboxes, if that is asked for."""
    if config.option.nsbox_workers is not None:
        from nsbox.integrations.pytest.workers import begin

        begin(config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", _MARK)
    if "nsbox" in getattr(config, "workerinput", ()):
        import tempfile

        # The directory outside isn't there: the sandbox has a /tmp of its own. Where the policy shows something below
        # pytest's usual place in it, directories there are read-only.
        config.option.basetemp = f"{tempfile.mkdtemp(prefix='pytest-')}/tests"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Contain the test, if that is asked for."""
    config = session.config
    if config.option.collectonly or getattr(config.option, "nsbox_inside", False):
        return
    if config.option.nsbox or any(item.get_closest_marker("nsbox") is not None for item in session.items):
        from nsbox.integrations.pytest.outside import begin

        begin(session)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what was refused to tests of a worker of pytest-xdist."""
    if rows := getattr(node, "workeroutput", {}).get("nsbox"):
        from nsbox.integrations.pytest.refusals import of

        of(node.config).update(rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List what was refused to tests in sandboxes."""
    refusals = sys.modules.get("nsbox.integrations.pytest.refusals")
    if refusals is not None and (lines := refusals.of(config).lines()):
        terminalreporter.section("nsbox: refused")
        for line in lines:
            terminalreporter.line(line)
