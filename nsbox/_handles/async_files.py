"""The file tools for coroutines: each runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from nsbox._calls.token import CancelToken
from nsbox._filetools.methods import FileTools
from nsbox._handles import waiting

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[AsyncFileTools, P], Coroutine[Any, Any, T]]:
    """Return a coroutine function that does what a method of FileTools does."""

    @wraps(method)
    async def call(self: AsyncFileTools, /, *args: P.args, **options: P.kwargs) -> T:
        own = getattr(self._commands, method.__name__)  # a session overrides some
        return await waiting.in_thread(partial(own, *args, **options))

    return call


def _cancellable(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[AsyncFileTools, P], Coroutine[Any, Any, T]]:
    """Return a coroutine function as _in_thread() does. A cancelled task ends the call, by the parameter `cancel`."""

    @wraps(method)
    async def call(self: AsyncFileTools, /, *args: P.args, **options: P.kwargs) -> T:
        own, wish = getattr(self._commands, method.__name__), options.get("cancel")
        if wish is not None and not isinstance(wish, CancelToken):
            return await waiting.in_thread(partial(own, *args, **options))  # which is an error
        token = CancelToken() if wish is None else wish.child()
        return await waiting.in_thread(partial(own, *args, **{**options, "cancel": token}), token.cancel)

    return call


class AsyncFileTools:
    """Files of one policy, for coroutines. Each method does what the method of FileTools with that name does.

    If a task is cancelled meanwhile, grep() ends its search, and any other call still runs to its end. Then the
    cancellation goes on.
    """

    _commands: object  # a Sandbox or a session; their modules import this one

    read = _in_thread(FileTools.read)
    read_lines = _in_thread(FileTools.read_lines)
    media = _in_thread(FileTools.media)
    attach = _in_thread(FileTools.attach)
    list_files = _in_thread(FileTools.list_files)
    glob = _in_thread(FileTools.glob)
    grep = _cancellable(FileTools.grep)
    write = _in_thread(FileTools.write)
    append = _in_thread(FileTools.append)
    edit = _in_thread(FileTools.edit)
    mkdir = _in_thread(FileTools.mkdir)
    delete = _in_thread(FileTools.delete)
    move = _in_thread(FileTools.move)
    copy = _in_thread(FileTools.copy)
