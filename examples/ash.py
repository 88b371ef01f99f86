"""A manager of sandboxes for agents: one root file system for all, and for each a workspace, secrets and a socket.

    python examples/ash.py

What a plain child process can do to the host, and a sandbox can't: each threat is tried by a real command, both ways.

    data/agents/NAME/           the agent's definition: /agent, read-only; its settings choose the network
    data/secrets/NAME.json      its variables, of mode 0600: for its environment only
    data/sandboxes/ID/          workspace/: /workspace; bridge.sock: /run/bridge.sock
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import socketserver
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nsbox
from nsbox import Limits, Policy, rootfs

PYTHON = os.path.realpath(sys.executable)
NETWORKS = ("none", "restricted", "full")
WEB = ("*:80", "*:443")  # what "restricted" is without a list: HTTP and HTTPS to public servers, never to this host
LIMITS = Limits(cpu_seconds=60, open_files=256)


class Bridge(socketserver.StreamRequestHandler):
    """What the host says to an agent: here, what the agent has said, in capitals."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.readline().upper())


@dataclass(frozen=True)
class AgentSandbox:
    """A sandbox that waits for commands."""

    id: str
    workspace: Path
    policy: Policy

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return nsbox.run(command, policy=self.policy, capture_output=True, text=True)


class Manager:
    """Makes sandboxes; all of them share one root, which is built once."""

    def __init__(self, data: Path) -> None:
        self._data = data
        stdlib = Path(sysconfig.get_path("stdlib"))
        files = [path for path in stdlib.iterdir() if path.name not in ("site-packages", "dist-packages", "test")]
        self._root = data / "rootfs"
        if not self._root.exists() or rootfs.check(self._root):  # a library of the host was updated
            rootfs.build(self._root, ["sh", "env", "cat", "ls", PYTHON], files=files, replace=True)

    def secrets_of(self, agent: str) -> dict[str, str]:
        """Return an agent's own variables. The file is data: nothing in it is executed, nobody else may read it."""
        try:
            fd = os.open(self._data / "secrets" / f"{agent}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return {}
        with open(fd) as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
                raise PermissionError(f"secrets of {agent}: not a file of this user with mode 0600")
            return {str(name): str(value) for name, value in json.load(file).items()}

    def network_of(self, agent: str) -> str | list[str]:
        """Return what its settings say: {"sandbox": {"network": "restricted", "hosts": ["packages.example"]}}."""
        path = self._data / "agents" / agent / ".claude" / "settings.json"
        try:
            wish = json.loads(path.read_text()).get("sandbox", {})
        except FileNotFoundError:
            return "none"
        mode = wish.get("network", "none")
        if mode not in NETWORKS:
            raise ValueError(f"{path}: network {mode!r}: only {', '.join(NETWORKS)}")
        if mode != "restricted":
            return "host" if mode == "full" else "none"
        return [str(host) for host in wish.get("hosts", WEB)]

    @contextmanager
    def sandbox(self, agent: str) -> Iterator[AgentSandbox]:
        """Give a sandbox for an agent, with its bridge, and end the bridge afterwards; the workspace remains."""
        if "/" in agent or agent.startswith("."):
            raise ValueError(f"{agent!r} is no agent's name")
        id = secrets.token_hex(4)
        home = self._data / "sandboxes" / id
        (home / "workspace").mkdir(parents=True)
        env = {"ASH_BRIDGE_SOCKET": "/run/bridge.sock", "ASH_AGENT_DIR": "/agent", "ASH_SANDBOX_ID": id}
        with socketserver.ThreadingUnixStreamServer(str(home / "bridge.sock"), Bridge) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                policy = rootfs.policy(
                    self._root,
                    workspace=home / "workspace",
                    agent=self._data / "agents" / agent,
                    bridge=home / "bridge.sock",
                    network=self.network_of(agent),
                    tmp_size="64M",
                    env=env | self.secrets_of(agent),
                    limits=LIMITS,
                )
                yield AgentSandbox(id, home / "workspace", policy)
            finally:
                server.shutdown()
                thread.join()


# ---- the threats

# Each is Python code that ends without an error if it has done what it shouldn't be able to.
MINIMAL_DEV = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
THREATS = {
    "read any file on the host": "assert 'SECRET' in open(data + '/host-file').read()",
    "write any file the user owns": "open(data + '/host-file', 'a').write(' and more')",
    "see all host processes": "assert int(manager) > 9 and os.stat(f'/proc/{manager}/cmdline')",
    "make network requests": "socket.create_connection(('127.0.0.1', int(port)), 5).close()",
    "read host variables": "assert os.environ['SUPER_SECRET']",
    "signal other processes": "assert int(manager) > 9; os.kill(int(manager), 0)",
    "read other workspaces": "assert open(data + f'/sandboxes/{other}/workspace/notes').read()",
    "read the agent store": "assert open(data + '/secrets/other.json').read()",
    "mount file systems": (
        "libc = ctypes.CDLL(None); os.mkdir('mnt'); assert libc.unshare(0x10020000) == 0"
        " and libc.mount(b'none', b'mnt', b'tmpfs', 0, None) == 0"
    ),
    "use host devices": f"assert {{*os.listdir('/dev')}} - {{*{MINIMAL_DEV!r}.split()}}",
}
REFUSED = 3
ATTEMPT = f"""
import ctypes, os, socket, sys
code, data, manager, port, other = sys.argv[1:]
try: exec(code)
except (OSError, AssertionError, KeyError): sys.exit({REFUSED})
"""
CONNECT = "socket.create_connection((other or '127.0.0.1', int(port)), 5).close()"
LOOK_UP = "socket.getaddrinfo(other, int(port))"
SERVE = """
import socket, sys
with socket.create_server(("0.0.0.0", int(sys.argv[1]))):
    print("ready", flush=True)
    input()
"""
ASK = """
import socket
with socket.socket(socket.AF_UNIX) as bridge:
    bridge.connect("/run/bridge.sock")
    bridge.sendall(b"hello\\n")
    print(bridge.recv(100).decode())
"""


def python(code: str, *arguments: str) -> list[str]:
    return [PYTHON, "-I", "-S", "-c", code, *arguments]


def came_true(status: int) -> bool:
    """Say if an attempt has succeeded; one that was no attempt at all is an error."""
    if status not in (0, REFUSED):
        raise RuntimeError(f"the attempt ended with status {status}")
    return status == 0


def prepare(data: Path, hosts: list[str]) -> None:
    """Lay out three agents, with a secret each, and a file of the host. hosts: what the restricted one may reach."""
    settings = {"coder": None, "other": {"network": "none"}, "reader": {"network": "restricted", "hosts": hosts}}
    (data / "secrets").mkdir(mode=0o700)
    for agent, wish in settings.items():
        (data / "agents" / agent / ".claude").mkdir(parents=True)
        (data / "agents" / agent / "CLAUDE.md").write_text(f"You are {agent}.\n")
        if wish is not None:
            (data / "agents" / agent / ".claude" / "settings.json").write_text(json.dumps({"sandbox": wish}))
        fd = os.open(data / "secrets" / f"{agent}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            json.dump({"API_KEY": f"key-of-{agent}"}, file)
    (data / "host-file").write_text("SECRET")


def reaches(box: AgentSandbox, code: str, *arguments: str) -> str:
    return "yes" if came_true(box.run(python(ATTEMPT, code, "", "", *arguments)).returncode) else "no"


def can_be_reached(box: AgentSandbox) -> str:
    """Say if the host can connect to a server of the agent's."""
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))  # so that no other server of the host has the port
        port = mine.getsockname()[1]
        with nsbox.Popen(python(SERVE, str(port)), policy=box.policy, stdin=-1, stdout=-1, text=True) as server:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":
                raise RuntimeError("the agent's server didn't start")
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
            except OSError:
                return "no"
            finally:
                server.communicate("\n")
            return "yes"


def show_network(box: AgentSandbox, restricted: AgentSandbox, listed: int, other: int) -> list[str]:
    """Print what each can reach; return what isn't as it was promised."""
    rows = {
        "a listed server": (CONNECT, str(listed), "", "no", "yes"),
        "another server of the host": (CONNECT, str(other), "", "no", "no"),
        "a name that isn't listed": (LOOK_UP, "443", "unlisted.example", "no", "no"),
        "the cloud's metadata": (CONNECT, "80", "169.254.169.254", "no", "no"),
    }
    broken = []
    for what, (code, port, host, none, some) in rows.items():
        found = reaches(box, code, port, host), reaches(restricted, code, port, host)
        print(f"{what}: none: {found[0]}; restricted: {found[1]}")
        broken += [] if found == (none, some) else [what]
    found = can_be_reached(box), can_be_reached(restricted)
    print(f"a server of the agent's, from the host: none: {found[0]}; restricted: {found[1]}")
    return broken + ([] if found == ("no", "no") else ["inbound"])


def show_threats(data: Path, box: AgentSandbox, arguments: list[str]) -> list[str]:
    """Print a line for each threat; return those that came true in the sandbox."""
    broken = []
    for threat, code in THREATS.items():
        command = python(ATTEMPT, code, *arguments)
        with tempfile.TemporaryDirectory(prefix="ash-") as here:
            plain = came_true(subprocess.run(command, cwd=here).returncode)
        inside = came_true(box.run(command).returncode)
        broken += [threat] if inside else []
        print(f"{threat}: plain child: {'yes' if plain else 'no'}; sandbox: {'YES' if inside else 'no'}")
    return broken


def main() -> int:
    """Print a line for each threat and each network; return 1 if a sandbox didn't keep its promise."""
    os.environ["SUPER_SECRET"] = "should-not-leak"
    with (
        tempfile.TemporaryDirectory(prefix="ash-") as name,
        socketserver.TCPServer(("127.0.0.1", 0), Bridge) as server,
        socketserver.TCPServer(("127.0.0.1", 0), Bridge) as listed,
    ):
        data = Path(name)
        port, listed_port = server.server_address[1], listed.server_address[1]
        prepare(data, [f"localhost:{listed_port}"])
        manager = Manager(data)
        with (
            manager.sandbox("coder") as box,
            manager.sandbox("other") as other,
            manager.sandbox("reader") as reader,
        ):
            other.run(["sh", "-c", "echo mine > notes"])
            broken = show_threats(data, box, [str(data), str(os.getpid()), str(port), other.id])
            broken += show_network(box, reader, listed_port, port)
            print("asks over the bridge:", box.run(python(ASK)).stdout.strip())
            shown = box.run(["sh", "-c", "cat /agent/CLAUDE.md; env"]).stdout
            print("its agent:", shown.splitlines()[0])
            print("its own secret:", "API_KEY=key-of-coder" in shown, "- another's:", "key-of-other" in shown)
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
