"""A driver of Ray's, as a program of its own: it prints what it saw as JSON, for test_ray.py.

driver.py DIRECTORY     a short path: Ray has the paths of its sockets there
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray

import nsbox
from nsbox.integrations.ray import SandboxActor


def main(place: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    policies = []
    for name in ("a", "b"):
        (place / name).mkdir()
        policies.append(nsbox.Policy.workspace(place / name))
    actors = [SandboxActor.options(num_cpus=0.5).remote(policy, imports=["math"]) for policy in policies]
    seen["ready"] = ray.get([actor.ready.remote() for actor in actors])
    futures = [actors[n % 2].run.remote("math.factorial(n)", inputs={"n": n}, timeout=60) for n in range(20)]
    seen["values"] = [result.value for result in ray.get(futures)]
    codes = ["1 / 0", "import os; os.abort()", "while True: pass"]
    seen["causes"] = [one.cause for one in ray.get(actors[0].map.remote(codes, timeout=1, grace=0))]
    seen["shell"] = ray.get(actors[0].shell.remote("echo hello > file; cat file")).stdout
    seen["read"] = ray.get(actors[0].read.remote("file"))
    ray.get(actors[1].write.remote("other", "x"))
    seen["exec"] = ray.get(actors[1].exec.remote("cat", ["other", "file"])).returncode
    try:
        ray.get(actors[1].run.remote("1", timeout="x"))
    except (TypeError, ValueError) as error:
        seen["bad input"] = str(error)
    seen["killed"] = killed(actors[1], place / "b")
    seen["unavailable"] = unavailable(policies[0].with_(backend="seatbelt"))
    limit = "import resource\nresource.getrlimit(resource.RLIMIT_AS)[0]"
    actor = SandboxActor.options(num_cpus=0.5, memory=512 << 20).remote(lambda at: nsbox.Policy.workspace(at))
    seen["memory"] = ray.get(actor.run.remote(limit)).value
    ray.get([actor.close.remote(), actors[0].close.remote()])
    return seen


def killed(actor: Any, workspace: Path) -> list[Any]:
    """Return what an actor that is killed has run."""
    beat = "import tempfile, time\ntempfile.mkstemp(prefix='ran-', dir='.')\n"
    beat += "while True:\n    open('beat', 'w').write(str(time.monotonic()))\n    time.sleep(0.01)"
    running = actor.run.remote(beat)
    while not (workspace / "beat").exists():
        time.sleep(0.02)
    ray.kill(actor)
    try:
        ray.get(running)
    except ray.exceptions.RayActorError:
        time.sleep(1)
        before = (workspace / "beat").read_text()
        time.sleep(0.5)
        return [len(list(workspace.glob("ran-*"))), (workspace / "beat").read_text() == before]
    return []


def unavailable(policy: nsbox.Policy) -> list[str]:
    """Return what an actor says about a policy, and what nsbox says here."""
    words = []
    try:
        ray.get(SandboxActor.options(num_cpus=0.5).remote(policy).ready.remote())
    except ray.exceptions.ActorDiedError as error:
        words.append(str(error))
    try:
        with nsbox.Sandbox(policy) as box:
            box.python().start()
    except nsbox.UnavailableError as error:
        words.append(error.reasons[0].what)
    return words


if __name__ == "__main__":
    base = Path(sys.argv[1])
    ray.init(
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(base / "ray"),
    )
    found = main(base)
    ray.shutdown()
    print(json.dumps(found))
