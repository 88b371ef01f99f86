"""Random op lists: a base, then ops of all kinds at few places, so that they meet."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

import nsbox
from nsbox_differential.arena import Case
from nsbox_differential.spoken import is_twisted

PLACES = (
    "a",
    "a/b",
    "a/b/c",
    "a/f",
    "a/l",
    "a/up",
    "b",
    "b/a",
    "b/f",
    "l",
    "l/b",
    "l/new/er",
    "f",
    "n/e/w",
    "å s\n\udcff",
)
OWN_PLACES = ("dev", "dev/shm", "dev/null", "proc", "")
SOURCES = ("d", "d/a", "d/a/b", "d/b", "d/f", "d/a/f", "d/b/f", "d/socket", "d/l", "d/lf")
BAD_SOURCES = ("none", "d/f/x", "d/dangling", "d/loop", "d/locked/in")
# Nothing of the host may be bound writable but the copy: bwrap makes directories there, and changes modes.
HOST_SOURCES = ("/dev/null", "/dev", "/sys")
MODES = (0o700, 0o711, 0o755, 0o500, 0o1777, 0o050, 0)
TARGETS = ("a", "a/b", "b", "f", "n/e/w", "nowhere", "l")


def _place(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if name else prefix or "/"


def binds(dest: st.SearchStrategy[str]) -> st.SearchStrategy[nsbox.Op]:
    """Binds of the copy, and read-only ones of other things."""
    ours = st.sampled_from(SOURCES).map("/@/{}".format)
    wrong = st.sampled_from(BAD_SOURCES).map("/@/{}".format)
    kind = st.sampled_from((nsbox.Bind, nsbox.RoBind, nsbox.DevBind))
    usual = st.builds(lambda k, s, d: k(s, d), kind, ours, dest)
    rare = st.builds(lambda k, s, d, o: k(s, d, optional=o), kind, wrong, dest, st.booleans())
    others = st.builds(nsbox.RoBind, st.sampled_from(HOST_SOURCES), dest)
    return st.one_of(usual, usual, usual, usual, rare, others)


def links(prefix: str, dest: st.SearchStrategy[str]) -> st.SearchStrategy[nsbox.Op]:
    """Links in three spellings: relative, absolute, and up beyond the root."""

    def spell(target: str, at: str, how: str) -> nsbox.Op:
        if how == "relative":
            return nsbox.Symlink(target, at)
        absolute = _place(prefix, target)
        return nsbox.Symlink(absolute if how == "absolute" else "../" * 30 + absolute[1:], at)

    return st.builds(spell, st.sampled_from(TARGETS), dest, st.sampled_from(("relative", "absolute", "climbing")))


@functools.cache
def any_op(prefix: str) -> st.SearchStrategy[nsbox.Op]:
    """One op, of any kind, at one of few places."""
    dest = st.sampled_from((*PLACES, *OWN_PLACES[:3])).map(lambda name: _place(prefix, name))
    place = st.sampled_from(PLACES).map(lambda name: _place(prefix, name))
    mode = st.sampled_from(MODES)
    data = st.sampled_from((b"", b"data", b"x" * 5000))
    kinds = [binds(dest)] * 4
    kinds += [st.builds(nsbox.Tmpfs, dest, st.sampled_from((None, None, 4096, 1 << 20)), mode)] * 2
    kinds += [st.builds(nsbox.Dir, dest, mode)] * 2
    kinds += [links(prefix, place)] * 3
    kinds += [st.builds(nsbox.File, dest, data, mode), st.builds(nsbox.BindData, dest, data, mode, st.booleans())]
    kinds += [st.builds(nsbox.Chmod, place, st.sampled_from((0o711, 0o1777, 0o500, 0o604)))]
    kinds += [
        st.builds(nsbox.RemountRo, st.sampled_from((*PLACES, *OWN_PLACES)).map(lambda name: _place(prefix, name)))
    ]
    kinds += [st.builds(nsbox.Dev, st.sampled_from(("dev", "a", "l", "n/e/w")).map(lambda name: _place(prefix, name)))]
    kinds += [st.builds(nsbox.Proc, st.sampled_from(("proc", "b", "l")).map(lambda name: _place(prefix, name)))]
    kinds += [st.just(nsbox.Hostname("inside")), st.just(nsbox.Mqueue(_place(prefix, "mq")))]
    return st.one_of(kinds)


PROBE = nsbox.RoBind("/@probe", "/probe")
BASES: dict[str, tuple[nsbox.Op, ...]] = {
    "empty": (),
    "tmpfs": (nsbox.Tmpfs("/"),),
    "ro root": (nsbox.RoBind("/@/d", "/"),),
    "rw root": (nsbox.Bind("/@/d", "/"),),
    "ro host": (nsbox.RoBind("/", "/"),),
    "rw tree on ro host": (nsbox.RoBind("/", "/"), nsbox.Bind("/@/d", "/@/d")),
}


def _plain(ops: Sequence[nsbox.Op]) -> Iterator[nsbox.Op]:
    """Links below other links get simple targets: the same place can't be named to bwrap from there."""
    made = [op.dest for op in ops if isinstance(op, nsbox.Symlink)]
    for op in ops:
        if isinstance(op, nsbox.Symlink) and is_twisted(op.target, op.dest):
            parts = op.dest.split("/")[1:-1]
            above = ["/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1)]
            if {"l", "up"} & set(parts) or set(above) & set(made) or "b/a" in op.dest:
                yield nsbox.Symlink("f", op.dest)
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
        new_root = draw(st.sampled_from((nsbox.Tmpfs("/"), nsbox.RoBind("/@/d", "/"), nsbox.Bind("/@/d", "/"))))
        at = draw(st.integers(0, len(ops)))
        ops[at:at] = [new_root, PROBE]
    for kind, needed, most in ((nsbox.Hostname, "uts", 10), (nsbox.Mqueue, "ipc", 1), (nsbox.Proc, None, 8)):
        at = [i for i, op in enumerate(ops) if isinstance(op, kind)]
        for i in reversed(at[most if needed is None or needed in unshare else 0 :]):
            del ops[i]
    ids = draw(st.sampled_from((None, None, None, (0, 0), (7, 8))))
    return Case((*BASES[base], *(() if on_host else (PROBE,)), *_plain(ops)), unshare, on_host, ids)
