"""DaskResult: what code did on a worker, and which workers were lost before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsbox import Hint, PythonResult, ToolResult
from nsbox._base.frozen import frozen

if TYPE_CHECKING:
    from typing import Any

_UNKNOWN = 255  # the status where nobody knows it, as in Usage


@frozen
class DaskResult(PythonResult):
    """What code did on a worker: a PythonResult, and where it ran. If a worker is lost, its record is lost too.

    worker: the address of the worker that ran it; "" if none has.
    lost: the addresses of the workers on which the code, or others of its batch, had begun before, and that were lost
        with their records. If it is (), nothing of the code has run before.

    All of it is text, numbers, and values that came as JSON. So nothing that a sandbox wrote is unpickled anywhere.
    """

    worker: str = ""
    lost: tuple[str, ...] = ()

    @property
    def attempt(self) -> int:
        """How many times the code may have begun, this time included: 1, unless workers were lost."""
        return len(self.lost) + 1

    @classmethod
    def of(cls, result: PythonResult, worker: str, lost: tuple[str, ...]) -> DaskResult:
        """Return the record of a worker."""
        return cls(**{**vars(result), "worker": worker, "lost": lost})

    @classmethod
    def unknown(cls, code: str, index: int, lost: tuple[str, ...], why: str) -> DaskResult:
        """Return the record of code that may have begun and isn't run again. why: a sentence."""
        nothing: dict[str, Any] = {"stdout": "", "stderr": "", "stdout_bytes": 0, "stderr_bytes": 0}
        rest: dict[str, Any] = {"is_truncated": False, "timed_out": False, "duration": 0.0}
        hints = (Hint("lost", why),)
        return cls(args=code, returncode=_UNKNOWN, **nothing, **rest, why=hints, index=index, lost=lost)

    @property
    def cause(self) -> Any:
        """Why it ended, as PythonResult.cause; "unknown" if the worker was lost."""
        return "unknown" if not self.worker else ToolResult.cause.fget(self)  # type: ignore[attr-defined]

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON: what PythonResult has, and `worker`, `lost` and `attempt`."""
        return {**super().as_dict(), "worker": self.worker, "lost": list(self.lost), "attempt": self.attempt}
