"""Searching the lines of files by a command in the sandbox: ripgrep, or Python if the sandbox doesn't have ripgrep.

The pattern comes from a model, and the files from commands. In this process, nothing could stop a regular expression
that takes exponential time. So the search is contained like any other command, and killed when its time is up. It sees
what commands see, on any ground. This process takes its output as mere text: bounded, and checked by the rules.

ripgrep's --json isn't used, since it writes a line of any length in full. --max-columns cuts lines inside ripgrep.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
import subprocess
import sys
import time

from nsbox._base.display import type_phrase
from nsbox._base.errors import AccessError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._calls.token import CancelToken
from nsbox._filetools.files import check_number, check_regular
from nsbox._filetools.ground import named
from nsbox._filetools.records import Match, Matches
from nsbox._filetools.walk import joined

if TYPE_CHECKING:
    from typing import Any, Protocol

    from nsbox._filetools.files import Files, Path

    class Starter(Protocol):
        """Starts commands in a sandbox."""

        def Popen(self, *args: Any, **options: Any) -> Any:
            """Start a command; as nsbox.Popen."""


_MOST_BYTES = 64 << 20  # of a file that is searched
_LONGEST = 500  # bytes of a line that are shown
_LONGEST_ROW = 1 << 16  # bytes that the program may print without a line end
_MOST_MATCHES = 100_000
_TURN = 0.05  # seconds between two looks at a token, as in a call
_MOST_CHARS = 64 << 20
_LONGEST_PATTERN = 10_000
_KEPT_ERRORS = 4096
_CUT = " [... omitted end of long line]"  # ripgrep's words
_ROW = re.compile(rb"(\d{1,10})([:-])(.*)", re.DOTALL)

_RIPGREP = (
    *("rg", "--no-config", "--no-messages", "--no-ignore", "--hidden", "--crlf", "--glob=!.git"),
    *("--no-heading", "--with-filename", "--line-number", "--null", "--color=never"),
    *(f"--max-columns={_LONGEST}", "--max-columns-preview", f"--max-filesize={_MOST_BYTES}"),
)

# What Python runs if there is no ripgrep. It searches the same files, and prints rows of the same form.
_SCRIPT = r"""
import fnmatch, json, os, re, stat, sys
wish = json.loads(sys.argv[1])
try:
    text = re.escape(wish["pattern"]) if wish["fixed"] else wish["pattern"]
    find = re.compile(text, re.IGNORECASE if wish["ignore_case"] else 0).search
except (re.error, RecursionError, OverflowError) as error:
    sys.exit(f"nsbox: {error}")
out, context, longest, cut = sys.stdout.buffer, wish["context"], wish["longest"], wish["cut"].encode()

def fits(names, parts):
    at = {0}
    for part in parts:
        if part == "**":
            at = set(range(min(at, default=len(names) + 1), len(names) + 1))
        else:
            at = {i + 1 for i in at if i < len(names) and fnmatch.fnmatchcase(names[i], part)}
    return len(names) in at

def is_wanted(path):
    globs = wish["globs"]
    names = path.split("/")[1:]
    parted = [one.strip("/").split("/") if "/" in one else ["**", one] for one in globs]
    found = any(fits(names, parts) for parts in parted)
    return not globs or found != wish["is_negated"]

def search(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > wish["most"]:
            return
        try:
            data = file.read(wish["most"])
        except OSError:
            return
    if b"\0" in data:
        return
    lines = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n")
    if lines[-1] == "":
        lines.pop()
    found = {i for i, line in enumerate(lines) if find(line.removesuffix("\r"))}
    shown = {k for i in found for k in range(max(0, i - context), i + context + 1)} if context else found
    for i in sorted(shown & set(range(len(lines)))) if context else sorted(found):
        line = lines[i].encode("utf-8", "surrogateescape")
        row = line if len(line) <= longest else line[:longest] + cut
        out.write(b"%b\0%d%b%b\n" % (os.fsencode(path), i + 1, b":" if i in found else b"-", row))
    out.flush()

def walk(top):
    todo = [top]
    while todo:
        above = todo.pop()
        try:
            entries = sorted(os.scandir(above), key=lambda entry: entry.name)
        except OSError:
            continue
        inner = []
        for entry in entries:
            if entry.name == ".git":
                continue
            path = f"{above}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                inner.append(path)
            elif entry.is_file(follow_symlinks=False) and is_wanted(path):
                search(path)
        todo += reversed(inner)

try:
    walk(".") if wish["name"] == "." else search(wish["name"])
except BrokenPipeError:
    os._exit(0)
"""


@frozen
class Wish(Frozen):
    """What to search for: the parameters of grep()."""

    pattern: str
    glob: str | None
    ignore_case: bool
    fixed: bool
    context: int
    max_matches: int
    max_chars: int
    timeout: float
    cancel: CancelToken | None = None

    def check(self) -> None:
        """Raise ValueError and TypeError for what makes no sense."""
        for name, value in (("pattern", self.pattern), ("glob", "*" if self.glob is None else self.glob)):
            if not isinstance(value, str):
                raise TypeError(f"{name} is {type_phrase(value)}, must be a str")
            if not value or "\0" in value or "\n" in value or len(value) > _LONGEST_PATTERN:
                what = f"must be one line of 1 to {_LONGEST_PATTERN} characters, since lines are searched one by one"
                raise ValueError(f"{name} is {value[:60]!r}, {what}")
        check_number("context", self.context, 100)
        check_number("max_matches", self.max_matches, _MOST_MATCHES, least=1)
        check_number("max_chars", self.max_chars, _MOST_CHARS, least=1)
        if (
            isinstance(self.timeout, bool)
            or not isinstance(self.timeout, int | float)
            or not 0 < self.timeout <= 86_400
        ):
            raise ValueError(f"timeout is {self.timeout!r}, must be a number of seconds above 0, at most 86400")
        if self.cancel is not None and not isinstance(self.cancel, CancelToken):
            raise TypeError(f"cancel is {type_phrase(self.cancel)}, must be a CancelToken")


def grep(files: Files, starter: Starter, wish: Wish, path: Path) -> Matches:
    """Return the lines that match."""
    wish.check()
    shown = os.fspath(path)
    target = files.target(path, write=False)
    with files.found(target, target.rest, write=False) as found:
        inside, status = found.inside, found.status
    is_directory = stat.S_ISDIR(status.st_mode)
    if not is_directory:
        check_regular(status, shown)
        files.view.check_suffix(inside, shown)
        if status.st_size > _MOST_BYTES:
            raise AccessError(shown, f"is too large to be searched: {_MOST_BYTES} bytes at most")
    cwd, name = (inside, ".") if is_directory else os.path.split(inside)
    name = name if is_directory else f"./{name}"
    problem = ""
    for engine, argv in (("rg", by_ripgrep(wish, name)), *_by_python(wish, name)):
        search = _Search(files, wish, cwd, shown if is_directory else os.path.dirname(shown))
        try:
            problem = search.run(starter, argv)
        except (FileNotFoundError, PermissionError) as error:
            if error.filename == cwd:  # the directory has gone, or become a link
                raise error if isinstance(error, AccessError) else named(error, shown) from None
            continue
        if not problem:
            return search.result(engine)
        if engine == "python":
            break
    if problem:
        raise ValueError(f"pattern is {wish.pattern[:60]!r}: {problem}")
    reason = "the sandbox has neither rg nor a Python interpreter, and grep() needs one of them"
    raise UnavailableError(Reason(reason, "add a directory with one of them to read, or to tools_bin"))


def by_ripgrep(wish: Wish, name: str) -> list[str]:
    """Return the command of ripgrep. name: of the file, or "." for the directory."""
    argv = [*_RIPGREP, f"--context={wish.context}"]
    argv += [f"--glob={wish.glob}"] if wish.glob is not None and name == "." else []
    argv += ["--ignore-case"] if wish.ignore_case else []
    argv += ["--fixed-strings"] if wish.fixed else []
    return [*argv, f"--regexp={wish.pattern}", "--", "./" if name == "." else name]


def _by_python(wish: Wish, name: str) -> list[tuple[str, list[str]]]:
    glob = wish.glob or ""
    facts = {"pattern": wish.pattern, "fixed": wish.fixed, "ignore_case": wish.ignore_case, "context": wish.context}
    facts |= {"globs": _expanded(glob.removeprefix("!")), "is_negated": glob.startswith("!"), "name": name}
    facts |= {"longest": _LONGEST, "cut": _CUT, "most": _MOST_BYTES}
    programs = dict.fromkeys((sys.executable or "python3", "python3"))
    return [("python", [program, "-I", "-S", "-c", _SCRIPT, json.dumps(facts)]) for program in programs]


def _expanded(glob: str) -> list[str]:
    """Return the patterns that one with alternatives, such as "*.{c,h}", stands for; at most 1,000."""
    found: list[str] = []
    todo = [glob] if glob else []
    while todo and len(found) < 1000:
        one = todo.pop()
        inmost = re.search(r"\{([^{}]*)\}", one)
        if inmost is None:
            found.append(one)
        else:
            todo += [one[: inmost.start()] + part + one[inmost.end() :] for part in inmost[1].split(",")]
    return found


_LONGEST_NAME = 4096  # bytes of a path that other tools accept
_MOST_NAMES = 16 << 20  # characters of the paths of all rows
_MOST_KNOWN = 10_000  # paths whose rules are remembered


class _Search:
    """One run of a program, and what it has found."""

    def __init__(self, files: Files, wish: Wish, cwd: str, above: str) -> None:
        self._files, self._wish, self._cwd, self._above = files, wish, cwd, above
        self._known: dict[str, bool] = {}
        self._rest, self._is_dropping = b"", False
        self._found: list[Match] = []
        self._count = self._chars = self._rows = self._names = 0
        self._why = ""

    def run(self, starter: Starter, argv: list[str]) -> str:
        """Run it; return the program's own message if it doesn't know the pattern, otherwise "".

        Raises what starting it raises.
        """
        pipe = subprocess.PIPE
        with starter.Popen(argv, cwd=self._cwd, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
            try:
                errors = self._listen(process.stdout.fileno(), process.stderr.fileno())
            finally:
                if self._why:
                    process.kill()
            status = process.wait()
        if status in (0, 1) or self._why or self._found:
            is_unknown = status == 1 and errors.startswith(b"nsbox: ")
            return errors.decode("utf-8", "replace")[len("nsbox: ") :].strip() if is_unknown else ""
        if status < 0:
            raise OSError(errno.ECANCELED, f"{argv[0]} was killed by signal {-status} during the search", self._cwd)
        if status in (126, 127):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        return errors.decode("utf-8", "replace").strip() or f"{argv[0]} has ended with status {status}"

    def _listen(self, stdout: int, stderr: int) -> bytes:
        """Read until both pipes end, or a limit is reached. Return the beginning of stderr."""
        until, token = time.monotonic() + self._wish.timeout, self._wish.cancel
        poller = select.poll()
        for fd in (stdout, stderr):
            poller.register(fd, select.POLLIN)
        left, errors = {stdout, stderr}, b""
        while left and not self._why:
            left_over = max(0.0, until - time.monotonic())
            ready = poller.poll(1000 * (left_over if token is None else min(left_over, _TURN)))
            if time.monotonic() > until:
                self._why = "time"
            elif token is not None and token.is_cancelled:
                self._why = "cancelled"
            for fd, _ in ready:
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    poller.unregister(fd)
                    left.discard(fd)
                elif fd == stdout:
                    self._take(chunk)
                else:
                    errors += chunk[: _KEPT_ERRORS - len(errors)]
        return errors

    def _take(self, chunk: bytes) -> None:
        if self._is_dropping:  # the rest of a row that is too long
            _, end, chunk = chunk.partition(b"\n")
            self._is_dropping = not end
        *rows, self._rest = (self._rest + chunk).split(b"\n")
        path = b""
        for row in rows:
            if row == b"--":
                path = b""
            elif b"\0" in row:
                self._add(path + row)
                path = b""
            else:  # a part of a file's name with a newline in it
                path += row + b"\n"
            if self._why:
                return
        self._rest = path + self._rest
        if len(self._rest) > _LONGEST_ROW:
            self._rest, self._is_dropping = b"", True

    def _add(self, row: bytes) -> None:
        name, _, rest = row.partition(b"\0")
        parts = _ROW.fullmatch(rest)
        path = os.fsdecode(name.removeprefix(b"./"))
        if parts is None or len(name) > _LONGEST_NAME or not self._is_shown(path):
            return
        number, mark, line = parts.groups()
        is_context = mark == b"-"
        text = line.decode("utf-8", "replace").removesuffix("\r")
        wish = self._wish
        self._count += not is_context
        self._chars += len(text)
        self._rows += 1  # also of context, and however short: a command can write rows into the program's output
        self._names += len(path)
        if self._count > wish.max_matches or self._rows > wish.max_matches * (1 + 2 * wish.context):
            self._why = "matches"
            return
        if self._chars > wish.max_chars or self._names > _MOST_NAMES:
            self._why = "chars"
            return
        self._found.append(Match(joined(self._above, path), int(number), text, is_context))

    def _is_shown(self, path: str) -> bool:
        known = self._known.get(path)
        if known is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[path] = known = self._is_allowed(path)
        return known

    def _is_allowed(self, path: str) -> bool:
        """Return whether the rules allow tools to show a file. The command, to which they don't apply, has found it."""
        files, parts = self._files, path.split("/")
        at = os.path.join(self._cwd, path)
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
            return False
        if files.is_denied(at) or files.view.mount_of(at).is_hidden:
            return False
        if files.policy.paths:
            try:
                os.close(files.opened_file(at))
            except OSError:
                return False
        return True

    def result(self, engine: str) -> Matches:
        """Return what was found, in order. A line comes once, even if it is next to two matches."""
        found: dict[tuple[str, int], Match] = {}
        for match in self._found:
            key = (match.path, match.line)
            if key not in found or found[key].is_context:
                found[key] = match
        in_order = tuple(found[key] for key in sorted(found))
        return Matches(in_order, bool(self._why), self._why, engine)
