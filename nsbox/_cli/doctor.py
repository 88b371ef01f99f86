"""nsbox doctor: the checks as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from dataclasses import asdict

from nsbox._backends.refusals import apparmor_profile
from nsbox._popen.doctor import DEFAULT, Check, doctor

_MARKS = {"works": "ok", "fails": "FAILS", "not tried": "-"}


def _lines(check: Check) -> list[str]:
    mark = _MARKS[check.state] if check.is_needed or check.state != "fails" else "no"
    lines = [f"{mark:<6} {check.name}{f': {check.said}' if check.said else ''}"]
    if check.state == "fails" and check.remedy:
        lines += textwrap.wrap(f"help: {check.remedy}", 110, initial_indent=" " * 7, subsequent_indent=" " * 13)
    return lines


def main(options: argparse.Namespace) -> int:
    """Print what works on this machine. Return 0 if the default policy is enforced as a whole, else 1."""
    if options.apparmor_profile:
        print(apparmor_profile(os.path.realpath(sys.executable)), end="")
        return 0
    checks = doctor()
    holds = checks[-1].name == DEFAULT and checks[-1].state == "works"
    if options.json:
        print(json.dumps({"holds": holds, "checks": [asdict(check) for check in checks]}, indent=1))
    else:
        print(*(line for check in checks for line in _lines(check)), sep="\n")
        print(f"\nThe default policy is {'' if holds else 'NOT '}enforced as a whole on this machine.")
    return 0 if holds else 1
