"""Servers of the internet of world.py that real clients talk to: HTTP, HTTPS, HTTP/2, git, ssh, PostgreSQL, Redis, NTP.

All are at one address, each on the port that is usual for it and on the next that isn't; what they serve is in a directory
that tests have made: www (with certificate and key beside it), home (of the user whom ssh lets in) and host_key.
"""

import functools
import http.server
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

ADDRESS = "203.0.113.4"
PORTS = {"http": (80, 81), "https": (443, 444), "ssh": (22, 222), "postgresql": (5432, 5433), "redis": (6379, 6380)}
HTTP2 = 8443
NTP = 123
_USER = 1000
_NODE = """
const http2 = require("http2"), fs = require("fs"), [address, port, folder] = process.argv.slice(1);
const files = { key: fs.readFileSync(folder + "/key.pem"), cert: fs.readFileSync(folder + "/ca.pem") };
const server = http2.createSecureServer({ ...files, allowHTTP1: true }, (_, answer) => answer.end("hello by " + _.httpVersion));
server.listen(+port, address, () => console.log("ready"));
"""


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Say how much has come."""
        text = f"{len(self.rfile.read(int(self.headers['Content-Length'])))} bytes\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _serve_http(folder: Path, port: int, context: ssl.SSLContext | None) -> None:
    handler = functools.partial(_Files, directory=str(folder / "www"))
    server = http.server.ThreadingHTTPServer((ADDRESS, port), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that go away
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _serve(port: int, answer: Callable[[socket.socket], None]) -> None:
    server = socket.create_server((ADDRESS, port), backlog=64)

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                answer(connection)
            except OSError:
                pass

    def accept() -> None:
        while True:
            threading.Thread(target=one, args=server.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _redis(connection: socket.socket) -> None:
    while connection.recv(1000):
        connection.sendall(b"+PONG\r\n")


def _postgresql(connection: socket.socket) -> None:
    """Let anybody in, and answer each question with one row: hello."""
    file = connection.makefile("rb")

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack(">I", 4 + len(body)) + body

    while True:
        size, code = struct.unpack(">II", file.read(8))
        file.read(size - 8)
        if code == 196608:
            break
        connection.sendall(b"N")  # no TLS, no Kerberos
    ready = message(b"Z", b"I")
    version = message(b"S", b"server_version\0" + b"15.0\0") + message(b"S", b"client_encoding\0UTF8\0")
    connection.sendall(message(b"R", struct.pack(">I", 0)) + version + ready)
    while kind := file.read(1):
        file.read(struct.unpack(">I", file.read(4))[0] - 4)
        if kind == b"Q":
            column = struct.pack(">H", 1) + b"word\0" + struct.pack(">IHIhih", 0, 0, 25, -1, -1, 0)
            row = struct.pack(">HI", 1, 5) + b"hello"
            connection.sendall(message(b"T", column) + message(b"D", row) + message(b"C", b"SELECT 1\0") + ready)


def _serve_ssh(folder: Path, port: int) -> None:
    """Have a dropbear for each connection. It isn't root, so it doesn't change to another user."""
    program = shutil.which("dropbear")
    if program is None:
        return
    own = ["unshare", "-U", f"--map-user={_USER}", f"--map-group={_USER}"]
    command = [*own, program, "-i", "-s", "-r", str(folder / "host_key")]

    def answer(connection: socket.socket) -> None:
        subprocess.run(command, stdin=connection, stdout=connection, stderr=subprocess.DEVNULL, check=False)

    _serve(port, answer)


def _serve_http2(folder: Path) -> None:
    node = shutil.which("node")
    if node is not None:
        command = [node, "-e", _NODE, ADDRESS, str(HTTP2), str(folder)]
        started = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert started.stdout is not None
        started.stdout.readline()


def _serve_time() -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((ADDRESS, NTP))

    def answer() -> None:
        while True:
            question, client = server.recvfrom(48)
            server.sendto(b"\x24" + question[1:40] + struct.pack(">II", 3_900_000_000, 0), client)

    threading.Thread(target=answer, daemon=True).start()


def start(folder: Path) -> None:
    """Start all of them."""
    users = folder / "passwd"
    users.write_text(f"root:x:0:0::/:/bin/sh\ngit:x:{_USER}:{_USER}::{folder / 'home'}:/bin/sh\n")
    subprocess.run(["mount", "--bind", users, "/etc/passwd"], check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    for number in range(2):
        _serve_http(folder, PORTS["http"][number], None)
        _serve_http(folder, PORTS["https"][number], context)
        _serve_ssh(folder, PORTS["ssh"][number])
        _serve(PORTS["postgresql"][number], _postgresql)
        _serve(PORTS["redis"][number], _redis)
    _serve_time()
    _serve_http2(folder)
