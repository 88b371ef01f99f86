"""bubblewrap's command line: the program that carries it out, and what its options mean as a policy."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.paths import PACKAGE
from nsbox._core import abi

PROGRAM = os.path.join(PACKAGE, "nsbox-bwrap")  # csrc/bwrap/


def program() -> str:
    """Return the path of the program; raises UnavailableError where there is none."""
    if not abi.on_linux or not os.path.exists(PROGRAM):
        raise UnavailableError(Reason(abi.problem or "bwrap makes namespaces, which only Linux has"))
    return PROGRAM


def _environment() -> dict[bytes, bytes]:
    """Return the environment as the caller gave it: in the C locale, an interpreter sets LC_CTYPE (PEP 538)."""
    env = dict(os.environb)
    if env.get(b"LC_CTYPE") not in (b"C.UTF-8", b"C.utf8", b"UTF-8"):
        return env
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [word.partition(b"=") for word in file.read().split(b"\0")]
    except OSError:
        return env
    return {name: value for name, equals, value in reversed(pairs) if equals}


def execute(argv: list[str]) -> NoReturn:
    """Become bwrap. argv: the name by which it is called, then its arguments."""
    path = program()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which every interpreter ignores
        signal.signal(number, signal.SIG_DFL)
    os.execve(path, argv, _environment())


def main() -> int:
    """Become bwrap with this process's arguments; return the exit status where that isn't possible."""
    try:
        execute(sys.argv)
    except (UnavailableError, OSError) as error:
        print(f"bwrap: {error}", file=sys.stderr)
        return 1
