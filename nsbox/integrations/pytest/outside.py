"""Tests that run in sandboxes, as the pytest outside sees them: their reports come from a pytest inside."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Hint, NsboxError, Policy, Popen, hints
from nsbox.integrations.pytest import refusals
from nsbox.integrations.pytest.policy import policy_of

_SCOPES = ("test", "module")
_MOST_LINE = 64 << 20  # bytes of a message
_MOST_TEXT = 10_000  # characters of what a pytest that has ended printed
_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PY_COLORS")
_PROGRAM = Path(__file__).with_name("inside.py")


def begin(session: pytest.Session) -> None:
    """Contain the tests of a session that ask for it; raises UsageError if that isn't possible."""
    config = session.config
    if config.option.usepdb or getattr(config.option, "trace", False):
        raise pytest.UsageError("--pdb and --trace can't be used with tests in sandboxes: a sandbox has no terminal")
    scope = config.getini("nsbox_scope")
    if scope not in _SCOPES:
        raise pytest.UsageError(f"nsbox_scope is {scope!r}, must be one of {', '.join(_SCOPES)}")
    config.pluginmanager.register(Outside(session, scope), "nsbox-outside")


class Outside:
    """Runs contained tests, and reports what a pytest inside says about them."""

    def __init__(self, session: pytest.Session, scope: str) -> None:
        """Find out which tests ask for a sandbox, and under which policies; raises UsageError."""
        config = session.config
        self._policy, self._scope, self._config = policy_of(config), scope, config
        self._policies: dict[pytest.Item, Policy] = {}
        for item in session.items:
            mark = item.get_closest_marker("nsbox")
            if mark is not None and not mark.kwargs and not mark.args and "nsbox" in getattr(config, "workerinput", ()):
                continue  # it is in a sandbox: its worker's
            if mark is not None or config.option.nsbox:
                self._policies[item] = self._wished(item, mark)
        self._items = session.items
        self._child: Child | None = None
        self._is_audited = refusals.begin_audit(config)

    def _wished(self, item: pytest.Item, mark: pytest.Mark | None) -> Policy:
        if mark is None:
            return self._policy
        if mark.args:
            raise pytest.UsageError(f"{item.nodeid}: the mark nsbox has only named parameters: fields of nsbox.Policy")
        try:
            return self._policy.with_(**mark.kwargs)
        except (NsboxError, TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: the mark nsbox: {error}") from error

    def _group(self, item: pytest.Item) -> list[pytest.Item]:
        """Return the tests that share the sandbox of one: those that follow in its file, under the same policy."""
        if self._scope == "test" or hasattr(self._config, "workerinput"):  # a worker runs tests in any order
            return [item]
        start, found = self._items.index(item), []
        for one in self._items[start:]:
            if one.path != item.path or self._policies.get(one) != self._policies[item]:
                break
            found.append(one)
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Run a test in its sandbox; leave others to pytest."""
        if item not in self._policies:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        began = time.time()
        try:
            if self._child is None or not self._child.has(item):
                self._end()
                self._child = Child(self._config, self._group(item), self._policies[item])
            return self._child.reports(item)
        except (NsboxError, OSError) as error:  # this machine can't, or the policy's files aren't there
            self._end()
            return [failure(item, f"no sandbox: {error}", began, "setup")]
        except BaseException as error:
            self._end()
            if isinstance(error, pytest.fail.Exception):  # a time limit of the pytest outside
                return [failure(item, f"{error}\nThe sandbox was ended.", began)]
            raise

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def pytest_sessionfinish(self) -> None:
        """End what runs, after -x. A worker of pytest-xdist sends what was refused."""
        try:
            self._end()
        except NsboxError as error:  # no record of its end could be written
            pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)
        finally:
            if self._is_audited:
                nsbox.audit.close()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["nsbox"] = refusals.of(self._config).tests


def failure(item: pytest.Item, text: str, began: float, when: Any = "call") -> pytest.TestReport:
    """Return the report of a test about which the pytest inside has said nothing."""
    ended = time.time()
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={name: 1 for name in item.keywords},
        outcome="failed",
        longrepr=text,
        when=when,
        duration=ended - began,
        start=began,
        stop=ended,
    )


class Child:
    """A contained pytest.

    items: the tests that it runs.
    policy: what it may do.
    """

    def __init__(self, config: pytest.Config, items: list[pytest.Item], policy: Policy) -> None:
        self._config, self._policy = config, policy
        self._left = {item.nodeid: item for item in items}
        self._tests = [*self._left]
        self._refusals = refusals.of(config)
        self._said: dict[str, list[pytest.TestReport]] = {}
        self._problems: list[str] = []
        self._began = time.time()
        self._printed: Any = None
        given = {
            "wanted": list(self._left),
            "args": [os.fspath(arg) for arg in config.invocation_params.args],
            "path": sys.path,
            "directory": str(config.invocation_params.dir),
        }
        # With -s, tests print where this pytest does.
        if config.option.capture != "no":
            self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the child)
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        reader, writer = os.pipe()
        self._reader = os.fdopen(reader, "rb")
        try:
            self._process = Popen(
                [sys.executable, "-P", "-c", _PROGRAM.read_text("utf-8")],
                policy=policy.with_(env={**dict(policy.env), **variables}),
                stdin=subprocess.PIPE,
                stdout=self._printed,
                stderr=self._printed,
                cwd=str(config.invocation_params.dir),
                pass_fds=[writer],
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(writer)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({**given, "fd": writer}).encode())
            self._process.stdin.close()
        except BrokenPipeError:  # it has ended; what it printed says why
            pass
        except BaseException:
            self.close()
            raise

    def has(self, item: pytest.Item) -> bool:
        """Return whether it runs, or has run, a test that wasn't asked for yet."""
        return item.nodeid in self._left

    def reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Return a test's reports, once it is done."""
        began = time.time()
        while item.nodeid in self._left:
            line = self._reader.readline(_MOST_LINE)
            if not line:
                return self._lost(item, began)
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, LookupError, RecursionError) as error:
                self._problems.append(f"what the sandbox has sent isn't a report: {error}")
                self._process.kill()
                return self._lost(item, began)
        return self._said.pop(item.nodeid, [])

    def _take(self, message: dict[str, Any]) -> None:
        """Keep what a message says. The code inside can write anything at all there."""
        if "report" in message:
            report = self._report(message["report"])
            if report.nodeid in self._left:
                self._said.setdefault(report.nodeid, []).append(report)
        elif "finish" in message:
            self._left.pop(message["finish"], None)
        elif "warning" in message:
            self._warn(message)
        elif "uncollected" in message:
            self._problems.append(str(message["text"]))
        elif "problem" in message:
            self._problems.append(str(message["problem"]))

    def _report(self, data: dict[str, Any]) -> pytest.TestReport:
        if not isinstance(data, dict) or data.get("$report_type") != "TestReport":
            raise ValueError("it is no TestReport")
        if data.get("outcome") not in ("passed", "failed", "skipped"):
            raise ValueError("it has no outcome")
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        if not isinstance(report, pytest.TestReport):
            raise TypeError("it is no TestReport")
        said: Any = report  # JSON has no tuples
        if isinstance(said.longrepr, list):
            said.longrepr = tuple(said.longrepr)
        said.sections = [(str(title), str(text)) for title, text in said.sections]
        said.location = tuple(said.location)
        said.user_properties = [(str(name), value) for name, value in said.user_properties]
        if report.failed:
            self._explain(report, 1, report.longreprtext)
        return report

    def _warn(self, message: dict[str, Any]) -> None:
        name, text, file, line = message["warning"]
        kind = getattr(builtins, str(name), UserWarning)
        if not isinstance(kind, type) or not issubclass(kind, Warning):
            kind = UserWarning
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(str(text), kind, str(file), int(line)),
                "when": message["when"],
                "nodeid": str(message["of"]),
                "location": None,
            }
        )

    def _explain(self, report: pytest.TestReport, status: int, text: str, usage: Any = None) -> None:
        """Say in a report how the sandbox may have made its test fail, a line for each reason."""
        start = str(self._config.invocation_params.dir)
        found: tuple[Hint, ...] = hints(self._policy, status, "", text, cwd=start, usage=usage)
        if found:
            report.sections.append(("nsbox: why", "\n".join(hint.message for hint in found)))
        self._refusals.add_hints(found, report.nodeid, has_list=not isinstance(self._policy.network, str))

    def _lost(self, item: pytest.Item, began: float) -> list[pytest.TestReport]:
        """Return what there is of a test whose pytest has ended, and how that ended."""
        said = self._said.pop(item.nodeid, [])
        status = self._process.wait()
        printed = self._tail()
        parts = list(self._problems)
        if not parts and status < 0:
            parts.append(f"the sandbox was ended by signal {-status} in this test")
        elif not parts:
            parts.append(f"the sandbox ended with status {status} before this test was done")
        report = failure(item, "\n".join(parts), began, "call" if said else "setup")
        if printed:
            report.sections.append(("nsbox: output", printed))
        self._explain(report, status or 1, printed, self._process.sandbox.usage)
        self._left.clear()
        return [*said, report]

    def _tail(self) -> str:
        if self._printed is None:
            return ""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _MOST_TEXT))
        return str(self._printed.read().decode("utf-8", "replace")).strip()

    def close(self) -> None:
        """End it, with all that it has started."""
        try:
            with self._process:
                if self._process.poll() is None and self._left:
                    self._process.kill()
        finally:
            self._refusals.add_network(self._process.sandbox.network, self._tests)
            self._close_files()

    def _close_files(self) -> None:
        self._reader.close()
        if self._printed is not None:
            self._printed.close()
