"""One run of code in a branch of its own: a tool call with a line besides the streams."""

from __future__ import annotations

import errno
import os
import signal
from functools import partial

from nsbox._base.display import type_phrase
from nsbox._base.errors import SetupError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._calls.call import Call
from nsbox._interpreter.wire import WireError, encode, frame
from nsbox._python.hints import explained, unprepared
from nsbox._python.reply import LIMITS, Reader, Reply
from nsbox._python.result import PythonResult
from nsbox._python.way import BranchKeeper, BranchWay
from nsbox._tools.view import view
from nsbox.subprocess import Popen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from nsbox._base.errors import NsboxError
    from nsbox._calls.exchange import Side
    from nsbox._calls.record import ToolResult
    from nsbox._interpreter.supply import Supply
    from nsbox._policy.policy import Policy
    from nsbox._python.line import BranchLine

NAME = "<python>"  # of the code, in tracebacks


def check_code(code: object) -> str:
    """Return the code; raises TypeError unless it is a str."""
    if not isinstance(code, str):
        raise TypeError(f"code is {type_phrase(code)}, must be a str")
    return code


def check_inputs(inputs: Mapping[str, object] | None) -> dict[str, object] | None:
    """Return the code's variables; raises TypeError and ValueError for names or a mapping that can't be."""
    if inputs is None:
        return None
    if not hasattr(inputs, "items"):
        raise TypeError(f"inputs is {type_phrase(inputs)}, must be a mapping of names to values")
    for name in inputs:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"inputs has {name!r:.100}, names must be Python identifiers")
    return dict(inputs)


def run_frame(
    number: int,
    code: str,
    inputs: Mapping[str, object] | None,
    *,
    name: str = NAME,
    has_stdin: bool = False,
    functions: Iterable[str] = (),
) -> bytes:
    """Return the frame that lets a branch run code. Raises TypeError and ValueError.

    name: of the code in tracebacks. has_stdin: a file comes along. functions: the names of those that it may call.
    """
    message = {"op": "run", "id": number, "code": code, "name": name, "inputs": inputs, "limits": LIMITS}
    if functions:
        message["functions"] = list(functions)
    if has_stdin:
        message["stdin"] = True
    try:
        return frame(message)
    except (TypeError, ValueError) as error:
        culprit = _culprit(inputs or {})
        if culprit is None:
            raise
        raise type(error)(f"inputs[{culprit!r:.100}] must be a value that JSON has: {error}") from None


def _culprit(inputs: Mapping[str, object]) -> str | None:
    """Return the name of the first input that JSON can't hold, None if there is none."""
    for name, value in inputs.items():
        try:
            encode({name: value})
        except (TypeError, ValueError):
            return name
    return None


def refusal(failure: Mapping[str, Any], policy: Policy, cwd: str | None) -> NsboxError:
    """Return the error for what a branch reports as the reason why it can't begin. cwd: None: the policy's."""
    number = failure.get("errno")
    number = number if type(number) is int and 0 < number < 4096 else errno.EIO
    if failure.get("what") == "cwd":
        shown = cwd or policy.workdir or "/"
        return view(policy).refusal(shown, f"is no directory in the sandbox ({os.strerror(number)})", write=False)
    return SetupError(number, f"begin a branch: {str(failure.get('what'))[:100]!r}")


def _begun(way: BranchWay, argv: list[str], **options: Any) -> Popen[bytes]:
    """Start code. This isn't a method: a call that held itself would keep its relay until garbage is collected."""
    keeper: Any = BranchKeeper(way)
    return Popen(argv, policy=keeper, **options)


class PythonCall(Call):
    """A run of code in a branch that ends with it."""

    def __init__(
        self,
        supply: Supply,
        policy: Policy,
        code: str,
        *,
        inputs: Mapping[str, object] | None = None,
        args: Sequence[str] = (),
        program: str = "-c",
        name: str = NAME,
        **options: Any,
    ) -> None:
        frames = run_frame(1, check_code(code), check_inputs(inputs), name=name)
        self._way: BranchWay | None = BranchWay(policy, supply, frames, [program, *args])
        self._line: BranchLine | None = None
        super().__init__(partial(_begun, self._way), policy, ["python"], code, **options)

    def _side(self) -> Side | None:
        assert self._way is not None and self._way.line is not None
        self._line = line = self._way.line
        line.on_problem = self._process.kill
        return line

    def _reply(self) -> tuple[Reply, str]:
        """Return what the branch has said, and what is wrong with it."""
        line = self._line
        if line is None:
            return Reply(), ""
        if line.reply is None:
            return Reply(), line.problem
        scrubber = self._scrubber
        try:
            return Reader(None if scrubber is None else scrubber.scrub).read(line.reply, line.displays), line.problem
        except WireError as error:
            return Reply(), str(error)

    def run(self) -> PythonResult:
        """Run the code to its end, and return what it did."""
        return self._result(super().run())

    def _check_start(self) -> None:
        """Raise what a command's start would, if the branch couldn't become what it had to."""
        failure = None if self._line is None else self._line.failure
        if failure is None:
            return
        raise refusal(failure, self._policy, self._cwd)

    def _result(self, record: ToolResult) -> PythonResult:
        self._check_start()
        reply, problem = self._reply()
        interpreter = None if self._way is None else self._way.interpreter
        fields = {name: value for name, value in vars(record).items() if name != "why"}
        fields |= {name: value for name, value in vars(reply).items() if name != "exit"}
        was_killed = self._line is not None and bool(self._line.problem) and record.returncode == -signal.SIGKILL
        why = explained(record, reply, problem, interpreter, self._policy, was_killed=was_killed)
        if record.timed_out and self._line is not None and not self._line.is_prepared and interpreter is not None:
            why = (*why, *unprepared(interpreter))
        if self._line is not None:
            self._line.close()
        self._line = self._way = None  # the call may live longer than they are needed
        return PythonResult(why=why, **fields)
