"""How a command has ended, in the three words that every record has: its status, its signal and the cause."""

from __future__ import annotations

import signal

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    Cause = Literal["exit", "signal", "timeout", "cancelled", "limit", "unknown"]
    Early = Literal["timeout", "cancelled"]  # the causes for which nsbox ends a command itself

CAUSES = ("exit", "signal", "timeout", "cancelled", "limit", "unknown")


def returncode(number: int, cause: str) -> int:
    """Return a return code as records have it. number: as Popen.returncode.

    A command that was ended early and then exited with 0 hasn't done its work. So it counts as ended by SIGTERM.
    """
    return -signal.SIGTERM if number == 0 and cause in ("timeout", "cancelled") else number


def signal_name(number: int) -> str | None:
    """Return the name of the signal that a return code stands for; None if it stands for none."""
    if number >= 0:
        return None
    try:
        return signal.Signals(-number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", 1 << 16)
        return f"SIGRTMIN+{-number - first}" if -number > first else f"SIG{-number}"


def words(number: int, cause: str) -> dict[str, int | str | None]:
    """Return how a command has ended, as each record has it. number: as Popen.returncode.

    status: the exit status; None after a signal. signal: its name; None without one. cause: why it ended.
    """
    code = returncode(number, cause)
    return {"status": code if code >= 0 else None, "signal": signal_name(code), "cause": cause}
