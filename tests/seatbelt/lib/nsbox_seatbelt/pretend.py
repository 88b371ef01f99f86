"""nsbox as it is on macOS, on Linux: with the C core for macOS, and a stand-in for libsandbox that confines nothing.

A program: pretend.py SITE CODE runs code with nsbox from SITE, which site() has made. What only Linux's Python has is taken
away before nsbox is imported, so that anything that needs it is found here. What a Mac would be asked for is answered.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# What Python has on Linux, and not on macOS (os.waitid() has come there with 3.13).
LINUX_ONLY: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("pidfd_open", "memfd_create", "waitid", "unshare", "setns", "O_PATH", "O_TMPFILE", "P_PID", "P_PIDFD"),
        *("listxattr", "getxattr", "setxattr", "removexattr", "eventfd", "splice", "copy_file_range", "getresuid"),
        *("getresgid", "setresuid", "setresgid", "sched_getaffinity", "sched_setaffinity", "MFD_CLOEXEC", "getrandom"),
    ),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    select: ("epoll",),
    resource: ("prlimit",),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SETPIPE_SZ", "F_GETPIPE_SZ"),
}


def build(folders: Any) -> Path:
    """Return a build of the core for macOS: NSBOX_DARWIN_BUILD, as .ci/run exports it, or a new one in a folder."""
    from nsbox_testing import needs

    given = os.environ.get("NSBOX_DARWIN_BUILD")
    if given:
        return Path(given)
    meson, ninja = needs.builder()
    root, folder = Path(__file__).resolve().parents[4], folders.mktemp("darwin")
    setup = [meson, "setup", str(folder), str(root), "-Dcore_only=true", "-Ddarwin_core=true"]
    for command in (setup, [meson, "compile", "-C", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NINJA": ninja})
        assert done.returncode == 0, done.stdout + done.stderr
    return Path(folder)


def site(build: Path, directory: Path) -> Path:
    """Make a directory to import nsbox from, with the core for macOS that is in a build."""
    import nsbox

    package = directory / "nsbox"
    shutil.copytree(Path(nsbox.__file__).parent, package, ignore=shutil.ignore_patterns("_nsbox*.so", "__pycache__"))
    built = build / "csrc/darwin"
    shutil.copy(built / "_nsbox.abi3.so", package)
    shutil.copy(built / "_helper", package)
    shutil.copy(build / "csrc/proxy/nsbox-proxy", package)
    backend = importlib.util.find_spec("_cffi_backend")
    assert backend is not None and backend.origin is not None
    shutil.copy(backend.origin, directory)
    return directory


def pretend(directory: str | os.PathLike[str], **host: Any) -> None:
    """Import nsbox as if this were a Mac. host: facts of it that are to be others."""
    select.kqueue = select.epoll  # type: ignore[attr-defined, misc, assignment]  # as an owner of descriptors
    absent = {id(module): names for module, names in LINUX_ONLY.items()}
    for module in LINUX_ONLY:
        for name in absent[id(module)]:
            if hasattr(module, name):
                delattr(module, name)
    if "tempfile" in sys.modules:  # some interpreters have it loaded already, and it has seen O_TMPFILE
        sys.modules["tempfile"]._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    sys.path.insert(0, os.fspath(directory))
    system, sys.platform = sys.platform, "darwin"
    try:
        import nsbox
        from nsbox._base.frozen import replace
        from nsbox._core import abi, darwin
        from nsbox._machine import darwin as machine_darwin
    finally:
        sys.platform = system

    assert abi.on_darwin and not abi.on_linux and not abi.problem, abi.problem
    assert nsbox.__file__.startswith(os.fspath(directory))
    machine_darwin.spelled = lambda path: path  # fcntl(2) of Linux has no F_GETPATH
    program = f"{os.fspath(directory)}/sandbox-exec"
    darwin.PROGRAM = machine_darwin.PROGRAM = program  # type: ignore[attr-defined]
    asked = machine_darwin.with_seatbelt
    machine_darwin.with_seatbelt = lambda found: replace(asked(found), **host)


def run(directory: Path, code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a new process that takes this machine for a Mac."""
    command = [sys.executable, "-I", __file__, os.fspath(directory), code, *arguments]
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False} | options
    return subprocess.run(command, **options)  # type: ignore[no-any-return]


if __name__ == "__main__":
    pretend(sys.argv[1])
    code, sys.argv = sys.argv[2], ["-c", *sys.argv[3:]]
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
