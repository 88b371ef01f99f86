"""What a release is checked by (.ci/release.py), and that the version is the same wherever it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nsbox

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NAMES = ("pyproject.toml", "meson.build", "nsbox/__init__.py", "CITATION.cff")


def _check(root: Path, tag: str) -> list[str]:
    command = [sys.executable, str(root / ".ci/release.py"), "check", tag]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (done.stderr == "")
    return done.stderr.splitlines()


def _add_address(root: Path) -> None:
    path = root / "pyproject.toml"
    if "[project.urls]" not in path.read_text():
        path.write_text(f'{path.read_text()}\n[project.urls]\nSource = "https://code.example/nsbox"\n')


def _description(root: Path) -> str:
    command = [sys.executable, str(root / ".ci/release.py"), "description"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The files that say the version, with a changelog as at a release."""
    for name in (*NAMES, ".ci/release.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    _add_address(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n## {VERSION} (2026-12-31)\n\n- All.\n")
    return tmp_path


def test_one_version(release: Path) -> None:
    """All files say the same version, and so does the package; that is a release."""
    assert nsbox.__version__ == VERSION
    assert _check(release, f"v{VERSION}") == []


@pytest.mark.parametrize("name", NAMES)
def test_another_version(name: str, release: Path) -> None:
    """A file that was forgotten is named."""
    path = release / name
    path.write_text(path.read_text().replace(VERSION, "99.1"))
    assert any(name in line and "99.1" in line for line in _check(release, f"v{VERSION}"))


def test_another_tag(release: Path) -> None:
    """The tag is the version's."""
    assert _check(release, "v98") == [f"the tag is v98, and pyproject.toml says {VERSION}: tag v{VERSION}"]


@pytest.mark.parametrize(
    "text",
    ["## Unreleased\n\n- All.\n", f"## {VERSION} (2026-12-31)\n", f"## {VERSION}\n\n- All.\n"],
    ids=["unreleased", "empty", "no date"],
)
def test_changelog(text: str, release: Path) -> None:
    """The changelog has a section of that version, with a date and a text."""
    (release / "CHANGELOG.md").write_text(f"# Changelog\n\n{text}")
    assert any(line.startswith("CHANGELOG.md has no section") for line in _check(release, f"v{VERSION}"))


def test_no_address(release: Path) -> None:
    """Nothing is released of which nobody could find the source."""
    path = release / "pyproject.toml"
    path.write_text(path.read_text().replace("[project.urls]", "[tool.other]"))
    assert [line for line in _check(release, f"v{VERSION}") if "no address" in line]


README = """# nsbox

![A terminal](docs/pictures/terminal.svg)

The [tutorial](docs/tutorial.md#first), the [law](https://law.example), [below](#speed) and [links
over lines](./docs/x.md).

```python
print([1](docs/tutorial.md))
```
"""


def test_description(release: Path) -> None:
    """On PyPI's page the README's links lead to this version's files; code and other links stay as they are."""
    (release / "README.md").write_text(README)
    files = f"https://code.example/nsbox/blob/v{VERSION}"
    assert _description(release) == README.replace(
        "(docs/pictures", f"(https://code.example/nsbox/raw/v{VERSION}/docs/pictures"
    ).replace("[tutorial](docs", f"[tutorial]({files}/docs").replace("(./docs", f"({files}/docs")


def test_description_without_address(release: Path) -> None:
    """Without a public repository the texts of relative links stay, and the picture goes."""
    (release / "README.md").write_text(README)
    path = release / "pyproject.toml"
    path.write_text(path.read_text().replace("[project.urls]", "[tool.other]"))
    text = _description(release)
    assert "\n\nThe tutorial, the [law](https://law.example), [below](#speed) and links\nover lines.\n" in text
    assert "terminal" not in text and "print([1](docs/tutorial.md))" in text


def test_description_of_this_readme() -> None:
    """Nothing relative is left in the README's own description."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", _description(ROOT))
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", prose)
    assert prose.startswith("# nsbox\n")
