"""Has file systems mounted that are mounted at their first use (autofs(5)), where a policy shows them.

That is done in the caller's mount namespace: what its automounter mounts never appears in a sandbox's own, where a use
would be ELOOP. So it has to be there before the sandbox is made.
"""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

_MOST = 64  # below what one policy shows


def use_automounts(policy: Policy, host: Host) -> Host:
    """Use them, so that they are mounted now; return the host. What can't be is told by whoever uses it inside."""
    shown = (*policy.write, *policy.read, *(path for path, link in host.directories if link is None), *host.prefixes)
    below = [point for point in host.automounts if any(is_below(point, path) for path in shown)]
    above = [path for path in shown if any(path != point and is_below(path, point) for point in host.automounts)]
    for path in (*above, *below[:_MOST]):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            continue
    return host
