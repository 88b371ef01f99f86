"""What the users of a Jupyter server are told about a kernel that can't start.

A server shows the text of an HTTPError in the browser; of any other exception, its REST interface says "Unhandled
error" (jupyter_server/base/handlers.py, APIHandler.write_error). Callers without a server get the exception itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tornado.web import HTTPError

from nsbox import NsboxError

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
