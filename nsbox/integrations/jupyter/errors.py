"""What users are told about a kernel that can't start, or that has ended.

A server shows the text of an HTTPError in the browser; of any other exception, its REST interface says "Unhandled
error" (jupyter_server/base/handlers.py, APIHandler.write_error). Callers without a server get the exception itself.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from tornado.web import HTTPError

from nsbox import NsboxError, Policy, Usage, hints

_LIMITS = ("memory", "total_memory", "processes", "cpu_seconds", "file_size", "open_files")  # which end kernels
_SERVER = "jupyter_server.services.kernels.kernelmanager"


class KernelStartError(HTTPError):
    """A kernel of a server can't start. str() is its cause, in one line."""

    def __init__(self, line: str) -> None:
        """Make the exception. line: what the browser and the log show."""
        super().__init__(500, line)
        self._line = line

    def __str__(self) -> str:
        return self._line


def one_line(error: BaseException) -> str:
    """Return an exception's text in one line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__


@contextlib.contextmanager
def told(manager: object, kernel: str) -> Iterator[None]:
    """Raise what goes wrong in the block as a KernelStartError if a Jupyter server manages the kernel.

    manager: the kernel's manager.
    kernel: the name that users know, for the text.
    """
    try:
        yield
    except (NsboxError, OSError, ValueError) as error:
        if not _is_of_server(manager):
            raise
        raise KernelStartError(f"the kernel {kernel!r} can't start: {one_line(error)}") from error


def _is_of_server(manager: object) -> bool:
    server = sys.modules.get(_SERVER)  # where a server runs, it is imported
    return server is not None and isinstance(getattr(manager, "parent", None), server.MappingKernelManager)


def ending(policy: Policy, status: int, usage: Usage | None, printed: str = "") -> tuple[str, str]:
    """Return how a kernel has ended, and what may help, "" if that isn't known.

    policy: what it ran under. status, usage: as of Popen. printed: the end of what it printed, if that is known.
    """
    said = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    known = hints(policy, status, stderr=printed, usage=usage)
    found = [hint.message for hint in known if hint.kind != "crash"]  # which `said` says
    if found:
        return said, "; ".join(found)
    chosen = ((name, getattr(policy.limits, name)) for name in _LIMITS)
    limits = ", ".join(f"{name}={value}" for name, value in chosen if value is not None)
    return said, f"one of its limits may be too small: {limits}" if limits else ""
