"""The command is the caller's own child and shares kernel objects with it that no namespace covers.

Each test tries a way out through that, and has a control in which the same attempt works on a plain child.
"""

import ctypes
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy

CLONE = 56 if platform.machine() == "x86_64" else 220
KEYCTL, ADD_KEY = (250, 248) if platform.machine() == "x86_64" else (219, 217)

SIBLING = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
pid = libc.syscall({CLONE}, 0x8000 | 17, 0, 0, 0, 0)  # CLONE_PARENT, SIGCHLD
if pid == 0:
    os._exit(77)
print(pid > 0 or ctypes.get_errno(), flush=True)
"""

TRACED = """
import ctypes, os, signal
assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0  # PTRACE_TRACEME
print("traced", flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
"""

KEYRING = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({KEYCTL}, 0, -3, 0), ctypes.get_errno())  # KEYCTL_GET_KEYRING_ID of the session's
print(libc.syscall({ADD_KEY}, b"user", b"planted", b"x", 1, -3))
"""


def python(script: str, policy: Policy, **options: object) -> "subprocess.CompletedProcess[str]":
    done = nsbox.run([sys.executable, "-c", script], policy=policy, capture_output=True, text=True, **options)  # type: ignore[arg-type]
    return done


def plain(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_no_children_for_the_caller(policy: Policy) -> None:
    """CLONE_PARENT is refused: it would give the caller children, for which pid 1 of the sandbox waits at its end."""
    assert python(SIBLING, policy).stdout.strip() == "1"  # EPERM


def test_a_nested_sandbox_may_and_still_ends(policy: Policy) -> None:
    """Where the policy allows it (nested), the child given to the caller is reaped, and the sandbox ends.

    Also one that isn't dumpable, whose namespaces an ordinary user can't see.
    """
    hidden = SIBLING.replace("    os._exit", "    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE\n    os._exit")
    for script in (SIBLING, hidden):
        assert python(script, policy.with_(nested=True), timeout=50).stdout.strip() == "True"


def test_signals_do_not_keep_that_from_ending(policy: Policy) -> None:
    """A timer's signals, handled by Python, don't restart the time that such children have."""
    kept = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with nsbox.Popen([sys.executable, "-c", SIBLING], policy=policy.with_(nested=True), stdout=-1) as p:
            assert p.stdout is not None and p.stdout.read() == b"True\n"
            signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
            assert p.wait() == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def test_no_background_for_nested_commands(policy: Policy) -> None:
    """kill_on_exit=False is refused there: such a child, not reaped, would hold up the sandbox's end for ever."""
    with pytest.raises(nsbox.PolicyError, match="kill_on_exit"):
        policy.with_(nested=True, kill_on_exit=False)


def test_control_a_plain_child_can_do_it() -> None:
    """Control: without the filter the same call makes a child of this process, with a status of its choosing."""
    assert plain(SIBLING) == "True"
    pid, status = os.waitpid(-1, 0)
    assert os.waitstatus_to_exitcode(status) == 77, pid


def test_no_tracer(policy: Policy) -> None:
    """PTRACE_TRACEME is refused, in threads too: it would make the caller a tracer, and wait() last for ever."""
    for nested in (False, True):
        done = python(TRACED, policy.with_(nested=nested), timeout=50)
        assert "AssertionError" in done.stderr
        assert done.returncode == 1


def test_control_a_plain_child_stops() -> None:
    """Control: a plain child that does the same is seen as stopped by signal 10, and stays so until it is killed."""
    with subprocess.Popen([sys.executable, "-c", TRACED], stdout=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, 0)
        assert os.WIFSTOPPED(status)
        process.kill()


def test_no_keyrings(policy: Policy) -> None:
    """The caller's session keyring can be neither seen nor added to: keyctl(2) and add_key(2) don't exist."""
    assert python(KEYRING, policy).stdout.split() == ["-1", "38", "-1"]


def test_no_names_of_keys(policy: Policy) -> None:
    """What the caller's keyrings hold isn't listed either."""
    script = "for name in ('keys', 'key-users'):\n    try: print(repr(open(f'/proc/{name}').read()))\n    except PermissionError: print('refused')"
    assert set(python(script, policy).stdout.split()) <= {"refused", "''"}


def test_control_a_plain_child_has_the_keyring() -> None:
    """Control: a plain child sees the session keyring (or a kernel without keys says so)."""
    serial, errno, _ = plain(KEYRING).split()
    assert int(serial) > 0 or int(errno) == 38


@pytest.mark.parametrize("mode", ["close_fds", "fork", "plain"])
def test_a_magic_link_as_directory(mode: str, workspace: Path, tmp_path: Path) -> None:
    """CVE-2024-21626: a planted link to /proc/2/fd/N leads into nothing that the caller or the set-up has open."""
    outside = tmp_path / "outside"
    outside.mkdir()
    fd = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    options: dict[str, object] = {"close_fds": {"close_fds": False}, "fork": {"user": 3}, "plain": {}}[mode]
    full = mode == "fork" and nsbox.probe().can_set_ids
    policy = Policy.workspace(workspace, ids="full" if full else "single")
    try:
        for number in range(3, 40):
            link = workspace / f"d{number}"
            link.symlink_to(f"/proc/2/fd/{number}")
            with pytest.raises(OSError):
                nsbox.run(
                    ["/bin/sh", "-c", "echo > planted"],
                    policy=policy,
                    cwd=link,
                    **(options if mode != "fork" or full else {}),
                )
    finally:
        os.close(fd)
    assert list(outside.iterdir()) == []


def test_control_a_magic_link_is_followed(tmp_path: Path) -> None:
    """Control: chdir(2) does follow such a link to an open directory."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = subprocess.run(["/bin/pwd"], cwd=f"/proc/self/fd/{fd}", capture_output=True, text=True, check=True)
    finally:
        os.close(fd)
    assert done.stdout.strip() == str(tmp_path)


@pytest.mark.as_root("only uid 0 owns device nodes")
def test_device_nodes_stay_as_they_are(policy: Policy) -> None:
    """chmod(2) of the device nodes, and of a stdin that is DEVNULL, is refused: they are the host's own."""
    before = {name: os.stat(f"/dev/{name}").st_mode for name in ("null", "zero", "tty")}
    script = (
        "import os\n"
        "for path in ('/dev/null', '/dev/zero', '/dev/tty', 0):\n"
        "    try: os.chmod(path, 0o600)\n"
        "    except OSError as error: print(error.errno)\n"
        "open('/dev/null', 'w').write('x')\n"
    )
    done = python(script, policy, stdin=nsbox.DEVNULL)
    assert done.stdout.split() == ["30"] * 4, done.stderr  # EROFS
    assert {name: os.stat(f"/dev/{name}").st_mode for name in before} == before


@pytest.mark.as_root("only uid 0 owns device nodes")
def test_control_uid_0_without_capabilities_can_chmod(tmp_path: Path) -> None:
    """Control: by a writable bind, uid 0 changes a node's mode without any capability."""
    node = tmp_path / "null"
    os.mknod(node, 0o20666, os.makedev(1, 3))
    policy = Policy.host()
    nsbox.run(["/bin/chmod", "600", str(node)], policy=policy, check=True)
    assert node.stat().st_mode & 0o777 == 0o600
    node.unlink()


def test_the_way_to_a_hidden_file_is_fixed(workspace: Path) -> None:
    """A command can't rename the directories above a denied or read-only path, to expose it to the next one."""
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "secret").write_text("SECRET")
    (workspace / "c" / "vendor").mkdir(parents=True)
    policy = Policy.workspace(workspace, deny=[workspace / "a/b/secret"], read=[workspace / "c/vendor"])
    move = "mv a x; mv a/b y; mv c z; mv a/b/secret w; mkdir n; mv c/vendor n/; true"
    nsbox.run(["/bin/sh", "-c", move], policy=policy, stderr=nsbox.DEVNULL, check=True)
    nsbox.run(["unshare", "-Urm", "/bin/sh", "-c", move], policy=policy, stderr=nsbox.DEVNULL)
    script = "cat a/b/secret x/b/secret y/secret w; touch c/vendor/new z/vendor/new n/vendor/new"
    done = nsbox.run(["/bin/sh", "-c", script], policy=policy, capture_output=True, text=True)
    assert "SECRET" not in done.stdout
    assert list((workspace / "c" / "vendor").iterdir()) == []


def test_control_an_unpinned_way_can_be_moved(workspace: Path) -> None:
    """Control: with just the mask, in bwrap's manner, the parent is renamed, and the next command reads the secret."""
    (workspace / "a").mkdir()
    (workspace / "a" / "secret").write_text("SECRET")
    system = [nsbox.RoBind("/", "/"), nsbox.Bind(str(workspace), str(workspace))]
    policy = Policy.layers(*system, nsbox.Mask(f"{workspace}/a/secret", optional=True), workdir=str(workspace))
    nsbox.run(["/bin/mv", "a", "x"], policy=policy, check=True)
    done = nsbox.run(["/bin/cat", "x/secret"], policy=policy, capture_output=True, text=True)
    assert done.stdout == "SECRET"


def test_a_read_only_source_that_became_a_link(workspace: Path, tmp_path: Path) -> None:
    """A path of the policy that has become a symlink since is refused: it would bind what the caller can read."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace / "sub").mkdir()
    policy = Policy.workspace(workspace, read=[workspace / "sub"])
    nsbox.run(["/bin/true"], policy=policy, check=True)
    (workspace / "sub").rmdir()
    (workspace / "sub").symlink_to(outside)
    with pytest.raises(nsbox.SetupError, match="symlink"):
        nsbox.run(["/bin/true"], policy=policy)


def test_the_init_can_not_be_touched(policy: Policy) -> None:
    """Pid 1 can't be traced, read, signalled to death or looked into, although it is the same user."""
    script = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.ptrace(16, 1, 0, 0))\n"  # PTRACE_ATTACH
        "for name in ('mem', 'environ', 'auxv', 'maps'):\n"
        "    try: print(open(f'/proc/1/{name}', 'rb').read(1))\n"
        "    except OSError as error: print('refused')\n"
        "for name in ('exe', 'cwd', 'root'):\n"
        "    try: print(os.readlink(f'/proc/1/{name}'))\n"
        "    except OSError as error: print('refused')\n"
        "os.kill(1, 9); os.kill(1, 15); os.kill(1, 19)\n"
        "print(open('/proc/1/comm').read())\n"
    )
    lines = python(script, policy).stdout.split()
    assert lines == ["-1", *["refused"] * 7, "nsbox-init"]


def test_control_a_sibling_can_be_looked_into(policy: Policy) -> None:
    """Control: another process of the sandbox, which is dumpable, can be read by the same user."""
    # execve(2) shows the new arguments a moment before the new environment.
    script = (
        "sleep 1000 & until grep -q sleep /proc/$!/cmdline && grep -qz ^PATH= /proc/$!/environ; do :; done; echo seen"
    )
    done = nsbox.run(["/bin/sh", "-c", script], policy=policy, capture_output=True, text=True, timeout=50)
    assert done.stdout == "seen\n"


def test_dumpable_flag_of_this_process() -> None:
    """The tests above ran in this process's memory before exec; it is still what it was."""
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1  # PR_GET_DUMPABLE


def test_the_set_ups_own_descriptors(workspace: Path) -> None:
    """With close_fds=False the program's name is looked up while the set-up's descriptors could be open: none is."""
    policy = Policy.workspace(workspace)
    for number in range(3, 40):
        link = workspace / f"p{number}"
        link.symlink_to(f"/proc/2/fd/{number}")
        with pytest.raises(OSError):
            nsbox.Popen([str(link)], policy=policy, close_fds=False)
