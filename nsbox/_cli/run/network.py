"""What `nsbox run` adds to the policy's network: a log, and published ports.

Lean: functions import the relay's modules (5 ms), for which a command without a list doesn't wait. Undo this when
`nsbox run` imports them anyway.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from functools import partial

from nsbox._base.display import shown
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._policy.policy import Policy
from nsbox._spawn.start import Start, spawn
from nsbox._spawn.way import Keeper, Way

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from nsbox._cli.parser import Parser
    from nsbox._core.command import Result
    from nsbox._network.events import NetworkEvent
    from nsbox._popen.popen import Popen
    from nsbox._relay.ports import Published

_LOCAL = "127.0.0.1"
_MOST_PUBLISHED = 64
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"


@frozen
class Publish(Frozen):
    """One --publish.

    inside: the port of the server in the sandbox.
    address: one of this machine's, or the path of a unix socket.
    outside: the port at that address; 0 for any free one.
    """

    inside: int
    address: str = _LOCAL
    outside: int = 0


@frozen
class Extras(Frozen):
    """What the options ask for. log: the file for events, one a line."""

    log: str | None = None
    publish: tuple[Publish, ...] = ()


def add_options(parser: Parser) -> None:
    """Add the options to a subcommand that runs commands."""
    topic = parser.topic("Network")
    topic.add_argument(
        "--net-log",
        metavar="FILE",
        help="write what the command looked up and connected to into this file, which is replaced: JSON, one event a "
        "line. Without a network, all of it is refused, and recorded",
    )
    topic.add_argument(
        "--publish",
        type=publish,
        action="append",
        default=[],
        metavar="[ADDRESS:]PORT[:PORT]",
        help="make the command's server reachable at this address (default: 127.0.0.1) and port, 0 for any; the "
        "last PORT is the server's own, inside. /PATH:PORT is a unix socket. May be repeated",
    )


def publish(text: str) -> Publish:
    """Return the value of one --publish; raises ArgumentTypeError."""

    def refuse(problem: str) -> argparse.ArgumentTypeError:
        return argparse.ArgumentTypeError(f"{text!r}: {problem}")

    address, _, rest = text.rpartition("]:") if text.startswith("[") else ("", "", text)
    if text.startswith("/"):
        path, _, port = text.rpartition(":")
        if not path or not _is_number(port):
            raise refuse("a unix socket is /PATH:PORT")
        return Publish(_number(port, refuse, least=1), path)
    parts = rest.split(":")
    if address:
        address = _ipv6(address[1:], refuse)
    elif "." in parts[0] or parts[0] == "localhost":
        address = parts.pop(0)
        address = _LOCAL if address == "localhost" else address
        if not re.fullmatch(rf"(?:{_BYTE}\.){{3}}{_BYTE}", address):
            raise refuse(f"{address!r} isn't an address of this machine, such as 127.0.0.1 or [::1]")
    if not 1 <= len(parts) <= 2 or not all(map(_is_number, parts)):
        raise refuse("must be [ADDRESS:]PORT[:PORT], such as 3000, 8080:3000 or 127.0.0.1:8080:3000")
    inside = _number(parts[-1], refuse, least=1)
    outside = _number(parts[0], refuse, least=0 if len(parts) == 2 else 1)
    return Publish(inside, address or _LOCAL, outside)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


def _number(text: str, refuse: Callable[[str], Exception], *, least: int) -> int:
    number = int(text)
    if not least <= number <= 65535:
        raise refuse(f"ports go from {least} to 65535")
    return number


def _ipv6(text: str, refuse: Callable[[str], Exception]) -> str:
    try:
        socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        raise refuse(f"{text!r} isn't an IPv6 address") from None
    return text


def extras_of(options: argparse.Namespace, policy: Policy) -> Extras:
    """Return what the options ask for; raises PolicyError if that contradicts the policy's network."""
    if options.net_log is not None and policy.network == "host":
        raise PolicyError(
            "--net-log", "doesn't go with the host's network, which nothing records: --network public is a list"
        )
    if options.publish and policy.network == "host":
        raise PolicyError("--publish", "doesn't go with the host's network, where servers are reachable anyway")
    if len(options.publish) > _MOST_PUBLISHED:
        raise PolicyError("--publish", f"is given {len(options.publish)} times, must be at most {_MOST_PUBLISHED}")
    return Extras(options.net_log, tuple(options.publish))


def recorded(policy: Policy, extras: Extras) -> Policy:
    """Return the policy with an empty list instead of no network, if there is a log: then all refusals are in it."""
    return policy.with_(network=[]) if extras.log is not None and policy.network == "none" else policy


class _Way(Way):
    def spawn(self, start: Start) -> Result:
        return spawn(start)


def _opened(policy: Policy, path: str) -> TextIO:
    """Open the log, which is made with mode 0600. Raises PolicyError if that fails, or if commands could change it."""
    from nsbox._audit.trail import can_change

    if can_change(policy, os.path.abspath(path)):
        raise PolicyError(
            "--net-log",
            f"{shown(path)} is where the command can write, so it could change the record: give a file that is out of "
            "its reach",
        )
    try:
        return open(path, "w", encoding="ascii", opener=partial(os.open, mode=0o600))
    except OSError as error:
        raise PolicyError("--net-log", f"{shown(path)}: {error.strerror}") from None


class Wiring(Keeper):
    """Starts a command whose network is logged, or that has published ports."""

    def __init__(self, policy: Policy, extras: Extras) -> None:
        """Open what the options name; raises PolicyError, SetupError and OSError."""
        from nsbox._relay.relay import relayed  # for these options alone

        self._published: list[Published] = []
        self._log = None if extras.log is None else _opened(policy, extras.log)
        on_network = None if self._log is None else self._write
        try:
            policy, self.relay = relayed(policy, None, None, on_network, publishes=bool(extras.publish))
            self._way = _Way(policy, self.relay)
            for each in extras.publish:
                self._publish(each)
        except BaseException:
            self.end()
            raise

    def _open_way(self) -> Way:
        """Return the way in which the command starts."""
        return self._way

    def _write(self, event: NetworkEvent) -> None:
        if self._log is not None:
            self._log.write(event.to_json() + "\n")
            self._log.flush()  # for readers that follow the file

    def _publish(self, each: Publish) -> None:
        from nsbox._relay import ports

        assert self.relay is not None
        self.relay.line()  # it has a process
        with ports.at(each.address, each.outside) as listener:
            published = ports.Published(self.relay, each.inside, listener, None)
        self._published.append(published)
        print(f"nsbox: port {each.inside} is at {published}", file=sys.stderr)

    def end(self) -> None:
        """Close the published ports, and the log once all events are in it."""
        for published in self._published:
            published.close()
        relay = getattr(self, "relay", None)
        if relay is not None:
            relay.settle()
            relay.flush()
            relay.close()
        if self._log is not None:
            self._log.close()


def refusals(policy: Policy, job: Popen[bytes]) -> tuple[str, ...]:
    """Return what the network list refused to a failed command: a sentence each, with the option that would allow it.

    Other network errors, such as a server that is down, have reached the command itself.
    """
    if policy.network in ("none", "host"):
        return ()
    from nsbox._network.messages import OPTION, messages
    from nsbox._network.network import Network  # only for a command that fails under a list

    contained, network = job.sandbox, policy.network
    if contained is None or not isinstance(network, Network):
        return ()
    refused = [event for event in contained.network.events if event.verdict == "refused"]
    return messages(network, refused, OPTION)


def wiring(policy: Policy, extras: Extras) -> Wiring | None:
    """Return what starts a command with such extras; None without any."""
    return None if extras == Extras() else Wiring(policy, extras)
