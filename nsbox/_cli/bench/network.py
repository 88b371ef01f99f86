"""The part about network lists: what they cost at the spawn, and what a connection through the relay costs.

The server is on the host, at 127.0.0.1; a list lets a command reach it as "localhost:PORT". So only this machine is
needed. "Direct" is the same program outside a sandbox, connected to the same server.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from nsbox._base.errors import NsboxError
from nsbox._cli.bench import contenders as who
from nsbox._cli.bench.contenders import Contender
from nsbox._cli.bench.parts import Bench, Subject, interleave
from nsbox._cli.bench.results.stats import Part, Row
from nsbox._network.network import Network
from nsbox._policy.policy import Policy
from nsbox._relay.process import Process
from nsbox.sandbox import Sandbox

_BREATH = 0.01  # seconds for tearing down the last sandbox and getting the next one ready
_MIB = 1 << 20
_PROGRAM = Path(__file__).with_name("traffic.py")
_MORE_FILES = 64  # that a relay has open in addition to those of its connections
_KINDS = ("connect", "round trip", "download", "upload")
_MEMORY = "relay, memory"
_ENTRIES = ("packages.example", "*.files.example", "198.51.100.0/24:5432")


# ---- spawns


def _after_a_breath(contender: Contender, name: str) -> Subject:
    def measure() -> tuple[float]:
        time.sleep(_BREATH)
        return (contender.spawn() * 1e3,)

    return Subject((f"{contender.name}, {name}",), measure, contender.absent)


def _first(contender: Contender, policy: Callable[[int], Policy]) -> Subject:
    """Return the subject of a policy's first command, in its own Sandbox."""
    numbers = count()

    def measure() -> tuple[float]:
        time.sleep(_BREATH)
        with Sandbox(policy(next(numbers)), stock=0) as box:
            return (Contender(contender.name, popen=box.Popen).spawn() * 1e3,)

    return Subject((f"{contender.name}, first",), measure, contender.absent)


def _spawns(bench: Bench, none: Policy, lists: Policy) -> list[Row]:
    """Measure a command in a sandbox made for it, one in a sandbox from the stock, and a policy's first command."""

    def first_list(number: int) -> Policy:
        return lists.with_(network=[*_ENTRIES, f"n{number}.example"])

    def first_none(number: int) -> Policy:
        return none.with_(env={"NUMBER": str(number)})

    with ExitStack() as stack:
        subjects = []
        for name, policy, fresh in (("nsbox none", none, first_none), ("nsbox list", lists, first_list)):
            cold = who.nsbox(name, policy).tried()
            box = stack.enter_context(Sandbox(policy))
            kept = Contender(name, popen=box.Popen, absent=cold.absent).tried()
            subjects += [_after_a_breath(cold, "cold"), _after_a_breath(kept, "stock"), _first(cold, fresh)]
        scale = bench.scale
        return interleave(subjects, scale.spawn_rounds, scale.warmup, bench.rng)


# ---- traffic


class _Program:
    """traffic.py, run by a contender. absent: why it doesn't run; "" if it does."""

    def __init__(self, contender: Contender, *arguments: str) -> None:
        python = os.path.realpath(sys.executable)  # without a virtual environment, which the sandbox needn't show
        command = [python, "-I", "-S", "-c", _PROGRAM.read_text(encoding="utf-8"), *arguments]
        self.name, self.absent, self.ports = contender.name, contender.absent, (0, 0)
        if self.absent:
            return
        try:
            self._process = contender.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except (NsboxError, OSError) as error:
            self.absent = f"failed: {error}"
            return
        first, second = self._answer().split()
        self.ports = int(first), int(second)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self.name}: traffic.py ended with status {self._process.wait()}")
        return line

    def seconds(self, word: str, amount: int) -> float:
        """Return the seconds that it takes to do a piece of work. amount: how often, or how many bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {amount}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def subject(self, name: str, word: str, amount: int, figure: Callable[[float], float], absent: str = "") -> Subject:
        """Return the subject of a piece of work. figure: turns seconds into the measured figure."""
        row = f"{self.name}, {name}"
        return Subject((row,), lambda: (figure(self.seconds(word, amount)),), self.absent or absent)

    def close(self) -> None:
        """End it."""
        if not self.absent:
            self._process.communicate()


@contextmanager
def _program(contender: Contender, *arguments: str) -> Iterator[_Program]:
    started = _Program(contender, *arguments)
    try:
        yield started
    finally:
        started.close()


def _microseconds(seconds: float) -> float:
    return seconds * 1e6


def _milliseconds(seconds: float) -> float:
    return seconds * 1e3


def _few_files(connections: int) -> str:
    """Return why so many connections can't be open at once; "" if they can."""
    needed, most = 2 * connections + _MORE_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return f"skipped: needs {needed} open files, {most} are allowed" if 0 <= most < needed else ""


def _units(rows: list[Row], unit: str) -> list[Row]:
    return [Row(row.name, row.samples, row.note, unit) for row in rows]


def _exchanges(bench: Bench, pairs: list[tuple[_Program, _Program]]) -> list[Row]:
    """Measure connect(2), round trips of messages, and many bytes, for each pair in turn."""
    scale, size = bench.scale, bench.scale.traffic_mib * _MIB

    def rate(seconds: float) -> float:
        return size / seconds / 1e6

    kinds = (
        ("connect", scale.turns // 10 + 1, _microseconds, "us"),
        ("turns", scale.turns, _microseconds, "us"),
        ("down", size, rate, "MB/s"),
        ("up", size, rate, "MB/s"),
    )
    rows = []
    for pair in pairs:
        for name, (word, amount, figure, unit) in zip(_KINDS, kinds, strict=True):
            subjects = [program.subject(name, word, amount, figure) for program in pair]
            rows += _units(interleave(subjects, scale.traffic_rounds, min(2, scale.warmup), bench.rng), unit)
    return rows


def _many(bench: Bench, pair: tuple[_Program, _Program]) -> list[Row]:
    """Measure how long it takes to open many connections."""
    rows, rounds = [], max(1, bench.scale.traffic_rounds // 5)
    for connections in bench.scale.connections:
        name, lacking = f"{connections} connections", _few_files(connections)
        subjects = [program.subject(name, "held", connections, _milliseconds, lacking) for program in pair]
        rows += interleave(subjects, rounds, 0, bench.rng)
        bench.say(f"  {name} done")
    return rows


# ---- the relay


def _pid(box: Sandbox) -> int:
    """Return the process id of a Sandbox's relay."""
    process = box._relay.process if box._relay is not None else None
    assert isinstance(process, Process)
    fields = _fields(f"/proc/self/fdinfo/{process.pidfd.fileno()}")
    return int(fields["Pid"])


def _fields(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def _idle(bench: Bench, policy: Policy) -> list[Row]:
    """Measure a relay whose one sandbox connects to nothing."""
    sizes: list[float] = []
    files: list[float] = []
    absent = who.nsbox("relay", policy).tried().absent
    note = absent
    for _ in range(0 if absent else bench.scale.traffic_rounds):
        with Sandbox(policy, stock=0) as box, box.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE) as command:
            pid = _pid(box)
            sizes.append(int(_fields(f"/proc/{pid}/status")["VmRSS"].split()[0]) / 1024)
            try:
                files.append(float(len(os.listdir(f"/proc/{pid}/fd"))))
            except PermissionError:
                note = "skipped: only root may count them"
            command.communicate(b"")
    return [Row(_MEMORY, tuple(sizes), absent, "MiB"), Row("relay, descriptors", tuple(files), note, "open")]


def _answers(program: _Program, bench: Bench) -> list[Row]:
    """Measure how many questions about a name are answered each second, one after the other."""
    questions = bench.scale.turns
    subject = program.subject("name lookups", "names", questions, lambda seconds: questions / seconds)
    return _units(interleave([subject], bench.scale.traffic_rounds, min(2, bench.scale.warmup), bench.rng), "1/s")


# ---- all


def _traffic(bench: Bench, none: Policy) -> list[Row]:
    with ExitStack() as stack:
        server = stack.enter_context(_program(who.plain(), "serve"))
        ports = [str(port) for port in server.ports]
        entries = [*_ENTRIES, *(f"localhost:{port}" for port in ports)]
        lists = none.with_(network=Network(allow=entries, connections=10_000))
        inside = [who.nsbox("nsbox none", none).tried(), who.nsbox("nsbox list", lists).tried()]
        direct = stack.enter_context(_program(who.plain(), "ask", *ports))
        relayed = stack.enter_context(_program(inside[1], "ask", *ports))
        rows = _exchanges(bench, [(direct, relayed)]) + _many(bench, (direct, relayed)) + _answers(relayed, bench)
        loops = [replace(one, name=f"{one.name}, own loopback") for one in inside]
        own = [stack.enter_context(_program(loop, "ask")) for loop in loops]
        return rows + _exchanges(bench, [(own[0], own[1])])


def network(bench: Bench) -> Part:
    """Measure network lists: at the spawn, for connections through the relay, and on a command's own loopback."""
    scale = bench.scale
    none = Policy.workspace(bench.workspace)
    lists = none.with_(network=_ENTRIES)
    rows = _spawns(bench, none, lists) + _traffic(bench, none) + _idle(bench, lists)
    title = f"spawns and connections with a network list; {scale.spawn_rounds} spawns, {scale.traffic_rounds} rounds"
    part = Part("network", f"{title} of {scale.turns} messages and {scale.traffic_mib} MiB", "ms", rows)
    part.compare((f"nsbox list, {way}", f"nsbox none, {way}") for way in ("stock", "cold", "first"))
    part.compare(((f"nsbox list, {way}", f"nsbox none, {way}") for way in ("cold", "first")), is_ratio=False)
    many = [f"{connections} connections" for connections in scale.connections]
    part.compare((f"nsbox list, {kind}", f"Popen, {kind}") for kind in (*_KINDS, *many))
    own = "own loopback, "
    part.compare((f"nsbox list, {own}{kind}", f"nsbox none, {own}{kind}") for kind in _KINDS)
    part.state(_MEMORY)
    return part
