"""A host and an internet behind it, both net namespaces made here; a relay on the host, and a sandbox that it serves.

Run in a user, a mount and a net namespace of its own (the host): world.py RELAY < request > answer, both JSON. A request has
the entries of a list, and a client: Python that runs in the sandbox. The answer is what that printed, and the events.
What clients ask of the world meanwhile is in caller.py; the internet's name server is resolver.py.

No packet leaves these namespaces. Addresses are of the documentation's ranges (RFC 5737, RFC 3849).
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from caller import MESSAGE, Caller, pack, read_event
from resolver import serve_names

NAMES = """\
127.0.0.1 localhost
203.0.113.1 a.example b.example c.a.example
203.0.113.1 Short
203.0.113.2 ssh.example
203.0.113.3 down.example
203.0.113.4 web.example hidden.example
203.0.113.77 silent.example
203.0.113.77 two.example
203.0.113.1 two.example
198.51.100.1 nowhere.example
169.254.169.254 metadata.example
10.1.2.3 lan.example
127.0.0.1 rebound.example
192.0.2.1 own.example
2001:db8::1 six.example
"""
# In the domain name system alone: what comes first for a name is the answer to all questions for it.
ZONE = {"dns.example": "203.0.113.1", "corp.search.example": "203.0.113.1", "later.example": "203.0.113.1"}
# And of those above, for clients that ask it themselves.
ZONE |= {"web.example": "203.0.113.4", "hidden.example": "203.0.113.4", "nowhere.example": "198.51.100.1"}
ZONE |= {"down.example": "203.0.113.3"}
INTERNET = (*(f"203.0.113.{number}" for number in (1, 2, 3, 4, 53)), "10.1.2.3", "169.254.169.254")


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True)


# ---- the internet


def echo(connection: socket.socket, greeting: bytes = b"") -> None:
    """Say what has come, until the other end is shut; before a first word that is short, the server's address."""
    with connection:
        name, is_first = connection.getsockname()[0], True
        try:
            connection.sendall(greeting)
            while data := connection.recv(1 << 20):
                connection.sendall((f"{name} ".encode() if is_first and len(data) < 1000 else b"") + data)
                is_first = False
        except OSError:
            pass


def reset(connection: socket.socket) -> None:
    """Read something, and end the connection by force."""
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def refuse(connection: socket.socket) -> None:
    """Answer, and end the connection without having read all: the client is reset behind the answer."""
    connection.recv(1)
    connection.sendall(b"early")
    connection.close()


def sink(connection: socket.socket) -> None:
    """Never read."""
    time.sleep(60)
    connection.close()


def flood(connection: socket.socket) -> None:
    """Send much at once, and be gone."""
    connection.recv(1)
    connection.sendall(bytes(1 << 20))
    connection.close()


def answer_once(connection: socket.socket, text: bytes) -> None:
    """Answer what comes first with something, and the end with "all"."""
    with connection:
        try:
            connection.recv(65536)
            connection.sendall(text)
            while connection.recv(65536):
                pass
            connection.sendall(b"all")
        except OSError:
            pass


def serve(address: str, port: int, answer: object, *more: bytes) -> None:
    """Accept connections for ever, each answered in a thread of its own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family, backlog=4096)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection, *more), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def serve_datagrams(address: str, port: int) -> None:
    """Send each datagram back."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))

    def answer() -> None:
        while True:
            data, client = server.recvfrom(65536)
            server.sendto(b"pong " + data, client)

    threading.Thread(target=answer, daemon=True).start()


def internet(ready: int, link: int) -> None:
    """Be the internet: in a net namespace of its own, with servers."""
    os.write(ready, b"n")
    os.read(link, 1)  # the other end of the cable is here
    ip("link", "set", "lo", "up")
    for address in INTERNET:
        ip("address", "add", f"{address}/32", "dev", "lo")
    ip("-6", "address", "add", "2001:db8::1/128", "dev", "lo", "nodad")
    ip("address", "add", "192.0.2.2/24", "dev", "i0")
    ip("-6", "address", "add", "2001:db8:1::2/64", "dev", "i0", "nodad")
    ip("link", "set", "i0", "up")
    ip("-6", "route", "add", "default", "via", "2001:db8:1::1")
    for port in (80, 5432, *range(10000, 10100)):
        serve("203.0.113.1", port, echo)
    text = os.environ["ANSWERS"]
    serve("203.0.113.1", 443, *((answer_once, bytes.fromhex(text)) if text else (echo,)))
    serve("203.0.113.1", 9003, flood)
    serve("203.0.113.1", 9004, refuse)
    serve("203.0.113.2", 22, echo, b"SSH-2.0-server\r\n")
    serve("203.0.113.1", 9001, reset)
    serve("203.0.113.1", 9002, sink)
    for address in ("10.1.2.3", "169.254.169.254", "2001:db8::1"):
        serve(address, 443, echo)
    serve_datagrams("203.0.113.1", 123)
    serve_datagrams("203.0.113.1", 5353)
    serve_datagrams("10.1.2.3", 123)
    serve_names("203.0.113.53", ZONE, Path("/run/queries"))
    if os.environ["SERVED"]:
        import servers

        servers.start(Path(os.environ["SERVED"]))
    os.write(ready, b"s")
    signal.pause()


def start_internet(answers: str, served: str = "") -> int:
    """Make it and the cable to it; return its pid.

    answers: what its server of HTTPS says, in hexadecimal; "": an echo. served: a directory, for what is in servers.py.
    """
    ready, there = os.pipe()
    link, here = os.pipe()
    command = [sys.executable, __file__, "--internet", str(there), str(link)]
    pid = subprocess.Popen(
        ["unshare", "-nm", *command],
        pass_fds=(there, link),
        env={**os.environ, "ANSWERS": answers, "SERVED": served},
    ).pid
    os.read(ready, 1)
    ip("link", "add", "h0", "type", "veth", "peer", "name", "i0")
    ip("link", "set", "i0", "netns", str(pid))
    ip("link", "set", "lo", "up")
    ip("address", "add", "192.0.2.1/24", "dev", "h0")
    ip("-6", "address", "add", "2001:db8:1::1/64", "dev", "h0", "nodad")
    ip("link", "set", "h0", "up")
    ip("route", "add", "default", "via", "192.0.2.2")
    ip("-6", "route", "add", "default", "via", "2001:db8:1::2")
    ip("route", "add", "unreachable", "198.51.100.0/24")
    os.write(here, b"l")
    os.read(ready, 1)
    return pid


# ---- the relay, and a sandbox


def start_relay(program: str, content: bytes) -> tuple[socket.socket, int]:
    """Start it; return the socket to it, and its pid."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listing = os.memfd_create("list")
    os.write(listing, content)
    given = [theirs.fileno(), listing, os.pidfd_open(os.getpid())]
    pid = os.fork()
    if pid == 0:
        high = [os.dup(os.dup2(fd, 20 + i)) and 20 + i for i, fd in enumerate(given)]
        for i, fd in enumerate(high):
            os.dup2(fd, 3 + i)
        os.closerange(6, 256)
        os.execve(program, ["nsbox-net"], {})
    theirs.close()
    return ours, pid


RESOLV = "nameserver 198.19.0.53\nsearch .\n"
INSIDE = """\
import os, socket, sys
world = socket.socket(fileno=int(sys.argv[1]))
world.send(b"u")
size, code = int(world.recv(8, socket.MSG_WAITALL)), b""
while len(code) < size:
    code += world.recv(size - len(code))
exec(code)
"""


def start_sandbox(control: socket.socket, number: int) -> tuple[subprocess.Popen, socket.socket, dict]:
    """Make namespaces in which nobody has a capability any more, and have the relay serve them."""
    ours, theirs = socket.socketpair()
    own = f"printf '{RESOLV}' > /run/r; mount --bind /run/r /etc/resolv.conf; "
    own += "printf '127.0.0.1 localhost\n' > /run/h; mount --bind /run/h /etc/hosts; "
    own += f"exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all {sys.executable} -c '{INSIDE}' {theirs.fileno()}"
    command = ["unshare", "-Urnm", "sh", "-c", f"mount -t tmpfs tmpfs /run; {own}"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),))
    theirs.close()
    ours.recv(1)
    answer, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds = [os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY), os.pidfd_open(child.pid), its.detach()]
    socket.send_fds(control, [MESSAGE.pack(1, 0, number, 0)], fds)
    for fd in fds:
        os.close(fd)
    return child, ours, read_event(answer)


def run(program: str, request: dict) -> dict:
    """Do what is asked for."""
    Path("/run/names").write_text(NAMES)
    Path("/run/resolv").write_text("nameserver 203.0.113.53\nsearch search.example\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", "/run/names", "/etc/hosts"], check=True)
    subprocess.run(["mount", "--bind", "/run/resolv", "/etc/resolv.conf"], check=True)
    start_internet(request.get("answers", ""))
    control, relay = start_relay(program, pack(request, request["rules"]))
    started = read_event(control)
    if started["value"]:
        code = os.waitstatus_to_exitcode(os.waitpid(relay, 0)[1])
        return {"output": "", "events": [], "ready": started, "relay": code, "status": "", "descriptors": 0, "ticks": 0}
    clients = [request["client"], *request.get("others", ())]
    sandboxes = [start_sandbox(control, 7 + i) for i in range(len(clients))]
    for port in request.get("on_host", ()):
        serve("0.0.0.0", port, echo)
    caller = Caller(control, request, lambda port: serve("127.0.0.1", port, echo))
    for (_, go, _), client in zip(sandboxes, clients, strict=True):
        code = (request["prelude"] + client).encode()
        go.sendall(f"{len(code):8}".encode() + code)
        caller.obey(go)
    outputs = [child.communicate(timeout=40)[0].decode() for child, _, _ in sandboxes]
    ends = caller.ends()
    events = caller.end()
    with open(f"/proc/{relay}/status") as file:
        status = file.read()
    with open(f"/proc/{relay}/stat") as file:
        ticks = sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    descriptors = len(os.listdir(f"/proc/{relay}/fd")) if os.access(f"/proc/{relay}/fd", os.R_OK) else -1
    caller.close()
    code = os.waitstatus_to_exitcode(os.waitpid(relay, 0)[1])
    return {
        "output": outputs[0],
        "others": outputs[1:],
        "events": events,
        "ends": ends,
        "ready": sandboxes[0][2],
        "relay": code,
        "status": status,
        "descriptors": descriptors,
        "ticks": ticks,
    }


def main() -> None:
    """Answer one request."""
    if sys.argv[1] == "--internet":
        internet(int(sys.argv[2]), int(sys.argv[3]))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    print(json.dumps(run(sys.argv[1], json.load(sys.stdin))))  # all else ends with us, who are pid 1


if __name__ == "__main__":
    main()
