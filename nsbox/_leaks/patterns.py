"""What tokens and private keys look like: one pass over bytes that finds them as they are, and decodes nothing.

Each pattern begins with letters that stand for themselves. So re looks for these by memchr(3) or by its table, and only
tries the rest where they are. No pattern goes back over more than a few hundred bytes: each repeat has a bound, or
nothing follows it. Every match has at least 20 bytes, on which nsbox.leaks relies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SHORTEST = 20  # bytes of the shortest token that a pattern finds

_WORD = rb"[A-Za-z0-9_-]"
_KEY_FILE = 1 << 15  # bytes that a private key may have between its first line and its last


def _fresh(letters: bytes, word: bytes = b"A-Za-z0-9") -> bytes:
    """Return a pattern that matches after these letters, if they begin a word.

    A word may begin right after an escape of JSON (backslash, n) or of a terminal's colours (ESC [32m).
    """
    return rb"(?:(?<![%b]%b)|(?<=\\[bfnrt]%b)|(?<=[0-9;\[]m%b))" % (word, letters, letters, letters)


# Words like task- and disk- end as some keys begin. So a key has to begin a word, unless it is unmistakable.
_SK = re.compile(
    rb"sk-(?:"
    rb"(?P<anthropic>ant-(?:[a-z]{1,10}[0-9]{2}-|%b)%b{20,})"
    rb"|(?P<openrouter>or-v[0-9]{1,2}-%b{20,})"
    rb"|(?P<openai>%b{10,200}?T3BlbkFJ%b{20,}|%b(?:(?:proj|svcacct|admin|None)-%b{20,}|[A-Za-z0-9]{20,}))"
    rb")" % (_fresh(b"sk-ant-"), _WORD, _WORD, _WORD, _WORD, _fresh(b"sk-"), _WORD)
)

# BSA occurs in any base64 by chance, every 260,000 letters. If more base64 is around it, it is no key.
_BRAVE = re.compile(rb"BSA%b%b{20,64}(?![A-Za-z0-9+/=])" % (_fresh(b"BSA", b"A-Za-z0-9+/"), _WORD))

# The letters that data must have, the pattern to look for then, and the kind (None: the name of the matching group).
PATTERNS: tuple[tuple[bytes, re.Pattern[bytes], str | None], ...] = (
    (b"sk-", _SK, None),
    (b"ghp_", re.compile(rb"ghp_[A-Za-z0-9_]{36,}"), "github"),
    (b"gho_", re.compile(rb"gho_[A-Za-z0-9_]{36,}"), "github"),
    (b"ghu_", re.compile(rb"ghu_[A-Za-z0-9_]{36,}"), "github"),
    (b"ghs_", re.compile(rb"ghs_[A-Za-z0-9_]{36,}"), "github"),
    (b"ghr_", re.compile(rb"ghr_[A-Za-z0-9_]{36,}"), "github"),
    (b"github_pat_", re.compile(rb"github_pat_[A-Za-z0-9_]{22,}"), "github"),
    (b"AIza", re.compile(rb"AIza%b{35}" % _WORD), "google"),
    (b"xox", re.compile(rb"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{15,}"), "slack"),
    (b"xapp-", re.compile(rb"xapp-[0-9]{1,3}-[A-Za-z0-9-]{20,}"), "slack"),
    (b"BSA", _BRAVE, "brave"),
)

# The number of the bot, then its secret.
_TELEGRAM = re.compile(rb":A[A-Za-z0-9_-]{33,35}")
_TELEGRAM_ID = re.compile(rb"[0-9]{6,16}\Z")

# The number of the account, in base64, which limits the letters at each place; the time; the secret.
_DISCORD = re.compile(rb"\.%b{6}\.%b{27,38}" % (_WORD, _WORD))
_DISCORD_ID = re.compile(rb"(?:[MNO][DTjz][AEIMQUYcgk][w-z0-5]){5,6}(?:[MNO](?:[AQgw]|[DTjz][AEIMQUYcgk]))?\Z")

_PEM = re.compile(rb"-----BEGIN[ +](?:[A-Z0-9]{1,20}[ +]){0,3}PRIVATE[ +]KEY(?:[ +]BLOCK)?-----")
_PEM_END = re.compile(rb"-----END[A-Z0-9 +]{1,60}-----")


def tokens(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of each token or key that is in data without an encoding, in no order."""
    for letters, pattern, kind in PATTERNS:
        if letters in data:
            for match in pattern.finditer(data):
                yield kind or match.lastgroup or "", match.start(), match.end()
    yield from _behind("telegram", _TELEGRAM, _TELEGRAM_ID, 16, data)
    yield from _behind("discord", _DISCORD, _DISCORD_ID, 27, data)
    if b"PRIVATE" in data:
        yield from _private_keys(data)


def _behind(
    kind: str, rest: re.Pattern[bytes], begin: re.Pattern[bytes], most: int, data: bytes
) -> Iterator[tuple[str, int, int]]:
    """Yield each match of `rest`, the rarer part, that has `begin` before it, in at most `most` bytes."""
    at = 0
    while match := rest.search(data, at):
        before = max(0, match.start() - most)
        first = begin.search(data[before : match.start()])
        if first:
            yield kind, before + first.start(), match.end()
        at = match.end() if first else match.start() + 1


def _private_keys(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield private keys up to their last line. A first line alone counts too, if no last line is near."""
    at, last = 0, _PEM_END.search(data)
    while first := _PEM.search(data, at):
        while last and last.start() < first.end():
            last = _PEM_END.search(data, last.end())
        at = first.end()
        if last and last.start() - at <= _KEY_FILE and data.find(b"\0", at, last.start()) < 0:
            at = last.end()  # without a NUL between, which separates decoded pieces
        yield "private-key", first.start(), at
