"""Calls of foreign code, and SIGINT, which interrupts that code alone: none is lost, and none hits this program.

Strategy: the handler looks where the signal has come. Inside of _inside(), it raises KeyboardInterrupt. Anywhere else
it leaves a note, by which the next _inside() begins. While the branch waits for a frame, a signal counts only if a
frame has come already: the caller sends the frame first. So a signal that comes after the reply isn't the next call's.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, Callable

_getrecursionlimit = sys.getrecursionlimit
_setrecursionlimit = sys.setrecursionlimit
_gettrace = sys.gettrace
_settrace = sys.settrace
_getprofile = sys.getprofile
_setprofile = sys.setprofile
_getsignal = signal.getsignal
_signal = signal.signal
_SIGINT = signal.SIGINT
_traceback: Any = vars(BaseException)["__traceback__"]  # a class may have another one


class _State:
    is_idle = False
    is_pending = False
    recursion = 1000

    @staticmethod
    def has_frame() -> bool:
        """Return whether a frame has come; the line says so."""
        return False


state = _State()


def _inside(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if state.is_pending:
        state.is_pending = False
        raise KeyboardInterrupt
    return function(*arguments)


_CODE = _inside.__code__


def handle(_: int, frame: FrameType | None) -> None:
    """Handle SIGINT."""
    if state.is_idle:
        state.is_pending = state.has_frame()
        return
    while frame is not None:
        if frame.f_code is _CODE:
            raise KeyboardInterrupt
        frame = frame.f_back
    state.is_pending = True


def call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call foreign code; return its value and None, or None and what it has raised. Nothing is raised here."""
    error: BaseException | None = None
    value = None
    try:
        value = _inside(function, arguments)
    except BaseException as raised:
        error = raised
        # Without the frames of this program: one of them would keep the exception that it caught.
        found = _traceback.__get__(raised)
        while found is not None and found.tb_frame.f_code in _OURS:
            found = found.tb_next
        _traceback.__set__(raised, found)
    return value, error


_OURS = (_CODE, call.__code__)


def settle() -> None:
    """After foreign code, let nothing trace this program, and give it its stack again."""
    if _gettrace() is not None:
        _settrace(None)
    if _getprofile() is not None:
        _setprofile(None)
    if _getrecursionlimit() < state.recursion:
        _setrecursionlimit(state.recursion)


def install(has_frame: Callable[[], bool]) -> None:
    """Begin to handle SIGINT in a branch.

    has_frame: says whether a frame has come that wasn't read.
    """
    state.recursion = min(_getrecursionlimit(), 1000)
    state.has_frame = has_frame  # type: ignore[method-assign]
    state.is_idle = True
    state.is_pending = False
    _signal(_SIGINT, handle)
    hold(False)


def hold(is_held: bool) -> None:
    """Keep SIGINT waiting, or let it come: none is lost in a process that is new."""
    signal.pthread_sigmask(signal.SIG_BLOCK if is_held else signal.SIG_UNBLOCK, {_SIGINT})


def renew() -> None:
    """Take the signal back before the next call of a kernel, if foreign code has put another handler there."""
    if _getsignal(_SIGINT) is not handle and threading.current_thread() is threading.main_thread():
        _signal(_SIGINT, handle)
