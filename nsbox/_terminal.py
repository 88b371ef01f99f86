"""The caller's terminal, where a command has it open: what the command can't do to it.

In a session of its own a command gets neither keys that are typed nor the terminal's signals. But a process that has
a terminal open may set its size, by which its foreground gets SIGWINCH, and stop its output (ioctl_tty(2)).
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
# ENOTTY is what programs expect that set the size of a terminal of their own, as pexpect does: they go on without.
_RULES = (
    Rule("ioctl", EPERM, (Arg(1, (_TCXONC,)),)),
    Rule("ioctl", errno.ENOTTY, (Arg(1, (_TIOCSWINSZ,)),)),
)


def filters(policy: Policy, plan: Plan, fds: Iterable[int]) -> list[bytes]:
    """Return the filters for a command that gets these descriptors, besides the plan's.

    fds: -1 first, second and third: the caller's own. A terminal that isn't this process's controlling one is the
    command's to set, such as one that the caller has made for it.
    """
    if not abi.on_linux or not policy.new_session or plan.wrapper:
        return []
    for i, fd in enumerate(fds):
        if os.isatty(number := i if i < 3 and fd == -1 else fd) and _is_ours(number):
            break
    else:
        return []
    wish = policy.filter  # which takes long to make
    return [] if wish.base == "off" or "ioctl" in wish.allow else request.assembled((Program(_RULES),))


def _is_ours(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) >= 0
    except OSError:  # ENOTTY: another terminal
        return False
