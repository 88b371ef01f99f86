"""Mounts the automounted file systems (autofs(5)) that a policy shows, by using them before a command does.

The automounter mounts them in the caller's mount namespace, at their first use. They never appear in a sandbox's own
namespace, where using them would fail with ELOOP. So they have to be mounted before the sandbox is made.
"""

from __future__ import annotations

import os

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_MOST = 64  # points below the paths that one policy shows


def use_automounts(policy: Policy, host: Host) -> Host:
    """Use these places, so that their file systems are mounted now; return the host. A failure shows up inside."""
    shown = (*policy.write, *policy.read, *(path for path, link in host.directories if link is None), *host.prefixes)
    below = [point for point in host.automounts if any(is_below(point, path) for path in shown)]
    above = [path for path in shown if any(path != point and is_below(path, point) for point in host.automounts)]
    for path in (*above, *below[:_MOST]):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            check_answer(error)
            continue
    return host
