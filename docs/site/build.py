"""Builds the site: python docs/site/build.py DIRECTORY, which gets source/ (what Sphinx reads) and html/ (the site).

Everything is strict: a page in no section, a link or an anchor that leads nowhere, a warning of Sphinx, a resource of
another host each end the build with a message.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

from api import Api
from pages import HERE, ROOT, Page, Section, Tree, Wrong, index
from sphinx.cmd.build import build_main

sys.path.insert(0, str(HERE))

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def landing(tree: Tree) -> str:
    """Return the page that the site opens with: a template around the example that README has too."""
    text = (HERE / "templates/landing.md.in").read_text()
    text = text.replace("@EXAMPLE@", (ROOT / "examples/hello.py").read_text().rstrip())
    toc = "\n".join(f"{section.name}/index" for section in tree.sections)
    return f"{text}\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n"


def prepare(source: Path) -> tuple[Tree, dict[str, str]]:
    """Write what Sphinx reads; return the pages, and the text of each as plain Markdown."""
    tree = Tree()
    plain = {page.target: page.text for page in tree.pages.values()}
    api = Section("reference/api", "Python API", "Generated from the docstrings of this version's source.")
    (reference,) = (section for section in tree.sections if section.name == "reference")
    for page, text in Api().pages():
        tree.add(page)
        plain[page.target] = text
    api.groups = [("", [target for target in tree.pages if target.startswith(f"{api.name}/")])]
    for section in (api, *tree.sections):
        if section is reference:
            section.groups[0][1].append(f"{api.name}/index.md")
        tree.add(index(section, tree))
    tree.write(source)
    (source / "index.md").write_text(landing(tree))
    return tree, plain


# ---- for programs that read: Markdown beside each page, llms.txt


def _entry(page: Page) -> str:
    return f"- [{page.title}]({page.target})" + (f": {page.summary}" if page.summary else "")


def copies(tree: Tree, plain: dict[str, str], html: Path) -> None:
    """Write each page as Markdown beside it, llms.txt with a line for each, and llms-full.txt with all."""
    for target, text in plain.items():
        path = html / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = [f"# {PROJECT['name']}", "", f"> {PROJECT['description']}.", ""]
    lines += [
        "Each page of this site is also there as Markdown, with the ending .md. llms-full.txt has all of them.",
        "",
    ]
    full = []
    for section in tree.sections:
        targets = [target for target in section.targets if target in plain]
        if section.name == "reference":
            targets += [target for target in plain if target.startswith("reference/api/")]
        lines += [f"## {section.title}", "", *(_entry(tree.pages[target]) for target in targets), ""]
        full += [f"<!-- {target} -->\n\n{plain[target].strip()}\n" for target in targets]
    files = [page for target, page in tree.pages.items() if target.startswith("files/")]
    lines += ["## Optional", "", *(_entry(page) for page in files), ""]
    (html / "llms.txt").write_text("\n".join(lines))
    (html / "llms-full.txt").write_text("\n".join(full))
    _lists(tree, html)
    for place, path in tree.files.items():
        (html / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, html / place)


def _lists(tree: Tree, html: Path) -> None:
    """Write the landing page and the page of each section as Markdown: what is in them is their lists."""
    start = [f"# {PROJECT['name']}", "", f"{PROJECT['description']}.", ""]
    start += [f"- [{section.title}]({section.name}/index.md)" for section in tree.sections]
    (html / "index.md").write_text("\n".join([*start, ""]))
    for target, page in tree.pages.items():
        if target.endswith("/index.md"):
            (html / target).write_text(re.sub(r"\n```\{toctree\}.*?\n```\n", "", page.text, flags=re.S))


def main(directory: Path) -> int:
    """Build it, and check what came out."""
    import check

    source, html = directory / "source", directory / "html"
    try:
        tree, plain = prepare(source)
    except Wrong as e:
        print(f"site: {e}", file=sys.stderr)
        return 1
    shutil.rmtree(html, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-j", "auto", "-b", "html", "-c", str(HERE), "-d", str(directory / "trees")]
    if build_main([*options, str(source), str(html)]):
        return 1
    copies(tree, plain, html)
    problems = check.problems(html)
    print(*problems, sep="\n", end="\n" * bool(problems), file=sys.stderr)
    if not problems:
        print(f"site: {len([*html.rglob('*.html')])} pages in {html}")
    return bool(problems)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
