"""The same random op lists through nsbox and through the system's bwrap must give the same sandbox.

A probe lists the tree with types, modes, owners, link targets and contents, tries to create a file in each directory
and to append to each file, and reads the mount table; then the host's copies of the source tree are compared. When an
op fails in nsbox, it must fail in bwrap too; it is then left out and the rest goes on, so that every example ends with
two sandboxes to compare.

Where nsbox differs by design, this is normalised and nothing else is ("said": bwrapkit.Spoken gives bwrap the words
that mean what nsbox does; "checked": nsbox's own promise is asserted instead):

| what | bwrap 0.8 | nsbox, and why | here |
|---|---|---|---|
| a destination that would have to be made, written or chmod-ed in a bound directory of the host | changes the host | an error: no host side effects | checked: bwrap changed its copy or failed; nsbox's is untouched |
| links with absolute targets, or up beyond "/", on the way to a destination | resolved against the half-built root (CVE-2026-87766) | resolved in the new root | said: the relative target that names the same place |
| `chmod` in a procfs, devpts or mqueue | fine | an error: none of nsbox's own | checked |
| `file` on a symlink or a mount | writes through it | an error: a new file or one of nsbox's own, reached by no link | checked |
| a file or `dir` to be made at a link that leads nowhere | a file is made where it points to; a `dir` is silently left out | an error: never followed | checked |
| `symlink` where the very same one is | an error (fine since 0.9) | fine | said: left out where 0.8 complains |
| missing parents of a destination | 0755 less the group's and others' bits that --perms lacks; 0700 where no --perms applies | always 0755: an op's mode is that of its destination alone | said: `--dir` for the parent first |
| /dev/shm | 0755 | 1777, as POSIX programs expect (bwrap #329) | said: `--chmod` |
| /dev/null and its kind | mounted rw: uid 0 could chmod the host's | mounted ro, which no write to a device minds | expected ro; writability is compared |
| default mode of `file` | 0666 | 0644 | said: always with --perms |
| /proc/{sys,sysrq-trigger,irq,bus} for the kernel's uid 0 | read-only where access(2) says writable | always read-only | mounts that only nsbox has are left out |
| mqueue | no flags | nosuid, nodev, noexec | added to what is expected |
| covered mounts | keep the host's flags | get the flags of the bind, like all below it | checked: nosuid everywhere; flags compared for visible mounts only |
| propagation | slave: later mounts of the host appear, without flags | private | checked |
| more than one `proc` | fine | PolicyError; a second one can be a symlink | at most one is drawn |
| anything mounted over `bind-data`, or its `remount-ro` | an error, since the file there is deleted | fine | left out |
| a mount that covers the link by which its destination is named | an error: the name is looked up again | fine | left out |
| `mqueue` twice at one place | EBUSY, as from any mount(2) of the same instance | fine | at most one is drawn |
"""

from __future__ import annotations

import contextlib
import errno
import functools
import shlex
from collections.abc import Iterator, Sequence

import bwrapkit
import hypothesis
import nsbox
import pytest
from bwrapkit import Arena, Outcome, Spoken, is_twisted, located, straight, unmarked
from hypothesis import event, example, given, note, settings
from hypothesis import strategies as st
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
    Proc,
    RemountRo,
    RoBind,
    SetupError,
    Symlink,
    Tmpfs,
)
from nsbox._policy import is_below

pytestmark = pytest.mark.skipif(bwrapkit.BWRAP is None, reason="bwrap is not installed")

# ---- op lists

PLACES = ("a", "a/b", "a/b/c", "a/f", "a/l", "a/up", "b", "b/a", "b/f", "l", "l/b", "l/new/er", "f", "n/e/w", "å s\n\udcff")
OWN_PLACES = ("dev", "dev/shm", "dev/null", "proc", "")
SOURCES = ("d", "d/a", "d/a/b", "d/b", "d/f", "d/a/f", "d/b/f", "d/socket", "d/l", "d/lf")
BAD_SOURCES = ("none", "d/f/x", "d/dangling", "d/loop", "d/locked/in")
# Nothing of the host may be bound writable but the copy: bwrap makes directories there, and changes modes.
HOST_SOURCES = ("/dev/null", "/dev", "/sys")
MODES = (0o700, 0o711, 0o755, 0o500, 0o1777, 0o050, 0)
TARGETS = ("a", "a/b", "b", "f", "n/e/w", "nowhere", "l")


def _place(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if name else prefix or "/"


def binds(dest: st.SearchStrategy[str]) -> st.SearchStrategy[Op]:
    """Binds of the copy, and read-only ones of other things."""
    ours = st.sampled_from(SOURCES).map("/@/{}".format)
    wrong = st.sampled_from(BAD_SOURCES).map("/@/{}".format)
    kind = st.sampled_from((Bind, RoBind, DevBind))
    usual = st.builds(lambda k, s, d: k(s, d), kind, ours, dest)
    rare = st.builds(lambda k, s, d, o: k(s, d, optional=o), kind, wrong, dest, st.booleans())
    others = st.builds(RoBind, st.sampled_from(HOST_SOURCES), dest)
    return st.one_of(usual, usual, usual, usual, rare, others)


def links(prefix: str, dest: st.SearchStrategy[str]) -> st.SearchStrategy[Op]:
    """Links in three spellings: relative, absolute, and up beyond the root."""

    def spell(target: str, at: str, how: str) -> Op:
        if how == "relative":
            return Symlink(target, at)
        absolute = _place(prefix, target)
        return Symlink(absolute if how == "absolute" else "../" * 30 + absolute[1:], at)

    return st.builds(spell, st.sampled_from(TARGETS), dest, st.sampled_from(("relative", "absolute", "climbing")))


@functools.cache
def any_op(prefix: str) -> st.SearchStrategy[Op]:
    """One op, of any kind, at one of few places."""
    dest = st.sampled_from((*PLACES, *OWN_PLACES[:3])).map(lambda name: _place(prefix, name))
    place = st.sampled_from(PLACES).map(lambda name: _place(prefix, name))
    mode = st.sampled_from(MODES)
    data = st.sampled_from((b"", b"data", b"x" * 5000))
    kinds = [binds(dest)] * 4
    kinds += [st.builds(Tmpfs, dest, st.sampled_from((None, None, 4096, 1 << 20)), mode)] * 2
    kinds += [st.builds(Dir, dest, mode)] * 2
    kinds += [links(prefix, place)] * 3
    kinds += [st.builds(File, dest, data, mode), st.builds(BindData, dest, data, mode, st.booleans())]
    kinds += [st.builds(Chmod, place, st.sampled_from((0o711, 0o1777, 0o500, 0o604)))]
    kinds += [st.builds(RemountRo, st.sampled_from((*PLACES, *OWN_PLACES)).map(lambda name: _place(prefix, name)))]
    kinds += [st.builds(Dev, st.sampled_from(("dev", "a", "l", "n/e/w")).map(lambda name: _place(prefix, name)))]
    kinds += [st.builds(Proc, st.sampled_from(("proc", "b", "l")).map(lambda name: _place(prefix, name)))]
    kinds += [st.just(Hostname("inside")), st.just(Mqueue(_place(prefix, "mq")))]
    return st.one_of(kinds)





PROBE = RoBind("/@probe", "/probe")
BASES: dict[str, tuple[Op, ...]] = {
    "empty": (),
    "tmpfs": (Tmpfs("/"),),
    "ro root": (RoBind("/@/d", "/"),),
    "rw root": (Bind("/@/d", "/"),),
    "ro host": (RoBind("/", "/"),),
    "rw tree on ro host": (RoBind("/", "/"), Bind("/@/d", "/@/d")),
}


def _plain(ops: Sequence[Op]) -> Iterator[Op]:
    """Links below other links get simple targets: the same place can't be named to bwrap from there."""
    made = [op.dest for op in ops if isinstance(op, Symlink)]
    for op in ops:
        if isinstance(op, Symlink) and is_twisted(op.target, op.dest):
            parts = op.dest.split("/")[1:-1]
            above = ["/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1)]
            if {"l", "up"} & set(parts) or set(above) & set(made) or "b/a" in op.dest:
                yield Symlink("f", op.dest)
                continue
        yield op


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a base, namespaces, and up to ten ops; a new root in between brings the probe along."""
    base = draw(st.sampled_from(sorted(BASES)))
    on_host = "host" in base
    unshare = frozenset(draw(st.lists(st.sampled_from(("ipc", "uts", "cgroup", "net")), unique=True)))
    ops = draw(st.lists(any_op("/@/d" if on_host else ""), min_size=1, max_size=10))
    if not on_host and draw(st.integers(0, 9)) == 9:
        new_root = draw(st.sampled_from((Tmpfs("/"), RoBind("/@/d", "/"), Bind("/@/d", "/"))))
        at = draw(st.integers(0, len(ops)))
        ops[at:at] = [new_root, PROBE]
    for kind, needed, most in ((Hostname, "uts", 10), (Mqueue, "ipc", 1), (Proc, None, 1)):
        at = [i for i, op in enumerate(ops) if isinstance(op, kind)]
        for i in reversed(at[most if needed is None or needed in unshare else 0 :]):
            del ops[i]
    return Case([*BASES[base], *([] if on_host else [PROBE]), *_plain(ops)], unshare, on_host)


# ---- running them


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, probe: str) -> Iterator[Arena]:
    """Two copies of the source tree."""
    arena = Arena(str(tmp_path_factory.mktemp("arena")), probe)
    yield arena
    arena.close()


@settings(settings.get_profile("differential"))
@given(case=cases())
def test_same_view(arena: Arena, case: Case) -> None:
    """Any op list gives the same view, the same rights, the same mounts and the same host as in bwrap."""
    check(arena, case)
