"""Confinement of code that knows nothing of nsbox: install() and confined()."""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextvars import Token
from types import ModuleType
from typing import Any

from nsbox._base.checks import check_bool
from nsbox._base.errors import AccessError, NsboxError
from nsbox._lifetime.lifetime import Plain
from nsbox._policy.policy import Policy
from nsbox._popen import blocks, popen, threads
from nsbox._spawn.way import Keeper

_plain_fork_exec = _posixsubprocess.fork_exec


# Audit events (docs.python.org, "Audit events table") of what starts a program without subprocess.Popen.
_OTHER_WAYS = {
    "os.system": "os.system()",
    "os.exec": "os.exec*()",
    "os.forkpty": "os.forkpty()",
    "os.posix_spawn": "os.posix_spawn()",
    "pty.spawn": "pty.spawn()",
    "subprocess.Popen": "a class Popen from before nsbox.install()",
}


def _refuse_other_ways(event: str, args: tuple[Any, ...], *, ways: dict[str, str] = _OTHER_WAYS) -> None:
    """As an audit hook, raise for a program that a confined() block would start without containing it.

    ways: bound here for events at the interpreter's end, when the module's names are gone.
    """
    if event not in ways or blocks.current() is None or blocks.announcing.get():
        return
    problem = (
        f"would be started by {ways[event]}, outside of the sandbox that nsbox.confined() asks for: "
        "use subprocess, or give install() the module that has imported Popen by name"
    )
    if event == "os.exec":
        # This is mostly called in a forked copy of the caller, which handles an OSError, or ends with it. Any other
        # exception would go up the copy's stack, and handlers that are meant for the caller would run a second time.
        raise AccessError(os.fsdecode(args[0]) if not isinstance(args[0], int) else f"descriptor {args[0]}", problem)
    # No OSError for os.forkpty(): from one, pty.fork() would conclude that the machine has no forkpty(), and fork.
    raise NsboxError(f"{_shown(args[0])} {problem}" if args else f"a program {problem}")


def _shown(command: Any) -> str:
    """Return a command as its user knows it: words of text, not bytes."""
    words = command if isinstance(command, list | tuple) else [command]
    texts = [os.fsdecode(word) if isinstance(word, bytes | os.PathLike) else word for word in words]
    return repr(texts if isinstance(command, list | tuple) else texts[0])


def _refused_fork_exec(*arguments: Any) -> Any:
    """Stand in for _posixsubprocess.fork_exec: multiprocessing starts Python by it, and it raises no audit event."""
    if blocks.current() is not None:
        raise NsboxError(
            f"{_shown(arguments[0])} would be started by multiprocessing, outside of the sandbox that nsbox.confined() "
            "asks for: use its start method fork"
        )
    return _plain_fork_exec(*arguments)


_refusing_loops: set[type] = set()


def _refuse_uvloop() -> None:
    """Refuse uvloop's subprocesses in blocks, if uvloop is imported: libuv starts them without an audit event."""
    loop = getattr(sys.modules.get("uvloop"), "Loop", None)
    if loop is None or loop in _refusing_loops:
        return
    _refusing_loops.add(loop)
    for name in ("subprocess_exec", "subprocess_shell"):
        setattr(loop, name, _refusing(getattr(loop, name)))


def _refusing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def refusing(self: object, protocol_factory: object, *args: Any, **options: Any) -> Any:
        if blocks.current() is not None:
            raise NsboxError(
                f"{_shown(args[0] if args else '')} would be started by uvloop, outside of the sandbox that "
                "nsbox.confined() asks for: use nsbox.asyncio.create_subprocess_exec or _tools.shell, or asyncio's own "
                "event loop"
            )
        return await method(self, protocol_factory, *args, **options)

    return refusing


def _refuse_forkserver() -> None:
    """Refuse new processes from a multiprocessing forkserver that runs already: it isn't contained."""
    server: Any = sys.modules.get("multiprocessing.forkserver")
    if server is None or hasattr(server.connect_to_new_process, "__wrapped__"):
        return
    connect = server.connect_to_new_process

    @functools.wraps(connect)
    def refusing(*args: Any, **options: Any) -> Any:
        if blocks.current() is not None:
            raise NsboxError(
                "a process would be started by multiprocessing's forkserver, outside of the sandbox that "
                "nsbox.confined() asks for: use its start method fork"
            )
        return connect(*args, **options)

    server.connect_to_new_process = refusing


_is_hooked = False


def install(*modules: ModuleType) -> None:
    """Replace subprocess.Popen with a class of nsbox's, for the whole process. Calling it again changes nothing.

    The class behaves like the one that it replaces, except for commands that are started inside a confined() block or
    with policy=. nsbox.Popen is a subclass of it. Popen objects from before the call aren't instances of it.

    modules: those that executed `from subprocess import Popen` before this call. Their Popen is replaced as well, under
        whatever names.

    Raises TypeError for a module without one.
    """
    global _is_hooked
    ours = (Plain, popen.Confinable)
    names = [[name for name, value in vars(module).items() if any(value is one for one in ours)] for module in modules]
    for module, aliases in zip(modules, names, strict=True):
        if not aliases:
            raise TypeError(f"{module!r} has no Popen of the standard library")
    if subprocess.Popen is Plain:  # a test's stand-in for it stays
        subprocess.Popen = popen.Confinable  # type: ignore[misc]
    for module, aliases in zip(modules, names, strict=True):
        for name in aliases:
            setattr(module, name, popen.Confinable)
    if not _is_hooked:
        _is_hooked = True
        popen.Confinable.__name__ = popen.Confinable.__qualname__ = "Popen"  # what repr() shows
        _posixsubprocess.fork_exec = _refused_fork_exec
        threads.follow()
        sys.addaudithook(_refuse_other_ways)
        os.register_at_fork(after_in_child=blocks.after_fork)


class confined:
    """A block with a policy in force: it contains what the block starts with subprocess, even in libraries.

        with nsbox.confined(policy):
            library.do_something()

    The policy belongs to the context (contextvars). Asyncio tasks, threads and forks that the block starts have it too,
    for as long as they run. So has what the block submits to a ThreadPoolExecutor, as loop.run_in_executor() does,
    whenever that pool was made, and callbacks of such work (add_done_callback). What other code submits there has not.
    Not contained are other threads from before the block, even if they work for it, and threads that are made without
    Python's module threading: for these, say threads=True. What such a thread forks has the policy in any case. While
    blocks with different policies are open, a thread or fork without one can start nothing.

    Calls install(). In the block, other ways to start a program (os.system, os.exec*, os.forkpty, os.posix_spawn, an
    earlier `from subprocess import Popen`, multiprocessing's spawn and forkserver, uvloop's own functions) raise
    NsboxError instead of starting it uncontained. It isn't a sandbox for the block's own Python code. Nor is it a
    decorator: around a coroutine function, it would contain nothing.

    policy: a Policy or Sandbox.
    threads: whether all threads and tasks of the process that have no policy have this one while the block is open,
        also those that don't work for the block. Default: False.

    Raises TypeError for any other policy, and PolicyError if threads isn't a bool.
    """

    def __init__(self, policy: Policy | Keeper, *, threads: bool = False) -> None:
        """Take the policy, or a Sandbox; nothing happens before the block."""
        check_bool("threads", threads)
        self._policy = popen.check_policy(policy)
        self._threads = threads
        self._tokens: list[tuple[object, Token[Policy | Keeper | None]]] = []

    def __enter__(self) -> None:
        install()
        _refuse_uvloop()
        _refuse_forkserver()
        block = object()
        self._tokens.append((block, blocks.in_force.set(self._policy)))
        blocks.opened[block] = self._policy, self._threads

    def __exit__(self, *_: object) -> None:
        block, token = self._tokens.pop()
        blocks.opened.pop(block, None)
        blocks.in_force.reset(token)
