"""What a transaction has changed: the upper directory of an overlay, compared with the workspace below it.

Digests of contents and attributes let a commit bring in what was reviewed, and nothing else. Commands choose how many
files there are, and how large, so all work has limits. Beyond a limit of reading, a change is reported with less
certainty (see _seal() and unsure()); beyond a limit of counting, OSError is raised.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Collection, Mapping

from nsbox._base.checks import check_answer
from nsbox._base.frozen import replace
from nsbox._files.comparison import digest, same_contents
from nsbox._files.copies import is_copied
from nsbox._files.files import Tree, join
from nsbox._transaction.change import Change, kind_of, type_of
from nsbox._transaction.renames import Renames

_MOST_COMPARED = 16 << 30  # bytes of all files that have the same size as before
_MOST_DIGESTED = 4 << 30  # bytes of all contents of which digests are made
_MOST_SHOWN = 4 << 30  # bytes of what has been shown, which patch() bounds
_UNSURE = "shown while it could be changed"  # instead of a digest
_MOST_ENTRIES = 500_000  # files, directories and the like that are looked at
_MOST_PATHS = 64 << 20  # characters of all their paths, each of which may have thousands
_MOST_ATTRIBUTES = 64 << 20  # characters of the names of all their attributes, of each file once
_ATTRIBUTE = 32  # characters that an attribute counts for, besides its name
_LONGEST = 4096  # PATH_MAX: what is deeper could only be reached step by step


def _is_whiteout(status: os.stat_result) -> bool:
    """Return whether it is overlayfs's mark for a deleted file of the layer below. No command can make one."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _has(fd: int | str, name: str) -> bytes | None:
    try:
        return os.getxattr(fd, f"user.overlay.{name}", follow_symlinks=True)
    except OSError as error:
        check_answer(error)
        return None


def _new(kind: str, path: str, now: os.stat_result, was: os.stat_result | None = None) -> Change:
    mode = stat.S_IMODE(now.st_mode)
    if was is None:
        return Change(kind, path, type_of(now.st_mode), mode)
    return Change(kind, path, type_of(now.st_mode), mode, None, type_of(was.st_mode), stat.S_IMODE(was.st_mode))


class Comparison:
    """Compares an upper directory with the real one. No command may be at work in either."""

    def __init__(self, upper: Tree, real: Tree, *, moment: int = 0, shown: frozenset[str] = frozenset()) -> None:
        """Compare two trees. moment: how many commands have been started so far. shown: paths, see as_shown()."""
        self._upper, self._real, self._moment, self._shown = upper, real, moment, shown
        self._left = _MOST_ENTRIES
        self._left_of_paths = _MOST_PATHS
        self._renames = Renames(upper, real)
        self._left_to_compare = _MOST_COMPARED
        self._left_of_attributes = _MOST_ATTRIBUTES
        self._values: dict[tuple[bool, int, int], dict[str, bytes]] = {}  # of files with many names, by tree and inode
        self._listed: dict[tuple[str, ...], tuple[str, ...]] = {}  # names of attributes, which many files may share
        self._left_to_show = _MOST_SHOWN
        self._unread: set[str] = set()  # paths of files whose digests aren't of their contents
        self._read: set[str] = set()  # those of them that were read nonetheless, since patch() has shown them
        self._compared: dict[tuple[int, int, int, int], bool] = {}  # pairs of files, now and before: are they the same?

    def changes(self) -> list[Change]:
        """Return all changes, sorted by path. A renamed file is "deleted" here and "added" there. Raises OSError."""
        with self._upper.walking(), self._real.walking():
            return self._changes()

    def _changes(self) -> list[Change]:
        found: list[Change] = []
        now, was = self._upper.status, os.fstat(self._real.fd)
        if stat.S_IMODE(now.st_mode) != stat.S_IMODE(was.st_mode) or self._attributes(".", now, was):
            found.append(_new("modified", ".", now, was))
        todo = [("", True, False)]
        while todo:
            self._directory(*todo.pop(), todo, found)
        return sorted(found, key=lambda change: change.path.replace("/", "\0"))

    def _names(self, tree: Tree, path: str) -> list[str]:
        """Return the names in a directory, which count as entries; raises OSError if there are too many."""
        if len(path) > _LONGEST:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{path[:100]}...")
        try:
            names = tree.names(path, self._left)
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            what = f"has changed more than {_MOST_ENTRIES} files; name a smaller workspace, or commit more often"
            raise OSError(errno.E2BIG, f"the transaction {what}", path or ".") from None
        if len(path) + 1 + max(map(len, names), default=0) > _LONGEST:  # no journal has such a path
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{path[:100]}...")
        self._left -= len(names)
        self._left_of_paths -= sum(map(len, names)) + len(names) * (len(path) + 1)
        if self._left_of_paths < 0:
            what = f"has changed files whose paths have more than {_MOST_PATHS} characters in all"
            raise OSError(errno.E2BIG, f"the transaction {what}", f"{path[:100]}...")
        return names

    def _directory(
        self, path: str, has_real: bool, is_opaque: bool, todo: list[tuple[str, bool, bool]], found: list[Change]
    ) -> None:
        """Compare one directory. is_opaque: nothing of the real one shows through: a directory above it is new."""
        names = self._names(self._upper, path)
        is_opaque = is_opaque or self._is_opaque(path)
        for name in names:
            at = join(path, name)
            now, was = self._upper.stat(at), self._real.stat(at) if has_real else None
            if now is None:  # a running command removed it a moment ago
                continue
            if _is_whiteout(now):
                found += self._deleted(at, was) if was is not None else []
                continue
            if stat.S_ISDIR(now.st_mode):
                todo.append((at, was is not None and stat.S_ISDIR(was.st_mode), is_opaque))
            if was is None:
                found.append(_new("added", at, now))
            elif self._differs(at, now, was) or self._attributes(at, now, was):
                found.append(_new("modified", at, now, was))
                found += self._deleted(at, was)[1:] if not stat.S_ISDIR(now.st_mode) else []
        if is_opaque and has_real:
            for name in sorted(set(self._names(self._real, path)).difference(names)):
                gone = self._real.stat(join(path, name))
                found += self._deleted(join(path, name), gone) if gone is not None else []

    def _is_opaque(self, path: str) -> bool:
        """Return whether nothing is left of the directory that was there before."""
        with self._upper.dir(path) as fd:
            return _has(fd, "opaque") == b"y"

    def _deleted(self, path: str, was: os.stat_result) -> list[Change]:
        found, todo = [], [(path, was)]
        while todo:
            at, one = todo.pop()
            found.append(_new("deleted", at, one))
            if stat.S_ISDIR(one.st_mode):
                paths = (join(at, name) for name in self._names(self._real, at))
                todo += [(path, inner) for path in paths if (inner := self._real.stat(path)) is not None]
        return found

    def _differs(self, path: str, now: os.stat_result, was: os.stat_result) -> bool:
        if now.st_mode != was.st_mode:
            return True
        if stat.S_ISLNK(now.st_mode):
            return self._upper.link(path) != self._real.link(path)
        if not stat.S_ISREG(now.st_mode):
            return False
        return now.st_size != was.st_size or not self._is_same(path, now, was)

    def _is_same(self, path: str, now: os.stat_result, was: os.stat_result) -> bool:
        """Return whether two files have the same contents. No pair is read twice, however many names both have.

        After _MOST_COMPARED bytes, every file counts as changed. Its digest, and a commit, are of what it is now.
        """
        pair = (now.st_dev, now.st_ino, was.st_dev, was.st_ino)
        known = self._compared.get(pair)
        if known is None:
            with self._upper.file(path) as one, self._real.file(path) as other:
                is_same, cost = same_contents(one, other, self._left_to_compare)
            self._left_to_compare -= cost
            known = is_same is True
            if _has_names(now):
                self._compared[pair] = known
        return known

    # ---- what else there is to know

    def _attributes(self, path: str, now: os.stat_result, was: os.stat_result | None) -> tuple[str, ...]:
        """Return the names of the attributes that have changed."""
        new = self._digests(self._upper, path, now)
        old = self._digests(self._real, path, was) if was is not None and _same_type(now, was) else {}
        if path == ".":  # the top doesn't show the attributes of the real one
            old = {name: value for name, value in old.items() if name in new}
        names = tuple(sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name)))
        if names not in self._listed:
            self._count(names)
        return self._listed.setdefault(names, names)

    def _digests(self, tree: Tree, path: str, found: os.stat_result) -> dict[str, bytes]:
        """Return digests of a file's attributes, by name. A file with many names is read once."""
        key = (tree is self._upper, found.st_dev, found.st_ino)
        known = self._values.get(key) if _has_names(found) else None
        if known is None:
            known = _digests(tree.attributes(path, found))
            if _has_names(found):
                self._count(known)
                self._values[key] = known
        return known

    def _count(self, names: Collection[str]) -> None:
        """Count these attributes; raises OSError for too many."""
        self._left_of_attributes -= sum(map(len, names)) + _ATTRIBUTE * len(names)
        if self._left_of_attributes < 0:
            what = f"has changed files with attributes whose names have more than {_MOST_ATTRIBUTES} characters in all"
            raise OSError(errno.E2BIG, f"the transaction {what}")

    def with_details(self, changes: list[Change], seals: Mapping[str, str | None] | None = None) -> list[Change]:
        """Return the same changes with their attributes, hard links and digests.

        seals: digests by path, for when nobody needs those of what is there now. Then no file is read. None: all are.
        """
        found: list[Change] = []
        first: dict[tuple[int, int], tuple[str, str]] = {}  # by number, a path, and the digest
        left = _MOST_DIGESTED
        with self._upper.walking(), self._real.walking():
            for change in changes:
                now = self._upper.stat(change.path)
                if change.kind == "deleted" or now is None:
                    found.append(change)
                    continue
                was = self._real.stat(change.path) if change.kind == "modified" else None
                known = first.get((now.st_dev, now.st_ino)) if _has_names(now) else None
                link, seal = known or (None, "")
                if known is None:
                    if seals is None:
                        seal, cost = self._seal(change.path, now, left)
                        left -= cost
                    first[now.st_dev, now.st_ino] = change.path, seal
                if seals is None and change.path in self._shown and not self._unread.isdisjoint((change.path, link)):
                    seal = self._seal_of_shown(change.path, now)
                names = self._attributes(change.path, now, was)
                target = self._upper.link(change.path) if stat.S_ISLNK(now.st_mode) else None
                made = seal if seals is None else seals.get(change.path)
                found.append(replace(change, attributes=names, link=link, target=target, digest=made))
        return found

    def _seal(self, path: str, now: os.stat_result, most: int) -> tuple[str, int]:
        """Return a digest of contents and attributes, and how many bytes were read for it.

        Beyond the limit for all files, the digest covers which file it is, its times, and how many commands have been
        started, but no contents. By a mapping, a command could change a file and leave its times alone.
        """
        content, cost = b"", 0
        if stat.S_ISLNK(now.st_mode):
            content = os.fsencode(self._upper.link(path))
        elif stat.S_ISREG(now.st_mode):
            with self._upper.file(path) as fd:
                whole, cost = digest(fd, most)
            if whole is None:
                self._unread.add(path)
            content = self._times(now) if whole is None else whole
        return _sealed(self._digests(self._upper, path, now), content), cost

    def _seal_of_shown(self, path: str, now: os.stat_result) -> str:
        """Return a digest of contents that patch() has shown. The limit for other contents doesn't count for these."""
        with self._upper.file(path) as fd:
            content, cost = digest(fd, self._left_to_show)
        self._left_to_show -= cost
        if content is None:
            return _UNSURE
        self._read.add(path)
        return _sealed(self._digests(self._upper, path, now), content)

    def _times(self, now: os.stat_result) -> bytes:
        return b"%d %d %d %d " % (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) + b"%d" % self._moment

    def _is_unread(self, change: Change) -> bool:
        return change.path not in self._read and not self._unread.isdisjoint((change.path, change.link))

    def as_shown(self, change: Change, content: bytes | None) -> Change:
        """Return a change with the digest of what was shown: commands may have been at work since its own was made.

        content: what was shown: of a symlink the target, of a file what digest_of() returns; None: nothing. The paths
            of all changes with content are `shown` of the Comparison that this one is compared with.
        """
        now = self._upper.stat(change.path) if content is not None else None
        if content is None or now is None:
            return change
        return replace(change, digest=_sealed(self._digests(self._upper, change.path, now), content))

    def has_unread(self, told: list[Change]) -> bool:
        """Return whether the digest of any change doesn't cover its contents."""
        return any(map(self._is_unread, told))

    def unsure(self, told: list[Change]) -> list[Change]:
        """Return the same without digests that don't cover contents, for when commands may have been at work."""
        return [replace(change, digest=_UNSURE) if self._is_unread(change) else change for change in told]

    # ---- copies

    def other_copies(self, told: list[Change], spare: str, copies: dict[str, str]) -> list[str]:
        """Return the paths of changes whose copies in the real directory aren't what was reviewed. Raises OSError.

        Another process may have changed the copy, or the original before. What nobody has reviewed has no digest: its
        copy is compared with the original. told: what with_details() has returned.
        spare: the directory of the copies. copies: their names by path; a directory's includes everything below.
        """
        others: list[str] = []
        known: dict[tuple[int, int], str] = {}
        whole = at = ""
        with Tree(self._real.fd, forceful=True) as tree, tree.walking(), self._upper.walking():
            top = tree.stat(spare)
            has_modes = top is not None and top.st_mode & 0o777 == 0o700  # not on vfat
            for change in told:
                if change.path in copies:
                    whole, at = change.path, f"{spare}/{copies[change.path]}"
                elif not whole or not change.path.startswith(f"{whole}/"):
                    continue
                if change.kind == "deleted" or not is_copied(kind_of(change.type)):
                    continue
                copy = at + change.path[len(whole) :]
                now = tree.stat(copy)
                is_same = now is not None and _has_mode(now, change, has_modes)
                if now is None or not is_same or not self._is_copy(change, tree, copy, now, known):
                    others.append(change.path)
        return others

    def _is_copy(
        self, change: Change, tree: Tree, copy: str, now: os.stat_result, known: dict[tuple[int, int], str]
    ) -> bool:
        """Return whether a copy is what was reviewed, or else what it is a copy of. known: see _seal_of()."""
        if change.digest is not None:
            return self._seal_of(change, tree, copy, now, known) == change.digest
        was = self._upper.stat(change.path)
        if was is None or change.type == "symlink":
            return was is not None and tree.link(copy) == self._upper.link(change.path)
        original = f"{was.st_dev} {was.st_ino}"
        if known.get((now.st_dev, now.st_ino)) == original:
            return True
        attributes = self._digests(self._upper, change.path, was)
        if _own_attributes(tree, copy, now, attributes) != attributes:
            return False
        if change.type == "file":
            with self._upper.file(change.path) as left, tree.file(copy) as right:
                if now.st_size != was.st_size or not same_contents(left, right, sys.maxsize)[0]:
                    return False
        if _has_names(now):
            known[now.st_dev, now.st_ino] = original
        return True

    def _seal_of(
        self, change: Change, tree: Tree, copy: str, now: os.stat_result, known: dict[tuple[int, int], str]
    ) -> str:
        """Return the digest that a change would have if it were of its copy. known: those of files with many names."""
        was = self._upper.stat(change.path)
        original = self._digests(self._upper, change.path, was) if was is not None else {}
        if was is not None and self._is_unread(change):
            return _sealed(original, self._times(was))  # nothing is known except that it hasn't been changed
        if (now.st_dev, now.st_ino) in known:
            return known[now.st_dev, now.st_ino]
        content: bytes | None = b""
        if change.type == "symlink":
            content = os.fsencode(tree.link(copy))
        elif change.type == "file":
            with tree.file(copy) as fd:
                content, _ = digest(fd, _MOST_SHOWN if change.path in self._read else _MOST_DIGESTED)
        if content is None:
            raise OSError(errno.EFBIG, "its copy in the workspace is too large to be checked", change.path)
        seal = _sealed(_own_attributes(tree, copy, now, original), content)
        if _has_names(now):
            known[now.st_dev, now.st_ino] = seal
        return seal

    # ---- renames

    def with_renames(self, changes: list[Change]) -> list[Change]:
        """Return the changes, with a deleted and an added file of the same contents joined into a rename.

        No more than a gigabyte is read for that. Beyond it, files stay "deleted" and "added".
        """
        with self._upper.walking(), self._real.walking():
            return self._renames.joined(changes)

    # ---- conflicts

    def conflicts(
        self, changes: list[Change], renamed: set[str], started: int, top_mode: int, *, is_top_ours: bool = False
    ) -> list[tuple[str, str]]:
        """Return which of the changes have also been changed in the real directory since, and how, as (path, how).

        Inodes count that have changed since the start (ctime, which no process can set). So do directories on the way
        that were moved there, or whose permissions were changed: they may hold other files now.

        changes: all of them, without renames. renamed: paths of files that only got another name. started: nanoseconds.
        top_mode: the real directory's own mode then. is_top_ours: whether nsbox has changed that directory since.
        """
        with self._upper.walking(), self._real.walking():
            return self._conflicts(changes, renamed, started, top_mode, is_top_ours)

    def _conflicts(
        self, changes: list[Change], renamed: set[str], started: int, top_mode: int, is_top_ours: bool
    ) -> list[tuple[str, str]]:
        conflicts = {}
        for change in changes:
            was = self._real.stat(change.path)
            if was is not None:
                is_same_top = change.path == "." and stat.S_IMODE(was.st_mode) == top_mode
                if was.st_ctime_ns >= started and not is_same_top:
                    conflicts[change.path] = "changed"
            elif change.kind != "deleted" and change.path not in renamed and self._was_copied_up(change):
                above = change.path.rpartition("/")[0]
                if change.type == "directory" or (not (is_top_ours and not above) and self._has_lost(above, started)):
                    conflicts[change.path] = "deleted"
        for path in sorted(_above(changes)):
            was = self._real.stat(path)
            if was is not None and started <= was.st_ctime_ns != was.st_mtime_ns:
                conflicts[path] = "changed"
        return sorted(conflicts.items())

    def _has_lost(self, path: str, started: int) -> bool:
        """Return whether a real directory may have lost something since; if not, a new file there is a renamed one."""
        status = self._real.stat(path)
        return status is not None and status.st_mtime_ns >= started

    def _was_copied_up(self, change: Change) -> bool:
        """Return whether it was in the real directory once: overlayfs marks what it copies."""
        if change.type not in ("file", "directory"):
            return False
        with contextlib.ExitStack() as stack:
            opened = self._upper.dir if change.type == "directory" else self._upper.file
            return _has(stack.enter_context(opened(change.path)), "origin") is not None


def _has_mode(copy: os.stat_result, change: Change, has_modes: bool) -> bool:
    """Return whether a copy has a change's type and permissions, but no more set-ID bits. has_modes: on this system."""
    if type_of(copy.st_mode) != change.type:
        return False
    if not has_modes or change.type == "symlink":
        return True
    opened = 0o300 if change.type == "directory" else 0  # which a directory has as long as a commit is under way
    more = copy.st_mode & (stat.S_ISUID | stat.S_ISGID) & ~change.mode if change.type == "file" else 0
    return not more and not (copy.st_mode ^ change.mode) & 0o777 & ~opened


def _own_attributes(tree: Tree, copy: str, now: os.stat_result, original: dict[str, bytes]) -> dict[str, bytes]:
    """Return digests of a copy's attributes, by name.

    The workspace may give an access list to everything that is made there: that isn't the change's own.
    """
    own = _digests(tree.attributes(copy, now))
    alien = {name for name in own if name.startswith("system.posix_acl_") and name not in original}
    return {name: value for name, value in own.items() if name not in alien}


def _digests(attributes: dict[str, bytes]) -> dict[str, bytes]:
    return {name: hashlib.sha256(value).digest() for name, value in attributes.items()}


def _sealed(attributes: dict[str, bytes], content: bytes) -> str:
    seal = hashlib.sha256()
    for name, value in sorted(attributes.items()):
        seal.update(b"%s %d " % (os.fsencode(name), len(value)) + value)
    seal.update(b"\0" + content)
    return seal.hexdigest()


def _above(changes: list[Change]) -> set[str]:
    """Return all directories above the changes, except the workspace itself."""
    above: set[str] = set()
    for change in changes:
        path = change.path.rpartition("/")[0]
        while path and path not in above:
            above.add(path)
            path = path.rpartition("/")[0]
    return above


def _same_type(one: os.stat_result, other: os.stat_result) -> bool:
    return stat.S_IFMT(one.st_mode) == stat.S_IFMT(other.st_mode)


def _has_names(status: os.stat_result) -> bool:
    return status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
