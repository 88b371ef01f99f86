"""The nsbox command's messages on standard error, in the words of its options; and what happens if output fails."""

from __future__ import annotations

import contextlib
import os
import sys

from nsbox._base.display import printable, shown
from nsbox._base.errors import AccessError, PolicyError


def complain(error: BaseException, status: int, *, is_from_file: bool = False) -> int:
    """Print an error as one line on standard error, a ConfigError as one for each problem; return the exit status.

    is_from_file: whether the policy is a file's. Its keys have the names that errors use, and options don't go with it.
    """
    from nsbox._cli.policy import in_options

    lines = str(error).split("\n") if hasattr(error, "problems") else [str(error)]  # each problem is one line
    lines[-1] = "; ".join([lines[-1], *getattr(error, "__notes__", [])])
    for text in lines:
        say(text if is_from_file else in_options(text))
    return status


def of_chdir(error: Exception, chdir: str | None) -> Exception:
    """Return the error with the name of --chdir if it is about that directory, else as it is."""
    if chdir is None or not isinstance(error, OSError) or error.filename not in (chdir, os.path.abspath(chdir)):
        return error
    is_outside = isinstance(error, AccessError)
    named = PolicyError("--chdir", f"{shown(chdir)}{' ' if is_outside else ': '}{error.strerror}")
    for note in getattr(error, "__notes__", ()):
        named.add_note(note)
    return named


def say(text: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:  # None if it is closed; print() would use standard output instead
        with contextlib.suppress(OSError):  # the reader is gone
            print("nsbox:", printable(text), file=sys.stderr)


def flush_streams() -> None:
    """Write out what is buffered for standard output and standard error, if they are open and can be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()


def flushed(status: int) -> int:
    """Return the exit status once all output is written; if that fails, return another, as unwritten() does."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return unwritten(error)
    return status


def unwritten(error: OSError) -> int:
    """Return the exit status for output that can't be written: SIGPIPE's, without a message, if the reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drops what is still buffered at the interpreter's exit
    if isinstance(error, BrokenPipeError):
        return 141
    return complain(OSError(f"standard output: {error.strerror}"), 1)
