"""Regular expressions of profiles (POSIX extended), as Python's on bytes.

What POSIX leaves undefined, or what we have no need for (intervals, collating elements), is refused: that a model
understands it in some way would say nothing about macOS.
"""

from __future__ import annotations

import re
from functools import lru_cache

from nsbox_seatbelt.values import encoded

_CLASSES = {
    b"alpha": rb"A-Za-z",
    b"digit": rb"0-9",
    b"alnum": rb"A-Za-z0-9",
    b"upper": rb"A-Z",
    b"lower": rb"a-z",
    b"space": rb"\x09-\x0d\x20",
    b"blank": rb"\x09\x20",
    b"xdigit": rb"0-9A-Fa-f",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
}
_QUOTABLE = frozenset(b"\\^$.|?*+()[]{}/-\"' ")


class BadPattern(ValueError):
    """A regular expression that isn't one of ours."""


@lru_cache(maxsize=4096)
def translate(pattern: str) -> re.Pattern[bytes]:
    """Return the pattern for re.search on the bytes of a path; raises BadPattern."""
    text = encoded(pattern)
    out: list[bytes] = []
    depths: list[int] = []
    at, has_atom = 0, False  # has_atom: a * can follow
    while at < len(text):
        ch = text[at : at + 1]
        if ch == b"[":
            done, at = _bracket(text, at)
            out.append(done)
            has_atom = True
            continue
        if ch == b"\\":
            at += 1
            if at == len(text) or text[at] not in _QUOTABLE:
                raise BadPattern(f"{pattern!r}: a backslash before nothing special")
            out.append(_literal(text[at]))
            has_atom = True
        elif ch in (b"*", b"+", b"?"):
            if not has_atom:
                raise BadPattern(f"{pattern!r}: {ch.decode()} repeats nothing")
            out.append(ch)
            has_atom = False
        elif ch == b"{":
            raise BadPattern(f"{pattern!r}: intervals aren't modelled")
        elif ch == b"(":
            out.append(b"(?:")
            depths.append(at)
            has_atom = False
        elif ch == b")":
            if not depths:
                raise BadPattern(f"{pattern!r}: a ) without its (")
            depths.pop()
            out.append(b")")
            has_atom = True
        else:
            out.append({b"|": b"|", b"^": rb"\A", b"$": rb"\Z", b".": b"."}.get(ch) or _literal(text[at]))
            has_atom = ch not in (b"|", b"^", b"$")
        at += 1
    if depths:
        raise BadPattern(f"{pattern!r}: a ( without its )")
    return re.compile(b"".join(out), re.DOTALL)


def _literal(byte: int) -> bytes:
    return b"\\x%02x" % byte  # no letter of it can mean anything to Python


def _bracket(text: bytes, start: int) -> tuple[bytes, int]:
    at = start + 1
    negated = text[at : at + 1] == b"^"
    at += negated
    first, items = at, b""
    while True:
        if at >= len(text):
            raise BadPattern("a [ without its ]")
        if text[at] == ord("]") and at > first:
            return b"[" + (b"^" if negated else b"") + items + b"]", at + 1
        if text[at : at + 2] in (b"[:", b"[.", b"[="):
            end = text.find(b":]", at + 2)
            name = text[at + 2 : end] if end >= 0 else b""
            if text[at + 1 : at + 2] != b":" or name not in _CLASSES:
                raise BadPattern(f"{text[at : at + 12]!r}... isn't a class of characters that is modelled")
            items += _CLASSES[name]
            at = end + 2
        elif text[at + 1 : at + 2] == b"-" and text[at + 2 : at + 3] not in (b"]", b""):
            if text[at + 2] < text[at]:
                raise BadPattern("a range from high to low")
            items += _literal(text[at]) + b"-" + _literal(text[at + 2])
            at += 3
        else:
            items += _literal(text[at])
            at += 1


def directory_of(pattern: str) -> str | None:
    """Return the directory that all paths matched lie in (^/a/b[cd] is about /a), or None where that isn't plain."""
    if not pattern.startswith("^/") or _has_alternatives(pattern):
        return None
    fixed, at = "", 1
    while at < len(pattern) and (pattern[at] == "\\" or pattern[at] not in "^$.|?*+()[]{}"):
        at += pattern[at] == "\\"
        fixed += pattern[at : at + 1]
        at += 1
    if at < len(pattern) and pattern[at] in "?*{":
        fixed = fixed[:-1]  # it may be there no time
    if pattern[at:] == "$":
        return fixed
    return fixed[: fixed.rindex("/")] or "/"


def _has_alternatives(pattern: str) -> bool:
    """Return whether there is a | outside of all brackets."""
    bare = re.sub(r"\\.|\[\^?\]?[^]]*\]", "", pattern, flags=re.DOTALL)
    depth = 0
    for ch in bare:
        depth += (ch == "(") - (ch == ")")
        if ch == "|" and depth == 0:
            return True
    return False
