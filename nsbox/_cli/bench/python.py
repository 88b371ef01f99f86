"""The part about Python: branches of a warm interpreter, kernels and map(), against a new interpreter outside.

The snippets are the same on both sides. Outside, subprocess.run() starts the interpreter that nsbox would choose.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.bench.parts import Bench, Subject, interleave
from nsbox._cli.bench.results.stats import Part, Row
from nsbox._policy.policy import Policy
from nsbox.sandbox import Sandbox

if TYPE_CHECKING:
    from nsbox._kernels.kernel import PythonKernel

_SNIPPET = "print(6 * 7)"
_NUMPY = "print(int(numpy.arange(10).sum()))"
_WORKERS = 2
_FORKS = 32
_PAGE = os.sysconf("SC_PAGE_SIZE")

# What the kernel does itself: as many children as k.fork() makes, alive at the same time, by nothing but os.fork().
_BARE = f"""
def bare():
    import os, time
    reading, writing = os.pipe()
    children = []
    begin = time.perf_counter()
    for _ in range({_FORKS}):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
    seconds = time.perf_counter() - begin
    os.close(writing)
    os.close(reading)
    for child in children:
        os.waitpid(child, 0)
    return seconds
"""


def _timed(call: Callable[[], object]) -> tuple[float]:
    begin = time.perf_counter()
    call()
    return ((time.perf_counter() - begin) * 1e3,)


def _outside(code: str, cwd: str) -> None:
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=cwd, capture_output=True)
    if done.returncode:
        raise ChildProcessError(f"the snippet ended with status {done.returncode} outside")


def _ran(result: object, printed: str) -> None:
    """Raise an error unless the snippet did its work."""
    if getattr(result, "stdout", None) != printed:
        raise ChildProcessError(f"the snippet failed inside: {result!r:.500}")


def _snippets(bench: Bench, box: Sandbox, stack: ExitStack) -> list[Row]:
    """Measure one snippet at a time: in a branch, with numpy imported before, and as a kernel's call."""
    lacking = "" if importlib.util.find_spec("numpy") else "absent: numpy isn't installed"
    plain = stack.enter_context(box.python())
    kernel = stack.enter_context(plain.kernel())
    subjects = [
        Subject(("Popen, snippet",), lambda: _timed(lambda: _outside(_SNIPPET, bench.workspace))),
        Subject(("nsbox branch, snippet",), lambda: _timed(lambda: _ran(plain.run(_SNIPPET), "42\n"))),
        Subject(("nsbox kernel, call",), lambda: _timed(lambda: _ran(kernel.run(_SNIPPET), "42\n"))),
    ]
    outside = f"import numpy; {_NUMPY}"
    subjects.append(
        Subject(("numpy: Popen, snippet",), lambda: _timed(lambda: _outside(outside, bench.workspace)), lacking)
    )
    if lacking:
        subjects.append(Subject(("numpy: nsbox branch, snippet",), lambda: (0.0,), lacking))
    else:
        warm = stack.enter_context(box.python(imports=["numpy"]))
        warm.run("pass")
        subjects.append(
            Subject(("numpy: nsbox branch, snippet",), lambda: _timed(lambda: _ran(warm.run(_NUMPY), "45\n")))
        )
    rounds, warmup = 4 * bench.scale.import_rounds, min(3, bench.scale.warmup)
    return interleave(subjects, rounds, warmup, bench.rng)


def _resident() -> float:
    """Return this process's resident memory, in MiB (proc_pid_statm(5))."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE / 2**20


def _rates(bench: Bench, box: Sandbox, stack: ExitStack) -> list[Row]:
    """Measure many snippets: how many a second, and what of this process's memory they leave in use."""
    scale, resident = bench.scale, []
    count = max(1, scale.snippets // scale.map_rounds)
    codes = [f"print({number})" for number in range(count)]
    py = stack.enter_context(box.python())
    pool = stack.enter_context(ThreadPoolExecutor(_WORKERS))

    def rate(work: Callable[[], object]) -> tuple[float]:
        return (count / (_timed(work)[0] / 1e3),)

    def inside() -> None:
        for number, result in enumerate(py.map(codes, workers=_WORKERS)):
            _ran(result, f"{number}\n")

    def measured() -> tuple[float]:
        found = rate(inside)
        resident.append(_resident())
        return found

    def outside() -> None:
        for _ in pool.map(lambda code: _outside(code, bench.workspace), codes):
            pass

    subjects = [
        Subject((f"Popen, {_WORKERS} threads",), lambda: rate(outside)),
        Subject((f"nsbox map, {_WORKERS} workers",), measured),
    ]
    rows = interleave(subjects, scale.map_rounds, 1, bench.rng)
    rows = [Row(row.name, row.samples, row.note, "1/s") for row in rows]
    at_first, at_last = resident[0], resident[-1]  # the warm-up round has made what is made once
    rows.append(Row("memory, after the first snippets", (at_first,), unit="MiB"))
    rows.append(Row("memory, after the last", (at_last,), unit="MiB"))
    return rows


def _forks(bench: Bench, box: Sandbox, stack: ExitStack) -> list[Row]:
    """Measure forks of a big kernel against its own os.fork(): the milliseconds of each of 32 that live together."""
    kernel: PythonKernel = stack.enter_context(stack.enter_context(box.python()).kernel())
    size = bench.scale.kernel_mib << 20
    made = kernel.run(f"{_BARE}\nballast = bytearray({size})\nfor i in range(0, {size}, {_PAGE}): ballast[i] = 1")
    if made.exception is not None:
        raise ChildProcessError(f"the kernel failed: {made.exception.message}")

    def contained() -> tuple[float]:
        begin = time.perf_counter()
        children = kernel.fork(_FORKS)
        milliseconds = (time.perf_counter() - begin) * 1e3
        for child in children:
            child.close()
        return (milliseconds / _FORKS,)

    def bare() -> tuple[float]:
        result = kernel.run("bare()")
        if not isinstance(result.value, float):
            raise ChildProcessError(f"os.fork() failed in the kernel: {result!r:.500}")
        return (result.value * 1e3 / _FORKS,)

    subjects = [Subject(("os.fork(), a child",), bare), Subject(("nsbox k.fork(), a kernel",), contained)]
    rounds = max(2, bench.scale.import_rounds // 2)
    return interleave(subjects, rounds, min(2, bench.scale.warmup), bench.rng)


def python(bench: Bench) -> Part:
    """Measure snippets one at a time, many at once, and forks of a kernel."""
    scale = bench.scale
    rows: list[Row] = []
    for measure in (_snippets, _rates, _forks):
        with ExitStack() as stack:
            box = stack.enter_context(Sandbox(Policy.workspace(bench.workspace)))
            rows += measure(bench, box, stack)
        bench.say(f"  {measure.__name__.strip('_')} done")
    size = f"a kernel of {scale.kernel_mib} MiB"
    title = f"`{_SNIPPET}` and the like; {scale.snippets} snippets by map(); {_FORKS} forks of {size}"
    part = Part("python", title, "ms", rows)
    part.compare(
        [
            ("nsbox branch, snippet", "Popen, snippet"),
            ("nsbox kernel, call", "Popen, snippet"),
            ("numpy: nsbox branch, snippet", "numpy: Popen, snippet"),
            (f"nsbox map, {_WORKERS} workers", f"Popen, {_WORKERS} threads"),
            ("memory, after the last", "memory, after the first snippets"),
            ("nsbox k.fork(), a kernel", "os.fork(), a child"),
        ]
    )
    return part
