"""A shell's exit status, which frameworks expect of a command that a signal ended."""

from __future__ import annotations


def shell_status(returncode: int) -> int:
    """Return the exit status as a shell reports it: 128+N after signal N.

    returncode: the status as subprocess reports it: -N after signal N.
    """
    return 128 - returncode if returncode < 0 else returncode
