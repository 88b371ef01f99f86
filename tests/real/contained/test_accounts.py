"""Users and groups inside, ssh's files, another user's project: with real programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Policy
from nsbox._machine import probe


def sh(script: str, policy: Policy, **options: Any) -> subprocess.CompletedProcess[str]:
    return nsbox.run(script, shell=True, policy=policy, capture_output=True, text=True, **options)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give this machine other facts."""

    def change(**facts: Any) -> None:
        key = (os.geteuid(), os.getegid())
        monkeypatch.setitem(probe._known, key, replace(nsbox.probe(), **facts))

    return change


ASK = 'id -un; id -gn; getent passwd "$(id -u)"; getent group "$(id -g)" | cut -d: -f1; echo "$HOME"'


@pytest.mark.parametrize(("uid", "gid"), [(54321, 54322), (0, 0), (1, 65534)])
def test_ids_of_the_policy(workspace: Path, uid: int, gid: int) -> None:
    """A uid has a name, a home and a group inside, whether or not a user outside has it."""
    done = sh(ASK, Policy.workspace(workspace, uid=uid, gid=gid))
    user, group, entry, found, home = done.stdout.splitlines()
    assert (entry.split(":")[0], found) == (user, group)
    assert (entry.split(":")[2], entry.split(":")[5]) == (str(uid), home) and home == f"/home/{user}"
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["EXAMPLE\\me", "me@example.org"])
def test_a_user_of_a_directory_service(workspace: Path, known: Callable[..., None], name: str) -> None:
    """What getpwuid(3) has told outside is in the sandbox's passwd."""
    known(user=name, user_info="Me", shell="/bin/bash", group="us", passwd=b"a:x:9:9::/:/bin/sh", groups=b"a:x:9:")
    entry = sh('getent passwd "$(id -u)"; echo ~; id -gn', Policy.workspace(workspace)).stdout.splitlines()
    assert entry == [f"{name}:x:{os.geteuid()}:{os.getegid()}:Me:/home/{name}:/bin/bash", f"/home/{name}", "us"]


@pytest.mark.as_root("becomes a user that nobody is, and puts another passwd in front in a mount namespace")
@pytest.mark.parametrize("passwd", ["no newline", "unreadable", "empty"])
def test_other_callers(workspace: Path, tmp_path: Path, passwd: str) -> None:
    """A caller that passwd doesn't know, or knows on a last line without a newline, or who can't read it."""
    file = tmp_path / "passwd"
    file.write_text("" if passwd == "empty" else "root:x:0:0:root:/root:/bin/sh\nlast:x:5001:5001::/x:/bin/sh")
    file.chmod(0o600 if passwd == "unreadable" else 0o644)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    workspace.chmod(0o777)
    command = [sys.executable, "-P", "-m", "nsbox", "run", "-w", str(workspace), "--", "sh", "-c", ASK]
    for uid in (5001, 5002):
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", "-i", "HOME=/nowhere"]
        script = 'mount --bind "$1" /etc/passwd; shift; exec "$@"'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", str(file), *become, "PATH=/usr/bin:/bin", *command],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert (done.returncode, done.stderr) == (0, "")
        user = "last" if (uid, passwd) == (5001, "no newline") else f"u{uid}"
        assert done.stdout.splitlines()[0] == user
        assert done.stdout.splitlines()[2].split(":")[5] == f"/home/{user}"


@needs.programs("ssh")
@pytest.mark.as_root("puts another /etc/ssh in front in a mount namespace; the command is an ordinary user's")
@pytest.mark.parametrize("face", [["-w", "."], ["--host"]])
@pytest.mark.parametrize("who", [0, 65534])
def test_ssh_takes_drop_ins(workspace: Path, tmp_path: Path, face: list[str], who: int) -> None:
    """ssh reads what its configuration includes, also by a link and one level further, as it does outside."""
    ssh = tmp_path / "ssh"
    (ssh / "ssh_config.d").mkdir(parents=True)
    (ssh / "ssh_config").write_text("Include /etc/ssh/ssh_config.d/*.conf\n")
    (ssh / "ssh_config.d/10-a.conf").write_text("Host a\n HostName a.invalid\nHost *\nInclude more/b.conf\n")
    (ssh / "more").mkdir()
    (ssh / "more/b.conf").write_text("Host b\n HostName b.invalid\n")
    (ssh / "c.conf").write_text("Host c\n HostName c.invalid\n")
    (ssh / "ssh_config.d/20-c.conf").symlink_to("../c.conf")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    home = tmp_path / "home"
    for path in (home, workspace):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    become = ["setpriv", f"--reuid={who}", f"--regid={who}", "--clear-groups", "env", f"HOME={home}"]
    look = "for h in a b c; do ssh -G $h | grep '^hostname'; done"
    run = [sys.executable, "-P", "-m", "nsbox", "run", *face, "--", "sh", "-c", look]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", 'mount --bind "$1" /etc/ssh; shift; exec "$@"', "sh", str(ssh), *become, *run],
        capture_output=True,
        text=True,
        check=False,
        cwd=workspace,
    )
    assert done.stdout.split() == ["hostname", "a.invalid", "hostname", "b.invalid", "hostname", "c.invalid"]
    assert "Bad owner" not in done.stderr


@pytest.mark.as_user("root's own files are root's inside, or need kernel ids")
def test_files_of_root_s_are_one_s_own(workspace: Path, known: Callable[..., None]) -> None:
    """The files that ssh is to take are the command's, with the same contents, and can't be written to."""
    path = Path("/etc/services") if Path("/etc/services").exists() else Path("/etc/nsswitch.conf")
    known(ssh_files=((str(path), path.read_bytes()),))
    for policy in (Policy.workspace(workspace), Policy.host()):
        done = sh(f"stat -c %u:%a {path}; cat {path}; echo x >> {path} || echo refused", policy)
        assert done.stdout == f"{os.geteuid()}:644\n{path.read_text()}refused\n"


# ---- another user's project


@pytest.mark.as_root("has another user's project")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_somebody_else_s_project(workspace: Path, mode: int) -> None:
    """Root works in it, as the owner, and so does git."""
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    subprocess.run(["chown", "-R", "1234:1234", str(workspace)], check=True)
    workspace.chmod(mode)
    for fields in ({}, {"ids": "full", "uid": 1234, "gid": 1234}):
        with nsbox.Sandbox(Policy.workspace(workspace, **fields)) as box:
            done = box.shell("touch new && git status --short && rm new")
            assert (done.returncode, done.stdout, done.stderr) == (0, "?? new\n", "")


@pytest.mark.as_root("has another user's project, without the means to take kernel ids")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_the_hint_where_it_cannot(workspace: Path, tmp_path: Path, mode: int) -> None:
    """Without CAP_SYS_ADMIN, as in most containers: the exact fields, in the record, the error, and on stderr."""
    subprocess.run(["chown", "-R", "1234:4321", str(workspace)], check=True)
    workspace.chmod(mode)
    code = (
        "import nsbox, sys\n"
        "with nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])) as box:\n"
        "    try: print(*box.shell('touch new').why)\n"
        "    except nsbox.AccessError as error: print(error)\n"
    )
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run(
        [*without, sys.executable, "-P", "-c", code, str(workspace)], capture_output=True, text=True, check=True
    )
    assert "belongs to uid 1234, gid 4321" in done.stdout and "ids='full', uid=1234, gid=4321" in done.stdout
    told = [*without, sys.executable, "-P", "-m", "nsbox", "run", "-w", str(workspace), "-C", str(workspace)]
    if mode == 0o700:
        done = subprocess.run([*told, "true"], capture_output=True, text=True, check=False)
        assert done.returncode == 125 and "--ids full --uid 1234 --gid 4321" in done.stderr
    follow = subprocess.run(
        [*told, *["--ids", "full", "--uid", "1234", "--gid", "4321", "--", "touch", "new"]], check=False
    )
    assert follow.returncode == 0 and (workspace / "new").stat().st_uid == 1234


@needs.programs("git")
def test_dubious_ownership(workspace: Path) -> None:
    """The hint says what makes git take the repository; what it says does."""
    with nsbox.Sandbox(Policy.workspace(workspace)) as box:
        message = f"fatal: detected dubious ownership in repository at '{workspace}/r'"
        done = box.shell(f'echo "{message}" >&2; exit 128')
    (hint,) = [hint for hint in done.why if hint.kind == "owner"]
    assert f"GIT_CONFIG_VALUE_0='{workspace}/r'" in hint.message
