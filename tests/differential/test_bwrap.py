"""The same random op lists through nsbox and through the system's bwrap must give the same sandbox.

A probe lists the tree with types, modes, owners, link targets and contents, tries to create a file in each directory
and to append to each file, and reads the mount table; then the host's copies of the source tree are compared. When an
op fails in nsbox, it must fail in bwrap too; it is then left out and the rest goes on, so that every example ends with
two sandboxes to compare.

Where nsbox differs by design, this is normalised and nothing else is ("said": nsbox_differential.spoken gives bwrap the words
that mean what nsbox does; "checked": nsbox's own promise is asserted instead):

| what | bwrap 0.8 | nsbox, and why | here |
|---|---|---|---|
| a destination that would have to be made, written or chmod-ed in a bound directory of the host | changes the host | an error: no host side effects | checked: bwrap changed its copy or failed; nsbox's is untouched |
| links with absolute targets, or up beyond "/", on the way to a destination | resolved against the half-built root (CVE-2026-87766) | resolved in the new root | said: the relative target that names the same place |
| `chmod` in a procfs, devpts or mqueue | fine | an error: none of nsbox's own | checked |
| `file` on a symlink or a mount | writes through it | an error: a new file or one of nsbox's own, reached by no link | checked |
| a file or `dir` to be made at a link that leads nowhere | a file is made where it points to; a `dir` is silently left out | an error: never followed | checked |
| `symlink` where the very same one is | an error (fine since 0.9) | fine | said: left out where 0.8 complains |
| missing parents of a destination where no --perms applies | 0700 (0755 since 0.9) | 0755 | said: `--dir` for the parent first |
| /dev/shm | 0755 | 1777, as POSIX programs expect (bwrap #329) | said: `--chmod` |
| /dev/null and its kind | mounted rw: uid 0 could chmod the host's | mounted ro, which no write to a device minds | expected ro; writability is compared |
| default mode of `file` | 0666 | 0644 | said: always with --perms |
| kernel settings in /proc (sys, sysrq-trigger, irq, bus, fs) for the kernel's uid 0 | read-only where access(2) says writable | always read-only | mounts that only nsbox has are left out |
| mqueue | no flags | nosuid, nodev, noexec | added to what is expected |
| covered mounts | keep the host's flags | get the flags of the bind, like all below it | checked: nosuid everywhere, and no flag less than bwrap's |
| propagation | slave: later mounts of the host appear, without flags | private | checked |
| `remount-ro` of a read-only mount that a later one covers | nothing to do, says the mount table | an error: no mount is there | checked |
| anything mounted over `bind-data`, or its `remount-ro` | an error, since the file there is deleted | fine | left out |
| a mount that covers the link by which its destination is named | an error: the name is looked up again | fine | left out |
| `mqueue` twice at one place | EBUSY, as from any mount(2) of the same instance | fine | at most one is drawn |
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from nsbox_differential import PATIENCE
from nsbox_differential.arena import Arena, Case
from nsbox_differential.cases import PROBE, cases
from nsbox_differential.check import check
from nsbox_differential.tree import snapshot, unmarked
from nsbox_testing import needs

import nsbox
from nsbox import (
    Bind,
    BindData,
    Chmod,
    Dev,
    DevBind,
    Dir,
    File,
    Hostname,
    Op,
    Proc,
    RemountRo,
    RoBind,
    SetupError,
    Symlink,
    Tmpfs,
)

pytestmark = [needs.programs("bwrap"), pytest.mark.timeout(PATIENCE)]

# ---- the tests


@settings(settings.get_profile("differential"))
@given(case=cases())
@example(case=Case((RoBind("/", "/"),), on_host=True))  # the old root stayed on the new one, at "/.."
@example(
    case=Case(
        (
            PROBE,
            RemountRo("/"),
            Bind("/@/d", "/a"),
        )
    )
)  # too late for a new mount point, in both
@example(
    case=Case(
        (
            PROBE,
            Bind("/@/d", "/a"),
            RemountRo("/"),
            BindData("/a/f", b"x"),
        )
    )
)  # no place for scratch
@example(
    case=Case(
        (RoBind("/", "/"), Tmpfs("/@/d/a", mode=0o050), Symlink("a", "/@/d/a/b"), Dir("/@/d/a/b", 0o700)),
        on_host=True,
    )
)  # a link that nobody sees
@example(case=Case((PROBE, RoBind("/@/d", "/a/a"), Bind("/@/d", "/a"), RemountRo("/a/a"))))  # it is covered
def test_same_view(arena: Arena, case: Case) -> None:
    """Any op list gives the same view, the same rights, the same mounts and the same host as in bwrap."""
    check(arena, case)


@pytest.mark.parametrize(
    "ops",
    [
        [DevBind("/dev", "/dev")],
        [Bind("/dev", "/dev")],
        [
            DevBind("/dev/null", "/null"),
            DevBind("/dev/zero", "/zero"),
            Bind("/dev/null", "/not"),
            RoBind("/dev/full", "/ro"),
        ],
        [Bind("/sys", "/sys"), Tmpfs("/sys/fs"), RoBind("/sys", "/again")],
        [Bind("/sys/fs", "/a"), RemountRo("/a")],
        [Dev("/dev"), Tmpfs("/dev/shm", mode=0o1777), BindData("/dev/null", b"not null"), RemountRo("/dev")],
        [Dev("/dev"), Proc("/proc"), Symlink("proc/self/mounts", "/mtab"), Dev("/dev")],
    ],
    ids=["dev", "dev without nodes", "nodes", "sys", "sys read-only", "on dev", "dev twice"],
)
def test_kernel_places(arena: Arena, ops: list[Op]) -> None:
    """What may not be drawn at random, since bwrap would change the host, is mounted just alike, all below it too."""
    check(arena, Case((PROBE, *ops)))


@pytest.mark.parametrize(
    "unshare", [(), ("ipc",), ("uts",), ("net",), ("cgroup",), ("ipc", "uts", "net", "cgroup")], ids=str
)
def test_namespaces(arena: Arena, unshare: tuple[str, ...]) -> None:
    """With any namespaces the process finds the same ids, pid, host name, capabilities and loopback interface."""
    named = [Hostname("inside")] if "uts" in unshare else []
    check(arena, Case((PROBE, Dev("/dev"), *named), frozenset(unshare)))


@pytest.mark.parametrize("ids", [(0, 0), (1234, 4321)], ids=str)
@pytest.mark.parametrize("ops", [(), (Dev("/dev"),)], ids=["without dev", "dev"])
def test_ids(arena: Arena, ids: tuple[int, int], ops: tuple[Op, ...]) -> None:
    """With any uid and gid inside, files have the same owners and the same rights; also where devpts needs uid 0 first."""
    check(arena, Case((PROBE, *ops, Bind("/@/d", "/a"), Tmpfs("/t"), File("/t/f", b"", 0o600)), ids=ids))


PLANTED = (
    "{0}",
    "{0}/new/er",
    "{0}/f",
    "/newroot{0}",
    "/oldroot{0}",
    "/proc/self/root{0}",
    "/proc/self/cwd{0}",
    "/proc/1/root{0}",
)
CLIMBS = ("", "..", "../../../..")


@st.composite
def hostile(draw: st.DrawFn) -> tuple[dict[str, str], list[Op]]:
    """Draw links that lead to a directory of the host by any way, and ops that go through them."""
    targets = st.tuples(st.sampled_from(CLIMBS), st.sampled_from(PLANTED)).map("".join)
    planted = {name: draw(targets) for name in ("one", "two")} | {
        "three": draw(st.sampled_from(("one", "two/x", "./two")))
    }
    names = st.sampled_from(("one", "two", "three", "one/new", "two/new/er", "three/f", "two/dir"))
    dest = names.map("/w/{}".format)
    mode = st.sampled_from((0o700, 0o755))
    op = st.one_of(
        st.builds(Dir, dest, mode),
        st.builds(File, dest, st.just(b"planted"), mode),
        st.builds(Tmpfs, dest),
        st.builds(BindData, dest, st.just(b"planted"), mode),
        st.builds(
            lambda kind, source, at: kind(source, at),
            st.sampled_from((Bind, RoBind)),
            st.sampled_from(("/@/d", "/@/d/f")),
            dest,
        ),
        st.builds(Symlink, st.just("anywhere"), dest),
        st.builds(Chmod, dest, st.just(0o777)),
        st.builds(RemountRo, dest),
        st.builds(Dev, dest),
        st.builds(Proc, dest),
    )
    ops: list[Op] = [
        draw(st.sampled_from((Bind, RoBind, DevBind)))("/@planted", "/w"),
        *draw(st.lists(op, min_size=1, max_size=3)),
    ]
    if draw(st.booleans()):
        ops.insert(0, Proc("/proc"))
    procs = [i for i, op in enumerate(ops) if isinstance(op, Proc)]
    return planted, [op for i, op in enumerate(ops) if i not in procs[1:]]


@settings(settings.get_profile("differential"))
@given(case=hostile())
def test_planted_links(arena: Arena, case: tuple[dict[str, str], list[Op]]) -> None:
    """Whatever links untrusted hands have left in a bound directory, nothing is made, changed or shown of the host (CVE-2026-87766)."""
    planted, ops = case
    with arena.planting(planted) as secret:
        note(nsbox.explain(arena.policy([PROBE, *ops], Case(()))))
        before = snapshot(arena.base)
        mine = arena.run_nsbox([PROBE, *ops], Case(()))
        assert unmarked(snapshot(arena.base)) == unmarked(before)
        if mine.error is not None:
            assert isinstance(mine.error, SetupError)
        else:
            assert mine.view is not None
            assert not [key for key, value in mine.view.facts.items() if secret in value]
