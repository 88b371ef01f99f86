"""Plans: which ops a policy means on a host.

Hosts are made by hand, so nothing here needs a kernel, a compiler or Linux. Snapshots are the text of explain() in
snapshots/*.txt, compared exactly. After a change that is meant to change plans, write them again and review the diff:

    NSBOX_SNAPSHOTS=write pytest tests/pure/test_plan.py
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.bpf import verdict
from nsbox_pure.hosts import (
    CONTAINER_ROOT,
    DEBIAN,
    LIMITED,
    NIX,
    OLD_LAYOUT,
    PYENV,
    RESOLVED,
    ROOT,
    SUBORDINATE,
    VENV,
    workspace,
)
from nsbox_pure.ops import DESCRIPTIONS

from nsbox import (
    Bind,
    Dev,
    Devpts,
    Host,
    Limits,
    Loopback,
    Mask,
    Network,
    Policy,
    PolicyError,
    Proc,
    RemountRo,
    RoBind,
    Tmpfs,
    TmpOverlay,
    UnavailableError,
    explain,
)
from nsbox._backends import compile_policy
from nsbox._core.wire import encode_programs
from nsbox._plan.plan import Identity
from nsbox._policy.losses import LOSSES
from nsbox._seccomp.bpf import MACHINES

NEWUSER = 0x10000000

EVERYTHING = Policy.layers(
    *(op for op, _ in DESCRIPTIONS if op != Proc("/proc", cover=True)),  # one is all that may be
    unshare={"ipc", "uts", "cgroup", "net", "time"},
)

# Namespaces are refused, as by a container's seccomp filter.
REFUSED = replace(DEBIAN, userns_error=1, userns_error_at="unshare", is_filtered=True)
DEGRADED = workspace(home="private", degrade={"attributes", "namespaces"})

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
    "network-list": (
        workspace(network=["api.example", "*.files.example", "10.1.2.0/24:5432", "localhost:8000", "!x.files.example"]),
        replace(DEBIAN, hostname="machine"),
    ),
    "network-list-resolved": (
        workspace(network=Network(allow=["time.example:123/udp"], private=True, tls="off", bytes="1G"), hostname="box"),
        replace(
            RESOLVED, network_files=(("/etc/resolv.conf", RESOLVED.resolv_conf or ""), ("/etc/hosts", "/etc/hosts"))
        ),
    ),
    "network-public-layers": (Policy.layers(RoBind("/", "/"), Dev("/dev"), Proc("/proc"), network="public"), DEBIAN),
    "deny": (workspace(deny=["/home/me/repo/.env", "/home/me/repo/secrets", "/opt/licences"]), DEBIAN),
    "deny-deep": (
        workspace(deny=["/home/me/repo/conf/prod/key"], read=["/home/me/repo/lib/vendor", "/home/me/repo/conf"]),
        DEBIAN,
    ),
    "deny-prefix": (
        workspace(deny=["/home/me/.pyenv", "/run"], network="host"),
        replace(PYENV, resolv_conf="/run/r.conf"),
    ),
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
        Policy.layers(
            RoBind("/usr", "/usr"), TmpOverlay(("/srv/a", "/srv/b"), "/srv/c"), hostname="box", unshare={"uts"}
        ),
        DEBIAN,
    ),
    "host": (Policy.host(), DEBIAN),
    "host-root": (Policy.host(), ROOT),
    "kernel-id": (workspace(nested=True), replace(ROOT, kernel_id=0x70000001, owners=(("/home/me/repo", 1000, 1000),))),
    "kernel-id-missing": (workspace(), replace(ROOT, unmapped="no idmapped mount of /work: it is one already")),
    "host-contained": (
        Policy.host(network="none", new_session=True, inherit_env=False, unshare={"ipc", "uts"}, hostname="box"),
        DEBIAN,
    ),
    "ids-full": (workspace(ids="full", uid=1234, gid=1234), ROOT),
    "ids-full-subordinate": (workspace(ids="full", uid=0, gid=0), SUBORDINATE),
    "nested": (workspace(nested=True), DEBIAN),
    **{f"degraded-abi{abi}": (DEGRADED, replace(REFUSED, landlock_abi=abi)) for abi in (2, 3, 4, 5, 6, 7)},
    "degraded-root": (
        DEGRADED.with_(degrade={"attributes", "namespaces", "secrets"}),
        replace(ROOT, userns_error=1, userns_error_at="unshare", is_filtered=True, landlock_abi=7),
    ),
    "degraded-all-lost": (
        workspace(
            read=["/home/me/repo/.venv"],
            deny=["/home/me/repo/.env"],
            network=["api.example:443"],
            hostname="box",
            uid=0,
            limits=Limits(processes=64, total_memory="1G"),
            home="private",
            degrade=LOSSES,
        ),
        replace(REFUSED, landlock_abi=4),
    ),
    "degraded-bwrap": (
        DEGRADED.with_(landlock=True, degrade={"attributes", "landlock", "namespaces"}),
        replace(REFUSED, landlock_abi=7, bwrap="/usr/bin/bwrap", bwrap_version=(0, 11, 0)),
    ),
    "degraded-nothing-lost": (DEGRADED, DEBIAN),
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
    """Whatever the ranges: each subordinate id and the own one is mapped once, the own to itself, without gaps."""
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


# ---- namespaces, layers, host


def test_namespaces() -> None:
    """The plan unshares what the policy says, and net exactly when the network is off."""
    assert compile_policy(workspace(), DEBIAN).namespaces == {"user", "mount", "pid", "ipc", "uts", "cgroup", "net"}
    assert compile_policy(workspace(network="host"), DEBIAN).namespaces == {
        "user",
        "mount",
        "pid",
        "ipc",
        "uts",
        "cgroup",
    }
    assert compile_policy(Policy.host(), DEBIAN).namespaces == {"user", "mount", "pid"}
    assert compile_policy(Policy.layers(unshare={"net", "time"}), DEBIAN).namespaces == {
        "user",
        "mount",
        "pid",
        "net",
        "time",
    }


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
    """The machine's uid 0 could write to /proc/sys by plain file permissions: read-only, in each base.

    For others it is in a workspace, where namespaces of their own have settings.
    """
    for policy in (workspace(), Policy.host(), Policy.layers(Proc("/p"))):
        procs = [op for op in compile_policy(policy, ROOT).ops if isinstance(op, Proc)]
        assert [op.cover for op in procs] == [True]
        own = "sys" if policy.base == "workspace" else False
        assert [op.cover for op in compile_policy(policy, DEBIAN).ops if isinstance(op, Proc)] == [own]
    nested = compile_policy(workspace(nested=True), DEBIAN).ops
    assert Proc("/proc") in nested  # fully visible, so that another can be mounted inside


def test_below_a_linked_directory() -> None:
    """A bind below /bin, where that is a link to usr/bin, would be elsewhere: refused by the field that wishes it."""
    for name, policy in (("read", workspace(read=["/bin/x"])), ("write", workspace(write=["/bin/x"]))):
        with pytest.raises(PolicyError, match="/bin") as caught:
            compile_policy(policy, DEBIAN)
        assert caught.value.field == name
        compile_policy(policy, OLD_LAYOUT)


def test_settings_are_covered_where_uid_0_can_be_wished() -> None:
    """A caller that may map all ids can wish for the machine's uid 0: the same care as if it were that itself."""
    mapper = replace(DEBIAN, can_set_ids=True)
    for policy in (workspace(ids="full", uid=0), workspace(ids="auto", uid=0), workspace(ids="full")):
        ops = compile_policy(policy, mapper).ops
        assert Proc("/proc", cover=True) in ops
        assert Mask("/proc/kcore", optional=True) in ops
    assert Proc("/proc", cover=True) not in compile_policy(workspace(uid=0), mapper).ops  # kernel uid 1000


def test_pins() -> None:
    """Directories between a writable path and what is hidden or read-only in it can't be renamed: they are mounts."""
    ops = compile_policy(workspace("/w", deny=["/w/a/b/key", "/w/.env"], read=["/w/lib/vendor"]), DEBIAN).ops
    pins = [op.dest for op in ops if type(op) is Bind and op.nofollow and op.optional]
    assert pins == ["/w/a", "/w/lib", "/w/a/b"]


def test_groups() -> None:
    """Where the caller may drop its supplementary groups, they are dropped, except under a host policy; where it may not, the plan says so."""
    for policy, host, dropped in (
        (workspace(), ROOT, True),
        (workspace(nested=True), ROOT, True),
        (Policy.layers(), ROOT, True),
        (Policy.host(), ROOT, False),
        (workspace(), DEBIAN, False),
        (workspace(), replace(ROOT, can_set_groups=False), False),
    ):
        plan = compile_policy(policy, host)
        assert plan.drop_groups is dropped
        assert host.can_set_groups or any(text.startswith("groups:") for text in plan.not_enforced)


def test_no_user_namespaces_inside() -> None:
    """A command that could be the machine's uid 0, or could leave the pins behind, gets no user namespaces."""
    mapper = replace(DEBIAN, can_set_ids=True)
    for policy, host, refused_inside in (
        (workspace(), ROOT, True),
        (Policy.layers(), ROOT, True),
        (Policy.host(), ROOT, False),
        (workspace(nested=True), ROOT, False),
        (workspace(), DEBIAN, False),
        (workspace(ids="full"), mapper, True),
        (workspace(), mapper, False),
        (workspace(deny=["/home/me/repo/.env"]), DEBIAN, True),
        (workspace(read=["/home/me/repo/lib"]), DEBIAN, True),
        (workspace(write=["/home/me/repo/a/b"]), DEBIAN, True),
        (workspace(read=["/srv"], deny=["/srv/x"]), DEBIAN, False),
    ):
        for choice in ("off", "default"):
            wish = policy.with_(seccomp=choice)
            plan = compile_policy(wish, host)
            codes = encode_programs(plan.programs, "x86_64", {"unshare": 272, "clone": 56, "clone3": 435})
            refused = (choice == "default" and not wish.may_nest) or refused_inside
            for flags in (NEWUSER, NEWUSER | 0x20000 | 1 << 32):
                assert (verdict(codes, MACHINES["x86_64"], 272, [flags]) != 0) is refused, policy
                assert (verdict(codes, MACHINES["x86_64"], 56, [flags | 17]) != 0) is refused, policy
            assert (verdict(codes, MACHINES["x86_64"], 435) != 0) is not wish.may_give_children
            if choice == "off":
                assert (verdict(codes, MACHINES["i386"], 310, [NEWUSER]) != 0) is refused
                assert verdict(codes, MACHINES["i386"], 310, [0x20000]) == 0


def test_what_is_said() -> None:
    """What isn't enforced is said: the network, the terminal and the files of a policy that leaves them open."""
    said = {
        name: " / ".join(compile_policy(policy, DEBIAN).not_enforced)
        for name, (policy, _) in SNAPSHOTS.items()
        if name in ("host", "workspace", "network")
    }
    assert "network" in said["host"] and "terminal" in said["host"] and "files" in said["host"]
    assert "network" in said["network"]
    assert not any(word in said["workspace"] for word in ("network", "terminal", "files"))
