"""host_for(): what is known of this machine, with what one policy needs to know besides."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._core import abi
from nsbox._lookup.automounts import use_automounts
from nsbox._machine.accounts import with_accounts
from nsbox._machine.probe import probe, probe_with_bwrap
from nsbox._paths.home import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

# The look-ups of host_for() for the policy and the host that it has seen last.
_latest: tuple[Policy, Host, tuple[Callable[[Policy, Host], Host], ...]] | None = None


def host_for(policy: Policy) -> Host:
    """Return probe() with facts for this policy: matches of its patterns, bubblewrap, kernel ids, and so on."""
    global _latest
    host, latest = probe(), _latest
    if latest is None or latest[0] is not policy or latest[1] is not host:
        _latest = latest = policy, host, tuple(_lookups(policy, host))
    for look in latest[2]:
        host = look(policy, host)
    return host


def _lookups(policy: Policy, host: Host) -> Iterator[Callable[[Policy, Host], Host]]:
    """Yield the functions that look up facts for each command of a policy, in this order. Most policies need few."""
    if host.automounts and policy.base == "workspace":
        yield use_automounts
    if policy.has_patterns or policy.strict:
        from nsbox._lookup.matches import matched

        yield matched
    if policy.devices:
        from nsbox._lookup.devices import with_devices

        yield with_devices
    if abi.on_darwin:
        from nsbox._machine.darwin import with_spellings

        yield with_spellings
        return
    if policy.backend == "bwrap" and not host.bwrap_version:
        yield _with_version
    if policy.network not in ("none", "host"):
        from nsbox._lookup.network import with_network_files

        yield with_network_files
    if policy.base != "workspace":
        return
    if (policy.uid, policy.gid, policy.network) != (None, None, "none"):
        yield with_accounts
    if name_of(policy.home) is not None:
        from nsbox._homes.homes import with_home

        yield with_home
    if host.euid == 0:
        from nsbox._lookup.kernel_id import mapped

        yield mapped


def _with_version(_: Policy, host: Host) -> Host:
    return replace(probe_with_bwrap(), matches=host.matches, devices=host.devices)
