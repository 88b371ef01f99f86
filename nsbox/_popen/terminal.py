"""The caller's terminal, if a command has it open: what the command can't do to it.

In a session of its own, a command gets neither typed keys nor the terminal's signals. But a process that has a terminal
open may stop its output, and set its size, which sends SIGWINCH to the foreground (ioctl_tty(2)).
"""

from __future__ import annotations

import errno
import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._core import abi, request
from nsbox._seccomp.bpf import EPERM, Arg, Program, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsbox._plan.plan import Plan
    from nsbox._policy.policy import Policy

_TCXONC, _TIOCSWINSZ = 0x540A, 0x5414  # <asm-generic/ioctls.h>
# Programs that set the size of their own terminal, as pexpect does, expect ENOTTY: they go on without it.
_RULES = (
    Rule("ioctl", EPERM, (Arg(1, (_TCXONC,)),)),
    Rule("ioctl", errno.ENOTTY, (Arg(1, (_TIOCSWINSZ,)),)),
)


def filters(policy: Policy, plan: Plan, fds: Iterable[int]) -> list[bytes]:
    """Return the filters, in addition to the plan's, for a command that gets these descriptors.

    fds: the first three are standard input, output and error; -1 stands for the caller's own. The command may set a
    terminal that isn't this process's controlling one, such as one that the caller has made for it.
    """
    if not abi.on_linux or not policy.new_session or plan.wrapper:
        return []
    for i, fd in enumerate(fds):
        if os.isatty(number := i if i < 3 and fd == -1 else fd) and _is_ours(number):
            break
    else:
        return []
    wish = policy.filter  # not before: it takes long to make
    return [] if wish.base == "off" or "ioctl" in wish.allow else request.assembled((Program(_RULES),))


def _is_ours(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) >= 0
    except OSError:  # ENOTTY: another terminal
        return False
