"""Seccomp filters: rules as data, and the assembler that turns them into a BPF program. Pure; knows no policy.

A program sees the number of a system call, the machine whose table has it, and six arguments as numbers, but never what
a pointer leads to (seccomp(2)). A spawn pays for each instruction twice. First, the kernel translates the program to
machine code. Second, it finds out for each number of the table whether that is always allowed (Linux 5.11; such calls
then cost nothing). Hence a balanced search over the numbers.
"""

from __future__ import annotations

from nsbox._base.checks import check_bool, is_iterable
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

# errno(3) in Linux's numbers, since a plan may be made on another system
EPERM, ENOSYS, EPROTONOSUPPORT, EAFNOSUPPORT = 1, 38, 93, 97

MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS
_FAR = 255  # a conditional jump's distance has 8 bits

# <linux/bpf_common.h>
_LOAD, _AND, _JUMP, _JEQ, _JGE, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
# <linux/seccomp.h>
_RET_ERRNO, _RET_ALLOW = 0x00050000, 0x7FFF0000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # in struct seccomp_data
_WORD = 0xFFFFFFFF
_X32 = 0x40000000  # x86_64's third table of system calls has this bit, so its numbers are above all others

_INSTRUCTION = 8  # bytes of a struct sock_filter

# AUDIT_ARCH_* of <linux/audit.h>
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
COMPATIBLE = {"x86_64": "i386", "aarch64": "arm"}  # the 32-bit machine whose programs the kernel runs too

# From 424 on, all machines have the same numbers (Linux 5.1). The headers that we are built with may lack some.
NEWER = {
    **{"pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433},
    **{"pidfd_open": 434, "clone3": 435, "close_range": 436, "openat2": 437, "pidfd_getfd": 438, "faccessat2": 439},
    **{"process_madvise": 440, "epoll_pwait2": 441, "mount_setattr": 442, "quotactl_fd": 443},
    **{"landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446, "memfd_secret": 447},
    **{"process_mrelease": 448},
    **{"futex_waitv": 449, "set_mempolicy_home_node": 450, "cachestat": 451, "fchmodat2": 452, "map_shadow_stack": 453},
    **{"futex_wake": 454, "futex_wait": 455, "futex_requeue": 456, "statmount": 457, "listmount": 458},
    **{"lsm_get_self_attr": 459, "lsm_set_self_attr": 460, "lsm_list_modules": 461, "mseal": 462, "setxattrat": 463},
    **{"getxattrat": 464, "listxattrat": 465, "removexattrat": 466, "open_tree_attr": 467, "file_getattr": 468},
    **{"file_setattr": 469, "listns": 470},
}
LAST = 470  # calls that later kernels add haven't been reviewed


@frozen
class Arg(Frozen):
    """A test of an argument of a system call: that 32 bits of it, after a mask, equal one of some values.

    Arg(1, 0x5412) is "the second argument is TIOCSTI", and Arg(0, 0, mask=0x7E020000, inverted=True) is "the first has
    one of these bits". Raises PolicyError.

    index: which argument, 0 to 5.
    values: one 32-bit number, or several.
    mask: the bits that are compared.
    inverted: the test holds if they equal none of the values.
    high: look at the high 32 bits instead of the low ones. A pointer is NULL if both halves are 0.
    """

    index: int
    values: tuple[int, ...] | int
    mask: int = _WORD
    inverted: bool = False
    high: bool = False

    def __post_init__(self) -> None:
        check_bool("Arg.inverted", self.inverted)
        check_bool("Arg.high", self.high)
        single: object = self.values
        values = (single,) if isinstance(single, int) else single
        if isinstance(values, bytes) or not is_iterable(values) or not (values := tuple(values)):
            raise PolicyError("Arg.values", f"{single!r} is neither a number nor a sequence of some")
        numbers = [("index", self.index, 5), ("mask", self.mask, _WORD), *(("values", v, _WORD) for v in values)]
        for name, number, top in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= top:
                raise PolicyError(f"Arg.{name}", f"{number!r} isn't a number between 0 and {top}")
        for value in values:
            if value & ~self.mask:
                raise PolicyError("Arg.values", f"{value:#x} has bits that the mask {self.mask:#x} lacks: never equal")
        object.__setattr__(self, "values", values)


def has_bit(index: int, bits: int) -> Arg:
    """Return the test that an argument has at least one of these bits. index: which argument, 0 to 5."""
    return Arg(index, 0, mask=bits, inverted=True)


@frozen
class Rule(Frozen):
    """What a filter does with some system calls if all tests of their arguments hold. Raises PolicyError.

    If there are several rules for a system call, the first whose tests hold decides. If none holds, it is allowed.

    calls: a name, or several.
    errno: the error that the call returns; 0: it is allowed; None: it returns success without being carried out.
    when: the tests, a sequence of Arg; empty: always.
    """

    calls: tuple[str, ...] | str
    errno: int | None = EPERM
    when: tuple[Arg, ...] = ()

    def __post_init__(self) -> None:
        calls: object = self.calls
        names = (calls,) if isinstance(calls, str) else calls
        if (
            not is_iterable(names)
            or not (names := tuple(names))
            or not all(isinstance(name, str) and name for name in names)
        ):
            raise PolicyError("Rule.calls", f"{calls!r} aren't names of system calls")
        object.__setattr__(self, "calls", names)
        number: object = self.errno
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 4096):
            raise PolicyError(
                "Rule.errno", f"{number!r} is neither an errno, nor 0 for allowed, nor None for answered only"
            )
        when: object = self.when
        tests = tuple(when) if is_iterable(when) else (when,)
        if not all(isinstance(test, Arg) for test in tests) or isinstance(when, Arg):
            raise PolicyError("Rule.when", f"{when!r} isn't a sequence of nsbox.Arg")
        object.__setattr__(self, "when", tests)


@frozen
class Table(Frozen):
    """The system calls of a machine.

    machine: one of MACHINES.
    numbers: numbers by names.
    last: numbers above this are refused as unknown; None: none are.
    """

    machine: str
    numbers: Mapping[str, int]
    last: int | None = LAST


@frozen
class Program(Frozen):
    """One filter of a plan.

    rules: what to assemble.
    code: ready code instead.
    with_compatible: whether 32-bit programs may run, under the same rules. Otherwise no system calls exist for them.
    stage: when it is installed. "early": while the mounts are made; "confined": when the command is in its last user
        namespace; "last": right before its program is executed.
    """

    rules: tuple[Rule, ...] = ()
    code: bytes = b""
    with_compatible: bool = False
    stage: Literal["early", "confined", "last"] = "early"


class _Writer:
    """Writes a program from its end to its beginning. Jumps only lead forward, so their targets exist already.

    A place is the number of instructions from there to the end, which never changes.
    """

    def __init__(self) -> None:
        self._backward: list[tuple[int, int, int, int]] = []
        self._chains: dict[tuple[Rule, ...], int] = {}
        self._verdicts: dict[int | None, int] = {}
        self.allow = self.verdict(0)

    def _put(self, code: int, k: int, yes: int = 0, no: int = 0) -> int:
        self._backward.append((code, yes, no, k))
        return len(self._backward)

    def verdict(self, errno: int | None) -> int:
        """Return a place that ends the program. errno: 0: the call is allowed; None: success without the call."""
        place = self._verdicts.get(errno)
        if place is None or len(self._backward) - place > _FAR // 2:
            word = _RET_ALLOW if errno == 0 else _RET_ERRNO | (errno or 0)
            place = self._verdicts[errno] = self._put(_RETURN, word)
        return place

    def _near(self, place: int, room: int) -> int:
        """Return the place, or one that leads to it and is in reach of a jump from `room` instructions before here."""
        distance = len(self._backward) - place
        if distance + room <= _FAR:
            return place
        code, _, _, k = self._backward[place - 1]
        return self._put(code, k) if code == _RETURN else self._put(_JUMP, distance)

    def test(self, how: int, k: int, yes: int, no: int) -> int:
        """Put a comparison of the word that was loaded; return its place.

        how: the instruction. k: what the word is compared with. yes, no: the places to go to.
        """
        here = len(self._backward)
        if here - min(yes, no) > _FAR - 1:
            yes, no = self._near(yes, 1), self._near(no, 0)
            here = len(self._backward)
        self._backward.append((how, here - yes, here - no, k))
        return here + 1

    def load(self, offset: int) -> int:
        """Put an instruction that loads a word of struct seccomp_data; return its place."""
        return self._put(_LOAD, offset)

    def _if(self, test: Arg, yes: int, no: int) -> int:
        assert isinstance(test.values, tuple)
        equal, other = (no, yes) if test.inverted else (yes, no)
        for value in test.values:
            other = self.test(_JEQ, value, equal, other)
        if test.mask != _WORD:
            self._put(_AND, test.mask)
        # All machines here are little-endian: the low half of an argument comes first.
        return self.load(_ARGUMENTS + 8 * test.index + 4 * test.high)

    def chain(self, rules: tuple[Rule, ...]) -> int:
        """Return the place where the rules for one system call begin."""
        place = self._chains.get(rules)
        if place is None:
            place = self.allow
            for rule in reversed(rules):
                no, place = place, self.verdict(rule.errno)
                for test in reversed(rule.when):
                    place = self._if(test, place, no)
            self._chains[rules] = place
        return place

    def search(self, ranges: Sequence[tuple[int, int]], first: int, last: int, end: int = LAST + 1) -> int:
        """Put a binary search for the number that was loaded; return its place.

        It halves the numbers, not the ranges, since the kernel runs the program once for each number.

        ranges: pairs of a range's first number and the place that it leads to.
        first, last: indices of the ranges that are searched.
        end: the number after these.
        """
        if first == last:
            return ranges[first][1]
        start = ranges[first][0]
        if start < end:
            middle, half = (start + end) // 2, first + 1
            while half < last and ranges[half][0] < middle:
                half += 1
        else:  # numbers for which the kernel doesn't run it in advance
            half = first + (last - first + 1) // 2
        start = ranges[half][0]
        above, below = self.search(ranges, half, last, end), self.search(ranges, first, half - 1, start)
        return self.test(_JGE, start, above, below)

    def bytes(self) -> bytes:
        """Return the program as an array of struct sock_filter."""
        words = (code | yes << 16 | no << 24 | k << 32 for code, yes, no, k in reversed(self._backward))
        return b"".join([word.to_bytes(_INSTRUCTION, "little") for word in words])


def _ranges(program: _Writer, table: Table, rules: Sequence[Rule]) -> list[tuple[int, int]]:
    """Return ranges of numbers that lead to the same place: pairs of the first number and the place."""
    end = _X32 if table.last is None else table.last + 1
    chains: dict[int, tuple[Rule, ...]] = {}
    for rule in rules:
        for name in rule.calls:
            number = table.numbers.get(name, end)
            if number < end:
                chains[number] = (*chains.get(number, ()), rule)
    starts = {0: program.allow}
    for number in sorted(chains):
        starts[number] = program.chain(chains[number])
        starts[number + 1] = program.allow  # if that number has rules, the next round replaces this
    starts[end] = program.verdict(ENOSYS)
    ranges: list[tuple[int, int]] = []
    for start, place in sorted(starts.items()):
        if not ranges or ranges[-1][1] != place:
            ranges.append((start, place))
    return ranges


def assemble(rules: Sequence[Rule], *tables: Table) -> bytes:
    """Return the program that carries out these rules, as an array of struct sock_filter.

    rules: names that a table lacks are ignored.
    tables: that of this machine, and that of the 32-bit programs, if they may run. The system calls of other tables
        don't exist (ENOSYS).

    Raises PolicyError if the program has more instructions than the kernel accepts.
    """
    program = _Writer()
    place = program.verdict(ENOSYS)
    for table in reversed(tables):
        ranges = _ranges(program, table, rules)
        program.search(ranges, 0, len(ranges) - 1)
        own = program.load(_NUMBER)
        place = program.test(_JEQ, MACHINES[table.machine], own, place)
    program.load(_MACHINE)
    code = program.bytes()
    if len(code) > MAX_INSTRUCTIONS * _INSTRUCTION:
        raise PolicyError("seccomp", f"has {len(code) // _INSTRUCTION} instructions, at most {MAX_INSTRUCTIONS}")
    return code
