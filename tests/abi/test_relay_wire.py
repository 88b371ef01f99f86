"""Python and the relay agree about every byte and number of csrc/net/wire.h: of the list, the messages and the events."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from nsbox._network import events
from nsbox._relay import wire as relay_wire

WORDS = {"udp": "DATAGRAM", "publish": "PUBLISHED"}


@pytest.fixture(scope="module")
def wire(source: Path) -> tuple[FFI, Any]:
    """Return the header, as cffi understands it, and its constants."""
    text = re.sub(r"/\*.*?\*/|^#[^\n]*", "", (source / "csrc/net/wire.h").read_text(), flags=re.DOTALL | re.MULTILINE)
    ffi = FFI()
    ffi.cdef(text)
    return ffi, ffi.dlopen(None)


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("nsbox_net_message", events.HEAD),
        ("nsbox_net_event", events.PACKET),
        ("nsbox_net_rules", relay_wire._HEAD),
        ("nsbox_net_rule", relay_wire._RULE),
    ],
)
def test_packings(wire: tuple[FFI, Any], name: str, packing: struct.Struct) -> None:
    """The formats have the size of C's structs, each field is where C has it, and no byte belongs to none."""
    ffi, _ = wire

    def flat(kind: str, at: int = 0) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for _, field in ffi.typeof(kind).fields:
            if field.type.kind == "struct":
                found += flat(field.type.cname, at + field.offset)
            else:
                found.append((at + field.offset, ffi.sizeof(field.type)))
        return found

    codes: list[str] = []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", packing.format):
        codes += [count + code] if code == "s" else [code] * int(count or 1)
    sizes = [struct.calcsize(f"={code}") for code in codes]
    assert flat(name) == [(sum(sizes[:at]), size) for at, size in enumerate(sizes)]
    assert packing.size == ffi.sizeof(name)


def test_fields_land(wire: tuple[FFI, Any]) -> None:
    """What C writes into a field is what the event has under that name."""
    ffi, c = wire
    made = ffi.new("nsbox_net_event *")
    made.head.kind, made.head.value, made.head.sandbox, made.head.id = c.NSBOX_NET_EVENT, -3, 1 << 40, 1 << 41
    made.time, made.what, made.verdict = 2_500_000_000, c.NSBOX_NET_CLOSE, c.NSBOX_NET_FAILED
    made.reason, made.error, made.protocol, made.port = c.NSBOX_NET_UPSTREAM, 104, 1, 443
    made.family, made.milliseconds, made.sent, made.received = 4, 7, 1 << 33, 1 << 34
    made.address, made.name, made.sni = bytes([192, 0, 2, 7, *12 * [255]]), b"api.example", b"other.example"
    packet = bytes(ffi.buffer(made))
    assert events.head(packet) == events.Head(events.EVENT, -3, 1 << 40, 1 << 41)
    assert events.decode(packet) == events.NetworkEvent(
        2.5,
        1 << 40,
        "close",
        "api.example",
        443,
        "udp",
        "192.0.2.7",
        "failed",
        "upstream",
        104,
        "other.example",
        1 << 33,
        1 << 34,
        7,
    )


def test_numbers(wire: tuple[FFI, Any]) -> None:
    """Each kind, verdict and reason is called what C calls it, and none is left out."""
    _, c = wire
    names = {name.removeprefix("NSBOX_NET_"): getattr(c, name) for name in dir(c)}
    for number, kind in events.KINDS.items():
        assert names[WORDS.get(kind, kind.upper())] == number
    for table in (events.VERDICTS, events.REASONS):
        for number, word in table.items():
            assert names[word.upper().replace("-", "_") or "NO_REASON"] == number
    assert (c.NSBOX_NET_READY, c.NSBOX_NET_EVENT, c.NSBOX_NET_ASK) == (events.READY, events.EVENT, events.ASK)


def test_no_number_is_unknown(source: Path) -> None:
    """Whatever C may put into an event, Python has a word for it."""
    text = re.sub(r"/\*.*?\*/", "", (source / "csrc/net/wire.h").read_text(), flags=re.DOTALL)
    enums = [
        dict(re.findall(r"NSBOX_NET_(\w+) = (\d+)", body)) for body in re.findall(r"enum {(.*?)}", text, re.DOTALL)
    ]
    for key, known in (("DNS", events.KINDS), ("ALLOWED", events.VERDICTS), ("NO_REASON", events.REASONS)):
        (found,) = (enum for enum in enums if key in enum)
        assert set(map(int, found.values())) == set(known)
