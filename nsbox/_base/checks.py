"""Checks of values in wishes and ops: each returns the value, or raises PolicyError with the name of the field.

check_answer() is about errors instead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from nsbox._base.display import type_phrase
from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeGuard

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def check_answer(error: OSError) -> None:
    """Raise an error that says nothing about the file in question. As an answer, it could leave a file unhidden.

    Such an error means that descriptors or memory are used up, or that a signal handler has raised it: its TimeoutError
    has no errno.
    """
    is_foreign = error.errno is None and not isinstance(error, NsboxError)
    if is_foreign or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Say what isinstance(value, collections.abc.Iterable) would."""
    return _has(value, "__iter__")


def sequence(field: str, value: object) -> tuple[Any, ...]:
    """Return a sequence as a tuple; raises PolicyError for a single text or path, and for any other value."""
    is_single = isinstance(value, str | bytes) or is_path_like(value)
    if is_single or not is_iterable(value):
        such = f", such as [{value!r}]" if is_single else ""
        raise PolicyError(field, f"is {type_phrase(value)}, must be a sequence{such}")
    return tuple(value)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Say what isinstance(value, collections.abc.Mapping) would."""
    if isinstance(value, dict | tuple | list):
        return isinstance(value, dict)
    return isinstance(value, Mapping)


def is_path_like(value: object) -> TypeGuard[os.PathLike[str]]:
    """Say what isinstance(value, os.PathLike) would."""
    return _has(value, "__fspath__")


def _has(value: object, method: str) -> bool:
    """Say if the value's class has the method. A method of its metaclass, such as Enum's, doesn't count."""
    methods = (base.__dict__[method] for base in type(value).__mro__ if method in base.__dict__)
    return next(methods, None) is not None


def check_text(field: str, value: object) -> str:
    """Return the value if it is a non-empty string without NUL that the file system encoding can express."""
    if not isinstance(value, str):
        raise PolicyError(field, f"is {type_phrase(value)}, must be a str")
    if not value:
        raise PolicyError(field, "is empty")
    if "\0" in value:
        raise PolicyError(field, f"{value!r} has a NUL byte")
    length(field, value)
    return value


def length(field: str, text: str) -> int:
    """Return how many bytes a text has for the kernel; surrogates stand for undecodable bytes (PEP 383)."""
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise PolicyError(field, f"{text!r} has a surrogate that stands for no byte") from None


def check_bool(field: str, value: object) -> bool:
    """Return the value if it is True or False."""
    if not isinstance(value, bool):
        raise PolicyError(field, f"{value!r} is neither True nor False")
    return value


def check_cover(field: str, value: object) -> bool | str:
    """Return the value if it is True, False or "sys"."""
    if not (isinstance(value, bool) or value == "sys"):
        raise PolicyError(field, f"{value!r} is neither True nor False, nor 'sys'")
    return value


def check_path(field: str, value: object) -> str:
    """Return an absolute path without empty and "." parts; ".." is refused, since symlinks give it two meanings."""
    path = check_text(field, os.fspath(value) if is_path_like(value) else value)
    if not path.startswith("/"):
        raise PolicyError(field, f"{path!r} is relative, must be absolute")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PolicyError(field, f"{path!r} has a '..'")
    if length(field, path) >= 4096:
        raise PolicyError(field, f"{path[:60]!r}... is longer than 4095 bytes")
    return "/" + "/".join(parts)


def check_mode(field: str, value: object) -> int:
    """Return the value if it is a set of permission bits, 0 to 0o7777."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 0o7777:
        raise PolicyError(field, f"{value!r} isn't a mode between 0 and 0o7777")
    return value


def check_fd(field: str, value: object) -> int:
    """Return the value if it can be a file descriptor."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise PolicyError(field, f"{value!r} isn't a file descriptor")
    return value


def check_bytes(field: str, value: object) -> int | None:
    """Return the value if it is None or a number of bytes above 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        raise PolicyError(field, f"{value!r} isn't a size in bytes above 0")
    return value


def check_data(field: str, value: object) -> bytes | int:
    """Return contents as bytes, or the descriptor to read them from."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, int):
        return check_fd(field, value)
    raise PolicyError(field, f"is {type_phrase(value)}, must be bytes or a file descriptor")


def check_target(field: str, value: object) -> str:
    """Return the value if symlink(2) accepts it as a target: any text of less than 4096 bytes."""
    target = check_text(field, value)
    if length(field, target) >= 4096:
        raise PolicyError(field, f"{target[:60]!r}... is longer than 4095 bytes")
    return target


def check_hostname(field: str, value: object) -> str:
    """Return the value if sethostname(2) accepts it: at most 64 bytes."""
    name = check_text(field, value)
    if length(field, name) > 64:
        raise PolicyError(field, f"{name!r} is longer than 64 bytes")
    return name


def check_size(name: str, value: object) -> int:
    """Return a size in bytes. value: an int above 0, or a str that may end in K, M, G or T (powers of 1024)."""
    if isinstance(value, str):
        text = value.strip()
        number = text[:-1] if text[-1:] in _UNITS else text
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise PolicyError(name, f"{value!r} isn't a size, such as 1048576, '512K', '64M' or '2G'")
        value = int(number) * _UNITS[text[len(number) :]]
    return check_count(name, value)


def check_count(name: str, value: object) -> int:
    """Return the value if it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(name, f"is {type_phrase(value)}, must be a whole number")
    if not 0 < value < 2**63:
        raise PolicyError(name, f"{value} is out of range, must be above 0")
    return value


def check_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise PolicyError for a value that isn't one of these."""
    if value not in tuple(allowed):
        raise PolicyError(name, f"{value!r} is unknown, must be one of {', '.join(allowed)}")
