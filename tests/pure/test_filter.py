"""Filters as programs: what a user adds to a profile and takes from it, and the assembler."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.bpf import ALLOWED, IGNORED, run, verdict
from nsbox_pure.calls import (
    ALG,
    ENOSYS,
    EPERM,
    NEWNS,
    NEWUSER,
    SIGCHLD,
    WHOLE,
    codes,
)
from nsbox_pure.hosts import DEBIAN, ROOT, workspace

from nsbox import Arg, Filter, PolicyError, Rule
from nsbox._backends import compile_policy
from nsbox._core.wire import encode_programs
from nsbox._seccomp.bpf import LAST, MACHINES, NEWER, Table, assemble
from nsbox._seccomp.filter import COMPATIBLE_NUMBERS, profile, profiled

# ---- Filter


def test_allowing_again() -> None:
    """allow lifts the rules of a name, of all that the profile has; what every command is refused stays.

    Namespaces are lifted for the one call that is named.
    """
    found = codes(workspace(seccomp=Filter(base="hardened", allow=["ptrace", "bpf", "socket", "unshare"])))
    for call, args, expected in (
        ("bpf", (), 0),
        ("ptrace", (16,), 0),
        ("ptrace", (0x4206, 3, 0, 0x40), 0),
        ("ptrace", (0,), EPERM),
        ("socket", (ALG, 5, 0), 0),
        ("kcmp", (), EPERM),
        ("mount", (), EPERM),
        ("unshare", (NEWUSER | NEWNS,), 0),
        ("clone", (NEWUSER | SIGCHLD,), EPERM),
    ):
        assert verdict(found, MACHINES["x86_64"], WHOLE["x86_64"][call], args) == expected, call


@pytest.mark.parametrize("base", ["off", "default", "hardened"])
def test_tracing_exits_again(base: Any) -> None:
    """With "ptrace" in allow the exit of processes can be traced in every profile, and the plan says what that means."""
    policy = workspace(seccomp=Filter(base=base, allow=["ptrace"]))
    found = codes(policy)
    for request in (0x4200, 0x4206, 21):
        assert verdict(found, MACHINES["x86_64"], 101, (request, 3, 0, 0x40)) == ALLOWED
    assert verdict(found, MACHINES["x86_64"], 101, (0,)) == EPERM
    words = "can't be killed, not even by root"
    assert any(words in said for said in compile_policy(policy, DEBIAN).not_enforced)
    assert not any(words in said for said in compile_policy(workspace(seccomp=base), DEBIAN).not_enforced)


def test_own_rules() -> None:
    """Rules are tried in their order before the profile's verdict counts, which they can't loosen."""
    rules = (
        Rule("openat", 13, (Arg(2, 0, mask=3, inverted=True),)),
        Rule("kill", 0, (Arg(1, 0),)),
        Rule("kill"),
        Rule(("mount",), 0),
    )
    found = codes(workspace(seccomp=Filter(rules=rules)))
    for call, args, expected in (
        ("openat", (0, 0, 0), 0),
        ("openat", (0, 0, 1), 13),
        ("openat", (0, 0, 0x80002), 13),
        ("kill", (1, 0), 0),
        ("kill", (1, 9), EPERM),
        ("mount", (), EPERM),
        ("read", (), 0),
    ):
        assert verdict(found, MACHINES["x86_64"], WHOLE["x86_64"][call], args) == expected, call
    open_to_32 = codes(workspace(seccomp=Filter(base="off", rules=rules)))
    assert verdict(open_to_32, MACHINES["i386"], 37, (1, 9)) == ENOSYS  # kill, which would be a way around


def test_ready_programs() -> None:
    """Ready code is passed on as it is, last."""
    code = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
    plan = compile_policy(workspace(seccomp=Filter(programs=[code, code * 2])), ROOT)
    assert encode_programs(plan.programs, "x86_64", WHOLE["x86_64"])[1:] == [code, code * 2]
    assert [program.stage for program in plan.programs] == ["early", "last", "last"]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: workspace(seccomp="strict"), "seccomp"),
        (lambda: workspace(seccomp=None), "seccomp"),
        (lambda: workspace(seccomp=[]), "seccomp"),
        (lambda: Filter(base="none"), "seccomp.base"),
        (lambda: Filter(allow="ptrace"), "seccomp.allow"),
        (lambda: Filter(allow=["ptrace!"]), "seccomp.allow"),
        (lambda: Filter(allow=[1]), "seccomp.allow"),
        (lambda: Filter(allow=["keyctl"]), "seccomp.allow"),
        (lambda: Filter(allow=["process_vm_readv"]), "seccomp.allow"),  # the default profile doesn't refuse it
        (lambda: Filter(base="off", allow=["bpf"]), "seccomp.allow"),
        (lambda: codes(workspace(seccomp=Filter(allow=["unshare"])), host=ROOT), "seccomp.allow"),
        (
            lambda: codes(workspace(seccomp=Filter(allow=["clone"]), deny=["/home/me/repo/.env"])),
            "seccomp.allow",
        ),
        (lambda: Filter(allow=["clone3"]), "seccomp.allow"),
        (lambda: Filter(rules=["ptrace"]), "seccomp.rules"),
        (lambda: Filter(rules=Rule("ptrace")), "seccomp.rules"),
        (lambda: Filter(programs=b"12345678"), "seccomp.programs"),
        (lambda: Filter(programs=[b"1234567"]), "seccomp.programs"),
        (lambda: Filter(programs=[b""]), "seccomp.programs"),
        (lambda: Filter(programs=[bytes(8 * 4097)]), "seccomp.programs"),
        (lambda: Rule(""), "Rule.calls"),
        (lambda: Rule((1,)), "Rule.calls"),
        (lambda: Rule(()), "Rule.calls"),
        (lambda: Rule("read", -1), "Rule.errno"),
        (lambda: Rule("read", 4096), "Rule.errno"),
        (lambda: Rule("read", True), "Rule.errno"),
        (lambda: Rule("read", "0"), "Rule.errno"),
        (lambda: Arg(0, 0, high=1), "Arg.high"),
        (lambda: Rule("read", 1, ("x",)), "Rule.when"),
        (lambda: Rule("read", 1, 7), "Rule.when"),
        (lambda: Arg(6, 0), "Arg.index"),
        (lambda: Arg(-1, 0), "Arg.index"),
        (lambda: Arg(0, 1 << 32), "Arg.values"),
        (lambda: Arg(0, ()), "Arg.values"),
        (lambda: Arg(0, "x"), "Arg.values"),
        (lambda: Arg(0, b"x"), "Arg.values"),
        (lambda: Arg(0, 1, inverted=[]), "Arg.inverted"),
        (lambda: Arg(0, 4, mask=3), "Arg.values"),
        (lambda: Arg(0, 0, mask=-1), "Arg.mask"),
    ],
)
def test_malformed(make: Any, field: str) -> None:
    """What makes no sense is refused when it is made, by the name of the field."""
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.field == field


def test_values() -> None:
    """Filters are values: hashable, picklable, equal whatever kind of sequence they were made from."""
    made = Filter(allow=["bpf"], rules=[Rule(["read"], 5, [Arg(0, [1, 2])])], programs=[b"12345678"])
    same = Filter(allow=("bpf",), rules=(Rule(("read",), 5, (Arg(0, (1, 2)),)),), programs=(b"12345678",))
    assert made == same and hash(made) == hash(same)
    policy = workspace(seccomp=made)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy.with_(seccomp="hardened").filter == Filter(base="hardened")


# ---- the assembler


def expected(rules: Sequence[Rule], numbers: dict[str, int], number: int, args: Sequence[int], last: int | None) -> int:
    """Say what the rules mean, plainly."""
    if number > (0x3FFFFFFF if last is None else last):
        return ENOSYS
    for rule in rules:
        if number in {numbers.get(call) for call in rule.calls}:
            tests = [
                ((args[test.index] >> 32 * test.high & test.mask) in test.values) is not test.inverted  # type: ignore[operator]
                for test in rule.when
            ]
            if all(tests):
                return IGNORED if rule.errno is None else rule.errno
    return ALLOWED


small = st.integers(0, 5)


words = st.one_of(small, st.sampled_from([0xFFFFFFFF, 0x80000000, 255, 256]))


halves = st.builds(lambda high, low: high << 32 | low, st.one_of(st.just(0), words), words)


@st.composite
def args_tests(draw: st.DrawFn) -> Arg:
    mask = draw(st.sampled_from([0xFFFFFFFF, 0xF, 1, 0x80000000, 0]))
    values = draw(st.lists(words.map(lambda value: value & mask), min_size=1, max_size=4))
    return Arg(draw(small), values, mask, draw(st.booleans()), draw(st.booleans()))


calls = [f"c{i}" for i in range(40)]


rules = st.lists(
    st.builds(
        Rule,
        st.lists(st.sampled_from(calls), min_size=1, max_size=6).map(tuple),
        st.sampled_from([0, 1, 13, 38, 97, None]),
        st.lists(args_tests(), max_size=3).map(tuple),
    ),
    max_size=60,
)


@calm
@given(
    rules=rules,
    gaps=st.lists(st.integers(1, 20), min_size=40, max_size=40),
    asked=st.lists(st.tuples(st.integers(0, 420), st.lists(halves, min_size=6, max_size=6)), min_size=1, max_size=40),
    last=st.sampled_from([None, 150, 400, 420]),
)
def test_assembled_means_the_rules(
    rules: list[Rule], gaps: list[int], asked: list[tuple[int, list[int]]], last: int | None
) -> None:
    """Whatever the rules, the program says what they say, of every number; also when jumps are too far for 8 bits."""
    numbers, at = {}, -1
    for call, gap in zip(calls, gaps, strict=True):
        at += gap
        numbers[call] = at
    code = assemble(rules, Table("x86_64", numbers, last))
    for number, args in [*asked, *((n, args) for n in numbers.values() for _, args in asked[:2])]:
        assert run(code, MACHINES["x86_64"], number, args)[0] == expected(rules, numbers, number, args, last)
    assert run(code, MACHINES["aarch64"], 0)[0] == ENOSYS


def test_large_programs() -> None:
    """Hundreds of rules, whose jumps don't fit into 8 bits, mean what they say; too many are an error that says so."""
    numbers = {f"c{i}": i for i in range(400)}
    many = [Rule((f"c{i}",), 1 + i % 90, (Arg(i % 6, (i, i + 1, i + 2)),)) for i in range(400)]
    code = assemble(many, Table("x86_64", numbers))
    assert len(code) // 8 > 1000
    for i in range(400):
        for value in (i - 1, i, i + 2, i + 3):
            said, steps = run(code, MACHINES["x86_64"], i, [max(value, 0)] * 6)
            assert said == (1 + i % 90 if i <= value <= i + 2 or value < 0 == i else ALLOWED), (i, value)
            assert steps < 40
    with pytest.raises(PolicyError, match="instructions, at most 4096"):
        assemble([Rule(("c0",), 1 + i % 4000, (Arg(0, i),)) for i in range(4000)], Table("x86_64", numbers))


def test_search_is_short() -> None:
    """A number takes ten instructions on the average to be found allowed, in the largest profile, and never twice that.

    A balanced tree over ranges takes eleven.
    """
    found = codes(workspace(seccomp="hardened"), "x86_64", ROOT)[:1]  # the next is about filters
    assert len(found[0]) // 8 < 272
    tested = {
        "socket",
        "socketpair",
        "setsockopt",
        "pipe2",
        "ioctl",
        "personality",
        "fcntl",
        "setns",
        *COMPATIBLE_NUMBERS["i386"],
    }
    numbers = set(range(LAST + 2)) - {WHOLE["x86_64"].get(call) for call in tested} - {142, 144, 314}  # sched_set*
    steps = [run(found[0], MACHINES["x86_64"], number)[1] for number in numbers]
    assert max(steps) <= 16 and sum(steps) <= 10 * len(steps)


def test_newer_numbers() -> None:
    """The numbers that headers may lack run on from the last that all have, to the newest that is known."""
    assert sorted(NEWER.values()) == list(range(424, LAST + 1))


def test_every_profiled_call_is_a_name() -> None:
    """The profiles name system calls of some machine: what this one's headers lack is known to be another's."""
    others = {
        *("create_module", "get_kernel_syms", "query_module", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl"),
        *("stime", "clock_settime64", "clock_adjtime64", "umount", "fcntl64", "socketcall", "vm86", "vm86old"),
        *("afs_syscall", "getpmsg", "putpmsg", "security", "tuxcall", "vserver", "modify_ldt", "subpage_prot"),
        *("iopl", "ioperm", "lookup_dcookie", "truncate64", "chmod", "creat", "mknod", "inotify_init"),
    }
    from nsbox._core import abi, linux

    if abi.problem:
        pytest.skip("no C core, so no kernel headers")
    machine, numbers = linux.syscalls()
    assert {*numbers, *NEWER, *others} >= profiled()
    assert linux.numbers_of([*numbers, "", "no such call", "rea"]) == (machine, numbers)


def test_profiles_grow() -> None:
    """Each profile refuses all that the one before refuses."""
    sizes = [
        len({call for rule in profile(base, nested=False, for_net=False) for call in rule.calls})
        for base in ("off", "default", "hardened")
    ]
    assert sizes == sorted(set(sizes))
