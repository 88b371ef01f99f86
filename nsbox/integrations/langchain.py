"""LangChain: an execution policy for ShellToolMiddleware, whose shell runs in a sandbox; and nsbox's tools for agents.

    with SandboxExecutionPolicy(nsbox.Policy.workspace("repo")) as policy:
        agent = create_agent(model, middleware=[ShellToolMiddleware("repo", execution_policy=policy)])
        agent.invoke(...)

The middleware starts one shell for each run of an agent. It writes command lines to the shell's stdin, and after each
line a `printf` of a marker with the status. Threads of its own read both outputs, one line at a time. What it gets as
stdin, stdout and stderr are the streams of _shell_streams: they see which command runs, and when it has ended.
"""

from __future__ import annotations

import functools
import json
import threading
import weakref
from typing import TYPE_CHECKING, Any

from nsbox._base.display import type_phrase
from nsbox._calls.environment import environment
from nsbox._calls.token import CancelToken
from nsbox._handles.dispatch import call_tool
from nsbox._handles.schemas import tool_schemas
from nsbox._handles.waiting import in_thread
from nsbox._kept.commands import Commands
from nsbox._policy.policy import Policy
from nsbox.integrations._extras import without
from nsbox.integrations._shell_streams import Limits, Shell
from nsbox.subprocess import PIPE, Popen

try:
    from langchain.agents.middleware._execution import SHELL_TEMP_PREFIX, BaseExecutionPolicy
    from langchain_core.tools import StructuredTool, ToolException
except ImportError as error:
    raise without("langchain", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from nsbox.sandbox import Sandbox
    from nsbox.session import Session

__all__ = ["SandboxExecutionPolicy", "tools"]


class SandboxExecutionPolicy(BaseExecutionPolicy):
    """Starts the shell of ShellToolMiddleware in a sandbox.

    What the middleware promises holds: a command that takes too long is ended, and a fresh shell is started; long
    output is cut; `restart` makes a fresh shell. If a command fails because the sandbox refused something, lines that
    begin with "[sandbox]" follow its output, and tell the model what would be allowed.

    The end of `with`, or close(), ends all shells. That matters where the middleware doesn't end them itself: when a
    run of the agent fails or is cancelled.
    """

    def __init__(
        self,
        policy: Policy | Sandbox | Session | None = None,
        *,
        command_timeout: float = 30.0,
        startup_timeout: float = 30.0,
        termination_timeout: float = 10.0,
        max_output_lines: int = 100,
        max_output_bytes: int | None = None,
        why: bool = True,
    ) -> None:
        """Hold the policy; nothing happens before the middleware starts a shell.

        policy: what commands may do: a Policy, or a Sandbox, Session, Task or Transaction to start shells in. Default:
            None, for Policy.workspace() of the middleware's workspace.
        command_timeout, startup_timeout, termination_timeout: seconds, as for LangChain's own policies. Default: 30, 30
            and 10.
        max_output_lines, max_output_bytes: of a command, as for LangChain's own policies. Default: 100, and None for no
            limit.
        why: whether the model is told why the sandbox refused something. Default: True.

        Raises TypeError for a policy of another type, and ValueError as LangChain's own policies do.
        """
        super().__init__(command_timeout, startup_timeout, termination_timeout, max_output_lines, max_output_bytes)
        if not (policy is None or isinstance(policy, Policy | Commands)):
            raise TypeError(f"policy is {type_phrase(policy)}, must be an nsbox.Policy or nsbox.Sandbox")
        self.policy = policy
        self.why = why
        self._lock = threading.Lock()
        self._shells: weakref.WeakSet[Shell] = weakref.WeakSet()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"SandboxExecutionPolicy({self.policy!r})"

    def spawn(self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]) -> Popen[str]:
        """Return the shell, started in the sandbox, in the workspace.

        workspace: the middleware's directory. The temporary one that it makes if it has none is used only without a
            policy; otherwise shells start in the policy's own directory.
        env: variables in addition to those that the policy builds.
        command: the shell.

        Raises what starting a command raises, and RuntimeError if this was closed.
        """
        policy = Policy.workspace(workspace) if self.policy is None else self.policy
        wish = policy if isinstance(policy, Policy) else policy.way().policy
        is_temporary = workspace.name.startswith(SHELL_TEMP_PREFIX)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the SandboxExecutionPolicy is closed")
            process: Popen[Any] = Popen(
                list(command),
                policy=policy,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                bufsize=0,
                cwd=None if is_temporary and self.policy is not None else workspace.absolute(),
                env=environment(wish, None, dict(env)),
            )
            limits = Limits(self.max_output_lines, self.max_output_bytes) if self.why else None
            self._shells.add(Shell(process, wish, command[0], limits))
        return process

    def close(self) -> None:
        """End all shells that this has started. Closing twice is no error; spawn() then raises RuntimeError."""
        with self._lock:
            self._is_closed = True
            shells = list(self._shells)
        for shell in shells:
            shell.end()

    def __enter__(self) -> SandboxExecutionPolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def tools(box: Sandbox | Session, names: Iterable[str] | None = None, **options: Any) -> list[StructuredTool]:
    """Return nsbox's tools for an agent of LangChain: shell, files, jobs. Each answers with JSON.

    A model's mistake, such as a path that the policy doesn't allow, becomes a ToolMessage with the status "error". It
    says what is wrong. A tool call in a cancelled asyncio task is ended first.

    box: a Sandbox, Session or Task.
    names: which tools, such as ["shell", "edit"]. Default: None, for all.
    options: for nsbox.call_tool(), such as env, secrets and timeout.

    Raises ValueError for a tool that doesn't exist. A call raises what nsbox.call_tool() raises.
    """
    return [_tool(box, schema["function"], options) for schema in tool_schemas(names)]


def _tool(box: Any, schema: dict[str, Any], options: dict[str, Any]) -> StructuredTool:
    name: str = schema["name"]

    def run(**arguments: Any) -> str:
        return _answer(call_tool(box, name, arguments, **options))

    async def arun(**arguments: Any) -> str:
        wish = options.get("cancel")
        token = CancelToken() if wish is None else wish.child()
        call = functools.partial(call_tool, box, name, arguments, **{**options, "cancel": token})
        return _answer(await in_thread(call, token.cancel))

    return StructuredTool.from_function(
        func=run,
        coroutine=arun,
        name=name,
        description=schema["description"],
        args_schema=schema["parameters"],
        infer_schema=False,
        handle_tool_error=True,
    )


def _answer(answer: dict[str, Any]) -> str:
    if set(answer) == {"error"}:
        raise ToolException(answer["error"])
    return json.dumps(answer, ensure_ascii=False)
