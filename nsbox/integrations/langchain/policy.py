"""The execution policy: it starts the middleware's shell in a sandbox.

The middleware starts one shell for each run of an agent. It writes command lines to the shell's stdin, and after each
line a `printf` of a marker with the status. Threads of its own read both outputs, one line at a time. What it gets as
stdin, stdout and stderr are this package's streams: they see which command runs, and when it has ended.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from nsbox import PIPE, Policy, Popen, Sandbox, Session, Transaction
from nsbox._base.display import type_phrase
from nsbox._calls.environment import environment
from nsbox.integrations._extras import without
from nsbox.integrations.langchain.streams import Limits, Shell

try:
    from langchain.agents.middleware._execution import SHELL_TEMP_PREFIX, BaseExecutionPolicy
except ImportError as error:
    raise without("langchain", error) from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


class SandboxExecutionPolicy(BaseExecutionPolicy):
    """Starts the shell of ShellToolMiddleware in a sandbox.

    The middleware's promises hold: a command that takes too long is ended, and a fresh shell is started; long
    output is cut; `restart` makes a fresh shell. If a command fails because the sandbox refused something, lines that
    begin with "[sandbox]" follow its output, and tell the model what would be allowed.

    The end of `with`, or close(), ends all shells. That matters where the middleware doesn't end them itself: when a
    run of the agent fails or is cancelled.
    """

    def __init__(
        self,
        policy: Policy | Sandbox | Session | Transaction | None = None,
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
        why: whether the model learns why the sandbox refused something. Default: True.

        Raises TypeError for a policy of another type, and ValueError as LangChain's own policies do.
        """
        super().__init__(command_timeout, startup_timeout, termination_timeout, max_output_lines, max_output_bytes)
        if not (policy is None or isinstance(policy, Policy | Sandbox | Session | Transaction)):
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

        workspace: the middleware's directory. If it has none, it makes a temporary one. That is only used without a
            policy; otherwise shells start in the policy's own directory.
        env: variables in addition to those that the policy builds.
        command: the shell.

        Raises what starting a command raises, and RuntimeError if this was closed.
        """
        policy = Policy.workspace(workspace) if self.policy is None else self.policy
        wish = policy if isinstance(policy, Policy) else policy.policy
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
        """End all shells that this has started. Closing twice isn't an error; spawn() then raises RuntimeError."""
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
