"""An executor for smolagents: a CodeAgent's code runs in a sandbox, and its tools stay outside.

    from smolagents import CodeAgent
    from nsbox.integrations.smolagents import NsboxExecutor

    with NsboxExecutor() as executor:
        agent = CodeAgent(tools=[...], model=model, executor=executor)
        agent.run("...")

The code runs in a kernel (Python.kernel()). When it calls a tool, the call and its result go over the kernel's line as
JSON. Nothing that a sandbox wrote is unpickled.
"""

from __future__ import annotations

import ast
import contextlib
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from nsbox import Policy, Sandbox
from nsbox.integrations._extras import without

try:
    from smolagents.local_python_executor import (
        BASE_BUILTIN_MODULES,
        CodeOutput,
        ExecutionTimeoutError,
        InterpreterError,
        PythonExecutor,
        check_import_authorized,
    )
    from smolagents.utils import truncate_content
except ImportError as error:
    raise without("smolagents", error) from error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from nsbox import PythonKernel, PythonResult

__all__ = ["NsboxExecutor"]

_TOOL = "_nsbox_tool"  # the one function of the kernel, by which all tools are called
_FINAL = "FinalAnswerException"  # as smolagents calls it
_MOST_LOGS = 50_000  # characters, as in smolagents

# What the code finds: a function for each tool. Sets, arrays and the like become lists, which JSON has.
_PRELUDE = f"""
def _nsbox_plain(value):
    if isinstance(value, dict):
        return {{key: _nsbox_plain(one) for key, one in value.items()}}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_nsbox_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value

class {_FINAL}(BaseException):
    pass

def _nsbox_define(name):
    def tool(*args, **kwargs):
        value = {_TOOL}(name, _nsbox_plain(args), _nsbox_plain(kwargs))
        if name == "final_answer":
            raise {_FINAL}()
        return value
    tool.__name__ = tool.__qualname__ = name
    return tool
"""


class NsboxExecutor(PythonExecutor):
    """Runs the code of a CodeAgent in a sandbox. Variables stay from step to step, until cleanup().

    state: what smolagents shows of a step that failed: `_print_outputs` is what it printed.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        additional_authorized_imports: Sequence[str] = (),
        additional_functions: Mapping[str, Callable[..., Any]] | None = None,
        timeout_seconds: float | None = 30,
        max_print_outputs_length: int | None = None,
        python: str | os.PathLike[str] | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        """Store the options; the sandbox begins with the first use.

        policy: what code may do. Default: None, for Policy.workspace() of a new, empty directory.
        additional_authorized_imports: modules that code may import besides smolagents' own list; "*": all. This is for
            the model's sake. What contains the code is the policy.
        additional_functions: functions of this process that code may call, besides tools, by name. Default: None.
        timeout_seconds: of each step, tools included. None: no limit. Default: 30.
        max_print_outputs_length: characters of what a step prints that are kept. Default: None, for 50,000.
        python, imports: as for Sandbox.python().
        """
        self.authorized_imports = sorted({*BASE_BUILTIN_MODULES, *additional_authorized_imports})
        self.state: dict[str, Any] = {"_print_outputs": ""}
        self._policy, self._python, self._imports = policy, python, tuple(imports)
        self._functions = dict(additional_functions or {})
        self._timeout, self._most = timeout_seconds, max_print_outputs_length or _MOST_LOGS
        self._tools: dict[str, Callable[..., Any]] = {}
        self._variables: dict[str, Any] = {}
        self._final: list[Any] = []  # what final_answer() has returned in this step
        self._stack = contextlib.ExitStack()
        self._kernel: PythonKernel | None = None

    def _living(self) -> PythonKernel:
        """Return the kernel; make it if there is none, or it has ended."""
        kernel = self._kernel
        if kernel is not None and kernel.ended is None:
            return kernel
        if kernel is not None:
            kernel.reset()
        else:
            with contextlib.ExitStack() as stack:
                policy = self._policy
                if policy is None:
                    directory = tempfile.mkdtemp(prefix="work-")
                    stack.callback(shutil.rmtree, directory, ignore_errors=True)
                    policy = Policy.workspace(directory)
                box = stack.enter_context(Sandbox(policy, stock=0))
                python = stack.enter_context(box.python(python=self._python, imports=self._imports, stock=1))
                kernel = stack.enter_context(python.kernel(functions={_TOOL: self._call}))
                self._stack, self._kernel = stack.pop_all(), kernel
        kernel.run(_PRELUDE, check=True)
        self._define(kernel, self._tools)
        if self._variables:
            kernel.run("", inputs=self._variables, check=True)
        return kernel

    def _define(self, kernel: PythonKernel, names: Iterable[str]) -> None:
        lines = [f"{name} = _nsbox_define({name!r})" for name in names]
        if lines:
            kernel.run("\n".join(lines), check=True)

    def _call(self, name: object, args: object, kwargs: object) -> object:
        """Call a tool for the code, whose arguments aren't trusted."""
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(args, list) or not isinstance(kwargs, dict):
            raise NameError(f"there is no tool {name!r:.100}")
        value = tool(*args, **kwargs)
        if name == "final_answer":
            self._final[:] = [value]
            return None
        return _plain(value)

    # ---- what smolagents calls

    def send_tools(self, tools: Mapping[str, Callable[..., Any]]) -> None:
        """Let code call these. They run in this process, in the thread of the agent."""
        self._tools = {**tools, **self._functions}
        for name in self._tools:
            if not name.isidentifier():
                raise ValueError(f"a tool is called {name!r:.100}, which isn't a name in Python")
        kernel = self._kernel
        if kernel is not None and kernel.ended is None:
            self._define(kernel, self._tools)

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Give code these variables. Raises TypeError and ValueError for values that JSON can't hold."""
        if not variables:
            return
        self._living().run("", inputs=variables, check=True)
        self._variables.update(variables)

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a step's code, and return its output.

        Raises InterpreterError for code that fails, and ExecutionTimeoutError for code that takes too long.
        """
        self.state["_print_outputs"] = ""
        self._final.clear()
        _check_imports(code_action, self.authorized_imports)
        result = self._living().run(code_action, timeout=self._timeout, max_output=4 * self._most)
        logs = truncate_content(result.stdout + result.stderr, max_length=self._most)
        self.state["_print_outputs"] = logs
        raised = result.exception
        if raised is not None and raised.type.rpartition(".")[2] == _FINAL and self._final:
            return CodeOutput(output=self._final[0], logs=logs, is_final_answer=True)
        if raised is not None or result.returncode:
            raise self._problem(result)
        output = result.value if result.value is not None else result.repr
        return CodeOutput(output=output, logs=logs, is_final_answer=False)

    def _problem(self, result: PythonResult) -> Exception:
        """Return the exception for a step that failed."""
        problem: Exception
        if result.timed_out:
            lost = "; its variables are lost" if result.ended else ""
            problem = ExecutionTimeoutError(
                f"Code execution exceeded the maximum execution time of {self._timeout} seconds{lost}"
            )
            return problem
        raised = result.exception
        if raised is None or result.ended:
            why = " ".join(hint.message for hint in result.why)
            problem = InterpreterError(
                f"Code execution ended with status {result.returncode}; its variables are lost. {why}"
            )
            return problem
        line = f" at line '{raised.lines[0][1].strip()}'" if raised.lines else ""
        problem = InterpreterError(f"Code execution failed{line} due to: {raised.type}: {raised.message}")
        return problem

    # ---- the end

    def cleanup(self) -> None:
        """End the sandbox, and all that runs in it. The next use begins another. CodeAgent.cleanup() calls this."""
        self._kernel = None
        self._variables.clear()
        self._stack.close()

    def __enter__(self) -> NsboxExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cleanup()


def _plain(value: Any) -> Any:
    """Return a tool's result as values that JSON can hold, if that changes nothing else."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _check_imports(code: str, authorized: list[str]) -> None:
    """Raise InterpreterError for code that can't be parsed, or that says it imports what isn't authorized."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        place = f" on line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise InterpreterError(f"Code parsing failed{place} due to: {type(error).__name__}: {error}") from None
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if not check_import_authorized(name, authorized):
                raise InterpreterError(f"Import of {name} is not allowed. Authorized imports are: {authorized}")
