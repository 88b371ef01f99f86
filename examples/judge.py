"""A judge: compile and run C that nobody has read, with limits, and compare what it prints.

    python examples/judge.py SOURCE.c INPUT EXPECTED

Compiling is contained as well as running: `#include "/etc/passwd"` is a program too. The run sees nothing but the
program itself: it is linked statically and is the only file of its root.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from signal import SIGKILL, SIGXCPU, SIGXFSZ

import nsbox
from nsbox import Limits, Policy, RemountRo, RoBind

COMPILE_LIMITS = Limits(memory="2G", cpu_seconds=20, file_size="64M")
RUN_LIMITS = Limits(memory="256M", cpu_seconds=2, file_size="1M", open_files=16)
PATIENCE = 3 * 2.0  # seconds by the clock, for programs that sleep


class Verdict(Enum):
    """What is said about a program."""

    RIGHT = "right answer"
    WRONG = "wrong answer"
    COMPILE = "doesn't compile"
    TIME = "takes too long"
    OUTPUT = "prints too much"
    CRASH = "crashes"


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what to tell the author."""

    verdict: Verdict
    detail: str = ""


def judge(source: str, given: str, expected: str) -> Judgement:
    """Compile the source, run it on the given input, compare its words with the expected ones."""
    with tempfile.TemporaryDirectory() as name:
        # Two directories: what compiling may write to isn't where the answer is.
        build, run = Path(name, "build"), Path(name, "run")
        build.mkdir()
        run.mkdir()
        errors = compile_c(source, build)
        if errors:
            return Judgement(Verdict.COMPILE, errors)
        return execute(build / "program", run, given, expected)


def compile_c(source: str, build: Path) -> str:
    """Make build/program; return the compiler's complaints, "" if there are none."""
    (build / "program.c").write_text(source)
    command = ["gcc", "-O2", "-static", "-o", "program", "program.c"]
    policy = Policy.workspace(build, limits=COMPILE_LIMITS)
    try:
        done = nsbox.run(command, policy=policy, stderr=nsbox.PIPE, text=True, errors="replace", timeout=60)
    except nsbox.TimeoutExpired:
        return "compiling takes too long"
    return done.stderr[-2000:] or "the compiler failed" if done.returncode else ""


def execute(program: Path, run: Path, given: str, expected: str) -> Judgement:
    """Run the program with nothing around it."""
    policy = Policy.layers(
        RoBind(str(program), "/program", nofollow=True),  # a symlink would be one that compiling has left there
        RemountRo("/"),
        unshare={"net", "ipc", "uts", "cgroup"},
        limits=RUN_LIMITS,
        hostname="judge",
        inherit_env=False,
        new_session=True,
        workdir="/",
    )
    (run / "input").write_text(given)
    # A file, not a pipe: limits.file_size bounds it, and a flood ends by SIGXFSZ.
    with open(run / "input") as stdin, open(run / "output", "w") as stdout:
        try:
            done = nsbox.run(["/program"], policy=policy, stdin=stdin, stdout=stdout, stderr=stdout, timeout=PATIENCE)
        except nsbox.TimeoutExpired:
            return Judgement(Verdict.TIME, f"more than {PATIENCE:g} s by the clock")
    if done.returncode in (-SIGXCPU, -SIGKILL):  # the latter for programs that ignore the former
        return Judgement(Verdict.TIME, f"more than {RUN_LIMITS.cpu_seconds} s of processor time")
    if done.returncode == -SIGXFSZ:
        return Judgement(Verdict.OUTPUT)
    if done.returncode:
        return Judgement(Verdict.CRASH, f"status {done.returncode}")
    right = (run / "output").read_text(errors="replace").split() == expected.split()
    return Judgement(Verdict.RIGHT if right else Verdict.WRONG)


SUM = '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); }\n'

DEMO = {
    "a sum": SUM,
    "a difference": SUM.replace("a + b", "a - b"),
    "a typing error": SUM.replace("printf(", "print("),
    "a loop": "int main(void) { for (;;) { volatile int i = 0; (void)i; } }\n",
    "a flood": '#include <stdio.h>\nint main(void) { for (;;) puts("3"); }\n',
    "a spy at run time": '#include <stdio.h>\nint main(void) { fclose(fopen("/etc/passwd", "r")); }\n',
    "a spy at compile time": '#include "/etc/shadow"\nint main(void) { }\n',
}


def main(arguments: list[str]) -> None:
    """Judge a program from files, or some small ones."""
    if arguments:
        source, given, expected = (Path(name).read_text() for name in arguments)
        programs = {arguments[0]: source}
    else:
        programs, given, expected = DEMO, "1 2\n", "3\n"
    for name, source in programs.items():
        result = judge(source, given, expected)
        print(f"{name}: {result.verdict.value}", f"({result.detail.splitlines()[0]})" if result.detail else "")


if __name__ == "__main__":
    main(sys.argv[1:])
