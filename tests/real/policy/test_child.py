"""child(): whatever is wished for, a child's policy allows nothing that its parent doesn't."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsbox import AccessError, Filter, Limits, Network, PathRule, Policy, PolicyError, Sandbox

DIRECTORIES = ("ws", "ws/a", "ws/a/b", "ws/ro", "ws/ro/in", "ws/hidden", "lib", "lib/in", "outside")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in DIRECTORIES:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "file").write_text(name)
    return tmp_path


@pytest.fixture
def parent(tree: Path) -> Policy:
    return Policy.workspace(
        tree / "ws",
        read=[tree / "ws/ro", tree / "lib"],
        deny=[tree / "ws/hidden"],
        env={"A": "1", "B": "2"},
        pass_env=["TOKEN"],
        limits=Limits(memory="1G", open_files=100),
        tmp_size="10M",
        protected=["SOUL.md"],
        paths=[PathRule("lib", str(tree / "lib"), (".md", ".txt"), 100)],
    )


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"write": ["outside"]}, "write"),
        ({"write": ["lib"], "read": ["ws/ro"]}, "write"),
        ({"write": ["ws/ro/in"]}, "write"),
        ({"read": ["outside"]}, "read"),
        ({"write": ["ws"], "read": ["lib"]}, "read"),  # ws/ro would be writable
        ({"read": [], "write": ["ws"]}, "read"),
        ({"network": "host"}, "network"),
        ({"seccomp": "off"}, "seccomp"),
        ({"seccomp": Filter(base="default")}, "seccomp"),
        ({"symlinks": "beneath"}, "symlinks"),
        ({"env": {"A": "other"}}, "env"),
        ({"env": {"NEW": "x"}}, "env"),
        ({"pass_env": ["TOKEN", "OTHER"]}, "pass_env"),
        ({"inherit_env": True}, "inherit_env"),
        ({"limits": Limits(memory="2G")}, "limits.memory"),
        ({"limits": Limits(open_files=101)}, "limits.open_files"),
        ({"tmp_size": None}, "tmp_size"),
        ({"tmp_size": "11M"}, "tmp_size"),
        ({"new_session": False}, "new_session"),
        ({"kill_on_exit": False}, "kill_on_exit"),
        ({"nested": True}, "nested"),
        ({"require": "nothing"}, "require"),
        ({"degrade": ["deny"]}, "degrade"),
        ({"ids": "full"}, "ids"),
        ({"uid": 0}, "uid"),
        ({"home": "/other"}, "home"),
        ({"tools_bin": "lib"}, "tools_bin"),
        ({"paths": []}, "paths"),
    ],
)
def test_more_is_refused(parent: Policy, tree: Path, wishes: dict, field: str) -> None:
    """Each wish by its name."""
    for name in ("write", "read"):
        if name in wishes:
            wishes = wishes | {name: [tree / path for path in wishes[name]]}
    if "tools_bin" in wishes:
        wishes = wishes | {"tools_bin": tree / wishes["tools_bin"]}
    with pytest.raises(PolicyError) as raised:
        parent.child(**wishes)
    assert raised.value.field == field


@pytest.mark.parametrize("name", ["write", "read", "deny", "protected", "attach", "pass_env"])
def test_one_name_is_no_sequence(parent: Policy, name: str) -> None:
    """As everywhere else."""
    with pytest.raises(PolicyError, match=f"{name}: is a str, must be a sequence"):
        parent.child(**{name: "file"})


def test_less_is_granted(parent: Policy, tree: Path) -> None:
    """Fewer paths, variables and limits; deny and protected names add up; what isn't said stays."""
    child = parent.child(
        write=[tree / "ws/a"],
        read=[tree / "ws/ro/in"],
        deny=[tree / "ws/a/b"],
        env={"A": "1"},
        pass_env=[],
        limits=Limits(memory="512M", cpu_seconds=10),
        protected=["USER.md"],
        seccomp="hardened",
        tmp_size="1M",
    )
    assert child.limits == Limits(memory="512M", cpu_seconds=10, open_files=100)
    assert child.deny == (str(tree / "ws/hidden"), str(tree / "ws/a/b"))
    assert child.protected == ("SOUL.md", "USER.md")
    assert parent.child() == parent
    with Sandbox(child) as box:
        assert box.shell("cat file; echo $A$B").stdout == "ws/a1\n"
        assert box.shell(f"cat {tree}/ws/file").returncode != 0
        assert box.shell(f"cat {tree}/ws/ro/in/file").stdout == "ws/ro/in"
        assert box.shell("cat b/file").returncode != 0
    assert child.child(env={}).env == ()


def test_attachments(parent: Policy, tree: Path) -> None:
    """Found as the parent's commands would find them, and readable for the child."""
    (tree / "ws/link").symlink_to("a/b/file")
    child = parent.child(write=[tree / "ws/ro"][:0], read=[tree / "lib"], attach=["link", tree / "ws/a/file"])
    assert child.read[-2:] == (str(tree / "ws/a/b/file"), str(tree / "ws/a/file"))
    with Sandbox(child) as box:
        assert box.shell(f"cat {tree}/ws/a/b/file").stdout == "ws/a/b"
        assert box.shell(f"echo x > {tree}/ws/a/b/file").returncode != 0
    assert parent.child(attach=["/etc/passwd"]) == parent  # which every workspace shows
    for wrong in ("hidden/file", "../outside/file"):
        with pytest.raises(AccessError):
            parent.child(attach=[wrong])


def test_rules_are_carried_on(parent: Policy, tree: Path) -> None:
    """For what is below the directory of a rule, and for what is attached; a stricter one will do, a laxer one not."""
    (tree / "lib/in/a.md").write_text("x")
    for child in (
        parent.child(write=[], read=[tree / "lib/in"]),
        parent.child(write=[], read=[], attach=[tree / "lib/in/a.md"]),
    ):
        (rule,) = child.paths
        assert (rule.suffixes, rule.max_file_bytes) == ((".md", ".txt"), 100)
    below = str(tree / "lib/in")
    stricter = PathRule("x", below, (".md",), 10)
    assert parent.child(write=[], read=[below], paths=[stricter]).paths == (stricter,)
    for laxer in (PathRule("x", below, (".md",)), PathRule("x", below, (".exe",), 10), PathRule("x", below, (), 10)):
        with pytest.raises(PolicyError, match="the parent's rule lib has to hold for"):
            parent.child(write=[], read=[below], paths=[laxer])


def test_other_policies(tree: Path) -> None:
    """Only workspaces have children."""
    with pytest.raises(PolicyError, match="a host policy has no paths that could be fewer"):
        Policy.host().child()


def test_a_child_never_exceeds_its_parent(parent: Policy, tree: Path) -> None:
    """For any wishes that are granted: no path, variable or limit is more than the parent's."""
    paths = st.lists(st.sampled_from([str(tree / name) for name in DIRECTORIES]), max_size=3, unique=True)
    wishes = st.fixed_dictionaries(
        {},
        optional={
            "write": paths,
            "read": paths,
            "deny": paths,
            "network": st.sampled_from(["none", "host"]),
            "env": st.dictionaries(st.sampled_from("ABC"), st.sampled_from("12")),
            "pass_env": st.lists(st.sampled_from(["TOKEN", "OTHER"]), unique=True),
            "limits": st.builds(
                Limits, memory=st.sampled_from([None, 1 << 29, 1 << 31]), open_files=st.sampled_from([None, 50, 200])
            ),
            "seccomp": st.sampled_from(["off", "default", "hardened"]),
        },
    )
    asked = [tree / name / "file" for name in DIRECTORIES]

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(wishes)
    def check(given: dict) -> None:
        try:
            child = parent.child(**given)
        except PolicyError:
            return
        for path in asked:
            assert parent.can_read(path) >= child.can_read(path)
            assert parent.can_write(path) >= child.can_write(path)
        assert (parent.network, child.network) != ("none", "host")
        caller = {"TOKEN": "t", "OTHER": "o"}
        ours, theirs = child.environment(caller, "/bin"), parent.environment(caller, "/bin")
        assert ours.items() <= theirs.items()
        assert child.limits.memory <= parent.limits.memory
        assert child.limits.open_files <= parent.limits.open_files
        assert child.seccomp in ("default", "hardened")

    check()


# ---- what follows from names alone


def test_what_the_parent_has_hidden_stays_so(tmp_path: Path) -> None:
    """A path that is named by itself is no secret, and no interpreter; not for a child."""
    (tmp_path / "ws").mkdir()
    parent = Policy.workspace(tmp_path / "ws", read=["/etc"])
    if parent.can_read("/etc/shadow"):
        pytest.skip("it isn't hidden from who can't read it")
    with pytest.raises(PolicyError, match="/etc/shadow is hidden from the parent"):
        parent.child(read=["/etc/shadow"])
    assert Policy.workspace(tmp_path / "ws", read=["/etc/shadow"]).can_read("/etc/shadow")  # the control


def test_the_interpreter_stays_read_only(tmp_path: Path) -> None:
    """Where it lies in the parent's workspace, it can't be the child's to write."""
    prefix = Path(sys.prefix).resolve()
    parent = Policy.workspace(prefix.parent, write=[prefix.parent])  # it may have a home in it
    assert not parent.can_write(prefix / "lib/x")
    for path in (prefix, prefix / "lib"):
        with pytest.raises(PolicyError, match="is hidden from the parent, or read-only"):
            parent.child(write=[path])


def test_weaker_backends_and_environments(parent: Policy, tree: Path) -> None:
    """Where the parent's is chosen by the machine, a child's isn't chosen lower; no variable of the caller comes back."""
    lenient = parent.with_(require="nothing")
    for backend in ("passthrough", "landlock"):
        with pytest.raises(PolicyError, match="backend"):
            lenient.child(backend=backend)
    inherits = parent.with_(inherit_env=True)
    with pytest.raises(PolicyError, match="would be the caller's"):
        inherits.child(env={"A": "1"})
    with pytest.raises(PolicyError, match="TERM would be another"):
        parent.with_(env={"TERM": "x"}).child(env={})
    with pytest.raises(PolicyError, match="core_size"):
        parent.child(limits=Limits(core_size="1G"))


def test_an_empty_list_is_no_more_than_none(tree: Path) -> None:
    """A child may record what it tries, whatever the parent has; the control: one entry is more than "none"."""
    parent = Policy.workspace(tree)
    assert parent.child(network=[]).network == Network()
    listed = parent.with_(network=Network(allow=["a.example"], deny=["b.example"], private=True))
    assert listed.child(network=[]).network == Network(deny=["b.example"], private=True)
    with pytest.raises(PolicyError, match="a list is more than the parent's 'none'"):
        parent.child(network=["a.example"])
