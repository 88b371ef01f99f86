"""An interpreter's report about the code that it consists of.

It runs as a command without any rights, which sees nothing that the policy's commands can write to. So none of their
code runs, and the report is true.
"""

from __future__ import annotations

import os
import subprocess

from nsbox._base.errors import InterpreterError, NsboxError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import is_inside
from nsbox._core.request import request_for
from nsbox._guest.archive import report_text
from nsbox._interpreter.executable import death
from nsbox._interpreter.warm import Made
from nsbox._interpreter.wire import WireError, decoded
from nsbox._paths.destinations import is_missing
from nsbox._plan import ops
from nsbox._popen.popen import Popen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from nsbox._policy.policy import Policy
    from nsbox._spawn.prepare import Prepared

_SHOWN = (ops.Bind, ops.RoBind, ops.DevBind, ops.BindFd, ops.Overlay)
_SIZE = 1 << 20  # bytes, of a file system that only has directories
_MOST_WORDS = 1 << 22


@frozen
class Report(Frozen):
    """What an interpreter says.

    executable: sys.executable. program: the file that runs, without links. home: what a pyvenv.cfg says, or "".
    prefix: sys.base_prefix. own: where its own library is. path: where its packages are, and what .pth files name.
    """

    executable: str
    program: str
    home: str
    prefix: str
    own: tuple[str, ...]
    path: tuple[str, ...]


def hidden(steps: Sequence[ops.Op], regions: Mapping[str, bool]) -> Iterator[ops.Op]:
    """Yield a plan's ops, in which what commands can write to is empty. Pure, except for what kind a source is.

    steps: as primitives.
    regions: see Places.
    """
    mounted = set()
    for op in steps:
        dest = getattr(op, "dest", "")
        if isinstance(op, _SHOWN) and regions.get(dest):
            mounted.add(dest)
            if not is_missing(op):
                yield _empty(dest, is_file=isinstance(op, ops.Bind | ops.RoBind) and os.path.isfile(op.src))
        elif not isinstance(op, ops.Mask) or not any(is_inside(dest, path) for path in mounted):
            yield op  # there is nothing to mask in an empty directory
    for dest, is_open in regions.items():
        if is_open and dest not in mounted and dest != "/":
            yield _empty(dest, is_file=os.path.isfile(dest))


def _empty(dest: str, *, is_file: bool) -> ops.Op:
    return ops.BindData(dest, b"", read_only=True) if is_file else ops.Tmpfs(dest, size=_SIZE)


def report(policy: Policy, prepared: Prepared, regions: Mapping[str, bool], program: str, timeout: float) -> Report:
    """Ask an interpreter; raises InterpreterError, and what starting a command raises.

    regions: see Places.
    program: its path, as commands see it.
    timeout: seconds.
    """
    steps = tuple(hidden(prepared.ops, regions))
    plan = replace(prepared.plan, ops=steps, network=None)
    keeper: Any = Made(policy, replace(prepared, plan=plan, ops=steps, request=request_for(plan, steps)))
    argv = [program, "-I", "-S", "-c", report_text()]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        process: Popen[bytes] = Popen(argv, policy=keeper, cwd="/", **streams)
    except OSError as error:
        if isinstance(error, NsboxError) or error.filename is None:
            raise
        problem = f"{error.strerror}; python= chooses another interpreter of those that the sandbox shows"
        raise InterpreterError("start", program, problem) from error
    with process:
        try:
            words, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise InterpreterError("timeout", program, "it gave no report in time (start_timeout=)") from None
    missing = ", ".join(path for path, is_open in regions.items() if is_open)
    return _read(policy, program, words[-_MOST_WORDS:], process.wait(), missing)


def _read(policy: Policy, program: str, words: bytes, status: int, missing: str) -> Report:
    text = words.decode("utf-8", "replace")
    if status != 0:
        how = f"it was killed by signal {-status}" if status < 0 else f"it has ended with status {status}"
        raise death(policy, program, how, text[-(1 << 16) :], missing)
    try:
        row = decoded(words.rstrip().rpartition(b"\n")[2])
        executable, program, home, prefix = (str(row[name]) for name in ("executable", "program", "home", "prefix"))
        own, path = (tuple(map(str, row[name])) for name in ("own", "path"))
        return Report(executable, program, home, prefix, own, path)
    except (WireError, KeyError, TypeError):
        raise death(policy, program, "it isn't Python: it gave no report", text[-(1 << 16) :]) from None
