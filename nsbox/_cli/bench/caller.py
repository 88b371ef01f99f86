"""A caller of a given size, as a process of its own: fills memory, then measures one spawn for each line that it reads.

A line is the name of a contender of `three()`, or "nsbox warm"; the answer is the time in seconds. Before that, it
writes its resident size in MiB.
"""

from __future__ import annotations

import mmap
import sys

from nsbox._cli.bench.contenders import Contender, three
from nsbox._cli.bench.results.machine import resident_mib
from nsbox._policy.policy import Policy
from nsbox.sandbox import Sandbox


def _grow_to(mib: int) -> bytearray:
    """Return ballast that makes the process this big, with every page written."""
    size = max(0, mib - resident_mib()) << 20
    ballast = bytearray(size)
    pages = range(0, size, mmap.PAGESIZE)
    ballast[:: mmap.PAGESIZE] = b"\1" * len(pages)
    return ballast


def main() -> None:
    """Serve the parent until it closes our stdin."""
    ballast = _grow_to(int(sys.argv[1]))
    box = Sandbox(Policy.workspace(sys.argv[2], network="host"))
    warm = Contender("nsbox warm", popen=box.Popen)
    contenders = {contender.name: contender for contender in (*three(sys.argv[2]), warm)}
    print(resident_mib(), flush=True)
    for line in sys.stdin:
        print(contenders[line.strip()].spawn(), flush=True)
    box.close()
    del ballast


if __name__ == "__main__":
    main()
