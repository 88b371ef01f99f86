"""Changes of the caller's mounts."""

from __future__ import annotations

import os
import select

from nsbox._base.owners import high, opened
from nsbox._base.stdlib import RLock, original


class MountWatch:
    """Tells whether the caller's mounts have changed: then what is mounted below a bind would differ now."""

    def __init__(self) -> None:
        self._mounts = high(opened(os.open, "/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC))
        self._poller = original(select, "poll")()  # gevent's knows no POLLPRI
        self._poller.register(self._mounts.fileno(), select.POLLPRI)
        self._poller.poll(0)
        self._lock = RLock()  # a poll object serves one thread at a time
        self._is_polling = self._has_changed = False

    def changed(self) -> bool:
        """Return whether there has been a change. It may be called by a signal handler while it runs."""
        with self._lock:
            if self._is_polling:  # a signal handler calls us; or one raised, and the result of poll() is lost
                self._has_changed = True
            if not self._has_changed:
                self._is_polling = True
                self._has_changed = bool(self._poller.poll(0))  # proc(5): once for each change
                self._is_polling = False
            return self._has_changed

    def close(self) -> None:
        self._mounts.close()
