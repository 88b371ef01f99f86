"""A profile in a real TinyScheme, the interpreter that libsandbox embeds: what it understands, written by itself.

Every word of vocabulary.py is defined: operations, symbols and modifiers as themselves, filters as procedures that
return what they were given, (allow ...) and (deny ...) as procedures that record. Any other word is unbound, which is
TinyScheme's own error. Nothing of sbpl.py reads the profile here, so that two readers can be compared.

TinyScheme as Debian builds it (1.42) has limits that libsandbox's hasn't. A string literal has 255 bytes at most:
longer ones are written as a (string-append ...). #"..." is no string: such become ordinary literals. string-ref refuses
every index, and with it string=?, equal? and list->string: so strings are taken apart by substring, and compared as
symbols.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsbox_testing import needs

from nsbox_seatbelt import vocabulary
from nsbox_seatbelt.sbpl import Form, String, Symbol
from nsbox_seatbelt.values import encoded

_CHUNK = 60  # bytes of a literal; each is at most four characters in the text
_LITERAL = re.compile(rb';[^\n]*|#"(?P<raw>[^"]*)"|"(?P<string>(?:[^"\\]|\\.)*)"', re.DOTALL)
_SHIM = r"""
(define *rules* '())
(define (version . numbers) #t)
(define (allow . form) (set! *rules* (cons (cons 'allow form) *rules*)))
(define (deny . form) (set! *rules* (cons (cons 'deny form) *rules*)))
(define (with . form) (cons 'with form))
(define (param key)
  (let ((found (assq (string->symbol key) *params*)))
    (if found (cdr found) (error "no parameter" key))))
(define (regex-quote text)
  (let loop ((at (- (string-length text) 1)) (done '()))
    (if (< at 0)
        (apply string-append done)
        (let ((part (substring text at (+ at 1))))
          (loop (- at 1)
                (if (memq (string->symbol part) *special*) (cons "\\" (cons part done)) (cons part done)))))))
"""
_SPECIAL = "\\^$.|?*+()[]{}"
_FINISH = b"\n(write (cons 'end (reverse *rules*)))\n"
_TOKEN = re.compile(rb'\s+|(?P<open>\()|(?P<close>\))|"(?P<string>(?:[^"\\]|\\.)*)"|(?P<atom>[^\s()"]+)', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)


class SchemeError(ValueError):
    """TinyScheme doesn't load the profile. The message is its own, where it has one."""


@dataclass(frozen=True)
class Loaded:
    """One rule as TinyScheme has it: string expressions are their values, symbols are in lower case."""

    action: str
    form: tuple[Form, ...]


def load(profile: str, params: Mapping[str, str]) -> list[Loaded]:
    """Return the rules of a profile; raises SchemeError, and skips the test without TinyScheme. Each parameter needs a value."""
    program = needs.require("tinyscheme")
    if any("\0" in text for text in (profile, *params, *params.values())):
        raise SchemeError("a NUL, which no C string has")
    # All in one file: at its end TinyScheme forgets what is open without a word, but then _FINISH is part of that. The
    # shim is on the profile's first line, so that the lines in messages are the profile's.
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "profile.scm"
        file.write_bytes(_shim(params) + b" " + readable(encoded(profile)) + _FINISH)
        done = subprocess.run(
            [program, file.name], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=50
        )
    said = (done.stdout + done.stderr).decode("utf-8", "backslashreplace").strip()
    if not done.stdout.startswith(b"(end"):  # its exit status says nothing of an open list
        raise SchemeError(said or "TinyScheme doesn't come to the end: a ( without its ), or a (quit)")
    return _rules(done.stdout)


def readable(profile: bytes) -> bytes:
    """Return a profile with each string as TinyScheme can read it: no #"...", and none too long.

    What has no end stays as it is, so that TinyScheme can complain.
    """

    def rewritten(match: re.Match[bytes]) -> bytes:
        if match["raw"] is not None:
            return _expression(match["raw"])
        if match["string"] is None or len(match["string"]) <= _CHUNK:
            return match.group()
        parts = re.findall(rb"\\.|[^\\]", match["string"], re.DOTALL)
        chunks = [b"".join(parts[at : at + _CHUNK]) for at in range(0, len(parts), _CHUNK)]
        return b'(string-append "' + b'" "'.join(chunks) + b'")'

    return _LITERAL.sub(rewritten, profile)


def _expression(value: bytes) -> bytes:
    """Return these bytes as an expression of Scheme."""
    chunks = [value[at : at + _CHUNK] for at in range(0, len(value), _CHUNK)] or [b""]
    literals = [b'"' + b"".join(_character(byte) for byte in chunk) + b'"' for chunk in chunks]
    return literals[0] if len(literals) == 1 else b"(string-append " + b" ".join(literals) + b")"


def _character(byte: int) -> bytes:
    return bytes([byte]) if 32 <= byte < 127 and byte not in b'"\\' else b"\\x%02x" % byte


def _shim(params: Mapping[str, str]) -> bytes:
    """Return what is defined before the profile, on one line."""
    symbols = {*vocabulary.OPERATIONS, *vocabulary.MODIFIERS, *vocabulary.SYMBOLS}
    lines = [f"(define {word} '{word})" for word in sorted(symbols)]
    lines += [f"(define ({name} . rest) (cons '{name} rest))" for name in sorted(vocabulary.FILTERS)]
    text = _SHIM + "\n".join(lines)
    special = [b"(string->symbol " + _expression(ch.encode()) + b")" for ch in _SPECIAL]
    pairs = [
        b"(cons (string->symbol " + _expression(encoded(key)) + b") " + _expression(encoded(value)) + b")"
        for key, value in params.items()
    ]
    lists = b"(define *special* (list %b)) (define *params* (list %b))" % (b" ".join(special), b" ".join(pairs))
    return " ".join(text.split()).encode() + b" " + lists


def _rules(output: bytes) -> list[Loaded]:
    """Return what TinyScheme has written with `write`."""
    stack: list[list[Form]] = [[]]
    for match in _TOKEN.finditer(output):
        if match["open"]:
            stack.append([])
        elif match["close"]:
            done = tuple(stack.pop())
            stack[-1].append(done)
        elif match["string"] is not None:
            text = _ESCAPE.sub(_unescaped, match["string"])
            stack[-1].append(String(text.decode("utf-8", "surrogateescape")))
        elif match["atom"]:
            stack[-1].append(_atom(match["atom"].decode()))
    (whole,) = stack[0]
    assert isinstance(whole, tuple)
    found = []
    for rule in whole[1:]:
        assert isinstance(rule, tuple) and isinstance(rule[0], Symbol)
        found.append(Loaded(rule[0].name, rule[1:]))
    return found


def _unescaped(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(escape, escape)


def _atom(text: str) -> Form:
    if text in ("#t", "#f"):
        return text == "#t"
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else Symbol(text)
