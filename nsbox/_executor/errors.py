"""RemoteError: a call in a sandbox didn't return a value. It is made here, of texts; nothing is unpickled."""

from __future__ import annotations

from nsbox._base.display import printable
from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from nsbox._python.reply import PythonException
    from nsbox._python.result import PythonResult


class RemoteError(NsboxError):
    """A function that was called in a SandboxExecutor didn't return a value.

    problem: what happened, in one line: the exception's class and message, or how the call ended.
    exception: the PythonException that the function has raised; None if it raised none.
    record: the PythonResult of the call, with its output and with `why`.

    If the function has raised one of Python's ordinary exceptions, such as ValueError, this is a ValueError as well. If
    the call took longer than the executor's time limit, it is a TimeoutError. The traceback inside is a note.
    """

    def __init__(self, problem: str, exception: PythonException | None, record: PythonResult) -> None:
        """Make the exception; the parameters become attributes."""
        super().__init__(problem)
        self.problem, self.exception, self.record = problem, exception, record

    def __str__(self) -> str:
        return printable(self.problem)

    def __reduce__(self) -> tuple[object, ...]:
        state = {"__notes__": self.__notes__} if hasattr(self, "__notes__") else None
        kind = next((name for name, twin in _TWINS.items() if type(self) is twin), "")
        return _again, (kind, self.problem, self.exception, self.record), state


# Exceptions that code may raise in the caller. Those that mean something to a generator, an event loop or the
# interpreter aren't among them: asyncio loses a StopIteration, and a CancelledError would look like a task's.
_ORDINARY: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, FileExistsError, FileNotFoundError),
    *(FloatingPointError, ImportError, IndexError, IsADirectoryError, KeyError, LookupError, ModuleNotFoundError),
    *(NameError, NotADirectoryError, NotImplementedError, OSError, OverflowError, PermissionError, RecursionError),
    *(RuntimeError, TypeError, UnboundLocalError, UnicodeError, ValueError, ZeroDivisionError),
)


def _twin(kind: type[Exception]) -> type[RemoteError]:
    made = type(f"Remote{kind.__name__}", (RemoteError, kind), {"__doc__": RemoteError.__doc__, "__module__": "nsbox"})
    assert issubclass(made, RemoteError)
    return made


_TWINS = {kind.__name__: _twin(kind) for kind in (*_ORDINARY, TimeoutError)}
_RAISED = {kind.__name__ for kind in _ORDINARY}


def _again(kind: str, problem: str, exception: PythonException | None, record: PythonResult) -> RemoteError:
    return _TWINS.get(kind, RemoteError)(problem, exception, record)


def raised(exception: PythonException, record: PythonResult, hint: str = "") -> RemoteError:
    """Return the error for an exception that a function has raised. hint: what may have caused it, and what helps."""
    name = exception.type if exception.module == "builtins" and exception.type in _RAISED else ""
    error = _again(name, str(exception), exception, record)
    lines = exception.traceback.rstrip("\n").split("\n")
    error.add_note("\n".join(["In the sandbox:", *(f"  {printable(line)}" for line in lines)]))
    if hint:
        error.add_note(printable(hint))
    return error


def ended(problem: str, record: PythonResult) -> RemoteError:
    """Return the error for a call that ended without a value or an exception."""
    error = _again("TimeoutError" if record.timed_out else "", problem, None, record)
    for hint in record.why:
        error.add_note(printable(hint.message))
    return error


RemoteError.__module__ = "nsbox"
