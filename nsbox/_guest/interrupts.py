"""Calls of foreign code, and SIGINT, which interrupts that code alone: none is lost, and none hits this program.

Strategy: the handler looks where the signal has come. Inside _inside(), it raises KeyboardInterrupt. Anywhere else it
leaves a note, and the next _inside() begins with that. While the branch waits for a frame, a signal counts only if a
frame has come already: the caller sends the frame first. A caller that has sent a signal must send `sync` (branch.py)
before the next frame; otherwise a late signal would interrupt that one.
"""

from __future__ import annotations

import _signal
import sys
from types import FrameType
from typing import Any, Callable

_getrecursionlimit = sys.getrecursionlimit
_setrecursionlimit = sys.setrecursionlimit
_gettrace = sys.gettrace
_settrace = sys.settrace
_getprofile = sys.getprofile
_setprofile = sys.setprofile
_getsignal = _signal.getsignal  # those of the module signal are written in Python, and need builtins
_set_handler = _signal.signal
_mask = _signal.pthread_sigmask
_SIGINT, _BLOCK, _UNBLOCK = _signal.SIGINT, _signal.SIG_BLOCK, _signal.SIG_UNBLOCK
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


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call foreign code; return its value and None, or None and what it has raised. Nothing is raised here.

    For calls within a call(): what traces the code goes on.
    """
    error: BaseException | None = None
    value = None
    try:
        value = _inside(function, arguments)
    except BaseException as raised:
        error = raised
        found = _traceback.__get__(raised)
        while found is not None and found.tb_frame.f_code in _OURS:
            found = found.tb_next
        _traceback.__set__(raised, found)
        del found  # the code's frames refer to this one, by f_back: nothing in it may refer to them
    try:
        return value, error
    finally:
        del error, value


def call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call foreign code as attempt() does; afterwards nothing traces this program, and it has its stack again."""
    error: BaseException | None = None
    value = None
    try:
        value = _inside(function, arguments)
    except BaseException as raised:
        error = raised
        found = _traceback.__get__(raised)
        while found is not None and found.tb_frame.f_code in _OURS:
            found = found.tb_next
        _traceback.__set__(raised, found)
        del found  # the code's frames refer to this one, by f_back: nothing in it may refer to them
    while True:
        try:  # here, not in a function: its call would be traced
            if _gettrace() is not None:
                _settrace(None)
            if _getprofile() is not None:
                _setprofile(None)
            if _getrecursionlimit() < state.recursion:
                _setrecursionlimit(state.recursion)
            break
        except BaseException:  # of what traces, which Python takes away when it raises
            pass
    try:
        return value, error
    finally:
        del error, value


_OURS = (_CODE, call.__code__, attempt.__code__)


def install(has_frame: Callable[[], bool]) -> None:
    """Begin to handle SIGINT in a branch.

    has_frame: says whether a frame has come that wasn't read.
    """
    state.recursion = min(_getrecursionlimit(), 1000)
    state.has_frame = has_frame  # type: ignore[method-assign]
    state.is_idle = True
    state.is_pending = False
    _set_handler(_SIGINT, handle)
    hold(False)


def hold(is_held: bool) -> None:
    """Keep SIGINT waiting, or let it come: none is lost in a process that is new."""
    _mask(_BLOCK if is_held else _UNBLOCK, {_SIGINT})


def renew() -> None:
    """Take the signal back before the next call of a kernel, if foreign code has put another handler there."""
    if _getsignal(_SIGINT) is not handle:
        _set_handler(_SIGINT, handle)
