"""What a branch says about the code that it has run: read as data that anyone may have written."""

from __future__ import annotations

import re

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._interpreter.wire import WireError, is_deep, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Scrub = Callable[[str], str]

# What the code's own program bounds; here it is counted again, in characters.
VALUE, REPR, MIME, TEXT, DEPTH = 1 << 20, 1 << 16, 8 << 20, 1 << 18, 64
_MOST_DISPLAYS, _MOST_TYPES, _MOST_LINES, _MOST_WORD = 100, 32, 200, 1000
_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(?:;[\w .=+-]{1,64})?")
LIMITS = {"value_bytes": VALUE, "mime_bytes": MIME, "depth": DEPTH}


@frozen
class PythonException(Frozen):
    """An exception that ended the code.

    type, module: its class, such as "KeyError" of "builtins".
    message: str() of it.
    traceback: the text that the interpreter would print, with the code's own lines.
    lines: the lines of the code that it passed through, outermost first: pairs of the number and the source.
    notes: what add_note() has added.
    """

    type: str
    module: str
    message: str
    traceback: str
    lines: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def as_dict(self) -> dict[str, object]:
        """Return it as values for JSON."""
        return {
            "type": self.type,
            "module": self.module,
            "message": self.message,
            "traceback": self.traceback,
            "lines": [[number, source] for number, source in self.lines],
            "notes": list(self.notes),
        }


@frozen
class Reply(Frozen):
    """What a branch says about one run, as PythonResult has it. exit: the status of sys.exit(), if that ended it."""

    value: Any = None
    has_value: bool = False
    repr: str | None = None
    type: str | None = None
    mime: Any = None
    displays: tuple[dict[str, Any], ...] = ()
    exception: PythonException | None = None
    exit: int | None = None
    omissions: tuple[str, ...] = ()


class Reader:
    """Reads replies. scrub: returns a text without secrets; None: there are none."""

    def __init__(self, scrub: Scrub | None = None) -> None:
        self._scrub = scrub
        self._omissions: list[str] = []

    def read(self, message: Mapping[str, Any], displays: list[Any]) -> Reply:
        """Return the reply in a message. displays: what was shown before it. Raises WireError."""
        self._omissions = [self._text(name, _MOST_WORD) for name in _list(message, "truncated")[:16]]
        has_value, value = message.get("has_value") is True and "value" in message, None
        if has_value and is_deep(message["value"], DEPTH):
            has_value = False
            self._omissions.append("value")
        elif has_value:
            value = self._scrubbed(message["value"])
        shown = [*displays, *_list(message, "displays")]
        if len(shown) > _MOST_DISPLAYS:
            self._omissions.append("displays")
        exit = message.get("exit")
        if exit is not None and (type(exit) is not int or not -(2**31) <= exit < 2**32):
            raise WireError(f"'exit' is {exit!r:.60}, and no status")
        return Reply(
            value=value,
            has_value=has_value,
            repr=self._optional(message, "repr", REPR),
            type=self._optional(message, "type", _MOST_WORD),
            mime=None if message.get("mime") is None else self._bundle(message["mime"]),
            displays=tuple(self._bundle(one) for one in shown[:_MOST_DISPLAYS]),
            exception=self._exception(message.get("exception")),
            exit=exit,
            omissions=tuple(dict.fromkeys(self._omissions)),
        )

    def _text(self, value: object, most: int, what: str = "") -> str:
        if not isinstance(value, str):
            raise WireError(f"a text is {type_phrase(value)}")
        text = plain(value)
        if self._scrub is not None:
            text = self._scrub(text)
        if len(text) > most:
            self._omissions.append(what or "text")
            text = f"{text[: most // 2]}\n[... {len(text) - most} characters left out ...]\n{text[-(most // 2) :]}"
        return text

    def _optional(self, message: Mapping[str, Any], name: str, most: int) -> str | None:
        value = message.get(name)
        return None if value is None else self._text(value, most, name)

    def _scrubbed(self, value: Any) -> Any:
        """Return a value of JSON with its texts scrubbed; it isn't deep."""
        if self._scrub is None:
            return value
        if isinstance(value, str):
            return self._scrub(value) if value.isascii() else self._scrub(plain(value))
        if isinstance(value, list):
            return [self._scrubbed(one) for one in value]
        if isinstance(value, dict):
            return {self._scrubbed(name): self._scrubbed(one) for name, one in value.items()}
        return value

    def _bundle(self, bundle: object) -> dict[str, Any]:
        """Return a MIME bundle: contents by their types, text, or base64 if the type isn't text's."""
        if not isinstance(bundle, dict):
            raise WireError(f"a MIME bundle is {type_phrase(bundle)}")
        if len(bundle) > _MOST_TYPES:
            raise WireError(f"a MIME bundle has {len(bundle)} types")
        found: dict[str, Any] = {}
        for name, content in bundle.items():
            if not _TYPE.fullmatch(name):
                raise WireError(f"{name!a:.80} is no MIME type")
            if isinstance(content, str) and len(content) <= MIME:
                found[name] = self._text(content, MIME, "mime")
            elif not isinstance(content, str) and not is_deep(content, DEPTH):  # application/json
                found[name] = self._scrubbed(content)
            else:
                self._omissions.append("mime")
        return found

    def _exception(self, row: object) -> PythonException | None:
        if row is None:
            return None
        if not isinstance(row, dict):
            raise WireError(f"the exception is {type_phrase(row)}")
        lines = []
        for line in _list(row, "lines")[:_MOST_LINES]:
            if not isinstance(line, list) or len(line) != 2 or type(line[0]) is not int:
                raise WireError("a line of the code isn't a number and a text")
            lines.append((line[0], self._text(line[1], _MOST_WORD, "traceback")))
        return PythonException(
            type=self._text(row.get("type"), _MOST_WORD),
            module=self._text(row.get("module") or "", _MOST_WORD),
            message=self._text(row.get("message"), TEXT, "message"),
            traceback=self._text(row.get("traceback"), TEXT, "traceback"),
            lines=tuple(lines),
            notes=tuple(self._text(note, TEXT, "notes") for note in _list(row, "notes")[:_MOST_LINES]),
        )


def _list(message: Mapping[str, Any], name: str) -> list[Any]:
    value = message.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"{name!r} is {type_phrase(value)}")
    return value
