"""Runs CPython's own tests of subprocess with another Popen in its place. A program: runner.py FACE RESULTS.

FACE: "plain" leaves subprocess as it is, "host" puts nsbox.Popen under Policy.host() in the place of subprocess.Popen.
RESULTS: a file that becomes a JSON object, the outcome of each test by its name. A test that takes longer than a minute ends the
process with all tracebacks.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import unittest
from typing import Any

SECONDS = 60
SKIPPED = {
    "test_communicate_eintr": "the command signals os.getppid(): 0 in a pid namespace, so its whole process group",
}


def substitute() -> None:
    """Put nsbox's class in the place of subprocess.Popen."""
    import nsbox

    policy = nsbox.Policy.host()

    class Popen(nsbox.Popen):
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            super().__init__(args, *more, policy=policy, **options)

    Popen.__qualname__ = "Popen"  # its repr() is tested
    subprocess.Popen = Popen  # type: ignore[misc]


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


def main(face: str, results: str) -> None:
    """Run the tests of the interpreter at hand."""
    if face != "plain":
        substitute()
    from test import test_subprocess as tests  # type: ignore[attr-defined]

    for case in vars(tests).values():
        for name, reason in SKIPPED.items():
            if isinstance(case, type) and name in vars(case):
                setattr(case, name, unittest.skip(reason)(vars(case)[name]))
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=1)
    outcome = runner.run(suite)
    assert isinstance(outcome, Outcomes)
    with open(results, "w") as file:
        json.dump(outcome.found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
