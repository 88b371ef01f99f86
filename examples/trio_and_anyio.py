"""One command by trio, by anyio and by nsbox.asyncio, in a sandbox and outside of one.

    pip install nsbox trio anyio
    python examples/trio_and_anyio.py

trio and anyio, on both of its backends, need no helper: they start programs by subprocess.Popen, and the policy of
nsbox.confined() goes with the context, also to the thread that trio starts them in. On uvloop they do need one: that
event loop starts programs by its own C code, past confined(). nsbox.asyncio works there as it does on asyncio's loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nsbox
import nsbox.asyncio
from nsbox import Policy

# Its pid, and a file that lies beside the workspace: in a sandbox it is the second process, after the init.
COMMAND = ["sh", "-c", "test $$ = 2 && echo second process; cat ../secret 2>/dev/null || echo no secret"]


def by_trio() -> bytes:
    """trio.run_process, as always."""
    import trio

    done = trio.run(functools.partial(trio.run_process, COMMAND, capture_stdout=True))
    return bytes(done.stdout)


def by_anyio(backend: str) -> bytes:
    """anyio.run_process, as always."""
    import anyio

    return bytes(anyio.run(anyio.run_process, COMMAND, backend=backend).stdout)


def by_asyncio() -> bytes:
    """asyncio's own function. It needs no helper either."""

    async def run() -> bytes:
        process = await asyncio.create_subprocess_exec(*COMMAND, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0]

    return asyncio.run(run())


def by_nsbox(policy: Policy | None = None) -> bytes:
    """nsbox.asyncio, which contains its commands anywhere: by policy=, or else by that of the block around."""

    async def run() -> bytes:
        process = await nsbox.asyncio.create_subprocess_exec(*COMMAND, stdout=nsbox.asyncio.PIPE, policy=policy)
        return (await process.communicate())[0]

    return asyncio.run(run())


WAYS: dict[str, Callable[[], bytes]] = {
    "trio": by_trio,
    "anyio on asyncio": functools.partial(by_anyio, "asyncio"),
    "anyio on trio": functools.partial(by_anyio, "trio"),
    "asyncio": by_asyncio,
}


def shown(output: bytes) -> str:
    """The command's output on one line."""
    return ", ".join(output.decode().split("\n")[:-1])


def try_all(policy: Policy) -> None:
    """Print a line for each way: what the command says in the sandbox, and what without one."""
    for name, way in WAYS.items():
        missing = [part for part in name.split(" on ") if importlib.util.find_spec(part) is None]
        if missing:
            print(f"{name}: skipped, {missing[0]} isn't installed")
            continue
        with nsbox.confined(policy):
            inside = shown(way())
        print(f"{name}: confined: {inside}; not confined: {shown(way())}")
    with nsbox.confined(policy):
        inside = shown(by_nsbox())
    print(f"nsbox.asyncio: confined: {inside}; by policy=: {shown(by_nsbox(policy))}")


def main() -> None:
    """Make a workspace with a secret beside it, and try."""
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name, "workspace")
        workspace.mkdir()
        Path(name, "secret").write_text("a secret\n")
        with contextlib.chdir(workspace):
            try_all(Policy.workspace(workspace))


if __name__ == "__main__":
    sys.exit(main())
