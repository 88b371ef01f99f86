"""Streams: output as it comes, bounded and scrubbed; stdin, terminals; readers who leave."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import Policy, Sandbox, StreamEvent, ToolResult
from nsbox._calls.output import Output, incomplete


def everything(events: Iterator[StreamEvent]) -> tuple[bytes, bytes, ToolResult]:
    """Return both streams, and the record."""
    parts: dict[str, list[bytes]] = {"stdout": [], "stderr": [], "end": []}
    result = None
    for event in events:
        assert result is None
        parts[event.kind].append(event.data)
        result = event.result
    assert result is not None
    return b"".join(parts["stdout"]), b"".join(parts["stderr"]), result


def test_as_it_comes(box: Sandbox) -> None:
    """A piece arrives while the command waits for this very process."""
    with box.stream("echo one; read x; echo got $x >&2", open_stdin=True, timeout=LONG) as stream:
        assert next(stream) == StreamEvent("stdout", b"one\n")
        assert stream.result is None
        stream.send("two\n")
        assert next(stream) == StreamEvent("stderr", b"got two\n")
        last = next(stream)
        assert (last.kind, last.data, last.text) == ("end", b"", "")
        assert last.result is stream.result
        assert last.result is not None
        assert (last.result.stdout, last.result.stderr, last.result.cause) == ("one\n", "got two\n", "exit")
        assert list(stream) == []


def test_bytes_as_they_are(box: Sandbox) -> None:
    """Invalid UTF-8, carriage returns and NUL bytes arrive; no piece splits a character."""
    line = r"printf 'a\r10%%\r\303'; sleep 0.2; printf '\244|\377\0|\360\237\230'; sleep 0.2; printf '\200\342\202'"
    events = list(box.stream(line))
    assert b"".join(event.data for event in events) == b"a\r10%\r\xc3\xa4|\xff\0|\xf0\x9f\x98\x80\xe2\x82"
    assert "".join(event.text for event in events) == "a\r10%\rä|\ufffd\0|\U0001f600\ufffd"


def test_a_program_with_arguments(box: Sandbox) -> None:
    """A list is read by no shell."""
    out, _, result = everything(box.stream(["printf", "%s|", "$HOME", "*"]))
    assert (out, result.args, result.shell) == (b"$HOME|*|", ["printf", "%s|", "$HOME", "*"], None)
    for wrong in ([], [1], b"ls", None):
        with pytest.raises(TypeError, match="command is"):
            box.stream(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shell_path"):
        box.stream(["ls"], shell_path="/bin/sh")


def test_secrets_across_pieces(box: Sandbox) -> None:
    """A secret that comes in two writes is masked too."""
    line = "printf 'x%.5s' $TOKEN; sleep 0.2; printf '%s' ${TOKEN#?????}; echo y"
    out, _, result = everything(box.stream(line, secrets={"TOKEN": "s3cr3t-value"}))
    assert out == b"x***y\n"
    assert result.stdout == "x***y\n"
    control, _, _ = everything(box.stream(line, env={"TOKEN": "s3cr3t-value"}))
    assert control == b"xs3cr3t-valuey\n"


def test_much_output_is_bounded(policy: Policy) -> None:
    """While nobody reads, the command waits, and little is held; a reader then gets everything."""
    size = 10_000_000_000 if os.environ.get("NSBOX_THOROUGH") else 50_000_000
    with Sandbox(policy) as box, box.stream(f"head -c {size} /dev/zero", timeout=LONG) as stream:
        first = next(stream)
        queue = stream._queue
        done = threading.Event()
        done.wait(0.3)
        assert not stream._worker.has_ended  # type: ignore[union-attr]
        assert queue._size + sum(len(data) for _, data in queue._batch) < 4_000_000
        total = len(first.data) + sum(len(event.data) for event in stream)
        assert total == size
        assert stream.result is not None
        assert stream.result.stdout_bytes == size
        assert stream.result.is_truncated


def test_one_long_line(policy: Policy) -> None:
    """A line without an end is pieces like anything else; the record has its beginning and its end."""
    mib = 1024 if os.environ.get("NSBOX_THOROUGH") else 64
    line = f"head -c {mib}M /dev/zero | tr '\\0' x; echo y"
    most = 0
    with Sandbox(policy) as box:
        for event in box.stream(line, max_output=1000, timeout=LONG):
            most = max(most, len(event.data))
            if event.result is not None:
                assert event.result.stdout_bytes == (mib << 20) + 2
                assert event.result.stdout.startswith("x" * 500 + "\n[... ")
                assert event.result.stdout.endswith("xy\n")
    assert most <= 1 << 20


def test_nobody_reads(policy: Policy) -> None:
    """The time limit holds all the same."""
    with Sandbox(policy) as box, box.stream("yes", timeout=0.3, grace=0.2) as stream:
        assert stream._worker is not None
        assert stream._worker.await_end(LONG)
        *_, last = stream
        assert last.result is not None
        assert last.result.cause == "timeout"


@pytest.mark.parametrize("way", ["close", "leave", "forget", "sandbox"])
def test_a_reader_who_leaves(policy: Policy, way: str) -> None:
    """The command ends, and with it what it has started."""
    with Sandbox(policy) as box:
        stream = box.stream("yes & yes")
        worker = stream._worker
        assert worker is not None
        next(stream)
        if way == "close":
            stream.close()
            stream.close()
            assert worker.has_ended
            with pytest.raises(StopIteration):
                next(stream)
        elif way == "leave":
            for _ in stream:
                break
            del stream
        elif way == "forget":
            del stream
            gc.collect()
        if way != "sandbox":
            assert worker.await_end(LONG)
    assert worker.has_ended
    assert worker.result is not None
    assert worker.result.cause == "cancelled"


def test_cancelled_events_go_on(box: Sandbox) -> None:
    """cancel() asks; the reader gets what the command still prints, and the record."""
    stream = box.stream("trap 'echo bye; exit' TERM; echo hi; while :; do sleep 0.05; done")
    assert next(stream).data == b"hi\n"
    stream.cancel()
    out, _, result = everything(stream)
    assert (out, result.cause) == (b"bye\n", "cancelled")


def test_stdin(box: Sandbox) -> None:
    """Text or bytes at the start; more than a pipe holds; the end of what was sent."""
    assert everything(box.stream("wc -c", input="ä" * 500_000))[0].split() == [b"1000000"]
    with box.stream("wc -c", open_stdin=True, input=b"12") as stream:
        stream.send(b"x" * 3_000_000, timeout=LONG)
        stream.send_eof()
        stream.send_eof()
        assert everything(stream)[0].split() == [b"3000002"]
    with box.stream("sleep 1000") as stream, pytest.raises(ValueError, match="stdin isn't open"):
        stream.send("x")
    with box.stream("exec <&-; echo; sleep 1000", open_stdin=True) as stream:
        next(stream)
        with pytest.raises(BrokenPipeError):
            for _ in range(100):
                stream.send("x" * 100_000, timeout=LONG)
    with box.stream("sleep 1000", open_stdin=True) as stream, pytest.raises(TimeoutError, match="hasn't read"):
        stream.send("x" * 3_000_000, timeout=0.1)


def test_a_terminal(box: Sandbox) -> None:
    """One stream, with the terminal's line ends; what is sent is typed."""
    with box.stream("test -t 0 && test -t 2 && stty size; read x; echo got $x >&2", pty=(30, 90), open_stdin=True) as s:
        s.send("abc\n")
        out, err, result = everything(s)
    assert b"30 90\r\n" in out
    assert b"got abc\r\n" in out
    assert err == b""
    assert result.returncode == 0
    out, _, result = everything(box.stream("cat; echo over", pty=True, input="line\n", timeout=LONG))
    assert result.returncode == 0
    assert out.endswith(b"over\r\n")


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("abc\n", "abc"), ("abc", "abc")])
def test_the_end_of_typing(box: Sandbox, text: str, shown: str) -> None:
    """Input ends at a terminal too: without any, after a line, and within one. The command then ends by itself."""
    for _ in range(8):
        out, _, result = everything(box.stream("cat", pty=True, input=text, timeout=LONG))
        assert (result.returncode, result.cause) == (0, "exit")
        assert shown in out.decode()
    with box.stream("cat; echo over", pty=True, open_stdin=True, timeout=LONG) as stream:
        stream.send(text)
        stream.send_eof()
        assert everything(stream)[2].returncode == 0


def test_a_command_that_lets_go_of_its_terminal(box: Sandbox) -> None:
    """It goes on: nothing hangs up before its end."""
    line = "exec </dev/null >/dev/null 2>&1; sleep 0.3; echo ok > done"
    _, _, result = everything(box.stream(line, pty=True, timeout=LONG))
    assert (result.returncode, result.cause) == (0, "exit")
    assert box.shell("cat done").stdout == "ok\n"


def test_sent_and_ended_at_once(box: Sandbox) -> None:
    """Nothing is lost of what is sent right before the end."""
    for _ in range(20):
        with box.stream("cat", open_stdin=True) as stream:
            stream.send("a")
            stream.send("b")
            stream.send_eof()
            assert everything(stream)[0] == b"ab"


def test_tiny_events_are_bounded(policy: Policy) -> None:
    """Events need memory too, however little is in them."""
    with Sandbox(policy) as box, box.stream("head -c 1 /dev/zero") as stream:
        queue = type(stream._queue)()
        while queue.has_room():
            queue.put("stdout", b"x")
        assert len(queue._events) < 20_000


def test_a_program_that_is_missing(box: Sandbox) -> None:
    """It is a record, as for exec()."""
    _, _, result = everything(box.stream(["nothing-of-that-name"]))
    assert (result.returncode, result.cause) == (127, "not-started")


def test_errors_of_the_start(box: Sandbox) -> None:
    """They are raised at once, and nothing is left behind."""
    list(box.stream("true"))  # what is kept is there
    fds = len(os.listdir("/proc/self/fd"))
    with pytest.raises(nsbox.AccessError):
        box.stream("true", cwd="/nothing/there")
    with pytest.raises(nsbox.PolicyError):
        box.stream("true", env={"LD_PRELOAD": "x"})
    with pytest.raises(ValueError, match="max_output"):
        box.stream("true", max_output="4T", open_stdin=True)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_closed(policy: Policy) -> None:
    """A closed Sandbox starts none."""
    box = Sandbox(policy)
    box.start()
    box.close()
    with pytest.raises(ValueError, match="closed"):
        box.stream("true")


def test_what_begins_a_character() -> None:
    """The beginnings of characters, and what looks like them."""
    text = "aä€😀"
    data = text.encode()
    ends = {len(text[:i].encode()) for i in range(len(text) + 1)}
    for i in range(len(data) + 1):
        assert (incomplete(data[:i]) == 0) == (i in ends)
    assert [incomplete(bytes([byte])) for byte in (0x41, 0x80, 0xC1, 0xC2, 0xE0, 0xF4, 0xF5, 0xFF)] == [
        *(0, 0, 0, 1, 1, 1, 0, 0)
    ]


def test_pieces_are_the_stream() -> None:
    """However the bytes come, the sink gets them all, in order."""
    data = "ä€😀x".encode() * 3 + b"\xff\xe2\x82"
    for size in range(1, 8):
        got: list[bytes] = []
        output = Output(100, None, got.append)
        for i in range(0, len(data), size):
            output.feed(data[i : i + size])
        output.end()
        assert b"".join(got) == data
        assert "".join(piece.decode("utf-8", "replace") for piece in got) == data.decode("utf-8", "replace")
