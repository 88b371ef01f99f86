"""nsbox bench: how long a sandbox takes to start, against uncontained subprocess and against bwrap.

contenders.py has what is compared, and parts.py what is measured and how; further parts are in warm.py (Sandbox),
network.py (network lists), leaks.py (tokens in text), grep.py (files), calls.py (tool calls) and python.py
(branches and kernels). scale.py says how much
is measured, machine.py on what. stats.py has the figures, report.py the targets and the table, chart.py the picture.
caller.py and traffic.py run in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping

from nsbox._cli.bench import chart, report
from nsbox._cli.bench import parts as _parts
from nsbox._cli.bench.calls import calls
from nsbox._cli.bench.grep import grep
from nsbox._cli.bench.leaks import leaks
from nsbox._cli.bench.machine import look
from nsbox._cli.bench.network import network
from nsbox._cli.bench.parts import Bench
from nsbox._cli.bench.python import python
from nsbox._cli.bench.scale import FULL, QUICK
from nsbox._cli.bench.stats import Part
from nsbox._cli.bench.warm import rate, transaction, warm

PARTS: Mapping[str, Callable[[Bench], Part]] = {
    "spawn": _parts.spawn,
    "overhead": _parts.overhead,
    "warm": warm,
    "rate": rate,
    "memory": _parts.memory,
    "binds": _parts.binds,
    "threads": _parts.threads,
    "files": _parts.files,
    "transaction": transaction,
    "hardening": _parts.hardening,
    "import": _parts.imports,
    "front": _parts.front,
    "network": network,
    "leaks": leaks,
    "grep": grep,
    "calls": calls,
    "python": python,
}


def _complaint(options: argparse.Namespace) -> str:
    """Return what is wrong with the options, before any time goes into measuring; "" if nothing is."""
    unknown = [name for name in options.only if name not in PARTS]
    if unknown:
        return f"--only {unknown[0]}: must be one of {', '.join(PARTS)}"
    for option in ("json", "png"):
        path = getattr(options, option)
        if path is not None and not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK | os.X_OK):
            return f"--{option} {path}: its directory is missing or can't be written to"
    if options.png is not None and not chart.is_possible():
        return f"--png: {chart.HINT}"
    return ""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(options: argparse.Namespace) -> list[Part]:
    scale = QUICK if options.quick else FULL
    parts = []
    with tempfile.TemporaryDirectory(prefix="nsbox-bench-") as scratch:
        scratch = os.path.realpath(scratch)
        workspace = os.path.join(scratch, "workspace")
        os.mkdir(workspace)
        bench = Bench(scratch, workspace, scale, random.Random(0), _say)
        for name, measure in PARTS.items():
            if not options.only or name in options.only:
                _say(f"measuring: {name}")
                parts.append(measure(bench))
    return parts


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, and write the files asked for. Return 0, or 2 for options that make no sense.

    options: quick; json and png, paths or None; only, a list of names of parts, [] for all.
    """
    complaint = _complaint(options)
    if complaint:
        _say(f"nsbox bench: {complaint}")
        return 2
    machine = look()
    parts = _measure(options)
    print(report.table(machine, parts, is_quick=options.quick))
    if options.json is not None:
        scale = QUICK if options.quick else FULL
        document = report.document(machine, scale, parts, is_quick=options.quick)
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    if options.png is not None:
        chart.draw(options.png, machine, parts, is_quick=options.quick)
    return 0
