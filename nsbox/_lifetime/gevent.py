"""gevent's way to wait: what a Popen needs if gevent.monkey has patched the standard library.

All greenlets run in one thread, which nothing may block. Most code needs no change: select.poll(), time.sleep() and
locks are gevent's then. Here is the rest: the streams, communicate(), and the status of a command that gevent has
reaped. As soon as gevent's loop watches one child, it reaps all of them. So it has to watch each of ours.
"""

from __future__ import annotations

import io
import os
import selectors
import subprocess
from types import FunctionType

import gevent
from gevent.fileobject import FileObjectPosix

from nsbox._base.frozen import TYPE_CHECKING, remembered

if TYPE_CHECKING:
    from typing import Any

    from nsbox._lifetime.lifetime import Lifetime


def adopt(process: Lifetime[Any]) -> Any:
    """Make a command's streams gevent's, and return what watches for its end; None if gevent's loop can't."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(process, name)
        if stream is not None:
            setattr(process, name, _cooperative(stream))
    loop = gevent.get_hub().loop
    if not loop.default or process._session_command is not None:  # only that of the main thread has child watchers
        return None
    watcher = loop.child(process.pid)
    watcher.start(bool)
    return watcher


def _cooperative(stream: Any) -> Any:
    """Return gevent's stream in exchange for one that hasn't been used. It has another descriptor."""
    text = stream if isinstance(stream, io.TextIOWrapper) else None
    binary = stream if text is None else text.detach()
    raw = binary if isinstance(binary, io.RawIOBase) else binary.detach()
    fd = os.dup(raw.fileno())
    file = FileObjectPosix(fd, "wb" if raw.writable() else "rb", 0 if raw is binary else -1)
    raw.close()
    if text is None:
        return file
    return io.TextIOWrapper(
        file,
        encoding=text.encoding,
        errors=text.errors,
        line_buffering=text.line_buffering,
        write_through=text.write_through,
    )


@remembered
def _communicate(plain: type[Any]) -> Any:
    """Return the standard library's method, except that it selects with gevent."""
    method = plain._communicate
    names = vars(subprocess) | {"_PopenSelector": selectors.DefaultSelector}
    return FunctionType(method.__code__, names, method.__name__, method.__defaults__, method.__closure__)


def communicate(plain: type[Any], process: Any, *args: Any) -> Any:
    """Exchange data with a command, as subprocess.Popen._communicate."""
    return _communicate(plain)(process, *args)
