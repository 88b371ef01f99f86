"""The relay's caller, as world.py has one: it reads events, answers what it is asked, and does what clients ask of it."""

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

LIST = struct.Struct("<8IQ")
RULE = struct.Struct("<8I")
MESSAGE = struct.Struct("<IiQQ")
EVENT = struct.Struct("<IiQQQIIIiIIIIQQ16s256s256s")
KINDS = {1: "dns", 2: "connect", 3: "close", 4: "datagram", 5: "publish"}
VERDICTS = {0: "", 1: "allowed", 2: "refused", 3: "failed"}
REASONS = (
    *("", "not-listed", "denied", "address", "own-address", "sni", "no-tls", "ech", "port-taken", "limit", "asked"),
    *("upstream", "unasked"),
)


def pack(request: dict, entries: list) -> bytes:
    """Return a list as the relay reads it."""
    names, rules = b"", b""
    for kind, flags, first, last, address, bits, name in entries:
        text = name.encode()
        rules += RULE.pack(kind, flags, first, last, address, bits, len(names) if text else 0, len(text))
        names += text
    size = LIST.size + len(rules) + len(names)
    head = (request.get("flags", 0), request.get("tls", 0), request.get("connections", 256), 0, request.get("bytes", 0))
    return LIST.pack(0x746E736E, 1, size, len(entries), *head) + rules + names


def read_event(control: socket.socket) -> dict:
    """Return the next message from the relay."""
    kind, value, sandbox, number, _, *rest = EVENT.unpack(control.recv(4096))
    what, verdict, reason, error, protocol, port, family, _, sent, received, address, name, sni = rest
    text = {
        4: lambda: socket.inet_ntop(socket.AF_INET, address[:4]),
        6: lambda: socket.inet_ntop(socket.AF_INET6, address),
    }
    return {
        "message": kind,
        "value": value,
        "sandbox": sandbox,
        "id": number,
        "kind": KINDS.get(what, ""),
        "verdict": VERDICTS[verdict],
        "reason": REASONS[reason],
        "errno": error,
        "udp": bool(protocol),
        "port": port,
        "address": text[family]() if family else "",
        "sent": sent,
        "received": received,
        "name": name.rstrip(b"\0").decode(),
        "sni": sni.rstrip(b"\0").decode(),
    }


class Caller:
    """Events, read as they come; and the words of clients, each obeyed in a thread of its own."""

    def __init__(self, control: socket.socket, request: dict, serve: Callable[[int], None]) -> None:
        self.events: list[dict] = []
        self._control, self._request, self._serve = control, request, serve
        self._last = time.monotonic()
        self._asked = threading.Condition()
        self._notes: set[str] = set()
        self._published: dict[str, object] = {}
        self._held: list[socket.socket] = []
        self._ends: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                event = read_event(self._control)
            except (OSError, struct.error):
                return  # it is shut
            self._last = time.monotonic()
            with self._asked:
                self.events.append(event)
                self._asked.notify_all()
            if event["message"] == 3:
                self._answer(event)

    def _answer(self, event: dict) -> None:
        verdict = self._request.get("verdicts", {}).get(f"{event['name'] or event['address']}:{event['port']}")
        if verdict is not None:
            self._control.send(MESSAGE.pack(3, int(verdict), 0, event["id"]))

    def obey(self, client: socket.socket) -> None:
        """Do what a client in a sandbox says, one line each."""

        def serve() -> None:
            while line := client.recv(4096).decode():
                word, *words = line.split()
                try:
                    said = str(getattr(self, f"do_{word}")(*words))
                except OSError as error:
                    said = str(error.errno)
                client.sendall(said.encode() or b"-")

        threading.Thread(target=serve, daemon=True).start()

    def do_rules(self, which: str) -> str:
        """Put another list of the request's in force: what the relay answers."""
        new = self._request["lists"][which]
        listing = os.memfd_create("list")
        os.write(
            listing,
            pack(new if isinstance(new, dict) else self._request, new["rules"] if isinstance(new, dict) else new),
        )
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(self._control, [MESSAGE.pack(2, 0, 0, 0)], [listing, its.fileno()])
        its.close()
        os.close(listing)
        answer = read_event(ours)
        return f"{answer['value']} {answer['name']}".strip()

    def do_asked(self, count: str) -> str:
        """Wait until so many questions have come."""
        with self._asked:
            self._asked.wait_for(lambda: sum(event["message"] == 3 for event in self.events) >= int(count), 20)
        return "ok"

    def do_verdict(self, number: str, value: str) -> str:
        """Answer a question, by its number."""
        self._control.send(MESSAGE.pack(3, int(value), 0, int(number)))
        return "ok"

    def do_note(self, word: str) -> str:
        """Let another sandbox's client go on."""
        with self._asked:
            self._notes.add(word)
            self._asked.notify_all()
        return "ok"

    def do_wait(self, word: str) -> str:
        """Wait for another sandbox's client."""
        with self._asked:
            return "ok" if self._asked.wait_for(lambda: word in self._notes, 20) else "late"

    def do_close(self) -> str:
        """Let the relay go."""
        self._control.shutdown(socket.SHUT_RDWR)
        return "ok"

    def do_queries(self) -> str:
        """Return what the internet's name server was asked for."""
        return " ".join(sorted(set(Path("/run/queries").read_text().split())))

    def do_serve(self, port: str) -> str:
        """Have a server at a port of the host."""
        self._serve(int(port))
        return "ok"

    def do_publish(self, number: str, port: str, kind: str = "tcp", sandbox: str = "7") -> str:
        """Have a socket of the host's, and publish a port by it."""
        if kind == "unix":
            server = socket.socket(socket.AF_UNIX)
            server.bind(f"/run/published.{number}")
            server.listen(64)
        elif kind == "none":
            server = socket.socket()
        else:
            server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._published[number] = server.getsockname()
        socket.send_fds(self._control, [MESSAGE.pack(4, int(port), int(sandbox), int(number))], [server.fileno()])
        server.close()
        return "ok"

    def do_unpublish(self, number: str) -> str:
        """Publish it no more."""
        self._control.send(MESSAGE.pack(5, 0, 0, int(number)))
        return "ok"

    def _connect(self, number: str) -> socket.socket:
        to = self._published.get(number)
        if to is None:
            raise FileNotFoundError(errno.ENOENT, number)
        client = socket.socket(socket.AF_UNIX if isinstance(to, str) else socket.AF_INET)
        client.settimeout(10)
        client.connect(to)
        return client

    def do_dial(self, number: str, text: str = "hi") -> str:
        """Be a client of a published port: send something, shut that half, and return what comes back."""
        with self._connect(number) as client:
            client.sendall(text.encode())
            client.shutdown(socket.SHUT_WR)
            return self._rest(client)

    def _rest(self, client: socket.socket) -> str:
        found = b""
        try:
            while part := client.recv(65536):
                found += part
        except OSError as error:
            return str(error.errno)
        return found.decode() if len(found) < 1000 else str(len(found))

    def do_hold(self, number: str, count: str = "1") -> str:
        """Be so many clients of a published port that stay."""
        for _ in range(int(count)):
            client = self._connect(number)
            self._held.append(client)
            threading.Thread(target=lambda c=client: self._ends.append(self._rest(c)), daemon=True).start()
        return "ok"

    def ends(self) -> list[str]:
        """Return what the clients that stayed got, and how it ended for them; all of them have ended."""
        deadline = time.monotonic() + 10
        while len(self._ends) < len(self._held) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sorted(self._ends)

    def end(self) -> list[dict]:
        """Return the events, once nothing has come for a while."""
        while time.monotonic() - self._last < 0.3:
            time.sleep(0.05)
        return self.events

    def close(self) -> None:
        """Let the relay go, if it isn't yet."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
