"""Helpers of the tests that need a Mac: the same command without a sandbox (the control) and in one.

A Python script of attempt() ends with REFUSED when the system says EPERM or EACCES, and in no other way: a script that
can't start, or has a mistake, doesn't pass for one that was refused.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import psutil

import nsbox

REFUSED = 77
PATIENCE = 30.0  # seconds for one command; only a hang takes as long

_FRAME = """
import errno, os, sys
def body(*args):
{body}
try:
    body(*sys.argv[1:])
except OSError as error:
    if error.errno not in (errno.EPERM, errno.EACCES):
        raise
    sys.stderr.write(str(error))
    os._exit({refused})
"""


def python(code: str, *args: object) -> list[str]:
    """Return the command line of a script; args are sys.argv[1:]."""
    return [sys.executable, "-I", "-c", textwrap.dedent(code), *map(str, args)]


def attempt(code: str, *args: object) -> list[str]:
    """Return the command line of a script, the body of a function of `args`, that ends with REFUSED if it is."""
    return python(_FRAME.format(body=textwrap.indent(textwrap.dedent(code), "    "), refused=REFUSED), *args)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {"capture_output": True, "text": True, "timeout": PATIENCE, "stdin": subprocess.DEVNULL} | given


def control(argv: Sequence[str], **options: Any) -> str:
    """Run it without a sandbox, where it must work, and return what it prints."""
    done = subprocess.run(argv, check=False, **_options(options))
    assert done.returncode == 0, f"the control fails, so this test shows nothing: {done}"
    return str(done.stdout)


def allowed(argv: Sequence[str], policy: nsbox.Policy, **options: Any) -> str:
    """Run it in a sandbox, where it must work, and return what it prints."""
    done = nsbox.run(argv, policy=policy, **_options(options))
    assert done.returncode == 0, done
    return str(done.stdout)


def refused(argv: Sequence[str], policy: nsbox.Policy, **options: Any) -> str:
    """Run what attempt() made in a sandbox, where it must be refused, and return the error it prints."""
    done = nsbox.run(argv, policy=policy, **_options(options))
    assert done.returncode == REFUSED, done
    return str(done.stderr)


def fails(argv: Sequence[str], policy: nsbox.Policy, **options: Any) -> str:
    """Run a program in a sandbox, where it must start, and fail; return all that it prints."""
    done = nsbox.run(argv, policy=policy, **_options(options))
    assert done.returncode != 0, done
    return f"{done.stdout}{done.stderr}"


def is_gone(pid: int) -> bool:
    """Wait until a process that isn't our child has ended; False when it doesn't."""
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            psutil.Process(pid).wait(PATIENCE)
        except psutil.TimeoutExpired:
            return False
    return True


def lookup(name: str) -> list[str]:
    """Return a script that asks launchd for a service, which is the way to every one of them."""
    return attempt(
        """
        import ctypes
        system = ctypes.CDLL(None)
        port = ctypes.c_uint32()
        own = ctypes.c_uint32.in_dll(system, "bootstrap_port")
        status = system.bootstrap_look_up(own, args[0].encode(), ctypes.byref(port))
        if status:
            raise PermissionError(errno.EPERM, "bootstrap_look_up: %d" % status)
        """,
        name,
    )
