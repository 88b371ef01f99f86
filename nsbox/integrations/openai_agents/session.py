"""A session: commands, files, ports and the workspace's archive, in one task."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nsbox import AsyncSandbox, NsboxError, Policy, in_thread
from nsbox.integrations._extras import without
from nsbox.integrations._status import shell_status
from nsbox.integrations.openai_agents.processes import Processes

try:
    from agents.sandbox import errors
    from agents.sandbox.session import SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile
except ImportError as error:
    raise without("openai-agents", error) from error

if TYPE_CHECKING:
    from nsbox import AsyncSession, Published

_MOST_OUTPUT = 64 << 20  # bytes of each stream that exec() returns
_IN_MEMORY = 16 << 20  # bytes of an archive before it goes to a file


class NsboxSandboxSessionState(SandboxSessionState):
    """A session's state, for JSON.

    workspace_root_owned: whether the workspace is a temporary directory, which delete() removes.
    """

    type: Literal["nsbox"] = "nsbox"
    workspace_root_owned: bool = False


class NsboxSandboxSession(Processes, BaseSandboxSession):
    """A sandbox session of the Agents SDK. Its errors are the SDK's; what nsbox says is their cause.

    `task` is the nsbox.AsyncTask, or AsyncSession without an overlay, in which all happens; None unless it runs.
    """

    state: NsboxSandboxSessionState

    def __init__(self, state: NsboxSandboxSessionState, policy: Callable[[Path], Policy], *, overlay: bool) -> None:
        """Hold the state; start() makes the sandbox.

        policy: returns the policy for a workspace. overlay: as for NsboxSandboxClient.
        """
        super().__init__()
        self.state = state
        self.task: AsyncSession | None = None
        self._policy, self._overlay = policy, overlay
        self._box: AsyncSandbox | None = None
        self._published: dict[int, Published] = {}
        self._is_ready = False

    # ---- its life

    @property
    def root(self) -> Path:
        """The workspace."""
        return Path(self.state.manifest.root)

    async def _ensure_backend_started(self) -> None:
        if await self._has_task():
            return
        await in_thread(lambda: self.root.mkdir(parents=True, exist_ok=True))
        policy = self._policy(self.root)
        grants = self.state.manifest.extra_path_grants
        policy = policy.with_(
            read=[*policy.read, *(grant.path for grant in grants if grant.read_only)],
            write=[*policy.write, *(grant.path for grant in grants if not grant.read_only)],
            env=dict(policy.env) | await self.state.manifest.environment.resolve(),
        )
        self._box = box = AsyncSandbox(policy)
        try:
            self.task = await (box.task(self.root) if self._overlay else box.session())
        except BaseException:
            self._box = None
            await box.close()
            raise

    async def _has_task(self) -> bool:
        return self.task is not None and not self.task.session.has_ended

    def _running_task(self, command: Sequence[Any] = ()) -> AsyncSession:
        if self.task is None:
            raise errors.ExecTransportError(command=command, message="the session hasn't started, or was shut down")
        return self.task

    async def _after_start(self) -> None:
        self._is_ready = True

    async def _after_start_failed(self) -> None:
        await self.discard()

    def _wrap_start_error(self, error: Exception) -> Exception:
        if isinstance(error, NsboxError | OSError):
            error = errors.WorkspaceStartError(path=self.root, message=str(error), cause=error)
        return error

    def _wrap_stop_error(self, error: Exception) -> Any:
        return errors.WorkspaceStopError(path=self.root, cause=error)

    async def running(self) -> bool:
        """Return whether it has started, and still runs."""
        return self._is_ready and await self._has_task()

    async def _shutdown_backend(self) -> None:
        """Commit the changes to the workspace, and drop all else."""
        task = self.task
        try:
            if self._overlay and task is not None and not task.session.has_ended:
                await task.exec("/bin/sh", ["-c", "kill -9 -1"])  # all that commands have left running
                await task.commit()  # type: ignore[attr-defined]
        finally:
            await self.discard()

    async def discard(self) -> None:
        """End all that runs, and drop what wasn't committed."""
        self._is_ready = False
        task, self.task = self.task, None
        box, self._box = self._box, None
        self._published.clear()
        self._forget_processes()
        if task is not None:
            await task.close()
        if box is not None:
            await box.close()

    # ---- commands

    def _prepare_exec_command(self, *command: str | Path, shell: bool | list[str], user: Any) -> list[str]:
        if user:
            raise ValueError("nsbox runs a session's commands as one user: leave out user=")
        prepared: list[str] = super()._prepare_exec_command(
            *command, shell=["sh", "-c"] if shell is True else shell, user=None
        )
        return prepared

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        task = self._running_task(command)
        argv, outputs = [str(part) for part in command], {"stdout": bytearray(), "stderr": bytearray()}
        try:
            async with task.stream(argv, timeout=timeout, cwd=str(self.root)) as stream:
                async for event in stream:
                    if event.kind != "end":
                        output = outputs[event.kind]
                        output += event.data[: _MOST_OUTPUT - len(output)]
                result = stream.result
        except (NsboxError, OSError, ValueError) as error:
            raise errors.ExecTransportError(command=command, cause=error, message=str(error)) from error
        assert result is not None
        if result.timed_out:
            raise errors.ExecTimeoutError(command=command, timeout_s=timeout)
        if not outputs["stderr"] and result.usage is None:  # it couldn't be started
            outputs["stderr"] += result.stderr.encode()
        for hint in result.why if result.returncode else ():
            outputs["stderr"] += f"[sandbox] {hint}\n".encode()
        return ExecResult(
            stdout=bytes(outputs["stdout"]),
            stderr=bytes(outputs["stderr"]),
            exit_code=shell_status(result.returncode),
        )

    # ---- ports

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        task = self._running_task()
        if task.session.policy.network == "host":
            return ExposedPortEndpoint(host="127.0.0.1", port=port)
        published = self._published.get(port)
        if published is None:
            try:
                published = await in_thread(lambda: task.session.publish(port, 0))
            except (NsboxError, OSError) as error:
                raise errors.ExposedPortUnavailableError(
                    port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable", cause=error
                ) from error
            self._published[port] = published
        return ExposedPortEndpoint(host="127.0.0.1", port=int(published.address[1]))

    # ---- files

    async def read(self, path: Path | str, *, user: Any = None) -> io.IOBase:
        """Return the contents of a file of the workspace, as a stream. user: must be None.

        Raises WorkspaceReadNotFoundError, WorkspaceArchiveReadError, and what normalize_path() raises.
        """
        self._check_user(user)
        return io.BytesIO(await self._contents(path, -1))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._contents(path, max_bytes)

    async def _contents(self, path: Path | str, size: int) -> bytes:
        task, inside = self._running_task(), self.normalize_path(path)

        def contents() -> bytes:
            with task.session.open(inside, "rb") as file:
                return file.read(size)

        try:
            return await in_thread(contents)
        except FileNotFoundError as error:
            raise errors.WorkspaceReadNotFoundError(path=Path(path), cause=error) from error
        except (OSError, ValueError) as error:
            context = {"reason": str(error)}
            raise errors.WorkspaceArchiveReadError(path=Path(path), context=context, cause=error) from error

    async def write(self, path: Path | str, data: io.IOBase, *, user: Any = None) -> None:
        """Make a file of the workspace, or replace one in one step. user: must be None.

        Raises WorkspaceArchiveWriteError, and what normalize_path() raises.
        """
        self._check_user(user)
        task, inside = self._running_task(), self.normalize_path(path, for_write=True)
        payload = coerce_write_payload(path=Path(path), data=data)
        try:
            await in_thread(lambda: task.session.write(inside, payload.stream.read()))
        except (OSError, ValueError) as error:
            context = {"reason": str(error)}
            raise errors.WorkspaceArchiveWriteError(path=Path(path), context=context, cause=error) from error

    @staticmethod
    def _check_user(user: Any) -> None:
        if user:
            raise ValueError("nsbox runs a session's commands as one user: leave out user=")

    # ---- the workspace as an archive

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar file, made by tar(1) in the sandbox.

        Raises WorkspaceArchiveReadError.
        """
        task, root = self._running_task(), self.root
        skipped = [path.as_posix() for path in self._persist_workspace_skip_relpaths()]
        argv = ["tar", "-C", str(root), "--anchored", "--no-wildcards", "--no-wildcards-match-slash"]
        argv += [f"--exclude=./{path}" for path in skipped]
        archive = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115  (the caller closes it)
        try:
            async with task.stream([*argv, "--hard-dereference", "-cf", "-", "."]) as stream:
                async for event in stream:
                    if event.kind == "stdout":
                        archive.write(event.data)
            assert stream.result is not None
            if stream.result.returncode:
                context = {"reason": "tar failed", "stderr": stream.result.stderr}
                raise errors.WorkspaceArchiveReadError(path=root, context=context)
        except BaseException as error:
            archive.close()
            if isinstance(error, NsboxError | OSError):
                raise errors.WorkspaceArchiveReadError(path=root, cause=error) from error
            raise
        archive.seek(0)
        return archive  # type: ignore[return-value]

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fill the workspace from a tar file, by tar(1) in the sandbox.

        Raises WorkspaceArchiveWriteError, for an archive with paths that lead out of the workspace, too.
        """
        task, root = self._running_task(), self.root
        with tempfile.TemporaryFile() as file:
            try:
                await in_thread(lambda: _checked(data, file))
                result = await task.exec("tar", ["-C", str(root), "-xf", "-"], input=file.read())
            except UnsafeTarMemberError as error:
                context = {"reason": error.reason, "member": error.member}
                raise errors.WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
            except (tarfile.TarError, NsboxError, OSError) as error:
                raise errors.WorkspaceArchiveWriteError(path=root, cause=error) from error
        if result.returncode:
            context = {"reason": "tar failed", "stderr": result.stderr}
            raise errors.WorkspaceArchiveWriteError(path=root, context=context)


def _checked(data: Any, file: Any) -> None:
    """Copy an archive, and look at its members."""
    while chunk := data.read(1 << 20):
        file.write(chunk)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        validate_tarfile(archive)
    file.seek(0)
