"""What a command prints: the part that its record keeps, and the pieces that a caller gets as they come."""

from __future__ import annotations

import codecs

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsbox._leaks.scrub import Scrubber

MOST_OUTPUT = 100_000  # bytes of each stream that are kept by default
CHUNK = 1 << 16


class Output:
    """Keeps the beginning and the end of a stream, each up to half of `most` bytes, and counts them all.

    sink: gets everything, in pieces that split no character of UTF-8. If the stream is UTF-8, so is each piece.
        Together, the pieces are the stream, byte for byte.
    """

    def __init__(
        self, most: int, scrubber: Scrubber | None = None, sink: Callable[[bytes], object] | None = None
    ) -> None:
        self._half = max(1, most // 2)
        self._head, self._tail = bytearray(), bytearray()
        self._scrubber, self._sink = scrubber, sink
        self._rest = b""  # the beginning of a character whose rest is to come
        self.count = 0

    def feed(self, data: bytes) -> None:
        """Add data to the stream."""
        if self._scrubber is not None:
            data = self._scrubber.feed(data)
        self._keep(data)
        if self._sink is not None:
            if self._rest:
                data, self._rest = self._rest + data, b""
            if cut := incomplete(data):
                data, self._rest = data[:-cut], data[-cut:]
            if data:
                self._sink(data)

    def _keep(self, data: bytes) -> None:
        self.count += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half + CHUNK:
            del self._tail[: -self._half]

    def end(self) -> None:
        """Add what the scrubber has held back."""
        scrubber, self._scrubber = self._scrubber, None
        if scrubber is not None:
            self.feed(scrubber.flush())
        rest, self._rest = self._rest, b""
        if rest and self._sink is not None:
            self._sink(rest)

    def forget(self) -> None:
        """Free the memory of what was kept."""
        self._head, self._tail = bytearray(), bytearray()

    @property
    def left_out(self) -> int:
        """How many bytes text() leaves out."""
        return max(0, self.count - 2 * self._half)

    def text(self) -> str:
        """Return what was kept, with a note in the middle if some was left out."""
        tail = self._tail[-self._half :]
        if not self.left_out:
            return (self._head + tail).decode("utf-8", "replace")
        skipped = next((i for i, byte in enumerate(tail[:3]) if byte & 0xC0 != 0x80), len(tail[:3]))
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        return f"{head}\n[... {self.left_out} bytes left out ...]\n{tail[skipped:].decode('utf-8', 'replace')}"


def incomplete(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a character of UTF-8 whose rest is missing."""
    for n, byte in enumerate(reversed(data[-3:]), 1):
        if byte & 0xC0 != 0x80:  # not within a character
            size = 4 if 0xF0 <= byte <= 0xF4 else 3 if 0xE0 <= byte < 0xF0 else 2 if 0xC2 <= byte < 0xE0 else 1
            return n if size > n else 0
    return 0
