"""Files by which a transaction goes on after a crash. They are sealed with a key of the user's that no workspace shows.

What they say is carried out with the caller's rights. So they count only if this user has written them. Their
permissions don't prove that, since commands have the same user. _transaction.store says what is written, and when.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import stat

from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._files import files

_KEY_SIZE = 32  # bytes
_MOST = 64 << 20  # bytes of a file: the steps of some 300,000 changes


def sealed(key: bytes, context: str, content: object) -> bytes:
    """Return the bytes of a file. context: what the file is, and of which store. Raises OSError (EFBIG)."""
    body = json.dumps(content).encode("ascii")
    if len(body) + 2 * _KEY_SIZE + 1 > _MOST:
        raise OSError(errno.EFBIG, f"too many changes for one commit: its journal would have more than {_MOST} bytes")
    return _seal(key, context, body) + b"\n" + body


def read(path: str) -> bytes | None:
    """Return what is in a file; None if there is none. Raises ValueError if it can't be one of ours, and OSError.

    It never blocks, as a pipe without a writer would make it, and reads no more than such a file may have.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        if status.st_size > _MOST:
            raise ValueError(f"has {status.st_size} bytes, more than nsbox writes")
        with open(fd, "rb", closefd=False) as file:
            return file.read(_MOST)
    finally:
        os.close(fd)


def opened(key: bytes, context: str, data: bytes) -> object:
    """Return the content that was sealed; raises ValueError for anything else, before it is interpreted."""
    seal, _, body = data.partition(b"\n")
    if seal[:1] in (b"{", b"["):
        raise ValueError("isn't sealed, as an older version of nsbox wrote it")
    if not hmac.compare_digest(seal, _seal(key, context, body)):
        raise ValueError("isn't sealed with this user's key: another user has written it, or the key has changed")
    return json.loads(body)


def _seal(key: bytes, context: str, body: bytes) -> bytes:
    seal = hmac.new(key, b"nsbox journal\0" + os.fsencode(context) + b"\0", hashlib.sha256)
    seal.update(body)
    return seal.hexdigest().encode("ascii")


# ---- the key


def key_path(state: str) -> str:
    """Return the path of a user's key. state: that user's directory for state."""
    return os.path.join(state, "key")


def key(state: str) -> bytes:
    """Return the user's key; make one if there is none. Raises UnavailableError, and PolicyError for a bad one."""
    if not state:
        raise UnavailableError(_no_place("this user has no home directory"))
    try:
        os.makedirs(state, mode=0o700, exist_ok=True)
        secret = _read_key(state)
        if secret is None:
            _make(state)
            secret = _read_key(state)
    except OSError as error:
        if error.errno is None:  # a signal handler's own
            raise
        raise UnavailableError(_no_place(f"{state}: {error.strerror}")) from None
    if secret is None:
        raise UnavailableError(_no_place(f"{key_path(state)} has gone"))
    return secret


def known_key(state: str) -> bytes | None:
    """Return the user's key, if there is one; raises PolicyError for a bad one, and OSError."""
    return _read_key(state) if state else None


def _no_place(what: str) -> Reason:
    return Reason(
        f"there is no place for the key by which an interrupted commit is recognised ({what})",
        "set XDG_STATE_HOME to a directory of this user's that outlasts a crash",
    )


def _read_key(state: str) -> bytes | None:
    path = key_path(state)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found, above = os.fstat(fd), os.stat(state)
        for one, what in ((above, state), (found, path)):
            if one.st_uid != os.geteuid() or one.st_mode & 0o022:
                problem = f"{what} must belong to this user, and no other user may write to it (chmod go-w)"
                raise PolicyError("XDG_STATE_HOME", problem)
        if not stat.S_ISREG(found.st_mode) or found.st_size != _KEY_SIZE or found.st_mode & 0o077:
            problem = f"{path} isn't a file of {_KEY_SIZE} bytes that only its owner may read: remove it"
            raise PolicyError("XDG_STATE_HOME", f"{problem}, and commits that were interrupted can't be completed")
        return os.read(fd, _KEY_SIZE)
    finally:
        os.close(fd)


def _make(state: str) -> None:
    """Make a key, whole or not at all. If another process makes one at the same time, the first one counts."""
    path, new = key_path(state), os.path.join(state, f".key-{os.urandom(8).hex()}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask is
            file.write(os.urandom(_KEY_SIZE))
            file.flush()
            os.fsync(fd)
        try:
            os.link(new, path)  # not rename(2), which would replace another's
        except FileExistsError:
            pass
    finally:
        os.unlink(new)
    files.sync_directory(state)
