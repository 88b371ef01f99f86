"""What is said where nsbox can't be built or imported: one line each, which docs/howto/install.md lists.

.ci/installs tries the same with pip, on bare machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox

ROOT = Path(__file__).resolve().parents[2]


def test_no_compiler(tmp_path: Path) -> None:
    """Meson names what to install, or a wheel, in one line; pip shows it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ninja").symlink_to("/bin/true")
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS", "LDFLAGS")}
    env["PATH"] = str(tmp_path / "bin")
    command = [sys.executable, "-m", "mesonbuild.mesonmain", "setup", str(tmp_path / "build"), str(ROOT)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (line,) = (line for line in done.stdout.splitlines() if "ERROR" in line)
    assert "there is no C compiler" in line
    assert all(word in line for word in ("gcc libc6-dev python3-dev", "pip install --only-binary nsbox nsbox"))


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 10, 13)])
def test_old_python(version: tuple[int, ...], tmp_path: Path) -> None:
    """An older Python that finds nsbox says which it is, and which is needed; control: this one imports it."""
    place = Path(nsbox.__file__).parents[1]
    text = ".".join(map(str, version))
    old = f"sys.version_info = {(*version, 'final', 0)}; sys.version = '{text} (main)'"
    for line, status in ((old, 1), ("pass", 0)):
        code = f"import sys; sys.path.insert(0, {str(place)!r}); {line}; import nsbox"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        if status:
            told = f"ImportError: nsbox needs Python 3.11 or later, and this is {text}: use a newer one"
            assert done.stderr.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("there is no C compiler", "meson.build"),
        ("Python's headers are missing", "meson.build"),
        ("nsbox has no extension for free-threaded Python", "meson.build"),
        ("nsbox needs Python 3.11 or later", "nsbox/__init__.py"),
        ("there is no C core for", "nsbox/_core/abi.py"),
    ],
)
def test_the_page_has_them(words: str, file: str) -> None:
    """The page lists each message by the words that the source has."""
    assert words in (ROOT / "docs/howto/install.md").read_text()
    assert words in (ROOT / file).read_text()
