"""Requests to a world (world.py), in the words of its tests: entries of a list, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What a client begins with: connect, send something, and say what came back.
CLIENT = """
import errno, os, socket, ssl, struct, sys, threading, time

def ask(host, port, data=b"hi", timeout=5):
    try:
        with socket.create_connection((host, port), timeout) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            answer = b""
            while part := s.recv(1 << 20):
                answer += part
            return answer
    except OSError as error:
        # A program whose connection is reset learns of it at its next call, whichever that is.
        ended = (errno.EPIPE, errno.ENOTCONN)
        return errno.ECONNRESET if error.errno in ended else error.errno or type(error).__name__

def say(*words):
    # Have the caller outside do something (caller.py).
    world.sendall(" ".join(map(str, words)).encode())
    return world.recv(65536).decode()

def hello(name, context=None):
    context = context or ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context.check_hostname = name is not None
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
"""


@dataclass(frozen=True)
class Answer:
    """What came of a request."""

    output: str
    events: list[dict[str, Any]]
    ready: dict[str, Any]
    relay: int  # its exit status
    status: str
    descriptors: int
    ticks: int  # hundredths of a second of its processor time
    ends: tuple[str, ...] = ()  # what clients outside got that stayed
    others: tuple[str, ...] = ()  # what the clients of other sandboxes printed

    def lines(self) -> list[str]:
        """Return what the client printed."""
        return self.output.splitlines()

    def of(self, kind: str) -> list[tuple[str, str, int]]:
        """Return the events of a kind: name or address, verdict and reason, port."""
        found = [event for event in self.events if event["kind"] == kind and event["message"] == 2]
        return [
            (
                event["name"] or event["address"],
                " ".join(filter(None, (event["verdict"], event["reason"]))),
                event["port"],
            )
            for event in found
        ]


def name(text: str, first: int = 443, last: int = 0, *, deny: bool = False, udp: bool = False) -> tuple[object, ...]:
    """Return an entry for a name: "*" for any, "*.name" for those below it."""
    kind = 3 if text == "*" else 2 if text.startswith("*.") else 1
    return (kind, deny | udp << 1, first, last or first, 0, 32, text.removeprefix("*").removeprefix("."))


def addresses(
    text: str, bits: int, first: int, last: int = 0, *, deny: bool = False, udp: bool = False
) -> tuple[object, ...]:
    """Return an entry for addresses."""
    number = int.from_bytes(bytes(map(int, text.split("."))), "big")
    return (4, deny | udp << 1, first, last or first, number, bits, "")


def localhost(port: int) -> tuple[object, ...]:
    """Return an entry for a port of the host's 127.0.0.1."""
    return (5, 0, port, port, 0, 32, "")


Ask = Callable[..., Answer]
