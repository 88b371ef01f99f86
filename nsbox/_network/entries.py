"""One entry of a network list: its target, its ports, and whether it covers another entry. Pure."""

from __future__ import annotations

import re

from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    Kind = Literal["name", "below", "any", "addresses", "localhost"]

ALL_PORTS = (1, 65535)
HTTPS = 443
MOST_SINGLE_PORTS = 64  # of UDP, and of localhost: for each, the relay has a socket in the sandbox

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_ADDRESS = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:/(\d{1,2}))?")
_INSIDE = (0xC6120000, 15)  # 198.18.0.0/15 (RFC 2544): addresses that names have inside


@frozen
class Entry(Frozen):
    """What one string of a list says.

    text: the string.
    kind: what the target is: "name", "below" (all names below one), "any", "addresses" or "localhost".
    name: the host's, in lower case and punycode; for "below", what the names end in.
    address, bits: the prefix, for "addresses".
    first, last: the range of ports.
    is_udp: whether it is about UDP instead of TCP.
    is_denied: whether it begins with "!".
    """

    text: str
    kind: Kind
    name: str = ""
    address: int = 0
    bits: int = 32
    first: int = HTTPS
    last: int = HTTPS
    is_udp: bool = False
    is_denied: bool = False

    @property
    def spelled(self) -> str:
        """Return the entry with its ports, as messages and explain() show it."""
        named = self.name or ("*" if self.kind == "any" else "localhost")
        if self.kind == "addresses":
            named = dotted(self.address) + (f"/{self.bits}" if self.bits < 32 else "")
        named = f"*.{named}" if self.kind == "below" else named
        ports = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        ports = "*" if (self.first, self.last) == ALL_PORTS else ports
        return f"{named}:{ports}{'/udp' if self.is_udp else ''}"

    def covers(self, other: Entry) -> bool:
        """Say if this entry allows whatever the other allows."""
        if self.is_udp != other.is_udp or not (self.first <= other.first and other.last <= self.last):
            return False
        if self.kind == "addresses" or other.kind == "addresses":
            is_within = self.bits <= other.bits and _net(other.address, self.bits) == self.address
            return self.kind == other.kind and is_within
        if self.kind == "localhost" or other.kind == "localhost":
            return self.kind == other.kind
        if self.kind == "below":
            return (other.kind == "name" and other.name.endswith(f".{self.name}")) or (
                other.kind == "below" and f".{other.name}".endswith(f".{self.name}")
            )
        return self.kind == "any" or (other.kind == "name" and other.name == self.name)


def _net(address: int, bits: int) -> int:
    return address >> (32 - bits) << (32 - bits) if bits else 0


def parse(field: str, text: object) -> tuple[Entry, ...]:
    """Return what an entry says: ["!"] target [":" ports] ["/udp"]. One that denies all ports becomes two, TCP and UDP.

    Raises PolicyError, which names the entry and what to write instead. field: the one it names.
    """
    if not isinstance(text, str):
        raise PolicyError(field, f"{text!r} is {type_phrase(text)}, must be a str, such as 'api.example:443'")

    def refuse(problem: str) -> PolicyError:
        return PolicyError(field, f"{text!r}: {problem}")

    is_denied = text.startswith("!")
    rest = text[is_denied:]
    _check_form(rest, refuse)
    is_udp = rest.endswith("/udp")
    target, has_ports, ports = rest.removesuffix("/udp").partition(":")
    kind, name, address, bits = _target(target, refuse)
    first, last = _ports(ports, refuse) if has_ports else ALL_PORTS if is_denied else (HTTPS, HTTPS)
    if is_udp and not has_ports:
        raise refuse(f"UDP needs a port: '{rest.removesuffix('/udp')}:123/udp'")
    is_single = not is_denied and (is_udp or kind == "localhost")
    if is_single and last - first >= MOST_SINGLE_PORTS:
        what = "UDP" if is_udp else "localhost"
        raise refuse(f"{what} needs single ports, or a range of at most {MOST_SINGLE_PORTS}")
    if is_udp and kind in ("localhost", "any"):
        raise refuse("UDP goes only with names and addresses")
    entry = Entry(text, kind, name, address, bits, first, last, is_udp, is_denied)
    if is_denied and not has_ports and kind != "localhost":
        return entry, Entry(text, kind, name, address, bits, first, last, True, True)
    return (entry,)


def _check_form(text: str, refuse: Callable[[str], PolicyError]) -> None:
    """Refuse a text that is something else, such as a URL, and say what to write instead."""
    if not text:
        raise refuse("is empty; network='none' is no network")
    if any(ord(c) <= 32 or ord(c) == 127 for c in text):
        raise refuse("has a space or a control character")
    if "://" in text:
        raise refuse(f"is a URL, must be a host and a port: {_host_of(text)!r}")
    if "@" in text:
        raise refuse(f"has a user, must be a host and a port: {text.rpartition('@')[2]!r}")
    if text.count(":") > 1 or text.startswith("["):
        raise refuse("is an IPv6 address; there is IPv4 inside: name the host, which may have IPv6 outside")


def _host_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if ":" in host or scheme in ("https", "wss", ""):
        return host
    return f"{host}:{ {'http': 80, 'ws': 80, 'ssh': 22, 'git': 9418, 'ftp': 21}.get(scheme, HTTPS) }"


def _ports(text: str, refuse: Callable[[str], PolicyError]) -> tuple[int, int]:
    if text == "*":
        return ALL_PORTS
    match = _PORTS.fullmatch(text) if text.isascii() else None
    if match is None:
        path = "a path can't be allowed or refused, only a host and its port; " if "/" in text else ""
        raise refuse(f"{path}the port must be a number, a range such as 8000-8010, or *")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= ALL_PORTS[1]:
        raise refuse("ports go from 1 to 65535, the smaller one first")
    return first, last


def _target(text: str, refuse: Callable[[str], PolicyError]) -> tuple[Kind, str, int, int]:
    """Return kind, name, address and bits."""
    if not text:
        raise refuse("has no host before the port; for every host: '*'")
    if text == "*":
        return "any", "", 0, 32
    if text.lower() in ("localhost", "localhost."):
        return "localhost", "", 0, 32
    if _ADDRESS.fullmatch(text) or re.fullmatch(r"[\d./]+", text):
        return "addresses", "", *_addresses(text, refuse)
    if "/" in text:
        host = text.partition("/")[0]
        raise refuse(f"a path can't be allowed or refused, only a host and its port: {host!r}")
    if text.startswith("*."):
        name = _name(text[2:], refuse)
        if "." not in name:
            raise refuse(f"is every host of a top-level domain; name one below: '*.example.{name}'")
        return "below", name, 0, 32
    return "name", _name(text, refuse), 0, 32


def _addresses(text: str, refuse: Callable[[str], PolicyError]) -> tuple[int, int]:
    match = _ADDRESS.fullmatch(text)
    parts = [int(part) for part in match.groups()[:4]] if match else []
    bits = int(match[5] or 32) if match else 33
    has_zeros = any(part != str(int(part)) for part in match.groups("0")[:5]) if match else False
    if has_zeros:
        raise refuse("has a zero before a number, which some programs read as octal")
    if max(parts, default=256) > 255 or bits > 32:
        raise refuse("isn't an IPv4 address, such as '10.1.2.3' or '10.1.2.0/24'")
    address = int.from_bytes(bytes(parts), "big")
    if _net(address, bits) != address:
        raise refuse(f"has bits behind its prefix: '{dotted(_net(address, bits))}/{bits}'")
    if parts[0] == 127 or (parts[0] == 0 and bits >= 8):
        raise refuse("is this host itself: 'localhost:PORT' is its 127.0.0.1")
    if bits >= _INSIDE[1] and _net(address, _INSIDE[1]) == _INSIDE[0]:
        raise refuse("has addresses that are the sandbox's own (198.18.0.0/15)")
    return address, bits


def dotted(address: int) -> str:
    """Return an IPv4 address in dotted form."""
    return ".".join(map(str, address.to_bytes(4, "big")))


def _name(text: str, refuse: Callable[[str], PolicyError]) -> str:
    """Return a name in lower case and punycode, without a last dot."""
    if "*" in text:
        raise refuse("a * stands for whole labels at the beginning: '*.example.org'")
    plain = text.removesuffix(".")
    if not plain.isascii():
        try:
            plain = plain.encode("idna").decode("ascii")
        except UnicodeError:
            raise refuse("isn't a name of a host (IDNA)") from None
    name = plain.lower()
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise refuse("isn't a name of a host: letters, digits and hyphens, with dots between")
    last = name.rpartition(".")[2]
    if last.isdecimal() or re.fullmatch(r"0x[0-9a-f]*", last):
        raise refuse("ends in a number, as an address does: write '10.1.2.3' or '10.1.2.0/24'")
    return name
