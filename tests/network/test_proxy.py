"""Behind a proxy: what `nsbox doctor proxy` and docs/howto/install.md say, with a proxy and an index of this machine.

The index is an HTTPS server for a name that nothing resolves: only the proxy knows where it is, by CONNECT.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT, INDEX = "nsbox-test-project", "index.example"
WHEEL = "nsbox_test_project-1.0-py3-none-any.whl"
DOWNLOAD = [
    sys.executable,
    "-m",
    "pip",
    "download",
    "-q",
    "--retries",
    "0",
    "--timeout",
    "20",
    "--no-deps",
    "--no-cache-dir",
]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")


class _Tunnels(socketserver.ThreadingTCPServer):
    """A proxy that leads each CONNECT to one port of this machine, and counts them."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        self.target = target
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Tunnel)


class _Tunnel(socketserver.StreamRequestHandler):
    server: _Tunnels

    def handle(self) -> None:
        method, where, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(f"{method} {where}")
        with socket.create_connection(("127.0.0.1", self.server.target)) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
            back.start()
            _pump(self.connection, far)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _wheel(path: Path) -> None:
    info = "nsbox_test_project-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def proxy(workspace: Path, tmp_path: Path) -> Iterator[_Tunnels]:
    """A proxy behind which an index is; the certificate of that is in the workspace."""
    pages = tmp_path / "pages"
    (pages / "simple" / PROJECT).mkdir(parents=True)
    _wheel(pages / WHEEL)
    (pages / "simple" / PROJECT / "index.html").write_text(f'<a href="/{WHEEL}">{WHEEL}</a>')
    key = tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={INDEX}"),
            *("-addext", f"subjectAltName=DNS:{INDEX}", "-keyout", str(key), "-out", str(workspace / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(workspace / "cert.pem", key)

    class Pages(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(pages))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as index:
        index.socket = context.wrap_socket(index.socket, server_side=True)
        with _Tunnels(index.server_address[1]) as proxy:
            for server in (index, proxy):
                threading.Thread(target=server.serve_forever, daemon=True).start()
            yield proxy
            proxy.shutdown()
            index.shutdown()


def run(workspace: Path, words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run words with variables; with none of the caller's about proxies, certificates or pip."""
    own = re.compile(r"PIP_|SSL_CERT|REQUESTS_CA|CURL_CA|.*_proxy$", re.IGNORECASE)
    clean = {name: value for name, value in os.environ.items() if not own.match(name)}
    return subprocess.run(
        words,
        cwd=workspace,
        env={**clean, "PIP_CONFIG_FILE": os.devnull, **variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def download(workspace: Path) -> list[str]:
    return [*DOWNLOAD, "--cert", str(workspace / "cert.pem"), "-i", f"https://{INDEX}/simple/", PROJECT]


def test_pip_with_a_proxy(workspace: Path, proxy: _Tunnels) -> None:
    """By --proxy and by HTTPS_PROXY, with the proxy's certificate named. Control: without a proxy it fails."""
    url = f"http://localhost:{proxy.server_address[1]}"
    assert run(workspace, download(workspace)).returncode != 0 and proxy.asked == []
    for more, variables in ((["--proxy", url], {}), ([], {"HTTPS_PROXY": url})):
        done = run(workspace, [*download(workspace), *more], **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        (workspace / WHEEL).unlink()
    assert {*proxy.asked} == {f"CONNECT {INDEX}:443"}


def test_a_sandbox_with_a_proxy(workspace: Path, proxy: _Tunnels) -> None:
    """The proxy's address and its variable, as `nsbox doctor proxy` says. Controls: neither is enough alone."""
    port = proxy.server_address[1]
    variables = {"HTTPS_PROXY": f"http://localhost:{port}"}
    nsbox = [sys.executable, "-P", "-m", "nsbox"]
    told = run(workspace, [*nsbox, "doctor", "proxy"], **variables).stdout
    assert "--allow-net PROXY:PORT --pass-env HTTPS_PROXY" in " ".join(told.split()) and "HTTPS_PROXY is set" in told
    allow, give = ["--allow-net", f"localhost:{port}"], ["--pass-env", "HTTPS_PROXY"]
    for options in (allow, give):
        done = run(workspace, [*nsbox, "run", *options, "--", *download(workspace)], **variables)
        assert done.returncode != 0 and proxy.asked == []
    done = run(workspace, [*nsbox, "run", *allow, *give, "--", *download(workspace)], **variables)
    assert done.returncode == 0, done.stderr
    assert (workspace / WHEEL).exists() and {*proxy.asked} == {f"CONNECT {INDEX}:443"}
