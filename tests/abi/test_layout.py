"""Python and C agree about every byte, name and number of abi.h, and everything that it names is in use."""

from __future__ import annotations

import ast
import ctypes
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import branch_driver

from nsbox._core import abi as core_abi
from nsbox._core import buffers, call, darwin, entry, request
from nsbox._core import wire as core_wire
from nsbox._core.abi import constants as c
from nsbox._core.command import Command
from nsbox._guest import core as guest_core
from nsbox._kept import session, session_command, tree
from nsbox._layout import layout
from nsbox._spawn import failure, seatbelt, start

SYSTEMS = ("linux", "darwin")
NAMES = {
    "nsbox_entry": entry.ENTRY,
    "nsbox_told_entry": entry.TOLD,
    "nsbox_asking": entry.ASKING,
}
WIDTHS = {"nsbox_plan": core_wire._HEAD, "nsbox_op": core_wire._OP}


@pytest.fixture(scope="module")
def abi(source: Path) -> str:
    """Return abi.h without comments."""
    text = "".join((source / "csrc" / name).read_text() for name in ("abi_session.h", "abi.h"))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def enum(abi: str, name: str) -> dict[str, int]:
    """Return the constants of an enum of abi.h, without their prefix."""
    body = re.search(rf"enum {name} {{(.*?)}};", abi, re.DOTALL)
    assert body, name
    found = {key: int(value, 0) for key, value in re.findall(r"NSBOX_(\w+) = (-?\w+)", body[1])}
    assert len(found) == body[1].count("=") == body[1].count("NSBOX_")
    return found


def struct_fields(name: str) -> list[tuple[str, int, int]]:
    """Return name, offset and size of each field of a struct, as the extension was compiled."""
    kind = core_abi.ffi.typeof(name)
    return [(field, f.offset, core_abi.ffi.sizeof(f.type)) for field, f in kind.fields]


@pytest.mark.parametrize("name", NAMES)
def test_wire_formats(name: str) -> None:
    """The formats that plans are packed with have the size of C's structs, and each field at its place."""
    packing = NAMES[name]
    assert packing.size == core_abi.ffi.sizeof(name)
    fields = struct_fields(name)
    codes = re.findall(r"(\d*)([a-zA-Z])", packing.format)
    flat = "".join(code * int(count or 1) for count, code in codes)
    assert len(flat) == len(fields)
    assert [struct.calcsize("=" + flat[:i]) for i in range(len(flat))] == [offset for _, offset, _ in fields]
    assert [struct.calcsize("=" + code) for code in flat] == [size for _, _, size in fields]


@pytest.mark.parametrize("name", WIDTHS)
def test_widths_of_fields(name: str) -> None:
    """So have the numbers that plans and ops are packed as."""
    fields = struct_fields(name)
    assert [size for _, _, size in fields] == [*WIDTHS[name]]
    assert [offset for _, offset, _ in fields] == [sum(WIDTHS[name][:at]) for at in range(len(fields))]
    assert sum(WIDTHS[name]) == core_abi.ffi.sizeof(name)


def test_wire_order() -> None:
    """Values land in the fields that they are meant for."""
    packed = core_wire._pack(core_wire._OP, 1, 2, 3, -4, 5, 6, 7, 8, 9)
    view = core_abi.ffi.cast("nsbox_op *", core_abi.ffi.from_buffer(packed))
    assert [
        getattr(view, name) for name in ("code", "flags", "mode", "fd", "src", "dst", "count", "reserved", "size")
    ] == [
        1,
        2,
        3,
        -4,
        5,
        6,
        7,
        8,
        9,
    ]
    packed = core_wire._pack(core_wire._HEAD, 1, 2, 3, 4)  # has a name: a cast pointer doesn't keep what it points to
    head = core_abi.ffi.cast("nsbox_plan *", core_abi.ffi.from_buffer(packed))
    assert (head.magic, head.version, head.size, head.nops) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "name",
    [
        "nsbox_plan",
        "nsbox_op",
        "nsbox_rlimit",
        "nsbox_filter",
        "nsbox_result",
        "nsbox_request",
        "nsbox_stamp",
        "nsbox_branch",
    ],
)
def test_no_hidden_padding(name: str) -> None:
    """No struct of the boundary has bytes that belong to no field: none are left uninitialized."""
    at = 0
    for field, offset, size in struct_fields(name):
        assert offset == at, field
        at = offset + size
    assert at == core_abi.ffi.sizeof(name)


@pytest.mark.parametrize("mirror", [branch_driver.Branch, guest_core.Parameters])
def test_branch_of_an_interpreter(mirror: object) -> None:
    """An interpreter, which knows nothing of cffi, describes a branch by the same fields."""
    kind: Any = mirror
    fields = [(name, getattr(kind, name).offset, getattr(kind, name).size) for name, *_ in kind._fields_]
    assert fields == struct_fields("nsbox_branch")
    assert ctypes.sizeof(kind) == core_abi.ffi.sizeof("nsbox_branch")


def test_blob() -> None:
    """A request in one piece has what the request has; each pointer is where it belongs, and stays in the blob."""
    ruleset = core_wire.RulesetRow(1, 2, 3, (core_wire.RuleRow(b"/usr\0", 5, 0), core_wire.RuleRow(b"/etc/x\0", 6, 1)))
    made = request.Request(
        plan=b"plan",
        nops=1,
        namespaces=2,
        flags=c.MAP_ROOT,
        uid_map=b"uid_map\0",
        gid_map=b"gid_map\0",
        uid_map2=b"7 0 1\0",
        gid_map2=b"8 0 1\0",
        map_programs=([b"newuidmap\0", b"u\0"], [b"newgidmap\0", b"g\0"]),
        rlimits=[(40, 41, 42), (50, 51, 52)],
        programs=[b"early..." * 2, b"later..."],
        n_confined=1,
        n_last=1,
        ruleset=ruleset,
        capabilities=(1, 2, 3),
    )
    blob = request.Blob(made, 7, 8)
    data, ffi = bytearray(blob.data), core_abi.ffi
    buffer = ffi.from_buffer(data)
    start = int(ffi.cast("uintptr_t", buffer))
    assert len(set(blob.pointers)) == len(blob.pointers)
    for at in blob.pointers:
        offset = int.from_bytes(data[at : at + 8], "little")
        assert 0 < offset < len(data)
        data[at : at + 8] = (start + offset).to_bytes(8, "little")
    r = ffi.cast("nsbox_request *", buffer)
    assert bytes(ffi.buffer(r.plan, r.plan_len)) == b"plan"
    assert (r.namespaces, r.flags, r.uid, r.gid) == (2, c.MAP_ROOT, 7, 8)
    assert (ffi.string(r.uid_map2), ffi.string(r.gid_map2)) == (b"7 0 1", b"8 0 1")
    assert [(limit.resource, limit.soft, limit.hard) for limit in r.rlimits[0 : r.n_rlimits]] == [
        (40, 41, 42),
        (50, 51, 52),
    ]
    codes = [bytes(ffi.buffer(f.code, 8 * f.len)) for f in r.filters[0 : r.n_filters]]
    assert (codes, r.n_confined_filters, r.n_last_filters) == ([b"early..." * 2, b"later..."], 1, 1)
    rules = [(ffi.string(rule.path), rule.rights, rule.flags) for rule in r.ruleset.paths[0 : r.ruleset.n_paths]]
    assert rules == [(b"/usr", 5, 0), (b"/etc/x", 6, 1)]
    assert (r.ruleset.files, r.ruleset.net, r.ruleset.scoped) == (1, 2, 3)
    assert (r.caps.permitted, r.caps.inheritable, r.caps.bounding) == (1, 2, 3)
    for name in ("uid_map", "gid_map", "uid_map_program", "programs", "argv", "envp", "arena", "result"):
        assert getattr(r, name) == ffi.NULL, name


def test_same_header(abi: str) -> None:
    """The installed extension was made from this abi.h: all its constants have these values."""
    enums = re.findall(r"enum (nsbox_\w+) {", abi)
    assert {"nsbox_opcode", "nsbox_op_flag", "nsbox_spawn_flag", "nsbox_step"} <= set(enums)
    for name in enums:
        for key, value in enum(abi, name).items():
            assert getattr(c, key) == value, key


@pytest.mark.parametrize("name", ["nsbox_opcode", "nsbox_step"])
def test_numbers_run_on(name: str, abi: str) -> None:
    """Opcodes and steps are numbered without gaps, and END is one past the last."""
    numbers = list(enum(abi, name).values())
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert list(enum(abi, name))[-1].endswith("_END")


@pytest.mark.parametrize("name", ["nsbox_op_flag", "nsbox_spawn_flag"])
def test_flags_are_bits(name: str, abi: str) -> None:
    """Each flag is one bit of its own."""
    numbers = sorted(enum(abi, name).values())
    assert numbers == [1 << i for i in range(len(numbers))]


def test_every_step_has_a_name(abi: str) -> None:
    """Whatever step the core reports, the exception can say which it was."""
    steps = {key.removeprefix("STEP_") for key in enum(abi, "nsbox_step")} - {"NONE", "END"}
    assert set(failure._STEPS) == steps
    assert len(set(failure._STEPS.values())) == len(steps)
    for name, text in failure._STEPS.items():
        assert failure.step_name(getattr(c, f"STEP_{name}")) == text


def test_every_step_is_reported(abi: str, source: Path) -> None:
    """No step is named in vain: each is set somewhere in the C."""
    code = "".join(path.read_text() for system in SYSTEMS for path in (source / "csrc" / system).rglob("*.[ch]"))
    for name in enum(abi, "nsbox_step"):
        if name != "STEP_END":
            assert re.search(rf"NSBOX_{name}\b", code), name


def test_every_opcode_has_a_handler_and_an_encoding(abi: str, source: Path) -> None:
    """Each opcode has its own handler in the table of build.c, and is encoded somewhere in _wire.py."""
    build = (source / "csrc/linux/root/build.c").read_text()
    table = dict(re.findall(r"\[NSBOX_(OP_\w+)\] = (op_\w+)", build))
    opcodes = [name for name in enum(abi, "nsbox_opcode") if name != "OP_END"]
    assert set(table) == set(opcodes)
    assert all(handler == name.lower() for name, handler in table.items())
    wire = Path(core_wire.__file__).read_text()
    for name in opcodes:
        assert re.search(rf"\bc\.{name}\b", wire), name


def test_settings_in_proc_are_the_same_ones(source: Path) -> None:
    """What is made read-only in a new procfs, by C, and in the caller's, by the planner."""
    body = re.search(r"names\[\]\[16\] = \{(.*?)\}", (source / "csrc/linux/root/op_mount.c").read_text(), re.S)
    assert body is not None
    assert tuple(re.findall(r'"([^"]+)"', body[1])) == layout._PROC_SETTINGS


def bwrap_sources(source: Path) -> str:
    """Return the C of the program bwrap, which asks the core for sandboxes as Python does."""
    return "".join(path.read_text() for path in (source / "csrc/bwrap/program").iterdir())


def test_every_flag_is_used_on_both_sides(abi: str, source: Path) -> None:
    """Each flag is set by a caller of the core, Python or the program bwrap, and looked at in the core."""
    ours = "".join(
        Path(module.__file__ or "").read_text()
        for module in (core_wire, request, start, call, darwin, seatbelt, session, session_command, tree)
    )
    program = bwrap_sources(source)
    theirs = "".join(path.read_text() for system in SYSTEMS for path in (source / "csrc" / system).rglob("*.[ch]"))
    for name in (*enum(abi, "nsbox_op_flag"), *enum(abi, "nsbox_spawn_flag")):
        assert re.search(rf"\bc(onstants)?\.{name}\b", ours) or re.search(rf"\bNSBOX_{name}\b", program), name
        assert re.search(rf"\bNSBOX_{name}\b", theirs), name


def test_every_field_of_a_request_is_filled(source: Path) -> None:
    """Each field that the core reads is set: one that was forgotten would be 0, so a descriptor, a user or a mask."""
    text = "".join(Path(module.__file__ or "").read_text() for module in (request, call, darwin))
    program = bwrap_sources(source)
    for field, _, _ in struct_fields("nsbox_request"):
        if field not in ("reserved",):
            assert re.search(rf"\br\.{field}\b", text) or re.search(rf"\brequest\.{field} = ", program), field


def test_a_request_arrives() -> None:
    """Each value of a request is where C will read it: none in another's place."""
    template = request.Request(
        plan=b"plan",
        nops=1,
        namespaces=2,
        flags=1,
        uid_map=b"uid_map\0",
        gid_map=b"gid_map\0",
        uid_map2=b"uid_map2\0",
        gid_map2=b"gid_map2\0",
        map_programs=([b"newuidmap\0", b"u\0"], [b"newgidmap\0", b"g\0"]),
        rlimits=[(40, 41, 42)],
        programs=[b"early..." * 2, b"later..."],
        n_confined=0,
        n_last=1,
    )
    command = Command(
        programs=[b"p1", b"p2"],
        argv=[b"a1", b"a2", b"a3"],
        envp=buffers.Strings([b"e1"]),
        cwd=b"cwd\0",
        flags=2,
        stdio=(10, 11, 12),
        pass_fds=[20, 21],
        umask=4,
        pgid=5,
        uid=6,
        gid=7,
        groups=[30, 31, 32],
    )
    keep, ffi = [], core_abi.ffi
    r = ffi.new("nsbox_request *", template.request[0])
    call._fill(r, command, keep)

    def strings(array: Any) -> list[bytes]:
        found = []
        while array[len(found)] != ffi.NULL:
            found.append(ffi.string(array[len(found)]))
        return found

    for name in ("uid_map", "gid_map", "uid_map2", "gid_map2", "cwd"):
        assert ffi.string(getattr(r, name)) == name.encode()
    assert (bytes(ffi.buffer(r.plan, r.plan_len)), r.namespaces, r.flags) == (b"plan", 2, 3)
    assert (strings(r.programs), strings(r.argv), strings(r.envp)) == ([b"p1", b"p2"], [b"a1", b"a2", b"a3"], [b"e1"])
    assert (strings(r.uid_map_program), strings(r.gid_map_program)) == ([b"newuidmap", b"u"], [b"newgidmap", b"g"])
    assert (r.stdin_fd, r.stdout_fd, r.stderr_fd, r.umask, r.pgid) == (10, 11, 12, 4, 5)
    assert (r.uid, r.gid) == (6, 7)
    assert list(r.pass_fds[0 : r.n_pass_fds]) == [20, 21]
    assert list(r.groups[0 : r.n_groups]) == [30, 31, 32]
    assert [(limit.resource, limit.soft, limit.hard) for limit in r.rlimits[0 : r.n_rlimits]] == [(40, 41, 42)]
    codes = [bytes(ffi.buffer(f.code, 8 * f.len)) for f in r.filters[0 : r.n_filters]]
    assert (codes, r.n_last_filters) == ([b"early..." * 2, b"later..."], 1)


def test_every_field_of_a_result_is_read(source: Path) -> None:
    """Each field that the core writes is read by a caller of it."""
    text = Path(call.__file__).read_text() + bwrap_sources(source)
    for field, _, _ in struct_fields("nsbox_result"):
        if field not in ("init_ino", "reserved"):  # between the mediator and the caller's side
            assert re.search(rf"\b(result|known)(\.|->){field}\b", text), field


def c_files(source: Path) -> list[Path]:
    found = [path for path in (source / "csrc").rglob("*.[ch]") if "tests" not in path.parts]
    assert len(found) > 10
    return found


def test_system_calls_are_in_the_audit_list(source: Path) -> None:
    """Every system call is made through sys.h and its sys_*.h: no other file names a number or enters the kernel."""
    for path in c_files(source):
        if path.name in ("sys.h", "sys_mount.h", "sys_program.h", "sys_session.h"):
            assert "__NR_" in path.read_text()
            continue
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        if path.name == "uapi.h":  # numbers that older headers lack
            text = re.sub(r"^#(ifndef|define) __NR_\w+( \d+)?\s*$", "", text, flags=re.MULTILINE)
        assert "__NR_" not in text, path
        assert not re.search(r"\b(SYS_[a-z]\w*|syscall)\s*\(", text), path
        if path.parent.name != "arch":
            assert not re.search(r"\barch_syscall\b|__asm__", text), path


def test_the_audit_list_has_no_idle_call(source: Path) -> None:
    """Each function of sys.h and its sys_*.h is called somewhere: what isn't needed isn't allowed."""
    lists = sorted((source / "csrc/linux/kernel").glob("sys*.h"))
    assert len(lists) == 5
    text = "".join(path.read_text() for path in lists)
    names = re.findall(r"^(?:_Noreturn )?static inline \w+ (sys_\w+)\(", text, re.M)
    assert len(names) > 80
    code = "".join(path.read_text() for path in c_files(source))
    idle = [name for name in names if len(re.findall(rf"\b{name}\(", code)) < 2]
    assert idle == []


def test_raw_numbers_of_the_arches(source: Path) -> None:
    """The two calls that the clone trampolines make by number are clone and exit_group."""
    numbers = {"x86_64": (r"\(56L, ", r"\$231,"), "aarch64": (r"\(220, ", r"x8, #94\\n")}
    for arch, patterns in numbers.items():
        text = (source / f"csrc/linux/kernel/arch/{arch}.h").read_text()
        for pattern in patterns:
            assert re.search(pattern, text), (arch, pattern)


def test_clone_flags() -> None:
    """The namespaces' flags are the kernel's."""
    header = Path("/usr/include/linux/sched.h")
    if not header.exists():
        pytest.skip("needs the kernel's headers (Debian: linux-libc-dev)")
    flags = {
        name: int(value, 16)
        for name, value in re.findall(r"#define CLONE_NEW(\w+)\s+(0x[0-9a-f]+)", header.read_text())
    }
    kernel = {"mount": "NS", **{name: name.upper() for name in ("cgroup", "uts", "ipc", "user", "pid", "net", "time")}}
    assert {name: flags[kernel[name]] for name in kernel} == request._NAMESPACES


def test_arena_grows_with_the_plan() -> None:
    """The work space that C asks for grows with the ops, and has room for the stacks."""
    sizes = [core_abi.lib.nsbox_arena_size(n) for n in (0, 1, 1000, 20_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 64 << 10
    assert sizes[-1] - sizes[0] >= 20_000 * 8


# ---- the stub for type checkers


def functions(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return the functions of a header, or of cffi's declarations: the result's type and the parameters'."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = re.findall(r"^\s*((?:const )?\w+ \*?)(nsbox_\w+|mmap|munmap)\(([^)]*)\);", text, re.MULTILINE)
    return {name: (result, [] if row == "void" else row.split(",")) for result, name, row in found}


def in_stub(kind: str) -> str:
    """Return what the stub calls a type of C's."""
    return "CData" if "*" in kind else "None" if kind.strip() == "void" else "int"


def test_stub_is_the_headers(source: Path) -> None:
    """Type checkers are told what the headers of both systems declare: each function, its parameters, its result."""
    headers = (
        "csrc/abi.h",
        "csrc/abi_bwrap.h",
        *(f"csrc/{system}/calls.h" for system in SYSTEMS),
        "csrc/tools/ffi_build.py",
    )
    declared = {name: row for header in headers for name, row in functions((source / header).read_text()).items()}
    (lib,) = (
        node
        for node in ast.parse((source / "nsbox/_nsbox.pyi").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Lib"
    )
    told = {
        node.name: (ast.unparse(node.returns or node), [ast.unparse(arg.annotation or arg) for arg in row])
        for node in lib.body
        if isinstance(node, ast.FunctionDef)
        for row in [node.args.posonlyargs[1:]]
    }
    assert len(declared) > 30
    assert told == {name: (in_stub(result), [*map(in_stub, row)]) for name, (result, row) in declared.items()}
