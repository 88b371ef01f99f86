"""What helps if the workspace belongs to another user than the command's: fields of a policy."""

from __future__ import annotations

import os

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._layout.user import gid_of, uid_of

if TYPE_CHECKING:
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy


def remedy(policy: Policy, host: Host, path: str) -> str:
    """Say which fields a policy needs for work on another user's files at a path; "" if that isn't the problem.

    Root's commands have no capabilities. Unless they can have the owner's ids, they have no more rights to other users'
    files than any user has.
    """
    if policy.base != "workspace" or host.euid != 0 or host.kernel_id or host.system != "Linux":
        return ""
    root = max((p for p in policy.write if is_below(path, p)), key=len, default=None)
    try:
        status = os.stat(path if root is None else root)
    except OSError:
        return ""
    if status.st_uid in (0, uid_of(policy, host)) and status.st_gid in (0, gid_of(policy, host)):
        return ""
    uid, gid = status.st_uid, status.st_gid
    whose = f"{path if root is None else root} belongs to uid {uid}, gid {gid}, and commands have no capabilities"
    if not host.can_set_ids:
        return f"{whose}: run nsbox as that user"
    fields = f"ids='full', uid={uid}, gid={gid}"
    return f"{whose}: say {fields} (nsbox run: --ids full --uid {uid} --gid {gid})"


def dubious(policy: Policy, host: Host, path: str) -> str:
    """Say what helps if git refuses a repository because it belongs to another user."""
    by_ids = remedy(policy, host, path)
    if by_ids:
        return f"git refuses a repository of another user: {by_ids}"
    return (
        "git refuses a repository of another user, as it would outside; what you have allowed in your own .gitconfig "
        f"isn't seen here. Policy.env can allow it: GIT_CONFIG_COUNT='1', GIT_CONFIG_KEY_0='safe.directory', "
        f"GIT_CONFIG_VALUE_0={path!r}"
    )
