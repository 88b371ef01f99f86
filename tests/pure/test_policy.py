"""Wishes: every field of Policy and Limits is checked on construction, and the values are values."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsbox
from nsbox import (
    Bind,
    Dev,
    Hostname,
    Limits,
    Loopback,
    Mask,
    Mqueue,
    Op,
    Policy,
    PolicyError,
    Proc,
    RoBind,
    Symlink,
    Tmpfs,
)

calm = settings(deadline=None)  # no test here depends on time

FIELDS = tuple(f.name for f in dataclasses.fields(Policy) if f.init)
LIMITS = tuple(f.name for f in dataclasses.fields(Limits))
ALWAYS = frozenset({"user", "mount", "pid"})


def refused(field: str, make: Callable[[], object]) -> PolicyError:
    """Return the PolicyError that make() must raise, which must name exactly this field."""
    with pytest.raises(PolicyError) as caught:
        make()
    error = caught.value
    assert error.field == field, str(error)
    assert error.problem
    assert str(error) == f"{field}: {error.problem}"
    return error


def workspace(**wishes: Any) -> Policy:
    """Return a workspace policy without asking the file system."""
    return Policy(**({"base": "workspace", "write": ["/w"]} | wishes))


# ---- fields one by one

NO_STRINGS: list[Any] = [None, 5, 1.5, b"/x", ["/x"], object()]
NO_SEQUENCES: list[Any] = ["/x", b"/x", Path("/x"), 5, None, 1.5, object()]
NO_COUNTS: list[Any] = [0, -1, True, False, 1.5, "x", b"1", [], 2**63, 2**64, -(2**63)]
NO_SIZES: list[Any] = ["", "0", "-1", "1.5G", "64MB", "M", "1 2", "0x10", "1e6", "٣K", "9" * 5000, "8388608T"]  # noqa: RUF001
NO_IDS: list[Any] = [-1, 2**32 - 1, 2**32, True, "0", 1.0, [0]]
BAD_PATHS: list[Any] = ["", "relative", "./x", "/a\0b", "/a/../b", "/..", "/a/..", "/" + "x" * 4096, "/\ud800", 5, None, b"/x"]

BAD_FIELDS: list[tuple[str, Any]] = [
    *[("base", v) for v in ("", "Workspace", "none", None, 1, [], {})],
    *[("network", v) for v in ("", "full", "Host", True, None, [], {"none"})],
    *[("ids", v) for v in ("", "root", None, 1, ())],
    *[(name, [v]) for name in ("write", "read", "deny") for v in BAD_PATHS],
    *[(name, v) for name in ("write", "read", "deny", "pass_env", "ops", "unshare") for v in NO_SEQUENCES],
    *[(name, v) for name in ("workdir", "home") for v in BAD_PATHS if v is not None],
    *[("tmp_size", v) for v in (*NO_COUNTS, *NO_SIZES)],
    *[(name, v) for name in ("uid", "gid") for v in NO_IDS],
    *[("hostname", v) for v in ("", "a\0b", "x" * 65, "ä" * 33, "\ud800", 5, b"h", ["h"])],
    *[(name, v) for name in ("inherit_env", "new_session", "nested") for v in (0, 1, None, "yes", "", [])],
    *[("limits", v) for v in (None, {}, {"memory": 1}, 5, "512M", Limits)],
    *[("env", v) for v in ("A=1", 5, None, b"A=1", [("A",)], [("A", "1", "2")], ["A=1"], [["A", "1"]])],
    *[("env", {name: "1"}) for name in ("", "A=B", "=", "A\0", 5, None, b"A", "\ud800")],
    *[("env", {"A": value}) for value in (5, None, b"1", "a\0b", ["x"], "\ud800")],
    *[("pass_env", [name]) for name in ("", "A=B", "A\0", 5, None, b"A", "\ud800")],
    *[("unshare", [name]) for name in ("", "users", "PID", 5, None, "mnt", "net", [], {})],
    *[("ops", [op]) for op in (None, "ro-bind / /", 5, RoBind, ("/", "/"), [], Op())],
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda v: repr(v)[:30].encode("ascii", "backslashreplace").decode())
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
    refused(f"limits.{name}", lambda: Limits(**{name: value}))


@pytest.mark.parametrize("value", NO_SIZES, ids=lambda v: repr(v)[:12].encode("ascii", "backslashreplace").decode())
@pytest.mark.parametrize("name", ["memory", "file_size"])
def test_bad_size(name: str, value: str) -> None:
    """A size that isn't digits and at most one of K, M, G, T is refused."""
    refused(f"limits.{name}", lambda: Limits(**{name: value}))


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


@pytest.mark.parametrize("bad", [5, None, b"/tmp", "", "/a\0b", "/\ud800", "x" * 5000, object()], ids=lambda v: repr(v)[:12].encode("ascii", "replace").decode())
def test_bad_paths(bad: Any, tmp_path: Path) -> None:
    """No kind of path argument gives anything but a PolicyError that names it."""
    refused("workspace", lambda: Policy.workspace(bad))
    for name in ("read", "write", "deny"):
        if bad == "x" * 5000 and name == "deny":
            bad = "/" + bad
        refused(name, lambda name=name: Policy.workspace(tmp_path, **{name: [bad]}))


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
    assert policy.workdir == policy.home == f"{root}/repo"


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
    (tmp_path / "real/key").symlink_to(".env")
    root = os.path.realpath(tmp_path)
    for named in ("link/.env", "real/key", "link/key", "real/.env"):
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
    changes: dict[str, Any] = {"read": ["sdk"], "write": [tmp_path / "link", "."], "deny": ["link/.env", "link/new"]}
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


def test_a_dangling_link_can_be_denied(tmp_path: Path) -> None:
    """The name of a link that leads nowhere, and where it leads, are both fine to deny."""
    (tmp_path / "dangling").symlink_to("nowhere")
    policy = Policy.workspace(tmp_path, deny=[tmp_path / "dangling"])
    assert f"{os.path.realpath(tmp_path)}/nowhere" in policy.deny


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
    ("deny", lambda: workspace(read=["/r"], deny=["/r"])),
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
    ("ops", lambda: Policy.layers(Proc("/proc"), Proc("/p"))),
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
    """The host policy contains least, but for what every sandbox has."""
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


# ---- values


def some_policies() -> list[Policy]:
    """Return policies that use each field, each made anew."""
    return [
        Policy(),
        workspace(),
        Policy.host(uid=0, gid=5, env={"A": "1"}, pass_env=["B"]),
        Policy.layers(Symlink("x", "/y"), Mask("/z", optional=True), unshare={"uts", "net"}, hostname="box", ids="full"),
        workspace(
            write=["/w", "/x"],
            read=["/r"],
            deny=["/w/.env"],
            workdir="/x",
            home="/w",
            network="host",
            tmp_size="64M",
            limits=Limits(memory="512M", processes=64, cpu_seconds=30, file_size="1G", open_files=256),
            env={"CI": "1"},
            pass_env=["LANG"],
            inherit_env=True,
            new_session=False,
            nested=True,
        ),
    ]


def test_equal_when_made_alike() -> None:
    """Policies made alike are equal and hash alike; policies that differ in a wish aren't equal."""
    for one, other in zip(some_policies(), some_policies(), strict=True):
        assert one is not other
        assert one == other
        assert hash(one) == hash(other)
    assert len(set(some_policies() + some_policies())) == len(some_policies())


def test_limits_are_values() -> None:
    """Limits made alike are equal, hash alike, can be pickled, and don't change."""
    one, other = Limits(memory="1M", processes=3), Limits(processes=3, memory=1 << 20)
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.memory = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(5)  # type: ignore[misc]
    with pytest.raises(TypeError):
        Limits(memroy=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", FIELDS)
def test_frozen(name: str) -> None:
    """No wish can be changed or removed in place."""
    policy = workspace()
    before = (policy, hash(policy))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, name, "x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(policy, name)
    assert (policy, hash(policy)) == before


def test_the_callers_containers_stay_the_callers() -> None:
    """What was given in a list or dict is copied: changing it later changes no policy."""
    write, env, ops = ["/w"], {"A": "1"}, [Tmpfs("/t")]
    policy, layers = Policy(base="workspace", write=write, env=env), Policy(ops=ops)  # type: ignore[arg-type]
    write.append("/etc")
    env["B"] = "2"
    ops.append(Tmpfs("/u"))
    assert policy.write == ("/w",)
    assert policy.env == (("A", "1"),)
    assert layers.ops == (Tmpfs("/t"),)


def test_copies() -> None:
    """copy and deepcopy give an equal policy."""
    for policy in some_policies():
        assert copy.copy(policy) == policy == copy.deepcopy(policy)


def test_pickled_to_another_process(tmp_path: Path) -> None:
    """A policy unpickled where strings hash otherwise is equal to, and hashes like, one made there."""
    code = (
        "import pickle, sys, nsbox\n"
        "given = pickle.load(sys.stdin.buffer)\n"
        "made = [p.with_() for p in given]\n"
        "assert given == made and [hash(p) for p in given] == [hash(p) for p in made]\n"
        "assert len({*given, *made}) == len(given)\n"
        "print(hash('seed'), hash(given[1]))\n"
        "sys.stdout.flush()\n"
        "sys.stdout.buffer.write(pickle.dumps(given))\n"
    )
    policies = some_policies()
    seen = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            input=pickle.dumps(policies),
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.returncode == 0, done.stderr.decode()
        line, _, back = done.stdout.partition(b"\n")
        assert pickle.loads(back) == policies
        assert list(map(hash, pickle.loads(back))) == list(map(hash, policies))
        seen.add(line.split()[0])
    assert len(seen) == 2  # the seeds did differ


def test_with_leaves_the_original() -> None:
    """with_() returns a changed copy, checked as the constructor checks, and the original stays."""
    policy = workspace()
    changed = policy.with_(network="host", env={"A": "1"}, limits=Limits(processes=5))
    assert policy == workspace()
    assert changed == workspace(network="host", env={"A": "1"}, limits=Limits(processes=5))
    assert hash(changed) == hash(workspace(network="host", env={"A": "1"}, limits=Limits(processes=5)))
    assert policy.with_() == policy
    refused("deny", lambda: policy.with_(deny=["/w"]))
    assert policy == workspace()


def test_with_takes_path_objects() -> None:
    """Where a path may be a pathlib.Path on making a policy, it may be one on changing it."""
    assert workspace().with_(read=[Path("/usr")], workdir=Path("/w")) == workspace(read=["/usr"], workdir="/w")


def test_repr_rebuilds() -> None:
    """repr() is Python that makes the policy again."""
    for policy in some_policies():
        assert eval(repr(policy), vars(nsbox) | {"frozenset": frozenset}) == policy


# ---- environment

CALLER = {"PATH": "/evil", "HOME": "/root", "USER": "me", "LANG": "C", "TERM": "vt100", "AWS_SECRET": "s", "TMPDIR": "/x"}


def test_built_environment() -> None:
    """A workspace's environment is built: nothing of the caller's but USER, LANG, TERM and what is passed by name."""
    built = {"PATH": "/bin", "HOME": "/w", "TMPDIR": "/tmp"}
    policy = workspace(home="/w")
    assert policy.environment({}, "/bin") == built
    assert policy.environment(CALLER, "/bin") == built | {"USER": "me", "LANG": "C", "TERM": "vt100"}
    passing = policy.with_(pass_env=["AWS_SECRET", "MISSING"])
    assert passing.environment(CALLER, "/bin")["AWS_SECRET"] == "s"
    assert "MISSING" not in passing.environment(CALLER, "/bin")
    assert workspace().environment({}, "/bin")["HOME"] == "/"


def test_env_wins() -> None:
    """Set variables win over built and over passed ones; the last of a name counts."""
    policy = workspace(env=[("PATH", "/a"), ("USER", "x"), ("PATH", "/b")], pass_env=["PATH"])
    env = policy.environment(CALLER, "/bin")
    assert (env["PATH"], env["USER"]) == ("/b", "x")


def test_inherited_environment() -> None:
    """An inherited environment is the caller's, plus what is set; the caller's own mapping stays as it was."""
    caller = dict(CALLER)
    env = Policy.host(env={"A": "1", "HOME": "/h"}).environment(caller, "/bin")
    assert env == CALLER | {"A": "1", "HOME": "/h"}
    assert caller == CALLER


def test_sees() -> None:
    """sees() is by whole components of what is readable or writable, and not denied."""
    policy = workspace(read=["/r/x"])
    assert all(policy.sees(path) for path in ("/w", "/w/a/b", "/r/x", "/r/x/y"))
    assert not any(policy.sees(path) for path in ("/", "/w2", "/r", "/r/xy", "/usr"))
    policy = workspace(deny=["/w/secrets"])
    assert policy.sees("/w/secrets2")
    assert not policy.sees("/w/secrets")
    assert not policy.sees("/w/secrets/key")


# ---- properties

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(categories=None), max_size=12)
    | st.binary(max_size=5)
    | st.sampled_from(["/w", "/w/x", "/", "..", "net", "uts", "64M", "none", "host", Path("/w"), Tmpfs("/t"), Limits(), Op, b""]),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    | st.frozensets(st.text(max_size=4), max_size=3),
    max_leaves=6,
)


@calm
@given(st.dictionaries(st.sampled_from(FIELDS), junk, max_size=3), st.sampled_from(["workspace", "host", "layers"]))
def test_junk_is_a_policy_error(wishes: dict[str, Any], base: str) -> None:
    """Whatever is wished, either a sound value comes out or a PolicyError: no other exception."""
    try:
        policy = Policy(**({"base": base} | wishes))
    except PolicyError as error:
        assert error.field.split(".")[0] in FIELDS, error.field
    else:
        assert pickle.loads(pickle.dumps(policy)) == policy
        assert hash(policy.with_()) == hash(policy)


@calm
@given(st.sampled_from(LIMITS), junk)
def test_junk_is_no_limit(name: str, value: Any) -> None:
    """Whatever is given as a limit, it is a number that setrlimit(2) takes, or a PolicyError."""
    try:
        limits = Limits(**{name: value})
    except PolicyError as error:
        assert error.field == f"limits.{name}"
    else:
        assert all(0 < number < 2**63 for _, number in limits.rlimits())


@calm
@given(st.sampled_from(["read", "write", "deny"]), junk)
def test_junk_is_no_path(name: str, value: Any) -> None:
    """Whatever is given as a path to workspace(), what goes wrong is a PolicyError."""
    for make in (lambda: Policy.workspace(value), lambda: Policy.workspace("/tmp", **{name: value})):
        try:
            policy = make()
        except PolicyError as error:
            assert error.field in ("workspace", "read", "write", "deny")
        else:
            assert all(path.startswith("/") and "\0" not in path for path in (*policy.write, *policy.read, *policy.deny))


path_parts = st.sampled_from(["a", "b", "c"])
paths = st.lists(path_parts, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
sizes = st.none() | st.integers(1, 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0="), min_size=1, max_size=5)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
wishes = st.fixed_dictionaries(
    {},
    optional={
        "network": st.sampled_from(["none", "host"]),
        "unshare": st.frozensets(st.sampled_from(["user", "mount", "pid", "ipc", "uts", "cgroup", "time"])).map(
            lambda names: names | {"uts"}
        ),
        "tmp_size": sizes,
        "limits": st.builds(Limits, memory=sizes, processes=sizes, cpu_seconds=sizes, file_size=sizes, open_files=sizes),
        "ids": st.sampled_from(["single", "full", "auto"]),
        "uid": st.none() | st.integers(0, 2**32 - 2),
        "gid": st.none() | st.integers(0, 2**32 - 2),
        "hostname": st.none() | names,
        "workdir": st.none() | paths,
        "home": st.none() | paths,
        "env": st.dictionaries(names, texts, max_size=3),
        "pass_env": st.lists(names, max_size=3),
        "inherit_env": st.booleans(),
        "new_session": st.booleans(),
        "nested": st.booleans(),
        "write": st.just(["/w"]),
        "read": st.lists(paths, max_size=3),
        "deny": st.lists(paths.map(lambda path: "/w" + path), max_size=3),
    },
)


@calm
@given(wishes)
def test_round_trips(chosen: dict[str, Any]) -> None:
    """A valid policy survives pickling, with_() of its own fields, and a second construction, in equality and hash."""
    policy = workspace(**chosen)
    own = {name: getattr(policy, name) for name in FIELDS}
    pathless = {name: value for name, value in own.items() if name not in ("read", "write", "deny")}
    for again in (pickle.loads(pickle.dumps(policy)), policy.with_(**pathless), Policy(**own), workspace(**chosen)):
        assert again == policy
        assert hash(again) == hash(policy)


@calm
@given(wishes, wishes)
def test_with_is_the_constructor(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Changing wishes one by one gives what wishing for all at once gives."""
    at_once = workspace(**(first | second))
    policy = workspace(**(first | {name: second[name] for name in ("read", "write", "deny") if name in second}))
    before = pickle.dumps(policy)
    for name, value in second.items():
        if name in ("read", "write", "deny"):  # those are looked up
            continue
        policy = policy.with_(**{name: value})
    assert policy == at_once
    assert pickle.loads(before) == workspace(**(first | {n: second[n] for n in ("read", "write", "deny") if n in second}))


@calm
@given(wishes, st.dictionaries(names, texts, max_size=4))
def test_environment_has_no_source_but_three(chosen: dict[str, Any], caller: dict[str, str]) -> None:
    """Each variable of a command is built, set, or the caller's by name (or all of the caller's if inherited)."""
    policy = workspace(**chosen)
    env = policy.environment(caller, "/bin")
    for name, value in env.items():
        if name in dict(policy.env):
            assert value == dict(policy.env)[name]
        elif policy.inherit_env or name in (*policy.pass_env, "USER", "LANG", "TERM"):
            assert value == caller[name]
        else:
            assert name in ("PATH", "HOME", "TMPDIR")
