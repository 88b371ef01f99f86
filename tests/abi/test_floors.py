"""The floors of csrc: a room includes and calls only what lies below it, and no two files call each other in a circle."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)  # may build the core

# From the top. Rooms of one floor don't know each other.
FLOORS = (
    {"bwrap/program", "linux/caller", "init", "branch", "darwin", "relay", "proxy"},
    {"linux/process", "relay/connections", "darwin/helper"},
    {"linux/isolation", "relay/names", "relay/kernel", "darwin/system"},
    {"linux/job", "relay/base"},
    {"bwrap/line", "linux/root", "relay/parsers", "proxy/parsers"},
    {"linux/kernel", "net"},
    {"linux/kernel/arch"},
    {"boundary"},
)
BOUNDARY = {
    "abi.h",
    "abi_branch.h",
    "abi_bwrap.h",
    "abi_session.h",
    "linux/calls.h",
    "darwin/calls.h",
    "net/wire.h",
}  # seen from Python too


def room(file: str) -> str:
    return "boundary" if file in BOUNDARY else os.path.dirname(file)


def floor(file: str) -> int:
    found = [number for number, rooms in enumerate(FLOORS) if room(file) in rooms]
    assert len(found) == 1, f"{file} has no floor"
    return found[0]


def files(source: Path) -> list[str]:
    """Return all C files but those of the tests, as paths below csrc."""
    csrc = source / "csrc"
    found = sorted(str(path.relative_to(csrc)) for path in csrc.rglob("*.[ch]"))
    return [path for path in found if not path.startswith("tests/")]


def includes(csrc: Path, file: str) -> Iterator[str]:
    """Yield what a file includes of ours, found where the compiler looks."""
    for name in re.findall(r'^#include "([^"]+)"', (csrc / file).read_text(), re.M):
        places = (csrc / file).parent, csrc, csrc / "linux"
        target = next(path for folder in places if (path := (folder / name).resolve()).exists())
        yield str(target.relative_to(csrc.resolve()))


def includes_of_all(source: Path) -> dict[str, set[str]]:
    graph = {file: set(includes(source / "csrc", file)) for file in files(source)}
    assert len(graph) > 130
    assert sum(map(len, graph.values())) > 150
    return graph


def calls(build: Path, elf: Any, *rooms: str) -> dict[str, set[str]]:
    """Return for each C file of these rooms those whose functions it names: called, or given to another."""
    csrc = Path(__file__).resolve().parents[2] / "csrc"
    sources = {str(path.relative_to(csrc)) for name in rooms for path in (csrc / name).rglob("*.c")}
    objects = {
        path.name: path
        for target in ("nsbox-branch.so", "nsbox_core.a", "nsbox_relay.a", "nsbox_net.a")
        for path in build.glob(f"lib{target}.p/*.o")
    }
    objects |= {path.name: path for path in build.glob("nsbox-net.p/*.o")}
    home, needed = {}, {}
    for file in sources:
        symbols = elf(objects[f"{file.replace('/', '_')}.o"]).symbols(elf.SYMTAB)
        home |= {symbol.name: file for symbol in symbols if symbol.defined and symbol.binding}
        needed[file] = {symbol.name for symbol in symbols if not symbol.defined}
    return {file: {home[name] for name in names if name in home} for file, names in needed.items()}


def upward(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the edges to another room that isn't below."""
    pairs = [(file, target) for file, targets in graph.items() for target in sorted(targets)]
    return [pair for pair in pairs if room(pair[0]) != room(pair[1]) and floor(pair[0]) >= floor(pair[1])]


def check_no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter({file: targets - {file} for file, targets in graph.items()}).prepare()
    except CycleError as e:
        pytest.fail(" > ".join(reversed(e.args[1])))


def test_no_include_goes_up(source: Path) -> None:
    """A file includes headers of its own room, or of one on a lower floor."""
    assert upward(includes_of_all(source)) == []


def test_no_include_is_a_circle(source: Path) -> None:
    """No header includes itself by way of others."""
    check_no_circle(includes_of_all(source))


@pytest.mark.parametrize("rooms", [("linux", "branch"), ("relay", "net")], ids=" ".join)
def test_no_call_goes_up(rooms: tuple[str, ...], core_build: Path, elf: Any) -> None:
    """A function that is declared below and defined above would be a way up that no include shows."""
    graph = calls(core_build, elf, *rooms)
    assert len(graph) > 30
    assert sum(map(len, graph.values())) > 60
    assert upward(graph) == []


def test_no_calls_are_a_circle(core_build: Path, elf: Any) -> None:
    """The files of the core can be read from the bottom up. What goes back up is a parameter, or a field of the builder."""
    check_no_circle(calls(core_build, elf, "linux", "branch"))


def test_rooms_are_small(source: Path) -> None:
    """A room has a dozen files at the most, and each has its floor."""
    rooms: dict[str, int] = {}
    for file in files(source):
        floor(file)
        rooms[room(file)] = rooms.get(room(file), 0) + 1
    assert {name: count for name, count in rooms.items() if count > 12} == {}
