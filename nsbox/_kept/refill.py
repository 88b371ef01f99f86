"""The thread that makes copies of kept trees ready, for all of this process."""

from __future__ import annotations

import weakref
from _thread import start_new_thread  # threading.Thread.start() also waits until the thread runs
from threading import Lock, get_ident

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from nsbox._kept.tree import KeptTree


class Refiller:
    """Makes copies ready, in a thread, for all kept sandboxes of this process.

    The thread starts when there is something to do, and then waits a while for more. Starting a thread takes ten times
    as long as waking one, and a caller who has just waited for a command pays for it. At times there may be two
    threads, which does no harm: no caller waits for a thread, only for one copy.

    There is no lock. A signal handler or the garbage collector could interrupt the code that holds it, and then wait
    for it. So threads share lists alone, and change each in a single step.
    """

    PATIENCE = 0.1  # seconds

    def __init__(self) -> None:
        self._asked: list[weakref.ref[KeptTree]] = []
        self._threads: set[int] = set()
        self._is_running = False
        self._woken = Lock()
        self._woken.acquire()

    def ask(self, kept: KeptTree) -> None:
        """Have the thread refill a kept tree soon."""
        if kept.reference not in self._asked:
            self._asked.append(kept.reference)
        self._wake()
        if self._is_running:
            return
        try:
            self._is_running = True
            start_new_thread(self._run, ())
        except BaseException as error:  # from a signal handler: there may be a thread already, and soon two
            self._is_running = False
            if not isinstance(error, RuntimeError):
                raise
            self._asked.clear()  # no thread can be started: each command makes its own copy

    def leave(self, kept: KeptTree) -> None:
        """Wait until no thread is making a copy of this one. It is stale, so none will begin another."""
        try:
            self._asked.remove(kept.reference)
        except ValueError:
            pass
        if get_ident() not in self._threads:  # else this very thread is collecting its Sandbox as garbage
            with kept.filling:
                pass

    def _wake(self) -> None:
        try:
            self._woken.release()
        except RuntimeError:  # another thread has done it
            pass

    def _run(self) -> None:
        self._threads.add(get_ident())
        try:
            while not self._is_over():
                while self._make_one():
                    pass
        except BaseException:
            self._is_running = False
            raise
        finally:
            self._threads.discard(get_ident())

    def _make_one(self) -> bool:
        """Make one copy for the first in the queue, which then goes to its end; False: the queue is empty."""
        try:
            kept = self._asked.pop(0)()
        except IndexError:
            return False
        if kept is None or not kept.filling.acquire(False):
            return True
        filling = kept.filling
        try:
            if kept.make_ready() and kept.reference not in self._asked:
                self._asked.append(kept.reference)
            del kept  # before another thread can see that filling is over
        finally:
            filling.release()
        return True

    def _is_over(self) -> bool:
        """Wait until there may be something to do; True: nothing came for so long that the thread should end."""
        if self._woken.acquire(timeout=self.PATIENCE):
            return False
        self._is_running = False  # first: from now on, ask() starts another thread
        if not self._asked:
            return True
        self._is_running = True
        return False
