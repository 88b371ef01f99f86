"""What a workspace policy says in words, as a model in a few lines, against what a command can really do.

A random tree of directories, files and symlinks with awkward names; a random policy on it (workspace, read, write,
deny, nested in each other, named through links). One process in the sandbox tries everything with every path: look,
read, list, chmod, append, create, rename, remove. It must find exactly what the model says, and the host's tree must
be exactly what the model says afterwards. Each file's content occurs nowhere else, so that nothing of a hidden file, or of one
outside, can come in by another way unseen.

The model: the longest of the paths named by the policy that contains a file decides about it; below none of them there
is nothing but the directories that lead to what there is, which are the sandbox's own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import nsbox
import pytest
from hypothesis import assume, event, example, given, note, settings
from hypothesis import strategies as st
from nsbox import Policy
from nsbox._policy import is_below

NAMES = ("a", "b", "c d", "e\nf", "ü", "\udcff.x")

# A node is a dict of nodes, None for a file, or a str for a link to it: "/" stands for the top of the tree.
Node = dict[str, Any] | str | None


def trees() -> st.SearchStrategy[Node]:
    """Trees of up to four floors."""
    names = st.sampled_from(NAMES)
    steps = st.lists(st.sampled_from((*NAMES[:3], "..")), min_size=1, max_size=3)
    links = st.tuples(st.sampled_from(("", "", "/")), steps).map(lambda t: t[0] + "/".join(t[1]))
    leaves = st.one_of(st.none(), st.none(), links)
    inner = st.recursive(leaves, lambda node: st.dictionaries(names, node, max_size=3), max_leaves=12)
    return st.dictionaries(names, inner, min_size=1, max_size=4)


def paths_of(tree: Node, at: str = "") -> Iterator[tuple[str, Node]]:
    """Yield each path below the top with its node, a directory before what is in it."""
    if isinstance(tree, dict):
        for name, node in sorted(tree.items()):
            yield f"{at}/{name}", node
            yield from paths_of(node, f"{at}/{name}")


def build(tree: Node, top: str) -> None:
    """Make the tree on the host; a file contains its own path."""
    os.mkdir(top)
    for path, node in paths_of(tree):
        if isinstance(node, dict):
            os.mkdir(top + path)
        elif node is None:
            Path(top + path).write_bytes(content(path))
        else:
            os.symlink(top + node if node.startswith("/") else node, top + path)


def content(path: str) -> bytes:
    """Return what the file at this path contains."""
    return b"content of " + ascii(path).encode()


def snapshot(top: str) -> dict[str, bytes | str | None]:
    """Return what is below top: contents of files, targets of links, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for here, dirs, files in os.walk(top):
        for name in (*dirs, *files):
            path = f"{here}/{name}"
            if os.path.islink(path):
                found[path[len(top) :]] = os.readlink(path)
            else:
                found[path[len(top) :]] = None if name in dirs else Path(path).read_bytes()
    return found


# ---- policies


@dataclass(frozen=True)
class Wish:
    """What is asked for, as paths below the top; links in them are for the policy to resolve."""

    workspace: str
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def policy(self, top: str) -> Policy:
        """Return the policy."""
        named = {name: [top + path for path in getattr(self, name)] for name in ("write", "read", "deny")}
        return Policy.workspace(top + self.workspace, **named)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Node, Wish]:
    """Draw a tree with at least one directory, and a policy on it."""
    tree = draw(trees())
    paths = [path for path, _ in paths_of(tree)]
    directories = [path for path, node in paths_of(tree) if isinstance(node, dict)]
    assume(directories)
    some = st.lists(st.sampled_from(paths), max_size=2).map(tuple)
    absent = st.sampled_from(directories).map("{}/absent".format)
    deny = st.lists(st.one_of(st.sampled_from(paths), st.sampled_from(paths), absent), max_size=3).map(tuple)
    return tree, Wish(draw(st.sampled_from(directories)), draw(some), draw(some), draw(deny))


# ---- the model


@dataclass
class Model:
    """What there is inside, by the words of the policy. Paths are absolute and those of the host."""

    top: str
    tree: Node
    write: set[str]
    read: set[str]
    deny: set[str]
    nodes: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {self.top: self.tree} | {self.top + path: node for path, node in paths_of(self.tree)}
        # A mask needs something to hide.
        self.deny = {path for path in self.deny if path in self.nodes and self.right(os.path.dirname(path))}

    def right(self, path: str) -> str | None:
        """Return "write", "read", "hidden", or None for what the policy says nothing about."""
        rules = [(len(root), i, name) for i, name in enumerate(("read", "write", "deny")) for root in getattr(self, name)]
        named = [rule for rule in ((n, i, name, root) for n, i, name in rules for root in getattr(self, name)) if len(rule[3]) == rule[0] and is_below(path, rule[3])]
        if not named:
            return None
        return {"deny": "hidden"}.get(max(named)[2], max(named)[2])
