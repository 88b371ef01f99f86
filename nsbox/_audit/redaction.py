"""Masks in what records show: tokens that leaks.py knows, passwords in URLs, values of options and variables.

A command line says many things that aren't secret, and nobody knows all ways to spell those that are. This masks what
is usual; secrets= and add() name the rest.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from nsbox._leaks.scrub import Scrubber
from nsbox.leaks import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsbox._leaks.scrub import Value

MASK = "***"
MOST = 1 << 16  # letters of one text that are looked at; the rest is left out of a record anyway

_NAME = (
    r"[\w-]{0,64}(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
    r"[\w-]{0,64}"
)
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"';&|]+)"""
_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]{0,256}):[^\s/@]{1,1024}@")
_ASSIGNED = re.compile(rf"((?<![\w-]){_NAME}[\"']?[ \t]{{0,8}}[=:][ \t]{{0,8}}){_VALUE}", re.I)
_OPTION = re.compile(rf"((?<![\w-])--?{_NAME}[ \t]{{1,8}})(?!-){_VALUE}", re.I)
_HEADER = re.compile(r"(authorization[ \t]{0,8}:[ \t]{0,8}(?:(?:basic|bearer|token)[ \t]{1,8})?)[^\s\"']+", re.I)
_LAST = re.compile(rf"--?{_NAME}", re.I)

_added: list[Scrubber] = []


def add(values: Iterable[Value]) -> None:
    """Mask these values too from now on, also where they are encoded. Raises TypeError and ValueError, as Scrubber."""
    _added.append(Scrubber(values))
    _masked.cache_clear()


def redacted(text: str, scrub: Callable[[str], str] | None = None) -> str:
    """Return a text without the secrets that are known or that look like some, and without what is beyond MOST.

    scrub: masks those of one command.
    """
    text = text[:MOST]
    return _masked(text if scrub is None else scrub(text))


@lru_cache(1024)
def _masked(text: str) -> str:
    for scrubber in _added:
        text = scrubber.scrub(text)
    shift = 0
    for finding in scan(text):
        start, end = finding.start + shift, finding.end + shift
        if text[start:end] and start >= 0:
            mask = f"[{finding.kind}]"
            text = text[:start] + mask + text[end:]
            shift += len(mask) - (end - start)
    for pattern in (_HEADER, _ASSIGNED, _OPTION):
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return _IN_URL.sub(rf"\g<1>:{MASK}@", text)


def words(texts: Sequence[str], scrub: Callable[[str], str] | None = None) -> list[str]:
    """Return a command's words, redacted: the word after an option such as --password is masked whole."""
    found, is_value = [], False
    for text in texts:
        found.append(MASK if is_value and not text.startswith("-") else redacted(text, scrub))
        is_value = _LAST.fullmatch(text) is not None
    return found
