"""What a workspace policy says in words, as a model in a few lines, against what a command can really do.

A random tree of directories, files and symlinks with awkward names; a random policy on it (workspace, read, write,
deny, nested in each other, named through links). One process in the sandbox tries everything with every path: look,
read, list, chmod, append, create, rename, remove. It must find exactly what the model says, and the host's tree must
be exactly what the model says afterwards. Each file's content occurs nowhere else, so that nothing of a hidden file,
or of one outside, comes in by another way unseen.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nsbox_differential import PATIENCE
from nsbox_differential.attempt import check_legacy, check_rights
from nsbox_differential.model import Node, Wish, paths_of
from nsbox_differential.view import is_below

pytestmark = pytest.mark.timeout(PATIENCE)
NORMAL = settings.get_profile("differential")
FEWER = settings(NORMAL, max_examples=max(1, NORMAL.max_examples // 3))

NAMES = ("a", "b", "c d", "e\nf", "ü", "\udcff.x")


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Node]:
    """Draw a tree: each entry goes into one of the directories that there are so far."""
    steps = st.lists(st.sampled_from((*NAMES[:3], "..")), min_size=1, max_size=3)
    links = st.builds(lambda start, way: start + "/".join(way), st.sampled_from(("", "/")), steps)
    kinds = st.sampled_from(("dir", "dir", "dir", "file", "file", "link"))
    entries = st.tuples(st.integers(0, 7), st.sampled_from(NAMES), kinds, links)
    top: dict[str, Node] = {"a": {}}
    directories: list[Any] = [top, top["a"]]
    for at, name, kind, link in draw(st.lists(entries, min_size=1, max_size=14)):
        parent = directories[-1 - at % len(directories)]
        if name not in parent:
            parent[name] = {} if kind == "dir" else None if kind == "file" else link
            directories += [parent[name]] if kind == "dir" else []
    return top


@st.composite
def cases(draw: st.DrawFn) -> tuple[Node, Wish]:
    """Draw a tree, and a policy on it. Most of what is named lies on the way to one place: nested in each other."""
    tree = draw(trees())
    paths = [path for path, _ in paths_of(tree)]
    directories = [path for path, node in paths_of(tree) if isinstance(node, dict)]
    goal = draw(st.sampled_from(sorted(paths, key=lambda path: -path.count("/"))))
    way = [path for path in paths if is_below(goal, path)]
    workspace = draw(st.sampled_from([path for path in directories if path in way] or directories))
    inner = [path for path in way if path != workspace and is_below(path, workspace)] or paths
    any_path = st.one_of(st.sampled_from(inner), st.sampled_from(inner), st.sampled_from(paths))
    some = st.lists(any_path, max_size=2).map(tuple)
    absent = st.sampled_from(directories).map("{}/absent".format)
    deny = st.lists(st.one_of(any_path, any_path, absent), max_size=3).map(tuple)
    return tree, Wish(workspace, draw(some), draw(some), draw(deny))


def chain(*names: str) -> Node:
    """Return directories in each other, with a file at the end and one beside it."""
    *rest, last = names
    tree: Node = {last: None, "beside": None}
    for name in reversed(rest):
        tree = {name: tree}
    return tree


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the trees are."""
    return tmp_path_factory.mktemp("model")


@settings(NORMAL)
@given(case=cases())
@example(case=(chain("w", "a", "b", "f"), Wish("/w", read=("/w/a",), deny=("/w/a/b/f",))))  # a pin was writable
@example(
    case=({"w": {"l": "b", "b": {"f": None}}}, Wish("/w", deny=("/w/l/f",)))
)  # a mask on a link's name hid nothing
@example(case=({"w": {"f": None, "l": "f/x/y"}}, Wish("/w", deny=("/w/l",))))  # nothing: the way leads through a file
@example(case=({"a": {}, "c": "b/../c"}, Wish("/a", deny=("/c",))))  # a circle, once b is made
@example(case=({"a": {"b": None}, "b": "a", "c": {"d": "../b"}}, Wish("/a", write=("/b",), read=("/c/d",))))  # names
@example(case=({"a": {"a": None, "b": "/../../.."}}, Wish("/a")))  # out of the tree
def test_what_a_command_can_do(place: Path, case: tuple[Node, Wish]) -> None:
    """Every path can be seen, read, written and removed exactly as far as the policy says, and the host shows it."""
    check_rights(place, *case)


@settings(FEWER)
@given(case=cases(), tries=st.sampled_from(("moves", "links", "directories")))
@example(case=(chain("w", "x", "f"), Wish("/w", deny=("/w/x/f",))), tries="directories")  # its parent was moved
@example(case=(chain("w", "x", "f"), Wish("/w", read=("/w/x/f",))), tries="links")
# A link that leads to itself by "..", of which realpath() makes another path.
@example(case=({"a": {"a": "a/../b"}}, Wish("/a", deny=("/a/a",))), tries="moves")
# The way to a writable path in a writable one was moved.
@example(case=(chain("w", "x", "y", "f"), Wish("/w", write=("/w/x/y",), deny=("/w/x/y/f",))), tries="directories")
@example(case=(chain("w", "x", "y", "f"), Wish("/w", write=("/w/x/y",), read=("/w/x/y/f",))), tries="directories")
def test_what_a_command_leaves_to_the_next(place: Path, case: tuple[Node, Wish], tries: str) -> None:
    """What is hidden or read-only stays so for the next command, whatever the first has moved, linked and replaced."""
    check_legacy(place, *case, tries)


@pytest.fixture(params=("/var/tmp", "~", "/srv"))
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A place for a tree that isn't below /tmp."""
    parent = os.path.realpath(os.path.expanduser(request.param))
    if not os.access(parent, os.W_OK) or is_below(parent, "/tmp"):
        pytest.skip(f"no other place to write to: {parent}")
    with tempfile.TemporaryDirectory(dir=parent, prefix="nsbox-test-") as path:
        yield Path(path)


def test_elsewhere(elsewhere: Path) -> None:
    """A workspace outside of /tmp has the same rights; what leads there can't be written to."""
    tree = {"w": {"d": {"f": None, "l": "../s"}, "s": None, "r": {"f": None}}, "o": {"f": None, "r": {"g": None}}}
    check_rights(elsewhere, tree, Wish("/w", read=("/w/r", "/o/r"), deny=("/w/d/l",)))
