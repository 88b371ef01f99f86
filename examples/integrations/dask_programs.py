"""Evaluate 10,000 untrusted programs on a Dask cluster. With --kill, a worker is killed midway.

    python examples/integrations/dask_programs.py [--count 10000] [--kill] [--scheduler ADDRESS]

Without --scheduler, the program starts a cluster of two processes. On a terminal, a bar shows its progress.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter

from distributed import Client, LocalCluster

import nsbox
from nsbox.integrations import dask as contained

LIMITS = nsbox.Limits(memory="512M", cpu_seconds=2, file_size="1M")
PROGRAMS = ("sum(range({n}))", "{n} ** 3 % 7", "sorted(str({n}))", "1 // ({n} % 50 - 3)", "import os; os._exit(3)")


def programs(count: int) -> list[str]:
    """Return made-up programs: most are right, some fail."""
    return [PROGRAMS[n % 50 if n % 50 < len(PROGRAMS) else n % 3].format(n=n) for n in range(count)]


def evaluate(client: Client, codes: list[str], *, kill: bool) -> Counter[str]:
    """Evaluate all; return how many there were of each kind."""
    found: Counter[str] = Counter()
    for result in contained.map(client, codes, timeout=10, progress=True):
        found[str(result.exception.type if result.exception else result.cause)] += 1
        if result.returncode == 0:
            found["status 0"] += 1
        if result.attempt > 1:
            found["run again"] += 1
        found["records"] += 1
        if kill and found["records"] == len(codes) // 4:
            worker, pid = sorted(client.run(os.getpid).items())[0]
            print(f"killing {worker}")
            os.kill(pid, signal.SIGKILL)
    return found


def main(arguments: list[str]) -> int:
    """Evaluate; return 0 if each program has one record."""
    parser = argparse.ArgumentParser(description="evaluate made-up programs on a Dask cluster")
    parser.add_argument("--count", type=int, default=10_000, help="how many programs (default: 10000)")
    parser.add_argument("--kill", action="store_true", help="kill a worker of the local cluster after a quarter")
    parser.add_argument("--scheduler", help="the address of an existing cluster's scheduler")
    options = parser.parse_args(arguments)
    cluster = options.scheduler or LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with Client(cluster) as client:
        policy = contained.SandboxPlugin(lambda scratch: nsbox.Policy.workspace(scratch, limits=LIMITS), overlay=True)
        client.register_plugin(policy)
        began = time.monotonic()
        found = evaluate(client, programs(options.count), kill=options.kill)
        seconds = time.monotonic() - began
    if not options.scheduler:
        cluster.close()
    print(
        f"{found['records']} programs, {found['records'] / seconds:.0f} a second; {found['run again']} were run again"
    )
    print(", ".join(f"{count} {name}" for name, count in sorted(found.items()) if name not in ("records", "run again")))
    return 0 if found["records"] == options.count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
