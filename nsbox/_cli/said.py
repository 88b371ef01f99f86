"""What the nsbox command says on standard error, in the words of its options; and when nobody reads standard output."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import NoReturn

from nsbox._base.display import printable


def complain(error: BaseException, status: int) -> int:
    """Print an error in one line on standard error; return the exit status."""
    from nsbox._cli.options import in_options

    say(in_options("; ".join([str(error), *getattr(error, "__notes__", [])])))
    return status


def say(text: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:  # else it is closed, and print() would take standard output
        with contextlib.suppress(OSError):  # nobody reads it
            print("nsbox:", printable(text), file=sys.stderr)


def flush_streams() -> None:
    """Write out what is kept for standard output and standard error, as far as they are open and somebody reads."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong; the usage is --help's."""

    def error(self, message: str) -> NoReturn:
        """Print it, and exit with status 2."""
        self.exit(2, f"{self.prog}: {printable(message)}; see {self.prog} --help\n")


def flushed(status: int) -> int:
    """Return the exit status when all is written; another, with a line on standard error, if it can't be."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return unwritten(error)
    return status


def unwritten(error: OSError) -> int:
    """Return the exit status for output that nobody takes: SIGPIPE's in silence where the reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still kept for it is dropped at the interpreter's end
    if isinstance(error, BrokenPipeError):
        return 141
    return complain(OSError(f"standard output: {error.strerror}"), 1)
