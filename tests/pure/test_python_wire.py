"""What a branch sends: anything at all, read within bounds; and the records that come of it."""

from __future__ import annotations

import json
import socket
import sys
import tracemalloc
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsbox import PythonException, PythonResult, python_schema
from nsbox._interpreter.wire import (
    MOST_DEPTH,
    MOST_FRAME,
    Frames,
    WireError,
    decoded,
    encode,
    frame,
    is_deep,
    number_in,
)
from nsbox._python.line import BranchLine
from nsbox._python.reply import DEPTH, MIME, REPR, TEXT, Reader, Reply
from nsbox._tools.verdicts import Hint
from nsbox.leaks import Scrubber

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
ODD = st.recursive(  # surrogates, and names that are agreed on with the wrong types
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
NAMES = ("value", "has_value", "repr", "type", "exception", "exit", "displays", "mime", "truncated", "message", "lines")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


# ---- frames


@given(st.lists(st.dictionaries(st.text(), VALUES), max_size=3), st.integers(1, 64))
def test_frames_come_back_however_they_are_cut(messages: list[dict[str, Any]], size: int) -> None:
    """What is written is read again, in whatever pieces it comes."""
    data, frames, found = b"".join(map(frame, messages)), Frames(), []
    for at in range(0, len(data), size):
        found += frames.feed(data[at : at + size])
    assert found == messages
    assert not frames.is_within


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_a_wire_error(data: bytes) -> None:
    """Nothing that comes raises anything else."""
    for read in (Frames().feed, decoded):
        try:
            read(data)
        except WireError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"[1]", "list"),
        (b"nul", "JSON"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e999}', "large"),
        (b'{"a":"\xff"}', "JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deep"),
        (b'{"a":[' + b"[]," * 2_000_000 + b"[]]}", "parts"),
        ('{"a":1}'.encode("utf-16"), "JSON"),
    ],
)
def test_what_is_no_message(data: bytes, word: str) -> None:
    """What JSON doesn't have, or what would cost too much, is said to be that."""
    with pytest.raises(WireError, match=word):
        decoded(data)


def test_long_numbers_without_pythons_own_bound() -> None:
    """A program that lifts Python's bound on digits isn't stopped for hours by a branch's number."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(WireError, match="digits"):
            decoded(b'{"a":' + b"9" * 5000 + b"}")
    finally:
        sys.set_int_max_str_digits(before)


def test_a_length_costs_no_memory() -> None:
    """A frame that claims to be large is refused, or waited for, before there is anything of it."""
    with pytest.raises(WireError, match="more than"):
        Frames().feed((MOST_FRAME + 1).to_bytes(4, "little"))
    tracemalloc.start()
    try:
        frames = Frames()
        assert frames.feed(MOST_FRAME.to_bytes(4, "little") + b"{") == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
        assert frames.is_within
    finally:
        tracemalloc.stop()


def test_all_frames_of_a_call_are_counted() -> None:
    """A branch that sends small frames for ever is stopped; another call may then send as much."""
    frames, piece = Frames(), frame({"a": "x" * 1_000_000})
    with pytest.raises(WireError, match="more than"):
        for _ in range(100):
            frames.feed(piece)
    frames = Frames()
    for _ in range(100):
        frames.feed(piece)
        frames.renew()


def test_what_is_sent_is_ascii_and_bounded() -> None:
    """Half a surrogate pair can be sent; NaN and what is too long can't."""
    assert frame({"code": "\ud800é"})[4:] == b'{"code":"\\ud800\\u00e9"}'
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"a": float("nan")})
    with pytest.raises(ValueError, match="more than"):
        frame({"code": "x" * MOST_FRAME})


def test_depth() -> None:
    """The depth of a value is found without recursion."""
    assert not is_deep(nested(DEPTH), DEPTH)
    assert is_deep(nested(DEPTH + 1), DEPTH)
    assert is_deep(nested(sys.getrecursionlimit() * 20), MOST_DEPTH)


@pytest.mark.parametrize("value", [None, True, 1.0, "1", -1, 11])
def test_numbers(value: object) -> None:
    """Only a whole number within its bounds is one."""
    with pytest.raises(WireError, match="'n'"):
        number_in({"n": value}, "n", 0, 10)
    assert number_in({"n": 10}, "n", 0, 10) == 10


# ---- replies


@given(st.dictionaries(st.sampled_from(NAMES), ODD), st.lists(ODD, max_size=3))
def test_any_reply_is_read_or_a_wire_error(message: dict[str, Any], displays: list[Any]) -> None:
    """Whatever the types are, there is a reply, which can be written as JSON and as UTF-8, or a WireError."""
    try:
        reply = Reader().read(message, displays)
    except WireError as error:
        assert str(error)
        return
    texts = [reply.repr, reply.type, *reply.omissions, *(str(text) for shown in reply.displays for text in shown)]
    "".join(text for text in texts if text is not None).encode()
    json.dumps({name: value for name, value in vars(reply).items() if name != "exception"}, allow_nan=False)


FULL = {
    "value": {"a": [1, None, "x"]},
    "has_value": True,
    "repr": "{'a': ...}",
    "type": "dict",
    "mime": {"text/plain": "{}", "application/json": {"a": 1}},
    "exception": {
        "type": "KeyError",
        "module": "builtins",
        "message": "'k'",
        "traceback": "Traceback ...",
        "notes": ["a note"],
        "lines": [[1, "d['k']"]],
    },
    "exit": None,
    "displays": [{"image/png": "iVBORw0KGgo="}],
    "truncated": ["repr"],
}


def test_a_whole_reply() -> None:
    """Everything that is agreed on arrives."""
    reply = Reader().read(FULL, [{"text/html": "<b>"}])
    assert reply == Reply(
        value={"a": [1, None, "x"]},
        has_value=True,
        repr="{'a': ...}",
        type="dict",
        mime={"text/plain": "{}", "application/json": {"a": 1}},
        displays=({"text/html": "<b>"}, {"image/png": "iVBORw0KGgo="}),
        exception=PythonException("KeyError", "builtins", "'k'", "Traceback ...", ((1, "d['k']"),), ("a note",)),
        exit=None,
        omissions=("repr",),
    )
    assert str(reply.exception) == "KeyError: 'k'"


@pytest.mark.parametrize(
    "message",
    [
        {"exit": "1"},
        {"exit": True},
        {"exit": 2**40},
        {"repr": 1},
        {"displays": {}},
        {"displays": ["x"]},
        {"mime": {"no type": "x"}},
        {"mime": {"a/\n": "x"}},
        {"mime": {f"a/{i}": "x" for i in range(40)}},
        {"exception": "KeyError"},
        {"exception": {"type": "KeyError", "message": "", "traceback": None}},
        {"exception": {"type": "K", "message": "", "traceback": "", "lines": [[1]]}},
        {"truncated": "value"},
    ],
)
def test_a_reply_of_wrong_types(message: dict[str, Any]) -> None:
    """What isn't what was agreed is a WireError, which says what."""
    with pytest.raises(WireError):
        Reader().read(message, [])


def test_what_is_too_large_is_named() -> None:
    """Texts are cut in the middle; a value that is too deep, and displays that are too many, are left out."""
    exception = {"type": "E", "message": "m" * (TEXT + 1), "traceback": "", "module": ""}
    message = {
        "value": nested(DEPTH + 1),
        "has_value": True,
        "repr": "r" * (REPR + 1),
        "mime": {"text/plain": "x" * (MIME + 1)},
        "exception": exception,
    }
    reply = Reader().read(message, [{"text/plain": "x"}] * 101)
    assert not reply.has_value
    assert reply.value is None
    assert reply.repr is not None and len(reply.repr) < REPR + 100 and "1 characters left out" in reply.repr
    assert reply.mime == {}
    assert len(reply.displays) == 100
    assert set(reply.omissions) == {"value", "repr", "mime", "displays", "message"}


def test_secrets_are_masked_everywhere() -> None:
    """A secret is masked in values, names, texts, bundles and tracebacks, also between half surrogates."""
    secret = "hunter2-hunter2"
    text = f"<{secret}>"
    message = {
        "value": {text: [text, {"a": text + "\ud800"}]},
        "has_value": True,
        "repr": text,
        "type": text,
        "mime": {"text/plain": text, "application/json": [text]},
        "displays": [{"text/html": text}],
        "exception": {
            "type": text,
            "module": text,
            "message": text,
            "traceback": text,
            "notes": [text],
            "lines": [[1, text]],
        },
        "truncated": [text],
    }
    reply = Reader(Scrubber([secret]).scrub).read(message, [{"text/plain": text}])
    assert secret not in repr(reply)
    assert repr(reply).count("<") >= 13


# ---- records


def record(**more: Any) -> PythonResult:
    fields: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), "") | dict.fromkeys(
        ("stdout_bytes", "stderr_bytes"), 0
    )
    fields |= {"args": "1", "returncode": 0, "is_truncated": False, "timed_out": False, "duration": 0.1}
    return PythonResult(**fields, **more)


@given(st.dictionaries(st.sampled_from(NAMES), ODD))
def test_records_are_what_the_schema_says(message: dict[str, Any]) -> None:
    """as_dict() is an instance of python_schema(), whatever the code has said."""
    try:
        reply = Reader().read(message, [])
    except WireError:
        reply = Reader().read(FULL, [])
    given = {name: value for name, value in vars(reply).items() if name != "exit"}
    values = json.loads(record(**given, why=(Hint("a", "b"),)).as_json())
    jsonschema.Draft202012Validator(python_schema()).validate(values)
    assert values["schema"] == "nsbox.python/1"


def test_the_schema_is_strict_and_a_copy() -> None:
    """It names every key, and what a caller does to it stays with the caller."""
    schema = python_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    values = record().as_dict()
    assert set(schema["properties"]) == set(schema["required"]) == set(values)
    validator = jsonschema.Draft202012Validator(schema)
    assert not validator.is_valid({**values, "more": 1})
    assert not validator.is_valid({**values, "exception": {"type": "E"}})
    assert not validator.is_valid({**values, "cause": "magic"})
    schema["properties"].clear()
    assert python_schema()["properties"]


# ---- the line


def pair() -> tuple[socket.socket, Any]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return theirs, ours


def test_the_line_ends_at_nonsense() -> None:
    """After what can't be read, nothing more is, and the one who has to end the branch is called."""
    theirs, ours = pair()
    with theirs, ours:
        line, called = BranchLine(ours), []
        line.on_problem = lambda: called.append(1)
        theirs.sendall(b"\xff\xff\xff\xff")
        line.read()
        assert (line.has_ended, called) == (True, [1])
        assert "more than" in line.problem
        line.drain()


def test_the_line_takes_the_reply_of_its_run_alone() -> None:
    """Replies to other runs, a second reply, and displays after it aren't the run's."""
    theirs, ours = pair()
    with theirs, ours:
        line = BranchLine(ours, number=2)
        for message in (
            {"id": 1, "done": True, "repr": "old"},
            {"id": 2, "display": {"a/b": "x"}},
            {"id": 2, "done": True, "repr": "new"},
            {"id": 2, "done": True, "repr": "newer"},
            {"id": 2, "display": {"a/b": "late"}},
            {"display": 1},
            {},
        ):
            theirs.sendall(frame(message))
        theirs.close()
        line.drain()
        assert line.has_ended and not line.problem
        assert line.reply == {"id": 2, "done": True, "repr": "new"}
        assert line.displays == [{"a/b": "x"}]


def test_the_line_sends_in_pieces_without_blocking() -> None:
    """More than the socket holds is sent as it is read; a branch that has gone takes the rest with it."""
    theirs, ours = pair()
    with theirs, ours:
        data = b"x" * 3_000_000
        line, got = BranchLine(ours, data), 0
        while line.wants_room:
            line.write()
            got += len(theirs.recv(1 << 20))
        theirs.settimeout(0.01)
        while got < len(data):
            got += len(theirs.recv(1 << 20))
        line.begin(2, data)
        theirs.close()
        while line.wants_room:
            line.write()
