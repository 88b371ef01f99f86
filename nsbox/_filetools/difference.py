"""What has changed in a file, as a unified diff of bounded size, made in bounded time."""

from __future__ import annotations

import difflib

MOST_BYTES = 1 << 20  # of each side
_MOST_COMPARED = 1000  # lines of each side, after the common beginning and end: difflib is quadratic at worst
_MOST_CHARS = 20_000
_CONTEXT = 3
_NO_NEWLINE = "\\ No newline at end of file"


def _lines(data: bytes) -> list[str] | None:
    """Return the lines, the last one perhaps without a newline; None: it isn't text, or is too long."""
    if len(data) > MOST_BYTES or b"\0" in data[:8192]:
        return None
    lines = [line + "\n" for line in data.decode("utf-8", "replace").split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _codes(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Return opcodes as difflib does. Only lines between the common beginning and the common end are compared."""
    start, most = 0, min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    one, other = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(one), len(other)) > _MOST_COMPARED:
        middle: list[tuple[str, int, int, int, int]] = [("replace", 0, len(one), 0, len(other))]
    else:
        middle = [*difflib.SequenceMatcher(None, one, other).get_opcodes()]
    moved = [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in middle]
    tail = [("equal", len(old) - end, len(old), len(new) - end, len(new))] if end else []
    return [("equal", 0, start, 0, start), *moved, *tail] if start else [*moved, *tail]


class _Codes(difflib.SequenceMatcher[str]):
    """Groups opcodes into hunks, as its base class does."""

    def __init__(self, codes: list[tuple[str, int, int, int, int]]) -> None:
        self._codes = codes

    def get_opcodes(self) -> list[tuple[str, int, int, int, int]]:  # type: ignore[override]
        return self._codes


def _range(start: int, stop: int) -> str:
    count = stop - start
    return f"{start + 1 if count else start},{count}" if count != 1 else f"{start + 1}"


def unified(old: bytes | None, new: bytes | None, path: str) -> tuple[str | None, bool]:
    """Return the diff, None if it can't be shown, and whether it is cut. A side that is None is a missing file."""
    before, after = _lines(old or b""), _lines(new or b"")
    if before is None or after is None:
        return None, False
    rows = [f"--- {'/dev/null' if old is None else path}\n", f"+++ {'/dev/null' if new is None else path}\n"]
    size = sum(map(len, rows))
    for group in _Codes(_codes(before, after)).get_grouped_opcodes(_CONTEXT):
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        hunk = [f"@@ -{_range(a, b)} +{_range(c, d)} @@\n"]
        for tag, i, j, k, n in group:
            if tag == "equal":
                hunk += [f" {line}" for line in before[i:j]]
                continue
            hunk += [f"-{line}" for line in before[i:j]]
            hunk += [f"+{line}" for line in after[k:n]]
        for row in hunk:
            text = row if row.endswith("\n") else f"{row}\n{_NO_NEWLINE}\n"
            size += len(text)
            if size > _MOST_CHARS:
                return "".join(rows) + "[the diff is cut here]\n", True
            rows.append(text)
    return ("".join(rows) if len(rows) > 2 else ""), False
