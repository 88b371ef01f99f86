"""What a release is checked by: release.py check TAG. It says what doesn't agree, and ends with status 1.

The version is written in pyproject.toml. meson.build, nsbox/__init__.py and CITATION.cff say it too. So do a heading of
CHANGELOG.md, and the tag.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps this tag from being a release."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    found = [] if tag == f"v{version}" else [f"the tag is {tag}, and pyproject.toml says {version}: tag v{version}"]
    for name, pattern in {
        "nsbox/__init__.py": r'^__version__ = "(.*)"$',
        "meson.build": r"^  version: '(.*)',$",
        "CITATION.cff": r"^version: (.*)$",
    }.items():
        other = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        if other != [version]:
            found.append(f"{name} says {', '.join(other) or 'no version'}, and pyproject.toml says {version}")
    text = (root / "CHANGELOG.md").read_text()
    sections = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    heading = re.compile(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", re.MULTILINE)
    if not heading.search(text) or not sections.get(version, "").strip():
        found.append(f"CHANGELOG.md has no section '## {version} (YEAR-MONTH-DAY)' with something in it")
    if sections.get("Unreleased", "").strip():
        found.append("CHANGELOG.md has something under 'Unreleased': move it to the version's section")
    return found


if __name__ == "__main__":
    if sys.argv[1:2] != ["check"] or len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} check TAG")
    sys.exit("\n".join(problems(sys.argv[2])) or None)
