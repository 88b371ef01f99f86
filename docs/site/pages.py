"""The pages of the site as Sphinx reads them: those of docs/ with their links turned, and the index of each section.

Pages are plain Markdown, which is read on a code host too. What a link there leads to may be no page of the site: then
a page is made that shows the file.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
INDEX = "docs/README.md"  # on a code host; the site has its own, and one for each section
_SECTIONS = {"how-to": "howto/index.md", "in-frameworks": "integrations/index.md"}  # by its headings

_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
_NOTE = re.compile(r"^<!-- (?:not run|needs): .+? -->\n+", re.M)
_LITTLE = 90  # characters of a sentence
_PICTURES = (".svg", ".png", ".gif", ".webp", ".cast")
_LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".sh": "sh",
    ".c": "c",
    ".json": "json",
}


class Wrong(Exception):
    """What a writer of a page has to mend."""


@dataclass
class Page:
    """One page: where it is in the repository and in the site, its title and its text with links of the site."""

    source: str | None
    target: str
    text: str
    title: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        """Find the title, and a summary unless there is one."""
        found = re.search(r"^# (.+)$", self.text, re.M)
        if found is None:
            raise Wrong(f"{self.source or self.target} has no title: begin it with a line '# ...'")
        self.title = found[1]
        self.summary = self.summary or _summary(self.text[found.end() :])


@dataclass
class Section:
    """A section of the navigation: groups of pages, each with a title; the first group of all may have none."""

    name: str
    title: str
    intro: str
    groups: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def targets(self) -> list[str]:
        """All pages, in order."""
        return [target for _, targets in self.groups for target in targets]


def _summary(text: str) -> str:
    """Return the first sentence of prose, and the second one if the first says little."""
    for paragraph in re.split(r"\n\s*\n", _FENCE.sub("", text).strip("\n")):
        if re.match(r"[A-Za-z`*\[]", paragraph) and not paragraph.startswith("Contents:"):
            line = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(paragraph.split()))
            first, *others = re.split(r"(?<=[.!?]) (?=[A-Z`]|nsbox\b)", line)
            second = [one for one in others[: len(first) < _LITTLE] if not one.endswith(":")]  # it leads to a block
            return " ".join([first, *second]).rstrip(":")
    return ""


def _file_summary(text: str, suffix: str) -> str:
    """Return the same of a file: of the docstring of Python, and else of the comment at the top."""
    if suffix == ".py":
        return _summary(ast.get_docstring(ast.parse(text)) or "")
    lines = text.removeprefix("#!/bin/sh\n").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return _summary("\n".join(line.removeprefix("#").removeprefix(" ") for line in comment))


# ---- sections


def sections() -> list[Section]:
    """Return the sections with all pages of docs/. Raises Wrong if a page is in none, or if a named one isn't there."""
    rows = tomllib.loads((HERE / "sections.toml").read_text())["section"]
    own = HERE.relative_to(DOCS).parts[0]
    left = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] != own}
    left.remove("README.md")
    found = []
    for row in rows:
        here = [*row.get("pages", ())]
        here += sorted(page for page in left if os.path.dirname(page) in row.get("directories", ()))
        if missing := [page for page in here if page not in left]:
            raise Wrong(f"sections.toml: section {row['name']} names what isn't in docs/: {', '.join(missing)}")
        left -= {*here}
        targets = here + [f"project/{name.lower()}" for name in row.get("root", ()) if (ROOT / name).exists()]
        found.append(Section(row["name"], row["title"], row.get("intro", ""), _grouped(row, targets)))
    if left:
        raise Wrong(f"no section of docs/site/sections.toml has: {', '.join(sorted(left))}; name their directory there")
    return found


def _grouped(row: dict, targets: list[str]) -> list[tuple[str, list[str]]]:
    if "group" not in row:
        return [("", targets)]
    groups = []
    by_name = {os.path.basename(target): target for target in targets}
    for group in row["group"]:
        if missing := [name for name in group["pages"] if name not in by_name]:
            raise Wrong(f"sections.toml: group {group['title']!r} names what isn't there: {', '.join(missing)}")
        groups.append((group["title"], [by_name.pop(name) for name in group["pages"]]))
    groups[-1][1].extend(by_name.values())
    return groups


# ---- pages, and what their links lead to


class Tree:
    """The pages of the site, by where they are in it."""

    def __init__(self) -> None:
        """Read all pages of docs/ and those of the repository's top that have a section."""
        self.sections = sections()
        self.pages: dict[str, Page] = {}
        self.files: dict[str, Path] = {}
        self._places = {INDEX: "index.md", "README.md": "index.md"}
        for section in self.sections:
            for target in section.targets:
                self._places[self._origin(target)] = target
        for source, target in [*self._places.items()]:
            if target != "index.md":
                self.add(Page(source, target, self._read(source, target)))

    def add(self, page: Page) -> None:
        """Add a page that a generator has made, or one of the repository."""
        if page.target in self.pages:
            raise Wrong(f"two pages are to be {page.target}")
        self.pages[page.target] = page

    @staticmethod
    def _origin(target: str) -> str:
        directory, name = os.path.split(target)
        return name.upper().replace(".MD", ".md") if directory == "project" else f"docs/{target}"

    def _read(self, source: str, target: str) -> str:
        text = _NOTE.sub("", (ROOT / source).read_text())
        parts = _FENCE.split(text)
        return "".join(part if i % 2 else self._turned(part, source, target) for i, part in enumerate(parts))

    def _turned(self, text: str, source: str, target: str) -> str:
        """Return the text with each relative link as it is from the page's place in the site."""

        def turn(match: re.Match[str]) -> str:
            link = match[2]
            if re.match(r"[a-z]+:|#", link):
                return match[0]
            file, _, anchor = link.partition("#")
            origin = os.path.normpath(os.path.join(os.path.dirname(source), file))
            place = self._place(origin, source, link)
            if place == "index.md":  # which has none of the headings of these files
                place, anchor = _SECTIONS.get(anchor, place), ""
            place = os.path.relpath(place, os.path.dirname(target) or ".")
            return f"{match[1]}{place}{'#' * bool(anchor)}{anchor}{match[3]}"

        return _LINK.sub(turn, text)

    def _place(self, origin: str, source: str, link: str) -> str:
        path = ROOT / origin
        if path.is_dir() and (path / "README.md").exists():
            return self._place(f"{origin}/README.md", source, link)
        if origin in self._places:
            return self._places[origin]
        if origin.startswith("..") or not path.is_file():
            raise Wrong(f"{source}: the link {link} leads to no file")
        if path.suffix in _PICTURES:
            place = self._places[origin] = origin.removeprefix("docs/")
            self.files[place] = path
            return place
        stem = origin.removesuffix(".md").replace("/.", "/").lstrip(".")
        place = self._places[origin] = f"files/{stem}.md"
        summary = "" if path.suffix == ".md" else _file_summary(path.read_text(), path.suffix)
        self.add(Page(origin, place, self._shown(origin, place), summary=summary))
        return place

    def _shown(self, origin: str, place: str) -> str:
        """Return a page that shows a file, or is it."""
        if origin.endswith(".md"):
            return self._read(origin, place)
        text = (ROOT / origin).read_text()
        fence = "`" * (3 + ("```" in text))
        return f"# {origin}\n\n{fence}{_LANGUAGES.get(Path(origin).suffix, 'text')}\n{text}{fence}\n"

    # ---- to disk

    def write(self, directory: Path) -> None:
        """Write what Sphinx reads: pages, pictures, the index of each section and the landing page's."""
        shutil.rmtree(directory, ignore_errors=True)
        for place, path in self.files.items():
            (directory / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / place)
        for page in self.pages.values():
            path = directory / page.target
            path.parent.mkdir(parents=True, exist_ok=True)
            orphan = "---\norphan: true\n---\n\n" if page.target.startswith("files/") else ""
            path.write_text(orphan + page.text)


def index(section: Section, tree: Tree) -> Page:
    """Return the page of a section: its groups with a line for each page, which is the navigation too."""
    lines = [f"# {section.title}", "", section.intro, ""]
    for title, targets in section.groups:
        lines += [f"## {title}", ""] * bool(title)
        for target in targets:
            page = tree.pages[target]
            link = os.path.relpath(target, section.name)
            lines.append(f"- [{page.title}]({link})" + (f": {page.summary}" if page.summary else ""))
        lines.append("")
    for title, targets in section.groups:
        lines += ["```{toctree}", ":hidden:", *([f":caption: {title}"] if title else []), ""]
        lines += [os.path.relpath(target, section.name).removesuffix(".md") for target in targets] + ["```", ""]
    return Page(None, f"{section.name}/index.md", "\n".join(lines))
