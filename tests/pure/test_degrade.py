"""degrade: what may be lost. Whatever a policy accepts, no plan lacks a protection whose loss it doesn't name.

The protections are read off the plans here, by code that knows nothing of what the backends call lacking.
"""

from __future__ import annotations

import copy
import pickle
import socket
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.bpf import verdict
from nsbox_pure.calls import WHOLE
from nsbox_pure.hosts import DEBIAN, ROOT, VENV, workspace

from nsbox import Host, Limits, Plan, Policy, PolicyError, UnavailableError, explain
from nsbox._backends import compile_policy
from nsbox._core.wire import encode_programs
from nsbox._plan import ops
from nsbox._policy.losses import LEVELS, LOSSES, Losses, losses, words_for
from nsbox._policy.policy import BACKENDS, REQUIRE

WORDS = sorted({*LOSSES, *LEVELS})
# By their names, these are about files, the network, the command's user, or a second layer: no level may have them.
ONE_BY_ONE = {"attributes", "deny", "ids", "landlock", "network", "read", "seccomp", "secrets"}
CGROUPS = {"cgroup": "/sys/fs/cgroup/x", "cgroup_controllers": frozenset({"cpu", "memory", "pids"})}
REPO, ENV, VENDOR, OUT = "/home/me/repo", "/home/me/repo/.env", "/home/me/repo/vendor", "/srv/out"

hosts = st.builds(
    lambda host, abi, *changes: replace(host, landlock_abi=abi, **{k: v for each in changes for k, v in each.items()}),
    st.sampled_from([DEBIAN, ROOT, VENV]),
    st.sampled_from([7, 6, 5, 4, 3, 2, 1, 0]),
    st.sampled_from([{"userns_error": 1, "userns_error_at": "unshare", "is_filtered": True}, {}]),
    st.sampled_from([{}, {}, {"bwrap": "/usr/bin/bwrap", "bwrap_version": (0, 11, 0), "bwrap_binds_fds": True}]),
    st.sampled_from([{}, CGROUPS]),
    st.sampled_from([{}, {"state": "/home/me/.local/state/nsbox"}]),
)
wishes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "write": st.sampled_from([[OUT], ["/tmp"], ["/tmp", OUT]]),
        "read": st.sampled_from(
            [[VENDOR], ["/srv/data"], ["/etc"], ["/etc/shadow", VENDOR], ["/"], ["/", "/run"], ["/home"], ["/", "/tmp"]]
        ),
        "deny": st.sampled_from([[ENV], ["/opt"], ["/etc/passwd", ENV], ["/srv/out/x", "/usr/lib"]]),
        "network": st.sampled_from(["none", "host", ["api.example:443"], "public"]),
        "home": st.sampled_from(["private", "tmp", REPO]),
        "hostname": st.just("box"),
        "uid": st.sampled_from([0, 1000, 1234]),
        "ids": st.sampled_from(["single", "auto"]),
        "tmp_size": st.just("1M"),
        "landlock": st.booleans(),
        "limits": st.sampled_from([Limits(processes=9), Limits(total_memory="1G", cpus=2), Limits(memory="1G")]),
        "seccomp": st.sampled_from(["default", "hardened", "off"]),
        "require": st.sampled_from(["filesystem", "isolated"]),
        "backend": st.sampled_from(["landlock", "auto", "bwrap", "namespaces"]),
    },
)


def made(wish: dict[str, Any]) -> Policy | None:
    """Return the policy, or None if its wishes contradict each other."""
    try:
        return workspace(**wish)
    except PolicyError:
        return None


def outcome(policy: Policy, host: Host) -> Plan | UnavailableError | PolicyError:
    try:
        return compile_policy(policy, host)
    except (UnavailableError, PolicyError) as error:
        return error


# ---- the oracle


def open_by_landlock(plan: Plan, path: str, right: int) -> bool:
    """Say if a ruleset about files allows a right on a path; True if there is none."""
    if plan.ruleset is None or not plan.ruleset.files:
        return True
    rules = (r for r in plan.ruleset.paths if r.path in ("/", path) or path.startswith(f"{r.path}/"))
    return any(r.rights & right for r in rules)


def open_by_mounts(plan: Plan, path: str, *, writes: bool) -> bool:
    """Say if what the mounts show at a path is the host's, and may be written: the last op that is about it decides."""
    shown = False
    for op in plan.ops:
        dest = getattr(op, "dest", None)
        if dest is None or not (dest in ("/", path) or path.startswith(f"{dest}/")):
            continue
        if isinstance(op, ops.Bind | ops.DevBind):
            shown = True
        elif isinstance(op, ops.RoBind):
            shown = not writes
        elif isinstance(op, ops.Mask | ops.Tmpfs | ops.Dev | ops.Proc):
            shown = False
    return shown


def lacking(plan: Plan, policy: Policy, host: Host) -> set[str]:
    """Return which of a policy's wishes the plan doesn't grant, by the names of losses."""
    mounts = bool(plan.ops)

    def can(path: str, *, writes: bool = False) -> bool:
        if mounts:
            return open_by_mounts(plan, path, writes=writes)
        return open_by_landlock(plan, path, 2 if writes else 4)

    limited = {r.name for r in plan.rlimits} | {name for name, _ in plan.cgroup_limits}
    limits = {
        "processes": ("NPROC", "pids.max"),
        "memory": ("AS",),
        "total_memory": ("memory.max",),
        "cpus": ("cpu.max",),
    }
    named = {*policy.read, *policy.write}
    hidden = {path for path in host.secrets if path not in named}
    hidden |= {
        path for path in host.private if not any(f"{path}/".startswith(f"{name.rstrip('/')}/") for name in named)
    }
    # The sandbox's own where something is mounted, whatever is readable around them.
    hidden |= {"/dev/pts/0", *(() if "/run" in named else ("/run/user/1000/keys",))}
    hidden |= {host.state} if host.state else set()
    tmpfs = [op for op in plan.ops if isinstance(op, ops.Tmpfs) and op.dest == "/tmp"]
    checks = {
        "attributes": mounts,
        "processes": "pid" in plan.namespaces,
        "tmp": bool(tmpfs and (policy.tmp_size is None or tmpfs[-1].size == policy.tmp_size))
        or ("/tmp" in (*policy.write, *policy.read) and (mounts or policy.tmp_size is None)),
        "home": policy.home != "private" or mounts,
        "hostname": policy.hostname is None or any(isinstance(op, ops.Hostname) for op in plan.ops),
        "ids": policy.uid is None or plan.identity.uid == policy.uid,
        "deny": not any(map(can, policy.deny)),
        "read": not any(can(path, writes=True) for path in (*policy.read, *host.prefixes)),
        "secrets": not any(map(can, hidden)),
        "network": (isinstance(policy.network, str) and policy.network != "public") or plan.network is not None,
        "landlock": not policy.landlock or (plan.ruleset is not None and bool(plan.ruleset.files)),
        "seccomp": policy.seccomp == "off" or bool(plan.programs),
    } | {
        f"limits.{name}": getattr(policy.limits, name) is None or not limited.isdisjoint(ways)
        for name, ways in limits.items()
    }
    assert set(checks) == set(LOSSES)
    return {name for name, holds in checks.items() if not holds}


def check_never_lost(plan: Plan, policy: Policy) -> None:
    """Check what no word of degrade gives up: the network's containment, and files that the policy doesn't name."""
    if policy.network == "none" or (plan.network is None and policy.network != "host"):
        codes = encode_programs(plan.programs, "x86_64", WHOLE["x86_64"])
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17, 40):
            refused = verdict(codes, 0xC000003E, WHOLE["x86_64"]["socket"], [family, 1, 0])
            assert "net" in plan.namespaces or refused > 0, family
    elif policy.network != "host":
        assert "net" in plan.namespaces
    for path in ("/home/other/.ssh/id_rsa", "/root/x", "/var/lib/x", "/srv/else", "/run/docker.sock", "/tmp/x"):
        if path != "/tmp/x" or "/tmp" not in policy.write:
            # What is above it, and readable by the policy's wish, needn't hide it.
            is_wished = any(f"{path}/".startswith(f"{root.rstrip('/')}/") for root in policy.read)
            for writes in (True,) if is_wished else (False, True):
                is_open = (
                    open_by_mounts(plan, path, writes=writes)
                    if plan.ops
                    else open_by_landlock(plan, path, 2 + 2 * (not writes))
                )
                assert not is_open, path
    for path in ("/usr/bin/sh", "/etc/hosts"):
        assert not (open_by_mounts(plan, path, writes=True) if plan.ops else open_by_landlock(plan, path, 2)), path


# ---- properties


@settings(calm, max_examples=400)
@given(hosts, wishes, st.sets(st.sampled_from(WORDS)))
def test_no_loss_without_its_name(host: Host, wish: dict[str, Any], words: set[str]) -> None:
    """Each plan has what the policy wishes, except for what degrade names; and it says what it lacks, by these names."""
    policy = made({**wish, "degrade": words})
    if policy is None:
        return
    for accepted in (LOSSES, policy.degrade):  # all are seldom enough by chance
        plan = outcome(policy.with_(degrade=accepted), host)
        if not isinstance(plan, Plan):
            continue
        assert plan.backend in policy.acceptable and plan.backend != "passthrough"
        assert plan.lost <= {*accepted}
        assert lacking(plan, policy, host) - {"ids"} <= plan.lost
        if plan.backend == "landlock":
            assert lacking(plan, policy, host) == plan.lost
        for name in plan.lost:
            assert sum(f" {name}: " in f" {text}" for text in plan.not_enforced) == 1, name
        check_never_lost(plan, policy)


@calm
@given(hosts, wishes, st.sets(st.sampled_from(WORDS)), st.sets(st.sampled_from(WORDS)))
def test_words_too_many_lose_nothing(host: Host, wish: dict[str, Any], words: set[str], more: set[str]) -> None:
    """degrade decides whether there is a plan, never which: with more words it is the same, or as little there."""
    policy = made({**wish, "degrade": words})
    if policy is None:
        return
    first, second, every = (outcome(policy.with_(degrade=d), host) for d in (words, words | more, LOSSES))
    if isinstance(every, Plan):
        assert isinstance(first, Plan) is (every.lost <= losses(words))
        assert all(plan == every for plan in (first, second) if isinstance(plan, Plan))
    else:
        assert not isinstance(first, Plan) and not isinstance(second, Plan)


@calm
@given(hosts, wishes, st.sets(st.sampled_from(WORDS)))
def test_the_error_says_what_to_write(host: Host, wish: dict[str, Any], words: set[str]) -> None:
    """If a loss isn't accepted, the error names it and no accepted one, and its last line is enough."""
    policy = made({**wish, "degrade": words})
    if policy is None:
        return
    error, every = outcome(policy, host), outcome(policy.with_(degrade=LOSSES), host)
    if isinstance(every, Plan) and isinstance(error, UnavailableError):
        refused = every.lost - policy.degrade
        own = [r.what for r in error.reasons[-1 - len(refused) : -1]]
        assert all(any(f"{name}: " in what for what in own) for name in refused)
        suggested = error.reasons[-1].remedy.removeprefix("degrade=")
        assert compile_policy(policy.with_(degrade=eval(suggested)), host) == every
        added = losses(eval(suggested)) - every.lost - policy.degrade
        assert added.isdisjoint(ONE_BY_ONE)


@calm
@given(hosts, wishes, st.sets(st.sampled_from(WORDS)))
def test_require_is_above_it(host: Host, wish: dict[str, Any], words: set[str]) -> None:
    """With require="isolated", whatever is accepted, the backend isolates."""
    policy = made({**wish, "degrade": words, "require": "isolated"})
    for accepted in () if policy is None else (LOSSES, policy.degrade):  # all are seldom enough by chance
        plan = outcome(policy.with_(degrade=accepted), host)
        if not isinstance(plan, Plan):
            continue
        assert plan.backend in BACKENDS[: REQUIRE["isolated"]] == ("namespaces", "bwrap")
        assert {"pid", "mount", "user"} <= plan.namespaces
        assert not plan.lost & {"attributes", "deny", "processes", "read", "secrets", "tmp"}


# ---- levels, and the value


def test_levels_open_no_file_and_no_network() -> None:
    """No single word gives up what is about files, the network, the user or a second layer, except for its own name."""
    for level, names in LEVELS.items():
        assert not ONE_BY_ONE & {*names}, level
        assert set(names) <= set(LOSSES) and level not in LOSSES
    assert set(LOSSES) == ONE_BY_ONE.union(*LEVELS.values())


@pytest.mark.parametrize("abi", [2, 4, 7])
@pytest.mark.parametrize("level", LEVELS)
def test_no_level_is_enough_alone(level: str, abi: int) -> None:
    """A workspace where namespaces are refused takes a word about files, too."""
    host = replace(DEBIAN, userns_error=1, landlock_abi=abi)
    with pytest.raises(UnavailableError, match="attributes: "):
        compile_policy(workspace(degrade={level}), host)


def test_never_a_default() -> None:
    """No constructor accepts a loss by itself."""
    policies = (workspace(), Policy.host(), Policy.layers(), Policy())
    assert [policy.degrade for policy in policies] == [Losses()] * 4
    assert str(policies[0].degrade) == "nothing may be lost"


def test_the_value_names_each_loss() -> None:
    """A level is spelled out; the text is one line with each name and what its loss means."""
    policy = workspace(degrade=["namespaces", "attributes", "namespaces"])
    assert policy.degrade == {"attributes", "home", "hostname", "processes", "tmp"}
    assert repr(policy.degrade) == "frozenset({'attributes', 'home', 'hostname', 'processes', 'tmp'})"
    line = str(policy.degrade)
    assert line.startswith("may be lost: attributes (") and "\n" not in line
    assert all(f"{name} ({LOSSES[name]})" in line for name in policy.degrade)
    assert policy == workspace(degrade=policy.degrade) == pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy)
    assert type(pickle.loads(pickle.dumps(policy)).degrade) is Losses
    assert hash(policy) == hash(workspace(degrade=sorted(policy.degrade)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("namespaces", r"must be a sequence, such as \['namespaces'\]"),
        (["files"], "'files' is unknown, must be among namespaces, limits, attributes"),
        (["limits.files"], "'limits.files' is unknown"),
        ([""], "'' is unknown|empty"),
        ([3], "degrade"),
        (None, "degrade"),
    ],
)
def test_what_is_no_loss(value: object, words: str) -> None:
    """There is no word for everything, or for all files."""
    with pytest.raises(PolicyError, match=words):
        workspace(degrade=value)


@given(st.sets(st.sampled_from(sorted(LOSSES))))
def test_few_words(names: set[str]) -> None:
    """The words for some losses name them all, and nothing else than what a level of theirs has."""
    words = words_for(names)
    assert names <= losses(words)
    more = losses(words) - names
    assert more.isdisjoint(ONE_BY_ONE) and len(more) <= 2
    assert len(words) <= len(names)


# ---- explain()


def test_explain_says_what_is_lost() -> None:
    """One line names it; without degrade there is none."""
    host = replace(DEBIAN, userns_error=1, landlock_abi=7)
    policy = workspace(home="private", degrade={"attributes", "namespaces"})
    assert "\nlost        attributes, home, processes, tmp\n" in explain(policy, host)
    assert "\nlost        nothing\n" in explain(policy, DEBIAN)
    assert "\nlost " not in explain(workspace(), DEBIAN)
