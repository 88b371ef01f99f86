"""Root file systems: a minimal root made of this machine's programs, and the policy for commands in it.

    root = nsbox.rootfs.build("roots/base", programs=["sh", "env", "cat"])
    policy = nsbox.rootfs.policy(root, workspace="work")
    nsbox.run(["sh", "-c", "cat /etc/passwd"], policy=policy)

A root is built once and shared by all sandboxes, to which it is read-only. It has the programs that are named, their
interpreters and libraries at the paths that they have here, a few files in /etc, and empty mount points.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from _collections_abc import Iterable, Mapping

from nsbox._base.checks import check_path, check_text
from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._core import abi
from nsbox._files.files import EXCHANGE, NOREPLACE, Tree, remove, rename, set_mode
from nsbox._rootfs.contents import Contents, Copy, Dir, Entry, Link, Text
from nsbox._rootfs.libraries import opened
from nsbox._rootfs.policy import MANIFEST, policy

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from nsbox._policy.policy import Path

    Wished: TypeAlias = Iterable[Path] | Mapping[str, Path]

__all__ = ["build", "check", "policy"]

_CHUNK = 1 << 20
_VERSION = 1
_ARGUMENTS = {"programs", "files", "mount_points"}


def build(
    dest: Path,
    programs: Wished = (),
    *,
    files: Wished = (),
    mount_points: Iterable[str] = (),
    replace: bool = False,
) -> str:
    """Make a root file system, and return its absolute path.

    dest: the directory to be made. It appears when it is complete, or not at all. programs: names, looked up in
    /usr/local/bin, /usr/bin, /bin and the same with sbin, or paths; each comes with its libraries, a script with its
    interpreter. files: more files, and directories with all that is below them; links in these are kept, not followed;
    what they need as libraries comes along. Both keep the paths that they have here; a mapping gives others: path in
    the root -> path here. mount_points: directories for what policy() mounts, besides /workspace, /agent and its own.
    replace: a root at dest that build() has made is exchanged for the new one in a moment, and removed; commands that
    still run in it lose their files.

    Files get the modes 0555 and 0444, directories 0755, and all belongs to the caller. Set-user-ID bits, attributes,
    sockets, FIFOs and device nodes aren't copied. Which libraries a program opens while it runs, no file says: name
    them in files. Raises UnavailableError without the library pyelftools (pip install 'nsbox[rootfs]'), PolicyError for
    arguments that make no sense, FileExistsError, and OSError, with the path, for what can't be found, read, executed
    on this machine or written.
    """
    if not abi.on_linux:
        raise UnavailableError(Reason("a root file system is mounted, which only Linux lets be done"))
    made: dict[str, Any] = {
        "programs": _pairs("programs", programs),
        "files": _pairs("files", files),
        "mount_points": _points(mount_points),
    }
    path = os.path.abspath(check_text("dest", os.fspath(dest) if isinstance(dest, os.PathLike) else dest))
    above, name = os.path.realpath(os.path.dirname(path), strict=True), os.path.basename(path)
    if not name:
        raise PolicyError("dest", "'/' is the root of this machine")
    path = f"{above.rstrip('/')}/{name}"
    old = _replaced(path, replace=replace)
    for _, source in made["files"]:
        if is_below(path, os.path.realpath(source)):
            raise PolicyError("dest", f"{path} lies in {source}, which is to be copied")
    contents = _contents(made)
    with Tree(above) as tree:
        _make(tree, name, contents, made, old)
    return path


def check(dest: Path) -> list[tuple[str, str]]:
    """Return what a root made anew would have otherwise: its paths, and "changed", "new" or "gone", sorted.

    An empty list: the programs, libraries and files of this machine are those that it was built from. Nothing is said
    about what has been changed in the root itself. Raises OSError for what isn't a root that build() has made, and
    what build() raises, but that a file which doesn't exist any more is "gone".
    """
    path = os.path.abspath(os.fspath(dest))
    manifest = _manifest(path)
    try:
        entries = _contents(manifest["made"]).entries
    except FileNotFoundError as error:
        return [(str(error.filename), "gone")]
    before: dict[str, Any] = manifest["entries"]
    found = [(name, "gone") for name in before if name not in entries]
    for name, entry in entries.items():
        if name not in before:
            found.append((name, "new"))
        elif _is_changed(before[name], entry):
            found.append((name, "changed"))
    return sorted(found)


# ---- arguments


def _pairs(field: str, wished: Any) -> list[tuple[str | None, str]]:
    """Return what is wished for as pairs: the path in the root, None for the same, and the path or name here."""
    if isinstance(wished, str | bytes | os.PathLike) or not isinstance(wished, Iterable):
        raise PolicyError(field, f"is a {type(wished).__name__}, must be a sequence or a mapping")
    items = wished.items() if isinstance(wished, Mapping) else ((None, item) for item in wished)
    found: list[tuple[str | None, str]] = []
    for inside, item in items:
        text = check_text(field, os.fspath(item) if isinstance(item, os.PathLike) else item)
        if "/" in text or field == "files":
            text = os.path.abspath(text)
        found.append((None if inside is None else check_path(field, inside), text))
    return found


def _points(wished: Any) -> list[str]:
    if isinstance(wished, str | bytes | os.PathLike) or not isinstance(wished, Iterable):
        raise PolicyError("mount_points", f"is a {type(wished).__name__}, must be a sequence")
    return [check_path("mount_points", path) for path in wished]


def _replaced(path: str, *, replace: bool) -> os.stat_result | None:
    """Return what is at dest, and may be replaced; None: nothing is."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not replace:
        raise FileExistsError(errno.EEXIST, "exists; replace=True exchanges a root that build() has made", path)
    if not stat.S_ISDIR(found.st_mode) or not os.path.isfile(f"{path}/{MANIFEST}"):
        raise FileExistsError(errno.EEXIST, "exists, and is no root that build() has made", path)
    return found


def _contents(made: Mapping[str, Any]) -> Contents:
    contents = Contents()
    contents.add_files(made["files"])
    contents.add_programs(made["programs"])
    contents.finish(made["mount_points"])
    return contents


# ---- writing


def _make(above: Tree, name: str, contents: Contents, made: Mapping[str, Any], old: os.stat_result | None) -> None:
    """Write the root beside its place, and put it there."""
    new = f".{name[:200]}.{os.urandom(6).hex()}"
    os.mkdir(new, 0o700, dir_fd=above.fd)
    try:
        with above.dir(new) as fd, Tree(fd) as target:
            entries = _written(contents, target)
            manifest = {"nsbox": _VERSION, "made": made, "entries": entries}
            manifest |= {"skipped": contents.skipped, "missing": contents.missing}
            _write_text(target, MANIFEST, json.dumps(manifest, indent=1))
        set_mode(above.fd, new, stat.S_IFDIR, 0o755)
        rename(above.fd, new, above.fd, name, EXCHANGE if old is not None else NOREPLACE)
        if old is not None and not os.path.samestat(old, os.lstat(new, dir_fd=above.fd)):
            rename(above.fd, new, above.fd, name, EXCHANGE)
            raise FileExistsError(errno.EEXIST, "has become something else meanwhile", name)
    finally:
        remove(above, new)  # what failed, or was exchanged


def _written(contents: Contents, target: Tree) -> dict[str, dict[str, Any]]:
    """Write all entries, directories before what is in them; return what the manifest says of each."""
    said: dict[str, dict[str, Any]] = {}
    linked: dict[tuple[int, int], str] = {}
    with target.walking():
        for path, entry in sorted(contents.entries.items()):
            at = path.lstrip("/")
            with target.parent(at) as (above, name):
                match entry:
                    case Dir():
                        os.mkdir(name, 0o700, dir_fd=above)
                        set_mode(above, name, stat.S_IFDIR, 0o755)
                        said[path] = {}
                    case Link():
                        os.symlink(entry.target, name, dir_fd=above)
                        said[path] = {"target": entry.target}
                    case Text():
                        _write_text(target, at, entry.data)
                        said[path] = {"text": entry.data}
                    case Copy():
                        first = linked.setdefault(entry.identity, at) if entry.is_linked else at
                        if first == at:
                            said[path] = _copied(entry, above, name)
                            continue
                        with target.parent(first) as (beside, other):
                            os.link(other, name, src_dir_fd=beside, dst_dir_fd=above, follow_symlinks=False)
                        said[path] = said[f"/{first}"] | {"source": entry.source}
    return said


def _created(above: int, name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)


def _write_text(target: Tree, at: str, text: str) -> None:
    with target.parent(at) as (above, name), open(_created(above, name), "wb") as file:
        file.write(os.fsencode(text))
        os.fchmod(file.fileno(), 0o444)


def _copied(entry: Copy, above: int, name: str) -> dict[str, Any]:
    """Copy one file, and return what the manifest says of it."""
    read = _source(entry)
    try:
        written = _created(above, name)
        try:
            digest = _copy(entry, read, written)
            os.fchmod(written, 0o555 if entry.is_program else 0o444)
            # Python's caches know a source by its time.
            os.utime(written, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(written)
    finally:
        os.close(read)
    return {"source": entry.source, "size": entry.size, "mtime_ns": entry.mtime_ns, "sha256": digest}


def _source(entry: Copy) -> int:
    """Open the file that was looked at before, by no link in its tree."""
    if entry.tree is None:
        return opened(entry.path)
    with Tree(entry.tree) as tree, tree.file(entry.path) as fd:
        return os.dup(fd)


def _copy(entry: Copy, read: int, written: int | None) -> str:
    digest, left = hashlib.sha256(), entry.size
    _check_unchanged(entry, read)
    while left > 0:
        data = os.read(read, min(_CHUNK, left))
        if not data:
            break
        digest.update(data)
        left -= len(data)
        view = memoryview(data)
        while written is not None and view:
            view = view[os.write(written, view) :]
    _check_unchanged(entry, read)
    return digest.hexdigest()


def _check_unchanged(entry: Copy, fd: int) -> None:
    now = os.fstat(fd)
    if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != (*entry.identity, entry.size, entry.mtime_ns):
        raise OSError(errno.EBUSY, "has been changed meanwhile; try again", entry.source)


# ---- the manifest


def _manifest(path: str) -> dict[str, Any]:
    """Return what build() has noted; raises OSError if it hasn't."""
    with open(opened(f"{path}/{MANIFEST}"), "rb") as file:
        data = file.read()
    try:
        found = json.loads(data)
        if found["nsbox"] == _VERSION and isinstance(found["entries"], dict) and {*found["made"]} == _ARGUMENTS:
            return dict(found)
    except (ValueError, TypeError, KeyError):
        pass
    raise OSError(errno.EINVAL, "is no manifest that this version of nsbox has written", f"{path}/{MANIFEST}")


def _is_changed(before: Mapping[str, Any], entry: Entry) -> bool:
    """Compare an entry with what was noted; contents only where size or time differ."""
    match entry:
        case Dir():
            return before != {}
        case Link(target=target):
            return before != {"target": target}
        case Text(data=data):
            return before != {"text": data}
    if before.get("size") == entry.size and before.get("mtime_ns") == entry.mtime_ns:
        return False
    if before.get("size") != entry.size:
        return True
    fd = _source(entry)
    try:
        return _copy(entry, fd, None) != before.get("sha256")
    finally:
        os.close(fd)
