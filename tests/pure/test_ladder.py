"""The ladder of backends: which is chosen, what it is made to do, and which wishes it refuses by name."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from nsbox_pure.hosts import CONTAINER_ROOT, DEBIAN, ROOT, VENV, workspace

from nsbox import (
    Bind,
    BindData,
    Dir,
    Filter,
    Host,
    Limits,
    Mask,
    Plan,
    Policy,
    PolicyError,
    RoBind,
    Rule,
    TmpOverlay,
    UnavailableError,
    explain,
)
from nsbox._backends import choose, compile_policy
from nsbox._plan.bwrap_words import arguments
from nsbox._policy.losses import LOSSES
from nsbox._seccomp.bpf import Program

NEW = replace(DEBIAN, landlock_abi=7)  # Landlock works there
REFUSED = replace(NEW, userns_error=errno.EPERM, userns_error_at="unshare", is_filtered=True)  # namespaces don't
WITH_BWRAP = replace(REFUSED, bwrap="/usr/bin/bwrap", bwrap_version=(0, 11, 0))
NOTHING = replace(REFUSED, landlock_abi=0)
MAC = Host(system="Darwin", kernel=(0, 0), core_problem="there is no C core for darwin")
SEATBELT = replace(MAC, core_problem="", seatbelt_ways=("compiled",), temporary="/private/var/t")

LACKED = {"attributes", "processes", "tmp"}  # of a workspace with a home, by Landlock alone


def by_landlock(**wishes: object) -> Policy:
    """Return a policy that lets Landlock alone contain it."""
    return workspace(**{"backend": "landlock", "degrade": LACKED, **wishes})


# ---- the choice


@pytest.mark.parametrize(
    ("host", "wishes", "expected"),
    [
        (NEW, {}, "namespaces"),
        (replace(NEW, bwrap="/usr/bin/bwrap"), {}, "namespaces"),
        (WITH_BWRAP, {}, "bwrap"),
        (REFUSED, {}, "landlock"),
        (NOTHING, {"require": "nothing"}, "passthrough"),
        (MAC, {"require": "nothing"}, "passthrough"),
        (SEATBELT, {}, "seatbelt"),
        (NEW, {"require": "nothing"}, "namespaces"),
        (WITH_BWRAP, {"require": "isolated"}, "bwrap"),
        (NEW, {"backend": "landlock"}, "landlock"),
        (replace(NEW, bwrap="/usr/bin/bwrap"), {"backend": "bwrap"}, "bwrap"),
        (NEW, {"backend": "passthrough", "require": "nothing"}, "passthrough"),
    ],
)
def test_choice(host: Host, wishes: dict[str, str], expected: str) -> None:
    """The first that can be used here and that the policy accepts, or the one that it names."""
    policy = workspace(**wishes)
    assert choose(policy, host)[0] == expected
    assert compile_policy(policy.with_(degrade=LOSSES), host).backend == expected


@pytest.mark.parametrize(
    ("host", "wishes", "words"),
    [
        (NOTHING, {}, ["namespaces: ", "bwrap: ", "landlock: ", "seccomp filter", "(unshare: EPERM)"]),
        (REFUSED, {"require": "isolated"}, ["namespaces: ", "install the package bubblewrap"]),
        (MAC, {}, ["no C core for darwin", "a wheel"]),
        (replace(SEATBELT, seatbelt_ways=()), {}, ["libsandbox has none"]),
        (replace(SEATBELT, seatbelt_problem="a sandbox already"), {}, ["seatbelt: a sandbox already"]),
        (MAC, {"require": "isolated"}, ["Darwin has no namespaces", "Darwin has no bubblewrap"]),
        (MAC, {"backend": "landlock"}, ["Darwin has no Landlock"]),
        (NEW, {"backend": "seatbelt"}, ["Linux has no Seatbelt"]),
        (WITH_BWRAP, {"backend": "namespaces"}, ["namespaces: "]),
        (replace(NEW, landlock_abi=1), {"backend": "landlock"}, ["version 1 of Landlock"]),
        (replace(WITH_BWRAP, bwrap_problem="setting up uid map: Permission denied"), {"backend": "bwrap"}, ["uid map"]),
        (replace(WITH_BWRAP, bwrap_version=(0, 4, 1)), {"backend": "bwrap"}, ["0.4.1", "0.8 or later"]),
        (replace(ROOT, bwrap="/usr/bin/bwrap"), {"backend": "bwrap"}, ["kernel settings", "ordinary user"]),
    ],
)
def test_none_is_left(host: Host, wishes: dict[str, str], words: list[str]) -> None:
    """When there is none that the policy accepts, the error says of each why, with the remedy."""
    with pytest.raises(UnavailableError) as caught:
        choose(workspace(**wishes), host)
    assert all(word in str(caught.value) for word in words)
    named = wishes.get("backend")
    if named is not None:  # of no other anything is said
        assert {reason.what.split(":")[0] for reason in caught.value.reasons} == {named}


def test_passed_over_backends_are_named() -> None:
    """explain() says which would have contained more, and why they can't be used; an error about a wish does too."""
    text = explain(by_landlock(backend="auto"), REFUSED)
    assert text.startswith("backend     landlock\nnot         namespaces: this process runs behind a seccomp filter")
    assert "not         bwrap: there is no /usr/bin/bwrap" in text
    with pytest.raises(UnavailableError) as caught:
        compile_policy(workspace(home="private"), REFUSED)
    whats = [reason.what for reason in caught.value.reasons]
    assert [what.split(":")[0] for what in whats[:2]] == ["namespaces", "bwrap"]
    assert caught.value.reasons[-1].remedy == 'degrade=["attributes", "namespaces"]'


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"backend": "podman"}, "namespaces, bwrap, seatbelt, landlock, passthrough"),
        ({"require": "all"}, "isolated, filesystem, nothing"),
        ({"backend": "passthrough"}, "say require='nothing'"),
        ({"backend": "landlock", "require": "isolated"}, "say require='filesystem'"),
        ({"degrade": {"time"}}, "'time' is unknown"),
    ],
)
def test_contradictions(wishes: dict[str, object], words: str) -> None:
    """A backend that contains less than is required, and names that nobody knows, are errors at once."""
    with pytest.raises(PolicyError, match=words):
        workspace(**wishes)


# ---- what isn't granted


@pytest.mark.parametrize(
    ("wish", "host", "wishes"),
    [
        ("processes", NEW, {}),
        ("attributes", NEW, {}),
        ("home", NEW, {"home": "private"}),
        ("tmp", NEW, {}),
        ("deny", NEW, {"deny": ["/home/me/repo/.env"]}),
        ("deny", NEW, {"deny": ["/etc/passwd"]}),
        ("read", NEW, {"read": ["/home/me/repo/vendor"]}),
        ("read", replace(VENV, landlock_abi=7), {}),
        ("secrets", replace(ROOT, landlock_abi=7), {}),
        ("hostname", NEW, {"hostname": "box"}),
        ("ids", NEW, {"uid": 0}),
        ("ids", NEW, {"ids": "full"}),
        ("limits.processes", NEW, {"limits": Limits(processes=3)}),
        ("limits.cpus", NEW, {"limits": Limits(cpus=3)}),
    ],
)
def test_what_landlock_lacks(wish: str, host: Host, wishes: dict[str, object]) -> None:
    """A wish that the backend can't grant is an error that names it, or is said when it may go unfulfilled."""
    policy = by_landlock(degrade=LOSSES, **wishes)
    plan = compile_policy(policy, host)
    assert sum(f"{wish}: " in text for text in plan.not_enforced) == 1
    with pytest.raises(UnavailableError, match=f"{wish}: "):
        compile_policy(policy.with_(degrade=set(LOSSES) - {wish}), host)
    assert compile_policy(policy.with_(degrade=(), require="nothing"), host).not_enforced == plan.not_enforced


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy.layers(RoBind("/", "/"), backend="landlock", degrade=LOSSES), "made of mounts"),
        (workspace(backend="landlock", degrade=LOSSES, nested=True), "nested=True"),
        (Policy.layers(TmpOverlay(("/usr",), "/usr"), backend="bwrap", degrade=LOSSES), "overlay"),
        (Policy.layers(RoBind("/", "/"), Mask("/etc"), backend="bwrap", degrade=LOSSES), "mask /etc"),
        (workspace(backend="bwrap", degrade=LOSSES, unshare={"time"}), "time"),
        (workspace(backend="bwrap", degrade=LOSSES, kill_on_exit=False), "kill_on_exit"),
        (workspace(backend="bwrap", degrade=LOSSES, deny=["/home/me/repo/.env"]), "--bind-fd"),
    ],
)
def test_what_cannot_be_left_out(policy: Policy, words: str) -> None:
    """Where the command would be another without it, there is no best effort."""
    with pytest.raises(UnavailableError, match=words):
        compile_policy(policy, WITH_BWRAP)


def test_what_bwrap_lacks() -> None:
    """One id only, no Landlock, and no limit of processes without a cgroup."""
    root = replace(CONTAINER_ROOT, bwrap="/usr/bin/bwrap", landlock_abi=7)
    for wish, policy in {
        "ids": Policy.host(backend="bwrap"),
        "landlock": workspace(backend="bwrap", landlock=True),
        "limits.processes": workspace(backend="bwrap", limits=Limits(processes=3)),
    }.items():
        with pytest.raises(UnavailableError, match=f"{wish}: "):
            compile_policy(policy, root)
        assert any(f"{wish}: " in text for text in compile_policy(policy.with_(degrade={wish}), root).not_enforced)


# ---- the plans


def rights(plan: Plan) -> dict[str, str]:
    """Return what Landlock allows, by path: r or rw, and whether the path may be missing or be a link."""
    assert plan.ruleset is not None
    found = {}
    for rule in plan.ruleset.paths:
        found[rule.path] = ("rw" if rule.rights & 2 else "r") + (" optional" if rule.optional else "")
        assert rule.nofollow is not rule.optional
    return found


def test_landlock_allows_what_the_policy_names() -> None:
    """System directories, the interpreter and /proc for reading, a few devices and the writable paths; nothing else."""
    plan = compile_policy(by_landlock(read=["/srv/data"], write=["/srv/out"]), NEW)
    found = rights(plan)
    assert found["/srv/data"] == "r"
    assert found["/home/me/repo"] == found["/srv/out"] == "rw"
    assert found["/usr"] == found["/proc"] == "r optional"
    assert found["/dev/null"] == "rw optional"
    for path in ("/", "/tmp", "/dev", "/dev/pts", "/run", "/home", "/sys", "/var"):
        assert path not in found
    assert (plan.ops, plan.namespaces, plan.plain) == ((), frozenset(), True)
    assert plan.ruleset is not None and plan.ruleset.scoped == 3
    assert plan.tmpdir == "/home/me/repo"


def test_denied_directories_are_not_allowed() -> None:
    """What is denied as a whole is simply not allowed: nothing is lacking."""
    plan = compile_policy(by_landlock(deny=["/opt", "/srv"]), NEW)
    assert "/opt" not in rights(plan)
    assert not any("deny" in text for text in plan.not_enforced)


def test_tmp_by_name() -> None:
    """A policy that names /tmp gets the host's, and lacks no private one."""
    plan = compile_policy(by_landlock(write=["/tmp"], degrade=LACKED - {"tmp"}), NEW)
    assert rights(plan)["/tmp"] == "rw"
    assert plan.tmpdir == "/tmp"


def refuses(plan: Plan, call: str) -> list[Rule]:
    return [rule for program in plan.programs for rule in program.rules if call in rule.calls and rule.errno]


def test_seccomp_stands_in_for_namespaces() -> None:
    """No sockets without a network, no unix sockets with it, no System V ipc; no truncation where Landlock doesn't know it."""
    off, on = (compile_policy(by_landlock(network=network, seccomp="off"), NEW) for network in ("none", "host"))
    assert any(not rule.when for rule in refuses(off, "socket"))
    assert [rule.when[0].values for rule in refuses(on, "socket")] == [(1,)]
    for plan in (off, on):
        assert refuses(plan, "shmget") and refuses(plan, "prlimit64") and refuses(plan, "io_uring_setup")
        assert not any(program.with_compatible for program in plan.programs)
        assert not refuses(plan, "truncate")
    old = compile_policy(by_landlock(), replace(NEW, landlock_abi=2))
    assert refuses(old, "truncate") and refuses(old, "openat")
    for plan in (old, off, on):
        assert refuses(plan, "openat2") and [program.stage for program in plan.programs] == ["early", "last"]
    assert all(refuses(plan, "socketpair") for plan in (off, on))
    free = Policy.host(backend="landlock", degrade={"processes"}, seccomp="off")
    host = compile_policy(free, NEW)
    assert not refuses(host, "socket") and not refuses(host, "shmget")
    assert host.programs[0].with_compatible
    for wishes in ({"network": "none"}, {"unshare": {"ipc"}}):  # which 32-bit programs have other numbers for
        assert not compile_policy(free.with_(**wishes), NEW).programs[0].with_compatible


@pytest.mark.parametrize("abi", [2, 3, 5, 6, 7])
def test_other_processes_are_closed_in_any_case(abi: int) -> None:
    """Also where no file is refused there is a domain, without which memory and environment of others are open."""
    plan = compile_policy(Policy.host(backend="landlock", degrade={"processes"}), replace(NEW, landlock_abi=abi))
    assert plan.ruleset is not None
    assert plan.ruleset.scoped if abi >= 6 else [rule.path for rule in plan.ruleset.paths] == ["/"]


def test_own_filters_come_along() -> None:
    """Programs and rules of the policy's own are the last ones, with every backend."""
    own = Filter(rules=(Rule("uname"),), programs=(b"\x06\0\0\0\0\0\xff\x7f",))
    for policy, host in ((by_landlock(seccomp=own), NEW), (workspace(seccomp=own, backend="bwrap"), WITH_BWRAP)):
        ready, rules = compile_policy(policy, host).programs[-2:]
        assert ready == Program(code=own.programs[0], stage="last")
        assert rules.stage == "last" and rules.rules[-1:] == own.rules


def test_bwrap_says_the_same_plan() -> None:
    """The ops are those of the namespaces backend, in the same order."""
    policy = workspace(deny=["/home/me/repo/.env"], read=["/srv/data"], tmp_size="1M", hostname="box", uid=0)
    plan = compile_policy(policy.with_(backend="bwrap"), replace(WITH_BWRAP, bwrap_binds_fds=True))
    assert plan.ops == compile_policy(policy, NEW).ops
    path, *options = plan.wrapper
    assert path == "/usr/bin/bwrap"
    assert {"--unshare-user", "--unshare-pid", "--unshare-net", "--die-with-parent", "--new-session"} <= set(options)
    assert options[options.index("--uid") + 1] == "0"
    assert options[options.index("--cap-drop") + 1] == "ALL"
    kinds = {"/home/me/repo/.env": "file", "/srv": "directory"}
    words = arguments(plan.ops, lambda p: kinds.get(p, "missing"), lambda _: 7)
    text = " ".join(words)
    assert "--perms 1777 --size 1048576 --tmpfs /tmp" in text
    assert "--ro-bind /srv/data /srv/data" in text
    assert "--bind /home/me/repo /home/me/repo" in text
    assert "--ro-bind /dev/null /home/me/repo/.env" in text
    assert "--hostname box" in text
    assert text.index("--bind /home/me/repo ") < text.index("/home/me/repo/.env") < text.rindex("--remount-ro /")


def test_bwrap_arguments() -> None:
    """Each op that it has an option for; contents by descriptor; masks by what is there."""
    ops = (
        Bind("/a", "/b", optional=True),
        Dir("/d", 0o700),
        BindData("/e", b"x", mode=0o400, read_only=True),
        Mask("/f", optional=True),
        Mask("/g"),
    )
    words = arguments(ops, lambda p: "directory" if p == "/g" else "missing", lambda data: len(bytes(data)))
    assert words == [
        *("--bind-try", "/a", "/b", "--perms", "0700", "--dir", "/d"),
        *("--perms", "0400", "--ro-bind-data", "1", "/e"),
        *("--perms", "0000", "--tmpfs", "/g", "--remount-ro", "/g"),
    ]
    with pytest.raises(UnavailableError, match="nothing to hide"):
        arguments((Mask("/f"),), lambda _: "missing", lambda _: 7)


def test_passthrough_promises_nothing() -> None:
    """It says so."""
    plan = compile_policy(workspace(backend="passthrough", require="nothing"), NEW)
    assert plan.enforced == ("environment: built, not inherited",)
    assert plan.not_enforced == ("everything else: the command can do whatever the caller can",)
