"""What the command's user may do by permission bits alone, and must not: read what is private, tie the host up, come back.

Each test has a control in which the same attempt works where the one protection is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Policy, RoBind

READ = """
import sys
for path in sys.argv[1:]:
    try: print(len(open(path, "rb").read()) > 0)
    except OSError: print(False)
"""


def output(script: str, policy: Policy | None, *args: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", script, *args]
    if policy is None:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return nsbox.run(command, policy=policy, capture_output=True, text=True, check=True).stdout.strip()


def private_files() -> list[str]:
    found = [path for path in nsbox.probe().private if os.path.isfile(path) and os.stat(path).st_size]
    return [path for path in found if os.stat(path).st_uid == 0]


@pytest.fixture
def in_opt() -> Iterator[Path]:
    """A directory in /opt that all may enter, with private files in one below the other."""
    top = Path(tempfile.mkdtemp(prefix="nsbox-test.", dir="/opt"))
    try:
        top.chmod(0o755)
        at = top
        for _ in range(12):
            at /= "d"
            at.mkdir(mode=0o755)
            (at / "key").write_text("KEY")
            (at / "key").chmod(0o600)
            (at / "shown").write_text("shown")
        yield top
    finally:
        shutil.rmtree(top)


DEEP = """
import os, sys
print(*(f"{name}:{len(open(os.path.join(at, name)).read())}" for at, _, names in os.walk(sys.argv[1]) for name in names
        if not name.startswith("key") or os.access(os.path.join(at, name), os.R_OK)))
"""


@pytest.mark.as_root("permissions keep others from these files anyway")
def test_private_files_deep_in_opt(policy: Policy, in_opt: Path) -> None:
    """However deep they are in /opt, they are hidden; what others may read isn't."""
    nsbox.probe(refresh=True)
    seen = output(DEEP, policy, str(in_opt)).split()
    assert "key:3" not in seen and seen.count("shown:5") == 12
    assert output(DEEP, None, str(in_opt)).split().count("key:3") == 12  # the control


@pytest.mark.as_root("permissions keep others from these files anyway")
def test_a_directory_of_private_files(policy: Policy, in_opt: Path) -> None:
    """A directory with very many of them is hidden as a whole, instead of by a mount for each."""
    for number in range(100):
        (in_opt / "d" / f"key{number}").touch(mode=0o600)
    host = nsbox.probe(refresh=True)
    assert [path for path in host.private if path.startswith(str(in_opt))] == [str(in_opt / "d")]
    assert output(READ, policy.with_(ids="full"), str(in_opt / "d" / "shown")) == "False"
    assert output(READ, None, str(in_opt / "d" / "shown")) == "True"


@pytest.mark.as_root("permissions keep others from these files anyway")
def test_too_many_entries_to_look_at(workspace: Path, in_opt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many entries to look at all of them, the plan says below which directories."""
    from nsbox._machine import private

    try:
        monkeypatch.setattr(private, "_MOST_ENTRIES", 20)
        monkeypatch.setattr(private, "_PRIVATE_BELOW", (str(in_opt),))
        host = nsbox.probe(refresh=True)
        assert 0 < len(host.private) < 12 and host.private_unknown
        said = [
            line
            for line in nsbox.explain(Policy.workspace(workspace, ids="full")).splitlines()
            if "not enforced" in line
        ]
        assert [line for line in said if host.private_unknown[0] in line]
    finally:
        monkeypatch.undo()
        host = nsbox.probe(refresh=True)
    assert not host.private_unknown


@pytest.mark.as_root("permissions keep others from these files anyway")
def test_private_files_of_the_system(policy: Policy) -> None:
    """Files below /etc that only root may read are hidden from a command of root's; control: a bind of /etc shows them."""
    files = private_files()
    if not files:
        pytest.skip("this machine has no private file in /etc")
    assert set(output(READ, policy, *files).split()) == {"False"}
    system = [RoBind(path, path) for path, target in nsbox.probe().directories if target is None]
    links = [nsbox.Symlink(target, path) for path, target in nsbox.probe().directories if target is not None]
    prefixes = [RoBind(path, path) for path in nsbox.probe().prefixes]
    assert "True" in output(READ, Policy.layers(*system, *links, *prefixes), *files)


@pytest.mark.as_root("permissions keep others from these files anyway")
def test_private_files_below_what_is_named(tmp_path: Path) -> None:
    """What the user names is readable with all that is in it: only where the system is shown by default are files hidden."""
    (tmp_path / "key").write_text("x")
    (tmp_path / "key").chmod(0o600)
    assert output(READ, Policy.workspace(tmp_path), str(tmp_path / "key")) == "True"


LEASE = """
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
try: print(fcntl.fcntl(open(sys.argv[1]), fcntl.F_SETLEASE, fcntl.F_WRLCK))
except PermissionError: print("refused")
"""


def test_leases(workspace: Path, tmp_path: Path) -> None:
    """A lease needs no write access and lets the host's open(2) of the file wait for 45 seconds; control: a plain child."""
    path = tmp_path / "read"
    path.mkdir()
    (path / "file").write_text("x")
    policy = Policy.workspace(workspace, read=[path])
    assert output(LEASE, policy, str(path / "file")) == "refused"
    assert output(LEASE, None, str(path / "file")) == "0"


FILL = """
import os
made = 0
try:
    for made in range(4000): os.close(os.open(f"/tmp/{made}", os.O_CREAT))
except OSError as error: print(error.errno)
else: print("all")
"""


def test_inodes(policy: Policy) -> None:
    """tmp_size bounds empty files too, each of which takes a kilobyte of the kernel's memory; control: without it."""
    assert output(FILL, policy.with_(tmp_size="1M")) == "28"  # ENOSPC
    assert output(FILL, policy) == "all"


@pytest.mark.as_root("another real than effective id")
def test_real_ids(workspace: Path) -> None:
    """A caller that lowered its effective id only: the command has no other; control: a plain child keeps the real one."""

    def ids() -> list[list[str]]:
        import ctypes

        workspace.chmod(0o777)
        os.setegid(65534)
        os.seteuid(65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which seteuid(2) has cleared
        policy = Policy.layers(RoBind("/", "/"), nsbox.Proc("/proc"))
        command = ["/bin/grep", "-E", "^(Uid|Gid):", "/proc/self/status"]  # not Python, which may be root's alone
        inside = nsbox.run(command, policy=policy, capture_output=True, text=True, cwd="/").stdout
        plain = subprocess.run(command, capture_output=True, text=True, cwd="/").stdout
        return [inside.split(), plain.split()]

    inside, plain = in_fork(ids)
    assert inside == ["Uid:", *["65534"] * 4, "Gid:", *["65534"] * 4]
    assert plain[:3] == ["Uid:", "0", "65534"]


PLANT = """
import os, sys
try: open(os.path.join(sys.argv[1], "pyvenv.cfg"), "a").close()
except OSError as error: print(error.errno)
else: print("planted")
try: os.rename(os.path.dirname(sys.argv[1]), "moved")
except OSError as error: print(error.errno)
else: print("moved")
"""

HARNESS = """
import nsbox, sys
script, prefix, more = sys.argv[1:4]
policy = nsbox.Policy.workspace(".", write=[prefix] if more else [])
print(nsbox.run(["/usr/bin/env", "python3", "-I", "-S", "-c", script, prefix], policy=policy, capture_output=True, text=True).stdout)
"""


def test_the_callers_own_venv(workspace: Path) -> None:
    """The venv that the caller runs in can't be changed or moved from inside; control: named in write=, it can."""
    prefix = workspace / "tools" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", prefix], check=True)
    found = [
        subprocess.run(
            [prefix / "bin" / "python", "-c", HARNESS, PLANT, str(prefix), more],
            cwd=workspace,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for more in ("", "write")
    ]
    assert found == [["30", "16"], ["planted", "16"]]  # EROFS; EBUSY: it is a mount point either way
