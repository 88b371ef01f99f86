"""Root file systems: a minimal root made of this machine's programs, and the policy for commands in it.

    root = nsbox.rootfs.build("roots/base", programs=["sh", "env", "cat"])
    policy = nsbox.rootfs.policy(root, workspace="work")
    nsbox.run(["sh", "-c", "cat /etc/passwd"], policy=policy)

A root is built once and shared by all sandboxes, which can only read it. It contains the programs that you name, with
their interpreters and libraries, at the paths that they have on this machine. It also has a few files in /etc, and
empty mount points.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping

from nsbox._base.checks import check_path, check_text
from nsbox._base.descriptors import write_all
from nsbox._base.display import type_phrase
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
    """Return the absolute path of a root file system that it makes.

    dest: the directory to make. It appears complete, or not at all.
    programs: names, searched for in /usr/local/bin, /usr/bin, /bin and their sbin counterparts; or paths. Each brings
        its libraries, and a script its interpreter. Default: none.
    files: more files and whole directories, with the libraries that they need. Links inside a directory are copied, not
        followed. Default: none.
    mount_points: directories for what policy() mounts, besides /workspace, /agent and the ones that every root has.
        Default: none.
    replace: True swaps a root at dest that build() made for the new one atomically, and removes it. Commands that still
        run in the old one lose their files. Default: False.

    Programs and files keep the paths that they have on this machine. To choose others, pass a mapping from the path in
    the root to the path here.

    Files have mode 0555 or 0444, directories 0755, and everything belongs to the caller. Set-user-ID bits, extended
    attributes, sockets, FIFOs and device nodes aren't copied. No file says which libraries a program opens while it
    runs: name those in files.

    Raises UnavailableError without the library pyelftools (pip install 'nsbox[rootfs]'), PolicyError for arguments that
    make no sense, FileExistsError, and OSError with the path of what can't be found, read, written, or executed on this
    machine.
    """
    if not abi.on_linux:
        raise UnavailableError(Reason("a root file system has to be mounted, which only Linux allows"))
    arguments: dict[str, Any] = {
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
    for _, source in arguments["files"]:
        if is_below(path, os.path.realpath(source)):
            raise PolicyError("dest", f"{path} lies in {source}, which is to be copied")
    contents = _contents(arguments)
    with Tree(above) as tree:
        _make(tree, name, contents, arguments, old)
    return path


def check(dest: Path) -> list[tuple[str, str]]:
    """Return how a fresh build of a root would differ: sorted pairs of a path and "changed", "new" or "gone".

    An empty list means that the machine still has the programs, libraries and files that the root was built from.
    Changes inside the root itself aren't looked for.

    dest: a root that build() made.

    Raises OSError if build() didn't make it, and what build() raises; but a file that no longer exists on this machine
    is reported as "gone".
    """
    path = os.path.abspath(os.fspath(dest))
    manifest = _manifest(path)
    try:
        entries = _contents(manifest["made"]).entries
    except FileNotFoundError as error:
        return [(str(error.filename), "gone")]
    before: dict[str, Any] = manifest["entries"]
    differences = [(name, "gone") for name in before if name not in entries]
    for name, entry in entries.items():
        if name not in before:
            differences.append((name, "new"))
        elif _is_changed(before[name], entry):
            differences.append((name, "changed"))
    return sorted(differences)


# ---- arguments


def _pairs(field: str, wished: Any) -> list[tuple[str | None, str]]:
    """Return an argument as pairs: the path in the root (None: the same as here), and the path or name here."""
    if isinstance(wished, str | bytes | os.PathLike) or not isinstance(wished, Iterable):
        raise PolicyError(field, f"is {type_phrase(wished)}, must be a sequence or a mapping")
    items = wished.items() if isinstance(wished, Mapping) else ((None, item) for item in wished)
    pairs: list[tuple[str | None, str]] = []
    for inside, item in items:
        text = check_text(field, os.fspath(item) if isinstance(item, os.PathLike) else item)
        if "/" in text or field == "files":
            text = os.path.abspath(text)
        pairs.append((None if inside is None else check_path(field, inside), text))
    return pairs


def _points(wished: Any) -> list[str]:
    if isinstance(wished, str | bytes | os.PathLike) or not isinstance(wished, Iterable):
        raise PolicyError("mount_points", f"is {type_phrase(wished)}, must be a sequence")
    return [check_path("mount_points", path) for path in wished]


def _replaced(path: str, *, replace: bool) -> os.stat_result | None:
    """Return the root at dest that may be replaced; None if nothing is there."""
    try:
        old = os.lstat(path)
    except FileNotFoundError:
        return None
    if not replace:
        raise FileExistsError(errno.EEXIST, "exists; replace=True exchanges a root that build() has made", path)
    if not stat.S_ISDIR(old.st_mode) or not os.path.isfile(f"{path}/{MANIFEST}"):
        raise FileExistsError(errno.EEXIST, "exists, and is no root that build() has made", path)
    return old


def _contents(arguments: Mapping[str, Any]) -> Contents:
    contents = Contents()
    contents.add_files(arguments["files"])
    contents.add_programs(arguments["programs"])
    contents.finish(arguments["mount_points"])
    return contents


# ---- writing


def _make(above: Tree, name: str, contents: Contents, arguments: Mapping[str, Any], old: os.stat_result | None) -> None:
    """Write the root next to its place, then move it there."""
    new = f".{name[:200]}.{os.urandom(6).hex()}"
    os.mkdir(new, 0o700, dir_fd=above.fd)
    try:
        with above.dir(new) as fd, Tree(fd) as target:
            entries = _written(contents, target)
            manifest = {"nsbox": _VERSION, "made": arguments, "entries": entries}
            manifest |= {"skipped": contents.skipped, "missing": contents.missing}
            _write_text(target, MANIFEST, json.dumps(manifest, indent=1))
        set_mode(above.fd, new, stat.S_IFDIR, 0o755)
        rename(above.fd, new, above.fd, name, EXCHANGE if old is not None else NOREPLACE)
        if old is not None and not os.path.samestat(old, os.lstat(new, dir_fd=above.fd)):
            rename(above.fd, new, above.fd, name, EXCHANGE)
            raise FileExistsError(errno.EEXIST, "has become something else meanwhile", name)
    finally:
        remove(above, new)  # an unfinished root, or the old one


def _written(contents: Contents, target: Tree) -> dict[str, dict[str, Any]]:
    """Write all entries, directories before their contents; return the manifest's record of each."""
    records: dict[str, dict[str, Any]] = {}
    linked: dict[tuple[int, int], str] = {}
    with target.walking():
        for path, entry in sorted(contents.entries.items()):
            at = path.lstrip("/")
            with target.parent(at) as (above, name):
                match entry:
                    case Dir():
                        os.mkdir(name, 0o700, dir_fd=above)
                        set_mode(above, name, stat.S_IFDIR, 0o755)
                        records[path] = {}
                    case Link():
                        os.symlink(entry.target, name, dir_fd=above)
                        records[path] = {"target": entry.target}
                    case Text():
                        _write_text(target, at, entry.data)
                        records[path] = {"text": entry.data}
                    case Copy():
                        first = linked.setdefault(entry.identity, at) if entry.is_linked else at
                        if first == at:
                            records[path] = _copied(entry, above, name)
                            continue
                        with target.parent(first) as (beside, other):
                            os.link(other, name, src_dir_fd=beside, dst_dir_fd=above, follow_symlinks=False)
                        records[path] = records[f"/{first}"] | {"source": entry.source}
    return records


def _created(above: int, name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)


def _write_text(target: Tree, at: str, text: str) -> None:
    with target.parent(at) as (above, name), open(_created(above, name), "wb") as file:
        file.write(os.fsencode(text))
        os.fchmod(file.fileno(), 0o444)


def _copied(entry: Copy, above: int, name: str) -> dict[str, Any]:
    """Copy one file, and return the manifest's record of it."""
    read = _source(entry)
    try:
        written = _created(above, name)
        try:
            digest = _copy(entry, read, written)
            os.fchmod(written, 0o555 if entry.is_program else 0o444)
            # Python's bytecode caches identify a source by its time.
            os.utime(written, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(written)
    finally:
        os.close(read)
    return {"source": entry.source, "size": entry.size, "mtime_ns": entry.mtime_ns, "sha256": digest}


def _source(entry: Copy) -> int:
    """Open the file that was examined before, following no link in its tree."""
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
        if written is not None:
            write_all(written, data)
    _check_unchanged(entry, read)
    return digest.hexdigest()


def _check_unchanged(entry: Copy, fd: int) -> None:
    now = os.fstat(fd)
    if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) != (*entry.identity, entry.size, entry.mtime_ns):
        raise OSError(errno.EBUSY, "has changed in the meantime; try again", entry.source)


# ---- the manifest


def _manifest(path: str) -> dict[str, Any]:
    """Return the manifest that build() wrote; raises OSError if there is none."""
    with open(opened(f"{path}/{MANIFEST}"), "rb") as file:
        data = file.read()
    try:
        manifest = json.loads(data)
        is_ours = manifest["nsbox"] == _VERSION and isinstance(manifest["entries"], dict)
        if is_ours and {*manifest["made"]} == _ARGUMENTS:
            return dict(manifest)
    except (ValueError, TypeError, KeyError):
        pass
    raise OSError(errno.EINVAL, "is no manifest that this version of nsbox has written", f"{path}/{MANIFEST}")


def _is_changed(before: Mapping[str, Any], entry: Entry) -> bool:
    """Say if an entry differs from its record. Contents are compared only if the size is equal and the time isn't."""
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
