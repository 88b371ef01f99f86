"""The table of mounts against the kernel: random ops are carried out in a sandbox, which says what lies where.

The table (nsbox/_plan/mounts.py) is pure, and every room that asks what covers what asks it. So it must agree with
/proc/self/mountinfo, statvfs(), open() and access() inside, at each of the places. NSBOX_THOROUGH=1 tries many more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, event, example, given, note, settings
from hypothesis import strategies as st
from nsbox_differential import PATIENCE, THOROUGH
from nsbox_differential.view import Mount, visible

import nsbox
from nsbox import Policy, SetupError
from nsbox._base.frozen import replace
from nsbox._paths.destinations import Destinations
from nsbox._plan import ops
from nsbox._plan.mounts import BINDS, MountTable
from nsbox._tools.view import view

pytestmark = pytest.mark.timeout(PATIENCE * (5 if THOROUGH else 1))
NORMAL = settings.get_profile("differential")
FEW = settings(NORMAL, max_examples=2000 if THOROUGH else max(1, NORMAL.max_examples * 3 // 5))

TOP = "/t"  # everything happens below it, so that the sandbox has a Python whatever the ops are
PLACES = (TOP, *(f"{TOP}/{name}" for name in ("a", "a/b", "a/b/c", "a/bc", "a/b/a", "b", "b/a", "b/a/b")))
LINKS = tuple(f"{TOP}/{name}" for name in ("l", "a/l", "b/l"))  # where ops make links, and the trees have some
BEHIND = tuple(f"{TOP}/{name}" for name in ("l/a", "l/b/c", "a/l/b", "b/l/a", "b/l/l", "a/up", "a/up/b", "a/out/a"))
TARGETS = ("nowhere", "a", "b/a", "../b", "../a/b", "../../t/b", "/t/a", "/t/b/l", "/t/l", "l")
ALL = (*PLACES, *LINKS, *BEHIND)
NAMES = ("a", "b", "c", "bc")
DEPTH = 4
SOURCES = ("one", "two", "three")

INSIDE = """
import json, os, sys
def mark(path):
    try:
        return open(path + "/mark").read()
    except OSError:
        return ""
def facts(path):
    try:
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return None
    return {
        "is_read_only": is_read_only,
        "is_writable": os.access(path, os.W_OK),
        "real": os.path.realpath(path),
        "mark": mark(path),
    }
places = json.loads(sys.argv[1])
json.dump({"mounts": open("/proc/self/mountinfo").readlines(), "facts": {p: facts(p) for p in places}}, sys.stdout)
"""


def grow(top: Path, name: str, depth: int) -> None:
    """Make a directory with a file that says whose it is and where, and with the same below it, as deep as places go.

    It has links, of which one leads out of it to where ops mount something.
    """
    top.mkdir()
    (top / "mark").write_text(name)
    for link, target in ("l", "a"), ("up", "../b"), ("out", f"{TOP}/b"):
        (top / link).symlink_to(target)
    if depth:
        for entry in NAMES:
            grow(top / entry, f"{name}/{entry}", depth - 1)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of the host that have all the places in them."""
    top = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        grow(top / name, name, DEPTH)
    return top


def any_op() -> st.SearchStrategy[ops.Op]:
    """Return a strategy for one op at one of few places. A source "/@/..." stands for one of the trees."""
    place = st.sampled_from(ALL)
    link = st.builds(ops.Symlink, st.sampled_from(TARGETS), st.sampled_from((*LINKS, *PLACES[1:])))
    source = st.sampled_from([f"/@/{name}" for name in (*SOURCES, "one/a", "two/a/b")])
    kinds: list[st.SearchStrategy[Any]] = [
        *[st.builds(kind, source, place) for kind in (ops.Bind, ops.RoBind, ops.Bind, ops.RoBind)],
        *[st.builds(ops.Tmpfs, place)] * 2,
        *[st.builds(ops.RemountRo, place)] * 2,
        st.builds(ops.Mask, place),
        st.builds(ops.Dir, place),
        st.builds(ops.Chmod, place, st.just(0o755)),
        *[link] * 3,
        st.builds(ops.TmpOverlay, st.tuples(source), place),
        st.builds(ops.RoOverlay, st.just(("/@/one", "/@/two/a")), place),
    ]
    return st.one_of(kinds)


def located(op: ops.Op, trees: Path) -> ops.Op:
    """Return the op with a tree's path in it."""
    changes: dict[str, Any] = {}
    if isinstance(op, ops.Bind | ops.RoBind):
        changes["src"] = op.src.replace("/@", str(trees))
    if isinstance(op, ops.TmpOverlay | ops.RoOverlay):
        changes["lower"] = tuple(path.replace("/@", str(trees)) for path in op.lower)
    return replace(op, **changes) if changes else op


def carried_out(steps: list[ops.Op], trees: Path) -> tuple[list[ops.Op], Policy, dict[str, Any]]:
    """Run the probe under these ops, without those that can't be carried out; return what is left, and what it says."""
    steps = [located(op, trees) for op in steps]
    command = [sys.executable, "-I", "-S", "-c", INSIDE, json.dumps(ALL)]
    while True:
        policy = Policy.layers(*system(), ops.Proc("/proc"), ops.Dir(TOP), *steps)
        try:
            done = nsbox.run(command, policy=policy, cwd="/", check=True, stdout=subprocess.PIPE)
        except SetupError as error:
            refused = [i for i, op in enumerate(steps) if op.describe() == error.op]
            assert refused, error
            del steps[refused[-1]]
            continue
        return steps, policy, json.loads(done.stdout)


def system() -> Iterator[ops.Op]:
    """Yield what a Python needs: the host's directories, and its links, below a root of the sandbox's own."""
    for name in sorted(os.listdir("/")):
        path = f"/{name}"
        if name in ("proc", "dev", "tmp", "sys", "run", TOP[1:]):
            continue
        if os.path.islink(path):
            yield ops.Symlink(os.readlink(path), path)
        elif os.path.isdir(path):
            yield ops.RoBind(path, path)
    for prefix in {sys.prefix, sys.base_prefix}:  # a virtual environment may lie in what is left out
        if prefix.split("/")[1] in ("tmp", "run"):
            yield ops.RoBind(prefix, prefix)


def shown(op: ops.Op | None, rest: str, trees: Path) -> str:
    """Return the mark that a mount shows at a path in it; "" if it has none."""
    if isinstance(op, ops.Bind | ops.RoBind):
        return op.src[len(str(trees)) + 1 :] + rest
    if isinstance(op, ops.TmpOverlay | ops.RoOverlay):
        return op.lower[-1][len(str(trees)) + 1 :] + rest
    return ""


def check_place(path: str, table: MountTable, seen: dict[str, Any], mounted: Mount, trees: Path) -> None:
    """Compare the table with the kernel at one place that exists, by its path without links."""
    mount = table.nearest(path)
    assert mount.dest == mounted.point, path
    assert mount.is_read_only == table.is_read_only(path) == seen["is_read_only"] == ("ro" in mounted.flags), path
    assert seen["mark"] == shown(mount.op, path[len(mount.dest) :], trees), path
    if mount.is_read_only:
        assert not seen["is_writable"], path
    elif isinstance(mount.op, ops.Bind):
        assert seen["is_writable"], path


def check(steps: list[ops.Op], trees: Path) -> None:
    """Carry ops out, and compare all that the table says with what the sandbox is."""
    steps, policy, inside = carried_out(steps, trees)
    note("\n".join(op.describe() for op in steps))
    event(f"{len(steps)} ops carried out")
    destinations = Destinations(policy.ops)
    table = MountTable(destinations.steps)
    real = visible([Mount.parse(line) for line in inside["mounts"]])
    below = {point for point in real if point == TOP or point.startswith(f"{TOP}/")}
    assert {dest for dest in (TOP, *table.below(TOP)) if table.top(dest)} == below
    tools = view(policy)
    for path, seen in inside["facts"].items():
        if seen is None:
            continue
        at = destinations.place(path)
        assert at == seen["real"], path
        point = max((point for point in real if at == point or at.startswith(point.rstrip("/") + "/")), key=len)
        check_place(at, table, seen, real[point], trees)
        # What a tool of the policy may touch, a command may.
        place, problem = tools.problem(path, write=False)
        if not problem:
            assert isinstance(table.nearest(at).op, BINDS), path
            assert seen["mark"] and Path(place.here or "", "mark").read_text() == seen["mark"], path
        elif seen["mark"]:
            stopped = table.nearest(place.inside).op
            assert place.inside == at or isinstance(stopped, ops.TmpOverlay | ops.RoOverlay), path  # not looked into
            assert not isinstance(stopped, BINDS), (path, problem)
        if not tools.problem(path, write=True)[1]:
            assert seen["is_writable"] and not seen["is_read_only"], path


ONE, TWO = "/@/one", "/@/two"


@settings(FEW)
@given(steps=st.lists(any_op(), min_size=1, max_size=9))
@example(steps=[ops.Bind(ONE, "/t/a/b"), ops.Tmpfs("/t/a")])  # covered from above
@example(steps=[ops.Bind(ONE, "/t/a"), ops.RoBind(TWO, "/t/a"), ops.Bind(ONE, "/t/a/bc")])  # one on the other
@example(steps=[ops.Bind(ONE, "/t/a"), ops.Bind(TWO, "/t/a/b"), ops.RemountRo("/t/a")])  # not what is below
@example(steps=[ops.RemountRo("/t/a"), ops.Tmpfs("/t/a"), ops.RemountRo("/t/a"), ops.Bind(ONE, "/t/a")])
@example(steps=[ops.Bind(ONE, "/t/a"), ops.Dir("/t/a"), ops.Dir("/t/a/b")])  # a bind's own directories
@example(steps=[ops.Bind(ONE, "/t/a"), ops.Mask("/t/a/b"), ops.Bind(TWO, "/t/a")])
@example(steps=[ops.Bind(ONE, "/t/a"), ops.Symlink("/t/a", "/t/l"), ops.Mask("/t/l/b")])  # behind a link of its own
@example(steps=[ops.Bind(ONE, "/t/a"), ops.Symlink("a/up", "/t/l"), ops.Bind(TWO, "/t/b"), ops.Mask("/t/l/a")])
@example(steps=[ops.Bind(ONE, "/t/b"), ops.Symlink("/t/b/l", "/t/l"), ops.RemountRo("/t/l"), ops.Tmpfs("/t/l/b")])
@example(steps=[ops.Bind(ONE, "/t/a"), ops.Bind(TWO, "/t/b"), ops.Mask("/t/a/out/a")])  # a link in a bind
@example(steps=[ops.TmpOverlay((ONE,), "/t/a"), ops.Bind(TWO, "/t/b"), ops.Mask("/t/a/out/a")])  # one in an overlay
@example(steps=[ops.Symlink("l", "/t/l"), ops.Bind(ONE, "/t/a")])
def test_what_the_kernel_says(trees: Path, steps: list[ops.Op]) -> None:
    """Which mounts are seen, which one a place is on, whether it is read-only, and whose files it has: as inside."""
    assume(steps)
    check(steps, trees)
