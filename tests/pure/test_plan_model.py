"""Plans carried out on paper: a command finds what its policy says, whatever the policy and the host."""

from __future__ import annotations

import pickle
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.hosts import (
    DEBIAN,
    ROOT,
    workspace,
)
from nsbox_pure.model import Model, below, hosts, places, policies, wanted

from nsbox import (
    Bind,
    DevBind,
    Host,
    Mask,
    Policy,
    PolicyError,
    RemountRo,
    RoBind,
    UnavailableError,
)
from nsbox._backends import compile_policy


def test_pins_are_not_writable() -> None:
    """What is read-only in the workspace stays so to its depths, whatever is named there."""
    for wish in ({"deny": ["/w/ro/sub/secret"]}, {"read": ["/w/ro", "/w/ro/sub/deep"]}):
        model = Model(compile_policy(workspace("/w", **({"read": ["/w/ro"]} | wish)), DEBIAN).ops)
        assert model.kind("/w/x") == "rw"
        for path in ("/w/ro", "/w/ro/sub", "/w/ro/sub/x"):
            assert model.kind(path) == "ro", path


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
def test_the_way_to_a_wish_is_fixed(policy: Policy, host: Host) -> None:
    """No writable directory on the way to a wish can be renamed to mislead a later command: it is a mount."""
    ops = compile_policy(policy, host).ops
    model = Model(ops)
    mounted = {getattr(op, "dest", "") for op in ops}
    for path in (*policy.deny, *policy.read, *policy.write):
        parts = path.strip("/").split("/")
        for way in ("/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1)):
            assert model.kind(way) != "rw" or way in mounted, (path, way)


@calm
@given(policies(), hosts)
def test_order(policy: Policy, host: Host) -> None:
    """Parents come before children, each place is mounted once, and the root is closed at the end."""
    plan = compile_policy(policy, host)
    assert plan.ops[-1] == RemountRo("/")
    placed = [(op.dest, op) for op in plan.ops[:-1] if hasattr(op, "dest") and not isinstance(op, RemountRo)]
    assert len({dest for dest, _ in placed}) == len(placed)
    for i, (dest, op) in enumerate(placed):
        for later, _ in placed[i + 1 :]:
            assert later == dest or not below(dest, later), f"{later} covers {op.describe()}"


@calm
@given(policies(), hosts)
def test_each_wish_has_its_op(policy: Policy, host: Host) -> None:
    """Each writable path is bound writable, and each denied one masked, with nothing of the host's after that."""
    ops = compile_policy(policy, host).ops
    binds = {op.dest for op in ops if type(op) is Bind}
    assert binds >= set(policy.write)
    # The others pin the directories on the way through a writable path to another that is named.
    for pin in binds - set(policy.write):
        assert any(below(pin, path) for path in policy.write)
        named = (*policy.deny, *policy.read, *policy.write, *host.prefixes)
        assert any(below(path, pin) and path != pin for path in named)
    assert not any(isinstance(op, DevBind) for op in ops)
    for denied in policy.deny:
        at = ops.index(Mask(denied, optional=True, nofollow=True))
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
        assert ids == "full" and not host.can_set_ids
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
