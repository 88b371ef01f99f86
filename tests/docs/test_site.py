"""The scripts that make the documentation site, as far as they need no generator; .ci/site does the rest."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs/site"
MODULES = ("check", "docstrings", "pages", "versions")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The scripts, as modules; their names are too common to stay in sys.modules."""
    monkeypatch.syspath_prepend(str(SITE))
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def copy(site: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of docs/ and of what its links lead to, from which the pages are read instead."""
    root = tmp_path / "copy"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "build", "nsbox", "csrc", "__pycache__"))
    for name in (".github", ".ci"):
        shutil.copytree(ROOT / name, root / name)
    for name, value in {"ROOT": root, "DOCS": root / "docs", "HERE": root / "docs/site"}.items():
        monkeypatch.setattr(site.pages, name, value)
    return root / "docs"


def test_each_page_is_in_one_section(site: SimpleNamespace) -> None:
    """All pages of docs/ are in the navigation, each once, and all links of theirs lead somewhere."""
    tree = site.pages.Tree()
    targets = [target for section in tree.sections for target in section.targets]
    own = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert len(own) > 40
    assert sorted(own) == sorted(target for target in targets if not target.startswith("project/"))
    assert len(targets) == len({*targets})


def test_a_new_page_is_picked_up(site: SimpleNamespace, copy: Path) -> None:
    """A page in a directory that a section has needs no line anywhere: it stands in the last group."""
    (copy / "howto/zebra.md").write_text("# Zebras\n\nStripes.\n")
    (howto,) = (section for section in site.pages.sections() if section.name == "howto")
    assert howto.groups[-1][1][-1] == "howto/zebra.md"


def test_a_page_in_no_section(site: SimpleNamespace, copy: Path) -> None:
    """A page in another directory ends the build, and so does a group that names what isn't there."""
    (copy / "zoo").mkdir()
    (copy / "zoo/zebra.md").write_text("# Zebras\n")
    with pytest.raises(site.pages.Wrong, match=r"no section .* has: zoo/zebra\.md"):
        site.pages.sections()
    (copy / "zoo/zebra.md").unlink()
    (copy / "howto/judge.md").unlink()
    with pytest.raises(site.pages.Wrong, match=r"names what isn't there: judge\.md"):
        site.pages.sections()


def test_links_are_turned(site: SimpleNamespace, copy: Path) -> None:
    """A link to a file of the repository leads to a page that shows it; what leads nowhere ends the build."""
    page = copy / "howto/zebra.md"
    page.write_text(
        "# Z\n\n[a](../../examples/judge.py) [b](errors.md#x) [c](../README.md#in-frameworks)\n\n```text\n[d](e)\n```\n"
    )
    tree = site.pages.Tree()
    assert tree.pages["howto/zebra.md"].text.splitlines()[2:] == [
        "[a](../files/examples/judge.py.md) [b](errors.md#x) [c](../integrations/index.md)",
        *("", "```text", "[d](e)", "```"),
    ]
    assert "```python\n" in tree.pages["files/examples/judge.py.md"].text
    page.write_text("# Z\n\n[a](nowhere.md)\n")
    with pytest.raises(site.pages.Wrong, match=r"docs/howto/zebra\.md: the link nowhere\.md leads to no file"):
        site.pages.Tree()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<p id="a"><a href="#a"></a><a href="https://api.example/">a link to follow</a>', None),
        ('<a href="b.html">', "no such file"),
        ('<a href="#b">', "no such heading"),
        ('<a href="../../x.html">', "is outside of the site"),
        ('<script src="https://api.example/x.js">', "fetches https://api.example/x.js"),
        ('<img src="//api.example/x.png">', "fetches //api.example/x.png"),
        ('<link rel="preconnect" href="https://api.example">', "fetches https://api.example"),
        ("<style>@import 'https://api.example/x.css'</style>", "fetches https://api.example/x.css"),
        ('<p style="background: url(https://api.example/x.png)">', "fetches https://api.example/x.png"),
    ],
)
def test_what_is_wrong_with_a_page(site: SimpleNamespace, tmp_path: Path, text: str, problem: str | None) -> None:
    """A link that leads nowhere is found, and whatever would be fetched from another host."""
    (tmp_path / "a.html").write_text(text)
    found = site.check.problems(tmp_path)
    assert [line.endswith(str(problem)) for line in found] == [True] * (problem is not None), found


def test_what_is_wrong_with_styles_and_scripts(site: SimpleNamespace, tmp_path: Path) -> None:
    """Neither may fetch from another host; an empty site is no site."""
    assert site.check.problems(tmp_path) == ["no page was built"]
    (tmp_path / "a.html").write_text("")
    (tmp_path / "a.css").write_text("p { src: url('https://api.example/font.woff2') }")
    (tmp_path / "a.js").write_text("fetch('https://api.example/count')")
    assert site.check.problems(tmp_path) == [
        "a.css: fetches https://api.example/font.woff2",
        "a.js: fetches from another host",
    ]


def test_docstrings(site: SimpleNamespace) -> None:
    """Parameters become a list, code a block, names code, and what Markdown would take for its own is escaped."""
    text = """Return a *thing*, by run().

    policy: a Policy; else
        PolicyError, with check=True.
    a, b: numbers.

        nsbox.run(["true"])

    Raises <nothing>."""
    first, _, rest = text.partition("\n")
    docstring = first + "\n" + re.sub("^    ", "", rest, flags=re.M)
    assert site.docstrings.markdown(docstring).splitlines() == [
        r"Return a \*thing\*, by `run()`.",
        "",
        "- **`policy`**: a Policy; else `PolicyError`, with `check=True`.",
        "- **`a`**, **`b`**: numbers.",
        "",
        *("```python", 'nsbox.run(["true"])', "```", ""),
        r"Raises \<nothing\>.",
    ]


def test_nothing_to_describe(site: SimpleNamespace) -> None:
    """No docstring is no text, not an empty block; and one that begins with a name and a colon begins with a sentence."""
    assert site.docstrings.markdown("") == site.docstrings.markdown("\n  \n") == ""
    assert site.docstrings.markdown("nsbox: contained.\n\na: b.") == "nsbox: contained.\n\n- **`a`**: b."


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (
            "```sh\nrun\n```\n\nOne [thing](a.md): two\nlines. nsbox is next. Third.",
            "One thing: two lines. nsbox is next.",
        ),
        (f"A {'long ' * 20}sentence. Second.", f"A {'long ' * 20}sentence."),
        ("    indented code\n\n![picture](a.svg)\n\n| a |\n|---|\n\nShort. It prints:", "Short."),
        ("It prints:\n\n```text\nA\n```", "It prints"),
        ("## Heading", ""),
    ],
)
def test_summaries(site: SimpleNamespace, text: str, summary: str) -> None:
    """A summary is the first sentence of prose, and the second one if that says little and leads to no block."""
    assert site.pages.Page(None, "a.md", f"# T\n\n{text}\n").summary == summary


def test_each_page_has_a_summary(site: SimpleNamespace) -> None:
    """llms.txt says of each page what it is: also of files that pages lead to, except for JSON, which has no comments."""
    pages = site.pages.Tree().pages.values()
    assert [page.target for page in pages if len(page.summary) < 30 and not page.target.endswith(".json.md")] == []


def test_published_versions(site: SimpleNamespace) -> None:
    """The last patch of each of the last five minor versions, the newest first; no pre-release."""
    tags = ["v0.1.0", "v0.9.0", "v0.10.0", "v0.10.2", "v0.2.0", "v0.3.0", "v0.4.0", "v1.0.0rc1", "v0.10.1"]
    assert site.versions.published(tags) == ["v0.10.2", "v0.9.0", "v0.4.0", "v0.3.0", "v0.2.0"]


def test_requirements() -> None:
    """What the extra docs names is pinned, each package by its hashes."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    pinned = (SITE / "requirements.txt").read_text()
    for name in extra:
        assert re.search(rf"^{re.match('[a-z-]+', name)[0]}==", pinned, re.M), name  # type: ignore[index]
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", pinned.strip()))


def test_ci_opens_it() -> None:
    """CI builds and opens the site, on GitHub's machines too, and nothing skips it."""
    assert ".ci/site" in (ROOT / ".ci/run").read_text()
    assert "- run: .ci/site build/site\n" in (ROOT / ".github/workflows/site.yml").read_text()
    assert "77" not in (ROOT / ".ci/site").read_text() + (SITE / "browse.py").read_text()
