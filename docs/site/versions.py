"""Builds the site of each published version: python docs/site/versions.py DIRECTORY [TAG...]

Each tag's own docs/site builds it, with its own pinned requirements, into DIRECTORY/html/VERSION. Without tags: the
newest of each minor version, the last five of them, that have a site. DIRECTORY/html also gets versions.js, which the
pages' choice of a version reads, `latest`, and an index.html that leads there. DIRECTORY/html is what is published.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MOST = 5


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout


def _number(tag: str) -> tuple[int, ...]:
    return tuple(int(part) for part in tag.removeprefix("v").split("."))


def published(tags: list[str]) -> list[str]:
    """Return, newest first, the last patch of each of the last minor versions; what is no release's tag is left out."""
    newest: dict[tuple[int, ...], str] = {}
    for tag in sorted((tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)), key=_number):
        newest[_number(tag)[:2]] = tag
    return [*newest.values()][::-1][:_MOST]


def _has_site(tag: str) -> bool:
    return bool(_git("ls-tree", "--name-only", tag, ".ci/site"))


def _build(tag: str, directory: Path) -> None:
    """Build one version by its own script, in a tree of its own."""
    tree = directory / "trees" / tag
    _git("worktree", "add", "--detach", "--force", str(tree), tag)
    try:
        environ = os.environ | {"NSBOX_SITE_VERSIONS": "1"}
        subprocess.run([tree / ".ci/site", "--build", directory / "builds" / tag], env=environ, check=True)
    finally:
        _git("worktree", "remove", "--force", str(tree))
    shutil.copytree(directory / "builds" / tag / "html", directory / "html" / tag.removeprefix("v"))


def main(directory: Path, tags: list[str]) -> int:
    """Build them all. Returns 1 if there is none."""
    tags = tags or [tag for tag in published(_git("tag", "--list", "v*").split()) if _has_site(tag)]
    if not tags:
        print("versions: no tag has a site", file=sys.stderr)
        return 1
    html = directory / "html"
    shutil.rmtree(html, ignore_errors=True)
    html.mkdir(parents=True)
    for tag in tags:
        _build(tag, directory)
    names = [tag.removeprefix("v") for tag in tags]
    shutil.copytree(html / names[0], html / "latest")
    for name in ("llms.txt", "llms-full.txt"):
        text = (html / "latest" / name).read_text()
        (html / name).write_text(re.sub(r"\]\((?!#|[a-z]+:)", "](latest/", text) if name == "llms.txt" else text)
    (html / "versions.js").write_text(f"window.nsboxVersions = {json.dumps(names)};\n")
    (html / "index.html").write_text(
        '<!doctype html>\n<meta charset="utf-8">\n<title>nsbox</title>\n'
        '<meta http-equiv="refresh" content="0; url=latest/index.html">\n<a href="latest/index.html">nsbox</a>\n'
    )
    (html / ".nojekyll").touch()  # else GitHub leaves out what begins with _
    print(f"versions: {', '.join(names)} in {html}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
