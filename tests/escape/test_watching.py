"""What a command sees of others by watching directories that they use too: inotify(7)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nsbox
from nsbox import Filter, Policy

# A pipe says when to look: after that all events are there.
WATCHER = textwrap.dedent("""
    import ctypes, os, struct, sys
    libc = ctypes.CDLL(None, use_errno=True)
    calls = [libc.inotify_init1, libc.inotify_init] if len(sys.argv) < 2 else [lambda *_: libc.fanotify_init(0x200, 0)]
    for call in calls:
        fd = call(0x800)
        if fd < 0: fd = -ctypes.get_errno()
    watched = libc.inotify_add_watch(fd, b"/usr/bin", 0x20)  # IN_OPEN
    print(fd if fd < 0 else "watching" if watched >= 0 else "no", flush=True)
    sys.stdin.read()
    try: data = os.read(fd, 1 << 20)
    except OSError: data = b""
    names, at = set(), 0
    while at < len(data):
        n = struct.unpack_from("I", data, at + 12)[0]
        names.add(data[at + 16:at + 16 + n].rstrip(b"\\0").decode())
        at += 16 + n
    print(*sorted(names))
""")


def seen(policy: Policy, *more: str) -> tuple[str, set[str]]:
    """Return what a watcher says at its start, and which programs of others it has seen afterwards."""
    command = [sys.executable, "-I", "-S", "-c", WATCHER, *more]
    with nsbox.Popen(command, policy=policy, stdin=-1, stdout=-1, text=True) as watcher:
        assert watcher.stdout is not None
        first = watcher.stdout.readline().strip()
        subprocess.run(["/usr/bin/factor", "15"], check=True, stdout=subprocess.DEVNULL)
        nsbox.run(["/usr/bin/sha512sum", "/dev/null"], policy=policy, check=True, stdout=nsbox.DEVNULL)
        return first, set(watcher.communicate()[0].split())


@pytest.mark.parametrize("wishes", [{}, {"network": "host"}], ids=["alone", "network"])
def test_hardened_sees_nothing(workspace: Path, wishes: dict[str, str]) -> None:
    """There is no inotify, and no fanotify: ENOSYS, so that programs do without."""
    policy = Policy.workspace(workspace, seccomp="hardened", **wishes)  # type: ignore[arg-type]
    assert seen(policy) == ("-38", set())
    assert seen(policy, "fanotify") == ("-38", set())


def test_control_a_watch_sees_the_host(workspace: Path) -> None:
    """Control: where it is allowed, a command sees what the host and other sandboxes execute."""
    policy = Policy.workspace(workspace, seccomp=Filter(base="hardened", allow=("inotify_init", "inotify_init1")))
    first, names = seen(policy)
    assert first == "watching"
    assert names >= {"factor", "sha512sum"}


def test_no_filters_of_its_own(workspace: Path) -> None:
    """With "hardened" a command can't install filters, of which all programs of a machine share the room."""
    script = (
        "import ctypes, os, struct\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(code)))\n"
        "number = 317 if os.uname().machine == 'x86_64' else 277\n"
        "for call in (lambda: libc.prctl(22, 2, program), lambda: libc.syscall(ctypes.c_long(number), 1, 0, program)):\n"
        "    print(0 if call() == 0 else ctypes.get_errno())\n"
    )
    for chosen, expected in (("hardened", "22 38"), ("default", "0 0")):
        policy = Policy.workspace(workspace, seccomp=chosen)  # type: ignore[arg-type]
        done = nsbox.run([sys.executable, "-c", script], policy=policy, capture_output=True, text=True, check=True)
        assert " ".join(done.stdout.split()) == expected
    policy = Policy.workspace(workspace, seccomp=Filter(base="hardened", allow=("seccomp", "prctl")))
    done = nsbox.run([sys.executable, "-c", script], policy=policy, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]
