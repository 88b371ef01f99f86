"""Attempts on the file system's root: out of it, around its masks, through its read-only mounts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy

REFUSED = {
    errno.EPERM,
    errno.EACCES,
    errno.EROFS,
    errno.ENOENT,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EXDEV,
    errno.EBUSY,
    errno.EOPNOTSUPP,
    errno.ESTALE,
}


def test_chroot_in_chroot(policy: Policy, victim: Path, untouched: None) -> None:
    """The classic: chroot below, keep a descriptor above, go up. With the capabilities of a nested user namespace."""
    script = f"""
import os
os.mkdir("/tmp/jail")
fd = os.open("/", os.O_RDONLY)
os.chroot("/tmp/jail")
os.fchdir(fd)
for _ in range(100): os.chdir("..")
os.chroot(".")
print(os.path.exists({str(victim)!r}))
"""
    import subprocess
    import sys

    done = nsbox.run(
        ["unshare", "-Ur", sys.executable, "-I", "-S", "-c", script],
        policy=policy.with_(uid=1000, gid=1000, nested=True),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "False\n"


def test_file_handles(attempt: Callable[..., Any], victim: Path, untouched: None) -> None:
    """The "shocker": open_by_handle_at() by guessed handles, also of what is outside, needs a capability that nobody has."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    handle = ctypes.create_string_buffer(8 + 128)
    handle[0:4] = (128).to_bytes(4, "little")
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(victim / "secret"), handle, ctypes.byref(mount), 0) != 0:
        pytest.skip("no file handles on this file system")
    code = """
handle = ctypes.create_string_buffer(bytes.fromhex(sys.argv[1]))
report([call("open_by_handle_at", os.open(path, os.O_RDONLY), handle, os.O_RDONLY) for path in (".", "/", "/usr", "/tmp")])
"""
    assert set(attempt(code, handle.raw.hex())) <= REFUSED


def test_hard_links_out_of_read_only_places(attempt: Callable[..., Any], workspace: Path) -> None:
    """No hard link from /usr or /etc into the workspace, which would make the host's file writable."""
    code = """
report([attempt(os.link, path, "linked") for path in ("/etc/passwd", "/usr/bin/env", "/etc/hostname") if os.path.exists(path)])
"""
    assert set(attempt(code)) <= {errno.EXDEV, errno.EPERM, errno.EROFS, errno.EACCES}
    assert os.listdir(workspace) == []


def test_same_file_read_only_and_writable(attempt: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    """A file with two names, one readable and one writable, can be changed by the writable name only; that is the policy's wish."""
    shared = tmp_path / "ro"
    shared.mkdir()
    (shared / "f").write_text("x")
    policy = Policy.workspace(workspace, read=[shared])
    code = """
f = sys.argv[1] + "/f"
fd = os.open(f, os.O_RDONLY)
report([attempt(os.open, f, os.O_RDWR), attempt(os.truncate, f, 0), attempt(os.chmod, f, 0o777), attempt(os.utime, f), attempt(os.setxattr, f, "user.x", b"y"),
        attempt(os.unlink, f), attempt(os.rename, f, f + "2"), attempt(os.open, f"/proc/self/fd/{fd}", os.O_RDWR),
        attempt(os.fchmod, fd, 0o777), attempt(os.ftruncate, fd, 0), attempt(os.link, f, "linked"), attempt(os.mkdir, sys.argv[1] + "/d")])
"""
    found = attempt(code, str(shared), policy=policy)
    assert set(found) <= {errno.EROFS, errno.EXDEV, errno.EINVAL, errno.EBADF}, found
    assert (shared / "f").read_text() == "x"


def test_new_mount_calls(attempt: Callable[..., Any]) -> None:
    """The mount calls by descriptor are refused like mount(2) (CVE-2021-41133)."""
    code = """
report({
    "open_tree clone": syscall(428, -100, "/", 1), "fsopen": syscall(430, "tmpfs", 0), "move_mount": syscall(429, -100, "/tmp", -100, "/usr", 0),
    "mount_setattr": syscall(442, -100, "/usr", 0, ctypes.create_string_buffer(struct.pack("4Q", 0, 1, 0, 0)), 32),
    "fspick": syscall(433, -100, "/", 0), "pivot_root": call("pivot_root", "/tmp", "/tmp"), "umount": call("umount2", "/usr", 2),
    "setns": attempt(lambda: call("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0) and 1 / 0) if 0 else 1,
})
"""
    found = attempt(code)
    assert all(number in REFUSED for number in found.values()), found


def test_unshare_without_privileges(attempt: Callable[..., Any], policy: Policy) -> None:
    """No namespace but a user namespace can be made, by any user: there is no capability."""
    code = (
        "report([call('unshare', flag) for flag in (0x20000, 0x40000000, 0x20000000, 0x4000000, 0x8000000, 0x2000000)])"
    )
    for chosen in (policy, policy.with_(uid=0, gid=0), Policy.host()):
        assert set(attempt(code, policy=chosen)) == {errno.EPERM}


def test_proc_files_that_change_the_kernel(attempt: Callable[..., Any], policy: Policy) -> None:
    """core_pattern, modprobe, sysrq, binfmt_misc, uevent_helper, release_agent: nothing that runs programs on the host."""
    paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/user/max_user_namespaces",
        "/proc/irq/default_smp_affinity",
        "/proc/mtrr",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/release_agent",
        "/sys/power/state",
    ]
    code = f"report({{p: attempt(lambda: os.close(os.open(p, os.O_WRONLY))) for p in {paths}}})"
    for chosen in (policy, policy.with_(uid=0, gid=0)):
        found = attempt(code, policy=chosen)
        assert all(number in REFUSED | {errno.EIO} for number in found.values()), found


# Opens what can be opened, and writes nothing.
SETTINGS = """
found = {}
for top, _, names in os.walk("/proc/sys"):
    for name in names:
        path = os.path.join(top, name)
        found[path] = attempt(lambda: os.close(os.open(path, os.O_WRONLY)))
report(found)
"""


def test_no_kernel_setting_is_writable(attempt: Callable[..., Any], policy: Policy) -> None:
    """Not one below /proc/sys, not even those of the sandbox's own namespaces, whichever uid a command has inside."""
    for chosen in (policy, policy.with_(uid=0, gid=0), policy.with_(network="host")):
        found = attempt(SETTINGS, policy=chosen)
        assert len(found) > 100 and 0 not in found.values()
    with nsbox.Sandbox(policy) as box:  # in a copy of a mount tree that is kept, too
        for _ in range(3):
            found = attempt(SETTINGS, policy=box)
            assert len(found) > 100 and 0 not in found.values()


@pytest.mark.as_user("for root they are read-only with nested=True as well")
def test_control_the_own_namespaces_settings(attempt: Callable[..., Any], policy: Policy) -> None:
    """Control: where they aren't covered, the owner of the ipc namespace may change its settings, without a capability."""
    found = attempt(SETTINGS, policy=policy.with_(nested=True))
    assert found["/proc/sys/kernel/shmmax"] == found["/proc/sys/kernel/msgmni"] == 0


def test_proc_remount_and_second_proc(attempt: Callable[..., Any], policy: Policy) -> None:
    """The masks of /proc can't be got rid of by another procfs, nor by mount options."""
    import subprocess

    script = "mkdir /tmp/p; mount -t proc proc /tmp/p 2>/dev/null && cat /tmp/p/keys /tmp/p/timer_list 2>/dev/null | head -1; mount -o remount,rw /proc/sys 2>/dev/null && echo remounted; true"
    done = nsbox.run(
        ["unshare", "-Urmpf", "sh", "-c", script],
        policy=policy.with_(uid=1000, gid=1000, nested=True),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "remounted" not in done.stdout
    if os.geteuid() == 0:
        assert done.stdout == ""


def test_terminals_of_the_host(attempt: Callable[..., Any]) -> None:
    """No device of the host's /dev is there: no mem, kmsg, kvm, fuse, tun, vsock, disk, and no terminal of the host's devpts."""
    names = [
        "mem",
        "kmem",
        "kmsg",
        "kvm",
        "fuse",
        "net/tun",
        "vsock",
        "vda",
        "sda",
        "loop0",
        "loop-control",
        "uinput",
        "tty0",
        "tty1",
        "ttyS0",
        "pts/0",
        "pts/1",
        "vhost-net",
    ]
    found = attempt(f"report([n for n in {names} if os.path.exists('/dev/' + n)])")
    assert found == []


def test_writes_to_device_nodes(attempt: Callable[..., Any], policy: Policy) -> None:
    """Uid 0 of the sandbox can't change mode, owner or times of the host's device nodes."""
    before = {name: os.stat(f"/dev/{name}") for name in ("null", "zero", "full", "tty")}
    code = """
found = []
for name in ("null", "zero", "full", "tty"):
    path = "/dev/" + name
    found += [attempt(os.chmod, path, 0o600), attempt(os.chown, path, 0, 0), attempt(os.utime, path), attempt(os.setxattr, path, "user.x", b"y")]
null = os.open("/dev/null", os.O_RDWR)
found += [attempt(os.fchmod, null, 0o600), attempt(os.fchmod, 0, 0o600)]
report(found)
"""
    import subprocess

    found = attempt(code, policy=policy.with_(uid=0, gid=0), stdin=subprocess.DEVNULL)
    assert set(found) <= REFUSED, found
    after = {name: os.stat(f"/dev/{name}") for name in before}
    assert {n: (s.st_mode, s.st_uid, s.st_ctime_ns) for n, s in after.items()} == {
        n: (s.st_mode, s.st_uid, s.st_ctime_ns) for n, s in before.items()
    }


def test_workspace_that_is_a_link(tmp_path: Path, victim: Path, untouched: None) -> None:
    """A workspace named by a link is its target at that time; the link changed afterwards leads nowhere else."""
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    policy = Policy.workspace(link)
    link.unlink()
    link.symlink_to(victim)
    assert nsbox.run(["touch", "made"], policy=policy, cwd=real).returncode == 0
    assert (real / "made").exists()


def test_renaming_around_a_mask(attempt: Callable[..., Any], workspace: Path) -> None:
    """The parent of a denied path can't be renamed away so that the path is free again for the next sandbox to miss."""
    (workspace / "d").mkdir()
    (workspace / "d" / "secret").write_text("secret")
    policy = Policy.workspace(workspace, deny=[workspace / "d" / "secret"])
    code = "report([attempt(os.rename, 'd', 'e'), attempt(lambda: open('e/secret').read()), attempt(lambda: open('d/secret').read())])"
    renamed, through_new, through_old = attempt(code, policy=policy)
    assert through_new and through_old
    if renamed == 0:  # allowed by the kernel: the mask moves along
        (workspace / "e").rename(workspace / "d")
    assert (workspace / "d" / "secret").read_text() == "secret"
