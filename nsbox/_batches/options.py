"""The options of each snippet of a map, and what runs one of them."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._python.call import PythonCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypedDict

    from nsbox._batches.map import RunOne
    from nsbox._calls.token import CancelToken
    from nsbox._interpreter.supply import Supply
    from nsbox._policy.policy import Policy
    from nsbox._python.result import PythonResult
    from nsbox.secrets import Secret, Store

    class SnippetOptions(TypedDict, total=False):
        """What all snippets of a map have in common, wherever they run."""

        timeout: float | None
        grace: float
        args: Sequence[str]
        cwd: str | None
        env: Mapping[str, str] | None
        input: str | bytes | None
        max_output: int | str

    class MapOptions(SnippetOptions, total=False):
        """The same, and what never leaves this machine."""

        secrets: Store | Mapping[str, Secret | str] | None


_KNOWN = frozenset(("timeout", "grace", "args", "cwd", "env", "input", "secrets", "max_output"))


def runner(supply: Supply, policy: Callable[[], Policy], options: MapOptions) -> RunOne:
    """Return a function that runs one snippet in a branch of its own. Raises what is wrong with the options."""
    unknown = options.keys() - _KNOWN
    if unknown:
        raise TypeError(f"map() has no {', '.join(sorted(unknown))}=; each record says how its snippet ended")

    def call(code: str, inputs: Mapping[str, Any] | None, cancel: CancelToken | None) -> PythonCall:
        return PythonCall(supply, policy(), code, inputs=inputs, cancel=cancel, **options)

    call("", None, None).inlet.close()

    def run_one(index: int, code: str, inputs: Mapping[str, Any] | None, cancel: CancelToken) -> PythonResult:
        return call(code, inputs, cancel).run().at(index)

    return run_one
