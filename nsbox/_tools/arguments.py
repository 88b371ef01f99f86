"""Checks of what a caller gives to a tool call, a handle or a file tool: each error names the parameter."""

from __future__ import annotations

import os

from nsbox._base.display import type_phrase

MOST_SECONDS = 1e9  # more than threading's locks can wait on some systems


def check_flags(**flags: object) -> None:
    """Raise TypeError for a value that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r:.60}, must be True or False")


def check_codecs(**names: object) -> None:
    """Raise TypeError for what is no name of an encoding or of an error handler; ValueError for a NUL byte."""
    for name, value in names.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r:.60}, must be a str")
        check_word(name, value)


def check_timeout(timeout: object, name: str = "timeout") -> float | None:
    """Return a time limit in seconds; raises ValueError for one that isn't above 0. name: of the parameter."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < MOST_SECONDS:
        raise ValueError(f"{name} is {timeout!r:.60}, must be a number of seconds above 0")
    return float(timeout)


def check_wait(name: str, seconds: object) -> float | None:
    """Return how long to wait, in seconds: at least 0, or None for no limit. Raises TypeError and ValueError.

    A number below 0, as `deadline - now` may be, is 0; infinity is None.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is {seconds!r:.60}, must be a number of seconds, or None")
    if seconds != seconds:
        raise ValueError(f"{name} is {seconds!r}, must be a number of seconds, or None")
    return None if seconds >= MOST_SECONDS else max(0, seconds)


def as_bytes(name: str, data: object) -> bytes:
    """Return data as bytes, a str as UTF-8; raises TypeError."""
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    try:
        return bytes(memoryview(data))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {data!r:.60}, must be a str or bytes") from None


def check_path(name: str, path: object) -> str:
    """Return a path as a str; raises TypeError, and ValueError for one that no file can have."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type_phrase(text)}, must be a str or os.PathLike[str]")
    if not text or "\0" in text:
        raise ValueError(f"{name} is {text!r:.60}, must not be empty or have a NUL byte")
    check_encodable(name, text)
    return text


def check_paths(**paths: object) -> None:
    """Raise TypeError or ValueError for what can be no path."""
    for name, path in paths.items():
        check_path(name, path)


def check_word(name: str, text: str) -> None:
    """Raise ValueError for a text that can be no argument of a program."""
    if "\0" in text:
        raise ValueError(f"{name} has a NUL byte")
    check_encodable(name, text)


def check_encodable(name: str, text: str) -> None:
    """Raise ValueError for half of a surrogate pair: a model's JSON can spell it, but UTF-8 has no bytes for it.

    Surrogates that stand for a byte pass: in a file's name they are what isn't UTF-8 (PEP 383).
    """
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(
            f"{name} has {half} at character {error.start}, half of a surrogate pair, which is no character: "
            "write the whole character"
        ) from None
