"""What a release is checked by: release.py check TAG. It says what doesn't agree, and ends with status 1.

`release.py description` prints README.md for a page elsewhere, such as PyPI's: relative links lead nowhere there. They
become absolute, to the tag's files, by the project's address in pyproject.toml. Without one, only their texts stay.

The version is written in pyproject.toml. meson.build, nsbox/__init__.py and CITATION.cff say it too. So do a heading of
CHANGELOG.md, and the tag.
"""

import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# A link or a picture of Markdown; what is relative has no scheme, and is no anchor of the page itself.
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def project(root: Path) -> dict[str, Any]:
    """Return the table [project] of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def description(root: Path = ROOT) -> str:
    """Return README.md with links that work anywhere."""
    table = project(root)
    address = table.get("urls", {}).get("Source", "").rstrip("/")

    def absolute(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if not address:
            return "" if picture else text
        kind = "raw" if picture else "blob"
        return f"{picture}[{text}]({address}/{kind}/v{table['version']}/{posixpath.normpath(target)})"

    # Code stays as it is.
    parts = re.split(r"(^```.*?^```$)", (root / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    text = "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)
    return re.sub(r"\n{3,}", "\n\n", text)


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps this tag from being a release."""
    table = project(root)
    version = table["version"]
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
    if not table.get("urls", {}).get("Source", "").startswith("https://"):
        found.append(
            "pyproject.toml has no address: add [project.urls] with Source = 'https://...', the public repository"
        )
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["description"]:
        sys.stdout.write(description())
        sys.exit()
    if sys.argv[1:2] != ["check"] or len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} check TAG | description")
    sys.exit("\n".join(problems(sys.argv[2])) or None)
