"""A network list in a plan: the files by which programs look up names, mounted over the machine's. Pure."""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._plan.ops import BindData, Hostname

if TYPE_CHECKING:
    from nsbox._network.entries import Entry
    from nsbox._network.network import Network
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy

RESOLV_CONF, HOSTS = "/etc/resolv.conf", "/etc/hosts"
_METADATA = 0xA9FEA9FE  # 169.254.169.254
_NAME_SERVER = "198.19.0.53"  # the relay's, in the sandbox's net namespace: csrc/relay


def listed(policy: Policy) -> Network | None:
    """Return a policy's network list; None if it has the host's network, or none."""
    from nsbox._network.network import Network

    return policy.network if isinstance(policy.network, Network) else None


def files(policy: Policy, host: Host) -> tuple[BindData, ...]:
    """Return the files to mount over /etc/resolv.conf and /etc/hosts, or over what these lead to in the sandbox.

    The machine's hosts file has to be covered: it would give real addresses, which don't stand for listed names.
    Raises UnavailableError if there is no resolv.conf to mount over.
    """
    if policy.network in ("none", "host"):
        return ()
    places = dict(host.network_files)
    if RESOLV_CONF not in places:
        whose = "the sandbox has" if policy.base == "layers" else "this machine has"
        raise UnavailableError(
            Reason(
                f"network: {whose} no {RESOLV_CONF} over which the name server's address could be mounted",
                "put an empty file there",
            )
        )
    texts = {
        RESOLV_CONF: f"nameserver {_NAME_SERVER}\nsearch .\n",
        HOSTS: f"127.0.0.1 localhost ip6-localhost{_own_name(policy, host)}\n",
    }
    return tuple(
        BindData(places[path], text.encode("utf-8", "surrogateescape"), mode=0o644, read_only=True)
        for path, text in texts.items()
        if path in places
    )


def _own_name(policy: Policy, host: Host) -> str:
    """Return the sandbox's host name with a space before it, if programs can look it up."""
    own = [op.name for op in policy.ops if isinstance(op, Hostname)]
    name = policy.hostname or (own[-1] if own else host.hostname)
    is_plain = bool(name) and name not in ("localhost", "ip6-localhost") and not any(c <= " " or c == "#" for c in name)
    return f" {name}" if is_plain else ""


# ---- what it amounts to


def enforced(policy: Policy) -> tuple[str, ...]:
    """Return sentences for explain(): what is enforced, and by what."""
    network = listed(policy)
    assert network is not None
    return (
        "network: own net namespace, with no route to a network outside (the kernel)",
        "network: connections lead only to what is on the list; a relay outside makes them (nsbox-net)",
        "network: names that aren't listed are unknown; no question about them leaves this machine (nsbox-net)",
        _addresses(network),
        "network: 'localhost' alone leads to this machine's loopback; a prefix leads to no address of this machine",
        *_hellos(network),
        "network: no IPv6 inside; outside, the relay uses it for names that have it",
        *_amounts(network),
    )


def enforced_by_proxy(network: Network) -> tuple[str, ...]:
    """Return sentences for explain(): what is enforced where a proxy enforces the list."""
    return (
        "network: the proxy connects only to what is on the list; a secret identifies a client's sandbox (nsbox-proxy)",
        "network: names that aren't listed are refused; no question about them leaves this machine (nsbox-proxy)",
        _addresses(network),
        *_hellos(network),
        *_amounts(network),
    )


def _addresses(network: Network) -> str:
    return (
        "network: names lead to no address of this machine, loopback, link-local (metadata) or multicast"
        + ("" if network.private else ", nor of private networks,")
        + " that isn't listed by number"
    )


def _hellos(network: Network) -> tuple[str, ...]:
    if network.tls == "off":
        return ()
    return ("network: at port 443, and in TLS elsewhere, the hello names the server that was looked up",)


def _amounts(network: Network) -> tuple[str, ...]:
    limits = [f"limits: {network.connections} connections at once"]
    limits += [] if network.bytes is None else [f"limits: {network.bytes} bytes to and from the network"]
    return tuple(limits)


def not_enforced(policy: Policy) -> tuple[str, ...]:
    """Return sentences for explain(): what a policy's list leaves open."""
    network = listed(policy)
    assert network is not None
    return left_open(network)


def left_open(network: Network) -> tuple[str, ...]:
    """Return sentences for explain(): what this list leaves open, no matter what enforces it."""
    allowed = [entry for entry in network.entries if not entry.is_denied]
    caveats = ["network: what listed servers do with what they are sent"]
    if network.tls == "off":
        caveats.append("network: which server is meant in TLS (tls='off'): others at the same address can be asked for")
    else:
        caveats.append("network: which host a request names inside of TLS (domain fronting): the server decides")
    if network.tls == "sni-ech":
        caveats.append("network: which server an encrypted hello names (tls='sni-ech')")
    if any(entry.first <= 80 <= entry.last and not entry.is_udp for entry in allowed):
        caveats.append("network: which host a request names in plain HTTP (port 80): the server decides")
    if any(entry.kind in ("below", "any") for entry in allowed):
        caveats.append("network: names below a wildcard, which are looked up outside: they can carry data")
    wide = [entry.spelled for entry in allowed if entry.kind == "addresses" and _has_metadata(entry)]
    if wide:
        caveats.append(f"network: a cloud's metadata: {wide[0]} contains 169.254.169.254, to which a name may lead too")
    if any(entry.is_udp for entry in allowed):
        caveats.append("network: what goes by UDP to listed hosts: it isn't inspected")
    if any(entry.kind == "localhost" for entry in allowed):
        caveats.append("network: what this machine's servers at listed ports of 127.0.0.1 do for any client")
    return tuple(caveats)


def _has_metadata(entry: Entry) -> bool:
    return entry.bits < 32 and (entry.address ^ _METADATA) >> (32 - entry.bits) == 0
