"""SandboxActor: an actor of Ray's with a sandbox and a warm interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import ray

import nsbox
from nsbox.integrations._policies import check
from nsbox.integrations.ray.place import Place

if TYPE_CHECKING:
    from nsbox.integrations._policies import Policies


class _Actor:
    """An actor with a Sandbox and a warm interpreter. Its methods return nsbox's own records, which hold plain values.

    policy: a Policy, or a function that returns one. The function gets an empty directory that the actor makes.
    share: whether code and commands get the memory that Ray has assigned to the actor (`memory=` of its options), if
        the policy sets neither `memory` nor `total_memory`: as Limits.memory. Default: True.
    options: of Sandbox.python(): imports, setup, python, stock, overlay, start_timeout.

    If the actor's node can't grant the policy, the actor fails: Ray's ActorDiedError quotes the UnavailableError, with
    its reasons.
    """

    def __init__(self, policy: Policies, *, share: bool = True, **options: Any) -> None:
        check(policy)
        with Place(policy, _shared if share else lambda asked: asked) as self._place:
            self._box = self._place.box
            self._python = self._box.python(**options).start()

    def ready(self) -> str:
        """Return the path of the interpreter, as code sees it: the sandbox is warm."""
        return self._python.executable

    def run(self, code: str, **options: Any) -> nsbox.PythonResult:
        """Run code in a branch of its own; as nsbox.Python.run()."""
        return self._python.run(code, **options)

    def map(self, codes: Iterable[Any], **options: Any) -> list[nsbox.PythonResult]:
        """Run many snippets; as nsbox.Python.map(), but the results come together, as a list."""
        with self._python.map(codes, **options) as results:
            return list(results)

    def shell(self, command: str, **options: Any) -> nsbox.ToolResult:
        """Run a command line; as Sandbox.shell()."""
        return self._box.shell(command, **options)

    def exec(self, program: str, args: Sequence[str] = (), **options: Any) -> nsbox.ToolResult:
        """Run a program; as Sandbox.exec()."""
        return self._box.exec(program, list(args), **options)

    def read(self, path: str, max_chars: int = 200_000) -> str:
        """Return the text of a file; as Sandbox.read()."""
        return self._box.read(path, max_chars)

    def write(self, path: str, content: str | bytes) -> None:
        """Make a file, or replace one; as Sandbox.write()."""
        self._box.write(path, content)

    def close(self) -> None:
        """End what runs, and the sandbox. ray.kill() does the same at once."""
        self._place.close()


def _shared(policy: nsbox.Policy) -> nsbox.Policy:
    """Return the policy with the actor's memory."""
    memory = int(ray.get_runtime_context().get_assigned_resources().get("memory", 0))
    limits = policy.limits
    if not memory or limits.memory is not None or limits.total_memory is not None:
        return policy
    return policy.with_(limits=dataclasses.replace(limits, memory=memory))


SandboxActor: Any = ray.remote(_Actor)
