"""An exception as a record: its names, its message, a traceback with the code's own lines, and those lines.

The traceback is Python's own, without this program's frames. Of a long traceback both ends are kept, of a long chain of
causes its beginning. Of an exception whose methods raise, only the class is reported.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Any

from ..interrupts import attempt
from .values import module_name, mro, plain, type_name

_OWN = "<nsbox>/"  # boot.py: how the names of this program's files begin
_MOST_FRAMES = 120
_MOST_CHAINED = 64
_MESSAGE = 1 << 16  # characters
_TRACEBACK = 1 << 18
_MOST_NOTES = 50
_MOST_LINES = 50
_LINE = 1000

_traceback: Any = vars(BaseException)["__traceback__"]
_cause: Any = vars(BaseException)["__cause__"]
_context: Any = vars(BaseException)["__context__"]
_qualname = vars(type)["__qualname__"].__get__
_clear_frames = traceback.clear_frames
_Formatted = traceback.TracebackException
_Group: Any = getattr(sys.modules["builtins"], "BaseExceptionGroup", None)


def _foreign(found: TracebackType | None) -> list[TracebackType]:
    entries = []
    while found is not None:
        if not found.tb_frame.f_code.co_filename.startswith(_OWN):
            entries.append(found)
        found = found.tb_next
    return entries


def _trimmed(entries: list[TracebackType]) -> TracebackType | None:
    if len(entries) > _MOST_FRAMES:
        entries = entries[: _MOST_FRAMES // 2] + entries[-_MOST_FRAMES // 2 :]
    new = None
    for entry in reversed(entries):
        new = TracebackType(new, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return new


class _Trimmed:
    """Exceptions while they are formatted: with short tracebacks, and not too many in a chain.

    left_out: how many frames the tracebacks lack.
    """

    def __init__(self) -> None:
        self.restored: list[tuple[Any, BaseException, Any]] = []
        self.left_out = 0

    def add(self, error: BaseException) -> None:
        waiting, seen = [error], {id(error)}
        while waiting:
            one = waiting.pop(0)
            old = _traceback.__get__(one)
            if old is not None:
                entries = _foreign(old)
                self.left_out += max(0, len(entries) - _MOST_FRAMES)
                self._replace(_traceback, one, _trimmed(entries))
            for link in (_cause, _context):
                following = link.__get__(one)
                if following is None or id(following) in seen:
                    continue
                if len(seen) >= _MOST_CHAINED:
                    self._replace(link, one, None)
                else:
                    seen.add(id(following))
                    waiting.append(following)
            if _Group is not None and _Group in mro(type(one)):
                members = vars(_Group)["exceptions"].__get__(one)[: _MOST_CHAINED - len(seen)]
                seen.update(map(id, members))
                waiting.extend(members)

    def _replace(self, attribute: Any, error: BaseException, new: Any) -> None:
        self.restored.append((attribute, error, attribute.__get__(error)))
        attribute.__set__(error, new)

    def restore(self) -> None:
        for attribute, error, old in reversed(self.restored):
            attribute.__set__(error, old)


def _formatted(error: BaseException) -> str:
    parts = _Formatted(type(error), error, _traceback.__get__(error)).format()
    return "".join(parts)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def message(error: BaseException) -> str:
    """Return what str() says of an exception; if it raises, say so."""
    text, failure = attempt(str, error)
    if failure is not None:
        return f"<str() of this exception raised {type_name(type(failure))}>"
    return _shortened(plain(text, 1 << 24), _MESSAGE)


def _notes(error: BaseException) -> list[str]:
    notes, _ = attempt(getattr, error, "__notes__", None)
    if type(notes) is not list:
        return []
    return [_shortened(plain(note, 1 << 24), _MESSAGE // 16) for note in notes[:_MOST_NOTES] if str in mro(type(note))]


def _lines(error: BaseException, sources: dict[str, list[str]]) -> list[list[Any]]:
    """Return number and text of each line of our caller's code that the exception came through."""
    numbers = []
    for entry in _foreign(_traceback.__get__(error)):
        lines = sources.get(entry.tb_frame.f_code.co_filename)
        if lines is not None and 0 < (entry.tb_lineno or 0) <= len(lines):
            numbers.append((entry.tb_lineno, lines[entry.tb_lineno - 1]))
    if SyntaxError in mro(type(error)):
        lines = sources.get(str(vars(SyntaxError)["filename"].__get__(error)))
        number = vars(SyntaxError)["lineno"].__get__(error)
        if lines is not None and type(number) is int and 0 < number <= len(lines):
            numbers.append((number, lines[number - 1]))
    if len(numbers) > _MOST_LINES:
        numbers = numbers[: _MOST_LINES // 2] + numbers[-_MOST_LINES // 2 :]
    return [[number, text.rstrip("\n")[:_LINE]] for number, text in numbers]


def record(error: BaseException, sources: dict[str, list[str]]) -> dict[str, Any]:
    """Return what a reply says of an exception; raises nothing that foreign code raises.

    sources: the lines of the code that was run, by file name.
    """
    kind = type(error)
    if MemoryError in mro(kind):  # its frames hold what was too much
        attempt(_clear_frames, _traceback.__get__(error))
    said = message(error)
    trimmed = _Trimmed()
    try:
        trimmed.add(error)
        text, failure = attempt(_formatted, error)
    finally:
        trimmed.restore()
    if failure is not None:
        text = f"{type_name(kind)}: {said}\n"
    elif trimmed.left_out:  # "repeated N more times" counts only what is there
        text = f"[{trimmed.left_out} frames in the middle are left out]\n{text}"
    return {
        "type": plain(_qualname(kind), 500),
        "module": module_name(kind),
        "message": said,
        "traceback": _shortened(text, _TRACEBACK),
        "notes": _notes(error),
        "lines": _lines(error, sources),
    }
