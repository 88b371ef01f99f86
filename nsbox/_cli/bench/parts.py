"""The parts of the suite. In each, all contenders take turns in every round, so that noise hits them alike.

Every round has a fresh random order. With a fixed order, even a rotated one, a contender would always run in the wake
of the same other one; the kernel, for example, tears down a network namespace in the background.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nsbox._bwrap.install import install
from nsbox._cli.bench import contenders as who
from nsbox._cli.bench.contenders import Contender
from nsbox._cli.bench.results.machine import available_mib
from nsbox._cli.bench.results.stats import Part, Row
from nsbox._cli.bench.scale import Scale
from nsbox._core import call
from nsbox._plan.ops import Bind, Op, RoBind
from nsbox._policy.policy import Policy

SMALL_MIB = 20


@dataclass(frozen=True, slots=True)
class Bench:
    """Where to measure, how much, and in which order."""

    scratch: str
    workspace: str
    scale: Scale
    rng: random.Random
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that is measured once in each round. rows: a name for each figure. absent: why it can't be measured."""

    rows: tuple[str, ...]
    measure: Callable[[], tuple[float, ...]]
    absent: str = ""


def interleave(subjects: Sequence[Subject], rounds: int, warmup: int, rng: random.Random) -> list[Row]:
    """Return the rows of all subjects, in the subjects' order, after measuring them in random order in each round."""
    samples: dict[str, list[float]] = {name: [] for subject in subjects for name in subject.rows}
    present = [subject for subject in subjects if not subject.absent]
    for number in range(warmup + rounds):
        for subject in rng.sample(present, len(present)):
            figures = subject.measure()
            if number >= warmup:
                for name, figure in zip(subject.rows, figures, strict=True):
                    samples[name].append(figure)
    return [Row(name, tuple(samples[name]), subject.absent) for subject in subjects for name in subject.rows]


def _spawning(contender: Contender, name: str = "") -> Subject:
    """Return the subject of one run of /bin/true, in milliseconds."""
    return Subject((name or contender.name,), lambda: (contender.spawn() * 1e3,), contender.absent)


# ---- spawn


def spawn(bench: Bench) -> Part:
    """Measure one command, from Popen() until wait() has returned."""
    minimal, own = who.minimal(), who.worker(bench.workspace)
    everything = who.worker(bench.workspace, has_network=False)
    pairs = [("user+pid", minimal), ("worker", own), ("unshare-all", everything)]
    entries = [who.plain()]
    for name, layers in pairs:
        entries += [who.bwrap(f"bwrap {name}", layers), who.nsbox(f"nsbox {name}", layers.policy())]
    entries.append(who.nsbox("nsbox workspace", Policy.workspace(bench.workspace)))
    entries.append(who.nsbox_default("nsbox workspace, made each time", bench.workspace))
    scale = bench.scale
    subjects = [_spawning(entry.tried()) for entry in entries]
    rows = interleave(subjects, scale.spawn_rounds, scale.warmup, bench.rng)
    part = Part("spawn", f"/bin/true, from Popen() to the end of wait(); {scale.spawn_rounds} rounds", "ms", rows)
    part.compare((f"nsbox {name}", f"bwrap {name}") for name, _ in pairs)
    part.compare((f"nsbox workspace{more}", "bwrap unshare-all") for more in ("", ", made each time"))
    part.compare((entry.name, "Popen") for entry in entries[1:])
    return part


# ---- overhead


class _Timed:
    """Stands in for the C core's functions, and times nsbox_spawn()."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def nsbox_spawn(self, request: object) -> int:
        begin = time.perf_counter()
        result: int = self._lib.nsbox_spawn(request)
        self.seconds = time.perf_counter() - begin
        return result


def overhead(bench: Bench) -> Part:
    """Measure the constructor of Popen, and the C call in it: the rest is Python's."""
    names = ("nsbox, Popen()", "nsbox, the C call")
    entry = who.nsbox("nsbox", who.worker(bench.workspace).policy()).tried()
    variables = vars(call)
    lib = variables["lib"]

    def measure() -> tuple[float, float]:
        timed = _Timed(lib)
        variables["lib"] = timed
        try:
            begin = time.perf_counter()
            process = entry.start([who.TRUE])
            whole = time.perf_counter() - begin
        finally:
            variables["lib"] = lib
        process.wait()
        return whole * 1e3, timed.seconds * 1e3

    subject = Subject(names, measure, entry.absent)
    rows = interleave([subject], bench.scale.spawn_rounds, bench.scale.warmup, bench.rng)
    part = Part("overhead", f"Popen() alone, worker layers; {bench.scale.spawn_rounds} rounds", "ms", rows)
    part.compare([names], is_ratio=False)
    return part


# ---- memory


class Caller:
    """A process of a given size that spawns for us."""

    def __init__(self, mib: int, bench: Bench) -> None:
        command = [sys.executable, "-P", "-m", "nsbox._cli.bench.caller", str(mib), bench.workspace]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.mib = int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the helper process ended with status {self._process.wait()}")
        return line

    def measurement(self, name: str, pause: float = 0) -> Callable[[], tuple[float]]:
        """Return a function that has it run /bin/true by this contender, after a pause in seconds; in milliseconds."""

        def measure() -> tuple[float]:
            time.sleep(pause)
            return self._spawn(name)

        return measure

    def _spawn(self, name: str) -> tuple[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return (float(self._answer()) * 1e3,)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@contextmanager
def caller(mib: int, bench: Bench) -> Iterator[Caller]:
    """Yield a process of this size that spawns for us, and end it."""
    started = Caller(mib, bench)
    try:
        yield started
    finally:
        started.close()


def size_name(mib: int) -> str:
    """Return the size as row names have it."""
    return f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MB"


def memory(bench: Bench) -> Part:
    """Measure the same from a small and a big caller, each a process of its own."""
    scale, big = bench.scale, bench.scale.memory_mib
    available = available_mib()
    lacking = ""
    if available is not None and available < big * 5 // 4:
        lacking = f"skipped: needs {big * 5 // 4} MiB, {available} MiB available"
    tried = [contender.tried() for contender in who.three(bench.workspace)]
    with ExitStack() as stack:
        small = stack.enter_context(caller(SMALL_MIB, bench))
        large = small if lacking else stack.enter_context(caller(big, bench))
        subjects = []
        for contender in tried:
            for one, mib, absent in ((small, SMALL_MIB, ""), (large, big, lacking)):
                measure = one.measurement(contender.name)
                name = f"{contender.name}, {size_name(mib)}"
                subjects.append(Subject((name,), measure, contender.absent or absent))
        rows = interleave(subjects, scale.memory_rounds, scale.warmup, bench.rng)
        sizes = f"{small.mib} MiB" if lacking else f"{small.mib} and {large.mib} MiB"
    title = f"the same (worker layers) from callers of {sizes} resident; {scale.memory_rounds} rounds"
    part = Part("memory", title, "ms", rows)
    part.compare((f"{c.name}, {size_name(big)}", f"{c.name}, {size_name(SMALL_MIB)}") for c in tried)
    return part


# ---- binds


def binds(bench: Bench) -> Part:
    """Measure the same with more and more read-only binds."""
    rounds = bench.scale.binds
    part = Part("binds", f"the same with extra read-only binds; {', '.join(map(str, rounds.values()))} rounds", "ms")
    for count in rounds:
        more: list[Op] = []
        for i in range(count):
            source = os.path.join(bench.scratch, "binds", str(i))
            os.makedirs(source, exist_ok=True)
            more.append(RoBind(source, f"/extra/{i}"))
        entries = [entry.tried() for entry in who.three(bench.workspace, more)[1:]]
        subjects = [_spawning(entry, f"{entry.name}, {count} binds") for entry in entries]
        part.rows += interleave(subjects, rounds[count], min(2, bench.scale.warmup), bench.rng)
        part.compare([(f"nsbox, {count} binds", f"bwrap, {count} binds")])
        bench.say(f"  {count} binds done")
    return part


# ---- threads


def _rate(contender: Contender, threads: int, seconds: float) -> tuple[float]:
    """Return how many commands a second some threads run, each its own."""
    start = threading.Barrier(threads)

    def work() -> tuple[int, float, float]:
        start.wait()
        begin = now = time.perf_counter()
        done = 0
        while now < begin + seconds:
            contender.spawn()
            now = time.perf_counter()
            done += 1
        return done, begin, now

    with ThreadPoolExecutor(threads) as pool:
        results = [future.result() for future in [pool.submit(work) for _ in range(threads)]]
    total = sum(done for done, _, _ in results)
    return (total / (max(end for _, _, end in results) - min(begin for _, begin, _ in results)),)


def threads(bench: Bench) -> Part:
    """Measure sandboxes per second from several threads."""
    scale, entries, counts = bench.scale, [c.tried() for c in who.three(bench.workspace)], (1, 4, 8)
    title = f"/bin/true a second, worker layers; {scale.thread_rounds} x {scale.thread_seconds:g} s each"
    part = Part("threads", title, "1/s")
    for count in counts:
        subjects = [rating(entry, count, scale.thread_seconds) for entry in entries]
        part.rows += interleave(subjects, scale.thread_rounds, 0, bench.rng)
        part.compare([(f"nsbox, {_threads(count)}", f"{name}, {_threads(count)}") for name in ("bwrap", "Popen")])
        bench.say(f"  {_threads(count)} done")
    return part


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def rating(contender: Contender, count: int, seconds: float) -> Subject:
    """Return the subject of commands a second from this many threads."""
    return Subject(
        (f"{contender.name}, {_threads(count)}",), lambda: _rate(contender, count, seconds), contender.absent
    )


# ---- files

_FILE_WORK = """
import os, sys, time
count, data = int(sys.argv[2]), b"x" * 200
os.chdir(sys.argv[1])
begin = time.perf_counter()
for i in range(count):
    with open(str(i), "wb") as file:
        file.write(data)
for i in range(count):
    with open(str(i), "rb") as file:
        file.read()
for i in range(count):
    os.unlink(str(i))
print(time.perf_counter() - begin)
"""

FILES_INSIDE = "/files"


def working(contender: Contender, place: str, count: int) -> Subject:
    """Return the subject of the file work in a place, in milliseconds: by a clock inside, and as a whole."""
    python = os.path.realpath(sys.executable)  # not a virtual environment's, which the layers needn't show
    command = [python, "-I", "-S", "-c", _FILE_WORK, place, str(count)]

    def measure() -> tuple[float, float]:
        begin = time.perf_counter()
        with contender.start(command, stdout=subprocess.PIPE) as process:
            output = process.communicate()[0]
        whole = time.perf_counter() - begin
        if process.returncode:
            raise ChildProcessError(f"{contender.name}: the file work ended with status {process.returncode}")
        return float(output) * 1e3, whole * 1e3

    return Subject((f"{contender.name}, inside", f"{contender.name}, whole"), measure, contender.absent)


def interpreter() -> list[RoBind]:
    """Return the binds that layers lack to show the interpreter."""
    prefix = os.path.realpath(sys.base_prefix)
    return [] if prefix == "/usr" else [RoBind(prefix, prefix)]


def in_memory_or(scratch: str) -> str:
    """Return /dev/shm, where work on files takes the same time twice; without one, the scratch directory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else scratch


def files(bench: Bench) -> Part:
    """Measure work on many small files in a writable directory: in memory if there is /dev/shm, else in the scratch.

    On a disk the work isn't the same twice. For some seconds ext4 doesn't reuse the number of a deleted inode, and
    passes over each such number whenever it makes a file. So files deleted a moment ago slow it down.
    """
    scale, in_memory = bench.scale, in_memory_or(bench.scratch)
    with tempfile.TemporaryDirectory(prefix="nsbox-bench-", dir=in_memory) as place:
        entries = [entry.tried() for entry in who.three(bench.workspace, [*interpreter(), Bind(place, FILES_INSIDE)])]
        places = [place, *[FILES_INSIDE] * (len(entries) - 1)]
        subjects = [working(entry, seen, scale.files) for entry, seen in zip(entries, places, strict=True)]
        rows = interleave(subjects, scale.file_rounds, min(2, scale.warmup), bench.rng)
    title = f"create, read, delete {scale.files} files in a directory of {in_memory}; {scale.file_rounds} rounds"
    part = Part("files", title, "ms", rows)
    part.compare((f"{e.name}, {clock}", f"Popen, {clock}") for e in entries[1:] for clock in ("inside", "whole"))
    return part


# ---- hardening

_CALLS = """
import fcntl, os, sys, time
count, descriptor, files = int(sys.argv[1]), os.open("/dev/zero", os.O_RDONLY), int(sys.argv[1]) // 20
begin = time.perf_counter()
for i in range(count):
    os.read(descriptor, 1)
times = [time.perf_counter() - begin]
begin = time.perf_counter()
for i in range(count):
    fcntl.fcntl(descriptor, 1)
times.append(time.perf_counter() - begin)
begin = time.perf_counter()
for i in range(files):
    os.close(os.open("/usr", 0))
times.append(time.perf_counter() - begin)
print(*times)
"""
_KINDS = ("read", "fcntl", "open")  # allowed by number; allowed by its arguments; checked by path


def _calling(contender: Contender, count: int) -> Subject:
    """Return the subject of loops of system calls, in milliseconds by a clock inside."""
    python = os.path.realpath(sys.executable)
    command = [python, "-I", "-S", "-c", _CALLS, str(count)]

    def measure() -> tuple[float, ...]:
        with contender.start(command, stdout=subprocess.PIPE) as process:
            output = process.communicate()[0]
        if process.returncode:
            raise ChildProcessError(f"{contender.name}: the loops ended with status {process.returncode}")
        return tuple(float(word) * 1e3 for word in output.split())

    return Subject(tuple(f"{contender.name}, {kind}" for kind in _KINDS), measure, contender.absent)


def hardening(bench: Bench) -> Part:
    """Measure what the defences behind the namespaces cost: at the spawn, and for each system call inside."""
    scale, policy = bench.scale, Policy.workspace(bench.workspace)
    kinds = {name: policy.with_(seccomp=name) for name in ("off", "default", "hardened")}
    kinds["landlock"] = policy.with_(landlock=True)
    entries = [who.nsbox(f"nsbox {name}", kind).tried() for name, kind in kinds.items()]
    subjects = [_spawning(entry, f"{entry.name}, spawn") for entry in entries]
    rows = interleave(subjects, scale.spawn_rounds, scale.warmup, bench.rng)
    callers = [who.plain(), *entries]
    subjects = [_calling(entry, scale.calls) for entry in callers]
    rows += interleave(subjects, scale.call_rounds, min(2, scale.warmup), bench.rng)
    title = f"Policy.workspace() by seccomp profile, and with landlock=True; {scale.spawn_rounds} spawns"
    part = Part("hardening", f"{title}, {scale.call_rounds} loops of {scale.calls} calls", "ms", rows)
    part.compare(((f"{e.name}, spawn", "nsbox off, spawn") for e in entries[1:]), is_ratio=False)
    part.compare((f"{e.name}, {kind}", f"Popen, {kind}") for e in entries for kind in _KINDS)
    part.compare((f"{e.name}, {kind}", f"nsbox off, {kind}") for e in entries[1:] for kind in _KINDS)
    return part


# ---- import


def imports(bench: Bench) -> Part:
    """Measure a new interpreter that imports one module, from start to end."""
    names = {"nothing": "pass", "import subprocess": "import subprocess", "import nsbox": "import nsbox"}
    subjects = [_importing(name, code, bench) for name, code in names.items()]
    rows = interleave(subjects, bench.scale.import_rounds, bench.scale.warmup, bench.rng)
    part = Part("import", f"a new interpreter that does it; {bench.scale.import_rounds} rounds", "ms", rows)
    part.compare([("import nsbox", "import subprocess"), ("import subprocess", "nothing")], is_ratio=False)
    return part


def _importing(name: str, code: str, bench: Bench) -> Subject:
    def measure() -> tuple[float]:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", code], check=True, cwd=bench.scratch)
        return ((time.perf_counter() - begin) * 1e3,)

    return Subject((name,), measure)


# ---- bubblewrap's command line


def front(bench: Bench) -> Part:
    """Measure nsbox's bwrap beside bubblewrap's, each as a whole program, with the same layers."""
    program = install(tempfile.mkdtemp(dir=bench.scratch))
    theirs = shutil.which("bwrap")
    subjects = []
    fronts = (("minimal layers", who.minimal()), ("worker layers", who.worker(bench.workspace, has_network=False)))
    for name, layers in fronts:
        options = layers.bwrap()
        subjects += [
            _program(f"nsbox's bwrap, {name}", program, options),
            _program(f"bubblewrap, {name}", theirs, options, "there is no bwrap on PATH"),
        ]
    rounds = 3 * bench.scale.import_rounds
    rows = interleave(subjects, rounds, bench.scale.warmup, bench.rng)
    part = Part("front", f"a program that runs /bin/true; {rounds} rounds", "ms", rows)
    part.compare((f"nsbox's bwrap, {name}", f"bubblewrap, {name}") for name, _ in fronts)
    return part


def _program(name: str, program: str | None, options: Sequence[str], absent: str = "") -> Subject:
    """Return a program to measure; absent: why there is none."""
    if program is None:
        return Subject((name,), lambda: (0.0,), absent)
    return Subject((name,), lambda: (_lasts([program, *options, who.TRUE]),))


def _lasts(command: Sequence[str]) -> float:
    """Return the milliseconds that a command takes. It isn't started by subprocess, whose own time would be in it."""
    begin = time.perf_counter()
    pid = os.posix_spawn(command[0], [*command], os.environ)
    status = os.waitpid(pid, 0)[1]
    end = time.perf_counter()
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return (end - begin) * 1e3
