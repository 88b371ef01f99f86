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

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, note, settings
from hypothesis import strategies as st

import nsbox
from nsbox import Policy
from nsbox._policy import is_below

NAMES = ("a", "b", "c d", "e\nf", "ü", "\udcff.x")
NAME = st.sampled_from(NAMES)

# A node is a dict of nodes, None for a file, or a str for a link to it: "/" stands for the top of the tree.
Node = dict[str, Any] | str | None


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Node]:
    """Draw a tree: each entry goes into one of the directories that there are so far."""
    steps = st.lists(st.sampled_from((*NAMES[:3], "..")), min_size=1, max_size=3)
    links = st.builds(lambda start, way: start + "/".join(way), st.sampled_from(("", "/")), steps)
    kinds = st.sampled_from(("dir", "dir", "dir", "file", "file", "link"))
    top: dict[str, Node] = {"a": {}}
    directories: list[Any] = [top, top["a"]]
    for at, name, kind, link in draw(
        st.lists(st.tuples(st.integers(0, 7), NAME, kinds, links), min_size=1, max_size=14)
    ):
        parent = directories[-1 - at % len(directories)]
        if name not in parent:
            parent[name] = {} if kind == "dir" else None if kind == "file" else link
            directories += [node] if isinstance(node := parent[name], dict) else []
    return top


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

    def sensible(self, top: str) -> Wish:
        """Leave out what makes no sense, by the words of Policy: what is missing, contradictory, or outside of the tree."""

        def real(path: str) -> str:
            return os.path.realpath(top + path)

        def exists(path: str) -> bool:
            return os.path.exists(top + path) and is_below(real(path), top) and real(path) != top

        write = tuple(path for path in self.write if exists(path))
        writable = {real(path) for path in (*write, self.workspace)}
        read = tuple(path for path in self.read if exists(path) and real(path) not in writable)
        shown = (*writable, *map(real, read))
        loops = [path for path in self.deny if os.path.islink(real(path)) or os.path.realpath(real(path)) != real(path)]
        deny = tuple(
            path for path in self.deny if path not in loops and not any(is_below(s, real(path)) for s in shown)
        )
        return Wish(self.workspace, write, read, deny)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Node, Wish]:
    """Draw a tree, and a policy on it."""
    tree = draw(trees())
    paths = [path for path, _ in paths_of(tree)]
    directories = [path for path, node in paths_of(tree) if isinstance(node, dict)]
    # Most of what is named lies on the way to one place, so that it is nested in each other.
    goal = draw(st.sampled_from(sorted(paths, key=lambda path: -path.count("/"))))
    way = [path for path in paths if is_below(goal, path)]
    workspace = draw(st.sampled_from([path for path in directories if path in way] or directories))
    inner = [path for path in way if path != workspace and is_below(path, workspace)] or paths
    any_path = st.one_of(st.sampled_from(inner), st.sampled_from(inner), st.sampled_from(paths))
    some = st.lists(any_path, max_size=2).map(tuple)
    absent = st.sampled_from(directories).map("{}/absent".format)
    deny = st.lists(st.one_of(any_path, any_path, absent), max_size=3).map(tuple)
    return tree, Wish(workspace, draw(some), draw(some), draw(deny))


# ---- the model

OK, ABSENT, REFUSED, LOOP = "ok", "absent", "refused", "loop"


class Model:
    """What there is inside, by the words of the policy. Paths are absolute, and the host's."""

    def __init__(self, top: str, tree: Node, policy: Policy) -> None:
        """Take the tree at top and what the policy names, without links."""
        self.top = top
        self.nodes = {top: tree} | {top + path: node for path, node in paths_of(tree)}
        self.named = {"read": policy.read, "write": policy.write, "hidden": ()}
        # A mask needs something to hide.
        masked = tuple(path for path in policy.deny if path in self.nodes and self.right(path))
        self.named["hidden"] = masked
        self.own_is_writable = is_below(top, "/tmp") or is_below(top, "/var/tmp")
        self.mounts = {*policy.read, *policy.write, *masked}
        for path in (*policy.read, *policy.write, *policy.deny):  # the directories on the way there are pinned
            self.mounts |= {
                way for way in self.nodes if way != path and is_below(path, way) and self.right(way) == "write"
            }

    def right(self, path: str) -> str:
        """Return "write", "read" or "hidden"; "" where the policy says nothing."""
        rank = {"read": 0, "write": 1, "hidden": 2}
        said = [(len(root), rank[what], what) for what in rank for root in self.named[what] if is_below(path, root)]
        return max(said)[2] if said else ""

    def kind(self, path: str) -> str:
        """Return what is inside at a path whose parents can be entered: "" for nothing."""
        right = self.right(path)
        if right == "":
            leads = any(is_below(root, path) for root in (*self.named["read"], *self.named["write"]))
            return "own dir" if leads else ""
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

    def names(self, path: str) -> list[str]:
        """Return what a directory lists."""
        if self.kind(path) == "own dir":
            roots = (*self.named["read"], *self.named["write"])
            return sorted(
                {root[len(path) + 1 :].split("/")[0] for root in roots if is_below(root, path) and root != path}
            )
        node = self.nodes[path]
        assert isinstance(node, dict)
        return sorted(node)

    # ---- what must come of each attempt

    def changes(self, place: str) -> str:
        """May something be made or changed in this directory, or in this file?"""
        kind = self.kind(place)
        if kind == "own dir":
            return OK if self.own_is_writable else REFUSED
        return OK if self.right(place) == "write" else REFUSED

    def look(self, path: str) -> object:
        state, at = self.find(path, follow=False)
        return self.kind(at).split()[-1] if state == OK else state

    def read(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        return {"dir": "dir", "own dir": "dir", "file": content(at[len(self.top) :]).decode()}.get(
            self.kind(at), REFUSED
        )

    def list(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        kind = self.kind(at)
        return self.names(at) if kind in ("dir", "own dir") else REFUSED if kind == "masked dir" else ABSENT

    def chmod(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        return self.changes(at) if state == OK else state

    def append(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        return "dir" if self.kind(at).endswith("dir") else self.changes(at)

    def create(self, path: str) -> object:
        state, at = self.find(path, follow=True)
        if state != OK:
            return state
        return self.changes(at) if self.kind(at).endswith("dir") else ABSENT

    def rename(self, path: str) -> object:
        state, at = self.find(path, follow=False)
        if state != OK:
            return state
        return REFUSED if at in self.mounts else self.changes(os.path.dirname(at))

    def remove(self, path: str) -> object:
        state, at = self.find(path, follow=False)
        return "dir" if state == OK and self.kind(at).endswith("dir") else self.rename(path)


ATTEMPTS = ("look", "read", "list", "chmod", "append", "create", "rename", "remove")

PROBE = r"""
import errno, json, os, stat, sys

def look(path, i):
    mode = os.lstat(path).st_mode
    return "dir" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"

def read(path, i):
    with open(path, "rb") as file:
        return file.read().decode()

def list_(path, i):
    return sorted(os.listdir(path))

def chmod(path, i):
    os.chmod(path, 0o700)
    return "ok"

def append(path, i):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"!")
    os.close(fd)
    return "ok"

def create(path, i):
    os.close(os.open(f"{path}/+{i}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return "ok"

def rename(path, i):
    os.rename(path, path + "~")
    os.rename(path + "~", path)
    return "ok"

def remove(path, i):
    if stat.S_ISDIR(os.lstat(path).st_mode):
        return "dir"
    os.unlink(path)
    return "ok"

words = {errno.ENOENT: "absent", errno.ENOTDIR: "absent", errno.EACCES: "refused", errno.EPERM: "refused",
         errno.EROFS: "refused", errno.EBUSY: "refused", errno.ELOOP: "loop", errno.EISDIR: "dir"}

def attempt(what, path, i):
    try:
        return what(path, i)
    except OSError as error:
        return words.get(error.errno, str(error))

asked = json.load(sys.stdin)
result = {what.__name__.strip("_"): [attempt(what, path, i) for i, path in enumerate(asked)]
          for what in (look, read, list_, chmod, append, create, rename, remove)}
json.dump(result, sys.stdout)
"""


def python(policy: Policy, script: str, asked: object) -> str:
    """Run a script in the sandbox and return what it prints."""
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", script]
    done = nsbox.run(command, policy=policy, input=json.dumps(asked), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def expected_host(model: Model, expected: dict[str, list[object]], asked: list[str]) -> dict[str, bytes | str | None]:
    """Return what must have become of the host's tree, by the model."""
    host: dict[str, bytes | str | None] = {}
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


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the trees."""
    return tmp_path_factory.mktemp("model")


@contextlib.contextmanager
def standing(tree: Node, arena: Path) -> Iterator[str]:
    """The tree, on the host, for a while."""
    top = str(arena / "tree")
    build(tree, top)
    try:
        yield top
    finally:
        shutil.rmtree(top)


def say(policy: Policy, tree: Node) -> None:
    """Show a failing example as nsbox sees it."""
    note(f"tree: {tree!r}")
    note(f"write={policy.write!r}\nread={policy.read!r}\ndeny={policy.deny!r}")
    note(nsbox.explain(policy))


@settings(settings.get_profile("differential"))
@given(case=cases())
@example(case=({"a": {"a": {"a": {"a": None}}}}, Wish("/a", read=("/a/a",), deny=("/a/a/a/a",))))  # a pin was writable
@example(
    case=({"a": {"a": {"a": {"b": {"a": None, "b": "a/a/a"}}}}}, Wish("/a", deny=("/a/a/a/b/b",)))
)  # deny leads through a file
@example(
    case=({"a": {"l": "b", "b": {"f": None}}}, Wish("/a", deny=("/a/l/f",)))
)  # a mask on a link's name hid nothing
def test_what_a_command_can_do(arena: Path, case: tuple[Node, Wish]) -> None:
    """Every path can be seen, read, written and removed exactly as far as the policy says, and the host shows it."""
    tree, wish = case
    with standing(tree, arena) as top:
        policy = wish.sensible(top).policy(top)
        say(policy, tree)
        model = Model(top, tree, policy)
        asked = sorted(model.nodes.keys() - {top})
        expected = {what: [getattr(model, what)(path) for path in asked] for what in ATTEMPTS}
        found = json.loads(python(policy, PROBE, asked))
        wrong = [
            f"{what} {path[len(top) :]!r}: {found[what][i]!r}, must be {expected[what][i]!r}"
            for what in ATTEMPTS
            for i, path in enumerate(asked)
            if found[what][i] != expected[what][i]
        ]
        assert not wrong, "\n".join(wrong)
        host = {
            path: value.replace(top, "", 1) if isinstance(value, str) else value
            for path, value in snapshot(top).items()
        }
        assert host == expected_host(model, expected, asked)


# ---- what a command leaves to the next one

MOVER = r"""
import contextlib, itertools, json, os, sys

workspace, paths, tries = json.load(sys.stdin)
for n, path in enumerate(paths + paths[::-1]):
    for goal in (f"{os.path.dirname(path)}/moved {n}", f"{workspace}/moved {n}"):
        with contextlib.suppress(OSError):
            os.rename(path, goal)
            if tries == "links":
                os.symlink(goal, path)
            break
    with contextlib.suppress(OSError):
        os.link(path, f"{workspace}/linked {n}")
for path in paths if tries == "directories" else ():
    with contextlib.suppress(OSError):
        os.makedirs(path)
"""

FINDER = r"""
import contextlib, json, os, sys

top = json.load(sys.stdin)
for follow in (False, True):
    for n, (here, dirs, files) in enumerate(os.walk(top, followlinks=follow)):
        if n > 300:
            break  # going round in links
        for name in files:
            with contextlib.suppress(OSError):
                with open(f"{here}/{name}", "rb") as file:
                    print(file.read().decode())
            with contextlib.suppress(OSError):
                with open(f"{here}/{name}", "ab") as file:
                    file.write(b"!")
"""


@settings(settings.get_profile("differential"), max_examples=settings.get_profile("differential").max_examples // 3)
@given(case=cases(), tries=st.sampled_from(("moves", "links", "directories")))
@example(  # the way to a writable path in a writable one
    case=({"a": {"a": {"b": {"c d": None, "a": None}}}}, Wish("/a", write=("/a/a/b",), deny=("/a/a/b/c d",))),
    tries="directories",
)
@example(
    case=({"a": {"a": {"b": {"c d": None, "a": None}}}}, Wish("/a", write=("/a/a/b",), read=("/a/a/b/c d",))),
    tries="directories",
)
def test_what_a_command_leaves_to_the_next(arena: Path, case: tuple[Node, Wish], tries: str) -> None:
    """What is hidden or read-only stays so for the next command, whatever the first has moved, linked and replaced."""
    tree, wish = case
    with standing(tree, arena) as top:
        policy = wish.sensible(top).policy(top)
        say(policy, tree)
        model = Model(top, tree, policy)
        safe = {
            path: model.right(path)
            for path, node in model.nodes.items()
            if node is None and model.right(path) != "write"
        }
        python(policy, MOVER, [policy.write[0], sorted(model.nodes.keys() - {top}), tries])
        try:
            shown = python(policy, FINDER, top)
        except (nsbox.NsboxError, OSError) as error:
            event(f"the next command is refused: {type(error).__name__}")
            shown = ""
        there = [value for value in snapshot(top).values() if isinstance(value, bytes)]
        for path, right in safe.items():
            what = content(path[len(top) :])
            assert right == "read" or what.decode() not in shown.splitlines(), f"the next command can read {path}"
            assert what in there, f"{path} has been changed or removed"
