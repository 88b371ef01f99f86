"""A client and its servers: a program that runs on the host and in sandboxes, without nsbox.

traffic.py serve: print two ports of 127.0.0.1, and serve there until stdin ends. The first serves one client after
another; each says what it wants. The second greets any number of clients, and keeps each until it leaves.

traffic.py ask [PORT PORT]: for each line of stdin, such as "connect 300", print the time that it takes, in seconds.
Without ports it starts servers of its own, each in its own process.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import sys
import time
from statistics import median

_PIECE = 1 << 18
_MESSAGE = b"m" * 64
_SIZE = struct.Struct("=cQ")
_ECHO, _SEND, _TAKE = b"e", b"s", b"t"
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: leaves no port in TIME_WAIT (tcp(7))
_NAME_SERVER = ("198.19.0.53", 53)
_HOST = "127.0.0.1"


# ---- the servers


def _receive(sock: socket.socket, size: int) -> None:
    room = bytearray(_PIECE)
    while size:
        size -= (count := sock.recv_into(room, min(size, _PIECE)))
        if not count:
            raise EOFError


def _send(sock: socket.socket, size: int) -> None:
    piece = bytes(_PIECE)
    while size:
        sock.sendall(piece[:size] if size < _PIECE else piece)
        size -= min(size, _PIECE)


def _serve_one(sock: socket.socket) -> None:
    head = sock.recv(_SIZE.size, socket.MSG_WAITALL)
    if len(head) < _SIZE.size:
        return
    kind, size = _SIZE.unpack(head)
    if kind == _ECHO:
        while data := sock.recv(4096):
            sock.sendall(data)
    elif kind == _SEND:
        _send(sock, size)
    else:
        _receive(sock, size)
        sock.sendall(b"!")


def _serve_each(server: socket.socket) -> None:
    while True:
        sock, _ = server.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                _serve_one(sock)
            except (OSError, EOFError):
                pass  # the client is gone


def _greet_all(server: socket.socket) -> None:
    poll = select.epoll()
    clients: dict[int, socket.socket] = {}
    poll.register(server.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != server.fileno():
                clients.pop(fd).close()
                continue
            sock, _ = server.accept()
            clients[sock.fileno()] = sock
            poll.register(sock.fileno(), select.EPOLLIN)
            sock.send(b"!")


def _started() -> tuple[int, int]:
    """Return the ports of both servers, each started in a child that ends with this process."""
    ports = []
    for serve in (_serve_each, _greet_all):
        server = socket.create_server((_HOST, 0), backlog=4096)
        ports.append(server.getsockname()[1])
        if os.fork() == 0:
            _end_with(os.getppid())
            serve(server)
        server.close()
    return ports[0], ports[1]


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != parent:
        os._exit(0)


# ---- the client


def _open(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.connect((_HOST, port))
    return sock


def _connect(count: int, port: int) -> float:
    """Return the median time of a connect(2)."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        sock = _open(port)
        times.append(time.perf_counter() - begin)
        sock.recv(1)
        sock.close()
    return median(times)


def _turns(count: int, port: int) -> float:
    """Return the median time until a message of 64 bytes is back."""
    with _open(port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_SIZE.pack(_ECHO, 0))
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            sock.sendall(_MESSAGE)
            sock.recv(4096)
            times.append(time.perf_counter() - begin)
    return median(times)


def _down(size: int, port: int) -> float:
    """Return the time to receive this many bytes."""
    with _open(port) as sock:
        begin = time.perf_counter()
        sock.sendall(_SIZE.pack(_SEND, size))
        _receive(sock, size)
        return time.perf_counter() - begin


def _up(size: int, port: int) -> float:
    """Return the time until the server has received this many bytes."""
    with _open(port) as sock:
        begin = time.perf_counter()
        sock.sendall(_SIZE.pack(_TAKE, size))
        _send(sock, size)
        _receive(sock, 1)
        return time.perf_counter() - begin


def _held(count: int, port: int) -> float:
    """Return the time until this many connections are open at once, and the server has greeted each."""
    begin, socks = time.perf_counter(), [_open(port) for _ in range(count)]
    for sock in socks:
        if sock.recv(1) != b"!":
            raise EOFError
    seconds = time.perf_counter() - begin
    for sock in socks:
        sock.close()
    return seconds


def _names(count: int, _: int) -> float:
    """Return the time to ask this many times for the address of localhost, one question after another."""
    question = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + b"\x09localhost\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        sock.connect(_NAME_SERVER)
        begin = time.perf_counter()
        for _ in range(count):
            sock.send(question)
            if sock.recv(512)[-4:] != socket.inet_aton(_HOST):
                raise EOFError
        return time.perf_counter() - begin


_WORK = {"connect": _connect, "turns": _turns, "down": _down, "up": _up, "held": _held, "names": _names}
_GREETED = ("connect", "held")


def main() -> None:
    """Be a server or a client, as the arguments say."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kind, *words = sys.argv[1:]
    ports = (int(words[0]), int(words[1])) if words else _started()
    print(*ports, flush=True)
    for line in sys.stdin:
        if kind == "ask":
            word, count = line.split()
            print(_WORK[word](int(count), ports[word in _GREETED]), flush=True)


if __name__ == "__main__":
    main()
