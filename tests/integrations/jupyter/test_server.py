"""JupyterLab's server, started for real: a contained kernel by its REST interface and its websocket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from nsbox.integrations.jupyter import install

LONG = 300
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("kernels")]


class Server:
    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.log = log
        self.process: Any = None

    def refused(self, method: str, path: str, body: Any) -> str:
        """Ask for what fails with status 500; return the message that the browser shows."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.ask(method, path, body)
        with caught.value as answer:
            assert answer.code == 500
            return str(json.loads(answer.read())["message"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "token t", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def channel(self, kernel: str) -> websocket.WebSocket:
        url = f"ws://127.0.0.1:{self.port}/api/kernels/{kernel}/channels?token=t"
        return websocket.create_connection(url, timeout=LONG)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def serving(notebooks: Path, *options: str, home: Path | None = None) -> Iterator[Server]:
    made = Server(_free_port(), notebooks.parent / "server.log")
    options = ("--no-browser", f"--ServerApp.port={made.port}", "--ServerApp.port_retries=0", "--allow-root", *options)
    command = [sys.executable, "-m", "jupyterlab", *options, "--IdentityProvider.token=t"]
    home = home or notebooks.parent / "home"  # kernels refuse to work in a home
    home.mkdir(exist_ok=True)
    log = made.log.open("a")
    made.process = process = subprocess.Popen(
        command, cwd=notebooks, stdout=log, stderr=log, env={**os.environ, "HOME": str(home)}
    )
    try:
        end = time.monotonic() + LONG
        while True:
            try:
                made.ask("GET", "/api/status")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None and time.monotonic() < end, made.log.read_text()
                time.sleep(0.2)
        yield made
    finally:
        process.terminate()
        process.wait(LONG)
        log.close()


@pytest.fixture
def server(notebooks: Path) -> Iterator[Server]:
    with serving(notebooks) as made:
        yield made


def _send(channel: websocket.WebSocket, code: str) -> str:
    number = uuid.uuid4().hex
    header = {"msg_id": number, "username": "", "session": "s", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channel.send(json.dumps(message))
    return number


def _read(channel: websocket.WebSocket, number: str, until: str = "execute_reply") -> tuple[str, dict[str, Any]]:
    """Return what code has printed, and the message that is waited for."""
    said = ""
    while True:
        message = json.loads(channel.recv())
        if message["parent_header"].get("msg_id") != number:
            continue
        if message["msg_type"] == "stream":
            said += message["content"]["text"]
        if message["msg_type"] == until:
            return said, message["content"]


def _run(channel: websocket.WebSocket, code: str) -> tuple[str, dict[str, Any]]:
    """Return what code has printed, once the kernel is idle, and its reply."""
    number = _send(channel, code)
    said, reply, is_idle = "", None, False
    while reply is None or not is_idle:
        message = json.loads(channel.recv())
        if message["parent_header"].get("msg_id") != number:
            continue
        if message["msg_type"] == "stream":
            said += message["content"]["text"]
        elif message["msg_type"] == "execute_reply":
            reply = message["content"]
        elif message["msg_type"] == "status":
            is_idle = message["content"]["execution_state"] == "idle"
    return said, reply


def test_lab(server: Server, notebooks: Path) -> None:
    """A kernel is listed, started, used, interrupted, restarted and shut down. The control reads the secret."""
    specs = server.ask("GET", "/api/kernelspecs")["kernelspecs"]
    assert {"contained", "python3"} <= {*specs}
    secret = f"print(open({str(notebooks.parent / 'secret')!r}).read())"
    kernel = server.ask("POST", "/api/kernels", {"name": "contained"})["id"]
    channel = server.channel(kernel)
    assert _run(channel, "x = 41; print(x + 1)")[0] == "42\n"
    assert _run(channel, secret)[1]["ename"] in ("FileNotFoundError", "PermissionError")
    number = _send(channel, "print('began', flush=True)\nwhile True: pass")
    _read(channel, number, "stream")
    server.ask("POST", f"/api/kernels/{kernel}/interrupt")
    assert _read(channel, number)[1]["ename"] == "KeyboardInterrupt"
    assert _run(channel, "print(x)")[0] == "41\n"
    channel.close()
    server.ask("POST", f"/api/kernels/{kernel}/restart")
    channel = server.channel(kernel)
    assert _run(channel, "print(x)")[1]["ename"] == "NameError"
    channel.close()
    server.ask("DELETE", f"/api/kernels/{kernel}")
    control = server.ask("POST", "/api/kernels", {"name": "python3"})["id"]
    channel = server.channel(control)
    assert _run(channel, secret)[0] == "hidden\n"
    channel.close()
    server.ask("DELETE", f"/api/kernels/{control}")
    assert server.ask("GET", "/api/kernels") == []


def test_the_server_ends(server: Server) -> None:
    """A kernel that still runs ends with the server, and leaves nothing: the fixtures look."""
    kernel = server.ask("POST", "/api/kernels", {"name": "contained"})["id"]
    channel = server.channel(kernel)
    assert _run(channel, "print(1)")[0] == "1\n"
    channel.close()


def test_a_kernel_that_cannot_start(server: Server, notebooks: Path, tmp_path: Path) -> None:
    """The browser and the log get the cause in one line, by each way to start a kernel. The control: `contained`."""
    cases = {
        "seatbelt": ('backend = "seatbelt"\n', "Seatbelt"),
        "wrong": ('netwrok = "none"\nreadable = 1\n', "netwrok"),
        "elsewhere": ('workspace = "place"\n', "is not in the sandbox"),
        "gone": (None, "No such file or directory: "),
    }
    (tmp_path / "place").mkdir()
    for name, (policy, cause) in cases.items():
        file = tmp_path / f"{name}.toml"
        file.write_text("")
        install(name, policy=file, prefix=tmp_path, check=False)
        file.unlink() if policy is None else file.write_text(policy)
        messages = [server.refused("POST", "/api/kernels", {"name": name})]
        session = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": name}}
        messages.append(server.refused("POST", "/api/sessions", session))
        for message in messages:
            assert message.startswith(f"the kernel '{name}' can't start: ") and cause in message, message
            assert "\n" not in message
            assert any(line.endswith(message) for line in server.log.read_text().splitlines())
    assert server.ask("GET", "/api/kernels") == []
    kernel = server.ask("POST", "/api/kernels", {"name": "contained"})["id"]
    server.ask("DELETE", f"/api/kernels/{kernel}")


def test_a_server_in_a_home(notebooks: Path) -> None:
    """A client that names a directory of keys gets no kernel there. The control, an ordinary kernel, prints the key."""
    (notebooks / ".ssh").mkdir()
    (notebooks / ".ssh/id").write_text("PRIVATE KEY")
    (notebooks / "project").mkdir()
    with serving(notebooks, home=notebooks) as server:
        for path, problem in ((".ssh", "where programs keep keys"), ("", "is a home directory")):
            message = server.refused("POST", "/api/kernels", {"name": "contained", "path": path})
            assert problem in message and "writable_paths" in message, message
        for name, path, said in (("python3", ".ssh", "PRIVATE KEY\n"), ("contained", "project", "")):
            kernel = server.ask("POST", "/api/kernels", {"name": name, "path": path})["id"]
            channel = server.channel(kernel)
            assert _run(channel, f"print(open({str(notebooks / '.ssh/id')!r}).read())")[0] == said
            channel.close()
            server.ask("DELETE", f"/api/kernels/{kernel}")


def test_a_kernel_that_dies_at_its_start(notebooks: Path, tmp_path: Path) -> None:
    """The server's log says which limits its policy has."""
    (tmp_path / "p.toml").write_text('[limits]\nmemory = "50M"\n')
    install("small", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
    with serving(notebooks, "--KernelRestarter.restart_limit=0") as server:  # no server ends while it restarts a kernel
        server.ask("POST", "/api/kernels", {"name": "small"})
        end = time.monotonic() + LONG
        while "the kernel 'small' ended, " not in server.log.read_text():
            assert time.monotonic() < end, server.log.read_text()
            time.sleep(0.5)
        line = next(line for line in server.log.read_text().splitlines() if "the kernel 'small' ended, " in line)
        assert "memory=50 MiB" in line


def test_a_program_that_is_missing(server: Server, kernels: Path) -> None:
    """A kernel whose program isn't there is told as well."""
    file = kernels / "contained/kernel.json"
    spec = json.loads(file.read_text())
    file.write_text(json.dumps({**spec, "argv": ["/no/such/program", "{connection_file}"]}))
    message = server.refused("POST", "/api/kernels", {"name": "contained"})
    assert "/no/such/program" in message and "\n" not in message


def test_a_restart_that_fails(server: Server, tmp_path: Path) -> None:
    """Jupyter's own text is in the browser then; the cause is in the log."""
    (tmp_path / "p.toml").write_text("")
    install("once", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
    kernel = server.ask("POST", "/api/kernels", {"name": "once"})["id"]
    channel = server.channel(kernel)
    assert _run(channel, "print(1)")[0] == "1\n"
    channel.close()
    (tmp_path / "p.toml").write_text('backend = "seatbelt"\n')
    assert server.refused("POST", f"/api/kernels/{kernel}/restart", None) == "Exception restarting kernel"
    assert "the kernel 'once' can't start: this machine can't do it: seatbelt: " in server.log.read_text()


def test_a_server_that_is_killed(notebooks: Path, tmp_path: Path) -> None:
    """Its kernels end. What it left is removed when the next server starts a kernel, whose own stays."""
    place = tmp_path / "t"  # a short name: sockets lie in it
    place.mkdir()

    def directories() -> set[str]:
        return {path.name for path in place.glob("nsbox-kernel-*")}

    def started(server: Server) -> None:
        kernel = server.ask("POST", "/api/kernels", {"name": "contained"})["id"]
        channel = server.channel(kernel)
        assert _run(channel, "print(1)")[0] == "1\n"
        channel.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        with serving(notebooks) as first:
            started(first)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        left = directories()
        assert len(left) == 1
        with serving(notebooks) as second:
            assert directories() == left
            started(second)
            assert len(directories()) == 1 and not directories() & left
            started(second)
            assert len(directories()) == 2
    assert directories() == set()
