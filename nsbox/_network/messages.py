"""Events under a network list as sentences: what was refused or failed, why, and what would help. Pure."""

from __future__ import annotations

import errno
import os

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._network.entries import ALL_PORTS, HTTPS, dotted
from nsbox._network.events import NetworkEvent, NetworkRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsbox._network.entries import Entry
    from nsbox._network.events import Reason
    from nsbox._network.network import Network

OPTION = "--allow-net"
_MOST = 6  # sentences
_MOST_SUBJECTS = 5  # of a sentence
_MOST_SHOWN = 4  # entries of the list
_GONE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


@frozen
class _Words(Frozen):
    """How remedies are spelled: as arguments in Python, or as options of the command line."""

    is_option: bool

    @property
    def list(self) -> str:
        return OPTION if self.is_option else "network="

    def add(self, *entries: str) -> str:
        """Say which entries to add."""
        entries = tuple(entry for entry in entries if " " not in entry)
        if not entries:
            return "add its address and port"
        if self.is_option:
            return "add " + " ".join(f"{OPTION} {entry}" for entry in entries)
        return "add " + ", ".join(repr(entry) for entry in entries)

    def field(self, name: str, value: object) -> str:
        """Spell a field of Network, for which the command line has no option."""
        return f"{name}={value!r}" if not self.is_option else f"{name}={value!r} in a configuration file's network"


def messages(network: Network, events: Sequence[NetworkEvent], words: str = "network=") -> tuple[str, ...]:
    """Return a few sentences about events that may have made a command fail: first refusals, then failures.

    Events that say the same share a sentence.

    words: how the user gave the list, "network=" or "--allow-net".
    """
    spelled = _Words(words == OPTION)
    groups: dict[tuple[object, ...], list[NetworkEvent]] = {}
    worked = {_subject(event): at for at, event in enumerate(events) if _has_worked(event)}
    for at, event in enumerate(events):
        is_over = worked.get(_subject(event), -1) > at  # it has worked since then
        if _is_trouble(event) and not (_has_failed(event) and is_over):
            groups.setdefault(_sort(network, event), []).append(event)
    ordered = sorted(groups.values(), key=lambda group: _has_failed(group[0]))
    return tuple(dict.fromkeys(_sentence(network, group, spelled) for group in ordered))[:_MOST]


def request(network: Network, event: NetworkEvent) -> NetworkRequest:
    """Return the question for on_connect that an event stands for."""
    why = _not_listed(network, [event], _Words(False))
    return NetworkRequest(event.name, event.address, event.port, event.protocol or "tcp", why.partition("; add ")[0])


def _has_worked(event: NetworkEvent) -> bool:
    return event.verdict == "allowed" and event.kind != "close"


def _is_trouble(event: NetworkEvent) -> bool:
    if event.kind == "publish" or (
        event.kind == "close" and not _host(event)
    ):  # or the end of one: its client is outside
        return False
    if event.verdict == "allowed":
        return event.kind == "close" and event.reason == "upstream" and bool(event.errno)
    return bool(event.reason) or event.errno == errno.ECONNABORTED


def _has_failed(event: NetworkEvent) -> bool:
    """Say if an event is a failure, which nobody decided."""
    return event.reason in ("upstream", "")


def _host(event: NetworkEvent) -> str:
    return event.name or event.address


def _subject(event: NetworkEvent) -> str:
    """Return what an event is about, written like an entry of the list."""
    port = f":{event.port}" if event.port else ""
    return f"{_host(event) or 'an address'}{port}{'/udp' if event.protocol == 'udp' else ''}"


def _sort(network: Network, event: NetworkEvent) -> tuple[object, ...]:
    """Return a key: events that have the same one share a sentence."""
    if event.reason == "not-listed":
        return event.reason, tuple(_others(network, event))
    if event.reason in ("address", "own-address", "sni"):
        return event.reason, _subject(event), event.address, event.sni
    if event.reason == "denied":
        return event.reason, _denying(network, event)
    if event.reason == "upstream":
        return event.reason, event.kind == "dns", event.kind == "close", event.errno
    if not event.reason:
        return event.reason, bool(event.address)
    return event.reason, event.kind if event.reason == "limit" else ""


def _sentence(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    tellers: dict[Reason, Callable[[Network, list[NetworkEvent], _Words], str]] = {
        "not-listed": _not_listed,
        "denied": _denied,
        "address": _address,
        "own-address": _own_address,
        "sni": _sni,
        "no-tls": _no_tls,
        "ech": _ech,
        "port-taken": _port_taken,
        "limit": _limit,
        "asked": _asked,
        "upstream": _upstream,
        "unasked": _unanswered,
        "": _unanswered,
    }
    return tellers[group[0].reason](network, group, words)


def _several(texts: Iterable[str]) -> tuple[str, bool]:
    """Return the texts as the subject of a sentence, and whether it is a plural."""
    unique = list(dict.fromkeys(texts))
    if len(unique) > _MOST_SUBJECTS:
        return f"{', '.join(unique[:_MOST_SUBJECTS])} and {len(unique) - _MOST_SUBJECTS} more", True
    return " and ".join([", ".join(unique[:-1]), unique[-1]] if unique[1:] else unique), len(unique) > 1


# ---- what the policy refuses


def _spelling(entry: Entry) -> str:
    """Return an entry with its ports."""
    target = {"name": entry.name, "below": f"*.{entry.name}", "any": "*", "localhost": "localhost"}.get(entry.kind)
    if target is None:
        target = dotted(entry.address) + (f"/{entry.bits}" if entry.bits < 32 else "")
    return f"{target}:{_ports(entry)}"


def _ports(entry: Entry) -> str:
    single = str(entry.first) if entry.first == entry.last else f"{entry.first}-{entry.last}"
    return ("*" if (entry.first, entry.last) == ALL_PORTS else single) + ("/udp" if entry.is_udp else "")


def _names(entry: Entry, event: NetworkEvent) -> bool:
    """Say if an entry names the host of an event, at any port."""
    if entry.kind == "addresses":
        value = _value(event.address) if not event.name else None
        return value is not None and value >> (32 - entry.bits) == entry.address >> (32 - entry.bits)
    if entry.kind == "localhost":
        return not event.name and event.address.startswith("127.")
    if entry.kind == "below":
        return event.name.endswith(f".{entry.name}")
    return entry.kind == "any" or (bool(event.name) and event.name == entry.name)


def _value(address: str) -> int | None:
    parts = address.split(".")
    return int.from_bytes(bytes(map(int, parts)), "big") if len(parts) == 4 and ":" not in address else None


def _others(network: Network, event: NetworkEvent) -> list[str]:
    """Return the ports on which the host of an event is listed."""
    return [_ports(entry) for entry in network.entries if not entry.is_denied and _names(entry, event)]


def _listed(network: Network) -> str:
    shown = list(dict.fromkeys(_spelling(entry) for entry in network.entries if not entry.is_denied))
    return ", ".join([*shown[:_MOST_SHOWN], *(["..."] if shown[_MOST_SHOWN:] else [])])


def _entry(event: NetworkEvent) -> str:
    """Return an entry that would allow what the event is about. A lookup has no port, so it gets 443."""
    return _subject(event) if event.port else f"{_host(event) or 'an address'}:{HTTPS}"


def _not_listed(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, are_many = _several(map(_subject, group))
    entries = list(dict.fromkeys(_entry(event) for event in group if not _is_special(event.address)))[:_MOST_SUBJECTS]
    remedy = f"; {words.add(*entries)}" if entries else ""
    others = _others(network, group[0])
    if all(_would_allow(network, event) for event in group):
        were = "weren't" if are_many else "wasn't"
        return f"{what} {were} in {words.list} when the command tried, and {'are' if are_many else 'is'} now: try again"
    if group[0].port and others:
        listed, has_several = _several(f":{port}" for port in others)
        return f"{what}: only {listed} {'are' if has_several else 'is'} listed{remedy}"
    verb, listed = "aren't" if are_many else "isn't", _listed(network)
    where = f"in {words.list} ({listed})" if listed else f"allowed, since {words.list} lists nothing"
    text = f"{what} {verb} {where}{remedy}"
    return text if group[0].port else f"{text}, or with another port than {HTTPS}"


def _would_allow(network: Network, event: NetworkEvent) -> bool:
    """Return whether the list, which has changed since then, allows what an event is about."""
    entries = [entry for entry in network.entries if not entry.is_denied and _names(entry, event)]
    is_udp = event.protocol == "udp"
    fits = [one for one in entries if not event.port or (one.first <= event.port <= one.last and one.is_udp == is_udp)]
    return bool(fits) and not _denying(network, event)


def _denying(network: Network, event: NetworkEvent) -> str:
    """Return the text of the entry that denies what an event is about; "" if none does."""
    for entry in network.entries:
        is_for = not event.port or entry.first <= event.port <= entry.last
        if entry.is_denied and is_for and entry.is_udp == (event.protocol == "udp") and _names(entry, event):
            return entry.text
    return ""


def _denied(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, are_many = _several(map(_subject, group))
    which = _denying(network, group[0])
    verb = "are" if are_many else "is"
    if not which:
        return f"{what} {verb} denied by a '!' entry of {words.list}, which wins over what allows it"
    return f"{what} {verb} denied by {which!r} in {words.list}, which wins over what allows it"


def _is_private(address: str) -> bool:
    """Say if private=True would let a name have this address: RFC 1918, RFC 6598, RFC 4193."""
    if ":" in address:
        return address[:2] in ("fc", "fd")
    second = int(address.split(".")[1])
    spans = {"10.": (0, 255), "192.": (168, 168), "172.": (16, 31), "100.": (64, 127)}
    low, high = spans.get(address.partition(".")[0] + ".", (256, 0))
    return low <= second <= high


def _is_special(address: str) -> bool:
    """Say if no sentence may tell how to open an address: loopback, metadata, 198.18.0.0/15, multicast."""
    value = _value(address)
    nets = ((0, 8), (127 << 24, 8), (0xA9FE0000, 16), (0xC6120000, 15), (0xE0000000, 3))
    return value is not None and any(value >> (32 - bits) == net >> (32 - bits) for net, bits in nets)


def _of_address(network: Network, event: NetworkEvent) -> list[str]:
    """Return entries that would allow an address itself, on the ports on which its name is listed."""
    if ":" in event.address or not event.address or event.address.startswith("127."):
        return []  # there are no entries for IPv6; 127.0.0.1 is the sandbox's own
    udp = "/udp" if event.protocol == "udp" else ""
    ports = [f"{event.port}{udp}"] if event.port else _others(network, event)
    return [f"{event.address}:{port}" for port in dict.fromkeys(ports or [str(HTTPS)])][:_MOST_SUBJECTS]


def _address(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    event = group[0]
    if not event.address:
        private = words.field("private", True)
        return (
            f"{_subject(event)} has no public address: add one of its own as an entry, or {private} if it is one of a "
            "private network"
        )
    fact = f"{event.name} is {event.address}, not a public address" if event.name else f"{_subject(event)} isn't public"
    remedies = []
    if _is_private(event.address):  # never say how to open others, such as a cloud's metadata
        entries = _of_address(network, event)
        remedies = [
            *([words.add(*entries)] if entries else []),
            *([words.field("private", True)] if event.name else []),
        ]
    if event.address.startswith("127."):
        remedies.append(f"'localhost:{event.port or 'PORT'}' is the host's own 127.0.0.1")
    if remedies:
        return f"{fact}: {' or '.join(remedies)}"
    return f"{fact}, and no name may have it" if event.name else f"{fact}: only an entry of its own allows it"


def _own_address(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    event = group[0]
    listed = [port for port in _others(network, event) if port.isdecimal()]
    port = str(event.port or next(iter(listed), "PORT"))
    if not event.address:
        fact = f"{_subject(event)} has an address of this host itself"
    else:
        fact = f"{event.name or _subject(event)} is {f'{event.address}, ' if event.name else ''}this host itself"
    remedies = [f"'localhost:{port}' is a server at its 127.0.0.1"]
    entries = _of_address(network, event)
    return f"{fact}: {'; or '.join([*remedies, *([words.add(*entries)] if entries else [])])}"


def _sni(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    event = group[0]
    off = words.field("tls", "off")
    if not event.sni:
        return f"{_subject(event)} was asked for no name (TLS): name the server in the client, or {off}"
    is_listed = _is_listed(network, event.sni, event.port or HTTPS)
    entry = f"{event.sni}:{event.port or HTTPS}"
    helps = f"connect to {event.sni} by its name" if is_listed else f"{words.add(entry)} and connect to that name"
    return f"{_host(event)} was asked for {event.sni} (TLS name): {helps}, or {off}"


def _is_listed(network: Network, name: str, port: int) -> bool:
    """Say if an entry allows connections to a name on a port."""
    event = NetworkEvent(0, 0, "connect", name, port)
    entries = [entry for entry in network.entries if not entry.is_udp and entry.first <= port <= entry.last]
    entries = [entry for entry in entries if _names(entry, event)]
    return bool(entries) and not any(entry.is_denied for entry in entries)


def _no_tls(_: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, _are = _several(map(_subject, group))
    return f"{what}: the client sent no TLS hello, which this port is for; {words.field('tls', 'off')} lets it pass"


def _ech(_: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, _are = _several(map(_subject, group))
    return f"{what}: the client's TLS hello is encrypted (ECH); {words.field('tls', 'sni-ech')} lets it pass"


def _port_taken(_: Network, group: list[NetworkEvent], __: _Words) -> str:
    what, _are = _several(map(_subject, group))
    ports, have_several = _several(str(event.port) for event in group)
    return (
        f"{what} can't be reached while a server inside listens on port{'s' if have_several else ''} {ports} of all "
        "addresses: bind it to 127.0.0.1"
    )


def _limit(network: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, _are = _several(map(_subject, group))
    if group[0].kind == "dns":
        return f"{what}: too many names were looked up, at once or in all"
    if group[0].kind == "udp" or group[0].protocol == "udp":
        return f"{what}: too many UDP flows at once"
    limits = [words.field("connections", network.connections)]
    if network.bytes is not None:
        limits.append(words.field("bytes", network.bytes))
    return f"{what}: a limit of the sandbox's network was reached: {', '.join(limits)}"


def _asked(_: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, are_many = _several(map(_subject, group))
    return (
        f"{what} {'were' if are_many else 'was'} asked for and refused (on_connect); "
        f"{words.add(*list(dict.fromkeys(map(_entry, group)))[:_MOST_SUBJECTS])} to allow it without asking"
    )


# ---- what isn't the policy's fault


def _upstream(_: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, are_many = _several(map(_subject, group))
    allowed = f"; {words.list} allows {'them' if are_many else 'it'}"
    event = group[0]
    if event.kind == "dns":
        if event.errno in (0, errno.ENOENT):
            return f"{what} can't be resolved on this host either: the name {_unknown(event)}{allowed}"
        return f"{what}: this host's name server failed, or didn't answer{allowed}"
    if event.kind == "close" and event.protocol == "tcp":  # for UDP, this is the first news of the server
        return f"{what}: the server ended the connection ({os.strerror(event.errno)}){allowed}"
    if event.errno == errno.ECONNREFUSED:
        return f"{what} refused the connection{allowed}"
    if event.errno in _GONE:
        return f"{what} can't be reached from this host ({os.strerror(event.errno)}){allowed}"
    if event.errno == errno.ETIMEDOUT:
        return f"{what} didn't answer in time{allowed}"
    return f"{what} failed on this host ({os.strerror(event.errno) if event.errno else 'no address'}){allowed}"


def _unanswered(_: Network, group: list[NetworkEvent], words: _Words) -> str:
    what, are_many = _several(map(_subject, group))
    if not group[0].address:
        return f"{what}: neither this host's resolver nor on_connect had answered when the command gave up"
    return f"{what} hadn't answered when the command gave up; {words.list} allows {'them' if are_many else 'it'}"


def _unknown(event: NetworkEvent) -> str:
    return "doesn't exist" if event.errno else "doesn't exist, or its name server doesn't answer"
