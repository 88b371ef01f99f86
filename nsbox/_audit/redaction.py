"""Masks in what records show: tokens that leaks.py knows, passwords in URLs, values of options and variables.

A command line says many things that aren't secret, and nobody knows all ways to spell those that are. This masks what
is usual; secrets= and add() name the rest.

Texts come from commands that nobody trusts: what looks like a password, and has a command in it that a shell would run,
isn't masked. Nor does a long text cost more than a bounded time and memory.
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
CUT = " [...]"  # the end of a text that is longer
MOST = 1 << 16  # letters of one text that are looked at; the rest is left out of a record anyway
MOST_WORDS = 257  # of a command; a record has one fewer, and says that there were more
_MOST_KNOWN = 1 << 10  # letters of a text whose masked form is remembered
_EDGE = 1 << 12  # letters before a cut: a secret could begin there that isn't known as one without its end

_NAME = (
    r"[\w-]{0,64}(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    r"|signature|mysql_pwd)[\w-]{0,64}"
)
_WORD = r"""(?!\$\()(?:[^\s"';&|`$]|\$(?!\())+"""  # not what a shell would run: $(...) and `...`
_QUOTED = r"""(?:"(?:[^"`$]|\$(?!\())*"|'[^']*')"""
_VALUE = rf"""(?:{_QUOTED}|{_WORD})"""
_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]{0,256}):[^\s/@]{1,4096}@")
_USER_IN_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/:@]{16,4096}@")
_ASSIGNED = re.compile(rf"((?<![\w-]){_NAME}[\"']?[ \t]{{0,8}}[=:][ \t]{{0,8}}){_VALUE}", re.I)
_OPTION = re.compile(rf"((?<![\w-])--?{_NAME}[ \t]{{1,8}})(?!-){_VALUE}", re.I)
_HEADER = re.compile(
    rf"(authorization[ \t]{{0,8}}:[ \t]{{0,8}})(?:((?:basic|bearer|token)[ \t]{{1,8}})|{_WORD}[ \t]{{1,8}})?{_WORD}",
    re.I,
)
_COOKIE = re.compile(rf"((?<![\w-])(?:set-)?cookie[ \t]{{0,8}}:[ \t]{{0,8}}){_WORD}(?:; ?[\w-]{{1,64}}={_WORD})*", re.I)
_USER = re.compile(rf"((?<![\w-])(?:-u|--user|--proxy-user)[ \t=]{{1,8}}[\"']?[\w.@+-]{{1,256}}:)(?!\d+\b){_WORD}")
_LAST = re.compile(rf"--?{_NAME}", re.I)
_LAST_USER = re.compile(r"-u|--user|--proxy-user")
_OF_A_USER = re.compile(r"([\w.@+-]{1,256}:)(?!\d+$).+", re.S)

_added: list[Scrubber] = []


def add(values: Iterable[Value]) -> None:
    """Mask these values too from now on, also where they are encoded. Raises TypeError and ValueError, as Scrubber."""
    _added.append(Scrubber(values))


def redacted(text: str, scrub: Callable[[str], str] | None = None) -> str:
    """Return a text without the secrets that are known or that look like some, and without what is beyond MOST.

    scrub: masks those of one command.
    """
    if scrub is not None:
        text = scrub(text)
    for scrubber in _added:
        text = scrubber.scrub(text)
    if len(text) <= _MOST_KNOWN:
        return _masked(text)
    if len(text) <= MOST:
        return _mask(text)
    masked = _mask(text[:MOST])
    return masked[: max(0, len(masked) - _EDGE)] + CUT


def _mask(text: str) -> str:
    shift = 0
    for finding in scan(text):
        start, end = finding.start + shift, finding.end + shift
        if text[start:end] and start >= 0:
            mask = f"[{finding.kind}]"
            text = text[:start] + mask + text[end:]
            shift += len(mask) - (end - start)
    text = _HEADER.sub(rf"\g<1>\g<2>{MASK}", text)
    for pattern in (_COOKIE, _ASSIGNED, _OPTION, _USER):
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return _USER_IN_URL.sub(rf"\g<1>{MASK}@", _IN_URL.sub(rf"\g<1>:{MASK}@", text))


_masked = lru_cache(1024)(_mask)


def words(texts: Sequence[str], scrub: Callable[[str], str] | None = None) -> list[str]:
    """Return a command's first words, redacted: the word after an option such as --password is masked whole."""
    found, before = [], ""
    for text in texts[:MOST_WORDS]:
        if _LAST.fullmatch(before) and not text.startswith("-"):
            found.append(MASK)
        elif _LAST_USER.fullmatch(before) and (user := _OF_A_USER.fullmatch(text)):
            found.append(redacted(user[1], scrub) + MASK)
        else:
            found.append(redacted(text, scrub))
        before = text
    return found
