"""Writing SBPL, the language of macOS's sandbox profiles: expressions of Scheme, as text. Pure.

How rules are spelled, and what can't be spelled, is here; what they allow is up to the backend. Paths never become part
of the text. They are parameters, which the profile refers to by name, so that no file name can end a string or begin a
rule.
"""

from __future__ import annotations

from unicodedata import normalize

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, frozen
from nsbox._plan.ops import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_BYTES = 1000  # in a string: the compiler's own limit is about 1,025
MOST_FILTERS = 2000  # in a profile: libsandbox needs seconds for thousands, and dies (SIGILL) above some 17,700 rules
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 !#$%&'()*+,-./:;<=>?@[]^_`{|}~")
_MOST_TEXTS = 10  # strings in one pattern


@frozen
class Seatbelt(Op):
    """macOS: confine the command by an SBPL profile. A backend makes this op; policies can't have it.

    profile: the text.
    params: pairs of a parameter's name and its value; None: a fresh directory for the temporary files of this run.
    way: how the profile is applied: "compiled" in this process, by our "helper" program, or by "sandbox-exec".
    """

    profile: str
    params: tuple[tuple[str, str | None], ...]
    way: str = "compiled"

    def row(self) -> tuple[str, str]:
        rules = self.profile.count("\n(")
        return "seatbelt", f"a profile of {rules} rules about {len(self.params)} paths [{self.way}]"


def check_value(path: str) -> str:
    """Return a path if it can be a parameter's value; raises UnavailableError if Seatbelt can't have it."""
    if len(path.encode("utf-8", "surrogateescape")) > MOST_BYTES:
        raise UnavailableError(Reason(f"seatbelt: {path[:60]}... has more than {MOST_BYTES} bytes, its limit"))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UnavailableError(Reason(f"seatbelt: {path!r} isn't UTF-8, which macOS's names are")) from None
    if "${" in path:
        raise UnavailableError(Reason(f"seatbelt: {path!r} has a '${{', which profiles take for a variable's name"))
    if any(ord(ch) < 32 or ord(ch) == 127 for ch in path):
        raise UnavailableError(Reason(f"seatbelt: {path!r} has control characters"))
    return path


def text(value: str) -> str:
    """Return a string literal. Only for what this package's authors write, never for a user's path."""
    if not _SAFE.issuperset(value) or len(value) > MOST_BYTES:
        raise ValueError(f"{value!r} can't be written in a profile")
    return f'"{value}"'


def words(name: str, values: Iterable[str]) -> list[str]:
    """Return a filter for each of these names, such as (sysctl-name "hw.ncpu")."""
    return [f"({name} {text(value)})" for value in values]


def param(name: str, kind: str = "subpath") -> str:
    """Return the filter for the path in a parameter. kind: "subpath", "literal" or "path-ancestors"."""
    return f"({kind} (param {text(name)}))"


_PORT = "localhost:0"  # stands for the port of a network list's proxy, which a plan doesn't know; nothing listens there


def proxy() -> str:
    """Return the filter for the proxy of a network list."""
    return f"(remote ip {text(_PORT)})"


def with_port(profile: str, port: int) -> str:
    """Return a profile with the real port of its proxy. port: 0: it has none."""
    return profile.replace(proxy(), f'(remote ip "localhost:{port}")') if port else profile


def all_of(*filters: str) -> str:
    """Return the filter that matches what all of these match."""
    return f"(require-all {' '.join(filters)})"


def rule(action: str, operations: str, filters: Sequence[str] = (), about: str = "") -> str:
    """Return one rule, with `about` as a comment. Several filters are alternatives; without any it is for all."""
    head = f"; {about}\n" if about else ""
    if not filters:
        return f"{head}({action} {operations})"
    line = f"({action} {operations} {' '.join(filters)})"
    if len(line) <= 120:
        return head + line
    return f"{head}({action} {operations}\n  " + "\n  ".join(filters) + ")"


def folded(name: str, tail: str, *, below: bool) -> str | None:
    """Return a filter for a path in any spelling that the volume takes for the same; None if it would be too long.

    A volume of macOS usually finds a file by other spellings too: another case, other letters for the same (U+017F is
    an s, U+FB01 is fi), composed or not. But a rule only sees the spelling that the file was made with. So each letter
    of the tail matches itself in both cases, and any characters beyond ASCII. Such characters may also stand between
    two letters, since some file systems ignore them there (CVE-2014-9390). That is stricter than necessary.

    name: the parameter that the path begins with; its value is matched as it is.
    tail: the rest of the path.
    below: whether what is inside matches too.
    """
    plain = normalize("NFD", normalize("NFD", tail).casefold())
    parts = [*(_either(ch) for ch in plain), "(/.*)?$" if below else "$"]
    texts = [""]
    for part in parts:  # the limit applies to strings as they are written
        if len(texts[-1]) + len(part) > MOST_BYTES:
            texts.append("")
        texts[-1] += part
    if len(texts) > _MOST_TEXTS:
        return None
    written = " ".join(f'#"{text}"' for text in texts)
    return f'(regex (string-append "^" (regex-quote (param "{name}")) {written}))'


_OTHER = "[^ -~]"  # anything except printable ASCII
_KIND = "[^/ -.0-9A-Za-z]"  # punctuation, for characters that can't be in brackets
_SPECIAL = {'"': "[^ !#-~]", "\\": _KIND, "^": _KIND, "[": _KIND}


def _either(ch: str) -> str:
    """Return the pattern for one character of a folded name, and for what may follow it unseen (HFS+ ignores some)."""
    if not ch.isascii():
        return f"{_OTHER}+"
    if ch == "/" or ch.isdigit():
        return f"{ch}{_OTHER}*"
    if not ch.isalpha():
        return f"{_SPECIAL.get(ch, f'[{ch}]')}{_OTHER}*"
    around = {side: (chr(ord(letter) - 1), chr(ord(letter) + 1)) for side, letter in (("A", ch.upper()), ("a", ch))}
    printable = f" -{around['A'][0]}{around['A'][1]}-{around['a'][0]}{around['a'][1]}-~"  # except for the letter
    return f"[^{printable}]{_OTHER}*"
