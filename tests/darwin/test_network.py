"""What a command reaches on a Mac: nothing by default, all of the internet with network="host", sockets that are files.

The tests of network="host" need the internet: without it nothing shows that the sandbox isn't what stops them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_darwin import allowed, attempt, control, lookup, python, refused

import nsbox

pytestmark = pytest.mark.darwin

HOST = "github.com"
CONNECT = "import socket; socket.create_connection((args[0], int(args[1])), 20).close()"
RESOLVE = """
import socket
try:
    print(socket.getaddrinfo(args[0], 443, socket.AF_INET)[0][4][0])
except socket.gaierror as error:  # not the error of a system call: names are asked for by a service
    raise PermissionError(errno.EPERM, str(error)) from None
"""
UNIX = """
import socket
os.chdir(args[0])  # the path of a socket has at most 104 bytes
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
    server.bind("s")
    server.listen()
    client.connect("s")
os.unlink("s")
"""


@pytest.fixture
def server() -> Iterator[str]:
    """The port of a server on the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield str(listening.getsockname()[1])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Path]:
    """A socket that is a file, of a service of the host: its path is short, since there is a limit."""
    directory = tempfile.mkdtemp(prefix="nsbox-", dir="/private/tmp")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        listening.bind(os.path.join(directory, "s"))
        listening.listen()
        yield Path(directory, "s")


@pytest.fixture
def open_policy(workspace: Path) -> nsbox.Policy:
    """The workspace's policy, with the host's network."""
    return nsbox.Policy.workspace(workspace, network="host")


def test_names(policy: nsbox.Policy, open_policy: nsbox.Policy) -> None:
    """Names of hosts aren't resolved without network, and are with the host's."""
    resolve = attempt(RESOLVE, HOST)
    control(resolve)
    refused(resolve, policy)
    allowed(resolve, open_policy)


def test_internet(policy: nsbox.Policy, open_policy: nsbox.Policy) -> None:
    """A server of the internet can't be reached by its address without network, and can with the host's."""
    connect = attempt(CONNECT, control(attempt(RESOLVE, HOST)).strip(), 443)
    control(connect)
    refused(connect, policy)
    allowed(connect, open_policy)


def test_loopback(policy: nsbox.Policy, open_policy: nsbox.Policy, server: str) -> None:
    """Servers of this machine can't be reached without network, and can with the host's."""
    connect = attempt(CONNECT, "127.0.0.1", server)
    control(connect)
    refused(connect, policy)
    allowed(connect, open_policy)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))", id="datagram"),
        pytest.param("socket.socket().bind(('127.0.0.1', 0))", id="bind"),
        pytest.param("socket.create_server(('0.0.0.0', 0))", id="serve"),
        pytest.param("socket.create_server(('::', 0), family=socket.AF_INET6, dualstack_ipv6=True)", id="dual stack"),
        pytest.param("socket.socket(type=socket.SOCK_DGRAM).connect(('8.8.8.8', 53))", id="datagram's route"),
    ],
)
def test_other_sockets(policy: nsbox.Policy, open_policy: nsbox.Policy, code: str) -> None:
    """Neither datagrams nor servers are possible without network; with the host's both are."""
    code = f"import socket, warnings; warnings.simplefilter('ignore'); {code}"
    control(attempt(code))
    refused(attempt(code), policy)
    allowed(attempt(code), open_policy)


def test_resolver_socket(policy: nsbox.Policy) -> None:
    """The socket of the resolver, by which names of hosts can carry data away, is closed without network."""
    connect = attempt("import socket; socket.socket(socket.AF_UNIX).connect('/private/var/run/mDNSResponder')")
    control(connect)
    refused(connect, policy)


def test_sockets_in_the_workspace(policy: nsbox.Policy, workspace: Path) -> None:
    """Processes of the command can talk by sockets that are files of the workspace, also without network."""
    allowed(attempt(UNIX, workspace), policy)


def test_socket_pair(policy: nsbox.Policy) -> None:
    """A pair of sockets, which has no name, works without network."""
    allowed(python("import socket; a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'"), policy)


@pytest.mark.parametrize("network", ["none", "host"])
def test_sockets_elsewhere(workspace: Path, service: Path, network: str) -> None:
    """A service's socket that is a file outside can't be connected to, with the host's network neither."""
    connect = attempt("import socket; socket.socket(socket.AF_UNIX).connect(args[0])", service)
    control(connect)
    refused(connect, nsbox.Policy.workspace(workspace, network=network))


def test_denied_socket(workspace: Path, twin: Path) -> None:
    """A denied name in the workspace is no place for a socket either."""
    control(attempt(UNIX, twin))
    refused(attempt(UNIX, workspace), nsbox.Policy.workspace(workspace, deny=[workspace / "s"]))


def test_tls_preset(open_policy: nsbox.Policy, workspace: Path) -> None:
    """The system's service for certificates, which uses the network itself, is only there with the preset."""
    certificates = lookup("com.apple.trustd.agent")
    control(certificates)
    refused(certificates, open_policy)
    allowed(certificates, nsbox.Policy.workspace(workspace, network="host", seatbelt={"tls"}))
