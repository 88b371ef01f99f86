"""Landlock behind the mounts: what is reached past them is refused too, and what should work works."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy, PolicyError

pytestmark = pytest.mark.vm

needs_files = pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
needs_scopes = pytest.mark.skipif(nsbox.probe().landlock_abi < 6, reason="needs Landlock of version 6 or later")

REOPEN = """
def reopen(fd, flags):
    try: new = os.open(f"/proc/self/fd/{fd}", flags)
    except OSError as e: return e.errno
    os.close(new)
    return 0
report([reopen(int(sys.argv[1]), flags) for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC)])
"""


@pytest.fixture
def behind(workspace: Path) -> Policy:
    return Policy.workspace(workspace, landlock=True)


@needs_files
@pytest.mark.parametrize("how", ["stdin", "pass_fds"])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (os.O_RDONLY, [0, errno.EACCES, errno.EACCES, errno.EACCES]),
        (os.O_WRONLY, [errno.EACCES, 0, errno.EACCES, 0]),
        (os.O_RDWR, [0, 0, 0, 0]),
    ],
)
def test_a_descriptor_is_reopened_with_its_own_rights(
    attempt: Callable[..., Any], victim: Path, behind: Policy, how: str, mode: int, expected: list[int]
) -> None:
    """A file of the host that was passed open can be opened again as it was passed, and no more."""
    secret = victim / "secret"
    secret.chmod(0o666)
    fd = os.open(secret, mode)
    try:
        options: dict[str, Any] = {"stdin": fd} if how == "stdin" else {"pass_fds": [fd]}
        number = 0 if how == "stdin" else fd
        assert attempt(REOPEN, str(number), policy=behind, **options) == expected
    finally:
        os.close(fd)


@needs_files
def test_control_without_it_permissions_alone_count(attempt: Callable[..., Any], victim: Path, policy: Policy) -> None:
    """Control: else a file passed for reading is opened for writing, and emptied."""
    secret = victim / "secret"
    secret.chmod(0o666)
    with open(secret) as file:
        assert attempt(REOPEN, "0", policy=policy, stdin=file) == [0, 0, 0, 0]
    assert secret.read_text() == ""


@needs_files
def test_past_the_mounts(attempt: Callable[..., Any], victim: Path, behind: Policy, untouched: None) -> None:
    """A directory of the host that is reached by a link of /proc to a file's descriptor gives nothing."""
    code = """
found = []
for path in (f"/proc/self/fd/{sys.argv[1]}", f"/proc/self/fd/{sys.argv[1]}/..", f"/dev/fd/{sys.argv[1]}"):
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND):
        found.append(attempt(os.open, path, flags))
report(found)
"""
    fd = os.open(victim / "secret", os.O_RDONLY)
    try:
        assert set(attempt(code, str(fd), policy=behind, pass_fds=[fd])) <= {errno.EACCES, errno.ENOTDIR}
    finally:
        os.close(fd)


@needs_files
def test_a_directory_that_is_passed_is_meant(attempt: Callable[..., Any], victim: Path, behind: Policy) -> None:
    """Below a directory that was passed open all is allowed that permissions allow, as without Landlock."""
    code = """
fd = int(sys.argv[1])
with open(os.open("made", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd), "w") as file: file.write("x")
os.rename("made", "sub/moved", src_dir_fd=fd, dst_dir_fd=fd)
report(sorted(os.listdir(fd)))
"""
    for directory in (victim, victim / "sub"):
        directory.chmod(0o777)  # a root caller's commands have other ids outside
    fd = os.open(victim, os.O_RDONLY)
    try:
        assert attempt(code, str(fd), policy=behind, pass_fds=[fd]) == ["secret", "sub"]
    finally:
        os.close(fd)
    assert (victim / "sub" / "moved").read_text() == "x"
    assert (victim / "sub" / "moved").stat().st_mode & 0o777 == 0o600


WORK = r"""
set -e
mkdir -p a/b c; echo text > a/b/f; mv a/b/f c/g; ln c/g a/hard; ln -s ../c/g a/soft; cat a/soft
: > c/g; truncate -s 10 c/g; rm -r a; mkfifo p; rm p
python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen(); socket.socket(socket.AF_UNIX).connect("s")'
python3 -c 'import multiprocessing as m, tempfile; print(m.Pool(2).map(abs, [-1])); tempfile.TemporaryFile().write(b"x")'
printf '#!/bin/sh\necho ran\n' > prog; chmod +x prog; ./prog
cp /bin/true /tmp/true; /tmp/true
echo x > /dev/null; head -c 1 /dev/zero > /tmp/z; echo 0 > /proc/self/oom_score_adj
python3 -c 'import os; m, s = os.openpty(); print(os.isatty(s)); os.open(os.ttyname(s), os.O_RDWR)'
echo out > /dev/stdout; echo err > /dev/stderr
"""


@needs_files
def test_work_goes_on(workspace: Path, behind: Policy) -> None:
    """Files are made, moved between directories, linked and executed; pipes, sockets and terminals work."""
    with open(workspace / "log", "w+") as log:  # a file, not a pipe: /dev/stdout is opened again
        os.chmod(log.fileno(), 0o666)  # by the ids that the command has outside: a root caller's has others than root
        done = nsbox.run(["bash", "-c", WORK], policy=behind, stdout=log, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, "err\n")
        log.seek(0)
        assert log.read().splitlines()[-1] == "out"


@needs_files
def test_the_mounts_still_hold(attempt: Callable[..., Any], workspace: Path, behind: Policy) -> None:
    """Hidden and read-only paths are what they are without it."""
    (workspace / "secret").write_text("x")
    (workspace / "lib").mkdir()
    policy = behind.with_(deny=[workspace / "secret"], read=[workspace / "lib"])
    code = 'report([attempt(open, "secret"), attempt(open, "lib/x", "w"), attempt(open, "/usr/x", "w"), attempt(open, "y", "w")])'
    hidden, *rest = attempt(code, policy=policy)
    assert hidden in (0, errno.EACCES) and rest == [errno.EROFS, errno.EROFS, 0]


@needs_files
@pytest.mark.parametrize("ids", [None, 1234])
def test_other_ids(attempt: Callable[..., Any], behind: Policy, ids: int | None) -> None:
    """For any user, and with layers too."""
    code = 'report([attempt(open, "y", "w"), os.getuid()])'
    assert attempt(code, policy=behind.with_(uid=ids, gid=ids)) == [0, os.getuid() if ids is None else ids]
    layers = Policy.layers(nsbox.RoBind("/", "/"), nsbox.Proc("/proc"), nsbox.Tmpfs("/mnt"), landlock=True)
    code = 'report([attempt(open, "/mnt/y", "w"), attempt(open, "/etc/y", "w")])'
    assert attempt(code, policy=layers, cwd="/") == [0, errno.EROFS]


@needs_files
def test_one_that_is_gone(tmp_path: Path, workspace: Path) -> None:
    """A path of the plan that isn't there any more is an error of the set-up or skipped where it may be missing."""
    other = tmp_path / "other"
    other.mkdir()
    policy = Policy.workspace(workspace, write=[other], landlock=True)
    other.rmdir()
    with pytest.raises(nsbox.SetupError):
        nsbox.run(["true"], policy=policy)
    optional = Policy.layers(nsbox.RoBind("/", "/"), nsbox.Bind(str(other), "/mnt", optional=True), landlock=True)
    assert nsbox.run(["/bin/true"], policy=optional).returncode == 0


# ---- scopes

CONNECT = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect("\\0" + sys.argv[1])
    report("connected")
except OSError as error:
    report(error.errno)
"""


@pytest.fixture
def abstract() -> Any:
    """An abstract unix socket of the host that listens."""
    name = f"nsbox-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        yield name


@needs_scopes
def test_abstract_sockets_of_the_host(attempt: Callable[..., Any], workspace: Path, abstract: str) -> None:
    """With the host's network, abstract sockets that others made can't be connected to; own ones can."""
    policy = Policy.workspace(workspace, network="host")
    assert attempt(CONNECT, abstract, policy=policy) == errno.EPERM
    own = (
        "import socket\na, b = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)\n"
        "a.bind('\\0own'); a.listen(); b.connect('\\0own'); report('connected')"
    )
    assert attempt(own, policy=policy) == "connected"


@needs_scopes
def test_control_layers_reach_them(attempt: Callable[..., Any], abstract: str) -> None:
    """Control: without the scope they can be."""
    policy = Policy.layers(nsbox.RoBind("/", "/"), nsbox.Proc("/proc"))
    assert attempt(CONNECT, abstract, policy=policy, cwd="/") == "connected"


def injected(base: Path, *, landlock: bool) -> tuple[bytes | None, bool]:
    """Return what a command could write to a FIFO in a read-only directory, and whether explain() says that it can."""
    (base / "ws").mkdir(exist_ok=True)
    (base / "shown").mkdir(exist_ok=True)
    os.mkfifo(base / "shown" / "control")
    server = os.open(base / "shown" / "control", os.O_RDWR | os.O_NONBLOCK)
    try:
        policy = Policy.workspace(base / "ws", read=[base / "shown"], landlock=landlock)
        nsbox.run(f"echo injected > {base}/shown/control", shell=True, policy=policy, stderr=nsbox.DEVNULL)
        try:
            got = os.read(server, 100)
        except BlockingIOError:
            got = None
        said = [line for line in str(nsbox.explain(policy)).splitlines() if line.startswith("not enforced  FIFOs")]
        return got, any("even where" in line or f"/{base.parts[1]}" in line for line in said)
    finally:
        os.close(server)
        os.unlink(base / "shown" / "control")


@needs_files
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("/srv", marks=pytest.mark.as_root("others can't make a directory there")),
        pytest.param("/run", marks=pytest.mark.as_root("others can't make a directory there")),
        "/var/tmp",
    ],
)
def test_fifos_in_read_only_directories(place: str) -> None:
    """With Landlock a FIFO of the host is read-only where its directory is. Control: without it, it is written to."""
    base = Path(tempfile.mkdtemp(prefix="nsbox-fifo.", dir=place))
    try:
        assert injected(base, landlock=True)[0] is None
        assert injected(base, landlock=False) == (b"injected\n", True)
    finally:
        shutil.rmtree(base)


@needs_files
def test_fifos_where_all_programs_make_files() -> None:
    """Below /tmp Landlock can't keep a command from FIFOs, since it may write to the directory above, and explain() says so."""
    base = Path(tempfile.mkdtemp(prefix="nsbox-fifo.", dir="/tmp"))
    try:
        assert injected(base, landlock=True) == (b"injected\n", True)
        policy = Policy.workspace(base / "ws", read=[base / "shown"], landlock=True)
        nsbox.run(f"touch /tmp/x {base}/ws/x && ! touch {base}/shown/x", shell=True, policy=policy, check=True)
    finally:
        shutil.rmtree(base)


def test_a_fifo_that_is_named(tmp_path: Path) -> None:
    """Read-only it can't be, so it is refused, also by a link. Control: where it is meant, it is written to."""
    (tmp_path / "ws").mkdir()
    os.mkfifo(tmp_path / "control")
    (tmp_path / "link").symlink_to("control")
    policy = Policy.workspace(tmp_path / "ws", write=[tmp_path / "control"])
    file = tmp_path / "policy.toml"
    file.write_text(f'workspace = "{tmp_path}/ws"\nreadable = ["{tmp_path}/control"]\n')
    for make in (
        lambda: Policy.workspace(tmp_path / "ws", read=[tmp_path / "control"]),
        lambda: Policy.workspace(tmp_path / "ws", read=[tmp_path / "link"]),
        lambda: Policy.workspace(tmp_path / "ws").with_(read=[tmp_path / "control"]),
        lambda: Policy.load(file),
    ):
        with pytest.raises(PolicyError, match="control is a FIFO"):
            make()
    server = os.open(tmp_path / "control", os.O_RDWR | os.O_NONBLOCK)
    try:
        nsbox.run(f"echo meant > {tmp_path}/control", shell=True, policy=policy, check=True)
        assert os.read(server, 100) == b"meant\n"
    finally:
        os.close(server)
