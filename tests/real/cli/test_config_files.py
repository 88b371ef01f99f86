"""Configuration files on disk: what may be one, what commands under it can do, and nsbox check, init and schema."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import leftovers

import nsbox
from nsbox import Policy, PolicyError, Sandbox
from nsbox._config.load import ConfigError, load, loads
from nsbox._spawn import prepare


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with some others, as configurations name them, and what they don't name."""
    path = tmp_path / "project"
    for name in ("portfolio", "pipeline", "framework", "shared"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text(f"{name}\n")
    (path / "secret").write_text("secret\n")
    return path


def sh(policy: Policy, command: str, **options: Any) -> tuple[str, str]:
    done = nsbox.run(command, shell=True, policy=policy, capture_output=True, text=True, **options)
    return done.stdout, done.stderr


def told(path: str | os.PathLike[str], **options: Any) -> list[str]:
    """Return the lines of the error that a file must have."""
    with pytest.raises(ConfigError) as caught:
        load(path, **options)
    return str(caught.value).split("\n")


# ---- what commands can do

WORKER = """
sandbox:
  paths:
    portfolio: { root: ./portfolio, mode: rw, suffixes: [.md, .pdf], max_file_bytes: 10000000 }
    pipeline: { root: ./pipeline, mode: ro, suffixes: [.pdf] }
    framework:
      root: ./framework
  network: false
  require_os_sandbox: true
tools:
  - shell
"""


def test_without_a_workspace(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands start in the file's directory, where there is nothing but the paths that are named, and write to some."""
    pytest.importorskip("yaml")
    (project / "worker.yaml").write_text(WORKER)
    monkeypatch.chdir("/")
    policy = load(project / "worker.yaml").policy
    out, err = sh(policy, "pwd; ls -A; cat */file; echo new > portfolio/new; cat secret worker.yaml")
    assert out.split() == [str(project), *["framework", "pipeline", "portfolio"] * 2]
    assert err.count("No such file or directory") == 2
    assert (project / "portfolio/new").read_text() == "new\n"
    for place in ("pipeline/x", "framework/x"):
        assert "Read-only file system" in sh(policy, f"echo x > {place}")[1]
    sh(policy, "echo x > x; echo x > ../x; rm -rf pipeline framework")  # in /tmp, of which commands have their own
    assert sorted(os.listdir(project)) == ["framework", "pipeline", "portfolio", "secret", "shared", "worker.yaml"]
    assert os.listdir(project.parent) == ["project"] and os.listdir(project / "pipeline") == ["file"]
    out, _ = sh(Policy.host(), "cat secret; echo x > pipeline/x", cwd=project)
    assert out == "secret\n" and (project / "pipeline/x").exists(), "the control"


def test_no_path_at_all(project: Path) -> None:
    """A file that names none has commands start in /, with the system and nothing else, and in the caller's workspace."""
    (project / "c.json").write_text('{"sandbox": {"network": "none"}}')
    out, err = sh(load(project / "c.json").policy, f"pwd; cat {project}/secret; echo x > /tmp/x && echo tmp")
    assert out.split() == ["/", "tmp"] and "No such file" in err
    policy = load(project / "c.json", workspace=project / "shared").policy
    assert policy == Policy.workspace(project / "shared")
    assert sh(policy, "pwd; cat file")[0] == f"{project}/shared\nshared\n"


def test_network(project: Path) -> None:
    """None is none; "full" is the host's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        for said, is_reached in (('"none"', False), ("false", False), ('"full"', True), ("true", True)):
            (project / "c.json").write_text(f'{{"sandbox": {{"workspace": ".", "network": {said}}}}}')
            policy = load(project / "c.json").policy
            done = nsbox.run([sys.executable, "-c", code], policy=policy, stderr=subprocess.PIPE, text=True)
            assert (done.returncode == 0) is is_reached, done.stderr
            assert is_reached or "ConnectionRefusedError" in done.stderr


AGENT = """
[[agents]]
id = "main"

[agents.sandbox]
mode = "enabled"
workspace = "portfolio"
home = "workspace"
writable_paths = ["${SHARED}"]
passthrough_env = ["GH_TOKEN"]
deny = ["portfolio/data"]
tools_bin = "framework"
"""


def test_agent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writable paths, passed variables, a hidden data directory, tools first in PATH; nothing else of the environment."""
    monkeypatch.setenv("SHARED", str(project / "shared"))
    monkeypatch.setenv("GH_TOKEN", "token")
    monkeypatch.setenv("OTHER_KEY", "key")
    (project / "portfolio/data").mkdir()
    (project / "portfolio/data/db").write_text("rows")
    (project / "framework/tool").write_text("#!/bin/sh\necho tool\n")
    (project / "framework/tool").chmod(0o755)
    (project / "c.toml").write_text(AGENT)
    policy = load(project / "c.toml", section="agents[main].sandbox").policy
    out, err = sh(
        policy,
        'pwd; echo "$GH_TOKEN,$OTHER_KEY,$HOME"; tool; echo x > ../shared/x; cat data/db; echo x > ../framework/x',
    )
    place = f"{project}/portfolio"
    assert out.split("\n")[:-1] == [place, f"token,,{place}", "tool"]
    assert "Permission denied" in err and "Read-only" in err and (project / "shared/x").exists()
    assert sh(Policy.host(), "cat data/db", cwd=place)[0] == "rows", "the control"


def test_disabled(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The mode is for a Sandbox, which contains nothing then; the policy itself is the same."""
    (project / "on.toml").write_text('workspace = "."\n')
    (project / "off.toml").write_text('mode = "disabled"\nworkspace = "."\nreadable = ["on.toml"]')
    on, off = load(project / "on.toml"), load(project / "off.toml")
    assert (on.mode, off.mode) == ("enabled", "disabled")
    prepare._warn_once.cache_clear()
    with Sandbox(on.policy, mode=on.mode) as box:
        code = "readlink /proc/self/ns/pid"
        inside = box.run(code, shell=True, capture_output=True, text=True).stdout
        with Sandbox(off.policy, mode=off.mode) as open_box:
            outside = open_box.run(code, shell=True, capture_output=True, text=True).stdout
    assert "without any containment" in caplog.text
    assert outside.strip() == os.readlink("/proc/self/ns/pid") != inside.strip()


# ---- a file that commands could write to

ATTACKS = [
    "echo 'network = true' > c.toml",
    "rm -f c.toml; echo 'network = true' > c.toml",
    "echo 'network = true' > x; mv -f x c.toml",
    "chmod 777 c.toml; ln -f c.toml y; echo 'network = true' > y",
    "cd .. && mv inner moved && mkdir inner && echo 'network = true' > inner/c.toml",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_command_cant_change_what_holds_for_the_next(attack: str, project: Path) -> None:
    """The file is read-only inside, and stays where it is; without that a command would loosen its own policy."""
    (project / "inner").mkdir()
    file = project / "inner/c.toml"
    text = 'workspace = ".."\nworkdir = "."\n'
    file.write_text(text)
    policy = load(file).policy
    sh(policy, attack)
    assert file.read_text() == text and load(file).policy == policy
    sh(loads(text, "toml", base=project / "inner").policy, attack)
    assert (file.read_text() if file.exists() else "") != text, "the control: as a text that is no file, it isn't kept"


def test_behind_landlock_alone(project: Path) -> None:
    """There a file can't be read-only inside of what is writable: an error says so, and degrade that it may be."""
    if nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    others = '"namespaces", "attributes", "secrets", "limits.processes"'
    text = f'backend = "landlock"\nworkspace = "."\ndegrade = [{others}]\n'
    (project / "c.toml").write_text(text)
    with pytest.raises(nsbox.UnavailableError, match=r"c\.toml.* can't be read-only inside of what is writable"):
        sh(load(project / "c.toml").policy, "true")
    (project / "c.toml").write_text(text.replace('"namespaces"', '"namespaces", "read"'))
    assert sh(load(project / "c.toml").policy, "echo on")[0] == "on\n"


def test_links_that_commands_could_replace(project: Path) -> None:
    """A file behind a link in a writable place is refused; a link from elsewhere keeps what it leads to."""
    (project / "c.toml").write_text('workspace = "shared"')
    os.symlink("../c.toml", project / "shared/c.toml")
    assert load(project / "c.toml").policy.read == ()
    (project / "shared/real.toml").write_text('workspace = "."')
    os.symlink("real.toml", project / "shared/link.toml")
    (line,) = told(project / "shared/link.toml")
    assert line.endswith(
        f"commands could replace the link {project}/shared/link.toml: load {project}/shared/real.toml itself"
    )
    os.symlink("pipeline", project / "way")
    (project / "pipeline/c.toml").write_text('workspace = ".."')
    (line,) = told(project / "way/c.toml")
    assert f"commands could replace the link {project}/way: " in line
    assert load(project / "pipeline/c.toml").policy == Policy.workspace(project, read=[project / "pipeline/c.toml"])
    os.symlink("portfolio", project / "far")
    (project / "c2.toml").write_text('workspace = "."')
    (line,) = told(project / "far/../c2.toml")  # not the lexical c2.toml, with the link forgotten
    assert f"commands could replace the link {project}/far: load {project}/c2.toml itself" in line
    os.rename(project / "shared/real.toml", project / "portfolio/real.toml")
    os.symlink("portfolio/real.toml", project / "outside.toml")
    (project / "portfolio/real.toml").write_text('workspace = "portfolio"')
    assert load(project / "outside.toml").policy.read == (f"{project}/portfolio/real.toml",)


def test_file_with_another_name(project: Path) -> None:
    """A file in a writable place has one name: by another one a command could write to it."""
    file = project / "shared/c.toml"
    file.write_text('workspace = "."')
    assert load(file).policy.read == (str(file),)
    os.link(file, project / "shared/other")
    (line,) = told(file)
    assert line.endswith(
        "has other names (hard links), by which commands could write to it: put a copy in its place, or move it out of the writable directories"
    )
    os.rename(
        project / "shared/other", project / "portfolio/other"
    )  # where no command could write, but whose place is it
    assert len(told(file)) == 1
    os.link(file, project / "outside.toml")
    (project / "outside.toml").write_text('workspace = "portfolio"')
    assert load(project / "outside.toml").policy.write == (f"{project}/portfolio",)


def test_control_file_with_another_name(project: Path) -> None:
    """Where it isn't refused, a command changes what holds for those after it."""
    file = project / "shared/c.toml"
    file.write_text('workspace = "."')
    policy = load(file).policy
    os.link(file, project / "shared/other")
    sh(policy, "echo 'network = true' > other")
    assert file.read_text() == "network = true\n"


def test_file_that_is_a_writable_path(project: Path) -> None:
    """A file that makes itself writable is refused; one that hides itself, or is read-only already, is as it says."""
    file = project / "c.toml"
    file.write_text('writable_paths = ["c.toml"]')
    assert told(file) == [f"{file}: commands could write to this file itself, and so change what later commands may do"]
    file.write_text('workspace = "."\ndeny = ["c.toml"]')
    assert load(file).policy == Policy.workspace(project, deny=[file])
    file.write_text('workspace = "."\nreadable = ["c.toml"]')
    assert load(file).policy == Policy.workspace(project, read=[file])


# ---- what may be a file


def test_relative_to_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths count from the file's directory, however it is named and wherever the caller is."""
    (project / "c.toml").write_text('readable = ["portfolio"]')
    for where, name in (("/", str(project / "c.toml")), (project, "c.toml"), (project / "shared", "../c.toml")):
        monkeypatch.chdir(where)
        config = load(name)
        assert config.policy.read == (f"{project}/portfolio",) and config.path == f"{project}/c.toml"


def test_no_regular_file(project: Path) -> None:
    """A pipe, a device, a directory, a socket: refused at once, though opening some of them would wait for ever."""
    os.mkfifo(project / "fifo.toml")
    (project / "directory.toml").mkdir()
    os.symlink("/dev/zero", project / "device.toml")
    for name in ("fifo.toml", "directory.toml", "device.toml"):
        assert told(project / name) == [f"{project}/{name}: isn't a regular file"]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(project / "s.toml"))
        with pytest.raises(OSError) as caught:
            load(project / "s.toml")
    assert caught.value.errno == errno.ENXIO


def test_files_that_are_none(project: Path) -> None:
    """Too large, no UTF-8, not there."""
    (project / "large.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    (project / "sparse.json").touch()
    os.truncate(project / "sparse.json", 1 << 40)
    for name in ("large.toml", "sparse.json"):
        assert told(project / name) == [f"{project}/{name}: is larger than 1048576 bytes"]
    (project / "latin.toml").write_bytes("# a\nhostname = 'ü'\n".encode("latin-1"))
    assert told(project / "latin.toml") == [f"{project}/latin.toml:2: isn't UTF-8 (byte 16)"]
    (project / "wide.toml").write_bytes("uid = 1".encode("utf-16"))
    assert told(project / "wide.toml") == [f"{project}/wide.toml:1: isn't UTF-8 (byte 0)"]
    with pytest.raises(FileNotFoundError):
        load(project / "nothing.toml")
    with pytest.raises(NotADirectoryError):
        load(project / "secret/c.toml")
    with pytest.raises(PolicyError, match=r"path: .* has a NUL byte"):
        load("a\0.toml")


@pytest.mark.as_user("permissions stop no root")
def test_unreadable(project: Path) -> None:
    """What the caller can't read is the system's error."""
    (project / "c.toml").touch(0o000)
    with pytest.raises(PermissionError):
        load(project / "c.toml")


def test_strange_names(project: Path) -> None:
    """A name with a newline or bytes that are no text is a name, and one line of an error."""
    for name in (b"a\nb: ok.toml", b"\xff.toml", b"-.toml", b"~.toml", b"${HOME}.toml"):
        path = os.fsdecode(os.fsencode(project) + b"/" + name)
        Path(path).write_text("zz = 1")
        (line,) = told(path)
        assert line.isprintable() and ": zz: isn't a key" in line
        Path(path).write_text('workspace = "."')
        assert load(path).policy == Policy.workspace(project, read=[path])


def test_the_line_is_told(project: Path) -> None:
    """FILE:LINE: key: problem, for each format."""
    pytest.importorskip("yaml")
    for name, text, line in (
        ("c.toml", "[sandbox]\n\nnetwrok = 1", 3),
        ("c.json", '{"sandbox":\n\n{"netwrok": 1}}', 3),
        ("c.yaml", "sandbox:\n  netwrok: 1", 2),
    ):
        (project / name).write_text(text)
        assert told(project / name) == [
            f"{project}/{name}:{line}: sandbox.netwrok: isn't a key here; did you mean network?"
        ]


def test_nothing_is_left_open(project: Path) -> None:
    """Neither what is read nor what is refused leaves a descriptor."""
    (project / "c.toml").write_text('workspace = "."')
    (project / "d.toml").mkdir()
    before = leftovers.fds()
    load(project / "c.toml")
    for name in ("d.toml", "none.toml"):
        with pytest.raises((ConfigError, OSError)):
            load(project / name)
    assert leftovers.fds() == before
