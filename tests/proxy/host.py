"""A host with an internet behind it, as tests/relay has them, and a client of the proxy that runs on the host.

Run in a mount, a pid and a net namespace of its own: host.py DIRECTORY PROGRAM < client. The client is Python; it has what
PRELUDE has. Its output is ours.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "relay"))

import world as outside  # noqa: E402

PRELUDE = """
import base64, errno, json, os, signal, socket, ssl, struct, subprocess, sys, threading, time
from nsbox import Network; from nsbox._relay import proxy as _proxy; from nsbox._relay import wire as _wire_network; from nsbox._network import events as _network_events
directory, program = sys.argv[1:]

class Proxy:
    def __init__(self, *entries, asks=False, answer=None, **wishes):
        self.events, self.asked, self.answer, self.asks = [], [], answer, asks
        self.process = _proxy.Process(self.blob(entries, wishes), lambda: self, program)
        self.variables = self.process.admit(1)
        self.url, self.port = self.variables["http_proxy"], self.process.port
        self.user, self.secret = self.url.partition("://")[2].partition("@")[0].split(":")
    def blob(self, entries, wishes):
        return _wire_network.blob(Network(allow=entries, **wishes), asks=self.asks)
    def change(self, *entries, **wishes):
        self.process.change(self.blob(entries, wishes))
    def take(self):
        return self.process.take(self)
    def receive(self, packet):
        head, event = _network_events.head(packet), _network_events.decode(packet)
        if head.kind == _network_events.ASK:
            self.asked.append(f"{event.name or event.address}:{event.port}")
            return lambda: self.answer is not None and self.process._send(3, int(self.answer(event)), head.sandbox, head.id)
        self.events.append(event)
    def settle(self):
        self.process._ask(6, b"", "settle")
    def told(self):
        self.settle()
        found, self.events = self.events, []
        return [f"{e.kind} {e.name or e.address}:{e.port} {e.verdict} {e.reason} {e.sni}".strip() for e in found]
    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), 10)
    def auth(self, user=None, secret=None):
        text = f"{user or self.user}:{secret or self.secret}"
        return f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}\\r\\n"
    def tunnel(self, to, *, auth=None):
        s = self.connect()
        s.sendall(f"CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n{self.auth() if auth is None else auth}\\r\\n".encode())
        return head(s), s
    def say(self, text):
        with self.connect() as s:
            s.sendall(text.replace("AUTH\\r\\n", self.auth()).encode("latin-1"))
            return head(s)
    def socks(self, to, *, secret=None, methods=b"\\2", command=1, kind=None):
        s = self.connect()
        s.sendall(b"\\5" + bytes([len(methods)]) + methods)
        if rest(s, 2) != b"\\5\\2":
            return "method", s
        user, secret = self.user.encode(), (secret or self.secret).encode()
        s.sendall(b"\\1" + bytes([len(user)]) + user + bytes([len(secret)]) + secret)
        if rest(s, 2) != b"\\1\\0":
            return "secret", s
        host, port = to.rsplit(":", 1)
        name = host.encode()
        target = b"\\3" + bytes([len(name)]) + name
        if kind == 1:
            target = b"\\1" + socket.inet_aton(host)
        elif kind == 4:
            target = b"\\4" + socket.inet_pton(socket.AF_INET6, host)
        elif kind is not None:
            target = bytes([kind]) + bytes(20)
        s.sendall(bytes([5, command, 0]) + target + struct.pack("!H", int(port)))
        answer = rest(s, 10)
        return answer[1] if len(answer) == 10 else answer, s

def rest(s, size=1 << 20):
    found = b""
    try:
        while len(found) < size and (part := s.recv(size - len(found))):
            found += part
    except ConnectionResetError:
        found += b"RESET"
    except TimeoutError:
        found += b"TIMEOUT"
    return found
def head(s):
    found = b""
    try:
        while not found.endswith(b"\\r\\n\\r\\n") and (part := s.recv(1)):
            found += part
    except (ConnectionResetError, BrokenPipeError):
        return "RESET"
    words = found.split(b" ")
    return int(words[1]) if len(words) > 1 else "END"
def hello(name, ech=False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
def echo(s, data=b"hi"):
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    found = rest(s)
    s.close()
    return found
"""


def main() -> None:
    """Make the host, and run the client there."""
    directory = sys.argv[1]
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path(directory, "names").write_text(outside.NAMES)
    subprocess.run(["mount", "--bind", f"{directory}/names", "/etc/hosts"], check=True)
    Path("/run/resolv").write_text("nameserver 203.0.113.53\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", "/run/resolv", "/etc/resolv.conf"], check=True)
    internet = outside.start_internet("")
    outside.serve("127.0.0.1", 8000, outside.echo)
    outside.serve("0.0.0.0", 8001, outside.echo)
    command = [sys.executable, "-u", "-P", "-c", PRELUDE + sys.stdin.read(), *sys.argv[1:]]
    environment = {**os.environ, "INTERNET": str(internet)}
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    ended, status = os.wait()
    while ended != started.pid:  # orphans, which are ours: we are pid 1
        ended, status = os.wait()
    os._exit(os.waitstatus_to_exitcode(status))  # all else ends with us


if __name__ == "__main__":
    main()
