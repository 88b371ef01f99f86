"""Clients that write garbage, too much or too often, that don't read, and that die: the server's side of the wire."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from nsbox_mcp_clients import LONG, Raw

from nsbox._mcp.stdio import MOST, Lines, has_too_many_values, read_message

Start = Callable[..., Raw]


def test_lines() -> None:
    """They come whole whatever the pieces are; of one that is too long, only its size."""
    lines = Lines(most=5)
    assert lines.put(b"ab") == [] and lines.has_rest
    assert lines.put(b"c\n\nde") == [(b"abc", 3), (b"", 0)]
    assert lines.put(b"fgh") == [] and lines.put(b"ij\nk\n") == [(b"", 7), (b"k", 1)]
    assert not lines.has_rest


@pytest.mark.parametrize(
    ("line", "code", "id", "text"),
    [
        (b"garbage", -32700, None, "isn't JSON"),
        (b'{"jsonrpc": "2.0", "id": 1, "meth', -32700, None, "isn't JSON"),
        (b"\xff\xfe", -32700, None, "isn't JSON"),
        (b"[" * 100_000, -32700, None, "isn't JSON"),
        (b"[]", -32600, None, "not a message"),
        (b"3", -32600, None, "not a message"),
        (b'{"id": 7}', -32600, 7, "not a message"),
        (b'{"id": true}', -32600, None, "not a message"),
        (b'{"jsonrpc": "2.0", "id": "a", "method": 3}', -32600, "a", "not a message"),
    ],
)
def test_what_is_no_message(line: bytes, code: int, id: Any, text: str) -> None:
    """The sender gets an error that says what is wrong, for its own request if the line says which."""
    message, problem = read_message(line, len(line))
    assert message is None and problem is not None
    answer: Any = problem.message
    assert (answer.error.code, answer.id) == (code, id) and text in answer.error.message


def test_what_is_not_utf_8(raw: Start) -> None:
    """Names that a command has chosen, and keys of values, end no server: what isn't UTF-8 is U+FFFD in answers."""
    client = raw()
    client.call(1, "shell", command="printf x > $(printf 'a\\377b')")
    assert client.answer(1)["result"]["isError"] is False
    client.call(2, "glob", pattern="*")
    assert client.answer(2)["result"]["structuredContent"]["paths"] == ["a\ufffdb"]
    client.call(3, "grep", pattern="x")
    assert client.answer(3)["result"]["structuredContent"]["matches"][0]["path"] == "a\ufffdb"
    client.call(4, "python", code="{'\\ud800': '\\ud800'}")
    assert client.answer(4)["result"]["structuredContent"]["value"] == {"\ufffd": "\ufffd"}
    client.write(b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}\n')
    assert client.answer(None)["error"]["code"] == -32600
    client.write(
        b'{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "\\udcff", "arguments": {}}}\n'
    )
    assert client.answer(5)["error"]["code"] == -32600
    client.call(6, "shell", command="echo one")
    assert client.answer(6)["result"]["structuredContent"]["stdout"] == "one\n"
    assert client.end()[0] == 0


def test_garbage(raw: Start) -> None:
    """Before the first message and in the midst of others: each line gets its error, and the server goes on."""
    client = raw(greets=False)
    client.write(b"hello\n\n", b"\0\xff\n")
    assert [client.read()["error"]["code"] for _ in range(2)] == [-32700, -32700]
    client.greet()
    client.call(1, "shell", command="echo one")
    client.write(b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"na\n')
    client.call(3, "shell", command="echo three")
    answers = [client.read() for _ in range(3)]
    assert sorted((one["id"] or 0, "error" in one) for one in answers) == [(0, True), (1, False), (3, False)]
    client.write(b'{"jsonrpc": "2.0", "id": 4, "method": "tools/ca')  # half a line at the end
    status, errors = client.end()
    assert status == 0 and "the client ended in the middle of a message" in errors


def test_ten_megabytes(raw: Start, workspace: Path) -> None:
    """The request gets an error with the bound, what is larger still an error without a number; what fits works."""
    client = raw()
    text = "x" * 10_000_000
    client.call(1, "write", path="big", content=text)
    answer = client.answer(1)
    assert answer["error"]["code"] == -32600
    assert f"at most {MOST:,} are read" in answer["error"]["message"] and "append" in answer["error"]["message"]
    client.call(2, "write", path="fits", content=text[: MOST - 1000])
    assert client.answer(2)["result"]["structuredContent"]["kind"] == "created"
    assert (workspace / "fits").stat().st_size == MOST - 1000 and not (workspace / "big").exists()
    for _ in range(100):
        client.write(text.encode())
    client.write(b"\n")
    assert "1,000,000,000 bytes" in client.answer(None)["error"]["message"]
    assert psutil.Process(client.process.pid).memory_info().rss < 500 << 20
    assert client.end()[0] == 0


def test_a_thousand_calls(raw: Start) -> None:
    """All at once: each is answered, and only a few commands run at the same time."""
    client = raw()
    most = 0
    for number in range(1000):
        client.call(number, "exec", program="true")
    seen = set()
    while len(seen) < 1000:
        answer = client.read()
        if "result" in answer:
            assert answer["result"]["structuredContent"]["status"] == 0
            seen.add(answer["id"])
        if len(seen) % 100 == 0:
            most = max(most, len(psutil.Process(client.process.pid).threads()))
    assert seen == set(range(1000)) and most < 100
    assert client.end()[0] == 0


def test_too_many_calls(raw: Start) -> None:
    """More than the server holds: those get an error that says so, and the others are carried out."""
    client = raw("--grace", "0")
    answers: list[Any] = []
    reader = threading.Thread(target=lambda: answers.extend(client.read() for _ in range(20)))
    reader.start()
    for number in range(20):
        client.call(number, "write", path=f"{number}", content="x" * 8_000_000)
    client.call(99, "shell", command="true")
    reader.join(LONG)
    assert len(answers) == 20
    for answer in answers:
        assert "result" in answer or "busy" in answer["error"]["message"], answer


LARGE = {
    "a list": {"arguments": {"program": "true", "args": ["x" * 7_000_000]}},
    "many strings": {"arguments": {"program": "true", "args": ["x" * 100] * 60_000}},
    "metadata": {"arguments": {"program": "true"}, "_meta": {"x": "x" * 7_000_000}},
}


@pytest.mark.parametrize("what", LARGE)
def test_calls_that_wait_are_bounded(raw: Start, what: str) -> None:
    """Wherever a call has its many bytes, those that wait for a place hold a bounded memory; the others hear why."""
    client = raw("--grace", "0")
    for number in range(16):
        client.call(number, "exec", program="sleep", args=["1000"])
    before = psutil.Process(client.process.pid).memory_info().rss
    params = json.dumps({"name": "exec", **LARGE[what]}).encode()
    answers: list[Any] = []
    reader = threading.Thread(target=lambda: answers.extend(client.read() for _ in range(20)))
    reader.start()
    for number in range(100, 160):
        client.write(b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": %s}\n' % (number, params))
    reader.join(LONG)
    assert len(answers) == 20 and all("busy" in answer["error"]["message"] for answer in answers)
    assert psutil.Process(client.process.pid).memory_info().rss - before < 200 << 20


@pytest.mark.parametrize("count", [2_500_000, 20_000_000])
def test_a_message_of_empty_lists(raw: Start, count: int) -> None:
    """It would take a hundred times its size; it isn't parsed, neither in order to find its id."""
    client = raw()
    client.write(b'{"id": 7, "x": [' + b"[]," * count + b"[]]}\n")
    assert "error" in client.answer(None)
    assert psutil.Process(client.process.pid).memory_info().rss < 400 << 20
    text = "[]," * 300_000 + '"\\\n'
    client.call(8, "write", path="lists", content=text)
    assert "result" in client.answer(8), "in a text they are only characters"


def test_values_are_counted_in_linear_time() -> None:
    """Also in a string without an end, whatever is escaped in it."""
    for line in (b'"' + rb"\"" * 4_000_000, b'"' * 8_000_001, b"\\" * 8_000_001):
        assert not has_too_many_values(line)
    assert has_too_many_values(rb'["\\",' * 200_000)


def test_a_client_that_does_not_read(raw: Start) -> None:
    """The server waits, holds what it has to say, and ends with the client."""
    client = raw()
    for number in range(50):
        client.call(number, "shell", command="head -c 90000 /dev/zero | tr '\\0' x")
    time.sleep(1)  # it may fill the pipe meanwhile, or not
    client.stdin.close()
    client.stdout.close()
    assert client.process.wait(LONG) == 0


def flood(client: Raw, request: Callable[[int], bytes], total: int) -> tuple[int, bytes]:
    """Write requests and read nothing, until the server takes no more; return how many, and the rest of the last one.

    The server's memory stays small all the while. What looks like a server that takes no more may be one that is slow:
    then the requests are fewer, and the test is an easier one.
    """
    server = psutil.Process(client.process.pid)
    fd, refused = client.stdin.fileno(), 0
    for number in range(total):
        rest = request(number)
        while rest:
            os.set_blocking(fd, False)
            try:
                rest = rest[os.write(fd, rest) :]
                refused = 0
            except BlockingIOError:
                refused += 1
                if refused % 10 == 1:
                    assert server.memory_info().rss < 700 << 20
                time.sleep(0.02)
            finally:
                os.set_blocking(fd, True)
            if refused > 200:
                return number + 1, rest
    return total, b""


def listing(number: int) -> bytes:
    return b'{"jsonrpc": "2.0", "id": %d, "method": "tools/list"}\n' % number


def wrong(number: int) -> bytes:
    params = b'{"name": "no such tool", "arguments": {}}'
    return b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": %s}\n' % (number, params)


def reading(number: int) -> bytes:
    params = b'{"name": "read_lines", "arguments": {"path": "long"}}'
    return b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", "params": %s}\n' % (number, params)


@pytest.mark.parametrize("request_of", [listing, wrong, reading])
def test_what_waits_for_a_client_that_does_not_read(
    raw: Start, workspace: Path, request_of: Callable[[int], bytes]
) -> None:
    """Answers and errors that nobody reads are few: the server reads no more requests. Then all of them come."""
    (workspace / "long").write_text(("x" * 99 + "\n") * 1900)
    client = raw()
    count, rest = flood(client, request_of, 100_000)
    assert count < 100_000
    writer = threading.Thread(target=client.write, args=(rest,))
    writer.start()
    seen = {client.read()["id"] for _ in range(count)}
    writer.join()
    assert seen == set(range(count))
    client.call("last", "shell", command="echo last")
    assert client.answer("last")["result"]["structuredContent"]["stdout"] == "last\n"
    assert client.end()[0] == 0


def test_lines_that_are_no_message_and_nobody_reads_why(raw: Start) -> None:
    """Their errors are few as well, and the server ends with its client, which closes only stdin."""
    client = raw()
    assert flood(client, lambda number: b"garbage\n", 100_000)[0] < 100_000
    client.stdin.close()
    assert client.process.wait(LONG) == 0


def begun(client: Raw, workspace: Path) -> psutil.Process:
    """Let a command and a job run; return the server's process."""
    client.call(1, "background", command="trap '' TERM; touch job; while :; do sleep 0.05; done")
    client.answer(1)
    client.call(2, "python", code="import time\nopen('code', 'w')\ntime.sleep(1000)")
    client.call(3, "shell", command="trap '' TERM; touch command; while :; do sleep 0.05; done", timeout=3000)
    end = time.monotonic() + LONG
    while not all((workspace / name).exists() for name in ("job", "code", "command")):
        assert time.monotonic() < end
        time.sleep(0.02)
    return psutil.Process(client.process.pid)


def test_a_client_that_closes_stdin(raw: Start, workspace: Path) -> None:
    """While a command, code and a job run: the server ends them, and itself. The fixtures see what is left."""
    client = raw()
    server = begun(client, workspace)
    children = server.children(recursive=True)
    assert client.end()[0] == 0
    assert not [one for one in children if one.is_running()]


def test_a_client_that_dies(raw: Start, workspace: Path) -> None:
    """Both pipes break at once."""
    client = raw()
    server = begun(client, workspace)
    children = server.children(recursive=True)
    client.stdin.close()
    client.stdout.close()
    assert client.process.wait(LONG) == 0
    assert not [one for one in children if one.is_running()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals(raw: Start, workspace: Path, number: signal.Signals) -> None:
    """They end it as the end of stdin does; the status says which it was."""
    client = raw()
    children = begun(client, workspace).children(recursive=True)
    client.process.send_signal(number)
    assert client.process.wait(LONG) == 128 + number
    assert not [one for one in children if one.is_running()]


def test_sigkill(raw: Start, workspace: Path) -> None:
    """Nothing of its commands outlives a server that is killed."""
    client = raw()
    children = begun(client, workspace).children(recursive=True)
    client.process.kill()
    client.process.wait(LONG)
    gone, alive = psutil.wait_procs(children, timeout=LONG)
    assert not alive and len(gone) == len(children)


def test_stdout_has_nothing_else(raw: Start) -> None:
    """What Python and nsbox print goes to stderr, and a command can't reach the client's pipe."""
    os.environ["PYTHONWARNINGS"] = "always"
    try:
        client = raw()
    finally:
        del os.environ["PYTHONWARNINGS"]
    client.call(1, "shell", command="ls -l /proc/self/fd; echo out; echo err >&2; echo x > /proc/1/fd/1", timeout=LONG)
    record = client.answer(1)["result"]["structuredContent"]
    assert "out\n" in record["stdout"] and "err\n" in record["stderr"]
    own = os.readlink(f"/proc/{client.process.pid}/fd/1")
    assert own == os.readlink(f"/proc/{client.process.pid}/fd/2")
    assert client.end()[0] == 0  # which looks at every line


def test_wrong_options(raw: Start, workspace: Path) -> None:
    """One line on stderr, nothing on stdout, and a status that says so."""
    client = raw("--policy", "nothing.toml", greets=False)
    status, errors = client.end()
    assert status == 2 and errors == "nsbox: --policy: nothing.toml: No such file or directory\n"
