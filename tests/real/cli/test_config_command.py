"""nsbox check, init and schema; the files they write; and nsbox run --policy."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsbox import Policy, PolicyError
from nsbox._cli import config as cli
from nsbox._config.load import dump, load
from nsbox._config.write import write_file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with some others, as configurations name them, and what they don't name."""
    path = tmp_path / "project"
    for name in ("portfolio", "pipeline", "framework", "shared"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text(f"{name}\n")
    (path / "secret").write_text("secret\n")
    return path


# ---- writing


def test_written_whole_or_not_at_all(project: Path) -> None:
    """A file that is there stays, and so does a link to nowhere; a failure leaves nothing behind."""
    (project / "c.toml").write_text("mine")
    os.symlink("nowhere", project / "link.toml")
    before = set(os.listdir(project))
    for name in ("c.toml", "link.toml", "portfolio"):
        with pytest.raises(FileExistsError) as caught:
            write_file(str(project / name), "text")
        assert caught.value.filename == str(project / name)
    with pytest.raises(UnicodeEncodeError):
        write_file(str(project / "new.toml"), "\ud800")
    with pytest.raises(FileNotFoundError):
        write_file(str(project / "no/new.toml"), "text")
    assert set(os.listdir(project)) == before and (project / "c.toml").read_text() == "mine"
    assert not os.path.exists(project / "nowhere")


def test_without_hard_links(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none the file is renamed, and still over nothing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    write_file(str(project / "new.toml"), "text")
    with pytest.raises(FileExistsError):
        write_file(str(project / "new.toml"), "other")
    assert (project / "new.toml").read_text() == "text"
    assert not [name for name in os.listdir(project) if name.startswith(".nsbox")]


def test_dump(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dumped loads as the same, from its own directory too; another file is only replaced on demand."""
    monkeypatch.chdir(project)
    policy = Policy.workspace("portfolio", read=["pipeline"], deny=["portfolio/.env"])
    dump(policy, "c.json", mode="disabled")
    assert json.loads(Path("c.json").read_text())["workspace"] == "portfolio"
    config = load("c.json")
    assert (config.policy, config.mode) == (policy, "disabled")
    with pytest.raises(FileExistsError):
        dump(policy, "c.json")
    os.rename("c.json", "old.json")
    os.symlink("old.json", "c.json")
    dump(policy, "c.json", replace=True)
    assert not os.path.islink("c.json") and load("c.json").mode == "enabled" and load("old.json").mode == "disabled"


# ---- the command


@pytest.fixture
def nsbox_says(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Do what the subcommand does; returns its status and what it prints."""

    def call(work: str, **options: Any) -> tuple[int, str, str]:
        given: dict[str, Any] = {"section": None, "workspace": None, "format": None, "file": None}
        status = cli.main(argparse.Namespace(work=work, **(given | options)))
        return status, *capsys.readouterr()

    return call


def test_check(project: Path, nsbox_says: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what a file means, but doesn't show the values of variables, which may be secrets."""
    monkeypatch.chdir(project)
    Path("c.toml").write_text(
        'workspace = "portfolio"\nreadable = ["pipeline"]\ndeny = ["data"]\nuid = 7\nenv.KEY = "hush"\n'
        'limits.memory = "1G"\n[paths.notes]\nroot = "shared"\nmode = "rw"\nsuffixes = [".md"]\n'
    )
    status, out, err = nsbox_says("check", file="c.toml")
    assert (status, err) == (0, "")
    assert (
        out
        == f"""\
c.toml: ok
  mode        enabled
  starts in   {project}/portfolio
  writable    {project}/portfolio
              {project}/shared
              /tmp (its own)
  readable    {project}/pipeline
              system directories
  hidden      {project}/data (isn't there)
  network     none
  environment USER, LANG, LANGUAGE, LC_*, TZ, TERM, COLORTERM, NO_COLOR, FORCE_COLOR of the caller's; HOME: private; set: KEY
  paths       notes: {project}/shared (rw, .md)
  limits      memory 1073741824
  require     filesystem
  uid         7
"""
    )


def test_check_of_what_is_wrong(
    project: Path, nsbox_says: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each problem is a line on stderr, and the status is 1."""
    monkeypatch.chdir(project)
    Path("c.toml").write_text("uid = -1\n[limit]\n")
    status, out, err = nsbox_says("check", file="c.toml")
    assert (status, out) == (1, "")
    assert err.split("\n")[:-1] == [
        "c.toml:1: uid: -1 is out of range, must be 0 to 4294967294",
        "c.toml:2: limit: isn't a key here; did you mean limits?",
    ]
    for name, problem in (
        ("none.toml", "none.toml: No such file or directory"),
        ("c.ini", "path: 'c.ini' isn't the name of"),
        ("a\nb.toml", "'a\\nb.toml': No such file or directory"),
    ):
        status, out, err = nsbox_says("check", file=name)
        assert (status, out) == (1, "") and problem in err and err.count("\n") == 1


@pytest.mark.parametrize("format", ["toml", "json", "yaml"])
def test_init(
    format: str, project: Path, nsbox_says: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file to begin with, which is right, and which isn't written over."""
    if format == "yaml":
        pytest.importorskip("yaml")
    monkeypatch.chdir(project)
    name = f"nsbox.{format}"
    assert nsbox_says("init", format=format)[0] == 0
    assert load(name).policy == Policy.workspace(project, read=[project / name])
    text = Path(name).read_text()
    status, out, err = nsbox_says("init", file=name)
    assert (status, out, err) == (1, "", f"nsbox: {name}: File exists\n")
    assert Path(name).read_text() == text
    assert nsbox_says("init", file=f"shared/other.{format}", workspace="portfolio")[0] == 0
    assert load(f"shared/other.{format}").policy == Policy.workspace(project / "portfolio")
    assert nsbox_says("check", file=name)[0] == 0


def test_init_refuses(
    project: Path, nsbox_says: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that say another format, and workspaces that aren't there."""
    monkeypatch.chdir(project)
    for options, field in (
        ({"file": "x.toml", "format": "json"}, "--format"),
        ({"file": "x"}, "path"),
        ({"workspace": "nowhere"}, "--workspace"),
    ):
        with pytest.raises(PolicyError) as caught:
            nsbox_says("init", **options)
        assert caught.value.field == field
    assert sorted(os.listdir(project)) == ["framework", "pipeline", "portfolio", "secret", "shared"]
    assert nsbox_says("init", file="no/x.toml")[0] == 1


def test_schema(nsbox_says: Callable[..., tuple[int, str, str]]) -> None:
    """It is printed as JSON."""
    status, out, _ = nsbox_says("schema")
    words = json.loads(out)["properties"]["network"]["anyOf"][0]
    assert status == 0 and words["enum"] == ["none", "host", "full", "public", False, True]


# ---- nsbox run --policy


def test_run_by_a_file(project: Path) -> None:
    """The command has what the file says; other options don't go with it, and a wrong file is reported."""
    (project / "p.toml").write_text('[sandbox]\nworkspace = "."\nenv = {A = "from the file"}\n')

    def nsbox_command(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "nsbox", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=project, check=False)

    assert nsbox_command("run", "-p", "p.toml", "--", "sh", "-c", "echo $A").stdout == "from the file\n"
    assert nsbox_command("run", "-p", "p.toml", "--section", "sandbox", "--", "true").returncode == 0
    assert "p.toml" in nsbox_command("explain", "--policy", "p.toml").stdout
    (project / "other").mkdir()
    (project / "none.toml").write_text('network = "none"\n')
    assert nsbox_command("run", "-p", "p.toml", "-w", str(project), "--", "true").returncode == 0
    assert nsbox_command("run", "-p", "none.toml", "-w", "other", "-c", "pwd").stdout == f"{project / 'other'}\n"
    for wrong, said in (
        (("-p", "p.toml", "--network", "host"), "--network: doesn't go with --policy"),
        (("-p", "p.toml", "--uid", "0"), "--uid: doesn't go with --policy"),
        (("-p", "p.toml", "-w", "other"), "--workspace: the file of --policy names another one, "),
        (("--section", "x"), "--section: belongs to --policy"),
        (("-p", "missing.toml"), "missing.toml: No such file or directory"),
        (("-p", "p.toml", "--section", "none"), "none"),
    ):
        done = nsbox_command("run", *wrong, "--", "true")
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_each_problem_has_a_line(project: Path) -> None:
    """`nsbox run` reports every problem of a file on a line of its own. A line end in the file's own text makes no line."""
    (project / "p.toml").write_text('workspace = "."\nfirst = 1\nbackend = "none\\nnsbox: forged"\n')
    command = [sys.executable, "-P", "-m", "nsbox", "run", "-p", "p.toml", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, check=False)
    lines = done.stderr.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["nsbox", "p.toml:2", "first"],
        ["nsbox", "p.toml:3", "backend"],
    ], done.stderr
    assert done.returncode == 2 and "none\\nnsbox: forged" in lines[1].replace("\\\\", "\\")
