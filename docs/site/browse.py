"""Opens the built site as a reader does: python docs/site/browse.py HTML [PICTURES]

A headless Chromium opens the landing page, a how-to, an API page and more, follows a link, and searches. It does so in
a wide window from a server, and as a phone, in the dark, from the files on disk. Each message on the console, each
failed or outside request and each page that is wider than its window is an error. Two screenshots are left in
PICTURES, beside HTML unless it's given, and one of another page for each.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SIZES = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}


class Visit:
    """One window on the site, and what went wrong in it."""

    def __init__(self, browser: Browser, base: str, size: str, scheme: str) -> None:
        """Open a window on the site below a URL that ends with a slash."""
        context = browser.new_context(viewport=_SIZES[size], color_scheme=scheme, has_touch=size == "phone")
        self.base, self.name, self.problems = base, f"{size}, {scheme}", []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on(
            "console", lambda message: self._note(f"console: {message.text}", message.type in ("error", "warning"))
        )
        self.page.on("pageerror", lambda error: self._note(f"script: {error}"))
        self.page.on("request", lambda request: self._note(f"outside: {request.url}", not self._is_ours(request.url)))
        # What a page still fetches when the reader leaves it is aborted, and missed by nobody.
        self.page.on(
            "requestfailed",
            lambda request: self._note(f"failed: {request.url}", "ERR_ABORTED" not in (request.failure or "")),
        )

    def _note(self, problem: str, matters: bool = True) -> None:
        if matters:
            self.problems.append(f"{self.name}: {self.page.url}: {problem}")

    def _is_ours(self, url: str) -> bool:
        return url.startswith((self.base, "data:"))

    def open(self, name: str, heading: str) -> None:
        """Open a page, and see that it is the one with this heading and fits into the window."""
        self.page.goto(self.base + name)
        self.shows(heading)

    def shows(self, heading: str) -> None:
        """See that the page has this heading, and isn't wider than the window."""
        expect(self.page.locator("h1").first).to_contain_text(heading)
        wide, window = self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        self._note(f"the page is {wide} pixels wide, the window {window}", wide > window)

    def search(self, words: str, found: str) -> None:
        """Search, and see that one of the first five results leads to the page that is meant."""
        self.page.goto(f"{self.base}search.html?q={words}")
        results = self.page.locator("#search-results ul.search li > a")
        expect(results.first).to_be_visible()
        first = [urlsplit(one.get_attribute("href") or "").path for one in results.all()[:5]]
        self._note(
            f"searching for {words!r} finds {first}, not {found}", not any(path.endswith(found) for path in first)
        )
        results.first.click()
        expect(self.page.locator("h1").first).to_be_visible()

    def type_search(self, words: str) -> None:
        """Search as a reader does: by the key for it, and the field that appears."""
        self.page.keyboard.press("Control+k")
        self.page.locator("#pst-search-dialog input[type=search]").fill(words)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(re.compile(r"/search\.html\?"))
        expect(self.page.locator("#search-results ul.search li").first).to_be_visible()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _served(html: Path) -> Iterator[str]:
    """Serve the site on this machine alone, and yield its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(html))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _visits(browser: Browser, bases: tuple[str, str], pictures: Path) -> list[str]:
    problems = []
    for base, size, scheme in zip(bases, _SIZES, ("light", "dark"), strict=True):
        visit = Visit(browser, base, size, scheme)
        visit.open("index.html", "nsbox")
        visit.page.screenshot(path=pictures / f"{size}.png")
        for name, heading in (
            ("howto/agent-tools.html", "Give an agent a shell"),
            ("howto/errors.html", "errors"),
            ("reference/api/nsbox.html", "nsbox"),
            ("reference.html", "Reference"),
            ("explanation/comparison.html", "peers"),
            ("project/changelog.html", "Changelog"),
        ):
            visit.open(name, heading)
        visit.page.screenshot(path=pictures / f"{size}-page.png")
        visit.search("network list", "howto/network.html")
        visit.search("SandboxExecutor", "reference/api/nsbox.executor.html")
        if size == "wide":
            visit.open("howto/agent-tools.html", "Give an agent a shell")
            visit.page.locator("a.api").first.click()
            visit.page.wait_for_url(re.compile(r"/reference/api/"))
            visit.type_search("Landlock")
        problems += visit.problems
    return problems


def main(html: Path, pictures: Path) -> int:
    """Visit the site; return 1 if something is wrong."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        print(f"browse: none of these is installed: {', '.join(_BROWSERS)}", file=sys.stderr)
        return 1
    pictures.mkdir(parents=True, exist_ok=True)
    # As root Chromium starts only without its own sandbox; here it reads nothing but our pages.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright, _served(html) as server:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        problems = _visits(browser, (server, f"{html.as_uri()}/"), pictures)
        browser.close()
    print(*problems, sep="\n", end="\n" * bool(problems), file=sys.stderr)
    if not problems:
        print(f"browse: all is well; screenshots are in {pictures}")
    return bool(problems)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    site = Path(sys.argv[1]).resolve()
    sys.exit(main(site, Path(sys.argv[2]).resolve() if len(sys.argv) == 3 else site.parent / "screenshots"))
