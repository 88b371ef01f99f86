"""The caller's root is gone from the sandbox, also from where ".." at the root would step onto it."""

import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Bind, Dev, DevBind, Policy, Proc, RoBind, Symlink, Tmpfs

SYSTEM = (
    *(
        RoBind(path, path)
        for path in ("/usr", "/lib", "/lib64", "/bin", "/sbin")
        if Path(path).is_dir() and not Path(path).is_symlink()
    ),
    *(
        Symlink(str(Path(path).readlink()), path)
        for path in ("/lib", "/lib64", "/bin", "/sbin")
        if Path(path).is_symlink()
    ),
)
ROOTS = {
    "tmpfs": SYSTEM,
    "bind": (RoBind("/", "/"),),
    "bind twice": (RoBind("/", "/"), RoBind("/", "/")),
    "tmpfs over bind": (RoBind("/", "/"), Tmpfs("/"), *SYSTEM),
    "bind over all": (*SYSTEM, Tmpfs("/tmp"), RoBind("/", "/")),
    "devices": (DevBind("/", "/"),),
}


@pytest.mark.parametrize("name", ROOTS)
def test_nothing_lies_on_the_root(name: str) -> None:
    """However often "/" is mounted on, /.. and /usr/.. are the root itself, the only mount without a visible parent."""
    policy = Policy.layers(*ROOTS[name], Proc("/proc"), Dev("/dev"))
    script = "stat -c %d:%i / /.. /usr/.. /usr/../..; cut -d' ' -f1,2,5 /proc/self/mountinfo"
    out = nsbox.run(
        ["/bin/sh", "-c", script], policy=policy, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(set(out[:4])) == 1, out[:4]
    mounts = [line.split() for line in out[4:]]
    ids = {mount[0] for mount in mounts}
    assert sum(mount[2] == "/" for mount in mounts) == 1
    assert [mount[2] for mount in mounts if mount[1] not in ids] == ["/"]


@pytest.mark.parametrize("name", ["bind", "bind twice", "bind over all"])
def test_a_read_only_root_has_no_writable_twin(name: str, workspace: Path) -> None:
    """With the whole host bound read-only nothing can be written, by any spelling of a path through the root."""
    policy = Policy.layers(*ROOTS[name], Proc("/proc"))
    script = f"for up in '' /.. /usr/.. /usr/../..; do echo x > $up{workspace}/planted && echo wrote; done; true"
    done = nsbox.run(["/bin/sh", "-c", script], policy=policy, capture_output=True, text=True)
    assert "wrote" not in done.stdout
    assert list(workspace.iterdir()) == []


def test_control_dotdot_steps_onto_a_mount_over_the_root(workspace: Path) -> None:
    """Control: where a mount does lie on "/", "/.." is that mount; so the test above would see one."""
    script = (
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
        "u, g = os.geteuid(), os.getegid()\n"
        "assert libc.unshare(0x10020000) == 0, ctypes.get_errno()\n"
        "open('/proc/self/setgroups', 'w').write('deny')\n"
        "open('/proc/self/uid_map', 'w').write(f'0 {u} 1'); open('/proc/self/gid_map', 'w').write(f'0 {g} 1')\n"
        "assert libc.mount(b'none', b'/', b'tmpfs', 0, None) == 0, ctypes.get_errno()\n"
        "print(os.listdir('/') != [] and os.listdir('/..') == [] and os.listdir('/usr/..') == [])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_writable_bind_reaches_the_host() -> None:
    """Control: the same write through a writable bind arrives, so it isn't refused for another reason."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        policy = Policy.layers(RoBind("/", "/"), Proc("/proc"), Bind(directory, directory))
        nsbox.run(["/bin/sh", "-c", f"echo x > /usr/..{directory}/planted"], policy=policy, check=True)
        assert Path(directory, "planted").read_text() == "x\n"
