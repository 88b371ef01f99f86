"""What the README has a reader do, done where its own commands leave the reader: in the top directory of a clone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fences
import pytest
from nsbox_testing import needs

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = list(fences.blocks((ROOT / "README.md").read_text()))
PICTURE = ROOT / "docs/pictures/terminal.svg"
# These tests run the first command without its set-up. They don't run the second, which runs them. .ci/readme runs both
# in full, on bare machines. The blocks of Python are run by test_examples.py.
SETUP, TESTS = (block.code for block in BLOCKS if block.language == "sh")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone as the set-up leaves it: the source, unbuilt, and .venv with this interpreter."""
    path = tmp_path / "clone"
    for name in ("nsbox", "csrc", "examples", ".ci"):
        shutil.copytree(ROOT / name, path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (path / ".venv/bin").mkdir(parents=True)
    # A link would not do: Python finds its packages by the path that it was started with.
    for name, command in (("python", f"'{sys.executable}'"), ("nsbox", f"'{sys.executable}' -P -m nsbox")):
        (path / ".venv/bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (path / ".venv/bin" / name).chmod(0o755)
    return path


def sh(command: str, directory: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=directory, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name != "__pycache__")


def test_commands() -> None:
    """There are two, each of one line: one sets up and runs a command in a sandbox, one runs the tests."""
    assert SETUP.startswith("sh .ci/setup && .venv/bin/nsbox run -- ")
    assert TESTS == "sh .ci/setup --tests && .venv/bin/pytest\n"
    assert all(len(command.splitlines()) == 1 for command in (SETUP, TESTS))


def test_length() -> None:
    """It is read in a minute: one screen and a half."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert 90 <= len(lines) <= 135
    assert max(map(len, lines)) <= 130


def test_the_first_command(clone: Path) -> None:
    """What follows the set-up runs a command in a sandbox, of which the clone is the workspace."""
    said = sh(SETUP.partition(" && ")[2], clone)
    assert re.match(rf"uid={os.geteuid()}\b", said) and "\nusr\n" in said and "\nboot\n" not in said


def test_the_example(clone: Path) -> None:
    """The first one is a file; it prints what the README says, and leaves nothing in the clone."""
    block, *others = (block for block in BLOCKS if block.language == "python")
    assert (ROOT / "examples/hello.py").read_text() == block.code
    (command,) = re.findall(r"`(\S+ examples/hello\.py)`", " ".join((ROOT / "README.md").read_text().split()))
    before = tree(clone)
    assert fences.is_like(str(block.expected), sh(command, clone))
    assert tree(clone) == before
    assert len(others) == 2


@pytest.mark.parametrize("number", range(3))
def test_each_example_by_itself(number: int, tmp_path: Path) -> None:
    """A reader copies one of them into a file: it needs nothing of the others."""
    block = [block for block in BLOCKS if block.language == "python"][number]
    (tmp_path / "tried.py").write_text(block.code)
    assert fences.is_like(str(block.expected), sh(f"'{sys.executable}' -W error tried.py", tmp_path))


def test_the_index_has_each_how_to() -> None:
    """docs/README.md links to each page itself, and README.md to the contained CI job."""
    index = (ROOT / "docs/README.md").read_text()
    assert [page.name for page in (ROOT / "docs/howto").glob("*.md") if f"](howto/{page.name}" not in index] == []
    assert "](docs/howto/ci.md)" in (ROOT / "README.md").read_text()


def test_figures() -> None:
    """The table of speed has five rows, and each figure is the one of the reference run."""
    parts = json.loads((ROOT / "benchmarks/results.json").read_text())["parts"]

    def value(part: str, of: str, against: str) -> str:
        rows = parts[part]["comparisons"]
        return f"{next(row['value'] for row in rows if (row['of'], row['against']) == (of, against)):.2f}x"

    table = re.findall(r"^\| .+ \| ([\d.]+x) the (?:time|rate) \|$", (ROOT / "README.md").read_text(), re.M)
    assert table == [
        value("warm", "nsbox warm", "Popen"),
        value("warm", "nsbox warm", "bwrap"),
        value("spawn", "nsbox unshare-all", "bwrap unshare-all"),
        value("rate", "nsbox warm, own net, 8 threads", "bwrap, own net, 8 threads"),
        value("files", "nsbox, inside", "Popen, inside"),
    ]


def test_picture(clone: Path) -> None:
    """The terminal's picture is what its script records, apart from the milliseconds; README.md shows it."""
    directory = clone.parent / "pictures"
    directory.mkdir()
    shutil.copy(PICTURE.with_suffix(".py"), directory)
    sh(f"'{sys.executable}' -W error terminal.py", directory)

    def plain(path: Path) -> str:
        return re.sub(r"[\d.]+ ms", "N ms", path.read_text())

    assert plain(directory / PICTURE.name) == plain(PICTURE)
    assert f"]({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    assert not re.search(r"(?:href|src|url\()", PICTURE.read_text())  # nothing is loaded from elsewhere


@needs.copied_installation()
def test_python_in_the_clone(clone: Path) -> None:
    """There, Python finds the source before the installed package; the error says what to do. Elsewhere it works."""
    command = [str(clone / ".venv/bin/python"), "-B", "-c", "import nsbox; print(nsbox.run(['true']).returncode)"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert "which isn't built" in done.stderr.splitlines()[-1]
    assert f"change the directory, or run 'sh .ci/setup --editable' in {clone}" in done.stderr.splitlines()[-1]
    (clone.parent / "elsewhere").mkdir()
    done = subprocess.run(command, cwd=clone.parent / "elsewhere", capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


# With spaces for dots, so that this file names none of them.
_HOSTS = [
    *(
        "pypi org",
        "pythonhosted org",
        "npmjs org",
        "npmjs com",
        "yarnpkg com",
        "crates io",
        "rubygems org",
        "golang org",
    ),
    *("deb debian org", "ftp debian org", "security debian org", "snapshot debian org", "archive ubuntu com"),
    *("alpinelinux org", "docker io", "quay io", "ghcr io", "pkg dev", "anaconda org", "maven org"),
]


def _files() -> list[Path]:
    """Return the files that are git's, or all that aren't a tool's where this is no clone."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists() and needs.find("git"):
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        return [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    found = []
    for directory, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name in (".ci", ".github") or (name[0] != "." and name != "__pycache__")]
        found += [Path(directory, name) for name in files]
    return found


def test_no_registry_is_named() -> None:
    """No file names the host of a package registry: clients are configured for one, and packages have names."""
    pattern = re.compile("|".join(rf"\b{re.escape(host.replace(' ', '.'))}\b" for host in _HOSTS))
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in _files()
        for host in pattern.findall(path.read_text(errors="replace"))
    ]
    assert len(_files()) > 400
    assert found == []
    assert pattern.search("https://files.python" + "hosted.org/x")  # the control


def test_ci_follows_it() -> None:
    """CI does what the README says on bare machines; no step of it is forgotten."""
    text = (ROOT / ".ci/run").read_text()
    functions = re.findall(r"^([\w.]+)\(\) \{", text, flags=re.M)
    assert {"readme_trixie", "readme_bookworm", "bare_ubuntu_python"} <= {*functions}
    assert [name for name in functions if len(re.findall(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text)) < 2] == []
