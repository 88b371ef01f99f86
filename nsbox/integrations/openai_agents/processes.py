"""Commands that go on while others run, for the SDK's shell tool: nsbox's jobs, under the SDK's numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nsbox import NsboxError
from nsbox.integrations._extras import without
from nsbox.integrations._status import shell_status

try:
    from agents.sandbox import errors
    from agents.sandbox.session.pty_types import (
        PTY_PROCESSES_MAX,
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        process_id_to_prune_from_meta,
        resolve_pty_write_yield_time_ms,
        truncate_text_by_tokens,
    )
except ImportError as error:
    raise without("openai-agents", error) from error

if TYPE_CHECKING:
    from pathlib import Path

    from nsbox import AsyncJob, AsyncSession

_MOST = 1 << 20  # bytes of a job's output that are kept


class _Process:
    def __init__(self, job: AsyncJob, *, has_terminal: bool) -> None:
        self.job, self.has_terminal = job, has_terminal
        self.since, self.used = 0, time.monotonic()


class Processes:
    """The part of a session that starts such commands."""

    @property
    def root(self) -> Path:
        """The workspace."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}

    def _running_task(self, command: Any = ()) -> AsyncSession:
        raise NotImplementedError

    def _forget_processes(self) -> None:
        self._processes.clear()

    def supports_pty(self) -> bool:
        """Return True: commands can have a terminal."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: Any = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command, and return what it has printed until its end, or until some seconds have passed.

        command, shell, user: as for exec().
        timeout: seconds after which it is ended. Default: None, for no limit.
        tty: whether it gets a terminal, to which pty_write_stdin() can write. Default: False.
        yield_time_s: how long to wait. Default: 10.
        max_output_tokens: how much of the output is returned. Default: None, for all.
        """
        argv = self._prepare_exec_command(*command, shell=shell, user=user)  # type: ignore[attr-defined]
        task = self._running_task(command)
        await self._prune()
        try:
            job = await task.background(
                argv, pty=tty, open_stdin=tty, timeout=timeout, cwd=str(self.root), max_output=_MOST
            )
        except (NsboxError, OSError, ValueError) as error:
            raise errors.ExecTransportError(command=command, cause=error, message=str(error)) from error
        number: int = allocate_pty_process_id(set(self._processes))
        process = self._processes[number] = _Process(job, has_terminal=tty)
        wait = 10_000 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._update(number, process, clamp_pty_yield_time_ms(wait), max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Type something at a command's terminal, and return what it has printed since the last call.

        Raises PtySessionNotFoundError for a number that no running command has, and RuntimeError without a terminal.
        """
        process = self._processes.get(session_id)
        if process is None:
            raise errors.PtySessionNotFoundError(session_id=session_id)
        if chars:
            if not process.has_terminal:
                raise RuntimeError("stdin is not available for this process")
            try:
                await process.job.send(chars)
            except (OSError, ValueError):  # it has ended: its last output says more
                pass
        process.used = time.monotonic()
        wait = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=wait, input_empty=not chars)
        return await self._update(session_id, process, wait, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """End all of them."""
        processes = list(self._processes.values())
        self._processes.clear()
        for process in processes:
            await process.job.kill(at_once=True)

    async def _prune(self) -> None:
        """End the least recently used command, if there are too many."""
        if len(self._processes) < PTY_PROCESSES_MAX:
            return
        meta = [(number, one.used, not one.job.is_running) for number, one in self._processes.items()]
        number = process_id_to_prune_from_meta(meta)
        if number is not None:
            await self._processes.pop(number).job.kill(at_once=True)

    async def _update(self, number: int, process: _Process, wait_ms: int, tokens: int | None) -> PtyExecUpdate:
        deadline = time.monotonic() + wait_ms / 1000
        text, is_over = "", False
        while not is_over:
            left = deadline - time.monotonic()
            output = await process.job.output(process.since, max_bytes=_MOST, wait=max(left, 0) or None)
            if output.left_out:
                text += f"\n[... {output.left_out} bytes left out ...]\n"
            text += output.text
            process.since, is_over = output.next, output.is_over
            if left <= 0:
                break
        status: int | None = None
        if is_over:
            result = await process.job.wait()
            status = shell_status(result.returncode)
            text += "".join(f"[sandbox] {hint}\n" for hint in result.why if result.returncode)
            self._processes.pop(number, None)
        shown, count = truncate_text_by_tokens(text, tokens)
        return PtyExecUpdate(
            process_id=None if is_over else number,
            output=shown.encode("utf-8", "replace"),
            exit_code=status,
            original_token_count=count,
        )
