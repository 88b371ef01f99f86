"""The parts about Sandbox: commands one after another with a pause between; many at once; and in a transaction."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack

from nsbox._cli.bench import contenders as who
from nsbox._cli.bench.contenders import Contender
from nsbox._cli.bench.parts import (
    FILES_INSIDE,
    SMALL_MIB,
    Bench,
    Subject,
    caller,
    in_memory_or,
    interleave,
    interpreter,
    rating,
    size_name,
    working,
)
from nsbox._cli.bench.results.stats import Part
from nsbox._plan.ops import Bind
from nsbox._policy.policy import Policy
from nsbox.sandbox import Sandbox

_BREATH = 0.006  # seconds for tearing down the last sandbox and getting the next one ready


def _spawning(contender: Contender) -> Subject:
    """Return the subject of one run of /bin/true, in milliseconds, after a pause that keeps runs apart."""

    def measure() -> tuple[float]:
        time.sleep(_BREATH)
        return (contender.spawn() * 1e3,)

    return Subject((contender.name,), measure, contender.absent)


def _kept(name: str, policy: Policy, stack: ExitStack) -> Contender:
    box = stack.enter_context(Sandbox(policy))
    return Contender(name, popen=box.Popen, absent=box.why_cold).tried()


def warm(bench: Bench) -> Part:
    """Measure one command of many under one policy, from Popen() to the end of wait(); also from a big caller."""
    scale, policy = bench.scale, Policy.workspace(bench.workspace)
    with_net = policy.with_(network="host")
    names = ("nsbox warm", "nsbox warm, own net")
    with ExitStack() as stack:
        entries = [
            who.plain(),
            who.bwrap("bwrap", who.worker(bench.workspace, has_network=False)).tried(),
            who.nsbox("nsbox cold", policy).tried(),
            _kept(names[0], with_net, stack),
            _kept(names[1], policy, stack),
        ]
        rows = interleave([_spawning(entry) for entry in entries], scale.spawn_rounds, scale.warmup, bench.rng)
    sizes = (SMALL_MIB, scale.memory_mib)
    with ExitStack() as stack:
        callers = [stack.enter_context(caller(mib, bench)) for mib in sizes]
        subjects = []
        for one, mib in zip(callers, sizes, strict=True):
            measure = one.measurement("nsbox warm", _BREATH)
            subjects.append(Subject((f"nsbox warm, {size_name(mib)}",), measure))
        rows += interleave(subjects, scale.memory_rounds, scale.warmup, bench.rng)
    title = (
        f"/bin/true under Policy.workspace(), {_BREATH * 1e3:g} ms after the one before; {scale.spawn_rounds} rounds"
    )
    part = Part("warm", title, "ms", rows)
    part.compare((name, "Popen") for name in (*names, "nsbox cold"))
    part.compare((name, "bwrap") for name in (*names, "nsbox cold"))
    part.compare([(f"nsbox warm, {size_name(sizes[1])}", f"nsbox warm, {size_name(sizes[0])}")])
    return part


def rate(bench: Bench) -> Part:
    """Measure how many sandboxes a second eight threads get, including the teardown of each."""
    scale, policy = bench.scale, Policy.workspace(bench.workspace)
    with ExitStack() as stack:
        rows = []
        pairs: Sequence[tuple[str, bool, Policy]] = (
            ("host net", True, policy.with_(network="host")),
            ("own net", False, policy),
        )
        for net, has_network, wish in pairs:
            layers = who.worker(bench.workspace, has_network=has_network)
            rows += [who.bwrap(f"bwrap, {net}", layers).tried(), _kept(f"nsbox warm, {net}", wish, stack)]
            rows.append(who.nsbox(f"nsbox cold, {net}", wish).tried())
        subjects = [rating(entry, 8, scale.thread_seconds) for entry in (who.plain(), *rows)]
        measured = interleave(subjects, scale.thread_rounds, 0, bench.rng)
    title = f"/bin/true a second from 8 threads; {scale.thread_rounds} x {scale.thread_seconds:g} s each"
    part = Part("rate", title, "1/s", measured)
    ways = [(way, net) for net, _, _ in pairs for way in ("warm", "cold")]
    part.compare((f"nsbox {way}, {net}, 8 threads", f"bwrap, {net}, 8 threads") for way, net in ways)
    part.compare(("Popen, 8 threads", f"bwrap, {net}, 8 threads") for net, _, _ in pairs)  # what a sandbox can't exceed
    return part


def transaction(bench: Bench) -> Part:
    """Measure work on many small files in a transaction, whose workspace is an overlay, against the plain workspace."""
    scale = bench.scale
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="nsbox-bench-", dir=in_memory_or(bench.scratch)))
        workspace = os.path.join(place, "workspace")
        os.mkdir(workspace)
        policy = who.worker(bench.workspace, more=[*interpreter(), Bind(workspace, FILES_INSIDE)]).policy()
        box = stack.enter_context(Sandbox(policy, stock=0))
        tx = stack.enter_context(box.transaction(workspace, dir=os.path.join(place, "store")))
        subjects = [working(who.plain(), workspace, scale.files)]
        entries = [who.nsbox("nsbox", policy), Contender("transaction", popen=tx.Popen)]
        subjects += [working(entry.tried(), FILES_INSIDE, scale.files) for entry in entries]
        rows = interleave(subjects, scale.file_rounds, min(2, scale.warmup), bench.rng)
    title = f"create, read, delete {scale.files} files, also on an overlay; {scale.file_rounds} rounds"
    part = Part("transaction", title, "ms", rows)
    part.compare(
        (f"transaction, {clock}", f"{other}, {clock}") for other in ("nsbox", "Popen") for clock in ("inside", "whole")
    )
    return part
