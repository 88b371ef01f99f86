"""The start of a kernel: a parked branch gets its environment and streams, and stays."""

from __future__ import annotations

import errno
import os
import time

from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.owners import high, opened, own
from nsbox._calls import environment
from nsbox._interpreter.branch import LONGEST
from nsbox._interpreter.wire import frame
from nsbox._kernels.exchange import KernelExchange
from nsbox._kernels.idle import Pending
from nsbox._kernels.process import BranchProcess
from nsbox._paths.resolution import absolute
from nsbox._python.call import refusal
from nsbox._python.way import BranchKeeper, BranchWay
from nsbox.subprocess import Popen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._interpreter.supply import Supply
    from nsbox._leaks.scrub import Scrubber
    from nsbox._policy.policy import Policy
    from nsbox.secrets import Secret, Store


@frozen
class KernelWish(Frozen):
    """What a caller wants of a kernel. cwd: a directory, or None. env: variables, secrets among them."""

    cwd: str | None
    env: dict[str, str]


def wish(
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    secrets: Store | Mapping[str, Secret | str] | None,
) -> tuple[KernelWish, Scrubber | None]:
    """Return a wish, and what masks its secrets. Raises TypeError, ValueError and PolicyError."""
    more, scrubbers = environment.with_secrets(environment.check_environment(env or {}), secrets)
    return KernelWish(None if cwd is None else os.fspath(cwd), more), scrubbers[0]


def begun(supply: Supply, policy: Policy, wish: KernelWish) -> BranchProcess:
    """Return the process of a new kernel. Raises InterpreterError, and what starting a command raises."""
    way = BranchWay(policy, supply, b"", [""], is_kernel=True)
    keeper: Any = BranchKeeper(way)
    cwd = None if wish.cwd is None else absolute(os.path.join(policy.workdir or "", wish.cwd))
    # Popen's own pipes would be lost if there is no descriptor for the last of them.
    owners: list[Owner] = []
    own(os.pipe(), owners)
    own(os.pipe(), owners)
    owners.append(opened(os.open, os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    out, out_end, err, err_end, nothing = (high(owner) for owner in owners)
    env = environment.environment(policy, None, wish.env)
    streams: Any = {"stdin": nothing.fileno(), "stdout": out_end.fileno(), "stderr": err_end.fileno()}
    process: Popen[bytes] = Popen(["python"], policy=keeper, cwd=cwd, env=env, **streams)
    for owner in (nothing, out_end, err_end):
        owner.close()
    assert way.line is not None
    assert way.branch is not None
    made = BranchProcess(process, way.branch, way.line, (out, err))
    try:
        _await_begin(made, policy, cwd)
    except BaseException:
        made.kill()
        made.close()
        raise
    return made


def _await_begin(made: BranchProcess, policy: Policy, cwd: str | None) -> None:
    """Wait until it runs code; raises the error of one that can't."""
    line = made.line
    line.begin(0, frame({"op": "sync", "id": 0}))
    exchange = KernelExchange(line, made.fileno(), made.pipes)
    exchange.begin((Pending(), Pending()))
    if exchange.run(time.monotonic() + LONGEST / 1000) == "reply":
        return
    if line.failure is not None:
        raise refusal(line.failure, policy, cwd)
    raise SetupError(errno.ESRCH, "begin a kernel", None, "it has ended, or doesn't answer")
