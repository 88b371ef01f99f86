"""What a workspace policy means, by its words alone: a tree, what is wished for it, and what must come of each attempt.

The longest of the paths that a policy names decides about a file below it; where none is above it there is nothing but
the directories that lead to what there is, which are the sandbox's own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsbox import Policy
from nsbox._paths import resolution
from nsbox_differential.view import is_below

# A node is a dict of nodes, None for a file, or a str for a link to it: "/" stands for the top of the tree.
Node = dict[str, Any] | str | None

HostTree = dict[str, bytes | str | None]


def paths_of(tree: Node, at: str = "") -> Iterator[tuple[str, Node]]:
    """Yield each path below the top with its node, a directory before what is in it."""
    if isinstance(tree, dict):
        for name, node in sorted(tree.items()):
            yield f"{at}/{name}", node
            yield from paths_of(node, f"{at}/{name}")


def build(tree: Node, top: str) -> None:
    """Make the tree on the host; a file contains its own path, so that its content occurs nowhere else."""
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


def found_on_host(top: str) -> HostTree:
    """Return what is below top: contents of files, targets of links, None for directories."""
    found: HostTree = {}
    for here, dirs, files in os.walk(top):
        for name in (*dirs, *files):
            path = f"{here}/{name}"
            inside = path[len(top) :]
            if os.path.islink(path):
                found[inside] = os.readlink(path).replace(top, "", 1)
            else:
                found[inside] = None if name in dirs else Path(path).read_bytes()
    return found


_MOST_LINKS = 100


def links(path: str) -> list[str]:
    """Return the links on the way, each by a path without any; none if they lead in a circle."""
    found: list[str] = []
    at = "/"
    todo = path.split("/")
    while todo and len(found) < _MOST_LINKS:
        name = todo.pop(0)
        at = os.path.normpath(f"{at}/{name}")
        if name != ".." and os.path.islink(at):
            found.append(at)
            todo = [*os.readlink(at).split("/"), *todo]
            at = "/" if os.readlink(at).startswith("/") else os.path.dirname(at)
    return found


@dataclass(frozen=True)
class Wish:
    """What is asked for, as paths below the top; links in them are for the policy to resolve."""

    workspace: str
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def policy(self, top: str) -> Policy:
        """Return the policy."""
        resolution.opened.clear()  # by the policies of other trees, which stood here before
        named = {name: [top + path for path in getattr(self, name)] for name in ("write", "read", "deny")}
        return Policy.workspace(top + self.workspace, **named)

    def sensible(self, top: str) -> Wish:
        """Leave out what is missing, contradictory, outside of the tree, or refused for a link that commands can make."""

        def real(path: str) -> str:
            return os.path.realpath(top + path)

        def exists(path: str) -> bool:
            return os.path.exists(top + path) and is_below(real(path), top) and real(path) != top

        def loops(path: str) -> bool:
            try:
                os.stat(top + path)
            except OSError as error:
                # What is missing ends the kernel's way, but it may be made later.
                return error.errno == errno.ELOOP or len(links(top + path)) == _MOST_LINKS
            return False

        def leads_out(path: str, writable: set[str]) -> bool:
            places = [(link, place) for link in links(top + path) for place in writable if is_below(link, place)]
            return any(not is_below(real(path), place) for _, place in places)

        write = self.write
        while True:  # what is left out can't be what the others lead out of
            write = tuple(path for path in write if exists(path))
            writable = {real(path) for path in (*write, self.workspace)}
            kept = tuple(path for path in write if not leads_out(path, writable))
            if kept == write:
                break
            write = kept
        read = tuple(
            path for path in self.read if exists(path) and real(path) not in writable and not leads_out(path, writable)
        )
        shown = (*writable, *map(real, read))
        hides = {path for path in self.deny if any(is_below(other, real(path)) for other in shown)}
        deny = tuple(
            path
            for path in self.deny
            if path not in hides
            and not loops(path)
            and not any(is_below(link, place) for link in links(top + path) for place in writable)
        )
        return Wish(self.workspace, write, read, deny)


OK, ABSENT, REFUSED, LOOP = "ok", "absent", "refused", "loop"


class Model:
    """What there is inside. Paths are absolute, and the host's."""

    def __init__(self, top: str, tree: Node, policy: Policy) -> None:
        """Take the tree at top and what the policy names, which is without links."""
        self.top = top
        self.nodes = {top: tree} | {top + path: node for path, node in paths_of(tree)}
        self.named: dict[str, tuple[str, ...]] = {"read": policy.read, "write": policy.write, "hidden": ()}
        # The links on the way to what is named are made where nothing of the host's has them.
        own = (link for link, _ in policy.links if is_below(link, top) and not self.right(link))
        self.links = set(own)
        # Hidden is what is there and would be seen.
        masked = tuple(path for path in policy.deny if path in self.nodes and self.right(path))
        self.named["hidden"] = masked
        # What is mounted on can't be moved: what the policy names, and, in a writable place, the way there.
        self.mounts = {*policy.read, *policy.write, *masked}
        for path in (*policy.read, *policy.write, *policy.deny):
            above = (way for way in self.nodes if way != path and is_below(path, way))
            self.mounts |= {way for way in above if self.right(way) == "write"}

    def right(self, path: str) -> str:
        """Return "write", "read" or "hidden"; "" where the policy says nothing."""
        rank = {"read": 0, "write": 1, "hidden": 2}
        said = [(len(root), rank[what], what) for what in rank for root in self.named[what] if is_below(path, root)]
        return max(said)[2] if said else ""

    def own_roots(self) -> tuple[str, ...]:
        """Return what the directories lead to that are the sandbox's own."""
        return (*self.named["read"], *self.named["write"], *self.links)

    def kind(self, path: str) -> str:
        """Return what is inside at a path whose parents can be entered: "" for nothing."""
        right = self.right(path)
        if right == "":
            leads = any(is_below(root, path) for root in self.own_roots())
            return "link" if path in self.links else "own dir" if leads else ""
        if path not in self.nodes:
            return ""
        node = self.nodes[path]
        what = "dir" if isinstance(node, dict) else "file" if node is None else "link"
        return f"masked {what}" if right == "hidden" else what

    def find(self, path: str, *, follow: bool) -> tuple[str, str]:
        """Look a path up as the kernel does; return how that ends, and where."""
        at, rest, hops = self.top, path[len(self.top) + 1 :].split("/"), 0
        while rest:
            if self.kind(at) == "masked dir":
                return REFUSED, at
            if not self.kind(at).endswith("dir"):
                return ABSENT, at
            part = rest.pop(0)
            here = os.path.dirname(at) if part == ".." else f"{at}/{part}"
            if not self.kind(here):
                return ABSENT, here
            if self.kind(here) != "link" or not (rest or follow):
                at = here
                continue
            hops += 1
            if hops > 40:
                return LOOP, here
            target = str(self.nodes[here])
            at = self.top if target.startswith("/") else at
            rest = target.strip("/").split("/") + rest
        return OK, at

    def listing(self, path: str) -> list[str]:
        """Return what is in a directory."""
        if self.kind(path) == "own dir":
            roots = [root for root in self.own_roots() if root != path]
            return sorted({root[len(path) + 1 :].split("/")[0] for root in roots if is_below(root, path)})
        node = self.nodes[path]
        assert isinstance(node, dict)
        return sorted(node)

    def may_change(self, place: str) -> str:
        """Say if something may be made or changed in this directory, or in this file."""
        return OK if self.kind(place) != "own dir" and self.right(place) == "write" else REFUSED

    # ---- what must come of each attempt: how it fails, or "ok", or what is seen

    def look(self, path: str) -> object:
        state, at = self.find(path, follow=False)
        return self.kind(at).split()[-1] if state == OK else state

    def read(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        text = content(at[len(self.top) :]).decode()
        return {"dir": "dir", "own dir": "dir", "file": text}.get(self.kind(at), REFUSED)

    def names(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        kind = self.kind(at)
        return self.listing(at) if kind in ("dir", "own dir") else REFUSED if kind == "masked dir" else ABSENT

    def chmod(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        return self.may_change(at) if state == OK else state

    def append(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        return "dir" if self.kind(at).endswith("dir") else self.may_change(at)

    def create(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        return self.may_change(at) if self.kind(at).endswith("dir") else ABSENT

    def rename(self, path: str) -> object:
        state, at = self.find(path, follow=False)
        if state != OK:
            return state
        return REFUSED if at in self.mounts else self.may_change(os.path.dirname(at))

    def remove(self, path: str) -> object:
        state, at = self.find(path, follow=False)
        return "dir" if state == OK and self.kind(at).endswith("dir") else self.rename(path)


ATTEMPTS = ("look", "read", "names", "chmod", "append", "create", "rename", "remove")


def expected_on_host(model: Model, expected: dict[str, list[object]], asked: list[str]) -> HostTree:
    """Return what must have become of the host's tree once all has been attempted."""
    host: HostTree = {}
    for path, node in model.nodes.items():
        inside = path[len(model.top) :]
        host[inside] = None if isinstance(node, dict) else content(inside) if node is None else node
    for i, path in enumerate(asked):
        at = model.find(path, follow=True)[1][len(model.top) :]
        if expected["append"][i] == OK:
            before = host[at]
            assert isinstance(before, bytes)
            host[at] = before + b"!"
    for i, path in enumerate(asked):
        at = model.find(path, follow=True)[1]
        if expected["create"][i] == OK and model.right(at) == "write":
            host[f"{at[len(model.top) :]}/+{i}"] = b""
    for i, path in enumerate(asked):
        if expected["remove"][i] == OK:
            del host[path[len(model.top) :]]
    return {path: value for path, value in host.items() if path}
