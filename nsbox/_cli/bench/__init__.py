"""nsbox bench: how long a sandbox takes to start, against uncontained subprocess and against bwrap.

contenders.py has what is compared, and parts.py what is measured and how; further parts are in warm.py (Sandbox),
network.py (network lists), leaks.py (tokens in text), grep.py (files), calls.py (tool calls) and python.py
(branches and kernels). scale.py says how much
is measured. In results/, machine.py says on what; stats.py has the figures, report.py the targets and the table,
chart.py the picture.
caller.py and traffic.py run in processes of their own. Progress is drawn between measurements, never during one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping

from nsbox._cli.bench import parts as _parts
from nsbox._cli.bench.calls import calls
from nsbox._cli.bench.grep import grep
from nsbox._cli.bench.leaks import leaks
from nsbox._cli.bench.network import network
from nsbox._cli.bench.parts import Bench
from nsbox._cli.bench.python import python
from nsbox._cli.bench.results import chart, report
from nsbox._cli.bench.results.machine import look
from nsbox._cli.bench.results.stats import Part
from nsbox._cli.bench.scale import FULL, QUICK
from nsbox._cli.bench.warm import rate, transaction, warm
from nsbox._cli.commands import PARTS as NAMES
from nsbox._cli.progress import Progress

_FUNCTIONS = (
    *(
        _parts.spawn,
        _parts.overhead,
        warm,
        rate,
        _parts.memory,
        _parts.binds,
        _parts.threads,
        _parts.files,
        transaction,
    ),
    *(_parts.hardening, _parts.imports, _parts.front, network, leaks, grep, calls, python),
)
PARTS: Mapping[str, Callable[[Bench], Part]] = dict(zip(NAMES, _FUNCTIONS, strict=True))


def _complaint(options: argparse.Namespace) -> str:
    """Return what is wrong with the options, before any time goes into measuring; "" if nothing is."""
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
    names = [name for name in PARTS if not options.only or name in options.only]
    with tempfile.TemporaryDirectory(prefix="nsbox-bench-") as scratch, Progress(len(names)) as progress:
        scratch = os.path.realpath(scratch)
        workspace = os.path.join(scratch, "workspace")
        os.mkdir(workspace)
        say = progress.note if progress.is_seen else _say
        bench = Bench(scratch, workspace, scale, random.Random(0), say)
        for done, name in enumerate(names):
            if progress.is_seen:
                progress.show(done, f"measuring: {name}")
            else:
                _say(f"measuring: {name}")
            parts.append(PARTS[name](bench))
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
