"""JupyterLab's server, started for real: a contained kernel by its REST interface and its websocket."""

from __future__ import annotations

import json
import os
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

LONG = 300
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("kernels")]


class Server:
    def __init__(self, port: int) -> None:
        self.port = port

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


@pytest.fixture
def server(notebooks: Path) -> Iterator[Server]:
    made = Server(_free_port())
    options = ["--no-browser", f"--ServerApp.port={made.port}", "--ServerApp.port_retries=0", "--allow-root"]
    home = notebooks.parent / "home"  # kernels refuse to work in a home
    home.mkdir()
    command = [sys.executable, "-m", "jupyterlab", *options, "--IdentityProvider.token=t"]
    log = (notebooks.parent / "server.log").open("w")
    process = subprocess.Popen(command, cwd=notebooks, stdout=log, stderr=log, env={**os.environ, "HOME": str(home)})
    try:
        end = time.monotonic() + LONG
        while True:
            try:
                made.ask("GET", "/api/status")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None and time.monotonic() < end, (notebooks.parent / "server.log").read_text()
                time.sleep(0.2)
        yield made
    finally:
        process.terminate()
        process.wait(LONG)
        log.close()


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
