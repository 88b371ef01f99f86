"""Grade small programs that nobody has read, with hidden tests: as a judge, or as the reward function of a training.

    python examples/grade.py [--count N] [--compare]

A submission defines solve(). It gets the questions and nothing else: the answers never enter the sandbox. What solve()
returned comes back as JSON and is compared here, outside. So a submission can neither read the answers nor forge a
verdict; all that it can do is answer wrong.

Each submission runs in a branch of a warm interpreter, with namespaces of its own. --compare grades the same programs
by uncontained `python -c` as well, and prints how long both took.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import nsbox

WORKERS = 2
PATIENCE = 10.0  # seconds by the clock, for programs that sleep; cpu_seconds is for those that compute
MEMORY = 512 << 20
LIMITS = nsbox.Limits(memory=MEMORY, cpu_seconds=2, file_size="1M", processes=16)
VERDICTS = ("pass", "wrong", "error", "timeout", "memory")

# ---- problems, and submissions to them


@dataclass(frozen=True)
class Problem:
    """A question, how to draw cases for it, and submissions: right ones, and wrong ones."""

    name: str
    answer: Callable[..., Any]
    draw: Callable[[random.Random], list[Any]]
    right: tuple[str, ...]
    wrong: tuple[str, ...]


def _numbers(rng: random.Random) -> list[Any]:
    return [[rng.randrange(-50, 50) for _ in range(rng.randrange(2, 12))]]


PROBLEMS = (
    Problem(
        "sum of digits",
        lambda n: sum(map(int, str(n))),
        lambda rng: [rng.randrange(10**12)],
        (
            "def solve(n): return sum(int(c) for c in str(n))",
            "def solve(n):\n    s = 0\n    while n:\n        s, n = s + n % 10, n // 10\n    return s",
        ),
        ("def solve(n): return n % 9", "def solve(n): return len(str(n))"),
    ),
    Problem(
        "greatest common divisor",
        math.gcd,
        lambda rng: [rng.randrange(1, 10**6), rng.randrange(1, 10**6)],
        ("import math\nsolve = math.gcd", "def solve(a, b):\n    while b:\n        a, b = b, a % b\n    return a"),
        ("def solve(a, b): return min(a, b)", "def solve(a, b): return 1"),
    ),
    Problem(
        "sorted, without repetitions",
        lambda xs: sorted({*xs}),
        _numbers,
        ("def solve(xs): return sorted(set(xs))", "def solve(xs): return list(dict.fromkeys(sorted(xs)))"),
        ("def solve(xs): return sorted(xs) + xs[:1]", "def solve(xs): return xs"),
    ),
    Problem(
        "greatest sum of neighbours",
        lambda xs: max(sum(xs[i:j]) for i in range(len(xs)) for j in range(i + 1, len(xs) + 1)),
        _numbers,
        ("def solve(xs):\n    best = here = xs[0]\n    for x in xs[1:]:\n        here = max(x, here + x)\n"
         "        best = max(best, here)\n    return best",),
        ("def solve(xs): return sum(x for x in xs if x > 0) + 1", "def solve(xs): return sum(xs) - 1"),
    ),
)  # fmt: skip

# Submissions to any problem that earn no point, by the verdict that they are to get.
OTHERS = {
    "error": (
        "def solve(*_): return 1 / 0",
        "def solve(*_): return undefined",
        "def solve(*_: return 1",
        "import os\nos.abort()",
        "def solve(*_): return solve()",
        # cheats: an early end, a forged verdict on the way out, the file with the answers, the grader's memory
        "import sys\nprint('pass')\nsys.exit(0)",
        "import os\nos.write(1, b'{\"verdict\": \"pass\"}')\nos._exit(0)",
        f"open({__file__!r}).read()",
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    ),
    "timeout": ("def solve(*_):\n    while True: pass", "import time\ntime.sleep(1000)"),
    "memory": (
        "def solve(*_): return len('x' * 10**10)",
        "def solve(*_):\n    x = []\n    while True: x.append(bytes(10**8))",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Submission:
    """A program, the questions for it, and the hidden answers; and the verdict that it is to get."""

    source: str
    questions: list[list[Any]]
    answers: list[Any]
    due: str

    def program(self) -> str:
        """Return the program with its questions. The value of its last line is what solve() returned for each."""
        return f"{self.source}\n[solve(*question) for question in {self.questions!r}]"


def submissions(count: int, seed: int = 0) -> Iterator[Submission]:
    """Yield made-up submissions: of 100, 74 are right, 15 wrong, 8 fail, 2 ask for too much memory, 1 never ends."""
    rng = random.Random(seed)
    for number in range(count):
        problem = PROBLEMS[number % len(PROBLEMS)]
        questions = [problem.draw(rng) for _ in range(10)]
        place = number % 100
        due = "wrong" if 74 <= place < 89 else "error" if place < 97 else "memory" if place < 99 else "timeout"
        due = "pass" if place < 74 else due
        others = {"pass": problem.right, "wrong": problem.wrong}.get(due) or OTHERS[due]
        source = others[rng.randrange(len(others))] if due != "timeout" else others[number // 100 % 10 == 9]
        yield Submission(source, questions, [problem.answer(*question) for question in questions], due)


# ---- verdicts


def policy(empty: str) -> nsbox.Policy:
    """Return what a submission may do. It can't leave a file for the next one, such as a module that this imports."""
    return nsbox.Policy.workspace(empty, read_only=True, home="tmp", tmp_size="16M", limits=LIMITS)


def contained(tasks: Iterable[Submission]) -> Iterator[str]:
    """Yield the verdict on each submission, run in a branch of its own."""
    tasks = list(tasks)
    with tempfile.TemporaryDirectory() as empty, nsbox.Sandbox(policy(empty)) as box:
        py = box.python(imports=["math"])
        results = py.map((task.program() for task in tasks), workers=WORKERS, timeout=PATIENCE)
        for task, result in zip(tasks, results, strict=True):
            yield verdict(result, task.answers)


def verdict(result: nsbox.PythonResult, answers: list[Any]) -> str:
    """Return the verdict on what a branch did. Nothing in here believes what the submission says about itself."""
    if result.timed_out or result.cause in ("timeout", "limit"):
        return "timeout"
    if result.exception is not None:
        return "memory" if result.exception.type == "MemoryError" else "error"
    if result.returncode != 0 or result.value is None:
        return "error"  # a crash, or an end before the last line
    return "pass" if result.value == answers else "wrong"


_UNCONTAINED = f"""\
import json, resource
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
"""


def uncontained(tasks: Iterable[Submission]) -> Iterator[str]:
    """Yield the verdict on each submission, run by subprocess, as many graders do. Don't: nothing contains it."""

    def judge(task: Submission) -> str:
        *lines, last = task.program().split("\n")
        code = "\n".join([_UNCONTAINED, *lines, f"print(json.dumps({last}))"])
        try:
            done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode in (-24, -9):  # SIGXCPU, and SIGKILL at the hard limit
            return "timeout"
        if done.returncode:
            return "memory" if done.stderr.rstrip().endswith("MemoryError") else "error"
        try:
            return "pass" if json.loads(done.stdout) == task.answers else "wrong"
        except ValueError:
            return "error"

    with ThreadPoolExecutor(WORKERS) as pool:
        yield from pool.map(judge, tasks)


# ---- the table


def graded(
    name: str, grade: Callable[[Iterable[Submission]], Iterator[str]], tasks: list[Submission]
) -> tuple[float, int]:
    """Grade all, and print a table of the verdicts; return the seconds that it took, and how many weren't due."""
    begin = time.perf_counter()
    counts = Counter((task.due, given) for task, given in zip(tasks, grade(tasks), strict=True))
    seconds = time.perf_counter() - begin
    print(f"{name}: {len(tasks)} programs in {seconds:.1f} s, {len(tasks) / seconds:.0f} a second")
    print("  due      " + "".join(f"{given:>9}" for given in VERDICTS))
    for due in VERDICTS:
        print(f"  {due:<9}" + "".join(f"{counts[due, given] or '-':>9}" for given in VERDICTS))
    return seconds, sum(count for (due, given), count in counts.items() if due != given)


def main(arguments: list[str]) -> int:
    """Grade; return 0 if each program got the verdict that is due, else 1."""
    parser = argparse.ArgumentParser(description="grade made-up programs with hidden tests")
    parser.add_argument("--count", type=int, default=1000, help="how many programs (default: 1000)")
    parser.add_argument("--compare", action="store_true", help="also grade them by uncontained subprocess")
    options = parser.parse_args(arguments)
    tasks = list(submissions(options.count))
    seconds, missed = graded("contained", contained, tasks)
    if options.compare:
        others, _ = graded("uncontained", uncontained, tasks)
        print(f"contained, it took {seconds / others:.2f} of the time")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
