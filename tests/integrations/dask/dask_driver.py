"""A driver of Dask's that is killed, for test_lost_drivers.py: it has code run for ever.

dask_driver.py connected ADDRESS     on the workers of a cluster that others have
dask_driver.py alone DIRECTORY       on workers of its own
"""

from __future__ import annotations

import os
import sys

import dask
import distributed
from dask_functions import scratch_policy

import nsbox
from nsbox.integrations import dask as contained

BEAT = "import time\nn = 0\nwhile True:\n    n += 1\n    open(f'beat-{who}', 'w').write(str(n))\n    time.sleep(0.01)"


def main(what: str, where: str) -> None:
    if what == "alone":
        dask.config.set({"temporary-directory": where})
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
        client = distributed.Client(cluster)
        client.register_plugin(contained.SandboxPlugin(scratch_policy))
    else:
        client = distributed.Client(where)
        client.register_plugin(contained.SandboxPlugin(nsbox.Policy.workspace(os.getcwd())))
    single = contained.submit(client, BEAT, inputs={"who": "single"})
    results = contained.map(client, ((BEAT, {"who": n}) for n in range(100)), batch=1)
    next(results)
    single.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
