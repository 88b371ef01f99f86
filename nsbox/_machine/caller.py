"""Asks for what the caller has: hard limits, which no command can exceed, and a directory for nsbox's state."""

from __future__ import annotations

import os
import resource

from nsbox._files.links import detours

_LIMITS = ("AS", "NPROC", "CPU", "FSIZE", "NOFILE", "CORE")


def hard_limits() -> tuple[tuple[str, int], ...]:
    """Return the hard limits that aren't infinite, by their names without RLIMIT_."""
    hard = ((name, resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]) for name in _LIMITS)
    return tuple((name, value) for name, value in hard if value != resource.RLIM_INFINITY)


def state_home() -> str:
    """Return the user's directory for state (XDG base directories), an absolute path; "" if there is none."""
    variable = os.environ.get("XDG_STATE_HOME", "")
    path = variable if os.path.isabs(variable) else os.path.expanduser("~/.local/state")
    return path if os.path.isabs(path) else ""


def transactions_dir() -> str:
    """Return the directory where transactions keep their files, in the user's directory for state."""
    return os.path.join(state_home() or os.path.expanduser("~/.local/state"), "nsbox", "transactions")


def state() -> tuple[str, tuple[str, ...]]:
    """Return nsbox's directory in the user's directory for state, without links, and detours on the way there."""
    home = state_home()
    if not home:
        return "", ()
    named = os.path.join(home, "nsbox")
    real = os.path.realpath(named)
    return real, () if real == named else detours(named, real)
