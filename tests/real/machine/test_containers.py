"""deploy/seccomp.json and the other settings for containers, imitated: there is no container engine here.

What an engine sets up is made by unshare(1) and setpriv(1): namespaces, a procfs with masks or without, capabilities. The
filter is compiled by the library that engines use. Images, AppArmor and SELinux have no part in it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import engine, needs

ROOT = Path(__file__).resolve().parents[3]
PROFILE: dict[str, Any] = json.loads((ROOT / "deploy/seccomp.json").read_text())
NEEDED: list[str] = PROFILE["syscalls"][1]["names"]
# What the default profiles of engines have instead: clone(2) without namespaces, for a process without CAP_SYS_ADMIN.
NEW_NAMESPACES = 0x7E020000
NO_NAMESPACES = {
    "names": ["clone"],
    "action": "SCMP_ACT_ALLOW",
    "args": [{"index": 0, "value": NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
}
# The capabilities that an engine leaves to root; other users have none.
ROOT_HAS = (
    *("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap"),
    *("net_bind_service", "sys_chroot", "kill", "audit_write"),
)
# Some of the paths that engines cover, and the tree that they make read-only.
MASKS = """
    for p in /proc/acpi /proc/kcore /proc/keys /proc/timer_list; do
        if [ -d $p ]; then mount -t tmpfs -o ro none $p; elif [ -e $p ]; then mount --bind /dev/null $p; fi || exit
    done
    mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys || exit
"""
NSBOX = [sys.executable, "-P", "-m", "nsbox"]


pytestmark = [
    needs.programs("unshare", "setpriv"),
    needs.library(engine.LIBRARY, "libseccomp2"),
]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The profile, as a file that may be changed."""
    path = tmp_path / "seccomp.json"
    path.write_text(json.dumps(PROFILE))
    return path


@pytest.fixture
def default(tmp_path: Path) -> Path:
    """The same without what was added for nsbox."""
    path = tmp_path / "default.json"
    rows = [row for row in PROFILE["syscalls"] if row["names"] != NEEDED]
    assert len(rows) == len(PROFILE["syscalls"]) - 1
    path.write_text(json.dumps({**PROFILE, "syscalls": [NO_NAMESPACES, *rows]}))
    return path


def behind(profile: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command behind a profile alone."""
    return subprocess.run([sys.executable, engine.__file__, str(profile), *command], capture_output=True, text=True)


def contained(profile: Path, *command: str, masks: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as in a container: as root with an engine's capabilities, or as a user without any."""
    if os.geteuid() == 0:
        made, kept = [], [f"--bounding-set=-all,{','.join(f'+{name}' for name in ROOT_HAS)}"]
    else:  # a user namespace around it, as those of rootless engines and of pods
        made, kept = ["--user", "--map-current-user", "--keep-caps"], ["--bounding-set=-all", "--no-new-privs"]
    namespaces = ["--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
    drop = ["setpriv", "--ambient-caps=-all", "--inh-caps=-all", *kept]
    # Its pid 1 is a shell, which reaps.
    script = f'{masks}\n"$@" & wait $!'
    line = ["unshare", *made, *namespaces, "sh", "-c", script, "sh", *drop, sys.executable, engine.__file__]
    return subprocess.run([*line, str(profile), *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.vm
def test_the_default_policy_is_whole(profile: Path) -> None:
    """In a container with these settings, nsbox enforces its default policy as a whole."""
    done = contained(profile, *NSBOX, "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.vm
def test_a_command(profile: Path, workspace: Path) -> None:
    """A command runs there in namespaces of its own, behind one filter more than outside."""
    script = "echo $$; grep Seccomp_filters /proc/self/status; touch made; touch /usr/made"
    command = [*NSBOX, "run", "-w", str(workspace), "--", "sh", "-c", script]
    done = contained(profile, *command)
    outside = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    assert outside[:2] == ["2", "Seccomp_filters:"]
    assert done.stdout.split() == ["2", "Seccomp_filters:", str(int(outside[2]) + 1)], done.stderr
    assert "Read-only file system" in done.stderr
    assert (workspace / "made").exists()


@pytest.mark.vm
def test_control_the_default_profile(default: Path) -> None:
    """With the default profile of an engine, the same is refused, and the error says by what."""
    done = contained(default, *NSBOX, "run", "--", "true")
    assert done.returncode != 0
    assert "this process runs behind a seccomp filter" in done.stderr
    assert behind(default, "sh", "-c", "echo $(echo other programs run)").stdout == "other programs run\n"


@pytest.mark.vm
def test_control_masks(profile: Path) -> None:
    """With the profile alone, and masks on /proc, the kernel refuses a new procfs; the error says what helps."""
    done = contained(profile, *NSBOX, "run", "--", "true", masks=MASKS)
    assert done.returncode != 0
    assert (
        "a new procfs needs a fully visible /proc: in a container, run with --security-opt systempaths" in done.stderr
    )


@pytest.mark.vm
def test_masks_and_no_procfs(profile: Path, workspace: Path) -> None:
    """There, layers without Proc work, as docs/howto/containers-and-ci.md says."""
    code = """
        import nsbox
        from nsbox import Bind, Dev, Policy, RoBind, Tmpfs
        layers = RoBind("/", "/"), Dev("/dev"), Bind("/proc", "/proc"), Tmpfs("/tmp")
        policy = Policy.layers(*layers, workdir="/", unshare={"ipc", "uts", "cgroup", "net"}, nested=NESTED)
        print(nsbox.run("echo contained", shell=True, policy=policy, stdout=-1, text=True).stdout, end="")
    """.replace("NESTED", str(os.geteuid() == 0))
    lines = "\n".join(line.strip() for line in code.strip().splitlines())
    done = contained(profile, sys.executable, "-P", "-c", lines, masks=MASKS)
    assert done.stdout == "contained\n", done.stderr


def refusing(path: Path, name: str, **condition: int) -> Path:
    """Write a profile that refuses one call, or those with flags among its first argument; return its path."""
    mask = [{"index": 0, "value": v, "valueTwo": v, "op": "SCMP_CMP_MASKED_EQ"} for v in condition.values()]
    row = {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": mask}
    path.write_text(json.dumps({**PROFILE, "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [row]}))
    return path


@pytest.mark.vm
@pytest.mark.parametrize("policy", ["", ", backend='landlock', degrade=LOSSES"])
def test_clone_refused(policy: str, tmp_path: Path, workspace: Path) -> None:
    """Where a filter refuses clone(2) wholly, the error names step, op and remedy, for root's idmapped mounts too."""
    code = f"""if True:
        import nsbox, sys
        from nsbox._policy.losses import LOSSES
        try: nsbox.run(["true"], policy=nsbox.Policy.workspace(sys.argv[1]{policy}))
        except nsbox.SetupError as error: print(error.errno, error.step, error.op, error.hint, sep="|")
    """
    done = behind(refusing(tmp_path / "x.json", "clone"), sys.executable, "-P", "-c", code, str(workspace))
    number, step, op, hint = done.stdout.split("|")
    by_root = os.geteuid() == 0 and not policy
    place = f"idmapped mount of {workspace}"
    assert (number, step, op) == ("1", *(("make a user namespace", place) if by_root else ("clone", "None")))
    assert "seccomp filter" in hint and "--security-opt seccomp=deploy/seccomp.json" in hint


def test_user_namespaces_refused_by_flag(tmp_path: Path, workspace: Path) -> None:
    """A filter that sees CLONE_NEWUSER refuses only root's idmapped mounts, by an error of nsbox's own."""
    path = refusing(tmp_path / "x.json", "clone", flags=0x10000000)
    done = behind(path, *NSBOX, "run", "-w", str(workspace), "--", "true")
    if os.geteuid() != 0:  # a user's files need none
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode != 0
    assert done.stderr.startswith(f"nsbox: idmapped mount of {workspace}: make a user namespace: "), done.stderr
    assert "this process runs behind a seccomp filter" in done.stderr


@needs.programs("bwrap")
def test_why_bubblewrap_fails_too(default: Path) -> None:
    """The doctor names the filter as the reason why bubblewrap fails, and what helps; control: without it there is none."""

    def check(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        (found,) = (c for c in json.loads(done.stdout)["checks"] if c["name"].startswith("bubblewrap"))
        return dict(found)

    failed = check(behind(default, *NSBOX, "doctor", "--json"))
    assert failed["state"] == "fails"
    assert "(this process runs behind a seccomp filter" in failed["said"]
    assert "--security-opt seccomp=deploy/seccomp.json" in failed["remedy"]
    assert "docs/howto/containers-and-ci.md" in failed["remedy"]
    free = check(subprocess.run([*NSBOX, "doctor", "--json"], capture_output=True, text=True, check=False))
    assert "filter" not in free["said"] + free["remedy"]


# Without these the default policy works, and others don't: sethostname(2) is for a hostname, fspick(2) for overlays, as
# are clone(2)'s namespaces unless root's ids are mapped. The last is newer than many kernels, and there is another way.
NOT_ALWAYS = ["sethostname", "fspick", "open_tree_attr", *(["clone"] if os.geteuid() else [])]


@pytest.mark.parametrize("name", [name for name in NEEDED if name not in NOT_ALWAYS])
def test_each_call_is_needed(name: str, profile: Path) -> None:
    """Without one of the calls that the profile adds, no sandbox can be made."""
    rows = [{**row, "names": [other for other in row["names"] if other != name]} for row in PROFILE["syscalls"]]
    instead = [NO_NAMESPACES] if name == "clone" else []
    profile.write_text(json.dumps({**PROFILE, "syscalls": [*rows, *instead]}))
    assert behind(profile, "true").returncode == 0
    done = behind(profile, *NSBOX, "run", "--", "true")
    assert done.returncode != 0 and done.stderr, name


_ATTEMPT = """
import ctypes, os, sys
from nsbox._core.linux import syscalls
number = syscalls()[1][sys.argv[1]]
ctypes.CDLL(None, use_errno=True).syscall(number, *map(int, sys.argv[2:]))
print(os.strerror(ctypes.get_errno()))
"""


@pytest.mark.parametrize(
    ("call", "arguments", "error"),
    [
        ("mount", (0, 0, 0, 0, 0), "Operation not permitted"),
        ("keyctl", (0, -3, 0), "Operation not permitted"),
        ("bpf", (0, 0, 0), "Operation not permitted"),
        ("userfaultfd", (0x800,), "Operation not permitted"),
        ("socket", (38, 5, 0), "Operation not permitted"),  # AF_ALG
        ("socket", (40, 1, 0), "Operation not permitted"),  # AF_VSOCK
        ("personality", (0x0400000,), "Operation not permitted"),  # READ_IMPLIES_EXEC
        ("clone3", (0, 0), "Function not implemented"),
        ("io_uring_setup", (1, 0), "Function not implemented"),
    ],
)
def test_still_refused(profile: Path, call: str, arguments: tuple[int, ...], error: str) -> None:
    """What a container needs no more than before is refused, as by the default profile; without it the kernel answers."""
    command = [sys.executable, "-P", "-c", _ATTEMPT, call, *map(str, arguments)]
    assert behind(profile, *command).stdout == f"{error}\n"
    free = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert free != f"{error}\n" or os.geteuid() != 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the profile is written on x86_64")
def test_it_is_what_the_script_writes() -> None:
    """The file is what its script writes: a change of nsbox's tables changes it too."""
    command = [sys.executable, "-P", str(ROOT / "deploy/seccomp.py"), "--print"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "deploy/seccomp.json").read_text()
