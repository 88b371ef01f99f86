"""Wishes: every field of Policy and Limits is checked on construction."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_pure import label, refused

from nsbox import Bind, Dev, Host, Hostname, Limits, Loopback, Mqueue, Op, Policy, PolicyError, Proc, RoBind, Tmpfs
from nsbox._core import abi
from nsbox._spawn.prepare import prepare

FIELDS = tuple(f.name for f in dataclasses.fields(Policy) if f.init)
LIMITS = tuple(f.name for f in dataclasses.fields(Limits))
ALWAYS = frozenset({"user", "mount", "pid"})


def workspace(**wishes: Any) -> Policy:
    """Return a workspace policy without asking the file system."""
    return Policy(**({"base": "workspace", "write": ["/w"]} | wishes))


# ---- fields one by one

NO_STRINGS: list[Any] = [None, 5, 1.5, b"/x", ["/x"], object()]
NO_SEQUENCES: list[Any] = ["/x", b"/x", Path("/x"), 5, None, 1.5, object()]
NO_COUNTS: list[Any] = [0, -1, True, False, 1.5, "x", b"1", [], 2**63, 2**64, -(2**63)]
NO_SIZES: list[Any] = ["", "0", "-1", "1.5G", "64MB", "M", "1 2", "0x10", "1e6", "٣K", "9" * 5000, "8388608T"]
NO_IDS: list[Any] = [-1, 2**32 - 1, 2**32, True, "0", 1.0, [0]]
BAD_PATHS: list[Any] = [
    "",
    "relative",
    "./x",
    "/a\0b",
    "/a/../b",
    "/..",
    "/a/..",
    "/" + "x" * 4096,
    "/\ud800",
    5,
    None,
    b"/x",
]

BAD_FIELDS: list[tuple[str, Any]] = [
    *[("base", v) for v in ("", "Workspace", "none", None, 1, [], {})],
    *[("network", v) for v in ("", "full", "Host", True, None, {"none"})],
    *[("ids", v) for v in ("", "root", None, 1, ())],
    *[(name, [v]) for name in ("write", "read", "deny") for v in BAD_PATHS],
    *[(name, v) for name in ("write", "read", "deny", "pass_env", "ops", "unshare") for v in NO_SEQUENCES],
    *[(name, v) for name in ("workdir", "home") for v in BAD_PATHS if v is not None],
    *[("tmp_size", v) for v in (*NO_COUNTS, *NO_SIZES)],
    *[(name, v) for name in ("uid", "gid") for v in NO_IDS],
    *[("hostname", v) for v in ("", "a\0b", "x" * 65, "ä" * 33, "\ud800", 5, b"h", ["h"])],
    *[
        (name, v)
        for name in ("inherit_env", "new_session", "nested", "kill_on_exit")
        for v in (0, 1, None, "yes", "", [])
    ],
    *[("limits", v) for v in (None, {}, {"memory": 1}, 5, "512M", Limits)],
    *[("env", v) for v in ("A=1", 5, None, b"A=1", [("A",)], [("A", "1", "2")], ["A=1"], [["A", "1"]])],
    *[("env", {name: "1"}) for name in ("", "A=B", "=", "A\0", 5, None, b"A", "\ud800")],
    *[("env", {"A": value}) for value in (5, None, b"1", "a\0b", ["x"], "\ud800")],
    *[("pass_env", [name]) for name in ("", "A=B", "A\0", 5, None, b"A", "\ud800")],
    *[("unshare", [name]) for name in ("", "users", "PID", 5, None, "mnt", "net", [], {})],
    *[("ops", [op]) for op in (None, "ro-bind / /", 5, RoBind, ("/", "/"), [], Op())],
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=label)
def test_bad_field(field: str, value: object) -> None:
    """A field with a wrong type or value is refused by its name, by the constructor and by with_() alike."""
    good: dict[str, Any] = {} if field in ("base", "ops") else {"base": "workspace", "write": ["/w"]}
    refused(field, lambda: Policy(**(good | {field: value})))
    if field not in ("write", "read", "deny"):  # with_() resolves those first
        refused(field, lambda: Policy(**good).with_(**{field: value}))


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
@pytest.mark.parametrize("name", LIMITS)
def test_bad_limit(name: str, value: object) -> None:
    """A limit that is no positive number that the kernel can take is refused by its name."""
    may_be_none = dict.fromkeys(("core_size", "locked_memory", "message_queues"), 0)
    if (name, value) in (*may_be_none.items(), ("cpus", 1.5)) and not isinstance(value, bool):
        assert getattr(Limits(**{name: value}), name) == value
        return
    refused(f"limits.{name}", lambda: Limits(**{name: value}))


@pytest.mark.parametrize("value", NO_SIZES, ids=label)
@pytest.mark.parametrize("name", ["memory", "file_size"])
def test_bad_size(name: str, value: str) -> None:
    """A size that isn't digits and at most one of K, M, G, T is refused."""
    refused(f"limits.{name}", lambda: Limits(**{name: value}))


def test_seconds_are_whole() -> None:
    with pytest.raises(PolicyError) as caught:
        Limits(cpu_seconds=1.5)  # type: ignore[arg-type]
    assert str(caught.value) == "limits.cpu_seconds: is 1.5, must be a whole number of seconds"


@pytest.mark.parametrize("name", ["processes", "cpu_seconds", "open_files"])
def test_counts_are_no_sizes(name: str) -> None:
    """What is counted takes no unit: '4K' processes is a mistake."""
    refused(f"limits.{name}", lambda: Limits(**{name: "4K"}))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512K", 512 << 10), ("64M", 64 << 20), ("2G", 2 << 30), ("1T", 1 << 40), (" 3M ", 3 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    """Sizes are in powers of 1024, and equal however they were written."""
    assert Limits(memory=text, file_size=text) == Limits(memory=size, file_size=size)
    assert workspace(tmp_size=text) == workspace(tmp_size=size)
    assert workspace(tmp_size=text).tmp_size == size


def test_the_largest_limit() -> None:
    """The kernel's largest limits are still limits."""
    assert Limits(memory=2**63 - 1).rlimits() == (("AS", 2**63 - 1),)


def test_rlimits() -> None:
    """Limits come out under their RLIMIT names, and only those that are set."""
    assert Limits().rlimits() == ()
    limits = Limits(memory="1K", processes=2, cpu_seconds=3, file_size="4K", open_files=5)
    assert dict(limits.rlimits()) == {"AS": 1024, "NPROC": 2, "CPU": 3, "FSIZE": 4096, "NOFILE": 5}
    assert Limits(processes=7).rlimits() == (("NPROC", 7),)


# ---- unknown names


def test_unknown_wishes(tmp_path: Path) -> None:
    """A misspelled wish is refused by its name, and the error lists those that there are."""
    makers: list[Callable[..., Policy]] = [
        lambda **w: Policy.workspace(tmp_path, **w),
        Policy.host,
        Policy.layers,
        Policy().with_,
    ]
    for make in makers:
        error = refused("netwrok", lambda make=make: make(netwrok="none"))
        assert "network" in error.problem
        assert "_hash" not in error.problem


@pytest.mark.parametrize("name", ["base", "ops", "_hash"])
def test_wishes_of_another_kind(name: str, tmp_path: Path) -> None:
    """The classmethods take no field that would contradict what they are, nor a private one."""
    refused(name, lambda: Policy.workspace(tmp_path, **{name: ()}))
    refused(name, lambda: Policy.host(**{name: ()}))


def test_with_refuses_the_cached_hash() -> None:
    """What isn't a wish can't be changed."""
    refused("_hash", lambda: Policy().with_(_hash=1))


# ---- paths of the classmethods


@pytest.mark.parametrize(
    "bad",
    [5, None, b"/tmp", "", "/a\0b", "/\ud800", "x" * 5000, object()],
    ids=label,
)
def test_bad_paths(bad: Any, tmp_path: Path) -> None:
    """No kind of path argument gives anything but a PolicyError that names it."""
    refused("workspace", lambda: Policy.workspace(bad))
    for name in ("read", "write", "deny"):
        path = f"/{bad}" if bad == "x" * 5000 else bad
        refused(name, lambda name=name, path=path: Policy.workspace(tmp_path, **{name: [path]}))


@pytest.mark.parametrize("bad", ["/tmp", b"/tmp", Path("/tmp"), 5, None], ids=repr)
def test_paths_come_in_sequences(bad: Any, tmp_path: Path) -> None:
    """One path where several are wanted is a mistake, not a sequence of its letters."""
    for name in ("read", "write", "deny"):
        refused(name, lambda name=name: Policy.workspace(tmp_path, **{name: bad}))


def test_missing_paths(tmp_path: Path) -> None:
    """What is to be readable or writable must exist; what is denied need not."""
    missing = tmp_path / "missing"
    assert str(missing) in refused("workspace", lambda: Policy.workspace(missing)).problem
    assert str(missing) in refused("read", lambda: Policy.workspace(tmp_path, read=[missing])).problem
    assert str(missing) in refused("write", lambda: Policy.workspace(tmp_path, write=[missing])).problem
    assert Policy.workspace(tmp_path, deny=[missing]).deny == (os.path.realpath(missing),)


def test_workspace_is_a_directory(tmp_path: Path) -> None:
    """A file is no workspace."""
    (tmp_path / "file").touch()
    refused("workspace", lambda: Policy.workspace(tmp_path / "file"))


@pytest.mark.parametrize("root", ["/", "//", "/.", "/usr/.."])
def test_root_is_no_workspace(root: str) -> None:
    """The whole file system isn't handed out by a workspace, however it is spelled."""
    assert "Policy.host()" in refused("workspace", lambda: Policy.workspace(root)).problem


def test_root_is_not_written() -> None:
    """Nor is it handed out by write=."""
    assert "Policy.host()" in refused("write", lambda: Policy.workspace("/tmp", write=["/"])).problem
    assert "Policy.host()" in refused("write", lambda: workspace(write=["/"])).problem


def test_relative_paths_count_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths mean what they mean to the caller, now."""
    for name in ("repo", "sdk", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    policy = Policy.workspace("repo", read=["sdk"], write=["./out"], deny=["repo/.env", "repo/../repo/key"])
    root = os.path.realpath(tmp_path)
    assert policy.write == (f"{root}/repo", f"{root}/out")
    assert policy.read == (f"{root}/sdk",)
    assert policy.deny == (f"{root}/repo/.env", f"{root}/repo/key")
    assert (policy.workdir, policy.home) == (f"{root}/repo", "private")


def test_symlinks_are_resolved(tmp_path: Path) -> None:
    """A policy holds the paths that programs inside will find."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real = os.path.realpath(tmp_path / "real")
    policy = Policy.workspace(tmp_path / "link")
    assert policy.write == (real,)
    assert policy.workdir == real


def test_deny_resolves_symlinks(tmp_path: Path) -> None:
    """A secret is denied by whichever name: one through a link must not hide nothing."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/.env").write_text("SECRET")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "key").symlink_to("real/.env")
    root = os.path.realpath(tmp_path)
    for named in ("link/.env", "key", "real/.env"):
        policy = Policy.workspace(tmp_path / "link", deny=[tmp_path / named])
        assert f"{root}/real/.env" in policy.deny, named
    missing = Policy.workspace(tmp_path / "link", deny=[tmp_path / "link/new"])
    assert missing.deny == (f"{root}/real/new",)


def test_with_takes_paths_as_workspace_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that are wished for later mean what they would have meant from the start."""
    (tmp_path / "real").mkdir()
    (tmp_path / "sdk").mkdir()
    (tmp_path / "real/.env").write_text("SECRET")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    changes: dict[str, Any] = {"read": ["sdk"], "write": [tmp_path / "link", "."], "deny": ["real/.env", "real/new"]}
    later = Policy.workspace("link").with_(**changes)
    first = Policy.workspace("link", **(changes | {"write": ["."]}))
    assert later == first
    assert f"{os.path.realpath(tmp_path)}/real/.env" in later.deny
    for name in ("read", "write"):
        refused(name, lambda name=name: later.with_(**{name: ["missing"]}))
    for name in ("read", "write", "deny"):
        refused(name, lambda name=name: later.with_(**{name: [5]}))
        refused(name, lambda name=name: later.with_(**{name: "sdk"}))
    assert later == first


def test_a_loop_of_links_cannot_be_denied(tmp_path: Path) -> None:
    """A path that leads nowhere because its links go round can't be hidden, so it isn't accepted."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused("deny", lambda: Policy.workspace(tmp_path, deny=[tmp_path / "a/key"]))
    refused("read", lambda: Policy.workspace(tmp_path, read=[tmp_path / "a"]))


@pytest.mark.skipif(bool(abi.problem), reason="preparing encodes, with the C core's constants")
@pytest.mark.parametrize("name", ["write", "read", "deny"])
def test_links_are_refused_before_a_spawn(name: str, tmp_path: Path) -> None:
    """A policy built by hand with a path through a link is refused: what would be bound or hidden is something else."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/.env").write_text("SECRET")
    (tmp_path / "link").symlink_to("real")
    root = os.path.realpath(tmp_path)
    good: dict[str, Any] = {"base": "workspace", "write": (f"{root}/real",)}
    bad = good | {name: (*good.get(name, ()), f"{root}/link/.env")}
    prepare(Policy(**good), Host())
    refused(name, lambda: prepare(Policy(**bad), Host()))


def test_a_dangling_link_can_be_denied(tmp_path: Path) -> None:
    """A link that leads nowhere is fine to deny: where it leads is hidden. In a writable place it would hide nothing."""
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "ws").mkdir()
    policy = Policy.workspace(tmp_path / "ws", deny=[tmp_path / "dangling"])
    assert policy.deny == (f"{os.path.realpath(tmp_path)}/nowhere",)
    (tmp_path / "ws/.env").symlink_to("nowhere")
    refused("deny", lambda: Policy.workspace(tmp_path / "ws", deny=[tmp_path / "ws/.env"]))


def test_paths_are_normal() -> None:
    """Doubled slashes, dots and doubles don't make another policy."""
    assert workspace(write=["/w//", "/w/./", "/w"], read=["//r"]) == workspace(write=["/w"], read=["/r"])
    assert workspace(workdir="/w/./x//").workdir == "/w/x"


# ---- contradictions

LAYERS_ONLY = (Bind("/a", "/a"),)

CONTRADICTIONS: list[tuple[str, Callable[[], object]]] = [
    ("deny", lambda: workspace(deny=["/w"])),
    ("deny", lambda: workspace(deny=["/"])),
    ("deny", lambda: workspace(write=["/a/b/c"], deny=["/a/b"])),
    ("deny", lambda: workspace(read=["/r/x"], deny=["/r"])),
    ("deny", lambda: workspace(workdir="/r", read=["/r"], deny=["/r"])),
    ("read", lambda: workspace(read=["/w"])),
    ("read", lambda: workspace(write=["/w", "/x"], read=["/x/"])),
    ("write", lambda: workspace(write=["/"])),
    ("write", lambda: workspace(write=["/w", "/proc"])),
    ("write", lambda: workspace(write=["/w", "/dev/shm"])),
    ("read", lambda: workspace(read=["/proc/1"])),
    ("read", lambda: workspace(read=["/dev"])),
    ("deny", lambda: workspace(deny=["/dev/null"])),
    ("deny", lambda: workspace(deny=["/proc/self"])),
    ("ops", lambda: workspace(ops=LAYERS_ONLY)),
    ("ops", lambda: Policy(base="host", ops=LAYERS_ONLY)),
    ("write", lambda: Policy.host().with_(write=["/w"])),
    ("read", lambda: Policy.host().with_(read=["/w"])),
    ("deny", lambda: Policy.host().with_(deny=["/w"])),
    ("deny", lambda: Policy.layers(*LAYERS_ONLY).with_(deny=["/w"])),
    ("tmp_size", lambda: Policy.host(tmp_size="1M")),
    ("tmp_size", lambda: Policy.layers(*LAYERS_ONLY, tmp_size="1M")),
    ("ops", lambda: Policy.layers(*(Proc(f"/proc{n}") for n in range(9)))),
    ("ops", lambda: Policy.layers(Hostname("box"))),
    ("ops", lambda: Policy.layers(Mqueue("/dev/mqueue"))),
    ("ops", lambda: Policy.layers(Loopback())),
    ("hostname", lambda: Policy.layers(hostname="box")),
    ("hostname", lambda: Policy.host(hostname="box")),
    ("hostname", lambda: workspace(hostname="box", unshare={"ipc"})),
    ("unshare", lambda: workspace(unshare={"net", "uts"})),
    ("unshare", lambda: Policy.host(unshare={"net"})),
    ("network", lambda: Policy.layers(unshare={"net"}, network="host")),
]


@pytest.mark.parametrize(("field", "make"), CONTRADICTIONS, ids=[f"{i}-{f}" for i, (f, _) in enumerate(CONTRADICTIONS)])
def test_contradiction(field: str, make: Callable[[], object]) -> None:
    """Wishes that can't hold together are refused, by the name of one of them."""
    refused(field, make)


def test_net_is_said_in_one_way() -> None:
    """The error for net in unshare says how it is spelled."""
    assert "network='none'" in refused("unshare", lambda: workspace(unshare={"net"})).problem


def test_what_is_no_contradiction() -> None:
    """Nested paths of different kinds make sense together: the longest decides."""
    policy = workspace(write=["/w", "/r/out"], read=["/r", "/w/vendor"], deny=["/w/.env", "/r/out/key"])
    assert policy.read == ("/r", "/w/vendor")
    assert workspace(read=["/"]).read == ("/",)
    assert workspace(write=["/process"], read=["/devel"], deny=["/dev2"]).deny == ("/dev2",)  # no parts of /proc, /dev
    assert workspace(deny=["/w2"]).write == ("/w",)


# ---- what the classmethods wish by default


def test_workspace_defaults(tmp_path: Path) -> None:
    """A workspace has no network, one id, all namespaces, a session of its own and a built environment."""
    policy = Policy.workspace(tmp_path)
    assert policy.base == "workspace"
    assert policy.network == "none"
    assert policy.ids == "single"
    assert policy.unshare == ALWAYS | {"ipc", "uts", "cgroup"}
    assert policy.new_session
    assert not policy.inherit_env
    assert policy.limits == Limits()
    assert (policy.read, policy.deny, policy.ops) == ((), (), ())


def test_host_defaults() -> None:
    """The host policy contains least: only what every sandbox does."""
    policy = Policy.host()
    assert policy.unshare == ALWAYS
    assert policy.network == "host"
    assert policy.ids == "auto"
    assert policy.inherit_env
    assert not policy.new_session
    assert Policy.host(network="none", inherit_env=False, new_session=True) != policy


def test_layers_namespaces() -> None:
    """Layers unshare what is said, user, mount and pid always; net by unshare or by network alike."""
    assert Policy.layers().unshare == ALWAYS
    assert Policy.layers().network == "host"
    assert Policy.layers(unshare={"ipc", "pid"}).unshare == ALWAYS | {"ipc"}
    assert Policy.layers(unshare=["net"]) == Policy.layers(network="none")
    assert Policy.layers(unshare=["time"]).unshare == ALWAYS | {"time"}
    ops = (RoBind("/", "/"), Dev("/dev"), Proc("/proc"), Tmpfs("/tmp"))
    assert Policy.layers(*ops).ops == ops


def test_unshare_takes_any_sequence() -> None:
    """The same namespaces in another container are the same wish, and what every sandbox has is always there."""
    policies = [workspace(unshare=names) for names in ({"uts"}, ["uts", "pid"], ("user", "uts"), iter(["uts", "uts"]))]
    assert len(set(policies)) == 1
    assert policies[0].unshare == ALWAYS | {"uts"}


def test_what_only_its_class_is_iterable_by() -> None:
    """A member of an Enum is no sequence, though the Enum can be gone through."""

    class Word(enum.Enum):
        READ = "/usr"

    for name in ("write", "read", "deny", "degrade", "pass_env"):
        with pytest.raises(PolicyError, match="must be a sequence"):
            Policy(**{name: Word.READ})
