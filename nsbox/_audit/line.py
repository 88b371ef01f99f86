"""A record as one line of ASCII. Nothing in it can end the line, reach a terminal as an escape, or make it too long.

Texts come from commands that nobody trusts. All that isn't visible in one, and each byte that isn't UTF-8, is written
as in C: so no reader of JSON, and no terminal that shows a value, meets a control character. The record names the
fields in which that was done, and the fields that were cut.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nsbox._audit.redaction import CUT
from nsbox._base.display import printable

MOST_LINE = 16_384  # bytes, the line end included
_BUDGETS = (4096, 1024, 256, 64)  # bytes of a field's texts together, as JSON has them, until the line fits
_FIXED = ("schema", "event", "time", "process", "seq", "id", "label")


class _Shape:
    """Makes one record fit a budget, and remembers what that took."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.left = budget
        self.is_cut = self.is_escaped = False

    def value(self, value: Any) -> Any:
        """Return a value as JSON has it, within what is left of the budget."""
        if isinstance(value, dict):
            return {str(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._items(value)
        if isinstance(value, bytes):
            return self._text(os.fsdecode(value))
        if isinstance(value, str):
            return self._text(value)
        return value

    def _items(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        items: list[Any] = []
        for value in values:
            if self.left <= 0 or len(items) >= self.budget // 16:
                self.is_cut = True
                break
            items.append(self.value(value))
        return items

    def _text(self, text: str) -> str:
        left = max(self.left, 0)
        kept = text[:left]
        shown, size, is_escaped = _visible(kept)
        while size > left:
            kept = kept[: min(len(kept) - 1, len(kept) * left // size)]
            shown, size, is_escaped = _visible(kept)
        self.left -= size + 2
        self.is_escaped |= is_escaped
        if len(kept) == len(text):
            return shown
        self.is_cut = True
        return shown + CUT


def _visible(text: str) -> tuple[str, int, bool]:
    """Return a text with escapes for what isn't visible, its size in JSON, and whether there are any such escapes."""
    if text.isascii() and text.isprintable():
        return text, len(text) + text.count("\\") + text.count('"'), False
    try:
        escaped = printable(text)
        is_escaped = escaped != text
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        text = text.encode("utf-8", "backslashreplace").decode()
        is_escaped = True
    if is_escaped:
        escaped = printable(text.replace("\\", "\\\\"))
    return escaped, len(json.dumps(escaped)) - 2, is_escaped


def line(record: dict[str, Any]) -> str:
    """Return a record as a line of at most MOST_LINE bytes, without its end. Fields that are too long are cut."""
    for budget in _BUDGETS:
        text = _encoded(_shaped(record, budget))
        if len(text) < MOST_LINE:
            return text
    fixed = {name: record[name] for name in _FIXED if name in record}
    return _encoded(_shaped(fixed, _BUDGETS[-1]) | {"cut": sorted(record.keys() - fixed.keys())[:64]})


def _shaped(record: dict[str, Any], budget: int) -> dict[str, Any]:
    shaped: dict[str, Any] = {}
    cut, escaped = [], []
    for name, value in record.items():
        shape = _Shape(budget)
        shaped[name] = shape.value(value)
        cut += [name] if shape.is_cut else []
        escaped += [name] if shape.is_escaped else []
    return shaped | ({"cut": cut} if cut else {}) | ({"escaped": escaped} if escaped else {})


def _encoded(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
