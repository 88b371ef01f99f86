"""Plans: which limits a policy means on a host."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from nsbox_pure.hosts import (
    CONTAINER_ROOT,
    DEBIAN,
    LIMITED,
    ROOT,
    workspace,
)

from nsbox import (
    Filter,
    Limits,
    Policy,
    UnavailableError,
)
from nsbox._backends import compile_policy
from nsbox._plan.plan import Rlimit

DELEGATED = replace(DEBIAN, cgroup="/sys/fs/cgroup/mine", cgroup_controllers=("memory", "pids", "cpu"))


def test_limits_are_within_the_hard_ones() -> None:
    """A limit above the host's hard limit becomes that, and what is said to be enforced is what is."""
    plan = compile_policy(Policy.layers(limits=Limits(open_files=10**6, processes=64, memory="1G")), LIMITED)
    assert set(plan.rlimits) == {Rlimit("NOFILE", 4096, 4096), Rlimit("NPROC", 64, 64), Rlimit("AS", 1 << 30, 1 << 30)}
    said = " / ".join(plan.enforced)
    assert "RLIMIT_NOFILE 4096" in said
    assert "1000000" not in said


def test_cpu_seconds_warn_first() -> None:
    """At the limit comes SIGXCPU, which says why; a process that ignores it is killed five seconds later, or at the hard limit."""
    policy = Policy.layers(limits=Limits(cpu_seconds=30))
    assert compile_policy(policy, DEBIAN).rlimits == (Rlimit("CPU", 30, 35),)
    for hard, expected in ((30, (30, 30)), (31, (30, 31)), (10, (10, 10)), (99, (30, 35))):
        assert compile_policy(policy, replace(DEBIAN, hard_limits=(("CPU", hard),))).rlimits == (
            Rlimit("CPU", *expected),
        )


def test_core_dumps() -> None:
    """A workspace has none unless it says how large, and then can't change the limit; others keep the caller's limit.

    None is 1: at 0 a handler that kernel.core_pattern names gets them.
    """
    none, program = (Rlimit("CORE", 1, 1),), Filter(programs=(b"\x06\0\0\0\0\0\xff\x7f",))
    for policy, expected in (
        (workspace(), none),
        (workspace(limits=Limits(core_size=0)), none),
        (workspace(limits=Limits(core_size="1M")), (Rlimit("CORE", 1 << 20, 1 << 20),)),
        (workspace(limits=Limits(core_size="1M"), seccomp=program), (Rlimit("CORE", 1 << 20, 1 << 20),)),
        (Policy.layers(), ()),
        (Policy.host(seccomp=program), none),
        (Policy.host(limits=Limits(core_size=0)), none),
    ):
        plan = compile_policy(policy, DEBIAN)
        assert tuple(limit for limit in plan.rlimits if limit.name == "CORE") == expected
        rules = [rule for part in plan.programs for rule in part.rules if "setrlimit" in rule.calls]
        assert bool(rules) == (expected == none)


def test_core_dumps_that_no_limit_stops() -> None:
    """Where the caller's hard limit is 0, or core_pattern is a socket, the plan says that there is a handler."""
    bare = replace(DEBIAN, hard_limits=(("CORE", 0),))
    for host, limit, told in (
        (DEBIAN, 1, ""),
        (bare, 0, ""),
        (replace(DEBIAN, core_handler="pipe"), 1, ""),
        (replace(bare, core_handler="pipe"), 0, "hard limit is 0"),
        (replace(DEBIAN, core_handler="socket"), 1, "socket"),
    ):
        plan = compile_policy(workspace(), host)
        assert Rlimit("CORE", limit, limit) in plan.rlimits
        said = [text for text in plan.not_enforced if "core dumps" in text]
        assert [told in text for text in said] == ([True] if told else [])
        assert not [text for text in compile_policy(Policy.layers(), host).not_enforced if "core dumps" in text]


def test_what_is_counted_by_user() -> None:
    """A workspace has little of it unless it says how much; other policies keep the caller's limits."""
    few = [
        Rlimit("MEMLOCK", 1 << 20, 1 << 20),
        Rlimit("MSGQUEUE", 256 << 10, 256 << 10),
        Rlimit("SIGPENDING", 256, 256),
    ]
    assert [limit for limit in compile_policy(workspace(), DEBIAN).rlimits if limit.name != "CORE"] == few
    assert compile_policy(Policy.host(), DEBIAN).rlimits == compile_policy(Policy.layers(), DEBIAN).rlimits == ()
    more = compile_policy(workspace(limits=Limits(pending_signals=7, message_queues=0)), DEBIAN).rlimits
    assert {*more} >= {Rlimit("SIGPENDING", 7, 7), Rlimit("MSGQUEUE", 0, 0), few[0]}


def test_open_files_when_hardened() -> None:
    """So many descriptors that those in flight leave the caller some; where it has few itself, enough to run."""
    for soft, expected in ((1024, 512), (1 << 20, 1 << 19), (507, 253), (400, 146), (256, 64), (20, 10), (0, None)):
        found = compile_policy(workspace(seccomp="hardened"), replace(DEBIAN, open_files=soft)).rlimits
        assert {limit.name: limit.hard for limit in found}.get("NOFILE") == expected
    own = workspace(seccomp="hardened", limits=Limits(open_files=2000))
    assert Rlimit("NOFILE", 2000, 2000) in compile_policy(own, replace(DEBIAN, open_files=1024)).rlimits
    assert "NOFILE" not in {limit.name for limit in compile_policy(workspace(), replace(DEBIAN, open_files=99)).rlimits}


def test_limits_of_all_together() -> None:
    """They become files of a cgroup where its controllers were delegated, and an error that says why where not."""
    limits = Limits(total_memory="1G", cpus=1.5)
    plan = compile_policy(workspace(limits=limits), DELEGATED)
    assert plan.cgroup == "/sys/fs/cgroup/mine"
    assert dict(plan.cgroup_limits) == {
        "memory.max": str(1 << 30),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.max": "150000 100000",
    }
    assert "limits: memory.max 1073741824" in plan.enforced
    for host, words in (
        (DEBIAN, "there is no cgroup v2"),
        (replace(DEBIAN, cgroup_problem="cgroups are of version 1 here"), "version 1"),
        (replace(DELEGATED, cgroup_controllers=("pids", "cpu")), "without the controller memory"),
    ):
        with pytest.raises(UnavailableError, match=words) as caught:
            compile_policy(workspace(limits=limits), host)
        assert "limits.total_memory" in str(caught.value) and "Delegate=yes" in str(caught.value)
    assert compile_policy(workspace(), DELEGATED).cgroup == ""


def test_degrade() -> None:
    """A wish that may go unfulfilled does, where it must, and that is said; any other is still an error."""
    wishes = ("landlock", "limits.cpus", "limits.processes", "limits.total_memory")  # of those that namespaces may lack
    limits = Limits(total_memory="1G", cpus=1, processes=5)
    policy = workspace(limits=limits, landlock=True, degrade=wishes)
    plan = compile_policy(policy, ROOT)
    assert (plan.cgroup, plan.cgroup_limits, plan.ruleset) == ("", (), None)
    assert not any(limit.name == "NPROC" for limit in plan.rlimits)
    for wish in wishes:
        assert any(text.startswith(wish) for text in plan.not_enforced), wish
        with pytest.raises(UnavailableError, match=wish):
            compile_policy(policy.with_(degrade=set(wishes) - {wish}), ROOT)
    new = replace(DELEGATED, landlock_abi=7)
    assert not any(text.startswith(wishes) for text in compile_policy(policy, new).not_enforced)


def test_processes_by_cgroup() -> None:
    """Where RLIMIT_NPROC doesn't hold, pids.max does, with room for pid 1 and the set-up; else it isn't used."""
    policy = workspace(limits=Limits(processes=5))
    root = replace(ROOT, cgroup="/sys/fs/cgroup/mine", cgroup_controllers=("pids",))
    plan = compile_policy(policy, root)
    assert plan.cgroup_limits == (("pids.max", "8"),)
    assert not any(limit.name == "NPROC" for limit in plan.rlimits)
    plan = compile_policy(policy, DELEGATED)
    assert plan.cgroup_limits == ()
    assert Rlimit("NPROC", 5, 5) in plan.rlimits


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


def test_id_ranges() -> None:
    """The rows of an id map have names for their numbers, however they were given; a pickle keeps them."""
    host = replace(DEBIAN, uid_ranges=((0, 100000, 65536),))
    (row,) = host.uid_ranges
    assert (row.inside, row.outside, row.count) == (0, 100000, 65536)
    assert repr(row) == "IdRange(inside=0, outside=100000, count=65536)"
    assert host == replace(DEBIAN, uid_ranges=(row,)) == pickle.loads(pickle.dumps(host))
    assert [row.has(number) for number in (-1, 0, 65535, 65536)] == [False, True, True, False]
