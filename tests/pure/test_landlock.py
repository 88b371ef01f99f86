"""Landlock rulesets: which rights the ops of a plan come to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.hosts import DEBIAN, PYENV, ROOT, VENV, workspace

from nsbox import (
    Bind,
    BindData,
    BindFd,
    Dev,
    Device,
    Op,
    Policy,
    PolicyError,
    Proc,
    RemountRo,
    RoBind,
    Symlink,
    Tmpfs,
    TmpOverlay,
    UnavailableError,
)
from nsbox._backends import compile_policy
from nsbox._core.wire import RuleRow, RulesetRow, encode_ruleset
from nsbox._plan.landlock import Ruleset, ruleset

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REFER, TRUNCATE, IOCTL = 1, 2, 4, 8, 1 << 13, 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
ALL = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF, 6: 0xFFFF, 7: 0xFFFF, 9: 0xFFFF}


def given_rights(rules: Ruleset, path: str) -> int:
    """Return the rights on a path, as the kernel adds them up on the way to the root."""
    found = 0
    for rule in rules.paths:
        if rule.path in ("/", path) or path.startswith(rule.path + "/"):
            found |= rule.rights
    return found & rules.files


@pytest.mark.parametrize("abi", [2, 3, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("host", [DEBIAN, ROOT, VENV, PYENV])
def test_workspace(abi: int, host: object) -> None:
    """Everything is readable as far as it is mounted; the workspace and the sandbox's own file systems are writable."""
    policy = workspace(landlock=True, write=["/srv/out"], read=["/srv/out/in"])
    rules = compile_policy(policy, replace(host, landlock_abi=abi)).ruleset  # type: ignore[type-var]
    assert rules is not None and rules.files == ALL[abi]
    assert rules.scoped == (3 if abi >= 6 else 0)
    for path in ("/home/me/repo/src/x", "/tmp/x", "/dev/null", "/dev/shm/x", "/proc/self/comm", "/srv/out/x"):
        assert given_rights(rules, path) == ALL[abi], path
    for path in ("/usr/bin/sh", "/etc/passwd", "/home/me", "/var", "/srv", "/"):
        assert given_rights(rules, path) == READ, path


@calm
@given(
    st.lists(
        st.one_of(
            st.builds(Bind, st.just("/x"), st.sampled_from(["/a", "/a/b", "/a/b/c", "/d"])),
            st.builds(RoBind, st.just("/x"), st.sampled_from(["/a", "/a/b", "/d"])),
            st.builds(Tmpfs, st.sampled_from(["/a", "/a/b", "/e"])),
            st.builds(RemountRo, st.sampled_from(["/", "/a", "/a/b", "/e"])),
        ),
        max_size=8,
    )
)
def test_never_stricter_than_the_mounts(ops: list[Op]) -> None:
    """Whatever the ops, a place that they leave writable has all rights, and no rule is inside of another's place."""
    rules = ruleset(ops, 7)
    writable = {"/": True}
    for op in ops:
        dest: str = op.dest  # type: ignore[attr-defined]
        if not isinstance(op, RemountRo):  # a mount covers what was below
            writable = {path: value for path, value in writable.items() if not path.startswith(dest + "/")}
        writable[dest] = isinstance(op, Bind | Tmpfs)
    for path, is_writable in writable.items():
        if is_writable:
            assert given_rights(rules, path) == ALL[7]
        assert given_rights(rules, path) & READ == READ
    if not writable["/"]:
        assert given_rights(rules, "/elsewhere") == READ
    paths = [rule.path for rule in rules.paths if rule.path != "/"]
    assert not any(a != b and a.startswith(b + "/") for a in paths for b in paths)
    assert len(paths) == len(set(paths))


def test_ops_that_are_written_to() -> None:
    """Each kind of op that a command can write to has a rule; those that it can't have none."""
    ops = (
        *(Tmpfs("/tmp"), Dev("/dev"), Proc("/proc"), TmpOverlay(("/x",), "/overlay")),
        *(BindFd(3, "/fd"), BindFd(4, "/fd-ro", read_only=True)),
        *(Device("/dev/null", "/null"), Bind("/x", "/covered/below"), RoBind("/y", "/covered")),
        *(BindData("/data", b""), BindData("/data-ro", b"", read_only=True), Bind("/x", "/maybe", optional=True)),
        RemountRo("/"),
    )
    rules = ruleset(ops, 7)
    assert {rule.path for rule in rules.paths} == {
        *("/", "/tmp", "/dev", "/proc", "/overlay", "/fd", "/data", "/maybe", "/null")
    }
    assert {rule.path for rule in rules.paths if rule.optional} == {"/maybe"}
    assert rules.paths[0].rights == READ


def test_what_reaches_below() -> None:
    """/run and /var/tmp have no rights where something is bound read-only below them; the plan names those that keep theirs."""
    host = replace(DEBIAN, landlock_abi=7)
    for place, more in (("/var/tmp", []), ("/run", ["/"])):
        for read, write, rights in (
            ([], [f"{place}/mine"], ALL[7]),
            ([f"{place}/app"], [], READ),
            ([f"{place}/app"], [f"{place}/mine"], READ),
        ):
            plan = compile_policy(workspace(landlock=True, read=[*more, *read], write=write), host)
            assert plan.ruleset is not None
            assert Tmpfs(place, mode=0o1777 if place == "/var/tmp" else 0o755) in plan.ops
            assert given_rights(plan.ruleset, f"{place}/x") == rights
            assert all(given_rights(plan.ruleset, path) == ALL[7] for path in (*write, "/tmp"))
            assert all(given_rights(plan.ruleset, path) == READ for path in read)
            assert "FIFOs: those in visible directories can be read empty" in plan.not_enforced
    plan = compile_policy(workspace(landlock=True, read=["/tmp/app", "/var/tmp/app"]), host)
    (said,) = (text for text in plan.not_enforced if "FIFO" in text)
    assert said.endswith("; below /tmp they can be written to, also in read-only directories")
    layers = compile_policy(Policy.layers(RoBind("/", "/"), Tmpfs("/run"), RoBind("/x", "/run/x"), landlock=True), host)
    assert layers.ruleset is not None
    assert given_rights(layers.ruleset, "/run/x") == ALL[7]
    assert any("below /run they can" in text for text in layers.not_enforced)


def test_layers_behind_links() -> None:
    """What the policy's own links lead to counts where it lies: a mount made read-only, one below a writable one."""
    host = replace(DEBIAN, landlock_abi=7)
    start = (RoBind("/", "/"), Tmpfs("/run"), Symlink("/run", "/run/l"), Symlink("l/l", "/run/m"))
    frozen = compile_policy(Policy.layers(*start, RemountRo("/run/m"), landlock=True), host).ruleset
    assert frozen is not None
    assert given_rights(frozen, "/run") == READ
    layers = compile_policy(Policy.layers(*start, Tmpfs("/run/m/t"), landlock=True), host)
    assert layers.ruleset is not None
    assert {rule.path for rule in layers.ruleset.paths} == {"/", "/run"}
    behind = Policy.layers(*start, RoBind("/x", "/run/m/x"), landlock=True)
    assert any("below /run they can" in text for text in compile_policy(behind, host).not_enforced)
    elsewhere = Policy.layers(*start, Symlink("/srv", "/run/s"), RoBind("/x", "/run/s/x"), landlock=True)
    assert not any("below /run they can" in text for text in compile_policy(elsewhere, host).not_enforced)


def test_only_scopes() -> None:
    """Without landlock=True there is a ruleset where it costs nothing and holds something: no net namespace, ABI 6."""
    for abi, network, expected in (
        (6, "host", Ruleset(scoped=3)),
        (7, "host", Ruleset(scoped=3)),
        (5, "host", None),
        (7, "none", None),
        (0, "host", None),
    ):
        plan = compile_policy(workspace(network=network), replace(DEBIAN, landlock_abi=abi))
        assert plan.ruleset == expected
        said = " / ".join(plan.not_enforced)
        assert ("abstract" in said) is (network == "host" and expected is None)
        assert any("abstract" in text for text in plan.enforced) is (expected is not None)
    new = replace(DEBIAN, landlock_abi=7)
    assert compile_policy(Policy.host(), new).ruleset is None
    assert compile_policy(Policy.layers(), new).ruleset is None


@pytest.mark.parametrize("abi", [0, 1])
def test_unavailable(abi: int) -> None:
    """Asked for where the kernel lacks it, it is an error that says what would help; never less in silence."""
    with pytest.raises(UnavailableError, match=r"landlock: this kernel has .* Linux 5\.19"):
        compile_policy(workspace(landlock=True), replace(DEBIAN, landlock_abi=abi))


def test_what_it_changes_of_what_is_said() -> None:
    """The limit about descriptors goes."""
    plan = compile_policy(workspace(landlock=True), replace(DEBIAN, landlock_abi=7))
    assert not any(text.startswith("descriptors:") for text in plan.not_enforced)
    assert any("by Landlock" in text for text in plan.enforced)


@pytest.mark.parametrize("wishes", [{"landlock": 1}, {"landlock": "yes"}, {"landlock": True, "nested": True}])
def test_malformed(wishes: dict[str, object]) -> None:
    """What makes no sense is refused by name."""
    with pytest.raises(PolicyError) as caught:
        workspace(**wishes)
    assert caught.value.field == "landlock"


def test_encoding() -> None:
    """As _core.call takes it: paths as the kernel gets them."""
    assert encode_ruleset(None) is None
    rules = ruleset((Bind("/x", "/sp ace", optional=True), RemountRo("/")), 2)
    rows = RuleRow(b"/\0", READ, 0), RuleRow(b"/sp ace\0", 0x3FFF, 4)
    assert encode_ruleset(rules) == RulesetRow(0x3FFF, 0, 0, rows)


@pytest.mark.parametrize("wish", [workspace(), Policy.host()], ids=lambda wish: wish.base)
def test_tcp(wish: Policy) -> None:
    """Without namespaces and without a network there is no TCP either, where the kernel knows it (ABI 4)."""
    wish = wish.with_(backend="landlock", degrade={"attributes", "namespaces", "secrets"})
    for abi, network, net in ((4, "none", 3), (7, "none", 3), (3, "none", 0), (7, "host", 0)):
        plan = compile_policy(wish.with_(network=network), replace(DEBIAN, landlock_abi=abi))
        assert plan.ruleset is not None and plan.ruleset.net == net
        assert any("TCP" in text for text in plan.enforced) is bool(net)
