"""What one shell with keep=True hands on to the next: its directory, and what it changed about exported variables.

The shell reports these itself when it ends, by builtins alone. A program would need a fork, which fails where a limit
on processes is reached: then bash tries for 15 seconds, and exits with 254 whatever the command's status was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._tools.shell import ITSELF
from nsbox._tools.verdicts import Hint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MOST = 1 << 20  # bytes of a report
_MOST_OF_ONE = 1 << 17  # bytes of one variable: execve(2) accepts no more (MAX_ARG_STRLEN)
_OWN = "_nsbox_"  # how the variables below begin; `set -a` in a command exports them
# It runs when the line has ended, and again at the shell's exit unless the line has set a trap of its own. The line is
# a parameter, so that its lines count from 1 in error messages, and goes away as one before it is read. A limit on the
# size of files (SIGXFSZ) mustn't end the shell. bash alone can export functions, which make the last part.
_SAVE = (
    '_nsbox_status=$?; { set +x; trap "" XFSZ; printf "%s\\0" "$PWD"; export -p;'
    ' if [ "${BASH_VERSION-}" ]; then printf "\\0"; export -fp; fi; } 2>/dev/null >|/proc/self/fd/FD || :;'
    ' exit "$_nsbox_status"'
)
_RUN = (
    f"_nsbox_save='{_SAVE}'; "
    'trap "$_nsbox_save" EXIT; _nsbox_line=$1; shift; eval "$_nsbox_line"; eval "$_nsbox_save"'
)
NOT_KEPT = Hint(
    "not-kept",
    "its directory and variables weren't kept: the shell was killed or replaced (exec), ended through its own EXIT "
    "trap, or couldn't report them (ulimit)",
)

# What `export -p` prints in bash, in the shells of POSIX, and in zsh: a name, and mostly a value as a quoted word.
# Commands can forge all of it. So no character is looked at more than a few times: a match has everything up to the
# place where its value ends (3) or isn't one, and a quote without an end has the rest.
_PIECE = (
    rb"""'[^']*+'|"(?:[^"\\]|\\.)*+"|\$'(?:[^'\\]|\\.)*+'|\\.|[^\s'"\\$]++|\$"""  # each begins with another character
)
_VARIABLE = re.compile(
    rb"^(?:export|declare -\w++|typeset -\w++) ([A-Za-z_]\w*+)(?:=(?!\()((?:%s)*+)(?:($)|['\"].*+)?)?" % _PIECE,
    re.MULTILINE | re.DOTALL,
)
_PIECES = re.compile(_PIECE, re.DOTALL)
_FUNCTION = re.compile(rb"^([^\s=]++) \(\) *\n", re.MULTILINE)  # its first line
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|(?:M-\\C-|M-|C-)?.)", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"E": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r"}
_LETTERS |= {b"t": b"\t", b"v": b"\v"}


@frozen
class ShellState(Frozen):
    """What the next shell begins with.

    directory: None for the policy's working directory.
    changes: what shells have made of variables, in addition to the environment that the policy builds; None: unset.
    """

    directory: str | None = None
    changes: tuple[tuple[str, str | None], ...] = ()

    def applied(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the changes."""
        return {name: value for name, value in {**env, **dict(self.changes)}.items() if value is not None}

    def after(
        self, report: Report, began: Mapping[str, str], secrets: Collection[str], env: Mapping[str, str]
    ) -> ShellState:
        """Return the state after a shell. What it hasn't changed stays as it is here, so env= was for it alone.

        began: the environment that it began with. secrets: values that no variable may hand on. env: what the policy
        builds. No other variable has to be unset, so a state grows no larger than a report, however many there are.
        """
        changes = dict(self.changes)
        for name in began.keys() | report.variables.keys():
            value = report.variables.get(name)
            if value != began.get(name) and not any(secret in (value or "") for secret in secrets):
                changes[name] = value
        changes = {name: value for name, value in changes.items() if value is not None or name in env}
        return ShellState(report.directory, tuple(sorted(changes.items())))


@frozen
class Report(Frozen):
    """What a shell has reported at its end: its directory, and the variables that it exported."""

    directory: str
    variables: Mapping[str, str]


def argv(line: str, fd: int) -> list[str]:
    """Return the arguments by which a shell reads a line, and then reports its state to a file (a descriptor)."""
    return ["-c", _RUN.replace("FD", str(fd)), ITSELF, line]


def report(data: bytes) -> Report | None:
    """Return what a shell has reported; None if it hasn't."""
    directory, _, rest = data.partition(b"\0")
    if len(data) > MOST or not directory.startswith(b"/") or not rest:
        return None
    texts, _, functions = rest.partition(b"\0")
    pairs = (*_variables(texts), *_functions(functions))
    variables = {
        os.fsdecode(name): os.fsdecode(value)
        for name, value in pairs
        if len(name) + len(value) < _MOST_OF_ONE - 2 and b"\0" not in value
    }
    return Report(os.fsdecode(directory), {name: text for name, text in variables.items() if not name.startswith(_OWN)})


def _variables(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    for found in _VARIABLE.finditer(text):
        if found[3] is not None:  # it has a value
            yield found[1], b"".join(_unquoted(piece) for piece in _PIECES.findall(found[2]))


def _functions(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield functions as bash passes them on in the environment."""
    text += b"\n"
    found = _FUNCTION.search(text)
    while found is not None:
        last = b"\ndeclare -fx %s\n" % found[1]
        end = text.find(last, found.end())
        if end < 0:  # bash always prints one
            return
        yield b"BASH_FUNC_%s%%%%" % found[1], b"() " + text[found.end() : end]
        found = _FUNCTION.search(text, end + len(last))


def _unquoted(piece: bytes) -> bytes:
    if piece.startswith(b"$'"):
        return _ESCAPE.sub(_character, piece[2:-1])
    if piece.startswith(b"'"):
        return piece[1:-1]
    if piece.startswith(b'"'):
        return re.sub(rb'\\([$`"\\])', rb"\1", piece[1:-1])
    return piece[1:] if piece.startswith(b"\\") else piece


def _character(escape: re.Match[bytes]) -> bytes:
    r"""Return what an escape of $'...' stands for. zsh has \C-A for control characters, \M-x for bytes from 128 on."""
    text = escape[1]
    if b"C-" in text or b"M-" in text:
        last = text[-1] ^ 64 if b"C-" in text else text[-1]
        return bytes([last | 128 if b"M-" in text else last])
    if text[:1] == b"x" and len(text) > 1:
        return bytes([int(text[1:], 16)])
    return bytes([int(text, 8) & 255]) if text.isdigit() else _LETTERS.get(text, text)
