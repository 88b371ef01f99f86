"""Writing SBPL, the language of macOS's sandbox profiles: expressions of Scheme, as text. Pure.

Here lives how something is spelled, and what can't be. What is allowed is the backend's business. Paths never become
part of the text: they are parameters, which the profile refers to by name, so that no name of a file can end a string
or begin a rule.
"""

from __future__ import annotations

from unicodedata import normalize

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, frozen
from nsbox._plan.ops import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_BYTES = 1000  # of a string: the compiler's own limit is 1,025 or so
MOST_FILTERS = 2000  # of a profile: above some 17,700 rules libsandbox dies (SIGILL), and thousands take it seconds
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 !#$%&'()*+,-./:;<=>?@[]^_`{|}~")
_MOST_TEXTS = 10  # of one pattern


@frozen
class Seatbelt(Op):
    """macOS: the command is confined by a profile of SBPL. What a backend makes, not what a policy names.

    params: what the profile refers to by name; None: a fresh directory for temporary files, of this run alone. way: how
    it comes into force: "compiled" in this process, by our "helper" program, or by "sandbox-exec".
    """

    profile: str
    params: tuple[tuple[str, str | None], ...]
    way: str = "compiled"

    def row(self) -> tuple[str, str]:
        rules = self.profile.count("\n(")
        return "seatbelt", f"a profile of {rules} rules about {len(self.params)} paths [{self.way}]"


def check_value(path: str) -> str:
    """Return a path if it can be a parameter's value; raises UnavailableError for one that Seatbelt can't have."""
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
    """Return a string of the language. Only what the profile's author writes: never a path of somebody else."""
    if not _SAFE.issuperset(value) or len(value) > MOST_BYTES:
        raise ValueError(f"{value!r} can't be written in a profile")
    return f'"{value}"'


def words(name: str, values: Iterable[str]) -> list[str]:
    """Return a filter for each of these names, such as (sysctl-name "hw.ncpu")."""
    return [f"({name} {text(value)})" for value in values]


def param(name: str, kind: str = "subpath") -> str:
    """Return the filter for the path that is this parameter: subpath, literal or path-ancestors."""
    return f"({kind} (param {text(name)}))"


_PORT = "localhost:0"  # stands for the port of a network list's proxy, which a plan doesn't know; nobody listens there


def proxy() -> str:
    """Return the filter for the proxy of a network list."""
    return f"(remote ip {text(_PORT)})"


def with_port(profile: str, port: int) -> str:
    """Return a profile with the port of its proxy, if it has one."""
    return profile.replace(proxy(), f'(remote ip "localhost:{port}")') if port else profile


def all_of(*filters: str) -> str:
    """Return the filter for what fits all of these."""
    return f"(require-all {' '.join(filters)})"


def rule(action: str, operations: str, filters: Sequence[str] = (), about: str = "") -> str:
    """Return one rule, with a comment before it. Without filters it is about everything; several are alternatives."""
    head = f"; {about}\n" if about else ""
    if not filters:
        return f"{head}({action} {operations})"
    line = f"({action} {operations} {' '.join(filters)})"
    if len(line) <= 120:
        return head + line
    return f"{head}({action} {operations}\n  " + "\n  ".join(filters) + ")"


def folded(name: str, tail: str, *, below: bool) -> str | None:
    """Return the filter for a path however it is spelled: the value of a parameter as it is, and then the tail.

    A volume of macOS usually finds a file by other spellings too, but a rule sees the one that the file was made with:
    another case, other letters for the same (U+017F is an s, U+FB01 is fi), composed or not. So a letter stands for
    itself in both cases and for any characters beyond ASCII, which may also stand between two, where some file systems
    pass over them (CVE-2014-9390). That is stricter than it need be. below: also what is inside. None: it would be too
    long.
    """
    plain = normalize("NFD", normalize("NFD", tail).casefold())
    parts = [*(_either(ch) for ch in plain), "(/.*)?$" if below else "$"]
    texts = [""]
    for part in parts:  # the limit is of strings as they are written
        if len(texts[-1]) + len(part) > MOST_BYTES:
            texts.append("")
        texts[-1] += part
    if len(texts) > _MOST_TEXTS:
        return None
    written = " ".join(f'#"{text}"' for text in texts)
    return f'(regex (string-append "^" (regex-quote (param "{name}")) {written}))'


_OTHER = "[^ -~]"  # what isn't printable ASCII
_KIND = "[^/ -.0-9A-Za-z]"  # signs, of which some can't be in brackets
_SPECIAL = {'"': "[^ !#-~]", "\\": _KIND, "^": _KIND, "[": _KIND}


def _either(ch: str) -> str:
    """Return the pattern for one character of a folded name, and what may follow unseen (HFS+ passes over some)."""
    if not ch.isascii():
        return f"{_OTHER}+"
    if ch == "/" or ch.isdigit():
        return f"{ch}{_OTHER}*"
    if not ch.isalpha():
        return f"{_SPECIAL.get(ch, f'[{ch}]')}{_OTHER}*"
    around = {side: (chr(ord(letter) - 1), chr(ord(letter) + 1)) for side, letter in (("A", ch.upper()), ("a", ch))}
    printable = f" -{around['A'][0]}{around['A'][1]}-{around['a'][0]}{around['a'][1]}-~"  # but for the letter
    return f"[^{printable}]{_OTHER}*"
