"""The core is built with the headers of Linux 4.18 as with the newest: csrc/linux/kernel/uapi.h has what is newer.

Those of a distribution that old can't be had everywhere. So the headers at hand are made as poor: what the kernel's
interface got later is taken away from them, and the compiler reads all sources.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

# What came after Linux 4.18: macros, and structures that came or grew.
NEWER_MACROS = {
    "linux/capability.h": "CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE",
    "linux/fcntl.h": "AT_RECURSIVE F_SEAL_FUTURE_WRITE F_SEAL_EXEC",
    "linux/memfd.h": "MFD_EXEC MFD_NOEXEC_SEAL",
    "linux/nsfs.h": "NS_MNT_GET_INFO NS_GET_MNTNS_ID",
    "linux/prctl.h": "PR_SET_IO_FLUSHER PR_SCHED_CORE PR_SET_MDWE PR_SET_VMA PR_SET_SYSCALL_USER_DISPATCH",
    "linux/sched.h": "CLONE_PIDFD CLONE_CLEAR_SIGHAND CLONE_INTO_CGROUP CLONE_NEWTIME",
    "linux/seccomp.h": "SECCOMP_RET_USER_NOTIF SECCOMP_FILTER_FLAG_NEW_LISTENER SECCOMP_USER_NOTIF_FLAG_CONTINUE",
    "linux/stat.h": "STATX_MNT_ID STATX_DIOALIGN STATX_MNT_ID_UNIQUE STATX_SUBVOL STATX_ATTR_MOUNT_ROOT STATX_ATTR_VERITY",
    "linux/wait.h": "P_PIDFD",
}
NEWER_STRUCTURES = {"linux/sched.h": "clone_args", "linux/stat.h": "statx"}
ABSENT = ("linux/mount.h", "linux/landlock.h")  # including one of them is an error
EMPTY = ("linux/openat2.h",)  # the same, but newer headers include it

COMPILERS = {"x86_64": "cc", "aarch64": "aarch64-linux-gnu-gcc"}


def _syscalls() -> ModuleType:
    spec = importlib.util.spec_from_file_location("syscalls", CSRC / "tools/syscalls.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _poorer(header: str, macros: list[str], structure: str | None = None) -> str:
    """Return a header in front of the one of this name, which takes away what came later; once, as that one is read."""
    guard = re.sub(r"\W", "_", header).upper() + "_OF_4_18"
    lines = [f"#ifndef {guard}", f"#define {guard}"]
    if structure:
        lines.append(f"#define {structure} {structure}_of_newer_headers")
    lines.append(f"#include_next <{header}>")
    lines += [f"#undef {name}" for name in (*macros, *([structure] if structure else []))]
    return "\n".join([*lines, "#endif", ""])


@pytest.fixture
def old_headers(tmp_path: Path) -> Path:
    """A directory that comes before the system's headers."""
    syscalls = _syscalls()
    calls = [f"__NR_{name}" for name in (*syscalls.COMMON.split(), "uretprobe", "uprobe")]
    texts = {
        header: _poorer(header, names.split(), NEWER_STRUCTURES.get(header)) for header, names in NEWER_MACROS.items()
    }
    texts["asm/unistd.h"] = _poorer("asm/unistd.h", calls)
    texts |= {header: '#error "no header of Linux 4.18"\n' for header in ABSENT} | dict.fromkeys(EMPTY, "")
    for header, text in texts.items():
        (tmp_path / header).parent.mkdir(exist_ok=True)
        (tmp_path / header).write_text(text)
    return tmp_path


def _compile(
    machine: str, headers: Path, *sources: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which(COMPILERS[machine])
    if compiler is None:
        pytest.skip(f"no {COMPILERS[machine]}")
    command = [compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-isystem", str(headers), *options]
    command += [f"-I{CSRC}", f"-I{CSRC / 'linux'}", *sources]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CSRC)


each_machine = pytest.mark.parametrize("machine", COMPILERS)


@each_machine
def test_core(machine: str, old_headers: Path) -> None:
    """All that runs between clone and exec, and the programs of pid 1."""
    sources = sorted(str(path) for room in ("linux", "init", "branch") for path in (CSRC / room).rglob("*.c"))
    assert len(sources) > 40
    done = _compile(machine, old_headers, *sources, options=("-ffreestanding", "-fno-builtin"))
    assert done.returncode == 0, done.stderr


@each_machine
def test_relay(machine: str, old_headers: Path) -> None:
    """The relay, which has a C library."""
    sources = sorted(str(path) for room in ("relay", "net") for path in (CSRC / room).rglob("*.c"))
    assert len(sources) > 30
    done = _compile(machine, old_headers, *sources, options=("-D_GNU_SOURCE",))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "#include <linux/mount.h>\nint x;",
        "#include <linux/stat.h>\nstruct statx x;",
        "#include <linux/wait.h>\nint x = P_PIDFD;",
        "#include <linux/sched.h>\nint x = CLONE_PIDFD;",
        "#include <asm/unistd.h>\nint x = __NR_openat2;",
        "#include <sys/syscall.h>\nint x = SYS_clone3;",
    ],
)
def test_control(text: str, old_headers: Path, tmp_path: Path) -> None:
    """With these headers, what is newer isn't there; with the system's it is."""
    (tmp_path / "newer.c").write_text(text)
    assert _compile("x86_64", old_headers, str(tmp_path / "newer.c")).returncode != 0
    (tmp_path / "none").mkdir()
    assert _compile("x86_64", tmp_path / "none", str(tmp_path / "newer.c")).returncode == 0


@each_machine
def test_system_calls(machine: str, old_headers: Path, tmp_path: Path) -> None:
    """The table of system calls is the same, whichever headers it was made with: filters name calls by it."""
    compiler = shutil.which(COMPILERS[machine])
    if compiler is None:
        pytest.skip(f"no {COMPILERS[machine]}")
    syscalls, tables = _syscalls(), []
    for options in ([], ["-isystem", str(old_headers)]):
        syscalls.main(str(tmp_path / "table.c"), machine, compiler, *options)
        tables.append((tmp_path / "table.c").read_text())
    assert tables[0] == tables[1]
    for name in ("io_uring_setup 425", "clone3 435", "landlock_restrict_self 446", "open_tree_attr 467"):
        assert f'"{name}\\n"' in tables[0]


# ---- the same values, and the same layouts

UAPI = CSRC / "linux/kernel/uapi.h"
# Newer than some headers that the tests meet. All others must be in a header, or the test would compare nothing.
MAY_BE_NEWER = {"__NR_open_tree_attr", "MFD_EXEC"}
# The constants of an enum, which macros of the same names would hide.
ENUMS = ("FSCONFIG_SET_FLAG", "FSCONFIG_SET_STRING", "FSCONFIG_CMD_CREATE", "FSCONFIG_CMD_RECONFIGURE")
LAYOUTS = {
    (
        "sys_statx",
        "statx",
    ): "mask blksize attributes nlink uid gid mode ino size blocks attributes_mask atime btime ctime "
    "mtime rdev_major rdev_minor dev_major dev_minor mnt_id",
    ("sys_open_how", "open_how"): "flags mode resolve",
    ("sys_mount_attr", "mount_attr"): "attr_set attr_clr propagation userns_fd",
}


def _constants() -> dict[str, str]:
    """Return the names of uapi.h and their values, as C."""
    code = re.sub(r"/\*.*?\*/", "", UAPI.read_text(), flags=re.DOTALL)
    found = re.findall(r"^#define (\w+) +(\w+) *$", code, re.MULTILINE)
    return dict(found + re.findall(r"^ +([A-Z]\w+) = (\w+), *$", code, re.MULTILINE))


@each_machine
def test_constants_are_the_kernels(machine: str, tmp_path: Path) -> None:
    """Each number of uapi.h is the one in the kernel's own headers, which are all that this program includes."""
    constants = _constants()
    assert len(constants) >= 44 and {*ENUMS, *MAY_BE_NEWER} <= set(constants)
    headers = ("linux/fcntl.h", "linux/memfd.h", "linux/mount.h", "linux/openat2.h", "linux/sched.h", "linux/stat.h")
    lines = [f"#include <{name}>" for name in ("asm/unistd.h", "asm/fcntl.h", *headers, "linux/wait.h")]
    for name, value in constants.items():
        check = f'_Static_assert({name} == {value}, "{name}");'
        lines += [f"#ifdef {name}", check, "#endif"] if name in MAY_BE_NEWER else [check]
    source = tmp_path / "constants.c"
    (tmp_path / "none").mkdir()
    source.write_text("\n".join([*lines, ""]))
    done = _compile(machine, tmp_path / "none", str(source))
    assert done.returncode == 0, done.stderr
    source.write_text(source.read_text().replace("RESOLVE_IN_ROOT == 0x10", "RESOLVE_IN_ROOT == 0x20"))
    assert "RESOLVE_IN_ROOT" in _compile(machine, tmp_path / "none", str(source)).stderr, "the control"


@each_machine
def test_layouts_are_the_kernels(machine: str, tmp_path: Path) -> None:
    """Each structure of uapi.h has its fields where the kernel's own headers have them, and its size."""
    lines = ["#include <stddef.h>", "#include <kernel/uapi.h>"]
    lines += [f"#define {name} THE_KERNELS_{name}" for name in ENUMS]
    lines += [f"#include <linux/{name}.h>" for name in ("mount", "openat2", "stat")]
    for (ours, theirs), names in LAYOUTS.items():
        lines.append(f'_Static_assert(sizeof(struct {ours}) == sizeof(struct {theirs}), "{ours}");')
        for name in names.split():
            field = f"stx_{name}" if theirs == "statx" else name
            both = f"offsetof(struct {ours}, {field})", f"offsetof(struct {theirs}, {field})"
            sizes = f"sizeof(((struct {ours} *)0)->{field})", f"sizeof(((struct {theirs} *)0)->{field})"
            lines.append(f'_Static_assert({both[0]} == {both[1]} && {sizes[0]} == {sizes[1]}, "{field}");')
    source = tmp_path / "layouts.c"
    (tmp_path / "none").mkdir()
    source.write_text("\n".join([*lines, ""]))
    done = _compile(machine, tmp_path / "none", str(source))
    assert done.returncode == 0, done.stderr
    code = source.read_text().replace("offsetof(struct statx, stx_mode)", "offsetof(struct statx, stx_gid)")
    source.write_text(code)
    assert "stx_mode" in _compile(machine, tmp_path / "none", str(source)).stderr, "the control"
