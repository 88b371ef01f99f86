"""Runs CPython's own tests of subprocess with another Popen in its place.

A program: runner.py SUITE FACE RESULTS SITE [WISHES [NAME...]].

SUITE: a module of tests, such as test.test_subprocess. FACE: "plain" leaves subprocess as it is; "installed" calls
nsbox.install(), with no policy in force; "host" and "workspace" replace subprocess.Popen by nsbox.Popen, under
Policy.host() or under Policy.workspace() of the current directory; "asyncio" does as "host", and puts nsbox.asyncio's
functions in the place of asyncio's; "macos" does as "host", with the C core for macOS. RESULTS: a file that becomes a JSON object, the
outcome of each test by its name. SITE: a directory to import nsbox from. WISHES: a JSON object, wishes for the policy.
NAME: only tests with one of these names. A test that takes longer than a minute ends the process with all tracebacks.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import os
import resource
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

SECONDS = 60
OPEN_FILES = 1024  # test_no_leaking is skipped where there may be more
SKIPPED = {
    "test_communicate_eintr": "the command signals os.getppid(): 0 in a pid namespace, so its whole process group",
}


def substitute(face: str, wishes: dict[str, Any], directory: str) -> None:
    """Replace subprocess.Popen by nsbox's class."""
    if face == "macos":
        sys.path.append(str(Path(__file__).parent.parent / "seatbelt/lib/nsbox_seatbelt"))  # alone
        from pretend import pretend

        pretend(directory)
    import nsbox

    if face == "installed":
        nsbox.install()
        return
    policy = nsbox.Policy.workspace(os.getcwd(), **wishes) if face == "workspace" else nsbox.Policy.host(**wishes)

    class Popen(nsbox.Popen):
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            super().__init__(args, *more, policy=policy, **options)

    Popen.__qualname__ = "Popen"  # its repr() is tested
    subprocess.Popen = Popen  # type: ignore[misc]
    if face == "asyncio":
        import asyncio

        for name in ("create_subprocess_exec", "create_subprocess_shell"):
            function = functools.partial(getattr(nsbox.asyncio, name), policy=policy)
            setattr(asyncio, name, function)
            setattr(asyncio.subprocess, name, function)


class Outcomes(unittest.TextTestResult):
    """What became of each test: "ok", "skipped", or "failed"."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        self._note(test, "ok")
        super().startTest(test)

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        self.found[test.id().split(" ")[0]] = outcome

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skipped")
        super().addSkip(test, reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "failed")
        super().addError(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, "failed")
        super().addFailure(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._note(test, "failed")
        super().addSubTest(test, subtest, err)


def main(module: str, face: str, results: str, directory: str, wishes: str = "{}", *only: str) -> None:
    """Run the tests of the interpreter at hand."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES if hard < 0 else min(OPEN_FILES, hard), hard))
    sys.path.append(directory)
    if face != "plain":
        substitute(face, json.loads(wishes), directory)
    tests = importlib.import_module(module)

    for case in vars(tests).values():
        for name, reason in SKIPPED.items():
            if isinstance(case, type) and name in vars(case):
                setattr(case, name, unittest.skip(reason)(vars(case)[name]))
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*.{name}" for name in only] or None
    suite = loader.loadTestsFromModule(tests)
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=1)
    outcome = runner.run(suite)
    assert isinstance(outcome, Outcomes)
    with open(results, "w") as file:
        json.dump(outcome.found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
