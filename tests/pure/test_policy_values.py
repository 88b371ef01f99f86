"""Policies as values: frozen, hashable, picklable; with_() and environment(); and that any junk is refused."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nsbox_pure import calm, refused

import nsbox
from nsbox import (
    Limits,
    Mask,
    Op,
    Policy,
    PolicyError,
    Symlink,
    Tmpfs,
)

FIELDS = tuple(f.name for f in dataclasses.fields(Policy) if f.init)
LIMITS = tuple(f.name for f in dataclasses.fields(Limits))
ALWAYS = frozenset({"user", "mount", "pid"})


def workspace(**wishes: Any) -> Policy:
    """Return a workspace policy without asking the file system."""
    return Policy(**({"base": "workspace", "write": ["/w"]} | wishes))


# ---- values


def some_policies() -> list[Policy]:
    """Return policies that use each field, each newly made."""
    return [
        Policy(),
        workspace(),
        Policy.host(uid=0, gid=5, env={"A": "1"}, pass_env=["B"]),
        Policy.layers(
            Symlink("x", "/y"), Mask("/z", optional=True), unshare={"uts", "net"}, hostname="box", ids="full"
        ),
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
    names = {name: getattr(nsbox, name) for name in nsbox.__all__}
    for policy in some_policies():
        assert eval(repr(policy), names) == policy


# ---- environment

CALLER = {
    "PATH": "/evil",
    "HOME": "/root",
    "USER": "me",
    "LANG": "C",
    "TERM": "vt100",
    "AWS_SECRET": "s",
    "TMPDIR": "/x",
}


def test_built_environment() -> None:
    """A workspace's environment is built: of the caller's only what has no secrets, and what is passed by name."""
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
    | st.sampled_from(
        ["/w", "/w/x", "/", "..", "net", "uts", "64M", "none", "host", Path("/w"), Tmpfs("/t"), Limits(), Op, b""]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.frozensets(st.text(max_size=4), max_size=3)
    ),
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


MAY_BE_NONE = {"core_size", "locked_memory", "message_queues"}


@calm
@given(st.sampled_from(LIMITS), junk)
@example("core_size", 0)
def test_junk_is_no_limit(name: str, value: Any) -> None:
    """Whatever is given as a limit, it is a number that setrlimit(2) takes, or a PolicyError."""
    try:
        limits = Limits(**{name: value})
    except PolicyError as error:
        assert error.field == f"limits.{name}"
    else:
        least = 0 if name in MAY_BE_NONE else 1
        assert all(least <= number < 2**63 for _, number in limits.rlimits())


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
            assert all(
                path.startswith("/") and "\0" not in path for path in (*policy.write, *policy.read, *policy.deny)
            )


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
        "limits": st.builds(
            Limits, memory=sizes, processes=sizes, cpu_seconds=sizes, file_size=sizes, open_files=sizes
        ),
        "ids": st.sampled_from(["single", "full", "auto"]),
        "uid": st.none() | st.integers(0, 2**32 - 2),
        "gid": st.none() | st.integers(0, 2**32 - 2),
        "hostname": st.none() | names,
        "workdir": st.none() | paths,
        "home": st.sampled_from([None, "private", "private:x", "workspace", "tmp"]) | paths,
        "env": st.dictionaries(names, texts, max_size=3),
        "pass_env": st.lists(names, max_size=3),
        "inherit_env": st.booleans(),
        "new_session": st.booleans(),
        "nested": st.booleans(),
        "kill_on_exit": st.just(True),  # False doesn't go with nested
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
    assert pickle.loads(before) == workspace(
        **(first | {n: second[n] for n in ("read", "write", "deny") if n in second})
    )


@calm
@given(wishes, st.dictionaries(names, texts, max_size=4))
def test_environment_has_no_source_but_three(chosen: dict[str, Any], caller: dict[str, str]) -> None:
    """Each variable of a command is built, set, or the caller's by name (or all of the caller's if inherited)."""
    policy = workspace(**chosen)
    env = policy.environment(caller, "/bin")
    for name, value in env.items():
        if name in dict(policy.env):
            assert value == dict(policy.env)[name]
        elif policy.inherit_env or name in policy.taken_from_caller():
            assert value == caller[name]
        else:
            assert name in ("PATH", "HOME", "TMPDIR")
