"""A sandbox for Inspect (inspect_ai): `sandbox="nsbox"` gives each sample a sandbox of its own, without Docker.

    from inspect_ai import Task, eval

    eval(Task(dataset=..., solver=..., sandbox="nsbox"), model=...)
    eval(Task(dataset=..., solver=..., sandbox=("nsbox", "nsbox.toml")), model=...)

Each sandbox is a task of nsbox's (Sandbox.task()): commands may write anywhere, what they write stays until the sample
ends, and the host isn't changed. Inspect finds this module by the entry point group "inspect_ai".
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from nsbox import AccessError, AsyncSandbox, IdsError, Limits, NsboxError, Policy, PolicyError
from nsbox._calls import environment
from nsbox._config.load import load
from nsbox.integrations._extras import without
from nsbox.integrations._status import shell_status
from nsbox.transaction import recover

try:
    import anyio
    import anyio.to_thread
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        concurrency,
        sandboxenv,
    )
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise without("inspect-ai", error) from error

if TYPE_CHECKING:
    from nsbox import AsyncTask, ToolResult

__all__ = ["NsboxConfig", "NsboxSandboxEnvironment"]

_CONFIG = "nsbox.toml"  # in the directory of an eval: its configuration, unless it names another
_TABLE = "sandboxes"  # in a file: a table for each sandbox of a sample
_PREFIX = "work-"
_MOST_OUTPUT = 64 << 20  # of each stream, whatever Inspect's limit is


class NsboxConfig(BaseModel):
    """A sandbox's configuration, instead of a file: `sandbox=SandboxEnvironmentSpec("nsbox", NsboxConfig())`.

    policy: keywords of Policy.workspace(), such as {"network": ["api.example"], "limits": {"memory": "2G"}}. Or the
        path of a configuration file. Default: {}.
    workspace: the directory that each sample begins with. Default: None, for an empty one, or the file's own.
    sandboxes: several for each sample, by name. The first is the default one. Then `policy` and `workspace` must be
        empty, and a file isn't possible.
    why: whether stderr ends with nsbox's reasons, if a command fails. Default: False.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str | dict[str, Any] = Field(default_factory=dict)
    workspace: str | None = None
    sandboxes: dict[str, NsboxConfig] = Field(default_factory=dict)
    why: bool = False

    def __hash__(self) -> int:
        """Return a hash: Inspect keeps configurations in sets."""
        return hash(self.model_dump_json())


def configs(config: NsboxConfig | BaseModel | str | None) -> dict[str, tuple[NsboxConfig, str | None]]:
    """Return the configurations of a sample's sandboxes, by name, each with the table of its file; None: the usual one.

    config: as Inspect passes it: the path of a file, an NsboxConfig, or None.

    Raises PolicyError for a wrong configuration, and OSError for a file that can't be read.
    """
    wish = NsboxConfig(policy=config) if isinstance(config, str) else config or NsboxConfig()
    if not isinstance(wish, NsboxConfig):
        raise PolicyError("config", f"is a {type(wish).__name__}, must be the path of a file, or an NsboxConfig")
    if wish.sandboxes:
        if wish.policy or wish.workspace:
            raise PolicyError("config", "has sandboxes, so policy and workspace must be empty: each has its own")
        return {name: (each, None) for name, each in wish.sandboxes.items()}
    names = _tables(wish.policy) if isinstance(wish.policy, str) else []
    return {name: (wish, f"{_TABLE}.{name}") for name in names} or {"default": (wish, None)}


def _tables(path: str) -> list[str]:
    """Return the names below `sandboxes` in a TOML or JSON file, in their order."""
    try:
        with open(path, "rb") as file:
            if path.endswith(".json"):
                whole = json.load(file)
            elif path.endswith(".toml"):
                import tomllib

                whole = tomllib.load(file)
            else:
                return []
    except ValueError:  # load() says what is wrong
        return []
    tables = whole.get(_TABLE) if isinstance(whole, dict) else None
    return list(tables) if isinstance(tables, dict) else []


def policy_of(config: NsboxConfig, section: str | None, directory: str) -> Policy:
    """Return the policy of a sandbox.

    directory: what it works in, if nothing else is named.

    Raises PolicyError and OSError.
    """
    if isinstance(config.policy, str):
        loaded = load(config.policy, section=section, workspace=config.workspace or directory)
        if loaded.mode != "enabled":
            raise PolicyError("mode", f"is {loaded.mode!r}: Inspect's sandbox is called 'local' for that")
        return loaded.policy
    keywords = {"ids": "auto", **config.policy}
    if isinstance(keywords.get("limits"), dict):
        keywords["limits"] = Limits(**keywords["limits"])
    return Policy.workspace(config.workspace or directory, **keywords)


@sandboxenv(name="nsbox")
class NsboxSandboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample. Inspect makes it, by sample_init().

    task: the AsyncTask, for what Inspect has no method for, such as snapshot(), reset() and patch(). You get it as
        `sandbox().as_type(NsboxSandboxEnvironment).task`.
    """

    task: AsyncTask

    def __init__(self, config: NsboxConfig, section: str | None = None) -> None:
        """Store the configuration; start() makes the sandbox."""
        super().__init__()
        self._config, self._section = config, section
        self._directory: str | None = None
        self._box: AsyncSandbox

    async def start(self) -> None:
        """Make the sandbox; raises what Sandbox.task() raises."""
        self._directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        try:
            os.chmod(self._directory, 0o755)  # for commands of other users; nothing is ever in it
            self._policy = policy = policy_of(self._config, self._section, self._directory)
            self._box = AsyncSandbox(policy, stock=0)
            self.task = await self._box.task()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise

    async def close(self) -> None:
        """End all that runs in it, and drop what was written. Closing twice isn't an error."""
        try:
            if hasattr(self, "_box"):
                await self._box.close()
        finally:
            directory, self._directory = self._directory, None
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    # ---- commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; as SandboxEnvironment.exec(). A command that took too long isn't tried again."""
        try:
            options, more = await self._user(user)
        except KeyError:
            return ExecResult(False, 126, "", f"unable to find user {user}: no matching entries in passwd file\n")
        variables = {**more, **(env or {})}
        if variables:
            options["basis"] = environment.environment(self._policy, None, variables)
        limit = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, _MOST_OUTPUT)
        async with _throttle() if concurrency else contextlib.nullcontext():
            try:
                result = await self.task.exec(
                    cmd[0], cmd[1:], input=input, cwd=cwd, timeout=timeout, max_output=limit, **options
                )
            except (IdsError, PolicyError) as error:
                if user is None:
                    raise
                raise SandboxUserUnsupportedError(f"can't execute as {user!r}: {error}") from error
            except AccessError as error:  # cwd
                return ExecResult(False, 126, "", f"{error}\n")
            except (NsboxError, BlockingIOError) as error:
                raise SandboxUnavailableError(f"the sandbox can't start a command: {error}") from error
            except ValueError as error:
                if self._is_over():
                    raise SandboxUnavailableError("the sandbox has ended") from error
                raise
        return self._exec_result(result, timeout, limit)

    def _is_over(self) -> bool:
        return bool(self.task.task.has_ended)

    def _exec_result(self, result: ToolResult, timeout: int | None, limit: int) -> ExecResult[str]:
        if result.timed_out:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            late.truncated_output = result.stdout + result.stderr  # type: ignore[attr-defined]  # as Docker's has it
            raise late
        if result.cancelled:
            raise SandboxUnavailableError("the sandbox was closed while a command ran")
        if result.cause == "not-started" and result.returncode == 126:
            raise PermissionError(result.stderr.strip())
        for count, text in ((result.stdout_bytes, result.stdout), (result.stderr_bytes, result.stderr)):
            if count > limit:
                raise OutputLimitExceededError(_size(limit), text)
        stderr = result.stderr
        if self._config.why:
            stderr += "".join(f"[sandbox] {hint}\n" for hint in result.why)
        return ExecResult(result.returncode == 0, shell_status(result.returncode), result.stdout, stderr)

    async def _user(self, user: str | None) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the options for a user, and variables; raises KeyError for a name that isn't in /etc/passwd."""
        if user is None:
            return {}, {}
        number = int(user) if user.isdecimal() else None
        lines = [line.split(":") for line in (await self._text("/etc/passwd")).splitlines()]
        entries = [line for line in lines if len(line) == 7 and line[2].isdecimal() and line[3].isdecimal()]
        entry = next((line for line in entries if user == line[0] or line[2] == user), None)
        if entry is None and number is None:
            raise KeyError(user)
        uid = int(entry[2]) if entry else int(user)
        default = os.geteuid() if self._policy.uid is None else self._policy.uid
        if uid == default:
            return {}, {}
        if entry is None:
            return {"user": uid, "group": 0, "extra_groups": []}, {}
        groups = [line.split(":") for line in (await self._text("/etc/group")).splitlines()]
        extra = [
            int(line[2]) for line in groups if len(line) == 4 and line[2].isdecimal() and entry[0] in line[3].split(",")
        ]
        variables = {"HOME": entry[5], "USER": entry[0], "LOGNAME": entry[0]}
        return {"user": uid, "group": int(entry[3]), "extra_groups": extra}, variables

    async def _text(self, path: str) -> str:
        try:
            return await self.task.read(path, 1 << 20, errors="replace")
        except OSError:
            return ""

    # ---- files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; as SandboxEnvironment.write_file()."""
        await anyio.to_thread.run_sync(self._write, file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file; as SandboxEnvironment.read_file()."""
        limit, shown = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
        data = await anyio.to_thread.run_sync(partial(self._read, file, limit))
        if len(data) > limit:
            raise OutputLimitExceededError(shown, None)
        return data.decode() if text else data

    def _read(self, path: str, limit: int) -> bytes:
        with self.task.task.open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if os.geteuid() == 0:  # the kernel refuses root nothing
                self._check(path, status, stat.S_IRUSR)
            return b"\0" * (limit + 1) if status.st_size > limit else file.read(limit + 1)

    def _write(self, path: str, contents: str | bytes) -> None:
        with contextlib.suppress(FileNotFoundError), self.task.task.open(path, "rb") as file:
            self._check(path, os.fstat(file.fileno()), stat.S_IWUSR)
        self.task.task.write(path, contents)

    def _check(self, path: str, status: os.stat_result, bit: int) -> None:
        """Raise PermissionError if permissions refuse commands what file tools would do all the same."""
        uid = os.geteuid()
        if uid == 0 and self._policy.uid is not None and self._policy.ids != "single":
            uid = self._policy.uid
        shift = 0 if status.st_uid == uid else 3 if status.st_gid == (self._policy.gid or os.getegid()) else 6
        if not status.st_mode & bit >> shift:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    # ---- what Inspect calls for each sample, task and program

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Check that this machine can make the sandbox, before any sample begins."""
        for one in (await cls.sample_init(task_name, config, {})).values():
            await one.as_type(cls).close()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Make the sandboxes of a sample."""
        made = {name: cls(*each) for name, each in configs(config).items()}
        try:
            for one in made.values():
                await one.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                for one in made.values():
                    await one.close()
            raise
        return dict(made)

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the sandboxes of a sample."""
        for one in environments.values():
            await one.as_type(cls).close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Remove what is left of programs that were killed; for `inspect sandbox cleanup nsbox`."""
        if id is not None:
            raise ValueError("nsbox's sandboxes have no ids: they end with their program; leave the id out")
        await anyio.to_thread.run_sync(recover)
        for name in os.listdir(tempfile.gettempdir()):
            pid = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
                with contextlib.suppress(OSError):  # it has something in it, or is another user's
                    os.rmdir(os.path.join(tempfile.gettempdir(), name))

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the names of configuration files that Inspect looks for beside an eval."""
        return [_CONFIG]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration that a log holds."""
        return NsboxConfig(**config)


def _throttle() -> contextlib.AbstractAsyncContextManager[object]:
    """Return the limiter of commands at a time, which follows Inspect's option max_subprocesses."""
    try:
        from inspect_ai.util._subprocess import max_subprocesses_context_var

        most = int(max_subprocesses_context_var.get())
    except (ImportError, LookupError):
        most = os.cpu_count() or 1
    limiter: contextlib.AbstractAsyncContextManager[object] = concurrency("subprocesses", most, resizable=True)
    return limiter


def _size(limit: int) -> str:
    if limit == SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
        return str(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR)
    return f"{limit >> 20} MiB"
