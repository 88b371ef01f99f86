"""From bubblewrap's words to a policy, and from a plan back to these words."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsbox import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Details,
    Dev,
    DevBind,
    Dir,
    File,
    Hostname,
    Mask,
    Op,
    Overlay,
    Policy,
    PolicyError,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    Symlink,
    Tmpfs,
    TmpOverlay,
)
from nsbox._backends import compile_policy
from nsbox._plan.host import Host
from nsbox._plan.plan import Plan

HOST = Host(euid=os.geteuid(), egid=os.getegid(), can_set_ids=os.geteuid() == 0, can_set_groups=os.geteuid() == 0)

texts = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
names = texts.filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
fds = st.integers(0, 2**31 - 1)
modes = st.integers(0, 0o7777)
lower = st.lists(paths, min_size=2, max_size=4).map(tuple)
ops: st.SearchStrategy[Op] = st.one_of(
    *(st.builds(kind, paths, paths, st.booleans()) for kind in (Bind, RoBind, DevBind)),
    st.builds(BindFd, fds, paths, st.booleans()),
    st.builds(Tmpfs, paths, st.none() | st.integers(1, 2**63 - 1), modes),
    st.builds(File, paths, fds, modes),
    st.builds(BindData, paths, fds, modes, st.booleans()),
    st.builds(Dir, paths, modes),
    st.builds(Chmod, paths, modes),
    st.builds(Symlink, texts, paths),
    st.builds(Overlay, lower, paths, paths, paths),
    st.builds(RoOverlay, lower, paths),
    st.builds(TmpOverlay, lower, paths),
    st.builds(RemountRo, paths),
    st.builds(Dev, paths),
    st.just(Hostname("inside")),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Draw what bwrap's command line can say, as it comes out of there."""
    joins = draw(st.booleans())
    details = Details(
        capabilities=()
        if joins
        else draw(st.lists(st.sampled_from(("CAP_KILL", "CAP_NET_RAW")), unique=True).map(tuple)),
        userns=draw(fds) if joins else None,
        disable_userns=not joins and draw(st.booleans()),
        assert_userns_disabled=draw(st.booleans()),
        host_writes=True,
        die_with_parent=draw(st.booleans()),
        share=draw(st.sampled_from((frozenset(), frozenset({"pid"})))),
    )
    return Policy.layers(
        *draw(st.lists(ops, max_size=6)),
        unshare={"uts", *draw(st.sets(st.sampled_from(("ipc", "net", "cgroup"))))},
        uid=draw(st.none() | st.integers(0, 2**31 - 1)),
        gid=draw(st.none() | st.integers(0, 2**31 - 1)),
        new_session=draw(st.booleans()),
        nested=True,
        kill_on_exit=False,
        details=details,
    )


def plan_of(policy: Policy) -> Plan:
    return compile_policy(policy, HOST)


@given(policy=policies())
def test_there_and_back(policy: Policy) -> None:
    """A plan, said in bwrap's words, read as a policy, and planned: the same plan; and the same words again."""
    plan = plan_of(policy)
    words = plan.to_bwrap()
    again = plan_of(Policy.from_bwrap(["bwrap", *words]))
    assert again == plan
    assert again.to_bwrap() == words


@given(policy=policies(), order=st.randoms())
def test_order_of_what_has_none(policy: Policy, order: Any) -> None:
    """Options that aren't about files may stand anywhere, in any order but that of capabilities."""
    plan = plan_of(policy)
    free = [["--unshare-net"], ["--new-session"], ["--die-with-parent"], ["--unshare-ipc"]]
    order.shuffle(free)
    words = plan.to_bwrap()
    before = [word for option in free[:2] for word in option]
    after = [word for option in free[2:] for word in option]
    assert plan_of(Policy.from_bwrap([*before, *words, *after])) == plan_of(
        Policy.from_bwrap([*words, *before, *after])
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--nosuch"], "Unknown option --nosuch"),
        (["--help"], "--help"),
        (["--ro-bind", "/", "/", "sh"], "has a command"),
        (["--ro-bind", "/", "/", "--", "sh"], "has a command"),
        (["--info-fd", "3"], "--info-fd"),
        (["--lock-file", "/l"], "--lock-file"),
        (["--argv0", "x"], "--argv0"),
        (["--clearenv"], "env="),
        (["--unshare-user", "--unshare-pid", "--as-pid-1"], "--as-pid-1"),
        (["--pidns", "3"], "--pidns"),
        (["--unshare-user", "--cap-add", "ALL", "--userns", "3"], "--userns"),
    ],
)
def test_no_policy(argv: list[str], said: str) -> None:
    """What bwrap refuses, and what isn't a policy's, is an error that names it."""
    with pytest.raises(PolicyError) as caught:
        Policy.from_bwrap(argv)
    assert said in str(caught.value)


def test_what_it_says() -> None:
    """The words of a usual command line, as a policy."""
    policy = Policy.from_bwrap(
        [
            "bwrap",
            "--ro-bind",
            "/usr",
            "/usr",
            "--proc",
            "proc",
            "--setenv",
            "A",
            "b",
            "--chdir",
            "/usr",
            "--unshare-all",
        ]
    )
    assert policy.ops == (RoBind("/usr", "/usr"), Proc("/proc"))
    assert policy.unshare == {"user", "mount", "pid", "ipc", "uts", "cgroup"}
    assert (policy.network, policy.workdir, dict(policy.env)) == ("none", "/usr", {"A": "b"})
    assert policy.kill_on_exit is False and policy.details.die_with_parent is False


def test_contents_need_somebody_to_put_them() -> None:
    """Contents that are bytes go to a descriptor of the caller's; a mask can't be said without looking."""
    plan = plan_of(Policy.layers(File("/f", b"data")))
    assert plan.to_bwrap(lambda data: 7)[-5:] == ["--perms", "0644", "--file", "7", "/f"]
    with pytest.raises(PolicyError, match="put="):
        plan.to_bwrap()
    with pytest.raises(PolicyError, match="time"):
        plan_of(Policy.layers(unshare={"time"})).to_bwrap()
    with pytest.raises(PolicyError, match="mask /f"):
        plan_of(Policy.layers(Mask("/f"))).to_bwrap()
