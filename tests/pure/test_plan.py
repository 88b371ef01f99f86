"""Plans: what each op says and accepts, and which ops a policy comes to on a host.

Hosts are made by hand, so nothing here needs a kernel, a compiler or Linux. Snapshots are the text of explain() in
snapshots/*.txt, compared exactly. After a change that is meant to change plans, write them anew and review the diff:

    NSBOX_SNAPSHOTS=write pytest tests/pure/test_plan.py
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsbox import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Console,
    Dev,
    DevBind,
    Device,
    Devpts,
    Dir,
    File,
    Host,
    Hostname,
    Limits,
    Loopback,
    Mask,
    Mqueue,
    Op,
    Overlay,
    Plan,
    Policy,
    PolicyError,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    Symlink,
    TmpOverlay,
    Tmpfs,
    UnavailableError,
    explain,
)
from nsbox._backends import compile_policy
from nsbox._plan import Identity, Rlimit, primitives

calm = settings(deadline=None)  # no test here depends on time

# ---- ops, one by one

DESCRIPTIONS: list[tuple[Op, str]] = [
    (Bind("/a", "/b"), "bind /a -> /b [rw]"),
    (Bind("/a", "/b", optional=True), "bind /a -> /b [rw, optional]"),
    (Bind("/a", "/b", nofollow=True), "bind /a -> /b [rw, nofollow]"),
    (RoBind("/a", "/b"), "bind /a -> /b [ro]"),
    (RoBind("/a", "/b", optional=True), "bind /a -> /b [ro, optional]"),
    (RoBind("/a", "/b", optional=True, nofollow=True), "bind /a -> /b [ro, optional, nofollow]"),
    (DevBind("/dev/kvm", "/dev/kvm"), "bind /dev/kvm -> /dev/kvm [rw, devices]"),
    (Device("/dev/null", "/dev/null"), "device /dev/null -> /dev/null"),
    (BindFd(7, "/b"), "bind fd 7 -> /b [rw]"),
    (BindFd(0, "/b", read_only=True), "bind fd 0 -> /b [ro]"),
    (Tmpfs("/t"), "tmpfs /t [mode 0755]"),
    (Tmpfs("/t", size=4096, mode=0o1777), "tmpfs /t [mode 1777, size 4096]"),
    (Proc("/proc"), "proc /proc"),
    (Proc("/proc", cover=True), "proc /proc [settings read-only]"),
    (Dev("/dev"), "dev /dev"),
    (Devpts("/dev/pts"), "devpts /dev/pts"),
    (Console("/dev/console"), "console /dev/console [if stdout is a terminal]"),
    (Mqueue("/dev/mqueue"), "mqueue /dev/mqueue"),
    (Dir("/d"), "dir /d [mode 0755]"),
    (Dir("/d", mode=0), "dir /d [mode 0000]"),
    (File("/f", b""), "file 0 bytes -> /f [mode 0644]"),
    (File("/f", b"four", mode=0o600), "file 4 bytes -> /f [mode 0600]"),
    (File("/f", 3), "file fd 3 -> /f [mode 0644]"),
    (BindData("/f", b"four"), "bind-data 4 bytes -> /f [rw, mode 0600]"),
    (BindData("/f", 0, mode=0o400, read_only=True), "bind-data fd 0 -> /f [ro, mode 0400]"),
    (Symlink("usr/bin", "/bin"), "symlink /bin -> usr/bin"),
    (RemountRo("/"), "remount-ro /"),
    (Chmod("/d", 0o4755), "chmod /d [mode 4755]"),
    (Overlay(("/l1", "/l2"), "/o", "/up", "/wk"), "overlay /l1 + /l2 + /up -> /o [rw]"),
    (RoOverlay(("/l1", "/l2"), "/o"), "overlay /l1 + /l2 -> /o [ro]"),
    (TmpOverlay(("/l1",), "/o"), "overlay /l1 + tmpfs -> /o [rw, dropped]"),
    (Mask("/etc/shadow"), "mask /etc/shadow"),
    (Mask("/etc/shadow", optional=True), "mask /etc/shadow [optional]"),
    (Hostname("box"), "hostname box"),
    (Loopback(), "loopback up"),
]


@pytest.mark.parametrize(("op", "text"), DESCRIPTIONS, ids=[text for _, text in DESCRIPTIONS])
def test_describe(op: Op, text: str) -> None:
    """An op says what it does in one line; that is the voice of explain(), of errors and of logs."""
    assert op.describe() == text
    assert " ".join(filter(None, op.row())) == text


def test_each_op_is_described_above() -> None:
    """The table has every public op."""
    import nsbox

    public = {t for t in vars(nsbox).values() if isinstance(t, type) and issubclass(t, Op) and t is not Op}
    assert {type(op) for op, _ in DESCRIPTIONS} == public


@pytest.mark.parametrize("op", [op for op, _ in DESCRIPTIONS], ids=lambda op: op.describe())
def test_ops_are_values(op: Op) -> None:
    """An op is frozen, hashable, equal to its like and picklable."""
    again = replace(op)
    assert again == op
    assert hash(again) == hash(op)
    assert pickle.loads(pickle.dumps(op)) == op
    for field in dataclasses.fields(op):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(op, field.name, "/other")
    with pytest.raises((AttributeError, TypeError)):
        op.extra = 1  # type: ignore[attr-defined]


def test_binds_differ_by_kind() -> None:
    """A read-only bind is never equal to a writable one of the same paths."""
    assert len({Bind("/a", "/b"), RoBind("/a", "/b"), DevBind("/a", "/b")}) == 3


DESTINED = [op for op, _ in DESCRIPTIONS if any(field.name == "dest" for field in dataclasses.fields(op))]
BAD_PATHS: list[Any] = ["", "rel", "a/b", "/a/../b", "..", "/..", "/a\0", "/" + "x" * 4095, "/\ud800", None, 5, b"/x", ["/x"]]


def refused(field: str, make: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize("bad", BAD_PATHS, ids=lambda v: repr(v)[:12].encode("ascii", "backslashreplace").decode())
def test_bad_destinations(bad: Any) -> None:
    """No op takes a destination that isn't an absolute path without '..' and NUL, of at most 4095 bytes."""
    assert len(DESTINED) > 20
    for op in DESTINED:
        refused(f"{type(op).__name__}.dest", lambda op=op: replace(op, dest=bad))


@pytest.mark.parametrize("bad", BAD_PATHS, ids=lambda v: repr(v)[:12].encode("ascii", "backslashreplace").decode())
def test_bad_sources(bad: Any) -> None:
    """Sources, layers, upper and work directories are checked like destinations."""
    for kind in (Bind, RoBind, DevBind, Device):
        refused(f"{kind.__name__}.src", lambda kind=kind: kind(bad, "/b"))
    for layered in (RoOverlay, TmpOverlay):
        refused(f"{layered.__name__}.lower", lambda layered=layered: layered(("/a", bad), "/b"))
    refused("Overlay.lower", lambda: Overlay((bad,), "/b", "/u", "/w"))
    refused("Overlay.upper", lambda: Overlay(("/a",), "/b", bad, "/w"))
    refused("Overlay.work", lambda: Overlay(("/a",), "/b", "/u", bad))


BAD_OPERANDS: list[tuple[str, Any]] = [
    *[("BindFd.fd", lambda v=v: BindFd(v, "/b")) for v in (-1, None, "3", True, 1.0, 2**31)],
    *[("Tmpfs.size", lambda v=v: Tmpfs("/t", v)) for v in (0, -1, True, "64M", 1.5, 2**63)],
    *[("Tmpfs.mode", lambda v=v: Tmpfs("/t", mode=v)) for v in (-1, 0o10000, True, None, "755")],
    *[("Dir.mode", lambda v=v: Dir("/d", v)) for v in (-1, 0o10000, False, None, "755")],
    *[("Chmod.mode", lambda v=v: Chmod("/d", v)) for v in (-1, 0o10000, True, None, 7.0)],
    *[("File.mode", lambda v=v: File("/f", b"", v)) for v in (-1, 0o10000, True, None)],
    *[("File.data", lambda v=v: File("/f", v)) for v in (-1, None, "text", True, 1.0, ["x"], 2**31)],
    *[("BindData.data", lambda v=v: BindData("/f", v)) for v in (-1, None, "text", False, 1.0, ["x"])],
    *[("BindData.mode", lambda v=v: BindData("/f", b"", v)) for v in (-1, 0o10000, True, None)],
    *[("Symlink.target", lambda v=v: Symlink(v, "/l")) for v in ("", "a\0b", None, 5, b"x", "x" * 4096, "\ud800")],
    *[("Hostname.name", lambda v=v: Hostname(v)) for v in ("", "a\0b", "x" * 65, "ä" * 33, None, 5, b"x", "\ud800")],
    *[("RoOverlay.lower", lambda v=v: RoOverlay(v, "/o")) for v in ((), ("/a",), "/a", ("/a",) * 11, 5, None)],
    *[("TmpOverlay.lower", lambda v=v: TmpOverlay(v, "/o")) for v in ((), "/a", ("/a",) * 11, 5, None, b"/a")],
    *[("Overlay.lower", lambda v=v: Overlay(v, "/o", "/u", "/w")) for v in ((), "/a", ("/a",) * 11, 5, None)],
    *[("Bind.optional", lambda v=v: Bind("/a", "/b", v)) for v in ("ro", 1, None, [])],
    *[("RoBind.optional", lambda v=v: RoBind("/a", "/b", v)) for v in ("", 0, [])],
    *[("DevBind.nofollow", lambda v=v: DevBind("/a", "/b", nofollow=v)) for v in ("", 1, None)],
    *[("BindFd.read_only", lambda v=v: BindFd(3, "/b", v)) for v in ("ro", 0, None, [])],
    *[("BindData.read_only", lambda v=v: BindData("/f", b"", 0o600, v)) for v in ("no", 0, None, [])],
    *[("Proc.cover", lambda v=v: Proc("/p", v)) for v in ("no", 0, None, [])],
    *[("Mask.optional", lambda v=v: Mask("/m", v)) for v in ("no", 1, None, [])],
]


@pytest.mark.parametrize(("field", "make"), BAD_OPERANDS, ids=[f"{i}-{field}" for i, (field, _) in enumerate(BAD_OPERANDS)])
def test_bad_operand(field: str, make: Any) -> None:
    """An operand of a wrong type or out of range is refused with the op's and the field's name."""
    refused(field, make)


def test_the_limits_of_operands() -> None:
    """What is just within range is accepted."""
    assert len(Bind("/" + "x" * 4094, "/b").src) == 4095
    assert Symlink("x" * 4095, "/l").target == "x" * 4095
    assert Hostname("x" * 64).name == "x" * 64
    assert Tmpfs("/t", 2**63 - 1, 0o7777).mode == 0o7777
    assert len(RoOverlay(("/a",) * 10, "/o").lower) == 10
    assert BindFd(2**31 - 1, "/b").fd == 2**31 - 1


def test_paths_become_normal() -> None:
    """Equal paths are equal ops, however they are spelled; names outside of UTF-8 pass."""
    assert Bind("//a/./b/", "/c//") == Bind("/a/b", "/c")
    assert Tmpfs("/").dest == Tmpfs("//./").dest == "/"
    assert RoOverlay(["/a/", "//b"], "/o") == RoOverlay(("/a", "/b"), "/o")  # type: ignore[arg-type]
    assert Dir(os.fsdecode(b"/\xff\xfe")).dest == "/\udcff\udcfe"


def test_contents_are_copied() -> None:
    """A buffer changed after the op was made changes nothing."""
    buffer = bytearray(b"abc")
    op = File("/f", buffer)  # type: ignore[arg-type]
    buffer[0] = 0
    assert op.data == b"abc"
    assert File("/f", memoryview(b"abc")) == op  # type: ignore[arg-type]
    hash(op)


def test_dev_primitives() -> None:
    """/dev is a tmpfs with six devices of the host that can't be changed, own ptys, shm, and links; no other device."""
    ops = Dev("/dev").primitives()
    assert ops[0] == Tmpfs("/dev")
    assert [op for op in ops if isinstance(op, Device)] == [
        Device(f"/dev/{name}", f"/dev/{name}") for name in ("null", "zero", "full", "random", "urandom", "tty")
    ]
    assert {op.dest: op.target for op in ops if isinstance(op, Symlink)} == {
        "/dev/stdin": "/proc/self/fd/0",
        "/dev/stdout": "/proc/self/fd/1",
        "/dev/stderr": "/proc/self/fd/2",
        "/dev/fd": "/proc/self/fd",
        "/dev/core": "/proc/kcore",
        "/dev/ptmx": "pts/ptmx",
    }
    assert {type(op) for op in ops} == {Tmpfs, Device, Symlink, Dir, Devpts, Console}
    assert Dir("/dev/shm", 0o1777) in ops
    assert Devpts("/dev/pts") in ops


@pytest.mark.parametrize("dest", ["/", "/a/dev"])
def test_dev_anywhere(dest: str) -> None:
    """All of a /dev lies below its destination, wherever that is."""
    ops = Dev(dest).primitives()
    assert all(op.dest.startswith(dest) for op in ops)  # type: ignore[attr-defined]
    assert not any("//" in op.dest for op in ops)  # type: ignore[attr-defined]
    assert f"{dest.rstrip('/')}/null" in {op.dest for op in ops}  # type: ignore[attr-defined]


def test_other_primitives() -> None:
    """Every other op stands for itself, in its place."""
    ops = [op for op, _ in DESCRIPTIONS if not isinstance(op, Dev)]
    assert list(primitives(ops)) == ops
    mixed = list(primitives([Tmpfs("/a"), Dev("/dev"), Tmpfs("/b")]))
    assert mixed == [Tmpfs("/a"), *Dev("/dev").primitives(), Tmpfs("/b")]
    assert not any(isinstance(op, Dev) for op in mixed)


def test_table() -> None:
    """A plan's table has a line per op, with numbers and columns aligned."""
    ops = (*(Tmpfs(f"/t{i}") for i in range(9)), RemountRo("/"), Loopback())
    lines = Plan(ops, frozenset(), Identity(0, 0, "", "")).table().splitlines()
    assert lines[0] == " 1  tmpfs       /t0 [mode 0755]"
    assert lines[9] == "10  remount-ro  /"
    assert lines[10] == "11  loopback    up"
    assert Plan((), frozenset(), Identity(0, 0, "", "")).table() == ""


# ---- hosts

MERGED = (
    ("/bin", "usr/bin"),
    ("/sbin", "usr/sbin"),
    ("/usr", None),
    ("/lib", "usr/lib"),
    ("/lib64", "usr/lib64"),
    ("/etc", None),
    ("/opt", None),
)
DEBIAN = Host(kernel=(6, 1), directories=MERGED, prefixes=("/usr",))
ROOT = replace(
    DEBIAN,
    euid=0,
    egid=0,
    can_set_ids=True,
    secrets=("/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/etc/ssh/ssh_host_ed25519_key"),
)
CONTAINER_ROOT = replace(  # uid 0 of a user namespace, uid 100000 of the machine
    ROOT, secrets=("/etc/shadow",), uid_ranges=((0, 100000, 65536),), gid_ranges=((0, 100000, 65536),)
)
OLD_LAYOUT = replace(DEBIAN, directories=tuple((path, None) for path, _ in MERGED))
SUBORDINATE = replace(
    DEBIAN,
    subuids=((100000, 65536),),
    subgids=((100000, 65536),),
    map_programs=("/usr/bin/newuidmap", "/usr/bin/newgidmap"),
)
PYTHON = "/nix/store/0c3yqj-python3-3.12.7"
NIX = Host(
    kernel=(6, 12),
    directories=(("/bin", None), ("/usr", None), ("/lib64", None), ("/etc", None), ("/nix", None)),
    prefixes=(PYTHON,),
)
PYENV = replace(DEBIAN, prefixes=("/home/me/.pyenv/versions/3.12.7",))
VENV = replace(DEBIAN, prefixes=("/home/me/repo/.venv", "/usr"))
RESOLVED = replace(DEBIAN, resolv_conf="/run/systemd/resolve/stub-resolv.conf")
LIMITED = replace(DEBIAN, hard_limits=(("NOFILE", 4096), ("NPROC", 100)))


def workspace(root: str = "/home/me/repo", *, write: Iterable[str] = (), **wishes: Any) -> Policy:
    """Return what Policy.workspace(root) returns where the paths exist, without asking."""
    return Policy(**({"base": "workspace", "write": (root, *write), "workdir": root, "home": root} | wishes))


EVERYTHING = Policy.layers(
    *(op for op, _ in DESCRIPTIONS if op != Proc("/proc", cover=True)),  # one is all that may be
    unshare={"ipc", "uts", "cgroup", "net", "time"},
)

SNAPSHOTS: dict[str, tuple[Policy, Host]] = {
    "workspace": (workspace(), DEBIAN),
    "workspace-root": (workspace(), ROOT),
    "workspace-root-of-a-container": (workspace(), CONTAINER_ROOT),
    "workspace-old-layout": (workspace(), OLD_LAYOUT),
    "workspace-nix": (workspace(), NIX),
    "workspace-in-tmp": (workspace("/tmp/job"), DEBIAN),
    "workspace-in-var-tmp": (workspace("/var/tmp/job"), DEBIAN),
    "workspace-is-tmp": (workspace("/tmp"), DEBIAN),
    "workspace-in-opt": (workspace("/opt/app"), DEBIAN),
    "venv-in-workspace": (workspace(), VENV),
    "workspace-in-venv": (workspace("/home/me/repo/.venv/src"), VENV),
    "pyenv": (workspace(), PYENV),
    "network": (workspace(network="host"), RESOLVED),
    "network-etc": (workspace(network="host"), DEBIAN),
    "deny": (workspace(deny=["/home/me/repo/.env", "/home/me/repo/secrets", "/opt/licences"]), DEBIAN),
    "deny-prefix": (workspace(deny=["/home/me/.pyenv", "/run"], network="host"), replace(PYENV, resolv_conf="/run/r.conf")),
    "deny-system": (workspace(deny=["/opt", "/etc/passwd"]), DEBIAN),
    "read": (workspace(read=["/srv/data", "/home/me/repo/vendor", "/opt/sdk"], write=["/srv/data/out"]), DEBIAN),
    "read-everything": (workspace(read=["/"]), ROOT),
    "read-var": (workspace(read=["/var"]), DEBIAN),
    "hostname": (workspace(hostname="box"), DEBIAN),
    "limits": (workspace(tmp_size="64M", limits=Limits(memory="512M", processes=64, open_files=10**6)), LIMITED),
    "uid-0": (workspace(uid=0, gid=0), DEBIAN),
    "uid-1234": (workspace(uid=1234, gid=5678), DEBIAN),
    "layers": (EVERYTHING, DEBIAN),
    "layers-like-bwrap": (
        Policy.layers(RoBind("/", "/"), Dev("/dev"), Proc("/proc"), Tmpfs("/tmp"), unshare={"ipc", "net"}),
        ROOT,
    ),
    "layers-overlay": (
        Policy.layers(RoBind("/usr", "/usr"), TmpOverlay(("/srv/a", "/srv/b"), "/srv/c"), hostname="box", unshare={"uts"}),
        DEBIAN,
    ),
    "host": (Policy.host(), DEBIAN),
    "host-root": (Policy.host(), ROOT),
    "host-contained": (
        Policy.host(network="none", new_session=True, inherit_env=False, unshare={"ipc", "uts"}, hostname="box"),
        DEBIAN,
    ),
    "ids-full": (workspace(ids="full", uid=1234, gid=1234), ROOT),
    "ids-full-subordinate": (workspace(ids="full", uid=0, gid=0), SUBORDINATE),
    "nested": (workspace(nested=True), DEBIAN),
}

SNAPSHOT_DIR = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshot(name: str) -> None:
    """explain() of this policy on this host says exactly what the snapshot says."""
    text = explain(*SNAPSHOTS[name]) + "\n"
    file = SNAPSHOT_DIR / f"{name}.txt"
    if os.environ.get("NSBOX_SNAPSHOTS") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_no_other_snapshots() -> None:
    """Each snapshot belongs to a policy above."""
    assert {path.stem for path in SNAPSHOT_DIR.iterdir()} == set(SNAPSHOTS)


def test_explain_has_no_trailing_space() -> None:
    """The text is clean: no blanks at the ends of lines, no line break at the end."""
    for policy, host in SNAPSHOTS.values():
        text = explain(policy, host)
        assert all(line == line.rstrip() for line in text.split("\n"))
        assert not text.endswith("\n")


# ---- identity


def identity(policy: Policy, host: Host) -> Identity:
    return compile_policy(policy, host).identity


def test_single_id() -> None:
    """One id: root of a first namespace while mounting (devpts), the caller's own in a second one."""
    assert identity(workspace(), DEBIAN) == Identity(1000, 1000, "0 1000 1", "0 1000 1", "1000 0 1", "1000 0 1")
    assert identity(workspace(uid=1234, gid=5678), DEBIAN) == Identity(
        1234, 5678, "0 1000 1", "0 1000 1", "1234 0 1", "5678 0 1"
    )


def test_root_needs_no_second_namespace() -> None:
    """Where the command is uid and gid 0 inside, one namespace does."""
    assert identity(workspace(), ROOT) == Identity(0, 0, "0 0 1", "0 0 1")
    assert identity(workspace(uid=0, gid=0), DEBIAN) == Identity(0, 0, "0 1000 1", "0 1000 1")
    assert identity(workspace(uid=0), DEBIAN).uid_map2 == "0 0 1"  # gid 1000 still needs one
    assert identity(workspace(uid=0), DEBIAN).gid_map2 == "1000 0 1"


def test_without_devpts_no_second_namespace() -> None:
    """A plan without a devpts maps the wished id at once."""
    assert identity(Policy.host(), DEBIAN) == Identity(1000, 1000, "1000 1000 1", "1000 1000 1")
    assert identity(Policy.layers(uid=7, gid=8), DEBIAN) == Identity(7, 8, "7 1000 1", "8 1000 1")
    assert identity(Policy.layers(Devpts("/p"), uid=7, gid=8), DEBIAN).uid_map == "0 1000 1"


def test_full_ids() -> None:
    """All of the caller's ids, as they are; maps of that kind are written from outside."""
    assert identity(workspace(ids="full"), CONTAINER_ROOT) == Identity(
        0, 0, "0 0 65536\n", "0 0 65536\n", deny_setgroups=False, by_helper=True, change_ids=False
    )
    two = replace(ROOT, uid_ranges=((0, 0, 10), (100, 100, 5)))
    assert identity(Policy.host(ids="full", uid=3), two) == Identity(
        3,
        0,
        "0 0 10\n100 100 5\n",
        "0 0 4294967295\n",
        deny_setgroups=False,
        by_helper=True,
        change_ids=True,
    )


def test_auto_ids() -> None:
    """'auto' is full where the caller may, and single where it may not."""
    assert identity(workspace(ids="auto"), ROOT) == identity(workspace(ids="full"), ROOT)
    assert identity(workspace(ids="auto"), DEBIAN) == identity(workspace(), DEBIAN)


def test_full_ids_unprivileged() -> None:
    """ids='full' without the capabilities is an error that says what to do, never silently less."""
    with pytest.raises(UnavailableError) as caught:
        compile_policy(workspace(ids="full"), DEBIAN)
    assert "CAP_SETUID" in caught.value.reasons[0].what
    assert "subuid" in caught.value.reasons[0].remedy
    for lacking in ({"subuids": ()}, {"subgids": ()}, {"map_programs": None}):
        with pytest.raises(UnavailableError):
            compile_policy(workspace(ids="full"), replace(SUBORDINATE, **lacking))


def test_subordinate_ids() -> None:
    """An ordinary user with subordinate ids gets those, besides the own one, by newuidmap and newgidmap."""
    who = identity(workspace(ids="full"), SUBORDINATE)
    assert who.uid_map == who.gid_map == "0 100000 1000\n1000 1000 1\n1001 101000 64536\n"
    assert (who.uid, who.gid, who.by_helper, who.change_ids) == (1000, 1000, True, False)
    assert who.map_programs == SUBORDINATE.map_programs
    assert identity(workspace(ids="full", uid=0), SUBORDINATE).change_ids
    assert identity(workspace(ids="full"), ROOT).map_programs is None
    assert identity(workspace(ids="auto"), SUBORDINATE) == identity(workspace(), DEBIAN)
    with pytest.raises(UnavailableError, match="uid=65537"):
        identity(workspace(ids="full", uid=65537), SUBORDINATE)


subordinates = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), min_size=1, max_size=4).map(
    lambda rows: tuple((10_000 * (i + 1) + gap, count) for i, (count, gap) in enumerate(rows))
)


@calm
@given(st.integers(0, 120), subordinates)
def test_subordinate_maps(own: int, ranges: tuple[tuple[int, int], ...]) -> None:
    """Whatever the ranges: each subordinate id and the own one is mapped once, the own to itself, without gaps below."""
    host = replace(SUBORDINATE, euid=own, subuids=ranges)
    rows = [tuple(map(int, line.split())) for line in identity(workspace(ids="full"), host).uid_map.splitlines()]
    pairs = [(inside + i, outside + i) for inside, outside, count in rows for i in range(count)]
    assert all(count > 0 for *_, count in rows)
    assert sorted(outside for _, outside in pairs) == sorted([own, *(a + i for a, n in ranges for i in range(n))])
    insides = sorted(inside for inside, _ in pairs)
    assert insides == (list(range(len(pairs))) if own < len(pairs) else [*range(len(pairs) - 1), own])
    assert dict(pairs)[own] == own


@pytest.mark.parametrize("wish", [{"uid": 65536}, {"gid": 4294967294}])
def test_ids_that_the_host_lacks(wish: dict[str, int]) -> None:
    """With full ids, one outside of the caller's own ranges is known to be impossible before any spawn."""
    with pytest.raises(UnavailableError, match=next(iter(wish))):
        compile_policy(workspace(ids="full", **wish), CONTAINER_ROOT)


# ---- limits


def test_limits_are_within_the_hard_ones() -> None:
    """A limit above the host's hard limit becomes that, and what is said to be enforced is what is."""
    plan = compile_policy(workspace(limits=Limits(open_files=10**6, processes=64, memory="1G")), LIMITED)
    assert set(plan.rlimits) == {Rlimit("NOFILE", 4096, 4096), Rlimit("NPROC", 64, 64), Rlimit("AS", 1 << 30, 1 << 30)}
    said = " / ".join(plan.enforced)
    assert "RLIMIT_NOFILE 4096" in said
    assert "1000000" not in said


def test_cpu_seconds_warn_first() -> None:
    """At the limit comes SIGXCPU, which says why; who ignores it is killed a second later, within the hard limit."""
    policy = workspace(limits=Limits(cpu_seconds=30))
    assert compile_policy(policy, DEBIAN).rlimits == (Rlimit("CPU", 30, 31),)
    for hard, expected in ((30, (30, 30)), (31, (30, 31)), (10, (10, 10))):
        assert compile_policy(policy, replace(DEBIAN, hard_limits=(("CPU", hard),))).rlimits == (Rlimit("CPU", *expected),)


def test_processes_of_uid_0() -> None:
    """RLIMIT_NPROC doesn't hold for the kernel's uid 0: to promise it would be a lie."""
    policy = workspace(limits=Limits(processes=5))
    with pytest.raises(UnavailableError, match=r"limits\.processes"):
        compile_policy(policy, ROOT)
    assert compile_policy(policy, CONTAINER_ROOT).rlimits  # another uid of the machine: it holds


def test_processes_before_5_14() -> None:
    """Before Linux 5.14 the count is the whole user's: also an error."""
    policy = workspace(limits=Limits(processes=5))
    with pytest.raises(UnavailableError, match=r"5\.14"):
        compile_policy(policy, replace(DEBIAN, kernel=(5, 13)))
    assert compile_policy(policy, replace(DEBIAN, kernel=(5, 14))).rlimits


@pytest.mark.parametrize(
    ("euid", "ranges", "is_root"),
    [
        (0, ((0, 0, 4294967295),), True),
        (1000, ((0, 0, 4294967295),), False),
        (0, ((0, 100000, 65536),), False),
        (5, ((5, 0, 1),), True),
        (1000, ((0, 100000, 1000), (1000, 0, 1)), True),
        (0, (), False),
    ],
)
def test_kernel_root(euid: int, ranges: tuple[tuple[int, int, int], ...], is_root: bool) -> None:
    """The kernel's uid 0 is recognized by the map of the caller's own user namespace, not by its number there."""
    assert replace(DEBIAN, euid=euid, uid_ranges=ranges).is_kernel_root is is_root


# ---- namespaces, layers, host


def test_namespaces() -> None:
    """The plan unshares what the policy says, and net exactly when the network is off."""
    assert compile_policy(workspace(), DEBIAN).namespaces == {"user", "mount", "pid", "ipc", "uts", "cgroup", "net"}
    assert compile_policy(workspace(network="host"), DEBIAN).namespaces == {"user", "mount", "pid", "ipc", "uts", "cgroup"}
    assert compile_policy(Policy.host(), DEBIAN).namespaces == {"user", "mount", "pid"}
    assert compile_policy(Policy.layers(unshare={"net", "time"}), DEBIAN).namespaces == {"user", "mount", "pid", "net", "time"}


def test_loopback_once() -> None:
    """An own network has its loopback up, once, also if the layers say so themselves."""
    for ops in ((), (Loopback(),)):
        plan = compile_policy(Policy.layers(Tmpfs("/t"), *ops, unshare={"net"}), DEBIAN)
        assert plan.ops.count(Loopback()) == 1
    assert Loopback() not in compile_policy(Policy.layers(Tmpfs("/t")), DEBIAN).ops


def test_layers_are_kept() -> None:
    """Layers are carried out as given: in that order, nothing put between or taken away."""
    ops = (Tmpfs("/b"), RoBind("/x", "/a"), Tmpfs("/a"), Bind("/y", "/b/c"), RemountRo("/"), Mask("/a"))
    assert compile_policy(Policy.layers(*ops), ROOT).ops == ops
    assert compile_policy(Policy.layers(*ops, network="none"), ROOT).ops == (*ops, Loopback())


def test_settings_of_the_kernel_are_covered_for_root() -> None:
    """Where the caller is the machine's uid 0, its plain file permissions would reach /proc/sys: read-only, in each base."""
    for policy in (workspace(), Policy.host(), Policy.layers(Proc("/p"))):
        procs = [op for op in compile_policy(policy, ROOT).ops if isinstance(op, Proc)]
        assert [op.cover for op in procs] == [True]
        assert [op.cover for op in compile_policy(policy, DEBIAN).ops if isinstance(op, Proc)] == [False]


def test_below_a_linked_directory() -> None:
    """A bind below /bin, where that is a link to usr/bin, would be elsewhere: refused by the field that wishes it."""
    for name, policy in (("read", workspace(read=["/bin/x"])), ("write", workspace(write=["/bin/x"]))):
        with pytest.raises(PolicyError, match="/bin") as caught:
            compile_policy(policy, DEBIAN)
        assert caught.value.field == name
        compile_policy(policy, OLD_LAYOUT)


def test_deny_below_a_linked_directory() -> None:
    """What is denied below /bin is hidden in /usr/bin, where the link leads."""
    model = Model(compile_policy(workspace(deny=["/bin/x"]), DEBIAN).ops)
    assert model.kind("/bin/x") == model.kind("/usr/bin/x") == "own"
    assert model.kind("/usr/bin/y") == "ro"


def test_settings_are_covered_where_uid_0_can_be_wished() -> None:
    """A caller that may map all ids can wish for the machine's uid 0: the same care as if it were that itself."""
    mapper = replace(DEBIAN, can_set_ids=True)
    for policy in (workspace(ids="full", uid=0), workspace(ids="auto", uid=0), workspace(ids="full")):
        ops = compile_policy(policy, mapper).ops
        assert Proc("/proc", cover=True) in ops
        assert Mask("/proc/kcore", optional=True) in ops
    assert Proc("/proc", cover=True) not in compile_policy(workspace(uid=0), mapper).ops  # kernel uid 1000


def test_a_named_secret_is_shown() -> None:
    """A secret that the policy names itself is what the policy says, and the others stay hidden."""
    model = Model(compile_policy(workspace(read=["/etc/ssl/private"], write=["/etc/shadow"]), ROOT).ops)
    assert model.kind("/etc/ssl/private/x") == "ro"
    assert model.kind("/etc/shadow") == "rw"
    assert model.kind("/etc/gshadow") == "own"


def test_naming_one_secret_uncovers_no_other() -> None:
    """One file of a hidden directory doesn't bring its siblings to light."""
    try:
        ops = compile_policy(workspace(read=["/etc/ssl/private/mine.key"]), ROOT).ops
    except PolicyError as error:
        assert error.field == "read"
    else:
        assert Model(ops).kind("/etc/ssl/private/other.key") == "own"


def test_what_is_said() -> None:
    """What isn't enforced is said: the network, the terminal and the files of a policy that leaves them open."""
    said = {name: " / ".join(compile_policy(policy, DEBIAN).not_enforced) for name, (policy, _) in SNAPSHOTS.items() if name in ("host", "workspace", "network")}
    assert "network" in said["host"] and "terminal" in said["host"] and "files" in said["host"]  # noqa: PT018
    assert "network" in said["network"]
    assert not any(word in said["workspace"] for word in ("network", "terminal", "files"))


# ---- a model of how a plan is carried out


def below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class Model:
    """Carries a plan out on paper, on a host where everything exists, and then says what is to be seen at a path.

    A mount covers what is at and below its place; destinations are looked up through the links made so far; a mask of
    something that isn't there does nothing. Fails where the executor would: a link made in a directory of the host.
    """

    OWN = (Tmpfs, Dev, Proc)

    def __init__(self, ops: Iterable[Op]) -> None:
        self.done: list[tuple[str, Op]] = [("/", Tmpfs("/"))]
        for op in ops:
            self.apply(op)

    def apply(self, op: Op) -> None:
        assert not isinstance(self.done[-1][1], RemountRo), "nothing comes after the root is read-only"
        if isinstance(op, Loopback | Hostname):
            return
        dest: str = op.dest  # type: ignore[attr-defined]
        if isinstance(op, Symlink):
            parent, name = dest.rsplit("/", 1)
            dest = f"{self.resolve(parent or '/').rstrip('/')}/{name}"
            there = self.at(dest)
            assert isinstance(there, Tmpfs) or dest != there.dest, f"{op} on {there}"  # type: ignore[attr-defined]
            assert isinstance(there, self.OWN) or self.is_host_link(dest), f"{op.describe()} changes the host"
        else:
            dest = self.resolve(dest)
        if isinstance(op, Mask) and not self.exists(dest):
            assert op.optional, op
            return
        if isinstance(op, Bind | RoBind):
            assert op.src == op.dest, op
        self.done.append((dest, op))

    @staticmethod
    def is_host_link(path: str) -> bool:
        return path in {name for name, target in MERGED if target}

    def at(self, path: str) -> Op:
        """Return the op that decides about a resolved path: the last whose place contains it."""
        return next(op for dest, op in reversed(self.done) if below(path, dest) and not isinstance(op, RemountRo))

    def exists(self, path: str) -> bool:
        return not isinstance(self.at(path), self.OWN) or any(below(dest, path) for dest, _ in self.done)

    def resolve(self, path: str, links: int = 0) -> str:
        assert links < 10
        seen = ""
        parts = path.strip("/").split("/") if path != "/" else []
        for i, part in enumerate(parts):
            seen += f"/{part}"
            there = self.at(seen)
            if isinstance(there, Symlink):
                target = there.target if there.target.startswith("/") else f"{seen.rsplit('/', 1)[0]}/{there.target}"
                return self.resolve("/".join([target, *parts[i + 1 :]]), links + 1)
        return seen or "/"

    def kind(self, path: str) -> str:
        """Say what a command finds: the host's file to read ("ro") or write ("rw"), or nothing of the host's ("own")."""
        op = self.at(self.resolve(path))
        if isinstance(op, Bind | RoBind):
            return "rw" if isinstance(op, Bind) else "ro"
        assert isinstance(op, (*self.OWN, Mask)), op
        return "own"


def wanted(policy: Policy, host: Host, path: str) -> str:
    """Say what a command must find at a path: the longest wish that contains it decides, deny over write over read.

    Of what the user didn't name, /proc, /dev and /tmp are the sandbox's own, system directories and the interpreter are
    readable (the latter stays writable in the workspace, and hidden in what is denied), secrets are hidden.
    """
    rules: dict[str, str] = {"/": "own", "/proc": "own", "/dev": "own", "/tmp": "own"}
    if not any(below("/var/tmp", named) for named in (*policy.write, *policy.read)):
        rules["/var/tmp"] = "own"
    rules |= {name: "ro" for name, target in host.directories if target is None}
    rules |= dict.fromkeys(policy.read, "ro") | dict.fromkeys(policy.write, "rw") | dict.fromkeys(policy.deny, "own")
    automatic = [(path, "rw") for path in host.prefixes]  # with the wish that lets them be
    if host.resolv_conf and policy.network == "host":
        automatic.append((host.resolv_conf, ""))
    for path_of_ours, stays in automatic:
        above = [(p, kind) for p, kind in rules.items() if below(path_of_ours, p) and p in (*policy.write, *policy.read)]
        closest = max(above, default=("", "ro"), key=lambda rule: len(rule[0]))[1]
        if closest != stays and not any(below(path_of_ours, denied) for denied in policy.deny):
            rules.setdefault(path_of_ours, "ro")
    rules |= dict.fromkeys(host.secrets, "own")
    return max(((p, kind) for p, kind in rules.items() if below(path, p)), key=lambda rule: len(rule[0]))[1]


# ---- properties

user_paths = st.builds(
    lambda top, parts: "/".join([top, *parts]),
    st.sampled_from(["/home", "/opt", "/tmp", "/var", "/var/tmp", "/usr/local", "/srv", "/run"]),
    st.lists(st.sampled_from(["a", "b"]), max_size=2),
)
deep_paths = user_paths.filter(lambda path: path.count("/") > 1 and not path.startswith("/var/tmp"))
hosts = st.builds(
    Host,
    kernel=st.just((6, 1)),
    euid=st.sampled_from([0, 1000]),
    can_set_ids=st.booleans(),
    directories=st.sampled_from([MERGED, OLD_LAYOUT.directories, NIX.directories, ()]),
    prefixes=st.lists(deep_paths, max_size=2, unique=True).map(tuple),
    secrets=st.sampled_from([(), ROOT.secrets]),
    resolv_conf=st.none() | st.sampled_from(["/run/a/resolv.conf", "/run/resolv.conf", "/var/a/b/resolv.conf"]),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Return a workspace policy in which no wish hides another."""
    kinds = draw(st.dictionaries(user_paths, st.sampled_from(["write", "read", "deny"]), min_size=1, max_size=6))
    if draw(st.integers(0, 9)) == 0:
        kinds["/"] = "read"
    kinds[draw(user_paths)] = "write"
    shown = [path for path, kind in kinds.items() if kind != "deny"]
    chosen: dict[str, list[str]] = {"write": [], "read": [], "deny": []}
    for path, kind in kinds.items():
        if kind != "deny" or not any(below(p, path) for p in shown):
            chosen[kind].append(path)
    return Policy(base="workspace", network=draw(st.sampled_from(["none", "host"])), **chosen)  # type: ignore[arg-type]


def places(policy: Policy, host: Host) -> set[str]:
    """Return the paths where something could go wrong: all that are named anywhere, and what is beside and below them."""
    named = {*policy.write, *policy.read, *policy.deny, *host.prefixes, *host.secrets, "/home", "/root", "/run", "/tmp", "/mnt"}
    named |= {path for path, target in host.directories if target is None} | ({host.resolv_conf} if host.resolv_conf else set())
    paths = {beside for path in named for beside in (path, f"{path}/x", f"{path}/../2")}
    paths = {os.path.normpath(path) for path in paths}
    paths |= {"/" + "/".join(path.strip("/").split("/")[:n]) for path in named for n in (1, 2)}
    # What /var/tmp is when nobody names it, or something below it, is no promise; nor are links of the host.
    named_there = any(below(p, "/var/tmp") or below("/var/tmp", p) for p in (*policy.write, *policy.read))
    return {p for p in paths if named_there or not below(p, "/var/tmp")}


@settings(calm, max_examples=300)
@given(policies(), hosts)
def test_a_command_finds_what_the_policy_says(policy: Policy, host: Host) -> None:
    """Whatever the wishes and the host: each path shows what the longest wish about it says, and nothing else shows."""
    model = Model(compile_policy(policy, host).ops)
    for path in places(policy, host):
        assert model.kind(path) == wanted(policy, host, path), path


@calm
@given(policies(), hosts)
def test_wished_paths_are_where_they_were(policy: Policy, host: Host) -> None:
    """What is readable or writable is at its own path, not behind a link of the sandbox's."""
    model = Model(compile_policy(policy, host).ops)
    for path in (*policy.write, *policy.read):
        assert model.resolve(path) == path


@calm
@given(policies(), hosts)
def test_order(policy: Policy, host: Host) -> None:
    """Parents come before children, each place is mounted once, masks are last on theirs, and the root closes at the end."""
    plan = compile_policy(policy, host)
    assert plan.ops[-1] == RemountRo("/")
    placed = [(op.dest, op) for op in plan.ops[:-1] if hasattr(op, "dest")]
    assert len({dest for dest, _ in placed}) == len(placed)
    for i, (dest, op) in enumerate(placed):
        for later, _ in placed[i + 1 :]:
            assert later == dest or not below(dest, later), f"{later} covers {op.describe()}"


@calm
@given(policies(), hosts)
def test_each_wish_has_its_op(policy: Policy, host: Host) -> None:
    """Each writable path is bound writable and no other is; each denied one is masked, with nothing of the host's after it."""
    ops = compile_policy(policy, host).ops
    assert {op.dest for op in ops if type(op) is Bind} == set(policy.write)
    assert not any(isinstance(op, DevBind) for op in ops)
    for denied in policy.deny:
        at = ops.index(Mask(denied, optional=True))
        assert not any(below(getattr(op, "dest", ""), denied) for op in ops[at + 1 :] if isinstance(op, Bind | RoBind))
    assert {op.dest for op in ops if isinstance(op, Mask)} >= {*policy.deny, *host.secrets}


@calm
@given(
    policies(),
    hosts,
    st.sampled_from(["single", "full", "auto"]),
    st.none() | st.integers(0, 2**32 - 2),
    st.none() | st.integers(0, 2**32 - 2),
)
def test_one_id_unless_full(policy: Policy, host: Host, ids: str, uid: int | None, gid: int | None) -> None:
    """The maps have exactly one id, the caller's own, unless all are wished for and the caller may map them."""
    try:
        who = compile_policy(policy.with_(ids=ids, uid=uid, gid=gid), host).identity
    except UnavailableError:
        assert ids == "full" and not host.can_set_ids  # noqa: PT018
        return
    assert who.uid == (host.euid if uid is None else uid)
    assert who.gid == (host.egid if gid is None else gid)
    full = ids != "single" and host.can_set_ids
    assert who.by_helper is full
    assert who.deny_setgroups is not full
    if full:
        return
    for wished, own, first, second in (
        (who.uid, host.euid, who.uid_map, who.uid_map2),
        (who.gid, host.egid, who.gid_map, who.gid_map2),
    ):
        inside, outside, count = map(int, first.split())
        assert (outside, count) == (own, 1)
        if second is None:
            assert inside == wished
        else:
            assert list(map(int, second.split())) == [wished, inside, 1]
    assert (who.uid_map2 is None) == (who.gid_map2 is None)


@calm
@given(policies(), hosts)
def test_planning_is_a_function(policy: Policy, host: Host) -> None:
    """The same policy on the same host gives the same plan, whatever order its paths were named in."""
    plan = compile_policy(policy, host)
    assert compile_policy(pickle.loads(pickle.dumps(policy)), pickle.loads(pickle.dumps(host))) == plan
    turned = replace(policy, write=policy.write[::-1], read=policy.read[::-1], deny=policy.deny[::-1])
    assert set(compile_policy(turned, host).ops) == set(plan.ops)
