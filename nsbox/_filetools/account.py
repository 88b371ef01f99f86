"""What observers hear of a file tool: its name, its paths, and the error that it raised. Never what is in the files."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._logs import observers

if TYPE_CHECKING:
    import contextlib
    import os
    from collections.abc import Sequence
    from types import TracebackType

    from nsbox._filetools.files import Files


class Account:
    """The Files of one call, as a context manager. Observers are told at its end, and of how it ended."""

    def __init__(
        self, files: contextlib.AbstractContextManager[Files], tool: str, paths: Sequence[str | os.PathLike[str]]
    ) -> None:
        self._files, self._tool, self._paths = files, tool, paths

    def __enter__(self) -> Files:
        try:
            return self._files.__enter__()
        except Exception as error:
            self._tell(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return self._files.__exit__(kind, error, traceback)
        except BaseException as other:
            error = other
            raise
        finally:
            self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        observers.note("files", "", tool=self._tool, paths=self._paths, error=error)
