"""What a CI job needs here: a package index on this machine, a project, and a hostile package and test that report.

The index serves the real pytest, made from what is installed, and a package `helper`: as a wheel, and as a newer source
archive whose build runs code. That code and the project's test try the same things; each says what worked.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

_PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "typing_extensions")
# What they try. HIDDEN, PROJECT, INDEX_PORT and OTHER_PORT are put in.
_TRIES = """
import os, socket, sys

def _connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 20).close()
        return True
    except OSError:
        return False

def _reads(path):
    try:
        with open(path, "rb") as file:
            return b"TOP-SECRET" in file.read()
    except OSError:
        return False

def _writes(path):
    try:
        with open(path, "a"):
            return True
    except OSError:
        return False

def tries():
    job = os.path.dirname(os.path.dirname(sys.prefix))
    if "TOKEN" not in os.environ:  # it is contained: this is for the record, and asks nobody
        try:
            socket.getaddrinfo("elsewhere.example", 443)
        except OSError:
            pass
    return {
        "variable": "TOP-SECRET" in os.environ.values(),
        "environments": any(_reads(f"/proc/{pid}/environ") for pid in os.listdir("/proc") if pid.isdigit()),
        "file": _reads(HIDDEN),
        "git": _reads(PROJECT + "/.git/config") or _reads(job + "/source/.git/config"),
        "untracked": _reads(PROJECT + "/.env") or _reads(job + "/source/.env"),
        "index": _connects(INDEX_PORT),
        "elsewhere": _connects(OTHER_PORT),
        "project": _writes(PROJECT + "/new"),
        "audit": _writes(job + "/audit/new") or _writes(PROJECT + "/audit/new"),
        "source": _writes(job + "/source/new"),
        "packages": _writes(job + "/packages/new"),
    }
"""
_BACKEND = """
import json, zipfile
TRIES
def get_requires_for_build_wheel(settings=None):
    return []

def build_wheel(directory, settings=None, metadata=None):
    name = "helper-1.1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as file:
        file.writestr("helper.py", f"BUILT = {tries()!r}\\n")
        file.writestr("helper-1.1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: helper\\nVersion: 1.1\\n")
        file.writestr(
            "helper-1.1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        )
        file.writestr("helper-1.1.dist-info/RECORD", "")
    return name
"""
_TEST = """
import json, pathlib
import helper
TRIES
def test_it():
    print("REPORT", json.dumps({"build": helper.BUILT, "test": tries()}))
"""
_PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def make_index(directory: Path, tries: str) -> None:
    """Make what a package index serves, below simple/. tries: as tries() returns it."""
    for name in _PACKAGES:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # what only an older Python needs
            continue
        place = directory / "simple" / name.replace("_", "-")
        place.mkdir(parents=True)
        # A wheel is a distribution's files, without what its installation adds.
        with zipfile.ZipFile(place / f"{name}-{distribution.version}-py3-none-any.whl", "w") as file:
            for path in distribution.files or ():
                if not str(path).startswith("..") and path.suffix != ".pyc":
                    file.write(str(path.locate()), str(path))
    place = directory / "simple/helper"
    place.mkdir()
    with zipfile.ZipFile(place / "helper-1.0-py3-none-any.whl", "w") as file:
        file.writestr("helper.py", "BUILT = None\n")
        file.writestr("helper-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: helper\nVersion: 1.0\n")
        file.writestr("helper-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("helper-1.0.dist-info/RECORD", "")
    with tarfile.open(place / "helper-1.1.tar.gz", "w:gz") as archive:
        for name, text in (
            ("pyproject.toml", _PYPROJECT),
            ("backend.py", _BACKEND.replace("TRIES", tries)),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: helper\nVersion: 1.1\n"),
        ):
            info, data = tarfile.TarInfo(f"helper-1.1/{name}"), text.encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def make_project(directory: Path, tries: str) -> None:
    """Make a project whose .git has a token, as a job's checkout can have."""
    directory.mkdir(parents=True)
    (directory / "requirements.txt").write_text("pytest\nhelper\n")
    (directory / "test_it.py").write_text(_TEST.replace("TRIES", tries))
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -s\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["config", "remote.origin.url", "https://job:TOP-SECRET@host.example/"],
    ):
        subprocess.run(["git", *words], cwd=directory, check=True)
    (directory / ".env").write_text("TOP-SECRET")  # untracked, as what another step has left


def tries(**values: object) -> str:
    """Return the code of tries(). values: HIDDEN and PROJECT, paths; INDEX_PORT and OTHER_PORT."""
    text = _TRIES
    for name, value in values.items():
        text = text.replace(name, repr(value))
    return text


def report(output: str) -> dict[str, dict[str, bool] | None]:
    """Return what the test has printed: what worked in the build of the package, None without one, and in the test."""
    (line,) = (line for line in output.splitlines() if "REPORT " in line)
    found: dict[str, dict[str, bool] | None] = json.loads(line.partition("REPORT ")[2])
    return found


def uncontained(directory: Path) -> Path:
    """Make a directory with a program `nsbox` that contains nothing: for controls."""
    directory.mkdir()
    program = directory / "nsbox"
    program.write_text(f"#!{sys.executable} -P\n{_UNCONTAINED}")
    program.chmod(0o755)
    return directory


_UNCONTAINED = """
import os, sys
words, place = sys.argv[2:], "."
while words:
    word = words.pop(0)
    if word == "-w":
        place = words.pop(0)
    if word in ("--", "-c"):
        break
os.chdir(place)
words = ["bash", "-c", *words] if word == "-c" else words
os.execvp(words[0], words)
"""
