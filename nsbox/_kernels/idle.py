"""The reader of what a kernel's background threads print between two calls: without it, a full pipe would stop them.

One thread reads for all kernels of the process. It begins with the first kernel, sleeps while nothing is printed, and
ends with the last kernel.
"""

from __future__ import annotations

import os
import select
import signal
import threading

from nsbox._base.descriptors import close, high
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.stdlib import RLock
from nsbox._calls.output import CHUNK

if TYPE_CHECKING:
    from nsbox._calls.output import Output

_MOST = 100_000  # bytes of each stream that wait for the next call


class Pending:
    """The end of what a kernel has printed between two calls."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._count = 0

    def feed(self, data: bytes) -> None:
        """Add data."""
        self._kept += data
        self._count += len(data)
        if len(self._kept) > 2 * _MOST:
            del self._kept[:-_MOST]

    def move(self, output: Output) -> None:
        """Hand everything to the next call, with a note at the beginning if some was left out."""
        kept, count = bytes(self._kept[-_MOST:]), self._count
        self._kept, self._count = bytearray(), 0
        if count > len(kept):
            note = f"[... {count - len(kept)} bytes left out ...]\n".encode()
            output.feed(note)
            output.count += count - len(kept) - len(note)
        if kept:
            output.feed(kept)


class _Reader:
    """The thread, and what it reads."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.creator = os.getpid()
        self._sinks: dict[int, Pending] = {}
        self._kernels = 0
        self._poller: select.epoll | None = None
        self._bell = -1

    def begin(self) -> None:
        """Count a kernel; the first one begins the thread."""
        with self.lock:
            self._kernels += 1
            if self._poller is not None:
                return
            poller, bell = select.epoll(), -1
            try:
                bell = high(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
                poller.register(bell, select.EPOLLIN)
                self._poller, self._bell = poller, bell
                threading.Thread(target=self._work, args=(poller, bell), name="nsbox-kernels", daemon=True).start()
            except BaseException:
                self._kernels, self._poller = 0, None
                poller.close()
                close(bell)
                raise

    def end(self) -> None:
        """Stop counting a kernel; the last one ends the thread."""
        with self.lock:
            self._kernels -= 1
            if not self._kernels and self._poller is not None:
                self._poller = None
                bell, self._bell = self._bell, -1
                os.eventfd_write(bell, 1)  # the thread closes both

    def add(self, sinks: dict[int, Pending]) -> None:
        """Read these pipes from now on; what is read goes to their outputs."""
        with self.lock:
            if self._poller is None:
                return
            for fd, sink in sinks.items():
                if fd not in self._sinks:
                    self._poller.register(fd, select.EPOLLIN)
                self._sinks[fd] = sink

    def remove(self, fds: tuple[int, ...]) -> None:
        """Stop reading these pipes; when this returns, nothing is being read from them."""
        with self.lock:
            for fd in fds:
                if self._sinks.pop(fd, None) is not None and self._poller is not None:
                    self._poller.unregister(fd)

    def _work(self, poller: select.epoll, bell: int) -> None:
        # Python handles signals in the main thread. A signal that comes to this one wouldn't wake that from input().
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            for fd, _ in poller.poll():
                with self.lock:
                    if fd == bell:
                        poller.close()
                        os.close(bell)
                        return
                    self._read(fd)

    def _read(self, fd: int) -> None:
        sink = self._sinks.get(fd)
        if sink is None:
            return
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        if data:
            sink.feed(data)
        else:
            self.remove((fd,))


_reader = _Reader()


def reader() -> _Reader:
    """Return this process's reader. A forked child has none of its parent's threads, so it has another one."""
    global _reader
    if _reader.creator != os.getpid():
        _reader = _Reader()
    return _reader
