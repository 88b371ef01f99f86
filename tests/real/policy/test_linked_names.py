"""A path has more than one name: by each that it was given, the sandbox has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, PolicyError, Sandbox
from nsbox._policy.losses import LOSSES


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A project whose path has links on it: absolute, relative, one behind another, with ".." in the midst."""
    (tmp_path / "real/u/proj").mkdir(parents=True)
    (tmp_path / "real/u/proj/f").write_text("data")
    (tmp_path / "real/lib").mkdir()
    (tmp_path / "real/lib/g").write_text("lib")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "home").symlink_to("real")
    (tmp_path / "users").symlink_to(tmp_path / "home/u")
    (tmp_path / "odd").symlink_to("a/b/../../users")
    return tmp_path


@pytest.mark.parametrize("name", ["home/u/proj", "users/proj", "odd/proj"])
@pytest.mark.parametrize("face", ["cold", "warm", "session"])
def test_workspace(linked: Path, name: str, face: str) -> None:
    """The workspace is there by the name that it was given, and by its real one; questions and file tools agree."""
    policy = Policy.workspace(linked / name)
    script = f"cat {linked}/{name}/f {linked}/real/u/proj/f && echo new > {linked}/{name}/out"
    with Sandbox(policy) as box:
        if face == "session":
            with box.session() as session:
                assert session.shell(script).stdout == "datadata"
        else:
            done = nsbox.run(script, shell=True, policy=policy if face == "cold" else box, capture_output=True)
            assert (done.returncode, done.stdout) == (0, b"datadata"), done.stderr
        assert box.can_read(linked / name / "f") and box.can_write(linked / name / "new")
        assert box.read(f"{linked}/{name}/f") == "data"
    assert (linked / "real/u/proj/out").read_text() == "new\n"
    assert f"link {linked}/" in nsbox.explain(policy)


@pytest.mark.parametrize("how", ["read", "write", "with_"])
def test_other_paths(linked: Path, workspace: Path, how: str) -> None:
    """So is whatever else is named; what isn't named isn't shown by the link."""
    name = linked / "home/lib"
    policy = (
        Policy.workspace(workspace).with_(read=[name])
        if how == "with_"
        else Policy.workspace(workspace, **{how: [name]})
    )  # type: ignore[arg-type]
    script = f"cat {name}/g; ls {linked}/home"
    assert nsbox.run(script, shell=True, policy=policy, capture_output=True, text=True).stdout == "liblib\n"


def test_sockets_below_var_run(workspace: Path) -> None:
    """A link of the system's on the way, such as /var/run, is there."""
    if os.path.realpath("/var/run") != "/run" or not os.access("/run", os.W_OK):
        pytest.skip("needs /var/run to lead to /run, and to make a file there")
    path = Path("/var/run/nsbox-test-of-links")
    path.write_text("1")
    try:
        done = nsbox.run(["cat", str(path)], policy=Policy.workspace(workspace, read=[path]), capture_output=True)
        assert done.stdout == b"1"
    finally:
        path.unlink()


def test_current_directory(linked: Path) -> None:
    """The caller's current directory is there by the name that its shell has for it."""
    code = "import nsbox; print(nsbox.run(['cat', PATH], capture_output=True, text=True).stdout, end='')"
    for name in ("home/u/proj", "odd/proj"):
        at = f"{linked}/{name}"
        script = f'cd {at} && exec {sys.executable} -P -c "{code.replace("PATH", repr(f"{at}/f"))}"'
        assert subprocess.run(script, shell=True, capture_output=True, text=True, check=True).stdout == "data"


def test_wrong_pwd(linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PWD that is another directory's, or none, is no name of it."""
    monkeypatch.chdir(linked / "real/u/proj")
    for pwd in (f"{linked}/home/lib", "home", "/nowhere", ""):
        monkeypatch.setenv("PWD", pwd)
        assert Policy.workspace(".").links == ()


def test_venv(linked: Path) -> None:
    """Programs whose first line names the interpreter by a link run."""
    at = linked / "home/u/proj"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", at / ".venv"], check=True)
    (at / "tool").write_text(f"#!{at}/.venv/bin/python\nprint('ran')\n")
    (at / "tool").chmod(0o755)
    assert nsbox.run(["./tool"], policy=Policy.workspace(at), capture_output=True, text=True).stdout == "ran\n"


def test_loop(linked: Path) -> None:
    """A link that leads to itself is an error that names it."""
    (linked / "loop").symlink_to("loop2")
    (linked / "loop2").symlink_to("loop")
    with pytest.raises(PolicyError, match=r"workspace: .*/loop/x: Too many levels of symbolic links"):
        Policy.workspace(linked / "loop/x")
    with pytest.raises(PolicyError, match="Too many levels"):
        Policy.workspace(linked / "real", read=[linked / "loop"])


def test_hidden_names(linked: Path) -> None:
    """No link is made to what is only denied, nor where something is hidden."""
    policy = Policy.workspace(linked / "real/u/proj", deny=[linked / "home/lib"])
    assert policy.links == ()
    policy = Policy.workspace(linked / "users/proj", deny=[linked / "real/lib"])
    assert nsbox.run(["ls", f"{linked}/home"], policy=policy, capture_output=True, text=True).stdout == "u\n"


def test_planted_link(linked: Path) -> None:
    """A link in a writable place that leads out of it is refused, as ever: a command may have made it."""
    ws = linked / "real/u/proj"
    (ws / "out").symlink_to(linked / "real/lib")
    with pytest.raises(PolicyError, match="leads out of"):
        Policy.workspace(ws, read=[ws / "out"])
    control = Policy.workspace(linked / "real/lib", read=[linked / "a"])
    assert control.links == ()


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_backends(linked: Path, backend: str) -> None:
    """The other backends find it too."""
    policy = Policy.workspace(linked / "users/proj", backend=backend, degrade=LOSSES)
    try:
        done = nsbox.run(["cat", f"{linked}/users/proj/f"], policy=policy, capture_output=True, text=True)
    except nsbox.UnavailableError as error:
        pytest.skip(str(error))
    assert done.stdout == "data"
