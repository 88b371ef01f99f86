"""A judge for programs that nobody has read: C, C++ and Python, compiled, run on many tests, each with a verdict.

    python examples/judge.py [--workers N] [--dask]                     judges the programs below, hostile ones included
    python examples/judge.py --source FILE --tests DIR [--checker FILE]  judges one: DIR has NAME.in and NAME.out

Compiling, running and checking each have a sandbox of their own. A run sees neither the answers nor what another run
left. It can't start processes or threads, so that time and memory are those of one process, which the kernel counts. If
you allow them: the kernel doesn't count the time of children that their parent has no use for (SIGCHLD ignored).
What a program says about itself counts for nothing, except that it ran out of memory; that verdict is no better.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from pathlib import Path

import nsbox
from nsbox import Filter, Limits, Policy, RemountRo, RoBind, Rule

MEBI = 1 << 20
COMPILE_LIMITS = Limits(memory="2G", cpu_seconds=20, file_size="64M")
CHECK_LIMITS = Limits(memory="1G", cpu_seconds=10, file_size="1M")
OUT_OF_MEMORY = ("MemoryError", "std::bad_alloc")
ALONE = Filter(
    rules=[
        Rule(["fork", "vfork", "clone"], 11),  # EAGAIN
        Rule("clone3", 38),  # ENOSYS
        Rule(["shmget", "msgget", "semget"], 38),  # memory of the kernel's that counts for no process
    ]
)
COMPILERS = {
    "c": ["gcc", "-O2", "-static", "-o", "program", "program.c", "-lm"],
    "cc": ["g++", "-O2", "-static", "-o", "program", "program.cc"],
}


class Verdict(Enum):
    """What is said about a program, or about its run on one test."""

    AC = "accepted"
    WA = "wrong answer"
    PE = "the right words, in the wrong lines or with the wrong spaces"
    TLE = "takes too long"
    MLE = "takes too much memory"
    OLE = "prints too much"
    RE = "crashes, or exits with a status other than 0"
    CE = "doesn't compile"
    JE = "the judge's own error: the checker failed, or the compiler can't be started"


# What a checker prints: one of these words and nothing else. Its status can't tell a verdict from a crash: Python ends
# with 1 after an exception too.
WORDS = {"AC": Verdict.AC, "WA": Verdict.WA, "PE": Verdict.PE}


@dataclass(frozen=True)
class Test:
    """What a program reads, and what it is to print."""

    given: bytes
    answer: bytes


@dataclass(frozen=True)
class Problem:
    """Tests, limits, and how to tell a right answer.

    seconds: processor time. patience: seconds by the clock, for programs that sleep. memory, output: bytes.
    checker: Python code, run as `checker.py INPUT ANSWER OUTPUT`. It prints AC, WA or PE, and ends with status 0; all
        else is the judge's own error. "": the output is compared with the answer.
    """

    tests: tuple[Test, ...]
    seconds: float = 2.0
    patience: float = 10.0
    memory: int = 256 * MEBI
    output: int = MEBI
    checker: str = ""


@dataclass(frozen=True)
class Submission:
    """A program. language: "c", "cc" or "py"."""

    name: str
    language: str
    source: bytes
    due: str = ""


@dataclass(frozen=True)
class Run:
    """A run on one test: processor time in seconds; memory in bytes, 0 if it is less than the judge itself has.

    detail: what failed, for the judge's own errors.
    """

    verdict: Verdict
    seconds: float = 0.0
    memory: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Judgement:
    """The verdict on a program: that of its first run that isn't accepted.

    detail: what to tell its author or, for the judge's own errors, whoever looks after the judge.
    """

    verdict: Verdict
    runs: list[Run] = field(default_factory=list)
    detail: str = ""


# ---- one submission


def judge(submission: Submission, problem: Problem) -> Judgement:
    """Compile a program, run it on all tests, and check what it printed. An error of the judge is a verdict too."""
    try:
        return judged(submission, problem)
    except Exception as error:
        return Judgement(Verdict.JE, detail=f"{type(error).__name__}: {error}")


def judged(submission: Submission, problem: Problem) -> Judgement:
    """Do as judge() does, without a verdict for what fails in the judge itself."""
    with tempfile.TemporaryDirectory(prefix="judge-") as name:
        program = Path(name, f"program.{submission.language}")
        if submission.language in COMPILERS:
            # What compiling may write to is a directory of its own: no answer is there.
            (build := Path(name, "build")).mkdir()
            verdict, detail = compiled(submission, build)
            if verdict:
                return Judgement(verdict, detail=detail)
            program = build / "program"
        else:
            program.write_bytes(submission.source)
        runs = [executed(program, test, problem) for test in problem.tests]
    # If a checker fails on one test, what the others say isn't the whole truth.
    errors = (run for run in runs if run.verdict is Verdict.JE)
    others = (run for run in runs if run.verdict is not Verdict.AC)
    worst = next(errors, None) or next(others, Run(Verdict.AC))
    return Judgement(worst.verdict, runs, worst.detail)


def compiled(submission: Submission, build: Path) -> tuple[Verdict | None, str]:
    """Make build/program. Return None; or, if that fails, the verdict and the compiler's complaints."""
    (build / f"program.{submission.language}").write_bytes(submission.source)
    policy = Policy.workspace(build, limits=COMPILE_LIMITS, home="tmp", tmp_size="1G")
    with nsbox.Sandbox(policy, stock=0) as box:
        program, *args = COMPILERS[submission.language]
        done = box.exec(program, args, timeout=120, max_output=4000)
    if done.usage is None:  # nothing has run
        return Verdict.JE, done.stderr
    if done.timed_out:
        return Verdict.CE, "compiling takes too long"
    if done.returncode:
        return Verdict.CE, done.stderr or f"the compiler was ended: {done.cause}"
    return None, ""


def executed(program: Path, test: Test, problem: Problem) -> Run:
    """Run the program on one test, and check what it printed."""
    with tempfile.TemporaryDirectory(prefix="judge-") as name:
        place = Path(name)
        (place / "input").write_bytes(test.given)
        (arena := place / "arena").mkdir()
        words, policy = command(program, arena, problem)
        # Files, not pipes: file_size bounds them, so a flood ends by SIGXFSZ.
        with (
            open(place / "input") as stdin,
            open(place / "output", "wb") as stdout,
            open(place / "errors", "wb") as stderr,
            stack_of(problem.memory),
            nsbox.Popen(words, policy=policy, stdin=stdin, stdout=stdout, stderr=stderr) as process,
        ):
            try:
                process.wait(problem.patience)
                is_late = False
            except nsbox.TimeoutExpired:
                process.kill()
                is_late = True
        usage = process.sandbox.usage
        seconds = usage.user + usage.system
        is_late |= seconds > problem.seconds
        memory = usage.max_rss if usage.is_rss_own else 0
        verdict = ended_badly(process.returncode, is_late, memory, place, problem)
        detail = ""
        if verdict is None:
            verdict, detail = checked(place / "output", test, problem)
        return Run(verdict, seconds, memory, detail)


@contextmanager
def stack_of(memory: int) -> Iterator[None]:
    """Let programs that start in the block use all of their memory as a stack: they have this process's limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (memory if hard < 0 else min(memory, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def own_memory() -> int:
    """Return the most memory that this process had. The kernel counts as much for each program that it starts."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def command(program: Path, arena: Path, problem: Problem) -> tuple[list[str], Policy]:
    """Return the command that runs a program, and its policy. arena: an empty directory."""
    # The kernel counts in ticks, so it may end a program a third too early. What usage says is exact.
    seconds = math.ceil(2 * problem.seconds) + 1
    # Address space is more than memory in use. Where memory can't be told from the judge's own, it is the limit.
    space = 2 * problem.memory + 64 * MEBI if own_memory() < problem.memory else problem.memory
    limits = Limits(memory=space, cpu_seconds=seconds, file_size=problem.output, open_files=32, core_size=0)
    if program.suffix == ".py":
        shutil.copyfile(program, arena / "program.py")
        # Nothing to write to but /tmp, home included: nothing stays, nothing needs to be cleaned up.
        policy = Policy.workspace(arena, read_only=True, home="tmp", limits=limits, seccomp=ALONE, tmp_size="16M")
        return [sys.executable, "-I", "program.py"], policy
    policy = Policy.layers(
        RoBind(str(program), "/program", nofollow=True),  # a symlink would be one that compiling has left there
        RemountRo("/"),
        unshare={"net", "ipc", "uts", "cgroup"},
        limits=limits,
        seccomp=ALONE,
        hostname="judge",
        inherit_env=False,
        new_session=True,
        workdir="/",
    )
    return ["/program"], policy


def ended_badly(status: int, is_late: bool, memory: int, place: Path, problem: Problem) -> Verdict | None:
    """Return the verdict on a run that didn't end as it should, None if it did."""
    if max((place / name).stat().st_size for name in ("output", "errors")) >= problem.output:
        return Verdict.OLE
    if memory > problem.memory:
        return Verdict.MLE
    if is_late:
        return Verdict.TLE
    if status:
        last = (place / "errors").read_bytes()[-2000:].decode(errors="replace")
        return Verdict.MLE if any(word in last for word in OUT_OF_MEMORY) else Verdict.RE
    return None


def checked(output: Path, test: Test, problem: Problem) -> tuple[Verdict, str]:
    """Return the verdict on what a program printed; and, if the checker failed, how."""
    if problem.checker:
        return by_checker(output, test, problem)
    printed = output.read_bytes()  # as text, other alphabets' blanks and a lone CR would count as blanks
    if lines(printed) == lines(test.answer):
        return Verdict.AC, ""
    return Verdict.PE if printed.split() == test.answer.split() else Verdict.WA, ""


def lines(text: bytes) -> list[bytes]:
    """Return the lines of an output, without the blanks that nobody sees: ASCII's."""
    return [line.rstrip() for line in text.rstrip().split(b"\n")]


def by_checker(output: Path, test: Test, problem: Problem) -> tuple[Verdict, str]:
    """Run the checker in a sandbox of its own: what a program printed may be meant for it.

    A verdict is a word of WORDS with status 0. A checker that raises or is killed, prints no word, or prints more than
    the word, says nothing about the program.
    """
    with tempfile.TemporaryDirectory(prefix="judge-") as name:
        place = Path(name)
        (place / "checker.py").write_text(problem.checker)
        (place / "input").write_bytes(test.given)
        (place / "answer").write_bytes(test.answer)
        shutil.copyfile(output, place / "output")
        policy = Policy.workspace(place, read_only=True, home="tmp", limits=CHECK_LIMITS, tmp_size="64M")
        with nsbox.Sandbox(policy, stock=0) as box:
            done = box.exec(sys.executable, ["-I", "checker.py", "input", "answer", "output"], timeout=60)
    word = done.stdout.strip()
    if done.returncode == 0 and word in WORDS:
        return WORDS[word], ""
    if done.returncode or done.usage is None:
        last = done.stderr.strip().rpartition("\n")[2]
        return Verdict.JE, f"the checker ended with status {done.returncode} ({done.cause}): {last}"
    return Verdict.JE, f"the checker printed {word[:40]!r}, must print one of {', '.join(WORDS)}"


# ---- many submissions


def locally(submissions: Iterable[Submission], problem: Problem, workers: int) -> Iterator[Judgement]:
    """Judge on this machine, a few at a time.

    The judges are new processes, and small: a program's memory counts as at least what its judge has ever had.
    """
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(judge, submissions, repeat(problem))


def on_dask(submissions: Iterable[Submission], problem: Problem, address: str, workers: int) -> Iterator[Judgement]:
    """Judge on a cluster. address: of its scheduler; "" for processes of this machine."""
    from distributed import Client, LocalCluster

    cluster = address or LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    with Client(cluster) as client:
        yield from client.gather([client.submit(judge, one, problem, pure=False) for one in submissions])
    if not address:
        cluster.close()


def table(submissions: list[Submission], judgements: Iterable[Judgement]) -> int:
    """Print a line for each submission; return how many verdicts weren't due, or were the judge's own errors."""
    missed = 0
    print(f"{'program':<30}{'verdict':<9}{'tests':<15}{'s':>6}{'MiB':>6}")
    for one, found in zip(submissions, judgements, strict=True):
        tests = " ".join(run.verdict.name for run in found.runs) or "-"
        seconds = max((run.seconds for run in found.runs), default=0.0)
        memory = max((run.memory for run in found.runs), default=0)
        wrong = bool(one.due) and found.verdict.name != one.due
        missed += wrong or found.verdict is Verdict.JE
        print(f"{one.name:<30}{found.verdict.name:<9}{tests:<15}{seconds:>6.2f}{memory // MEBI or '-':>6}", end="")
        print(f"  {one.due} is due" if wrong else "")
        if found.verdict is Verdict.JE:
            print(f"judge.py: {one.name}: {found.detail}", file=sys.stderr)
    return missed


# ---- a problem, and submissions to it: right ones, wrong ones, hostile ones

# Print two numbers whose sum is the first number given, and whose order doesn't matter; then their names.
CHECKER = """
import sys
given, answer, output = [open(name, errors="replace").read().split() for name in sys.argv[1:]]
try:
    a, b = map(int, output)
except ValueError:
    print("WA")
else:
    print("AC" if a + b == int(given[0]) and a > 0 < b else "WA")
"""
SUMS = Problem((Test(b"1 2\n", b"3\n"), Test(b"20 22\n", b"42\n"), Test(b"-5 5\n", b"0\n")))
DEEPLY = Problem((Test(b"", b"3\n"),))
SPLITS = Problem((Test(b"7\n", b""), Test(b"100\n", b"")), checker=CHECKER)

_C = "#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
_C += "#include <sys/shm.h>\n#include <unistd.h>\n"
_DEEP = (
    _C + "__attribute__((noinline)) int sum(volatile int a, volatile int b) { return a ? sum(a - 1, b) + 1 : b; }\n"
    'int main(void) { printf("%d\\n", sum(500000, -500000) + 3); }\n'
)
_MAIN = _C + 'int main(void) {{ int a, b; scanf("%d %d", &a, &b); {} }}\n'
_PRINT = 'printf("%d\\n", a + b); return 0;'


def _c(name: str, due: str, body: str) -> Submission:
    return Submission(name, "c", _MAIN.format(body).encode(), due)


def _py(name: str, due: str, body: str) -> Submission:
    return Submission(name, "py", body.encode(), due)


DEMO = [
    _c("sum, C", "AC", _PRINT),
    Submission(
        "sum, C++", "cc", b"#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }", "AC"
    ),
    _py("sum, Python", "AC", "print(sum(map(int, input().split())))"),
    _c("difference", "WA", 'printf("%d\\n", a - b); return 0;'),
    _c("right, then half", "WA", 'if (a == 20) { printf("4"); exit(0); } ' + _PRINT),
    _c("too many lines", "PE", 'printf("\\n\\n%d\\n", a + b); return 0;'),
    _c("a blank that is none", "WA", 'printf("%d\\xc2\\xa0\\n", a + b); return 0;'),
    _c("typing error", "CE", "retrun 0;"),
    _c("loop", "TLE", "for (;;) { volatile int i = 0; (void)i; }"),
    _c("sleep", "TLE", "sleep(100000); " + _PRINT),
    _py("loop, Python", "TLE", "while True: pass"),
    _c("hoard", "MLE", "for (size_t n = 1 << 20;;) { char *p = malloc(n); memset(p, 1, n); }"),
    _py("hoard, Python", "MLE", "x = []\nwhile True: x.append('x' * 10**6)"),
    _py("too much at once", "MLE", "print(len('x' * 10**10))"),
    _c("10 GB", "OLE", 'for (int i = 0; i < 1250000000; i++) puts("1234567"); return 0;'),
    _py("10 GB, Python", "OLE", "while True: print('3' * 1000)"),
    _c("null pointer", "RE", "*(volatile int *)0 = 1; " + _PRINT),
    _c("status 1", "RE", 'printf("%d\\n", a + b); return 1;'),
    _c("fork bomb", "TLE", "for (;;) fork();"),
    _py("fork bomb, Python", "RE", "import os\nwhile True: os.fork()"),
    _py(
        "reads the answers",
        "RE",
        "import glob\nprint(open(glob.glob('/tmp/judge-*/**/answer', recursive=True)[0]).read())",
    ),
    _c("hoard of shared memory", "RE", "if (shmget(IPC_PRIVATE, 1 << 20, 0600) < 0) abort(); " + _PRINT),
    _c("reads /etc/passwd", "RE", 'fclose(fopen("/etc/passwd", "r")); ' + _PRINT),
    _c("writes outside", "RE", 'FILE *f = fopen("/etc/judge-was-here", "w"); if (!f) abort(); ' + _PRINT),
    _c("kills the judge", "WA", "for (int i = 1; i < 70000; i++) if (i != getpid()) kill(i, 9); return 0;"),
    _c("closes stdout", "WA", "fclose(stdout); " + _PRINT),
    Submission("reads /etc/shadow, compiling", "c", b'#include "/etc/shadow"\nint main(void) { }\n', "CE"),
    Submission("reads for ever, compiling", "c", b'#include "/dev/zero"\nint main(void) { }\n', "CE"),
]

DEEP_DEMO = [Submission("deep recursion", "c", _DEEP.encode(), "AC")]

SPLIT_DEMO = [
    _py("split", "AC", "n = int(input())\nprint(1, n - 1)"),
    _py("split otherwise", "AC", "n = int(input())\nprint(n - 2, 2)"),
    _py("no split", "WA", "n = int(input())\nprint(0, n)"),
    _py("prints no text", "WA", "import sys\nsys.stdout.buffer.write(b'\\xff 7')"),
    _py("attacks the checker", "WA", "print('__import__(\"os\")._exit(0)', 'x' * 100000)"),
]


def problem_from(directory: Path, checker: Path | None) -> Problem:
    """Return the problem whose tests are NAME.in and NAME.out in a directory."""
    tests = [Test(path.read_bytes(), path.with_suffix(".out").read_bytes()) for path in sorted(directory.glob("*.in"))]
    if not tests:
        raise SystemExit(f"judge.py: {directory} has no NAME.in")
    return Problem(tuple(tests), checker=checker.read_text() if checker else "")


def main(arguments: list[str]) -> int:
    """Judge; return 0 if each program got the verdict that is due, and the judge itself had no error."""
    parser = argparse.ArgumentParser(description="judge programs that nobody has read")
    parser.add_argument("--source", type=Path, help="a program: .c, .cc or .py")
    parser.add_argument("--tests", type=Path, help="a directory with NAME.in and NAME.out")
    parser.add_argument("--checker", type=Path, help="a Python file that checks outputs")
    parser.add_argument("--workers", type=int, default=2, help="how many programs are judged at once (default: 2)")
    parser.add_argument("--dask", nargs="?", const="", metavar="ADDRESS", help="judge on a Dask cluster")
    options = parser.parse_args(arguments)
    if (options.source is None) != (options.tests is None):
        parser.error("--source and --tests go together")
    if options.source:
        one = Submission(options.source.name, options.source.suffix[1:], options.source.read_bytes())
        problems = [(problem_from(options.tests, options.checker), [one])]
    else:
        problems = [(SUMS, DEMO), (DEEPLY, DEEP_DEMO), (SPLITS, SPLIT_DEMO)]
    missed = 0
    for problem, submissions in problems:
        if options.dask is None:
            found = locally(submissions, problem, options.workers)
        else:
            found = on_dask(submissions, problem, options.dask, options.workers)
        missed += table(submissions, found)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
