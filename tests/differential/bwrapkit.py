"""Runs one list of ops through nsbox and through the system's bwrap, and compares what came of it.

Ops name the source tree "/@"; each side has a copy of its own, made anew whenever something in it has changed. What a
probe in the sandbox saw and did is a View; what became of the copy is a snapshot. How an op is said to bwrap so that
it means what it means to nsbox is in `spoken`; the reasons are in the table of test_bwrap.py.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import nsbox
from nsbox._plan import DEVICES
from nsbox import (
    Bind,
    BindData,
    Chmod,
    Dev,
    DevBind,
    Dir,
    File,
    Hostname,
    Mqueue,
    Op,
    Policy,
    Proc,
    RemountRo,
    RoBind,
    SetupError,
    Symlink,
    Tmpfs,
)

BWRAP = shutil.which("bwrap")
MARK = "+w"  # the file that the probe creates

Snapshot = dict[str, tuple[str, ...]]


# ---- the source tree


def make_tree(top: str) -> None:
    """Make the tree that ops call "/@": d looks like a root with places to mount on; below d/a is more of the same."""
    os.mkdir(top, 0o755)
    for name in ("d", "d/a", "d/a/b", "d/a/b/c", "d/b", "d/dev", "d/proc", "d/locked", "d/locked/in"):
        os.mkdir(f"{top}/{name}", 0o755)
    for name in ("d/f", "d/a/f", "d/a/b/f", "d/b/f", "d/probe", "d/locked/in/f"):
        Path(top, name).write_text(name)
    os.chmod(f"{top}/d/b/f", 0o400)
    links = {"l": "a", "lf": "f", "dangling": "nowhere/x", "loop": "loop", "a/l": "b/c", "a/up": "../b", "b/a": "../a/b"}
    for name, target in links.items():
        os.symlink(target, f"{top}/d/{name}")
    os.mknod(f"{top}/d/socket", stat.S_IFSOCK | 0o644)  # a FIFO would block bwrap
    os.chmod(f"{top}/d/locked", 0)


def remove_tree(top: str) -> None:
    """Remove it, whatever its modes have become."""
    for here, dirs, _ in os.walk(top):
        for name in dirs:
            if not os.path.islink(f"{here}/{name}"):
                os.chmod(f"{here}/{name}", 0o700)
    shutil.rmtree(top, ignore_errors=not os.path.exists(top))


def snapshot(top: str) -> Snapshot:
    """Return what is below top: for each path its type, mode, owner and contents."""
    found: Snapshot = {}

    def visit(path: str, name: str) -> None:
        st = os.lstat(path)
        kind = stat.S_IFMT(st.st_mode)
        found[name] = (stat.filemode(st.st_mode), f"{st.st_uid}:{st.st_gid}")
        if kind == stat.S_IFLNK:
            found[name] += (os.readlink(path),)
        if kind not in (stat.S_IFDIR, stat.S_IFREG):
            return
        shut = os.geteuid() != 0 and st.st_mode & 0o500 != 0o500  # no matter to an owner with capabilities
        if shut:
            os.chmod(path, 0o700)
        if kind == stat.S_IFREG:
            found[name] += (Path(path).read_text(errors="surrogateescape"),)
        else:
            for entry in sorted(os.listdir(path)):
                visit(f"{path}/{entry}", f"{name}/{entry}")
        if shut:
            os.chmod(path, stat.S_IMODE(st.st_mode))

    visit(top, ".")
    return found


def unmarked(tree: Snapshot) -> Snapshot:
    """Return the tree without the probe's own traces: what the set-up alone has made of it."""
    kept = {name: facts for name, facts in tree.items() if os.path.basename(name) != MARK}
    return {name: (*facts[:2], *(text.rstrip("!") for text in facts[2:])) for name, facts in kept.items()}


# ---- what a probe saw


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
            facts[kind, path] = _canonical(path, value) if kind == "link" else _named(value)
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


def _canonical(link: str, target: str) -> str:
    """Return what the target of a link names, as an absolute path: bwrap and nsbox are told it in different words."""
    return os.path.normpath("/" + os.path.join(os.path.dirname(link), target)).replace("//", "/")


@dataclass(slots=True)
class Outcome:
    """What came of one run: a view or an error, and the copy of the source tree afterwards."""

    view: View | None
    error: SetupError | str | None
    host: Snapshot


# ---- saying it to bwrap


def located(op: Op, top: str, probe: str = "") -> Op:
    """Return the op with "/@" standing for top, and "/@probe" for the probe."""
    changed = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, str) and "/@" in value:
            changed[field.name] = probe if value == "/@probe" else value.replace("/@", top)
    return replace(op, **changed) if changed else op


def is_twisted(target: str, dest: str) -> bool:
    """Is it a link target that bwrap 0.8 resolves against its half-built root: absolute, or up beyond "/"?"""
    if target.startswith("/"):
        return True
    here = [part for part in os.path.dirname(dest).split("/") if part]
    depth = len(here)
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def straight(op: Symlink) -> str:
    """Return a relative target that names the same place without leaving the root. For links below real directories."""
    if not is_twisted(op.target, op.dest):
        return op.target
    return os.path.relpath(_canonical(op.dest, op.target), os.path.dirname(op.dest))


class Spoken:
    """The arguments of a bwrap that does the same, and the descriptors that they name. Close it after use."""

    def __init__(self, ops: Sequence[Op]) -> None:
        """Translate; each op in turn."""
        self.fds: list[int] = []
        self.argv = [word for op in ops for word in self._op(op)]

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)

    def _fd(self, data: bytes | int) -> str:
        assert isinstance(data, bytes)
        fd = os.memfd_create("data")
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        self.fds.append(fd)
        return str(fd)

    def _op(self, op: Op) -> list[str]:
        match op:
            case Chmod():
                return ["--chmod", f"{op.mode:04o}", op.dest]
            case RemountRo():
                return ["--remount-ro", op.dest]
            case Hostname():
                return ["--hostname", op.name]
            case Bind() | RoBind() | DevBind() if op.optional and _is_missing(op.src):
                parents = []
            case _:
                parents = [os.path.dirname(op.dest)]  # type: ignore[attr-defined]
        return [*(word for parent in parents if parent != "/" for word in ("--dir", parent)), *self._creating(op)]

    def _creating(self, op: Op) -> list[str]:
        match op:
            case Bind() | RoBind() | DevBind():
                name = {Bind: "--bind", RoBind: "--ro-bind", DevBind: "--dev-bind"}[type(op)]
                return [name + ("-try" if op.optional else ""), op.src, op.dest]
            case Tmpfs():
                size = [] if op.size is None else ["--size", str(op.size)]
                return [*_perms(op.mode, 0o755), *size, "--tmpfs", op.dest]
            case Dir():
                return [*_perms(op.mode, 0o755), "--dir", op.dest]
            case File():
                return [*_perms(op.mode, None), "--file", self._fd(op.data), op.dest]
            case BindData():
                name = "--ro-bind-data" if op.read_only else "--bind-data"
                return [*_perms(op.mode, 0o600), name, self._fd(op.data), op.dest]
            case Symlink():
                return ["--symlink", straight(op), op.dest]
            case Dev():
                return ["--dev", op.dest, "--chmod", "1777", f"{op.dest.rstrip('/')}/shm"]
            case Proc():
                return ["--proc", op.dest]
            case Mqueue():
                return ["--mqueue", op.dest]
            case _:
                raise TypeError(f"bwrap 0.8 has no {op!r}")


def _perms(mode: int, usual: int | None) -> list[str]:
    return [] if mode == usual else ["--perms", f"{mode:04o}"]


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


# ---- running


class Arena:
    """Where the two copies of the source tree are."""

    def __init__(self, base: str, probe: str) -> None:
        """base: an empty directory of the tests' own."""
        self.base, self.probe = base, probe
        self.nsbox, self.bwrap = f"{base}/copy-nsbox", f"{base}/copy-bwrap"
        self.clean: set[str] = set()
        self.pristine = self._fresh(self.nsbox)
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            self.host_mounts = [Mount.parse(line) for line in table]
        kernels = {m.point for m in self.host_mounts if re.match(r"/(dev|sys|proc)(/|$)", m.point)}
        numbers = {os.stat(p).st_dev for p in kernels if os.path.exists(p)} - {os.stat(base).st_dev}
        self.foreign = "," + "".join(f"{os.major(n)}:{os.minor(n)}," for n in sorted(numbers))

    def close(self) -> None:
        """Remove everything."""
        os.close(self.proc)
        for top in (self.nsbox, self.bwrap):
            remove_tree(top)

    def _fresh(self, top: str) -> Snapshot:
        if top not in self.clean:
            remove_tree(top)
            make_tree(top)
            self.clean.add(top)
        return snapshot(top)

    def _after(self, top: str) -> Snapshot:
        host = snapshot(top)
        if host != self.pristine:
            self.clean.discard(top)
        return {name: tuple(self.neutral(text) for text in facts) for name, facts in host.items()}

    def neutral(self, text: str) -> str:
        """Return the text with either copy's name replaced."""
        return text.replace("copy-nsbox", "copy-@").replace("copy-bwrap", "copy-@")

    def _command(self, on_host: bool, top: str) -> list[str]:
        program, root = (self.probe, top) if on_host else ("/probe", "/")
        return [program, str(self.proc), self.foreign, root]

    def _view(self, output: bytes) -> View:
        return View.parse(os.fsencode(self.neutral(os.fsdecode(output))))

    def policy(self, ops: Sequence[Op], unshare: frozenset[str]) -> Policy:
        """Return the policy of these ops on nsbox's copy."""
        return Policy.layers(*(located(op, self.nsbox, self.probe) for op in ops), unshare=unshare)

    def run_nsbox(self, ops: Sequence[Op], unshare: frozenset[str], on_host: bool) -> Outcome:
        """Run the probe in nsbox; a SetupError is an outcome, anything else is raised."""
        self._fresh(self.nsbox)
        command = self._command(on_host, self.nsbox)
        policy = self.policy(ops, unshare)
        try:
            done = nsbox.run(command, policy=policy, cwd="/", pass_fds=(self.proc,), capture_output=True)
        except SetupError as error:
            return Outcome(None, error, self._after(self.nsbox))
        assert done.returncode == 0, (done.returncode, done.stderr)
        return Outcome(self._view(done.stdout), None, self._after(self.nsbox))

    def argv(self, spoken: Spoken, unshare: frozenset[str]) -> list[str]:
        """Return bwrap's command line, but for the command."""
        names = ("user", "pid", *sorted(unshare))
        drop = ("--cap-drop", "ALL")
        return [str(BWRAP), *(f"--unshare-{name}" for name in names), *drop, *spoken.argv, "--chdir", "/", "--"]

    def run_bwrap(self, ops: Sequence[Op], unshare: frozenset[str], on_host: bool) -> Outcome:
        """Run the probe in bwrap; its message is an outcome."""
        self._fresh(self.bwrap)
        spoken = Spoken([located(op, self.bwrap, self.probe) for op in ops])
        try:
            command = self.argv(spoken, unshare) + self._command(on_host, self.bwrap)
            done = subprocess.run(command, pass_fds=(self.proc, *spoken.fds), capture_output=True)
        finally:
            spoken.close()
        if done.returncode != 0:
            message = done.stderr.decode(errors="surrogateescape")
            assert message.startswith("bwrap: "), (done.returncode, message)
            is_ready = message.startswith("bwrap: execvp ")  # only the probe is missing, as in a part of a list
            return Outcome(None, None if is_ready else message, self._after(self.bwrap))
        return Outcome(self._view(done.stdout), None, self._after(self.bwrap))


# ---- comparing

_DATA_ROOT = re.compile(r"/bindfile\w{6}//deleted|/data\d+")
_COVERS = ("sys", "sysrq-trigger", "irq", "bus")


def _what(m: Mount, host_devices: frozenset[str]) -> tuple[str, str, str]:
    """Return what a mount shows, without what differs from run to run."""
    if m.device in host_devices:
        return m.type, m.root, m.device
    root = "data" if m.type == "tmpfs" and _DATA_ROOT.fullmatch(m.root) else m.root
    return m.type, "/" if root == "/newroot" else root, "new"


def _is_cover(m: Mount) -> bool:
    return m.type == "proc" and m.root.strip("/") in _COVERS and "ro" in m.flags


def _without_extra_covers(mine: list[Mount], theirs: list[Mount]) -> list[Mount]:
    """nsbox makes all four read-only for the kernel's uid 0; bwrap those that access(2) calls writable."""
    there = Counter(m.point for m in theirs if _is_cover(m))
    kept = []
    for m in mine:
        if _is_cover(m) and not there[m.point]:
            continue
        there[m.point] -= _is_cover(m)
        kept.append(m)
    return kept


def _expected_flags(theirs: Mount, host_devices: frozenset[str]) -> frozenset[str]:
    """Return the flags that nsbox's mount must have where bwrap's is this one."""
    if theirs.type == "mqueue":
        return theirs.flags | {"nosuid", "nodev", "noexec"}
    if theirs.device in host_devices and theirs.root.strip("/") in DEVICES and "nodev" not in theirs.flags:
        return theirs.flags - {"rw"} | {"ro"}
    return theirs.flags


def mount_differences(mine: View, theirs: View, host_mounts: Sequence[Mount]) -> Iterator[str]:
    """Yield what is wrong with nsbox's mount table, by bwrap's."""
    devices = frozenset(m.device for m in host_mounts)
    ours = _without_extra_covers(mine.mounts, theirs.mounts)
    for m in mine.mounts:
        if m.tags:
            yield f"{m.point}: propagation {m.tags}, must be private"
        if "nosuid" not in m.flags:
            yield f"{m.point}: not nosuid, covered or not"
    seen, expected = visible(ours), visible(theirs.mounts)
    for point in sorted({*seen, *expected}):
        if point not in seen or point not in expected:
            yield f"{point}: a mount of {'nsbox' if point in seen else 'bwrap'} alone: {seen.get(point) or expected[point]}"
            continue
        a, b = seen[point], expected[point]
        if _what(a, devices) != _what(b, devices):
            yield f"{point}: {_what(a, devices)}, in bwrap {_what(b, devices)}"
        if a.flags != _expected_flags(b, devices):
            yield f"{point}: flags {sorted(a.flags)}, in bwrap {sorted(b.flags)}"
        if a.super_flags[0] != b.super_flags[0]:
            yield f"{point}: file system {a.super_flags[0]}, in bwrap {b.super_flags[0]}"
    # What is covered must be there too, and no less locked up.
    count = Counter((m.point, *_what(m, devices)) for m in ours)
    count.subtract(Counter((m.point, *_what(m, devices)) for m in theirs.mounts))
    for key, n in count.items():
        if n:
            yield f"{key}: {n:+} mounts, with the covered ones"


def fact_differences(mine: View, theirs: View) -> Iterator[str]:
    """Yield what the probe found different: types, modes, owners, contents, and what it could do."""
    for key in sorted({*mine.facts, *theirs.facts}):
        a, b = mine.facts.get(key, "nothing"), theirs.facts.get(key, "nothing")
        if a != b:
            yield f"{' '.join(key)!r}: {a}, in bwrap {b}"
