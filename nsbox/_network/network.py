"""Network: a list of what a sandbox may connect to, as a wish. Whether a machine can enforce it is checked later."""

from __future__ import annotations

from nsbox._base.checks import check_size, sequence
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen_by_name
from nsbox._network.entries import MOST_SINGLE_PORTS, Entry, parse

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

_MOST_ENTRIES = 10_000
_MOST_CONNECTIONS = 10_000
_WORDS = ("none", "host", "public")
_TLS = ("sni", "sni-ech", "off")


@frozen_by_name
class Network(Frozen):
    """What a sandbox may connect to: whatever `allow` lists, and nothing else. Raises PolicyError.

    An empty list refuses everything, as network="none" does. It also records what a command tried to reach.

    allow: entries, such as "api.example". Each has a target: a name, "*.example.org" for all names below it, an IPv4
        address or prefix ("10.1.2.0/24"), "localhost" for the host's own 127.0.0.1, or "*" for every public address.
        Then may come ":PORT", ":FIRST-LAST" or ":*" (443 without it), and "/udp". A "!" in front denies the entry.
    deny: entries to deny, with or without "!". They win over allow, and on_connect isn't asked about them.
    private: let names have addresses of private networks (RFC 1918, RFC 6598, RFC 4193).
    tls: the hello that a client must send at port 443. "sni": one that names the server that was looked up; "sni-ech":
        it may also be encrypted (ECH); "off": nothing is checked.
    connections: how many a sandbox may have at once, 1 to 10,000.
    bytes: how many a sandbox may send and receive together, an int or such as "1G"; None: no limit.
    """

    allow: list[str] | tuple[str, ...] = ()
    deny: list[str] | tuple[str, ...] = ()
    private: bool = False
    tls: Literal["sni", "sni-ech", "off"] = "sni"
    connections: int = 256
    bytes: int | str | None = None
    entries: tuple[Entry, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        allow, deny = (_texts(name, getattr(self, name)) for name in ("allow", "deny"))
        for word in _WORDS:
            if word in allow:
                raise PolicyError("network", f"{word!r} isn't an entry, but a word by itself; a host is '{word}:443'")
        deny = tuple(text if text.startswith("!") else f"!{text}" for text in deny)
        entries = tuple(entry for text in (*allow, *deny) for entry in parse("network", text))
        if allow and all(entry.is_denied for entry in entries):
            raise PolicyError("network", "only denies, and allows nothing: '*:*' is every public address")
        for name, value in (("allow", allow), ("deny", deny), ("entries", entries)):
            object.__setattr__(self, name, value)
        self._check_amounts()

    def _check_amounts(self) -> None:
        if not isinstance(self.private, bool):
            raise PolicyError("network.private", f"is {type_phrase(self.private)}, must be True or False")
        if self.tls not in _TLS:
            raise PolicyError("network.tls", f"{self.tls!r} is none of {', '.join(map(repr, _TLS))}")
        count = self.connections
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_CONNECTIONS:
            raise PolicyError("network.connections", f"{count!r} isn't a number from 1 to {_MOST_CONNECTIONS}")
        if self.bytes is not None:
            object.__setattr__(self, "bytes", check_size("network.bytes", self.bytes))
        for what in ("UDP", "localhost"):
            ports = _single_ports(self.entries, is_udp=what == "UDP")
            if len(ports) > MOST_SINGLE_PORTS:
                raise PolicyError("network", f"has {len(ports)} ports of {what}, at most {MOST_SINGLE_PORTS}")

    def covers(self, other: Network) -> str:
        """Say why the other list allows something that this one doesn't; "" if it doesn't.

        The other must repeat each denial of this one, even for what it doesn't list: a listed name could have a denied
        address.
        """
        from nsbox._network.cover import Cover  # seldom needed

        allowed = Cover(entry for entry in self.entries if not entry.is_denied)
        denied = Cover(entry for entry in other.entries if entry.is_denied)
        for entry in other.entries:
            if not entry.is_denied and not allowed.has(entry):
                return f"{entry.text!r} isn't in the parent's list"
        for own in self.entries:
            if own.is_denied and not denied.has(own):
                return f"the parent denies {own.text!r}, and this list doesn't"
        if other.private and not self.private:
            return "private=True is more than the parent's False"
        if _TLS.index(other.tls) > _TLS.index(self.tls):
            return f"tls={other.tls!r} is less strict than the parent's {self.tls!r}"
        if self.bytes is not None and (other.bytes is None or int(other.bytes) > int(self.bytes)):
            return f"bytes={other.bytes} is more than the parent's {self.bytes}"
        if other.connections > self.connections:
            return f"connections={other.connections} is more than the parent's {self.connections}"
        return ""


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = sequence(f"network.{name}", value)
    for text in texts:
        if not isinstance(text, str):
            parse("network", text)  # raises, and says what it must be
    unique = tuple(dict.fromkeys(texts))
    if len(unique) > _MOST_ENTRIES:
        raise PolicyError("network", f"has more than {_MOST_ENTRIES} entries: a '*.name' is one")
    return unique


def _single_ports(entries: Iterable[Entry], *, is_udp: bool) -> set[int]:
    """Return the ports for each of which the relay needs a socket in the sandbox."""
    allowed = (entry for entry in entries if not entry.is_denied)
    chosen = [entry for entry in allowed if (entry.is_udp if is_udp else entry.kind == "localhost")]
    return {port for entry in chosen for port in range(entry.first, entry.last + 1)}


def wished(value: object, base: str) -> Network:
    """Return the Network for a policy's network field, if that is neither "none" nor "host"; raises PolicyError.

    value: the field. base: the policy's base.
    """
    if isinstance(value, str):
        if value != "public":
            raise PolicyError("network", _instead(value))
        value = ["*:*"]
    if isinstance(value, list | tuple):
        value = Network(allow=tuple(value))
    if not isinstance(value, Network):
        raise PolicyError("network", f"is {type_phrase(value)}, must be a str, a list of entries or nsbox.Network")
    if base == "host":
        raise PolicyError("network", "a list goes with Policy.workspace() and Policy.layers(), not with Policy.host()")
    return value


def entry_problem(text: str) -> str:
    """Say what is wrong with an entry; "" if nothing is."""
    try:
        parse("network", text)
    except PolicyError as error:
        return error.problem
    return ""


def network_entry(text: str) -> str:
    """Say what to write instead of a text that should be a list of entries; "" if the text doesn't look like one."""
    if not any(mark in text for mark in ".:*/!") and text != "localhost":
        return ""
    return entry_problem(text) or f'"{text}" is one entry, must be a list: ["{text}"]'


def _instead(text: str) -> str:
    """Say what to write instead of a text that network= doesn't know."""
    if entry := network_entry(text):
        return entry.replace(": [", ": network=[")
    return f"{text!r} is unknown, must be one of {', '.join(_WORDS)}, or a list such as network=['api.example:443']"
