"""The backend.

Files are read, written, edited and deleted by nsbox's file tools, in this process, where no command can lead them
astray. They don't reach everything, such as /usr, and the rules of `ls` and `glob` are Deep Agents' own. There, the
scripts of the base class do the work. They run in the sandbox like any other command.
"""

from __future__ import annotations

import base64
import functools
import posixpath
import uuid
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from nsbox import AccessError, CancelToken, EditError, NsboxError, Policy, Sandbox, Session, Transaction, in_thread
from nsbox._base.display import type_phrase
from nsbox.integrations._extras import without
from nsbox.integrations._status import shell_status
from nsbox.integrations.deepagents.pages import page

try:
    from deepagents.backends import protocol
    from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG, BaseSandbox
    from deepagents.backends.utils import (
        EMPTY_OLD_STRING_ERROR,
        _get_backend_read_file_type,
        normalize_read_bounds,
    )
except ImportError as error:
    raise without("deepagents", error) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from nsbox.secrets import Secret, Store

    T = TypeVar("T")

_MOST_FILE = 256 << 20  # bytes
_EMPTY = "System reminder: File exists but has empty contents"  # what Deep Agents says to the model
_MOST_TEXT = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())
_MOST_MATCHES = 100_000
_MOST_CHARS = 16 << 20  # of what grep and the base class's scripts print
_SCRIPT_TIMEOUT = 60.0
_TIMED_OUT = 124  # timeout(1), and Deep Agents' own backends


class _Scripts(BaseSandbox):
    """The base class's file tools: each is a script that runs as a command in the sandbox."""

    def __init__(self, box: Any, token: CancelToken) -> None:
        self._box, self._token = box, token

    def execute(self, command: str, *, timeout: int | None = None) -> Any:
        result = self._box.shell(command, timeout=_SCRIPT_TIMEOUT, max_output=_MOST_CHARS, cancel=self._token)
        text = result.stdout + result.stderr
        if result.returncode:
            text += "".join(f"\n{hint}" for hint in result.why)
        return protocol.ExecuteResponse(text, shell_status(result.returncode), result.is_truncated)

    @property
    def id(self) -> str:
        raise NotImplementedError

    def upload_files(self, files: Any) -> Any:
        raise NotImplementedError

    def download_files(self, paths: Any) -> Any:
        raise NotImplementedError


class SandboxBackend(BaseSandbox):
    """A sandbox for an agent of Deep Agents: a shell, and all file tools, each also for coroutines.

    Paths are absolute, as commands see them. Errors are those of Deep Agents: "file_not_found", "permission_denied",
    "is_directory" and "invalid_path", followed by nsbox's reason if the answer is a sentence. If the machine
    can't grant the policy, calls raise UnavailableError. A cancelled task's command is ended first.
    """

    def __init__(
        self,
        policy: Policy | Sandbox | Session | Transaction,
        *,
        timeout: float = 120.0,
        max_output: int = 1 << 20,
        env: Mapping[str, str] | None = None,
        secrets: Store | Mapping[str, Secret | str] | None = None,
    ) -> None:
        """Begin a session under a policy, or use a given Sandbox.

        policy: a Policy: this makes a session under it, which close() ends. Commands find in /tmp and in a private home
            what earlier ones have left there, and what they leave running goes on. Or a Sandbox, Session, Task or
            Transaction, which stays yours to close; under a Sandbox, each command has its own /tmp.
        timeout: seconds that a command may take if the model doesn't say. Default: 120.
        max_output: how many bytes of each stream are kept. Default: 1 MiB; Deep Agents moves long output
            to a file.
        env, secrets: for each command, as for Sandbox.shell(). Default: none.

        Raises TypeError for a policy of another type, ValueError for a timeout that isn't positive, and what
        Sandbox.session() raises.
        """
        if not isinstance(policy, Policy | Sandbox | Session | Transaction):
            raise TypeError(f"policy is {type_phrase(policy)}, must be an nsbox.Policy or nsbox.Sandbox")
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}, must be positive")
        self._own: Sandbox | None = None
        if isinstance(policy, Policy):
            self._own = Sandbox(policy)
            try:
                self.box: Any = self._own.session()
            except BaseException:
                self._own.close()
                raise
        else:
            self.box = policy
        self._timeout, self._id = timeout, f"nsbox-{uuid.uuid4().hex[:12]}"
        self._options: dict[str, Any] = {"max_output": max_output, "env": env, "secrets": secrets}

    @property
    def id(self) -> str:
        """The name of this backend: "nsbox-" and 12 random digits."""
        return self._id

    def close(self) -> None:
        """End the session and everything that runs in it, if this backend began it. Closing twice isn't an error."""
        if self._own is not None:
            self.box.close()
            self._own.close()

    def __enter__(self) -> SandboxBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- commands

    def execute(self, command: str, *, timeout: int | None = None) -> Any:
        """Return an ExecuteResponse: stdout, the lines of stderr marked "[stderr]", and why it failed, "[sandbox]".

        command: a line for the shell, which is bash where the sandbox has it.
        timeout: seconds; 0 for no limit. Default: the backend's.

        After the limit everything that the command started is ended, and the status is 124.
        """
        return self._execute(command, timeout, CancelToken())

    async def aexecute(self, command: str, *, timeout: int | None = None) -> Any:
        """Do what execute() does. If the task is cancelled, the command is ended first."""
        return await self._in_thread(self._execute, command, timeout)

    def _execute(self, command: str, timeout: int | None, token: CancelToken) -> Any:
        limit = self._timeout if timeout is None else timeout or None
        result = self.box.shell(command, timeout=limit, cancel=token, **self._options)
        lines = [f"[stderr] {line}" for line in result.stderr.splitlines()]
        lines += [f"[sandbox] {hint}" for hint in result.why]
        text = "\n".join([*([result.stdout.removesuffix("\n")] if result.stdout else []), *lines])
        status = _TIMED_OUT if result.timed_out else shell_status(result.returncode)
        return protocol.ExecuteResponse(text, status, result.is_truncated)

    # ---- files

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Return a ReadResult: some lines of a text file, or a binary file of at most 500 KiB in base64."""
        return self._read(file_path, offset, limit, CancelToken())

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Do what read() does."""
        return await self._in_thread(self._read, file_path, offset, limit)

    def _read(self, path: str, offset: int, limit: int, token: CancelToken) -> Any:
        try:
            start, most = normalize_read_bounds(offset, limit)
            is_text = _get_backend_read_file_type(path) == "text"
            with self.box.open(path, "rb") as file:
                found = page(file, start, most, _MOST_TEXT, MAX_BINARY_BYTES, is_text=is_text)
                return self._page(found, path)
        except (OSError, ValueError) as error:
            failed = protocol.ReadResult(error=f"File '{path}': {self._problem(error)}")
            return self._by_script(path, error, failed, lambda scripts: scripts.read(path, offset, limit), token)

    def _page(self, found: Any, path: str) -> Any:
        if found.size == 0:
            return protocol.ReadResult(file_data={"content": _EMPTY, "encoding": "utf-8"})
        if not found.is_text:
            if found.size > MAX_BINARY_BYTES:
                problem = f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
                return protocol.ReadResult(error=f"File '{path}': {problem}")
            data = base64.b64encode(found.data).decode("ascii")
            return protocol.ReadResult(file_data={"content": data, "encoding": "base64"})
        if found.limit == 0:
            return protocol.ReadResult(file_data={"content": "", "encoding": "utf-8"}, no_lines_requested=True)
        if not found.count:
            problem = f"Line offset {found.offset} exceeds file length ({found.total} lines)"
            return protocol.ReadResult(error=f"File '{path}': {problem}")
        text = found.text + (TRUNCATION_MSG if found.is_cut else "")
        end = found.offset + found.count
        return protocol.ReadResult(
            file_data={"content": text, "encoding": "utf-8"},
            total_lines=found.total,
            start_line=found.offset + 1,
            end_line=end,
            next_offset=None if end == found.total else end,
        )

    def write(self, file_path: str, content: str) -> Any:
        """Make a file, or replace one in one step; return a WriteResult."""
        try:
            self.box.write(_absolute(file_path), content)
        except (OSError, ValueError) as error:
            return protocol.WriteResult(error=f"Failed to write file '{file_path}': {self._problem(error)}")
        return protocol.WriteResult(path=file_path)

    async def awrite(self, file_path: str, content: str) -> Any:
        """Do what write() does."""
        return await in_thread(functools.partial(self.write, file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        """Replace a text that occurs once, or each time that it occurs; return an EditResult."""
        if not old_string:
            return protocol.EditResult(error=EMPTY_OLD_STRING_ERROR)
        count = None if replace_all else 1
        try:
            try:
                change = self.box.edit(_absolute(file_path), old_string, new_string, count=count)
            except EditError as error:
                if error.found != 0 or "\n" not in old_string:
                    raise
                # Of a file with both kinds of line ends, read() shows one.
                old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old_string, new_string))
                change = self.box.edit(_absolute(file_path), old, new, count=count)
        except EditError as error:
            return protocol.EditResult(error=_edit_problem(error, file_path, old_string))
        except FileNotFoundError:
            return protocol.EditResult(error=f"Error: File '{file_path}' not found")
        except IsADirectoryError:
            return protocol.EditResult(error=f"Error: '{file_path}' is not a regular file")
        except PermissionError as error:
            return protocol.EditResult(error=f"Error: Permission denied editing file '{file_path}': {error}")
        except (OSError, ValueError) as error:
            return protocol.EditResult(error=f"Error editing file '{file_path}': {self._problem(error)}")
        return protocol.EditResult(path=file_path, occurrences=change.count)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        """Do what edit() does."""
        return await in_thread(functools.partial(self.edit, file_path, old_string, new_string, replace_all))

    def delete(self, file_path: str) -> Any:
        """Remove a file, or a directory with everything in it; return a DeleteResult."""
        try:
            self.box.delete(_absolute(file_path), recursive=True)
        except FileNotFoundError:
            return protocol.DeleteResult(error=f"Error: '{file_path}' not found")
        except (OSError, ValueError) as error:
            return protocol.DeleteResult(error=f"Error deleting file '{file_path}': {self._problem(error)}")
        return protocol.DeleteResult(path=file_path)

    async def adelete(self, file_path: str) -> Any:
        """Do what delete() does."""
        return await in_thread(functools.partial(self.delete, file_path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> Any:
        """Write files; return a FileUploadResponse for each, whose error is one of Deep Agents' four, or None."""
        return [self._upload(path, content) for path, content in files]

    def _upload(self, path: str, content: bytes) -> Any:
        try:
            self.box.write(_absolute(path), content)
        except (OSError, ValueError) as error:
            return protocol.FileUploadResponse(path, self._code(error) or str(error))
        return protocol.FileUploadResponse(path)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> Any:
        """Do what upload_files() does."""
        return await in_thread(functools.partial(self.upload_files, files))

    def download_files(self, paths: list[str]) -> Any:
        """Read files; return a FileDownloadResponse for each, whose error is one of Deep Agents' four, or None."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> Any:
        try:
            with self.box.open(_absolute(path), "rb") as file:
                content = file.read(_MOST_FILE + 1)  # a command may have made a sparse file of any size
            if len(content) > _MOST_FILE:
                return protocol.FileDownloadResponse(path, None, f"larger than {_MOST_FILE >> 20} MiB")
            return protocol.FileDownloadResponse(path, content)
        except (OSError, ValueError) as error:
            return protocol.FileDownloadResponse(path, None, self._code(error) or str(error))

    async def adownload_files(self, paths: list[str]) -> Any:
        """Do what download_files() does."""
        return await in_thread(functools.partial(self.download_files, paths))

    # ---- searching

    def ls(self, path: str) -> Any:
        """Return an LsResult, by a command in the sandbox."""
        return _Scripts(self.box, CancelToken()).ls(path)

    async def als(self, path: str) -> Any:
        """Do what ls() does."""
        return await self._in_thread(lambda token: _Scripts(self.box, token).ls(path))

    def glob(self, pattern: str, path: str | None = None) -> Any:
        """Return a GlobResult, by a command in the sandbox. path: default: the policy's directory."""
        return _Scripts(self.box, CancelToken()).glob(pattern, path or self._workdir)

    async def aglob(self, pattern: str, path: str | None = None) -> Any:
        """Do what glob() does."""
        return await self._in_thread(lambda token: _Scripts(self.box, token).glob(pattern, path or self._workdir))

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: Any = None) -> Any:
        """Return a GrepResult, of lines with this text: by ripgrep if the sandbox has it.

        path: a directory or a file. Default: the policy's directory.
        glob: which files. max_count: the limit of matches. Default: 100,000.

        At most 500 bytes of a line are returned. After 15 seconds the search ends, and says so.
        """
        return self._grep(pattern, path, glob, max_count, CancelToken())

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: Any = None
    ) -> Any:
        """Do what grep() does."""
        return await self._in_thread(self._grep, pattern, path, glob, max_count)

    def _grep(self, pattern: str, path: str | None, glob: str | None, max_count: Any, token: CancelToken) -> Any:
        root = path or self._workdir
        most = min(_MOST_MATCHES, _MOST_MATCHES if max_count is None else max(max_count, 1))
        try:
            found = self.box.grep(
                *(pattern, root),
                glob=glob,
                fixed=True,
                max_matches=most,
                max_chars=_MOST_CHARS,
                timeout=protocol.DEFAULT_GREP_TIMEOUT,
            )
        except ValueError as error:
            self._check(error)
            return protocol.GrepResult(error=f"Path '{root}': {error}")
        except OSError as error:
            failed = protocol.GrepResult(error=f"Path '{root}': {self._problem(error)}")
            return self._by_script(
                root, error, failed, lambda scripts: scripts.grep(pattern, root, glob, max_count=max_count), token
            )
        matches = [{"path": one.path, "line": one.line, "text": one.text} for one in found.matches[:max_count]]
        return protocol.GrepResult(matches=matches, truncated=found.is_truncated)

    # ---- what they have in common

    @property
    def _workdir(self) -> str:
        return self.box.policy.workdir or "/"

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        token = CancelToken()
        return await in_thread(functools.partial(function, *args, token), token.cancel)

    def _by_script(self, path: str, error: Exception, failed: Any, script: Callable[[Any], Any], token: Any) -> Any:
        """Return what a script finds where nsbox's own tools don't look: outside of what the policy names."""
        inside = posixpath.normpath(path)
        is_named = any(PurePosixPath(inside).is_relative_to(root) for root in self.box.list_readable())
        if not isinstance(error, AccessError) or is_named or not path.startswith("/"):
            return failed
        result = script(_Scripts(self.box, token))
        return failed if result.error else result

    def _problem(self, error: Exception) -> str:
        code = self._code(error)
        return f"{code}: {error}" if isinstance(error, AccessError) else code or str(error)

    def _check(self, error: Exception) -> None:
        """Raise the error if it isn't the model's."""
        if isinstance(error, NsboxError) and not isinstance(error, AccessError | EditError):
            raise error
        _ = self.box.policy  # raises ValueError for a session that is closed

    def _code(self, error: Exception) -> str | None:
        """Return Deep Agents' word for an error; raises what isn't about the path."""
        self._check(error)
        match error:
            case AccessError() | PermissionError():
                return str(protocol.PERMISSION_DENIED)
            case FileNotFoundError():
                return str(protocol.FILE_NOT_FOUND)
            case IsADirectoryError():
                return str(protocol.IS_DIRECTORY)
            case NotADirectoryError() | FileExistsError() | ValueError():
                return str(protocol.INVALID_PATH)
        return None


def _absolute(path: str) -> str:
    """Return the path; raises ValueError unless it is absolute."""
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} isn't an absolute path")
    return path


def _edit_problem(error: EditError, path: str, old: str) -> str:
    if error.found == 0:
        return f"Error: String not found in file: '{old}'\n{error}"
    if error.found:
        advice = "Use replace_all=True to replace all occurrences."
        return f"Error: String '{old}' appears multiple times. {advice}"
    return f"Error editing file '{path}': {error}"
