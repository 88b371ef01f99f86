"""Root's commands aren't the kernel's root: outside they have ids that nobody has.

Each attempt has its control: with ids="full" the command has the caller's, and what is refused here works there.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import leftovers, warm

import nsbox
from nsbox import Policy
from nsbox._core import call

ROOT = pytest.mark.as_root("others' commands are the user's")
OWNER = 12345  # nobody's, neither


@pytest.fixture
def project(workspace: Path) -> Path:
    """A workspace of another user, with files of three."""
    for name, uid, gid, mode in (
        ("own", OWNER, OWNER, 0o600),
        ("shared", OWNER, 0, 0o600),
        ("private", 0, 0, 0o600),
        ("public", 0, 0, 0o644),
    ):
        path = workspace / name
        path.write_text(name)
        path.chmod(mode)
        os.chown(path, uid, gid)
    workspace.chmod(0o700)
    os.chown(workspace, OWNER, OWNER)
    return workspace


def ids(pid: int) -> tuple[set[int], set[int]]:
    """Return the kernel's uids and gids of a process."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {*map(int, rows["Uid"].split())}, {*map(int, rows["Gid"].split())}


@ROOT
@pytest.mark.parametrize("change", [{}, {"uid": 1000, "gid": 1000}, {"nested": True}, {"seccomp": "off"}], ids=str)
def test_command_and_init_have_an_unused_id(workspace: Path, change: dict[str, Any]) -> None:
    """Neither is the kernel's uid 0; inside, the command is who the policy says."""
    policy = Policy.workspace(workspace, **change)
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE) as process:
        assert process.sandbox.init_pid is not None
        (uid,), (gid,) = ids(process.pid)
        assert ids(process.sandbox.init_pid) == ({uid}, {gid})
        assert uid == gid == process.sandbox.plan.kernel_id >= 0x70000000
    ours = nsbox.run(["id", "-u"], policy=policy, capture_output=True, text=True).stdout
    assert ours.strip() == str(change.get("uid", 0))


@ROOT
def test_control_all_ids_are_the_callers(workspace: Path) -> None:
    """With ids="full" the command has them, and not_enforced says so."""
    policy = Policy.workspace(workspace, ids="full")
    with nsbox.Popen(["cat"], policy=policy, stdin=nsbox.PIPE) as process:
        assert ids(process.pid) == ({0}, {0})
        assert any("the caller's uid 0: ids='full'" in text for text in process.sandbox.not_enforced)


@ROOT
def test_two_policies_have_two_ids(workspace: Path) -> None:
    """One policy has the same id each time, another policy another one."""
    one, other = Policy.workspace(workspace), Policy.workspace(workspace, seccomp="hardened")
    numbers = []
    for policy in (one, other, one):
        with nsbox.Popen(["true"], policy=policy) as process:
            numbers.append(process.sandbox.plan.kernel_id)
    assert numbers[0] == numbers[2] != numbers[1]


SCRIPT = """
cat own
echo more >> own; echo more >> shared; echo new > new; mkdir d; mv new d/new; ln d/new d/other
cat public
cat private || echo refused
echo more >> public || echo refused
stat -c "%n %u %g" own shared private
"""
SAID = "ownpublicrefused\nrefused\nown 0 0\nshared 0 65534\nprivate 65534 65534\n"


@ROOT
@pytest.mark.parametrize("way", ["cold", "warm", "session"])
def test_the_owner_of_the_workspace_decides(project: Path, way: str) -> None:
    """What is the owner's is the command's, in any group; what it makes is the owner's; others' files it reads by mode."""
    policy = Policy.workspace(project)
    with nsbox.Sandbox(policy) as box:
        if way == "warm":
            box.run(["true"])
        with box.session() if way == "session" else box as place:
            runner = nsbox.run if way == "cold" else place.run
            given = {"policy": policy} if way == "cold" else {}
            done = runner(["sh", "-c", SCRIPT], cwd=project, capture_output=True, text=True, **given)
    assert done.stdout == SAID
    for name in ("own", "d", "d/new"):
        st = (project / name).stat()
        assert (st.st_uid, st.st_gid) == (OWNER, OWNER)
    assert (project / "public").read_text() == "public"


@ROOT
def test_control_as_the_callers_root(project: Path) -> None:
    """With the caller's ids the private file of root is read."""
    project.chmod(0o755)
    done = nsbox.run(["cat", "private"], policy=Policy.workspace(project, ids="full"), cwd=project, capture_output=True)
    assert done.stdout == b"private"


@ROOT
def test_each_path_has_its_owner(project: Path, tmp_path: Path) -> None:
    """A path that is read belongs to its own owner; directories on the way within a writable one to the workspace's."""
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "file").write_text("root's")
    (other / "file").chmod(0o600)
    inner = project / "way" / "inner"
    inner.mkdir(parents=True)
    for path in (inner, inner.parent):
        os.chown(path, OWNER, OWNER)
    policy = Policy.workspace(project, read=[other], deny=[inner])
    done = nsbox.run(
        f"cat {other}/file; touch way/made && stat -c %u way; ls way/inner || echo hidden",
        **{"shell": True, "policy": policy, "cwd": project, "capture_output": True, "text": True},
    )
    assert done.stdout == "root's0\nhidden\n"
    assert (project / "way" / "made").stat().st_uid == OWNER


@ROOT
def test_below_directories_that_only_root_may_search(tmp_path: Path) -> None:
    """The way to a workspace isn't the command's: it may lie below root's own directories."""
    tmp_path.chmod(0o700)
    inner = tmp_path / "a"
    inner.mkdir()
    done = nsbox.run(
        "echo x > file; cat file", shell=True, cwd=inner, policy=Policy.workspace(inner), capture_output=True
    )
    assert done.stdout == b"x\n"


PRIVATE = "report([attempt(open, p) for p in sys.argv[1:]])"


@ROOT
@pytest.mark.parametrize("top", ["/opt", "/usr/lib", "/usr/local"])
def test_roots_files_in_system_directories(attempt: Callable[..., Any], tmp_path: Path, top: str) -> None:
    """No mode 0600 of root's is readable, however deep, and whenever it came to be.

    The interpreter's prefix is no exception if it is the system's: /usr, for most.
    """
    directory = Path(top, "nsbox-test/etc/tls/deep")
    try:
        directory.mkdir(parents=True)
        (directory / "key").write_text("secret")
        (directory / "key").chmod(0o600)
        assert attempt(PRIVATE, str(directory / "key"), "/etc/shadow") == [errno.EACCES, errno.EACCES]
        control = Policy.workspace(tmp_path, ids="full")
        assert attempt(PRIVATE, str(directory / "key"), policy=control) == [0]
    finally:
        for path in (directory / "key",):
            path.unlink(missing_ok=True)
        for folder in (directory, *list(directory.parents)[:3]):
            folder.rmdir()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("way", ["cold", "warm", "session"])
def test_pipes_can_be_opened_again(policy: Policy, stream: str, way: str) -> None:
    """As scripts do that write to /dev/stderr: pipes are the caller's, and mode 0600."""
    with nsbox.Sandbox(policy) as box, box.session() if way == "session" else box as place:
        run = place.run if way != "cold" else lambda *args, **named: nsbox.run(*args, policy=policy, **named)
        done = run(["sh", "-c", f"echo x > /dev/{stream}"], capture_output=True, text=True)
    assert getattr(done, stream) == "x\n"


@ROOT
def test_a_file_that_is_passed_is_written_by_its_descriptor_only(policy: Policy, tmp_path: Path) -> None:
    """A file of the caller's on the host is nothing that the command may open by permission."""
    with open(tmp_path / "log", "w") as log:
        done = nsbox.run(["sh", "-c", "echo one; echo two > /dev/stdout"], policy=policy, stdout=log, stderr=nsbox.PIPE)
    assert done.returncode != 0
    assert (tmp_path / "log").read_text() == "one\n"


@ROOT
@pytest.mark.parametrize("wanted", [0, 1])
def test_dumpable_stays(workspace: Path, wanted: int) -> None:
    """The caller's dumpable flag is what it was; a caller that isn't keeps its ids, as what it makes couldn't be mapped."""
    code = f"""
import ctypes, sys, nsbox
libc = ctypes.CDLL(None)
libc.prctl(4, {wanted}, 0, 0, 0)
policy = nsbox.Policy.workspace(sys.argv[1])
for _ in range(3):
    assert nsbox.run(["true"], policy=policy).returncode == 0
print(libc.prctl(3, 0, 0, 0, 0), nsbox.explain(policy))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code, workspace], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"{wanted} "), done.stderr
    assert ("isn't dumpable" in done.stdout, "an unused uid and gid" in done.stdout) == (not wanted, bool(wanted))


@ROOT
def test_dumpable_stays_with_many_threads(workspace: Path) -> None:
    """Spawns of several threads at once, cold and warm, don't take each other's moment for the caller's wish."""
    from concurrent.futures import ThreadPoolExecutor

    policy = Policy.workspace(workspace)
    with nsbox.Sandbox(policy) as box, ThreadPoolExecutor(8) as pool:
        cold = [pool.submit(nsbox.run, ["true"], policy=policy) for _ in range(24)]
        warm = [pool.submit(box.run, ["true"]) for _ in range(24)]
        assert all(one.result().returncode == 0 for one in (*cold, *warm))
    assert leftovers.dumpable() == 1


@ROOT
def test_no_mapping_reaches_the_command(workspace: Path) -> None:
    """The descriptors of the mappings are the caller's alone, also with close_fds=False."""
    policy = Policy.workspace(workspace)
    for close_fds in (True, False):
        done = nsbox.run(
            ["ls", "-l", "/proc/self/fd"], policy=policy, close_fds=close_fds, capture_output=True, text=True
        )
        assert "user:[" not in done.stdout
        assert " 1 " in done.stdout


DAEMON = """
import fcntl, os, sys, nsbox, nsbox._core.idmaps
policy = nsbox.Policy.workspace(sys.argv[1])
def ids(): return nsbox.run(["cat", "/proc/self/uid_map"], policy=policy, capture_output=True, check=True).stdout.split()[1]
first = ids()
kept = {int(n) for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}") and "user:" in os.readlink(f"/proc/self/fd/{n}")}
try:
    nsbox.run(["ls", "-l", "/proc/self/fd"], policy=policy, pass_fds=kept)
except OSError as error:
    print(len(kept), error.strerror)
os.closerange(3, 256)
other = os.open("/dev/null", os.O_RDONLY)
for fd in kept: os.dup2(other, fd)
print(ids() == first)
del policy
nsbox._core.idmaps._namespaces.clear()
print(all(os.path.samefile(f"/proc/self/fd/{fd}", "/dev/null") for fd in kept))
"""


@ROOT
def test_descriptors_that_the_program_closes(workspace: Path) -> None:
    """A mapping isn't passed on, even by its number; closed by the program it is made again, and nothing else closed."""
    done = subprocess.run([sys.executable, "-P", "-c", DAEMON, workspace], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0].endswith("Bad file descriptor"), done.stderr
    assert done.stdout.splitlines()[1:] == ["True", "True"], done.stderr


@ROOT
def test_signals_of_the_caller_reach_it(workspace: Path) -> None:
    """The caller may end and signal its command as any child of its own."""
    with nsbox.Popen(["cat"], policy=Policy.workspace(workspace), stdin=nsbox.PIPE) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


@ROOT
def test_processes_are_limited_without_a_cgroup(workspace: Path) -> None:
    """RLIMIT_NPROC, from which the kernel exempts its uid 0, holds."""
    policy = Policy.workspace(workspace, limits=nsbox.Limits(processes=5))
    with nsbox.Popen(["true"], policy=policy) as process:
        assert not process.sandbox.plan.cgroup
        assert any(limit.name == "NPROC" for limit in process.sandbox.plan.rlimits)
    done = nsbox.run(
        ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 60 & done"], policy=policy, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "fork" in done.stderr.lower()


@ROOT
def test_settings_of_the_kernel(attempt: Callable[..., Any]) -> None:
    """Files of /proc/sys and of cgroups that the kernel's uid 0 could write to by permission are refused."""
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/panic"]
    code = 'report([attempt(open, p, "w") for p in sys.argv[1:]])'
    assert all(number in (errno.EACCES, errno.EROFS) for number in attempt(code, *paths))


UNMAPPED = """
import sys, nsbox
place = sys.argv[1]
policy = nsbox.Policy.workspace(place)
done = nsbox.run("echo x > file; cat file", shell=True, policy=policy, cwd=place, capture_output=True, text=True)
with nsbox.Popen(["true"], policy=policy) as process:
    pass
told = [text for text in process.sandbox.not_enforced if f"no idmapped mount of {place}" in text]
rights = nsbox.run("cat [a-f]; true", shell=True, policy=policy, cwd=place, stdout=nsbox.PIPE, stderr=nsbox.DEVNULL, text=True)
print(done.stdout.strip(), process.sandbox.plan.kernel_id, len(told), told[0] in nsbox.explain(policy), rights.stdout)
"""


@ROOT
@pytest.mark.parametrize("below", [False, True])
def test_what_cannot_be_mapped_is_told(tmp_path: Path, below: bool) -> None:
    """Where the workspace, or what is mounted in it, has no idmapped mounts the command has the caller's ids, and works.

    Half of the files there are another's, whose mode decides, since no capability of root's is left.
    """
    place, *layers = (tmp_path / name for name in ("place", "lower", "upper", "work"))
    inner = place / "inner" if below else place
    for path in (place, inner, *layers):
        path.mkdir(exist_ok=True)
    for name, uid in zip("abcdef", (0, OWNER) * 3, strict=True):
        file = (place if below else layers[0]) / name
        file.write_text(name)
        file.chmod(0o600 if name != "f" else 0o644)
        os.chown(file, uid, uid)
    options = "lowerdir={},upperdir={},workdir={}".format(*layers)
    script = f"mount -t overlay -o {options} none {inner} && exec {sys.executable} -P -c '$CODE' {place}"
    command = ["unshare", "-m", "sh", "-c", script.replace("'$CODE'", '"$CODE"')]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"CODE": UNMAPPED})
    assert done.stdout.split() == ["x", "0", "1", "True", "acef"], done.stderr


@ROOT
@pytest.mark.skipif(bool(warm.WAY), reason="what is kept is made from another thread, and is exchanged too early")
def test_a_workspace_that_is_exchanged(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose the files are was found out for another directory of that name: the command doesn't start."""
    roots = tmp_path / "roots"
    roots.mkdir()
    (roots / "private").touch()
    policy = Policy.workspace(project)
    spawn = call.spawn

    def exchanged(*args: Any) -> Any:
        project.rename(tmp_path / "away")
        roots.rename(project)
        return spawn(*args)

    nsbox.run(["true"], policy=policy, check=True)
    with monkeypatch.context() as patch:
        patch.setattr(call, "spawn", exchanged)
        with pytest.raises(nsbox.SetupError) as raised:
            nsbox.run(["cat", "private"], policy=policy, cwd=project)
    assert raised.value.errno == errno.ESTALE
    assert nsbox.run(["true"], policy=policy).returncode == 0  # it is looked at again
