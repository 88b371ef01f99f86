"""Why code failed, as far as only Python knows: a module that isn't there, a stack that is full, a lost interpreter."""

from __future__ import annotations

import re
import signal

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._tools.verdicts import Hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsbox._calls.record import ToolResult
    from nsbox._interpreter.interpreter import Interpreter
    from nsbox._policy.policy import Policy
    from nsbox._python.reply import Reply

_MODULE = re.compile(r"No module named '([\w.]{1,200})'")


def explained(
    record: ToolResult,
    reply: Reply,
    problem: str,
    interpreter: Interpreter | None,
    policy: Policy,
    *,
    was_killed: bool = False,
) -> tuple[Hint, ...]:
    """Return the hints of a record with those about Python.

    problem: what is wrong with what the branch has said. was_killed: whether nsbox has killed the branch for it.
    interpreter: None if the code wasn't started.
    """
    found: list[Hint] = []
    if problem:
        text = f"what came instead of the code's result can't be read, so nothing of it is kept: {problem}"
        text += "; nsbox killed the code for that" if was_killed else ""
        found.append(Hint("reply", printable(text)))
    is_lost = record.cause == "unknown"
    if is_lost and interpreter is not None:
        how = interpreter.fate()
        what = f"has ended, and the code with it: {how}" if how else "still runs, but didn't report how the code ended"
        found.append(Hint("interpreter", f"the warm interpreter {what}"))
    known = {*(["unknown"] if is_lost else []), *(["killed"] if was_killed else [])}
    found += [hint for hint in record.why if hint.kind not in known]
    if interpreter is not None:
        found += _of_exception(reply, interpreter, policy)
    if record.returncode == -signal.SIGSEGV and not problem:
        text = "the stack may be full: deep recursion ends like this in C, or if sys.setrecursionlimit() was raised"
        found.append(Hint("crash", text))
    return tuple(dict.fromkeys(found))


def unprepared(interpreter: Interpreter) -> Iterator[Hint]:
    """Yield what is known of code whose time was over before it began: branches may do imports and setup themselves."""
    if interpreter.choice.why_cold:
        text = "the code hadn't begun: imports and the setup count towards the time limit here"
        yield Hint("timeout", printable(f"{text}; {interpreter.choice.why_cold}"))


def _of_exception(reply: Reply, interpreter: Interpreter, policy: Policy) -> Iterator[Hint]:
    error = reply.exception
    if error is None:
        return
    facts = interpreter.facts
    version = ".".join(map(str, facts.version))
    if error.type in ("ModuleNotFoundError", "ImportError"):
        match = _MODULE.search(error.message)
        if match is not None:
            text = (
                f"{facts.executable} (Python {version}, with the packages of {facts.prefix}) has no module "
                f"{match.group(1)!r}: install it there from outside, or choose another interpreter with python="
            )
            yield Hint("missing-module", printable(text))
