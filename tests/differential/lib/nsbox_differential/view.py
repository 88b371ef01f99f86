"""What a probe in a sandbox said: facts about paths, and the mount table."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass


def is_below(path: str, root: str) -> bool:
    """Say if path is root or in it. Both absolute, without links."""
    return path == root or root == "/" or path.startswith(root + "/")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo."""

    id: int
    parent: int
    device: str
    root: str
    point: str
    flags: frozenset[str]
    tags: tuple[str, ...]
    type: str
    super_flags: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Mount:
        """Take a line apart (proc(5))."""
        left, _, right = line.rstrip("\n").partition(" - ")
        number, parent, device, root, point, flags, *tags = left.split(" ")
        kind, _, options = right.split(" ", 2)
        return cls(
            id=int(number),
            parent=int(parent),
            device=device,
            root=root,
            point=_unescaped(point),
            flags=frozenset(flags.split(",")),
            tags=tuple(tags),
            type=kind,
            super_flags=tuple(options.split(",")),
        )


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), text)


def visible(mounts: Sequence[Mount]) -> dict[str, Mount]:
    """Return the mounts that a path leads to: neither covered themselves, nor below a covered place."""
    ids = {m.id: m for m in mounts}
    children: dict[int, list[Mount]] = {}
    for m in mounts:
        children.setdefault(m.parent, []).append(m)

    def is_covered(m: Mount) -> bool:
        return any(c.point == m.point for c in children.get(m.id, ()))

    def is_hidden(m: Mount) -> bool:
        parent = ids.get(m.parent)
        if parent is None or parent is m:
            return False
        siblings = (s for s in children[m.parent] if s is not m)
        if any(s.point == "/" or m.point.startswith(f"{s.point}/") for s in siblings):
            return True
        return (is_covered(parent) and parent.point != m.point) or is_hidden(parent)

    return {m.point: m for m in mounts if not is_covered(m) and not is_hidden(m)}


@dataclass(slots=True)
class View:
    """All that the probe said: facts by (kind, path), and the mount table."""

    facts: dict[tuple[str, str], str]
    mounts: list[Mount]

    @classmethod
    def parse(cls, output: bytes) -> View:
        """Read the probe's triples."""
        parts = output.decode("utf-8", "surrogateescape").split("\0")[:-1]
        facts: dict[tuple[str, str], str] = {}
        mounts: list[Mount] = []
        for kind, path, value in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if kind == "mount":
                mounts.append(Mount.parse(value))
                continue
            assert (kind, path) not in facts, "the probe went to the same place twice"
            facts[kind, path] = canonical(path, value) if kind == "link" else _named(value)
        return cls(facts, mounts)

    def resolve(self, path: str) -> tuple[str, str]:
        """Return path without symlinks in its parents, and without any."""
        at, named, rest, hops = "/", "", path.strip("/").split("/"), 0
        while rest and hops < 40:
            name = os.path.join(at, rest.pop(0))
            named = named or ("" if rest else name)
            target = self.facts.get(("link", name))
            if target is None:
                at = name
            else:
                at, rest, hops = "/", target.strip("/").split("/") + rest, hops + 1
        return named, at

    def mount_of(self, path: str) -> Mount:
        """Return the mount that a path without symlinks lies on."""
        table = visible(self.mounts)
        while path not in table and path != "/":
            path = os.path.dirname(path)
        return table[path]


def _named(value: str) -> str:
    return re.sub(r"^error (\d+)$", lambda m: errno.errorcode.get(int(m[1]), "yes"), value)


def canonical(link: str, target: str) -> str:
    """Return what the target of a link names, as an absolute path: bwrap and nsbox are told it in different words."""
    return os.path.normpath("/" + os.path.join(os.path.dirname(link), target)).replace("//", "/")
