"""The part about grep: Sandbox.grep() over many files, compared with ripgrep outside, with the same options."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from nsbox._cli.bench.parts import Bench, Subject, interleave
from nsbox._cli.bench.results.stats import Part
from nsbox._filetools.grep import Wish, by_ripgrep
from nsbox._policy.policy import Policy

_FILES = {True: 100_000, False: 3000}  # whether the whole suite runs
_IN_ONE = 100  # files in one directory
_TEXT = "import os\n\n\ndef function_{i}():\n    return {i}\n" * 4
_PATTERN, _EVERY = "needle", 997


def _fill(workspace: str, count: int) -> None:
    for i in range(count):
        if i % _IN_ONE == 0:
            os.makedirs(f"{workspace}/{i // 5000}/{i // _IN_ONE}")
        with open(f"{workspace}/{i // 5000}/{i // _IN_ONE}/{i}.py", "w") as file:
            file.write(_TEXT.format(i=i) + ("a needle\n" if i % _EVERY == 0 else ""))


def grep(bench: Bench) -> Part:
    """Measure a search for a word that few files have."""
    from nsbox.sandbox import Sandbox

    scale = bench.scale
    count = _FILES[scale.file_rounds > 10]
    workspace = os.path.join(bench.scratch, "grep")
    os.mkdir(workspace)
    _fill(workspace, count)
    argv = by_ripgrep(Wish(_PATTERN, None, False, False, 0, 1000, 200_000, 600), ".")
    absent = "" if shutil.which("rg") else "no rg"

    def outside() -> tuple[float]:
        begin = time.perf_counter()
        subprocess.run(argv, cwd=workspace, capture_output=True, check=True)
        return ((time.perf_counter() - begin) * 1e3,)

    with Sandbox(Policy.workspace(workspace)) as box:

        def inside() -> tuple[float]:
            begin = time.perf_counter()
            found = box.grep(_PATTERN, timeout=600)
            assert len(found.matches) == -(-count // _EVERY)
            return ((time.perf_counter() - begin) * 1e3,)

        subjects = [Subject(("rg",), outside, absent), Subject(("Sandbox.grep()",), inside)]
        rounds = min(10, scale.file_rounds)
        rows = interleave(subjects, rounds, min(2, scale.warmup), bench.rng)
    part = Part("grep", f"a search in {count} files, all in the page cache; {rounds} rounds", "ms", rows)
    part.compare([("Sandbox.grep()", "rg")])
    return part
