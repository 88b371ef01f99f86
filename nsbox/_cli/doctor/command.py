"""nsbox doctor: the checks as a table or as JSON, or the answer to a symptom."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from dataclasses import asdict

from nsbox._backends.refusals import apparmor_profile
from nsbox._cli.help.style import Style, style_for
from nsbox._cli.messages import say
from nsbox._popen.doctor import DEFAULT, DEGRADED, Check, doctor

_MARKS = {"works": "ok", "fails": "FAILS", "not tried": "-"}
_LONGEST = 1 << 20  # bytes of an error text on stdin
_MEANINGS = {
    "ok": "means that it works",
    "no": "means that it doesn't, and that the default policy doesn't need it",
    "FAILS": "means that it doesn't, and that the default policy needs it",
    "-": "means that it couldn't be tried",
}
_COLOURS = {"ok": "good", "FAILS": "bad", "no": "fair", "-": "fair"}


def _mark(check: Check) -> str:
    return _MARKS[check.state] if check.is_needed or check.state != "fails" else "no"


def _lines(check: Check, style: Style) -> list[str]:
    mark = _mark(check)
    text = f"{mark:<6} {check.name}{f': {check.said}' if check.said else ''}"
    lines = textwrap.wrap(text, 110, subsequent_indent=" " * 9, break_long_words=False, break_on_hyphens=False)
    lines[0] = style.paint(_COLOURS[mark], mark) + lines[0][len(mark) :]
    if check.name == DEGRADED:
        lines += [f"       write: {part}" for part in check.remedy.split(", or ")]
    if check.state == "fails" and check.remedy:
        lines += textwrap.wrap(f"help: {check.remedy}", 110, initial_indent=" " * 7, subsequent_indent=" " * 13)
    return lines


def main(options: argparse.Namespace) -> int:
    """Print what works on this machine. Return 0 if the default policy is enforced in full, else 1.

    With a symptom, print what is known of it. Return 0 if anything is, else 1.
    """
    if options.apparmor_profile:
        print(apparmor_profile(os.path.realpath(sys.executable)), end="")
        return 0
    if options.list:
        from nsbox._cli.doctor.answer import names

        print(*names(), sep="\n")
        return 0
    if options.symptom:
        return _answer(" ".join(options.symptom), options)
    checks = doctor()
    holds = checks[-1].name == DEFAULT and checks[-1].state == "works"
    if options.json:
        print(json.dumps({"holds": holds, "checks": [asdict(check) for check in checks]}, indent=1))
    else:
        print(*(line for check in checks for line in _lines(check, style_for(sys.stdout))), sep="\n")
        marks = {_mark(check) for check in checks}
        print(*("", *(f"{mark:<6} {meaning}" for mark, meaning in _MEANINGS.items() if mark in marks)), sep="\n")
        print(f"\nThe default policy is {'' if holds else 'NOT '}enforced in full on this machine.")
    return 0 if holds else 1


def _answer(text: str, options: argparse.Namespace) -> int:
    from nsbox._cli.doctor.answer import lines, matching, record, unknown

    if text == "-":
        text = "" if sys.stdin is None else sys.stdin.buffer.read(_LONGEST).decode(errors="replace")
    symptoms = matching(text)
    if options.json:
        print(json.dumps({"symptom": text, "known": [record(symptom) for symptom in symptoms]}, indent=1))
    elif symptoms:
        print(*lines(symptoms, style_for(sys.stdout)), sep="\n")
    else:
        say(unknown(text))
    return 0 if symptoms else 1
