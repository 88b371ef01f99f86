"""What goes over the sockets of warm interpreters and branches: JSON, written here, and read within bounds.

The code in a branch shares a process with the program that writes there, so anything at all may come. Nothing of that
is unpickled. Whatever is wrong with it becomes a WireError, which says what.
"""

from __future__ import annotations

import json
import math
import sys

from nsbox._base.display import type_phrase
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_FRAME = 32 << 20  # bytes of one frame
MOST_OF_CALL = 2 * MOST_FRAME  # bytes of all frames of one call
MOST_MESSAGE = 1 << 16  # bytes of a message between this process and a warm interpreter
MOST_DEPTH = 100  # of lists and mappings in one another
_MOST_MARKS = 2 << 20  # of , : [ and { in a frame: each may cost a hundred bytes once it is read
_HEAD = 4


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class WireError(ValueError):
    """What has come isn't what was agreed. Users never see it: records say what it says."""


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message; all of it is ASCII, since JSON escapes the rest. Raises TypeError and ValueError."""
    return _encoder.encode(message).encode("ascii")


def frame(message: Mapping[str, object]) -> bytes:
    """Return a message with its length before it; raises ValueError if it is too long."""
    data = encode(message)
    if len(data) > MOST_FRAME:
        raise ValueError(f"{len(data)} bytes of code and inputs are more than {MOST_FRAME}")
    return len(data).to_bytes(_HEAD, "little") + data


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise WireError("a number is too large")
    return number


def _constant(text: str) -> None:
    raise WireError(f"{text} isn't JSON")


def _integer(text: str) -> int:
    if len(text) > 4300:  # Python's own bound, which a program can lift (sys.set_int_max_str_digits)
        raise WireError("a number has too many digits")
    return int(text)


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_constant)
_wary = json.JSONDecoder(parse_float=_finite, parse_constant=_constant, parse_int=_integer)


def decoded(data: bytes | bytearray) -> dict[str, Any]:
    """Return the object that this is the JSON of; raises WireError if it isn't one, or is one that costs too much."""
    if sum(map(data.count, (b",", b":", b"[", b"{"))) > _MOST_MARKS:
        raise WireError("it has too many parts")
    decoder = _decoder if sys.get_int_max_str_digits() else _wary
    try:
        message = decoder.decode(data.decode("utf-8"))
    except RecursionError:
        raise WireError("it is nested too deep") from None
    except WireError:
        raise
    except ValueError as error:
        raise WireError(f"it isn't JSON ({str(error)[:100]})") from None
    if not isinstance(message, dict):
        raise WireError(f"it is {type_phrase(message)}, and no object")
    if is_deep(message):
        raise WireError("it is nested too deep")
    return message


def is_deep(value: object, most: int = MOST_DEPTH) -> bool:
    """Return whether lists and mappings of JSON are nested deeper than that."""
    level: list[object] = [value]
    for _ in range(most):
        level = [part for one in level if isinstance(one, list | dict) for part in _parts(one)]
        if not level:
            return False
    return True


def _parts(one: list[object] | dict[str, object]) -> list[object]:
    return [part for part in (one.values() if isinstance(one, dict) else one) if isinstance(part, list | dict)]


class Frames:
    """Cuts a stream into frames, and reads them. It never holds more than one frame that isn't complete.

    left: how many bytes may still come.
    sizes: of the messages that feed() has returned last.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self.left = MOST_OF_CALL
        self.sizes: list[int] = []

    def renew(self) -> None:
        """Begin another call: what its frames may have in all is counted from here on."""
        self.left = MOST_OF_CALL

    @property
    def is_within(self) -> bool:
        """Whether a frame has begun, and isn't complete."""
        return bool(self._data)

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete with this data; raises WireError, after which nothing can be read."""
        self.left -= len(data)
        if self.left < 0:
            raise WireError(f"it is more than {MOST_OF_CALL} bytes")
        self._data += data
        found = []
        self.sizes = []
        while len(self._data) >= _HEAD:
            size = int.from_bytes(self._data[:_HEAD], "little")
            if size > MOST_FRAME:
                raise WireError(f"{size} bytes in one piece are more than {MOST_FRAME}")
            if len(self._data) < _HEAD + size:
                break
            found.append(decoded(self._data[_HEAD : _HEAD + size]))
            self.sizes.append(size)
            del self._data[: _HEAD + size]
        return found


def number_in(message: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a whole number in a message; raises WireError if there is none within these bounds."""
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise WireError(f"{name!r} is {value!r:.60}, and no number from {least} to {most}")
    return value


def plain(text: str) -> str:
    """Return text that can be encoded: half of a surrogate pair becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
