"""The part about tool calls: much output as a record and as a stream, and how long a cancelled call takes to end."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from nsbox._cli.bench.parts import Bench, Subject, interleave
from nsbox._cli.bench.results.stats import Part
from nsbox._policy.policy import Policy

_MIB = {True: 1024, False: 8}  # whether the whole suite runs
_GRACE = 0.1


def calls(bench: Bench) -> Part:
    """Measure shell(), stream() and AsyncSandbox.stream() with the same output; and a cancel, without grace time."""
    from nsbox._calls.token import CancelToken
    from nsbox.async_sandbox import AsyncSandbox
    from nsbox.sandbox import Sandbox

    mib = _MIB[bench.scale.file_rounds > 10]
    size, line = mib << 20, f"head -c {mib}M /dev/zero"
    workspace = os.path.join(bench.scratch, "calls")
    os.mkdir(workspace)
    policy = Policy.workspace(workspace)

    def timed(function: object) -> tuple[float]:
        begin = time.perf_counter()
        assert callable(function)
        assert function() == size
        return ((time.perf_counter() - begin) * 1e3,)

    with Sandbox(policy) as box:
        coroutines = AsyncSandbox(policy)

        async def read() -> int:
            return sum([len(event.data) async for event in coroutines.stream(line)])

        def cancelled() -> tuple[float]:
            token = CancelToken()
            begun: list[float] = []

            def cancel() -> None:
                begun.append(time.perf_counter())
                token.cancel()

            line = "trap '' TERM; echo; while :; do sleep 1000; done"
            box.shell(line, cancel=token, grace=_GRACE, on_output=lambda _: threading.Thread(target=cancel).start())
            return ((time.perf_counter() - begun[0] - _GRACE) * 1e3,)

        with asyncio.Runner() as runner:
            subjects = [
                Subject(("shell()",), lambda: timed(lambda: box.shell(line).stdout_bytes)),
                Subject(("stream()",), lambda: timed(lambda: sum(len(event.data) for event in box.stream(line)))),
                Subject(("AsyncSandbox.stream()",), lambda: timed(lambda: runner.run(read()))),
                Subject(("cancel, without its grace time",), cancelled),
            ]
            rows = interleave(subjects, min(20, bench.scale.file_rounds), min(2, bench.scale.warmup), bench.rng)
            runner.run(coroutines.close())
    part = Part("calls", f"tool calls: {mib} MiB of output as a record, and as a stream", "ms", rows)
    part.compare([("stream()", "shell()"), ("AsyncSandbox.stream()", "shell()")])
    part.state("cancel, without its grace time")
    return part
