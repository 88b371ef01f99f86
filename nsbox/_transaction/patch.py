"""Changes as a unified diff, in the form that git writes and git apply reads."""

from __future__ import annotations

import difflib
import os
import stat
from collections import Counter

from nsbox._base.display import c_quoted, shown
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._files.comparison import digest_of
from nsbox._files.files import Tree
from nsbox._transaction.change import Change, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Literal

    _Code = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]

_NO_NEWLINE = "\\ No newline at end of file\n"
_KNOWN = ("symlink", "file")  # to git
_LEFT = ("socket", "device")  # behind, by commit()
_MOST_LINES, _MOST_PAIRS, _MOST_WORK = 10_000, 500_000, 50_000_000
_MOST_WORK_IN_ALL = 20 * _MOST_WORK
_MOST_REPEATED = 100  # characters of the names of attributes that a file with many names has
_MOST_READ = 256 << 20  # bytes of all files: a command makes one with many names, or one big hole, at little cost


@frozen
class _Side(Frozen):
    """A file before or after: its mode as git writes it, and its contents; None: they are too large to be shown."""

    mode: str
    content: bytes | None


def _git_mode(mode: int) -> str:
    """Return a file's mode as git records it, which knows two of them."""
    return "100755" if mode & stat.S_IXUSR else "100644"


def _quoted(prefix: str, path: str) -> str:
    """Return a name as git writes it: as a string of C if anything in it is unusual."""
    name = prefix + path
    return name if name.isascii() and name.isprintable() and not {'"', "\\"} & {*name} else c_quoted(name)


def _lines(content: bytes) -> list[str]:
    text = content.decode("utf-8", "surrogateescape")
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


class _Work:
    """How much work difflib has had so far."""

    def __init__(self) -> None:
        self._done = 0

    def is_too_much(self, before: Sequence[str], after: Sequence[str]) -> bool:
        """Return whether a comparison would take long; if not, count its work.

        At worst, difflib is quadratic in the lines, and in how often each occurs. From 200 lines on, it ignores lines
        that make up more than a hundredth of all.
        """
        counts = Counter(before), Counter(after)
        popular = len(after) // 100 + 1 if len(after) >= 200 else len(after)
        pairs = sum(count * counts[1][line] for line, count in counts[0].items() if counts[1][line] <= popular)
        lines = max(len(before), len(after))
        work = pairs * lines
        if lines > _MOST_LINES or pairs > _MOST_PAIRS or work > min(_MOST_WORK, _MOST_WORK_IN_ALL - self._done):
            return True
        self._done += work
        return False


class _Compared(difflib.SequenceMatcher[str]):
    """Groups opcodes that are known already."""

    def __init__(self, codes: list[_Code]) -> None:
        super().__init__()
        self._codes = codes

    def get_opcodes(self) -> list[_Code]:
        return self._codes


def _groups(before: list[str], after: list[str], work: _Work) -> Iterable[Sequence[tuple[str, int, int, int, int]]]:
    """Return the opcodes of each hunk, as difflib has them. It needn't compare lines that both share at either end."""
    shorter = min(len(before), len(after))
    head = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    tail = next((n for n in range(shorter - head) if before[-1 - n] != after[-1 - n]), shorter - head)
    one, other = before[head : len(before) - tail], after[head : len(after) - tail]
    if work.is_too_much(one, other):
        middle: list[_Code] = [("replace", 0, len(one), 0, len(other))]
    else:
        middle = list(difflib.SequenceMatcher(None, one, other).get_opcodes())
    shifted: list[_Code] = [(what, i + head, k + head, j + head, m + head) for what, i, k, j, m in middle]
    ends: list[_Code] = [("equal", 0, head, 0, head)] if head else []
    last: list[_Code] = [("equal", len(before) - tail, len(before), len(after) - tail, len(after))] if tail else []
    return _Compared([*ends, *shifted, *last]).get_grouped_opcodes()


def _range(start: int, stop: int) -> str:
    count = stop - start
    return f"{start + 1}" if count == 1 else f"{start + 1 if count else start},{count}"


def _hunks(before: bytes, after: bytes, work: _Work) -> str:
    one, other = _lines(before), _lines(after)
    rows: list[str] = []
    if one == other:
        return ""
    for group in _groups(one, other, work):
        (_, i, _, j, _), (_, _, k, _, m) = group[0], group[-1]
        rows.append(f"@@ -{_range(i, k)} +{_range(j, m)} @@\n")
        for what, old, old_end, new, new_end in group:
            if what == "equal":
                rows += [" " + line for line in one[old:old_end]]
                continue
            rows += ["-" + line for line in one[old:old_end]]
            rows += ["+" + line for line in other[new:new_end]]
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in rows)


def _label(prefix: str, path: str) -> str:
    name = _quoted(prefix, path)
    return name + "\t" if " " in name and not name.startswith('"') else name


def _body(old: str, new: str, before: _Side | None, after: _Side | None, work: _Work) -> str:
    """Return what follows a file's header; "" if the contents are the same."""
    one, other = (b"" if side is None else side.content for side in (before, after))
    names = (_label("a/", old) if before else "/dev/null", _label("b/", new) if after else "/dev/null")
    if one is None or other is None or b"\0" in one or b"\0" in other:
        return "" if one == other is not None else f"Binary files {names[0]} and {names[1]} differ\n"
    hunks = _hunks(one, other, work)
    return f"--- {names[0]}\n+++ {names[1]}\n{hunks}" if hunks else ""


class Patch:
    """Makes the diff of one change after the other.

    By hard links and holes, commands can make many large files at little cost. So there are limits. Of files with more
    than `most` bytes, and of all files after the first _MOST_READ bytes, the diff only says that they differ. After too
    much work for difflib, all lines of a file count as changed.
    """

    def __init__(self, upper: Tree, real: Tree, most: int, changes: Collection[Change]) -> None:
        self._upper, self._real, self._most = upper, real, most
        self.shown: dict[str, bytes] = {}  # by path, what was read of each file; see Comparison.as_shown()
        self._left = _MOST_READ
        self._work = _Work()
        self._attributes = {change.path: change.attributes for change in changes if change.attributes}
        self._implied = {change.path.rpartition("/")[0] for change in changes if change.type in _KNOWN}

    def of(self, change: Change) -> str:
        """Return the diff of a change, and lines for what git can't express."""
        return self._git(change) + "".join(f"# {line}\n" for line in self._others(change))

    def _git(self, change: Change) -> str:
        before = after = None
        old_type = change.old_type or change.type
        old_mode = change.mode if change.old_mode is None else change.old_mode
        old_path = change.old_path or change.path
        if change.kind != "added" and old_type in _KNOWN:
            before = self._side(self._real, old_path, old_type, old_mode)
        if change.kind != "deleted" and change.type in _KNOWN:
            after = self._side(self._upper, change.path, change.type, change.mode)
            if after.content is not None:
                is_link = change.type == "symlink"
                self.shown[change.path] = after.content if is_link else digest_of(after.content)
        if before is not None and after is not None and before.mode[:3] != after.mode[:3]:  # as git: deleted, and new
            return self._text(change.path, change.path, before, None) + self._text(
                change.path, change.path, None, after
            )
        return self._text(old_path, change.path, before, after) if before or after else ""

    def _side(self, tree: Tree, path: str, kind: str, mode: int) -> _Side:
        if kind == "symlink":
            return _Side("120000", os.fsencode(tree.link(path)))
        most = min(self._most, self._left)
        with tree.file(path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(most + 1) if os.fstat(fd).st_size <= most else None
        self._left -= len(content or b"")
        return _Side(_git_mode(mode), content if content is None or len(content) <= most else None)

    def _others(self, change: Change) -> Iterable[str]:
        """Yield what git's form can't express."""
        name, now = shown(change.path), f"mode {kind_of(change.type) | change.mode:06o}"
        if change.kind == "deleted":
            if change.type not in _KNOWN and not (change.type == "directory" and change.path in self._implied):
                yield f"{name}: deleted {change.type}"
            return
        if change.old_type == change.type:
            was = f"mode {kind_of(change.type) | (change.old_mode or 0):06o}"
            is_told = change.type == "file" and was == f"mode {_git_mode(change.old_mode or 0)}"
            if was != now and not (is_told and now == f"mode {_git_mode(change.mode)}"):
                yield f"{name}: old {was}, new {now}"
        else:
            if change.old_type is not None:
                yield f"{name}: {change.old_type} becomes {change.type}"
            is_plain = change.type == "file" and now == f"mode {_git_mode(change.mode)}"
            is_implied = change.type == "directory" and change.mode == 0o755 and change.path in self._implied
            if not (is_plain or is_implied or change.type == "symlink"):
                yield f"{name}: new {change.type} {now}{'; it stays behind' if change.type in _LEFT else ''}"
        if change.type == "file" and change.mode & (stat.S_ISUID | stat.S_ISGID):
            yield f"{name}: set-user-ID or set-group-ID, which commit() drops unless keep_set_ids=True"
        is_same = change.link is not None and change.attributes == self._attributes.get(change.link)
        is_long = sum(map(len, change.attributes)) > _MOST_REPEATED
        if change.attributes and not (is_same and is_long):
            yield f"{name}: attributes {', '.join(map(shown, change.attributes))}"
        if change.link is not None:
            yield f"{name}: hard link to {shown(change.link)}{', with its attributes' if is_same and is_long else ''}"

    def _text(self, old: str, new: str, before: _Side | None, after: _Side | None) -> str:
        header = []
        if before is None and after is not None:
            header.append(f"new file mode {after.mode}")
        elif after is None and before is not None:
            header.append(f"deleted file mode {before.mode}")
        elif before is not None and after is not None and before.mode != after.mode:
            header += [f"old mode {before.mode}", f"new mode {after.mode}"]
        if old != new:
            same = ["similarity index 100%"] if before == after else []
            header += [*same, f"rename from {_quoted('', old)}", f"rename to {_quoted('', new)}"]
        body = _body(old, new, before, after, self._work)
        if not header and not body:
            return ""
        head = f"diff --git {_quoted('a/', old)} {_quoted('b/', new)}\n"
        return head + "".join(f"{line}\n" for line in header) + body
