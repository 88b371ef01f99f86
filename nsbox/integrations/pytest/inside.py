"""The pytest that runs in a sandbox: it runs the tests that it was given, and writes its reports to a pipe, as JSON.

It is executed as text, by `python -c`: pytest warns of plugins that are imported before it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from typing import Any

import pytest

# What the pytest outside does for all tests: choosing them, counting failures, files of results, workers.
_OPTIONS: dict[str, Any] = {
    **{"keyword": "", "markexpr": "", "deselect": None, "maxfail": 0, "lf": False, "failedfirst": False},
    **{"newfirst": False, "stepwise": False, "stepwise_skip": False, "xmlpath": None, "pastebin": None},
    **{"usepdb": False, "dist": "no", "tx": [], "numprocesses": None, "looponfail": False},
    **{"cacheclear": False, "cacheshow": None, "durations": None, "nsbox": False, "nsbox_workers": None},
    **{"log_file": None, "random_order": False, "random_order_bucket": "none"},
}


class Inside:
    """Runs the tests of these node ids, in this order."""

    def __init__(self, wanted: list[str], fd: int) -> None:
        """Write to this descriptor."""
        self._wanted = {name: position for position, name in enumerate(wanted)}
        self._fd = fd
        self._config: Any = None
        # Not pytest's usual place: where the policy shows something below that, its directories are read-only.
        self.place = tempfile.mkdtemp(prefix="pytest-")

    def say(self, **message: Any) -> None:
        """Write a message."""
        data = json.dumps(message, default=repr).encode("ascii") + b"\n"
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Leave alone what is up to the pytest outside."""
        self._config = config
        for name, value in _OPTIONS.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.option.nsbox_inside = True
        config.option.basetemp = os.path.join(self.place, "tests")
        config.args = list(
            dict.fromkeys(os.path.join(str(config.rootpath), one.partition("::")[0]) for one in self._wanted)
        )

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Print nothing."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            config.pluginmanager.unregister(reporter)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is wanted, in that order."""
        items[:] = sorted(
            (one for one in items if one.nodeid in self._wanted), key=lambda one: self._wanted[one.nodeid]
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Say which file couldn't be collected."""
        if report.failed:
            self.say(uncollected=report.nodeid, text=report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.say(report=data, of=report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Say that a test is done, once its warnings have been sent too."""
        result = yield
        self.say(finish=item.nodeid)
        return result

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        """Send a warning."""
        name, text = warning_message.category.__name__, str(warning_message.message)
        place = [warning_message.filename, warning_message.lineno]
        self.say(warning=[name, text, *place], when=when, of=nodeid, location=location)

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Say what went wrong in pytest itself."""
        self.say(problem=f"pytest inside of the sandbox failed:\n{excrepr}")


def main() -> None:
    """Run the tests that stdin describes."""
    given = json.load(sys.stdin)
    sys.path[:] = given["path"]
    plugin = Inside(given["wanted"], given["fd"])
    os.chdir(given["directory"])
    try:
        status = pytest.main(given["args"], plugins=[plugin])
    finally:
        shutil.rmtree(plugin.place, ignore_errors=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
