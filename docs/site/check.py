"""What must hold for the built site: links and anchors lead somewhere, and nothing is fetched from another host."""

from __future__ import annotations

import posixpath
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a page fetches something, by element. A link in <a> is followed only when it's clicked.
_FETCHED = {"src", "srcset", "data", "poster", "action", "formaction", "background"}
_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "manifest", "prefetch"}
_URL_IN_CSS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
_FETCH_IN_JS = re.compile(r"""(?:fetch|importScripts|import)\(\s*["'`](https?:)?//""")


class _Reader(HTMLParser):
    """Collects a page's ids, links and resources."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        self.fetched += [value for name, value in given.items() if name in _FETCHED and value]
        self.fetched += _css(given.get("style", ""))
        if tag == "link" and {*given.get("rel", "").split()} & _RELATIONS:
            self.fetched.append(given.get("href", ""))
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.fetched += _css(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


def _css(text: str) -> list[str]:
    return [a or b for a, b in _URL_IN_CSS.findall(text)]


@cache
def _read(path: Path) -> _Reader:
    reader = _Reader()
    reader.feed(path.read_text())
    return reader


def _is_elsewhere(url: str) -> bool:
    return url.startswith("//") or urlsplit(url).scheme not in ("", "data")


def problems(html: Path) -> list[str]:
    """Return what is wrong, a line each."""
    found = []
    pages = sorted(
        path for path in html.rglob("*.html") if "_static" not in path.parts
    )  # the theme has templates there
    for page in pages:
        name, reader = page.relative_to(html).as_posix(), _read(page)
        found += [f"{name}: fetches {url}" for url in reader.fetched if _is_elsewhere(url)]
        for url in {*reader.links, *(url for url in reader.fetched if not _is_elsewhere(url))}:
            if problem := _broken(html, name, url):
                found.append(f"{name}: {url}: {problem}")
    for path in html.rglob("*.css"):
        found += [f"{path.relative_to(html)}: fetches {url}" for url in _css(path.read_text()) if _is_elsewhere(url)]
    for path in html.rglob("*.js"):
        if _FETCH_IN_JS.search(path.read_text()):
            found.append(f"{path.relative_to(html)}: fetches from another host")
    for path in html.rglob("*.md"):
        name = path.relative_to(html).as_posix()
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(), flags=re.M | re.S)
        for url in re.findall(r"\]\(([^)\s]+)\)", text):
            if problem := _broken(html, name, url, anchors=False):
                found.append(f"{name}: {url}: {problem}")
    return found if pages else ["no page was built"]


def _broken(html: Path, page: str, url: str, *, anchors: bool = True) -> str | None:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc or url.startswith("../versions/"):
        return None
    place = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path))) if parts.path else page
    if place.startswith(".."):
        return "is outside of the site"
    path = html / place
    if path.is_dir():
        path /= "index.html"
    if not path.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchors and anchor and path.suffix == ".html" and anchor not in _read(path).ids:
        return "no such heading"
    return None
