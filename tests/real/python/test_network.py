"""Network lists in branches, with servers of this machine: what is reached, what the record says, many at once."""

from __future__ import annotations

import concurrent.futures
import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy, Sandbox

CODE = """
import os, socket
def ask(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as s: return s.recv(100).decode()
    except OSError as error: return error.errno
"""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server of this machine that says hello."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            client.sendall(b"hello")
            client.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.fixture
def listed(workspace: Path, port: int) -> Policy:
    return Policy.workspace(workspace, network=[f"localhost:{port}"])


@pytest.mark.vm
@pytest.mark.parametrize("overlay", [False, True])
def test_what_is_listed(listed: Policy, port: int, overlay: bool) -> None:
    """It is reached; another port isn't. The record counts what this branch did."""
    with Sandbox(listed) as box, box.python(setup=CODE, overlay=overlay) as py:
        for _ in range(2):
            result = py.run("[ask(port), ask(port + 1)]", inputs={"port": port})
            assert result.value == ["hello", errno.ECONNREFUSED]
            assert result.network is not None and result.network.received == 5 and result.network.lost == 0
        result = py.run("1")
        assert result.network is not None and result.network.received == 0


def test_the_files_of_names(listed: Policy) -> None:
    """They are a command's: the relay's name server, and no host of this machine's."""
    with Sandbox(listed) as box, box.python() as py:
        shown = py.run("[open(name).read() for name in ('/etc/resolv.conf', '/etc/hosts')]").value
        assert "".join(shown) == box.shell("cat /etc/resolv.conf /etc/hosts").stdout
        assert shown[0].startswith("nameserver 198.19.0.53\n")


def test_interfaces(workspace: Path, port: int, listed: Policy) -> None:
    """A branch has a loopback interface of its own, with and without a list, and can use all of its ports."""
    code = """
names = [name for _, name in socket.if_nameindex() if name == "lo"]
server = socket.create_server(("127.0.0.1", 80))
[names, socket.create_connection(("127.0.0.1", 80)).getpeername()[1]]
"""
    for policy in (listed, Policy.workspace(workspace)):
        with Sandbox(policy) as box, box.python(setup=CODE) as py:
            for _ in range(2):
                assert py.run(code).value == [["lo"], 80]


def test_many_at_once(listed: Policy, port: int) -> None:
    """Each has its own record, and its own connections."""
    with Sandbox(listed) as box, box.python(setup=CODE, stock=2) as py:

        def one(count: int) -> Any:
            result = py.run("[ask(port) for _ in range(count)]", inputs={"port": port, "count": count})
            return result.value, result.network and result.network.received

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(one, range(24)))
    assert found == [(["hello"] * count, 5 * count) for count in range(24)]


def test_on_network(listed: Policy, port: int) -> None:
    """Its events come as those of commands do."""
    seen: list[nsbox.NetworkEvent] = []
    with Sandbox(listed, on_network=seen.append) as box, box.python(setup=CODE) as py:
        assert py.run("ask(port)", inputs={"port": port}).value == "hello"
        relay = box._open_way().relay
        assert relay is not None
        relay.flush()
    assert seen and {event.port for event in seen} == {port}


def test_no_list_any_more(listed: Policy, port: int) -> None:
    """After a change of the policy the next branch has what that says."""
    with Sandbox(listed) as box, box.python(setup=CODE) as py:
        assert py.run("ask(port)", inputs={"port": port}).value == "hello"
        box.update(listed.with_(network="none"))
        result = py.run("ask(port)", inputs={"port": port})
        assert result.value == errno.ECONNREFUSED
        box.update(listed.with_(network="host"))
        assert py.run("ask(port)", inputs={"port": port}).value == "hello"
        box.update(listed)
        assert py.run("ask(port)", inputs={"port": port}).value == "hello"
