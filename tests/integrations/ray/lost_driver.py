"""Programs around a driver of Ray's that is killed, for test_lost.py.

lost_driver.py cluster DIRECTORY    starts Ray, prints its address, and ends it when stdin ends
lost_driver.py victim ADDRESS       has code run on two actors, for ever
lost_driver.py check ADDRESS        prints values that two actors have computed
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import ray

import nsbox
from nsbox.integrations.ray import SandboxActor

BEAT = "import time\nn = 0\nwhile True:\n    n += 1\n    open('beat', 'w').write(str(n))\n    time.sleep(0.01)"


def actors() -> list[Any]:
    # A function of this module would be looked up by its name, which the workers don't have.
    return [SandboxActor.options(num_cpus=1).remote(lambda at: nsbox.Policy.workspace(at)) for _ in range(2)]


def main(what: str, where: str) -> None:
    if what == "cluster":
        options: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
        context = ray.init(**options, log_to_driver=False, logging_level="error", _temp_dir=str(Path(where) / "ray"))
        print(context.address_info["gcs_address"], flush=True)
        sys.stdin.read()
    else:
        ray.init(address=where, log_to_driver=False, logging_level="error")
        made = actors()
        if what == "victim":
            running = [actor.run.remote(BEAT, timeout=10_000) for actor in made]
            print("begun", flush=True)
            ray.get(running)
            time.sleep(10_000)
        done = ray.get([made[n % 2].run.remote("import math\nmath.factorial(n)", inputs={"n": n}) for n in range(10)])
        assert [one.value for one in done] == [math.factorial(n) for n in range(10)]
        print(json.dumps([one.value for one in done]), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
