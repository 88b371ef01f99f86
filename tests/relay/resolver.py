"""A name server for the internet of world.py: a table of addresses, and a log of what it was asked."""

import socket
import struct
import threading
from pathlib import Path


def _name(data: bytes) -> str:
    at, labels = 12, []
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]].decode())
        at += 1 + data[at]
    return ".".join(labels).lower()


def serve_names(address: str, zone: dict[str, str], log: Path) -> None:
    """Answer questions for IPv4 addresses by UDP; all other types are empty."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    log.touch()

    def answer() -> None:
        while True:
            data, client = server.recvfrom(512)
            name = _name(data)
            end = 12 + len(name) + 2
            (kind,) = struct.unpack_from(">H", data, end)
            with log.open("a") as file:
                file.write(f"{name}\n")
            found = zone.get(name)
            flags = 0x8180 if found else 0x8183
            record = b""
            if found and kind == 1:
                record = struct.pack(">HHHIH4s", 0xC00C, 1, 1, 60, 4, socket.inet_aton(found))
            head = data[:2] + struct.pack(">5H", flags, 1, bool(record), 0, 0)
            server.sendto(head + data[12 : end + 4] + record, client)

    threading.Thread(target=answer, daemon=True).start()
