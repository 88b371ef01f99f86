"""Links that a command leaves in a writable place, and that its caller names afterwards.

Whatever takes a path takes what the path leads to. A link out of a writable directory would give the next command what
it leads to: the caller's home directory, for instance. Each attempt has a control, in which the links aren't looked at.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nsbox
import nsbox.asyncio
from nsbox import NsboxError, Policy, PolicyError, Sandbox, SetupError
from nsbox._base.imports import opened
from nsbox._paths.resolution import Resolution

READ = "cat .ssh/id; echo evil >> .ssh/authorized_keys"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory of the caller's, with a key in it that no command is to see."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("PRIVATE KEY\n")
    (home / ".env").write_text("PRIVATE KEY\n")
    return home


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, in which the first command has made links to the home directory where directories were."""
    project = tmp_path / "project"
    (project / "sub/deeper").mkdir(parents=True)
    monkeypatch.chdir(project)
    script = f"mv sub old; ln -s {home} sub; ln -s ../../home old/out; ln -s old stays; ln -s {home}/not-there dangling"
    nsbox.run(script, shell=True, check=True)
    return project


def unchanged(home: Path) -> bool:
    return sorted(os.listdir(home / ".ssh")) == ["id"]


@pytest.mark.parametrize("how", ["here", "absolute", "bytes", "path"])
@pytest.mark.parametrize("name", ["sub", "./sub/", "old/../sub", "old/out", "stays/out"])
def test_cwd_without_a_policy(project: Path, home: Path, name: str, how: str) -> None:
    """cwd= is the workspace of a command without a policy, and never one by a link that leads out of the current one."""
    absolute = f"{project}/{name}"
    cwd = {"here": name, "absolute": absolute, "bytes": name.encode(), "path": Path(absolute)}[how]
    for fresh in (False, True):
        if fresh:  # as in another process than the one that has run the first command
            opened.clear()
        with pytest.raises(PolicyError, match=f"by the link {project}/.*, to {home}.*name {home} itself"):
            nsbox.run(READ, shell=True, cwd=cwd)
    assert unchanged(home)


def test_control_cwd_without_a_policy(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the links aren't looked at, the command reads the key and writes beside it."""
    monkeypatch.setattr(Resolution, "problems", lambda *_: iter(()))
    assert nsbox.run(READ, shell=True, cwd="sub", capture_output=True, text=True).stdout == "PRIVATE KEY\n"
    assert not unchanged(home)


def test_cwd_of_asyncio_and_of_popen(project: Path, home: Path) -> None:
    """All ways to start a command without a policy come to the same."""

    async def begin() -> None:
        await nsbox.asyncio.create_subprocess_shell(READ, cwd="sub")

    with pytest.raises(PolicyError, match="leads out of"):
        asyncio.run(begin())
    with pytest.raises(PolicyError, match="leads out of"):
        nsbox.Popen(["cat", ".ssh/id"], cwd=project / "sub")
    with pytest.raises(PolicyError, match="leads out of"):
        nsbox.check_output(["cat", ".ssh/id"], cwd="sub")
    assert unchanged(home)


@pytest.mark.parametrize("option", ["--workspace", "--read", "--write", "--deny"])
@pytest.mark.parametrize("is_absolute", [False, True])
def test_command_line(project: Path, home: Path, option: str, is_absolute: bool) -> None:
    """The command line is another process each time: nobody there knows what has been opened before."""
    nsbox_run = [sys.executable, "-P", "-m", "nsbox", "run"]
    name = f"{project}/sub" if is_absolute else "sub"
    more = [] if option in ("--workspace", "--deny") else ["--workspace", "old"]
    done = subprocess.run(
        [*nsbox_run, *more, option, name, "--", "cat", f"{home}/.ssh/id"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert f"{project}/sub" in done.stderr and str(home) in done.stderr
    if option == "--workspace":  # a user who means it says so
        assert subprocess.check_output([*nsbox_run, option, home, "--", "cat", ".ssh/id"]) == b"PRIVATE KEY\n"


def _load(key: str, name: str, project: Path) -> Policy:
    path = project.parent / "policy.toml"
    workspace = name if key == "workspace" else str(project)
    value = f'"{name}"' if key in ("workspace", "tools_bin") else f'["{name}"]'
    more = "" if key == "workspace" else f"{key} = {value}\n"
    if key == "paths":
        more = f'[paths.rule]\nroot = "{name}"\n'
    path.write_text(f'workspace = "{workspace}"\n{more}')
    return Policy.load(path)


def _rootfs(field: str, name: str, project: Path) -> Policy:
    root, other = project.parent / "root", project.parent / "other"
    other.mkdir(exist_ok=True)
    for path in ("proc", "dev", "tmp", "run", "workspace", "agent", "usr/local/x"):
        (root / path).mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {"dest": root, "workspace": other}
    given |= {"runtime": {"/usr/local/x": name}} if field == "runtime" else {field: name}
    return Policy.rootfs(**given)


WAYS: dict[str, Callable[[str, Path], Policy]] = {
    "workspace": lambda name, project: Policy.workspace(name),
    "read": lambda name, project: Policy.workspace(project, read=[name]),
    "write": lambda name, project: Policy.workspace(project, write=[name]),
    "tools_bin": lambda name, project: Policy.workspace(project, tools_bin=name),
    "deny": lambda name, project: Policy.workspace(project, deny=[name]),
    "with read": lambda name, project: Policy.workspace(project).with_(read=[name]),
    "with write": lambda name, project: Policy.workspace(project).with_(write=[project, name]),
    "with tools_bin": lambda name, project: Policy.workspace(project).with_(tools_bin=name),
    "with deny": lambda name, project: Policy.workspace(project).with_(deny=[name]),
    "file's workspace": lambda name, project: _load("workspace", name, project),
    "file's readable": lambda name, project: _load("readable", name, project),
    "file's writable_paths": lambda name, project: _load("writable_paths", name, project),
    "file's tools_bin": lambda name, project: _load("tools_bin", name, project),
    "file's deny": lambda name, project: _load("deny", name, project),
    "file's paths": lambda name, project: _load("paths", name, project),
    "root": lambda name, project: _rootfs("dest", name, project),
    "root's workspace": lambda name, project: _rootfs("workspace", name, project),
    "root's agent": lambda name, project: _rootfs("agent", name, project),
    "root's runtime": lambda name, project: _rootfs("runtime", name, project),
}


@pytest.mark.parametrize("way", WAYS)
def test_paths_of_a_policy(project: Path, home: Path, way: str) -> None:
    """A name in a policy isn't what a link of an earlier command leads to, no matter which policy let it make the link."""
    for name in ("sub", "old/out", "stays/out"):
        with pytest.raises(PolicyError, match=f"by the link {project}/.*{home}"):
            WAYS[way](f"{project}/{name}", project)


@pytest.mark.parametrize("way", [way for way in WAYS if "deny" not in way])
def test_control_paths_of_a_policy(project: Path, home: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the links aren't looked at, the home directory is the policy's."""
    monkeypatch.setattr(Resolution, "problems", lambda *_: iter(()))
    try:
        policy = WAYS[way](f"{project}/sub", project)
    except PolicyError as error:
        assert way == "root" and f"{home}/" in str(error)  # it has been taken, and isn't one
        return
    sources = {getattr(op, "src", None) for op in policy.ops}
    assert str(home) in {*policy.write, *policy.read, *sources}


@pytest.mark.parametrize("name", ["sub/.env", "dangling", "stays/.env", "old/out/.env"])
def test_what_is_denied(project: Path, home: Path, name: str) -> None:
    """A name that is to be hidden isn't exchanged for another one in silence: what is there later would be shown."""
    with pytest.raises(PolicyError, match=f"deny: {project}/{name} is, by the link {project}.* instead, or remove the"):
        Policy.workspace(project, deny=[name])


def test_control_what_is_denied(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the links aren't looked at, what appears at the name is shown."""
    monkeypatch.setattr(Resolution, "problems", lambda *_: iter(()))
    policy = Policy.workspace(project, deny=["dangling"])
    (project / "dangling").unlink()
    (project / "dangling").write_text("SECRET")
    assert nsbox.check_output(["cat", "dangling"], policy=policy) == b"SECRET"


def test_what_another_policy_has_opened(tmp_path: Path, home: Path) -> None:
    """A place counts as writable from the first command on that could write to it, layers and roots included."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "link").symlink_to(home)
    (tmp_path / "ws").mkdir()
    named = lambda: Policy.workspace(tmp_path / "ws", read=[place / "link"])  # noqa: E731
    assert named().read == (str(home),)  # a link of the caller's own
    layers = [nsbox.RoBind("/usr", "/usr"), nsbox.Symlink("usr/lib", "/lib"), nsbox.Symlink("usr/lib64", "/lib64")]
    nsbox.run(["/usr/bin/true"], policy=Policy.layers(*layers, nsbox.RoBind(str(place), "/x")), check=True)
    assert named().read == (str(home),)
    nsbox.run(["/usr/bin/true"], policy=Policy.layers(*layers, nsbox.Bind(str(place), "/x")), check=True)
    with pytest.raises(PolicyError, match="leads out of"):
        named()


def test_links_of_the_callers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links where no command could make them, and links that stay where they are, lead on as ever."""
    real = tmp_path / "disk/project"
    (real / "src").mkdir(parents=True)
    (real / "lib").symlink_to("src")
    (tmp_path / "project").symlink_to(real)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Policy.workspace(tmp_path / "project").write == (str(real),)
    for name in ("../project", "../project/lib", tmp_path / "project", tmp_path / "project/lib"):
        assert nsbox.check_output(["pwd"], cwd=name, text=True).strip() in (str(real), str(real / "src"))
    monkeypatch.chdir(tmp_path / "project")
    assert nsbox.check_output(["pwd"], cwd="lib", text=True) == f"{real}/src\n"
    assert nsbox.check_output(["pwd"], cwd="src", text=True) == f"{real}/src\n"
    assert Policy.workspace(real, read=["lib"]).read == (f"{real}/src",)
    assert Policy.workspace("/var/tmp", read=["/etc/os-release"]).write == (os.path.realpath("/var/tmp"),)


def test_home_as_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """~/project may be a link of the user's: a shell makes an absolute name of it."""
    (tmp_path / "me").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "me/project").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path / "me")
    assert nsbox.check_output(["pwd"], cwd=os.path.expanduser("~/project"), text=True) == f"{tmp_path}/disk\n"
    with pytest.raises(PolicyError, match="leads out of"):
        nsbox.run(["pwd"], cwd="project")


def test_made_after_the_policy(tmp_path: Path, home: Path) -> None:
    """A policy that is kept doesn't follow a link that one of its own commands has put where a directory was."""
    ws = tmp_path / "ws"
    (ws / "docs").mkdir(parents=True)
    outer = Policy.workspace(ws)
    policy = Policy.workspace(ws, read=[ws / "docs"])
    with Sandbox(policy) as box:
        nsbox.run(["true"], policy=policy, check=True)
        nsbox.run(f"rmdir docs; ln -s {home} docs", shell=True, policy=outer, check=True)
        for start in (
            lambda: nsbox.check_output(["cat", "docs/.ssh/id"], policy=policy),
            lambda: box.check_output(["cat", "docs/.ssh/id"]),
            lambda: box.session().check_output(["cat", "docs/.ssh/id"]),
        ):
            try:
                assert b"PRIVATE" not in start()
            except (NsboxError, subprocess.CalledProcessError):
                pass
        with pytest.raises(PolicyError, match="leads out of"):
            box.transaction(ws / "docs")


ROUNDS = 300

_SWAPPER = """
import ctypes, os, sys
libc, place = ctypes.CDLL(None), sys.argv[1]
print("on", flush=True)
while os.getppid() == int(sys.argv[2]):
    for _ in range(1000):  # RENAME_EXCHANGE
        libc.renameat2(-100, f"{place}/docs".encode(), -100, f"{place}/other".encode(), 2)
"""


@contextmanager
def swapping(tmp_path: Path, home: Path) -> Iterator[Path]:
    """Give a workspace where `docs` is by turns a directory and a link to the home, thousands of times a second."""
    ws = tmp_path / "ws"
    (ws / "docs/.ssh").mkdir(parents=True)
    (ws / "docs/.ssh/id").write_text("harmless")
    (ws / "other").symlink_to(home)
    command = [sys.executable, "-I", "-c", _SWAPPER, str(ws), str(os.getpid())]
    nsbox.run(["true"], policy=Policy.workspace(ws), check=True)  # from here on the place isn't the caller's alone
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None and swapper.stdout.readline() == b"on\n"
        try:
            yield ws
        finally:
            swapper.kill()


def test_link_that_comes_and_goes(tmp_path: Path, home: Path) -> None:
    """While a link and a directory change places all the time, the link never wins."""
    seen: dict[str, int] = {}
    with swapping(tmp_path, home) as ws:
        for i in range(ROUNDS):
            try:
                if i % 3:
                    policy = Policy.workspace(ws, read=[ws / "docs"])
                    said = nsbox.check_output(["cat", "docs/.ssh/id"], cwd=ws, policy=policy)
                else:
                    said = nsbox.check_output("cat .ssh/id; echo evil > .ssh/evil", shell=True, cwd=ws / "docs")
                outcome = said.decode()
            except (PolicyError, SetupError, OSError, subprocess.CalledProcessError) as error:
                outcome = type(error).__name__
            seen[outcome] = seen.get(outcome, 0) + 1
    assert not any("PRIVATE" in outcome for outcome in seen) and unchanged(home), seen
    assert sum(seen.values()) == ROUNDS


def test_control_the_link_wins(tmp_path: Path, home: Path) -> None:
    """Control: a path that was looked at, and is then bound by its name, is the target of a link that came in between."""
    ws = tmp_path / "ws"
    (ws / "docs/.ssh").mkdir(parents=True)
    (ws / "docs/.ssh/id").write_text("harmless")
    policy = Policy.layers(nsbox.RoBind("/", "/"), nsbox.RoBind(str(ws / "docs"), "/srv"))
    assert nsbox.check_output(["cat", "/srv/.ssh/id"], policy=policy) == b"harmless"
    (ws / "docs").rename(ws / "away")
    (ws / "docs").symlink_to(home)
    assert b"PRIVATE" in nsbox.check_output(["cat", "/srv/.ssh/id"], policy=policy)
