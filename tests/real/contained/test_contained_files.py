"""Containment of files as seen from inside: what is there, what can be written, what can't be undone."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python

import nsbox
from nsbox import Bind, BindData, Dev, Dir, File, Mask, Policy, Proc, RoBind, Symlink, Tmpfs

ATTEMPT = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def attempt(f, *args):
    try: f(*args)
    except OSError as e: return e.errno
    return 0
def call(name, *args):
    args = [ctypes.c_char_p(a.encode()) if isinstance(a, str) else ctypes.c_ulong(a) for a in args]
    return ctypes.get_errno() if getattr(libc, name)(*args) < 0 else 0
def writable(path):
    return attempt(lambda: os.close(os.open(os.path.join(path, ".nsbox-test"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)))
def readable(path):
    def f():
        fd = os.open(path, os.O_RDONLY)
        try: os.listdir(fd) if os.path.isdir(path) else os.read(fd, 1)
        finally: os.close(fd)
    return attempt(f)
"""
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MNT_DETACH = 1, 32, 4096, 16384, 2


# ---- the workspace policy


def test_root_has_only_what_the_plan_says(inside: Callable[..., Any], policy: Policy) -> None:
    """The root directory lists what the plan mounts and nothing else."""
    listing = set(inside("report(os.listdir('/'))"))
    assert listing == {op.dest.split("/")[1] for op in _plan_ops(policy) if getattr(op, "dest", "/") != "/"}
    home = inside("report(os.path.expanduser('~'))")
    wanted = {path.split("/")[1] for path in (str(policy.workdir), home, *nsbox.probe().prefixes)}
    assert not listing & ({"home", "root", "run", "sys", "mnt", "boot", "srv"} - wanted)


def _plan_ops(policy: Policy) -> tuple[Any, ...]:
    with nsbox.Popen(["true"], policy=policy) as p:
        return p.sandbox.plan.ops


def test_system_is_read_only(inside: Callable[..., Any]) -> None:
    """No system directory can be written to; they say EROFS or EACCES."""
    places = ["/", "/usr", "/usr/bin", "/etc", "/opt", "/bin", "/lib", "/var"]
    found = inside(ATTEMPT + f"report({{p: writable(p) for p in {places} if os.path.isdir(p)}})")
    assert set(found.values()) <= {errno.EROFS, errno.EACCES}, found
    assert {"/", "/usr", "/etc"} <= set(found)


def test_workspace_is_written_through(inside: Callable[..., Any], workspace: Path) -> None:
    """What the command writes in the workspace is there afterwards, and what was there it can change and remove."""
    (workspace / "old").write_text("old")
    (workspace / "gone").write_text("gone")
    code = """
open("new", "w").write("new"); os.mkdir("d"); os.symlink("new", "link")
open("old", "a").write(", changed"); os.unlink("gone"); os.chmod("new", 0o600)
report(sorted(os.listdir(".")))
"""
    assert inside(code) == ["d", "link", "new", "old"]
    assert sorted(os.listdir(workspace)) == ["d", "link", "new", "old"]
    assert (workspace / "old").read_text() == "old, changed"
    assert (workspace / "new").stat().st_mode & 0o777 == 0o600


def test_siblings_of_the_workspace_are_absent(inside: Callable[..., Any], tmp_path: Path, workspace: Path) -> None:
    """Nothing beside the workspace is there, by no spelling."""
    (tmp_path / "secret").write_text("secret")
    paths = [
        f"{tmp_path}/secret",
        f"{workspace}/../secret",
        "/proc/self/cwd/../secret",
        f"/proc/self/root{tmp_path}/secret",
    ]
    assert inside(ATTEMPT + f"report([readable(p) for p in {paths}])") == [errno.ENOENT] * 4
    assert inside(f"report(os.listdir({str(tmp_path)!r}))") == ["workspace"]


def test_tmp_is_private(inside: Callable[..., Any], policy: Policy) -> None:
    """/tmp has only what leads to the workspace. It is writable, of mode 1777, and gone afterwards.

    /var/tmp leads to it; if the policy shows something there, such as the interpreter, it is another that is as private.
    """
    name = f"nsbox-test-{os.getpid()}"
    shown = (*nsbox.probe().prefixes, *policy.read, *policy.write)
    is_link = not any(Path(path).is_relative_to("/var/tmp") for path in shown)
    for place, other in ("/tmp", "/var/tmp"), ("/var/tmp", "/tmp"):
        code = f"open('{place}/{name}', 'w').write('x')"
        seen = f"[oct(os.stat('{place}').st_mode), os.path.exists('{other}/{name}')]"
        assert inside(f"{code}; report({seen})") == ["0o41777", is_link]
        assert not os.path.exists(f"{place}/{name}")
        assert inside(f"report(os.path.exists('{place}/{name}'))") is False


def test_tmp_size(inside: Callable[..., Any], policy: Policy) -> None:
    """tmp_size= bounds what fits into /tmp."""
    code = """
st = os.statvfs("/tmp")
def fill():
    with open("/tmp/x", "wb", 0) as f:
        while True: f.write(bytes(65536))
report([st.f_blocks * st.f_frsize, attempt(fill), os.path.getsize("/tmp/x")])
"""
    assert inside(ATTEMPT + code, policy=policy.with_(tmp_size="1M")) == [1 << 20, errno.ENOSPC, 1 << 20]


def test_read_and_write(inside: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    """read= and write= paths are there, at their own places, as they say; files too."""
    for name in ("r", "w"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    (tmp_path / "file").write_text("file")
    policy = Policy.workspace(workspace, read=[tmp_path / "r", tmp_path / "file"], write=[tmp_path / "w"])
    code = f"""
b = {str(tmp_path)!r}
report([open(b + "/r/f").read(), open(b + "/w/f").read(), open(b + "/file").read(), writable(b + "/r"), writable(b + "/w"),
        attempt(open, b + "/file", "a"), writable(b)])
"""
    found = inside(ATTEMPT + code, policy=policy)
    assert found[:3] == ["r", "w", "file"]
    assert found[3] == errno.EROFS
    assert found[4] == 0
    assert found[5] == errno.EROFS
    assert (tmp_path / "w" / ".nsbox-test").exists()
    assert not (tmp_path / ".nsbox-test").exists()


def test_read_only_inside_the_workspace(inside: Callable[..., Any], workspace: Path) -> None:
    """A read= path in the workspace is read-only there, a write= path in that writable again."""
    (workspace / "ro" / "rw").mkdir(parents=True)
    policy = Policy.workspace(workspace, read=[workspace / "ro"], write=[workspace / "ro" / "rw"])
    assert inside(ATTEMPT + "report([writable(p) for p in ('.', 'ro', 'ro/rw')])", policy=policy) == [0, errno.EROFS, 0]


def test_masks(inside: Callable[..., Any], workspace: Path) -> None:
    """Denied files and directories can't be read, written, listed or entered, removed or replaced."""
    (workspace / ".env").write_text("SECRET=1")
    (workspace / "keys").mkdir()
    (workspace / "keys" / "id").write_text("SECRET")
    policy = Policy.workspace(workspace, deny=[workspace / ".env", workspace / "keys", workspace / "not-there"])
    code = """
report({
    "read": readable(".env"), "write": attempt(open, ".env", "w"), "list": readable("keys"), "enter": attempt(os.chdir, "keys"),
    "below": readable("keys/id"), "unlink": attempt(os.unlink, ".env"), "rmdir": attempt(os.rmdir, "keys"),
    "rename": attempt(os.rename, "keys", "x"), "over": attempt(os.rename, ".env", "y"), "link": attempt(os.link, ".env", "z"),
    "chmod": attempt(os.chmod, ".env", 0o777), "size": os.stat(".env").st_size, "missing": attempt(os.stat, "not-there"),
})
"""
    for chosen in (policy, policy.with_(uid=0, gid=0), policy.with_(uid=1000, gid=1000)):
        found = inside(ATTEMPT + code, policy=chosen)
        assert found.pop("size") == 0
        assert found.pop("missing") == errno.ENOENT
        assert all(found.values()), found
    assert (workspace / ".env").read_text() == "SECRET=1"
    assert (workspace / "keys" / "id").read_text() == "SECRET"


@pytest.mark.as_root("only root can read these secrets of the host")
def test_secrets_of_the_host_are_masked(inside: Callable[..., Any]) -> None:
    """What root alone can read on the host, /etc/shadow and its kind, a sandbox of root's can't."""
    secrets = [path for path in nsbox.probe().secrets if os.access(path, os.R_OK)]
    assert "/etc/shadow" in secrets
    found = inside(ATTEMPT + f"report({{p: readable(p) for p in {secrets}}})")
    assert set(found.values()) == {errno.EACCES}, found


def test_cover_of_kernel_settings(inside: Callable[..., Any]) -> None:
    """Settings of the kernel can't be written to, and what tells about it can't be read."""
    places = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/drop_caches",
    ]
    code = f"report([attempt(lambda p: os.close(os.open(p, os.O_WRONLY)), p) for p in {places} if os.path.exists(p)])"
    assert set(inside(ATTEMPT + code)) <= {errno.EACCES, errno.EROFS, errno.EPERM}
    secrets = ["/proc/kcore", "/proc/keys", "/proc/timer_list"]
    found = inside(ATTEMPT + f"report({{p: readable(p) for p in {secrets} if os.path.exists(p)}})")
    assert all(number in (errno.EACCES, errno.EPERM) for path, number in found.items() if path != "/proc/keys"), found


def test_no_sysfs_and_no_run(inside: Callable[..., Any]) -> None:
    """/sys and /run, whose sockets and settings are ways out, are absent."""
    assert inside("report([p for p in ('/sys', '/run', '/var/run', '/run/user') if os.path.exists(p)])") == []


def test_devices(inside: Callable[..., Any]) -> None:
    """/dev has the harmless devices, which work, and no others; none can be made."""
    code = """
import stat
devices = sorted(n for n in os.listdir("/dev") if stat.S_ISCHR(os.lstat("/dev/" + n).st_mode) or stat.S_ISBLK(os.lstat("/dev/" + n).st_mode))
open("/dev/null", "w").write("x")
report([devices, open("/dev/zero", "rb").read(2) == bytes(2), len(open("/dev/urandom", "rb").read(3)), attempt(open, "/dev/full", "r"),
        attempt(os.mknod, "/tmp/sda", 0o600 | stat.S_IFBLK, os.makedev(8, 0)), os.readlink("/dev/stdin"),
        attempt(os.mknod, "mem", 0o600 | stat.S_IFCHR, os.makedev(1, 1))])
"""
    devices, zero, random, full, block, stdin, memory = inside(ATTEMPT + code)
    assert devices == ["full", "null", "random", "tty", "urandom", "zero"]
    assert zero and random == 3 and full == 0
    assert block == memory == errno.EPERM
    assert stdin == "/proc/self/fd/0"


def test_devices_in_the_workspace_do_not_work(inside: Callable[..., Any]) -> None:
    """All mounts but those of the devices themselves, and proc, are nodev."""
    lines = [line.split() for line in inside("report(open('/proc/self/mountinfo').read())").splitlines()]
    for fields in lines:
        if not fields[4].startswith("/dev/"):
            assert "nodev" in fields[5], fields


def test_memory_files_do_not_show_the_caller(inside: Callable[..., Any], tmp_path: Path) -> None:
    """Nothing in the mount table names a path of the host but the sources of binds."""
    table = inside("report(open('/proc/self/mountinfo').read())")
    points = [line.split()[4] for line in table.splitlines()]
    assert "/" in points
    assert not any(".nsbox" in line or "oldroot" in line for line in table.splitlines())
    assert len([p for p in points if p == "/"]) == 1


# ---- what can't be undone

UNDO = """
os.mkdir("/tmp/b")
def mount(source, target, type_, flags, data=0): return call("mount", source or 0, target, type_ or 0, flags, data)
workspace = os.getcwd()
denied = workspace + "/denied"
report({
    "mount tmpfs": mount("none", "/tmp/b", "tmpfs", 0),
    "mount proc": mount("proc", "/tmp/b", "proc", 0),
    "umount workspace": call("umount2", workspace, 2),
    "umount tmp": call("umount2", "/tmp", 2),
    "umount mask": call("umount2", denied, 2),
    "umount usr": call("umount2", "/usr", 2),
    "umount root": call("umount2", "/", 2),
    "umount proc": call("umount2", "/proc", 2),
    "remount usr": mount(None, "/usr", None, 32 | 4096),
    "remount root": mount(None, "/", None, 32 | 4096),
    "remount mask": mount(None, denied, None, 32 | 4096),
    "remount workspace suid": mount(None, workspace, None, 32 | 4096),
    "uncover the workspace": mount(workspace, "/tmp/b", None, 4096),
    "pivot": call("pivot_root", "/tmp", "/tmp"),
    "chroot": attempt(os.chroot, "/tmp"),
    "move mask": mount(denied, "/tmp/b", None, 8192),
    "share": mount(None, "/", None, (1 << 20) | 16384),
    "mknod": attempt(os.mknod, "/tmp/null", 0o20666, os.makedev(1, 3)),
    "sethostname": call("sethostname", "x", 1),
    "setns": call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) if os.access("/proc/1/ns/mnt", os.R_OK) else 1,
})
"""
HARMLESS_WHEN_NESTED = {"mount tmpfs", "mount proc", "chroot", "sethostname", "share", "pivot"}


@pytest.fixture
def guarded(workspace: Path) -> Policy:
    """A policy with a masked directory in its workspace; no seccomp profile stands in for what mounts protect."""
    (workspace / "denied").mkdir()
    (workspace / "denied" / "secret").write_text("secret")
    return Policy.workspace(workspace, deny=[workspace / "denied"], seccomp="off")


@pytest.mark.parametrize("ids", [None, 0, 1234])
def test_mounts_cannot_be_changed(inside: Callable[..., Any], guarded: Policy, ids: int | None) -> None:
    """Mounting, unmounting, remounting, moving, pivoting: all refused, as whoever."""
    found = inside(ATTEMPT + UNDO, policy=guarded.with_(uid=ids, gid=ids))
    assert all(found.values()), {what for what, number in found.items() if not number}


@pytest.mark.parametrize("ids", [1234, None])
def test_mounts_cannot_be_changed_when_nested(guarded: Policy, ids: int | None) -> None:
    """With all capabilities of a nested user and mount namespace, what the sandbox has mounted stays as it is."""
    if ids is None and os.geteuid() == 0:
        ids = 1  # uid 0 without CAP_SETFCAP can't make a user namespace at all
    code = "import json, os\ndef report(x): print(json.dumps(x))\n" + ATTEMPT + UNDO
    done = nsbox.run(
        ["unshare", "-Urm", "--propagation", "unchanged", *python(code)],
        policy=guarded.with_(uid=ids, gid=ids, nested=True),
        capture_output=True,
        text=True,
    )
    import json

    found = json.loads(done.stdout or "{}")
    assert found, done.stderr
    undone = {what for what, number in found.items() if not number} - HARMLESS_WHEN_NESTED
    assert not undone


def test_nested_copy_of_the_tree_keeps_masks_and_read_only(guarded: Policy) -> None:
    """A recursive copy of the whole tree, made in a nested namespace, still has its masks, and /usr is still read-only."""
    script = """
mkdir /tmp/copy && mount --rbind / /tmp/copy || exit 9
cat /tmp/copy"$PWD"/denied/secret && exit 1
touch /tmp/copy/usr/x && exit 2
mount -o remount,bind,rw /tmp/copy/usr && exit 3
umount -l /tmp/copy"$PWD"/denied && exit 4
umount /tmp/copy/proc/1 2>/dev/null && exit 5
exit 0
"""
    done = nsbox.run(
        ["unshare", "-Urm", "sh", "-c", script],
        policy=guarded.with_(uid=1234, gid=1234, nested=True),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# ---- pid 1 and the old root


def test_pid_1_tells_nothing(inside: Callable[..., Any], policy: Policy) -> None:
    """Memory, environment, root, descriptors, program of pid 1 can't be read from inside; as uid 0 neither."""
    code = """
report({
    "environ": readable("/proc/1/environ"), "mem": readable("/proc/1/mem"), "maps": readable("/proc/1/maps"),
    "root": attempt(os.readlink, "/proc/1/root"), "through root": readable("/proc/1/root/etc"), "cwd": attempt(os.readlink, "/proc/1/cwd"),
    "exe": attempt(os.readlink, "/proc/1/exe"), "fd": attempt(os.readlink, "/proc/1/fd/0"), "fd 0": attempt(os.open, "/proc/1/fd/0", os.O_RDONLY),
    "auxv": readable("/proc/1/auxv"), "stack": readable("/proc/1/stack"), "syscall": readable("/proc/1/syscall"),
    "ptrace": call("ptrace", 16, 1, 0, 0), "seize": call("ptrace", 0x4206, 1, 0, 0),
    "vm": call("process_vm_readv", 1, 0, 0, 0, 0, 0) or attempt(lambda: open("/proc/1/mem", "rb")),
    "ns": attempt(os.readlink, "/proc/1/ns/mnt"),
})
"""
    for chosen in (policy, policy.with_(uid=0, gid=0), policy.with_(uid=1234, gid=1234), Policy.host()):
        found = inside(ATTEMPT + code, policy=chosen)
        told = {what: number for what, number in found.items() if number not in (errno.EACCES, errno.EPERM)}
        assert not told


def test_pid_1_cannot_be_killed_from_inside(inside: Callable[..., Any]) -> None:
    """No signal from inside ends, stops or disturbs pid 1."""
    code = """
import signal
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
report([open("/proc/1/comm").read(), open("/proc/1/stat").read().split()[2]])
"""
    name, state = inside(code)
    assert name == "nsbox-init\n"
    assert state in "SR"


@pytest.mark.as_root("reads what pid 1 hides")
def test_pid_1_stands_in_the_sandbox(policy: Policy) -> None:
    """Root and working directory of pid 1 are the sandbox's, so that they are no way back."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, policy=policy) as p:
        init, command = p.sandbox.init_pid, p.pid
        for name in ("root", "cwd"):
            assert os.path.samefile(f"/proc/{init}/{name}", f"/proc/{command}/root"), name
        assert os.readlink(f"/proc/{init}/exe").startswith("/memfd:nsbox-init")
        assert os.readlink(f"/proc/{init}/ns/mnt") == os.readlink(f"/proc/{command}/ns/mnt")
        assert os.readlink(f"/proc/{init}/ns/net") == os.readlink(f"/proc/{command}/ns/net")


def test_the_old_root_is_gone(inside: Callable[..., Any], tmp_path: Path) -> None:
    """Neither ".." nor chroot tricks nor mount ids lead out of the root."""
    marker = tmp_path / "marker"
    marker.write_text("host")
    code = f"""
found = []
os.chdir("/")
for _ in range(50): os.chdir("..")
found.append(os.path.exists("." + {str(marker)!r}))
fd = os.open("/", os.O_RDONLY)
os.fchdir(os.open("..", os.O_RDONLY, dir_fd=fd))
found.append(os.path.exists("." + {str(marker)!r}))
found.append(os.stat("/..").st_ino == os.stat("/").st_ino)
report(found)
"""
    assert inside(code) == [False, False, True]


# ---- layers


def test_layers(tmp_path: Path) -> None:
    """Policy.layers() is just its ops, in their order."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_text("data")
    policy = Policy.layers(
        RoBind("/usr", "/usr"),
        *(Symlink(f"usr/{n}", f"/{n}") for n in ("bin", "lib", "lib64") if os.path.islink(f"/{n}")),
        Proc("/proc"),
        Dev("/dev"),
        Tmpfs("/t", size=4096, mode=0o700),
        Dir("/t/d", 0o711),
        File("/t/file", b"contents", 0o640),
        BindData("/t/bound", b"bound", read_only=True),
        Bind(str(tmp_path / "data"), "/d"),
        Mask("/d/f"),
        unshare={"net", "ipc", "uts", "cgroup"},
    )
    script = (
        "cat /t/file /t/bound; stat -c %a /t /t/d /t/file; cat /d/f 2>/dev/null || echo masked; echo x > /d/new; ls /"
    )
    done = nsbox.run(["/bin/sh", "-c", script], policy=policy, cwd="/", capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[:5] == ["contentsbound700", "711", "640", "masked", "bin"]
    assert (tmp_path / "data" / "new").read_text() == "x\n"


def test_what_is_mounted_on_the_host_later_stays_outside(inside: Callable[..., Any], policy: Policy) -> None:
    """Mounts are private: no propagation in any direction."""
    lines = [line.split() for line in inside("report(open('/proc/self/mountinfo').read())").splitlines()]
    for fields in lines:
        optional = fields[6 : fields.index("-")]
        assert not any(word.startswith(("shared", "master", "propagate")) for word in optional), fields


def test_a_current_directory_that_is_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sandbox's own /tmp lies over it, a command starts in the workspace. One that it shows is where it starts."""
    policy = Policy.workspace(tmp_path, read=["/"])
    with tempfile.TemporaryDirectory(dir="/tmp") as covered, tempfile.TemporaryDirectory(dir="/var/tmp") as shown:
        for place, start in ((covered, str(tmp_path)), (shown, shown), ("/proc", str(tmp_path)), ("/usr", "/usr")):
            monkeypatch.chdir(place)
            assert nsbox.run(["pwd"], policy=policy, stdout=subprocess.PIPE, text=True).stdout == f"{start}\n"
        monkeypatch.chdir(covered)
        with pytest.raises(nsbox.AccessError):  # an explicit one is an error
            nsbox.run(["pwd"], policy=policy, cwd=covered)
