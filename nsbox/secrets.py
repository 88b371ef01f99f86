"""Secrets: values that don't show themselves, stores to keep them in, and a way into the environment of one command.

    store = JsonStore("agents/mail")
    env, scrubber = inject({"PATH": "/usr/bin:/bin"}, store, ["MAIL_TOKEN"])
    done = nsbox.run(command, env=env, policy=policy, capture_output=True)
    print(scrubber.scrub(done.stdout))

A store is anything with the four methods of Store. This module has one in a file (JsonStore) and one in the system's
keyring (KeyringStore). Commands should see neither: keep them out of what a policy shows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NoReturn, Protocol, final, runtime_checkable

from nsbox._base.display import type_phrase
from nsbox._base.errors import NsboxError, Reason, UnavailableError
from nsbox._base.imports import only_libraries
from nsbox._leaks.scrub import Scrubber, value_of

__all__ = ["JsonStore", "KeyringStore", "Secret", "Store", "StoreError", "inject"]

_MASK = "***"


class StoreError(NsboxError, OSError):
    """A store can't be trusted or understood; `filename` says which. The message never has any of its contents."""

    def __init__(self, number: int, problem: str, path: str) -> None:
        """Hold an errno, what is wrong and what would help, and the store's path."""
        super().__init__(number, problem, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@final
class Secret:
    """A str that only reveal() shows: repr(), str(), format() and logs show "***".

    The time that a comparison takes doesn't reveal how much of two Secrets is the same. A Secret can't be changed
    (AttributeError), and can't be hashed, pickled or put into JSON (TypeError). Copying it returns the same object.
    Code that runs in this process can still read it.
    """

    __slots__ = ("__value",)
    __hash__ = None  # type: ignore[assignment]  # a hash would give the value away where PYTHONHASHSEED is set
    __value: str

    def __init__(self, value: str) -> None:
        """Hold a value; raises TypeError if it isn't a str."""
        if not isinstance(value, str):
            raise TypeError(f"value is {type_phrase(value)}, must be a str")
        object.__setattr__(self, "_Secret__value", value)

    def reveal(self) -> str:
        """Return the value."""
        return self.__value

    def __repr__(self) -> str:
        return f"Secret('{_MASK}')"

    def __str__(self) -> str:
        return _MASK

    def __format__(self, spec: str) -> str:
        return format(_MASK, spec)

    def __bool__(self) -> bool:
        return bool(self.__value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(*(one.__value.encode("utf-8", "surrogatepass") for one in (self, other)))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret can't be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret can't be changed")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret can't be pickled: send what reveal() returns, over a channel that you trust with it")


@runtime_checkable
class Store(Protocol):
    """Where secrets are kept, by name."""

    def names(self) -> list[str]:
        """Return the names of all secrets, sorted."""

    def get(self, name: str) -> Secret:
        """Return the secret of this name; raises KeyError if there is none."""

    def set(self, name: str, value: Secret | str) -> None:
        """Keep a value under this name, replacing the one that it had."""

    def delete(self, name: str) -> None:
        """Forget the secret of this name; raises KeyError if there is none."""


def _check_name(name: object) -> str:
    """Return a name if an environment variable can have it."""
    if not isinstance(name, str):
        raise TypeError(f"name is {type_phrase(name)}, must be a str")
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"name: {name!r} can't be one of an environment variable: it is empty, or has a '=' or NUL")
    if not _is_text(name):
        raise ValueError(f"name: {name!r} has a surrogate")
    return name


def _is_text(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _check_value(name: str, value: Secret | str) -> str:
    """Return a value if an environment variable can have it; the error doesn't show it."""
    text = value.reveal() if isinstance(value, Secret) else value
    if not isinstance(text, str):
        raise TypeError(f"the value of {name} is {type_phrase(text)}, must be a Secret or str")
    if "\0" in text or not _is_text(text):
        raise ValueError(f"the value of {name} has a NUL or a surrogate, which no environment variable can have")
    return text


# ---- in a file


class JsonStore:
    """Secrets in a file of a directory that belongs to this user alone: a JSON object of strings.

    Give each agent a directory of its own: then no agent knows of another's secrets. The directory must have mode 0700
    or less and the file 0600 or less, and this process's effective user must own both. Neither may be a symlink, and
    the file must be a regular one. Otherwise every method raises StoreError, which says what to do; it also does so for
    a file that is too large or can't be understood.

    A change writes a new file to the device, then renames it over the old one (rename(2)). So readers see the old file
    or the new one, even after a power failure. Writers wait for one another, by a lock (flock(2)) on the directory.
    Nothing is encrypted: root, and anyone who can read the disk, can read the secrets.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, name: str = "secrets.json", max_size: int = 1 << 20
    ) -> None:
        """Nothing is opened or made before it is needed.

        directory: where the file is. set() makes it if it is missing, but not its parents.
        name: of the file. Default: "secrets.json".
        max_size: bytes; a larger file is neither read nor written. Default: 1 MiB.

        Raises ValueError for arguments that make no sense.
        """
        path = os.fspath(directory)
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError(f"directory: {path!r} is empty, has a NUL or is no str")
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"name: {name!r} is no name of a file")
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 2:
            raise ValueError(f"max_size: {max_size!r} is no number of bytes from 2 up")
        while len(path) > 1 and path.endswith(("/", "/.")):
            path = path[:-1]  # a trailing slash would follow a symlink
        self.directory, self.path = path, os.path.join(path, name)
        self._name, self._new, self._max_size = name, f".{name}.new", max_size

    def names(self) -> list[str]:
        """Return the names of all secrets, sorted; [] without a file. Raises OSError, even for a missing directory."""
        with self._opened() as fd:
            return sorted(self._read(fd))

    def get(self, name: str) -> Secret:
        """Return the secret of this name. Raises OSError, and KeyError if there is none."""
        _check_name(name)
        with self._opened() as fd:
            return Secret(_value(self._read(fd), name, self.path))

    def set(self, name: str, value: Secret | str) -> None:
        """Keep a value. Raises OSError, and ValueError for a name or value that no environment variable can have."""
        text = _check_value(_check_name(name), value)
        self._make()
        with self._changed() as values:
            values[name] = text

    def delete(self, name: str) -> None:
        """Forget the secret of this name. Raises OSError, and KeyError if there is none."""
        _check_name(name)
        with self._changed() as values:
            _value(values, name, self.path)
            del values[name]

    def __repr__(self) -> str:
        return f"JsonStore({self.directory!r})"

    def _make(self) -> None:
        """Make the directory if nothing is there."""
        try:
            os.mkdir(self.directory, 0o700)
        except FileExistsError:
            return
        try:
            above = os.open(os.path.dirname(self.directory) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return  # a parent that can't be read: the kernel decides when it writes the name to the device
        try:
            os.fsync(above)
        finally:
            os.close(above)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the directory if only this user can look into it."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self.directory, flags)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _not_a(self.directory, "directory", error.errno) from None
            raise
        try:
            _check_owned(os.fstat(fd), self.directory, "0700")
            yield fd
        finally:
            os.close(fd)

    def _read(self, above: int) -> dict[str, str]:
        """Return the contents of the file if only this user can read it; {} if there is none."""
        try:
            if not stat.S_ISREG(os.lstat(self._name, dir_fd=above).st_mode):
                raise _not_a(self.path, "regular file")
            fd = os.open(self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
        except FileNotFoundError:
            return {}
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _not_a(self.path, "regular file", error.errno) from None
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):  # it was one a moment ago
                raise _not_a(self.path, "regular file")
            _check_owned(status, self.path, "0600")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(self._max_size + 1)
        finally:
            os.close(fd)
        self._check_size(len(data))
        values, problem = _parsed(data)
        if values is None:
            raise StoreError(errno.EINVAL, problem, self.path)
        return values

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, str]]:
        """Yield the contents for a change, then write them; no other writer can intervene."""
        with self._opened() as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            values = self._read(fd)
            yield values
            self._write(fd, json.dumps(values, indent=1, sort_keys=True).encode("ascii") + b"\n")

    def _write(self, above: int, data: bytes) -> None:
        self._check_size(len(data))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._new, dir_fd=above)  # of a writer that was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._new, flags, 0o600, dir_fd=above)
        try:
            try:
                os.fchmod(fd, 0o600)  # whatever the umask is
                with open(fd, "wb", closefd=False) as file:
                    file.write(data)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(self._new, self._name, src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._new, dir_fd=above)
            raise
        os.fsync(above)

    def _check_size(self, size: int) -> None:
        if size > self._max_size:
            raise StoreError(errno.EFBIG, f"has more than {self._max_size} bytes (max_size)", self.path)


def _not_a(path: str, what: str, number: int = errno.EINVAL) -> StoreError:
    return StoreError(number, f"is no {what}, or is a symlink, which isn't followed; put the {what} itself there", path)


def _check_owned(status: os.stat_result, path: str, mode: str) -> None:
    """Refuse what another user owns, or may read or write."""
    if status.st_uid != os.geteuid():
        what = f"belongs to uid {status.st_uid}, and this is uid {os.geteuid()}; a store must be this user's own"
        raise StoreError(errno.EPERM, what, path)
    if status.st_mode & 0o077:
        what = f"has mode {stat.S_IMODE(status.st_mode):04o}, so others have access; run: chmod {mode}"
        raise StoreError(errno.EPERM, f"{what} (and change what was in it, if others could read it)", path)


def _value(values: Mapping[str, str], name: str, path: str) -> str:
    if name not in values:
        raise KeyError(f"no secret {name!r} in {path}")
    return values[name]


def _parsed(data: bytes) -> tuple[dict[str, str] | None, str]:
    """Return an object of strings, or what is wrong. The standard library's errors hold the text, so none gets out."""
    try:
        pairs = json.loads(data.decode("utf-8"), object_pairs_hook=_Pairs, parse_int=_number, parse_float=_number)
    except UnicodeDecodeError as error:
        return None, f"is no UTF-8: byte {error.start}"
    except json.JSONDecodeError as error:
        return None, f"is no JSON: line {error.lineno} column {error.colno} (character {error.pos})"
    except RecursionError:
        return None, "is no object of strings: it is nested too deeply"
    if not isinstance(pairs, _Pairs):
        return None, "is no JSON object: its first character must be a {"
    for number, (name, value) in enumerate(pairs, 1):
        try:
            if isinstance(value, str):
                _check_value(_check_name(name), value)
                continue
        except ValueError:
            return None, f"member {number} has a name or a value that no environment variable can have"
        return None, f"member {number} is no string"
    values = {name: value for name, value in pairs if isinstance(value, str)}
    return (None, "has a name twice") if len(values) < len(pairs) else (values, "")


class _Pairs(list[tuple[str, object]]):
    """The members of an object, before a later one replaces an earlier one of the same name."""


def _number(_: str) -> None:
    """Replace a number, however long, by None."""


# ---- in the keyring


class KeyringStore:
    """Secrets in the system's keyring, through the library keyring: pip install 'nsbox[keyring]'.

    A keyring can't list its entries, so the names are kept there too, in an entry called "names=". Two processes that
    write at the same time may lose a name, but never a value.
    """

    def __init__(self, service: str, *, backend: object = None) -> None:
        """Nothing is read before it is needed.

        service: the name that the secrets are kept under. Give each agent its own.
        backend: one of keyring's backends. Default: the one that keyring chooses.

        Raises ValueError for a service that makes no sense. Raises UnavailableError if the library is missing, or if
        keyring chooses a backend that it doesn't recommend, such as one that stores secrets unencrypted. To use such a
        backend, pass it.
        """
        if not isinstance(service, str) or not service or "\0" in service:
            raise ValueError(f"service: {service!r} is empty, has a NUL or is no str")
        try:
            with only_libraries():  # keyring finds its backends by entry points in all of sys.path
                keyring, errors = import_module("keyring"), import_module("keyring.errors")
                chosen: Any = keyring.get_keyring() if backend is None else backend
        except ImportError as error:
            what = "the library keyring isn't installed" if error.name == "keyring" else f"keyring: {error}"
            raise UnavailableError(Reason(what, "pip install 'nsbox[keyring]'")) from None
        self.service: str = service
        self._errors: type[Exception] = errors.KeyringError
        if backend is None and chosen.priority < 1:  # keyring's own threshold
            what = f"keyring has found no keyring of the system's, only {type(chosen).__module__}"
            raise UnavailableError(Reason(what, "start one (Secret Service, KWallet), or give a backend of keyring"))
        self._backend = chosen

    def names(self) -> list[str]:
        """Return the names of all secrets, sorted. Raises StoreError."""
        text = self._call("get_password", _INDEX)
        if text is None:
            return []
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise StoreError(errno.EINVAL, f"entry {_INDEX!r} is no list of names; delete it", self._place)
        return sorted(names)

    def get(self, name: str) -> Secret:
        """Return the secret of this name. Raises StoreError, and KeyError if there is none."""
        value = self._call("get_password", _check_name(name))
        if value is None:
            raise KeyError(f"no secret {name!r} in {self._place}")
        return Secret(value)

    def set(self, name: str, value: Secret | str) -> None:
        """Keep a value. Raises StoreError, and ValueError for a name or value that no environment variable can have."""
        text = _check_value(_check_name(name), value)
        names = self.names()
        if name not in names:  # the name first, so that no value is ever there without one
            self._call("set_password", _INDEX, json.dumps(sorted([*names, name])))
        self._call("set_password", name, text)

    def delete(self, name: str) -> None:
        """Forget the secret of this name. Raises StoreError, and KeyError if there is none."""
        names = self.names()
        self.get(name)
        self._call("delete_password", name)
        self._call("set_password", _INDEX, json.dumps([other for other in names if other != name]))

    def __repr__(self) -> str:
        return f"KeyringStore({self.service!r})"

    @property
    def _place(self) -> str:
        return f"keyring service {self.service!r}"

    def _call(self, method: str, *args: str) -> Any:
        try:
            return getattr(self._backend, method)(self.service, *args)
        except self._errors as error:
            problem = f"{type(error).__name__} at {method}: is the keyring there, and unlocked?"
        raise StoreError(errno.EIO, problem, self._place)


_INDEX = "names="  # no name of a secret has a "="


# ---- for one command


def inject(
    env: Mapping[str, str], store: Store | Mapping[str, Secret | str], names: Iterable[str] | None = None
) -> tuple[dict[str, str], Scrubber]:
    """Return an environment with secrets added, for one command, and a Scrubber that redacts them from its output.

    env: names and values; not changed.
    store: a Store, or a mapping from names to secrets.
    names: which secrets to add. Each becomes a variable of its name, and replaces one in env. Default: all of them.

    Raises KeyError for a name that the store doesn't have, TypeError if names is a str, and ValueError for a name or a
    value that no environment variable can have. A value of fewer than four bytes is a ValueError too: it couldn't be
    redacted.
    """
    if isinstance(names, str):
        raise TypeError("names: is a str, must be a list or another iterable of them")
    if names is None:
        names = store.keys() if isinstance(store, Mapping) else store.names()
    added = {}
    for name in names:
        _check_name(name)
        if isinstance(store, Mapping) and name not in store:
            raise KeyError(f"no secret {name!r}")
        value = store[name] if isinstance(store, Mapping) else store.get(name)
        added[name] = _check_value(name, value)
        value_of(added[name], f"the value of {name}")
    return {**env, **added}, Scrubber(added.values())
