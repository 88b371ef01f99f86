"""The plans of an interpreter and of its branches, from the plan of a policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nsbox_pure.hosts import DEBIAN, SUBORDINATE, workspace
from nsbox_pure.hosts import ROOT as ADMIN

from nsbox import (
    Bind,
    Details,
    Dev,
    Host,
    Limits,
    Loopback,
    Mask,
    Policy,
    Proc,
    RemountRo,
    RoBind,
    Tmpfs,
    TmpOverlay,
    UnavailableError,
)
from nsbox._backends import compile_policy
from nsbox._interpreter.plan import BranchPlans, nested, plans
from nsbox._plan.capabilities import CAPABILITIES
from nsbox._plan.ops import Devpts, Lifted, Over, primitives

KERNEL = replace(ADMIN, kernel_id=0x70000001)
LANDLOCK = replace(DEBIAN, kernel=(6, 12), landlock_abi=6)


def made(policy: Policy, host: Host = DEBIAN) -> BranchPlans:
    plan = compile_policy(policy, host)
    return plans(plan, tuple(primitives(plan.ops)), compile_policy(nested(policy), host).programs)


@pytest.mark.parametrize(
    ("policy", "host", "outer", "inside"),
    [
        (workspace(), DEBIAN, "1000", "1000"),
        (workspace(uid=0, gid=0), DEBIAN, "1000", "0"),
        (workspace(uid=7, gid=7), DEBIAN, "1000", "7"),
        (workspace(), KERNEL, str(0x70000001), "0"),
    ],
    ids=["user", "uid-0", "uid-7", "kernel-id"],
)
def test_one_id(policy: Policy, host: Host, outer: str, inside: str) -> None:
    """The interpreter is uid 0 of two user namespaces; each branch has the policy's id in a third."""
    both = made(policy, host)
    own, branch = both.interpreter.identity, both.branch.identity
    assert (own.uid, own.gid) == (0, 0)
    assert (own.uid_map, own.uid_map2) == (f"0 {outer} 1", "0 0 1")
    assert (own.gid_map, own.gid_map2) == (f"0 {outer} 1", "0 0 1")
    assert (branch.uid_map2, branch.gid_map2) == (f"{inside} 0 1", f"{inside} 0 1")
    assert (str(branch.uid), str(branch.gid)) == (inside, inside)


@pytest.mark.parametrize("host", [ADMIN, SUBORDINATE], ids=["root", "user"])
def test_all_ids(host: Host) -> None:
    """With more ids than one the interpreter has the policy's, and branches stay in its user namespace."""
    policy = workspace(ids="full", uid=33, gid=33)
    both = made(policy, host)
    own, branch = both.interpreter.identity, both.branch.identity
    assert (own.uid, own.map2_by_helper, own.by_helper) == (33, True, True)
    assert own.uid_map == compile_policy(policy, host).identity.uid_map
    assert own.uid_map2 is not None
    assert all(row.split()[0] == row.split()[1] for row in own.uid_map2.splitlines())
    assert (branch.uid, branch.uid_map2, branch.gid_map2) == (33, None, None)


def test_privileges() -> None:
    """The interpreter has capabilities, and the filters of a policy with nested=True; a branch has the policy's own."""
    policy = workspace(seccomp="hardened")
    both, plan = made(policy), compile_policy(policy, DEBIAN)
    kept = both.interpreter.capabilities
    assert kept is not None
    assert kept.permitted == kept.inheritable == kept.bounding
    names = {name for i, name in enumerate(CAPABILITIES) if kept.permitted >> i & 1}
    assert names == {
        "CAP_NET_ADMIN",
        "CAP_SETFCAP",
        "CAP_SETGID",
        "CAP_SETPCAP",
        "CAP_SETUID",
        "CAP_SYS_ADMIN",
        "CAP_SYS_CHROOT",
    }
    assert both.branch.capabilities is None
    assert both.branch.programs == plan.programs
    assert both.interpreter.programs != plan.programs
    assert "last" in {program.stage for program in plan.programs}  # it forbids more filters
    assert "last" not in {program.stage for program in both.interpreter.programs}
    assert both.interpreter.programs


def test_limits() -> None:
    """What each branch may use up is its own; the interpreter has the other limits."""
    policy = workspace(limits=Limits(processes=5, cpu_seconds=3, memory="1G", open_files=77))
    both = made(policy)
    assert {limit.name for limit in both.interpreter.rlimits} == {"AS", "CORE"}
    assert both.branch.rlimits == compile_policy(policy, DEBIAN).rlimits


def test_proc() -> None:
    """The interpreter has a procfs of which nothing is covered, so that branches may mount theirs, with the masks."""
    both = made(workspace(), ADMIN)
    (proc,) = (op for op in both.steps if isinstance(op, Proc))
    assert (proc.cover, proc.nests) == (True, True)
    inside = [op for op in both.steps if getattr(op, "dest", "").startswith("/proc/")]
    assert inside == []
    at = next(i for i, op in enumerate(both.renewed) if isinstance(op, Over) and isinstance(op.op, Proc))
    assert both.renewed[at] == Over(Proc("/proc", cover=True))
    masks = [op for op in compile_policy(workspace(), ADMIN).ops if getattr(op, "dest", "").startswith("/proc/")]
    assert len(masks) > 2
    assert list(both.renewed[at + 1 : at + 1 + len(masks)]) == masks


def test_what_is_fresh() -> None:
    """What a branch can write to is its own, but not the workspace; what is mounted there is lifted onto it."""
    policy = Policy.layers(
        RoBind("/", "/"),
        Proc("/proc"),
        Dev("/dev"),
        Tmpfs("/tmp"),
        Bind("/srv", "/tmp/srv"),
        Loopback(),
        unshare={"net"},
    )
    both = made(policy)
    fresh = [op.op.dest for op in both.renewed if isinstance(op, Over)]
    assert set(fresh) == {"/proc", "/dev", "/tmp"}
    assert [op.dest for op in both.renewed if isinstance(op, Devpts)] == ["/dev/pts"]
    assert "/tmp/srv" in [op.dest for op in both.renewed if isinstance(op, Lifted)]
    assert Loopback() in both.renewed
    assert both.branch.namespaces == compile_policy(policy, DEBIAN).namespaces


def test_landlock() -> None:
    """Behind rules about files nothing can be mounted, so these are the branches' alone; scopes are for both."""
    both = made(workspace(landlock=True), LANDLOCK)
    assert both.interpreter.ruleset is None
    assert both.branch.ruleset is not None
    assert both.branch.ruleset.files
    both = made(workspace(network="host"), LANDLOCK)
    assert both.interpreter.ruleset == both.branch.ruleset is not None


def test_network_list() -> None:
    """The interpreter has no network of a list's: each branch has its own."""
    both = made(workspace(network=["example.org"]))
    assert both.interpreter.network is None
    assert "net" in both.interpreter.namespaces
    assert both.branch.network is not None


BASE = (RoBind("/", "/"), Dev("/dev"), Proc("/proc"))


@pytest.mark.parametrize(
    ("policy", "host", "what"),
    [
        (Policy.layers(*BASE, details=Details(share={"pid"})), DEBIAN, "shares the pid namespace"),
        (Policy.layers(*BASE, details=Details(disable_userns=True)), DEBIAN, "forbids user namespaces"),
        (Policy.layers(*BASE, details=Details(capabilities=("CAP_NET_ADMIN",))), DEBIAN, "capabilities"),
        (Policy.layers(*BASE, details=Details(pidns=3)), DEBIAN, "belong to one command"),
        (Policy.layers(*BASE, details=Details(die_with_parent=False)), DEBIAN, "die_with_parent"),
        (Policy.layers(RoBind("/", "/"), Dev("/dev")), DEBIAN, "mounts no /proc"),
        (Policy.layers(*BASE, Proc("/srv/proc")), DEBIAN, "only /proc can be a procfs"),
        (Policy.layers(*BASE, Tmpfs("/proc/acpi")), DEBIAN, "where each branch has its own"),
        (Policy.layers(*BASE, TmpOverlay(("/usr",), "/usr")), DEBIAN, "an overlay"),
        (Policy.layers(Tmpfs("/"), RoBind("/usr", "/usr"), Proc("/proc")), DEBIAN, "the root is writable"),
        (
            workspace(backend="landlock", degrade=frozenset({"attributes", "namespaces"})),
            LANDLOCK,
            "the landlock backend",
        ),
        (Policy(base="host", backend="passthrough", require="nothing"), DEBIAN, "the passthrough backend"),
    ],
)
def test_refusals(policy: Policy, host: Host, what: str) -> None:
    """What can't work says so, before anything is started."""
    plan = compile_policy(policy, host)
    with pytest.raises(UnavailableError, match=what):
        plans(plan, tuple(primitives(plan.ops)), ())


def test_masks_in_proc_of_the_users() -> None:
    """A mask below /proc that the policy names is each branch's too."""
    both = made(Policy.layers(*BASE, Mask("/proc/acpi", optional=True), RemountRo("/")))
    assert Mask("/proc/acpi", optional=True) in both.renewed
