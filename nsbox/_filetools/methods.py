"""An agent's file tools, as methods of a Sandbox, a session and a transaction: they read, search and change files."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._logs import observers
from nsbox._tools.arguments import check_codecs, check_flags, check_paths

if TYPE_CHECKING:
    import contextlib
    import os
    import pathlib
    from collections.abc import Iterable, Sequence
    from typing import IO, Any, Literal, overload

    from nsbox._calls.token import CancelToken
    from nsbox._filetools.files import Files
    from nsbox._filetools.records import Attachment, Binary, FileChange, Lines, Matches, Media, Paths
    from nsbox._policy.policy import Policy

    Path = str | os.PathLike[str]


class FileTools:
    """Files of one policy, for this process: only what the policy names, even if commands change names meanwhile.

    Paths are as commands see them; relative ones count from the policy's workdir, whatever a `cd` did, and "~" is HOME
    in the sandbox. A path that the policy doesn't allow raises AccessError, which says what is allowed. A missing file
    raises FileNotFoundError, and so on. Commands can also read system directories; these methods can't.
    """

    policy: Policy
    _kind = "sandbox"  # whose files these are, in audit records

    def _files(self) -> contextlib.AbstractContextManager[Files]:
        """Return a context manager that yields the Files for one call."""
        import contextlib

        from nsbox._filetools.files import Files as GuardedFiles

        return contextlib.nullcontext(GuardedFiles(self.policy))

    def _account(self, tool: str, *paths: Path) -> contextlib.AbstractContextManager[Files]:
        """Return the same, and tell observers of it, if there are any. paths: those that the call names."""
        if not observers.active:
            return self._files()
        import contextlib

        from nsbox._filetools.files import Account

        policy = None
        with contextlib.suppress(ValueError):  # what is over has none: the call says so
            policy = self.policy
        cwd = None if policy is None else policy.workdir
        workspace = getattr(self, "workspace", cwd)
        return Account(self._files(), tool, paths, kind=self._kind, workspace=workspace, policy=policy, cwd=cwd)

    # ---- questions, as those of Policy

    def can_read(self, path: Path) -> bool:
        """Return whether commands can read what this process finds at a path; as Policy.can_read()."""
        from nsbox._tools import view

        return view.can_read(self.policy, path)

    def can_write(self, path: Path) -> bool:
        """Return whether commands can change what this process finds at a path; as Policy.can_write()."""
        from nsbox._tools import view

        return view.can_write(self.policy, path)

    def resolve(self, path: Path, *, write: bool = False) -> pathlib.Path:
        """Return this process's path of a file that commands can read, or write; as Policy.resolve()."""
        from nsbox._tools import view

        check_flags(write=write)
        return view.view(self.policy).resolve(path, write=write)

    def check_suffix(self, path: Path) -> None:
        """Raise AccessError if the rules accept no file with such a name; as Policy.check_suffix()."""
        from nsbox._tools import view

        view.check_suffix(self.policy, path)

    def check_size(self, path: Path) -> None:
        """Raise AccessError if a file has more bytes than the rules allow; as Policy.check_size()."""
        from nsbox._tools import view

        view.check_size(self.policy, path)

    def list_readable(self) -> list[str]:
        """List the paths that the policy names as readable; as Policy.list_readable()."""
        from nsbox._tools import view

        return view.view(self.policy).readable()

    def list_writable(self) -> list[str]:
        """List the paths that the policy names as writable; as Policy.list_writable()."""
        from nsbox._tools import view

        return view.view(self.policy).writable()

    # ---- reading

    def read(self, path: Path, max_chars: int = 200_000, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the first max_chars characters of a text file, with its own line ends.

        To see whether there are more, ask for one more than you can use.

        path: as commands see it.
        max_chars: at most 67,108,864 (64 << 20). Default: 200,000.
        encoding, errors: as for open(). Default: "utf-8" and "strict".

        Raises ValueError if the file isn't text in that encoding, AccessError and OSError.
        """
        from nsbox._filetools import reading

        check_paths(path=path)
        check_codecs(encoding=encoding, errors=errors)
        with self._account("read", path) as files:
            return reading.read(files, path, max_chars, encoding, errors)

    def read_lines(
        self,
        path: Path,
        offset: int = 1,
        limit: int = 2000,
        *,
        numbers: bool = True,
        max_chars: int = 200_000,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> Lines:
        """Return some lines of a text file, in a Lines record.

        Neither a byte order mark nor a CR at the end of a line is shown. A line of more than 2,000 characters is cut,
        with a note at its end. No more than 4 GiB of a file is read.

        path: as commands see it.
        offset: the number of the first line, from 1. Default: 1.
        limit: how many lines, at most 1,000,000. Default: 2000.
        numbers: whether each line begins with its number, as `cat -n` writes it. Default: True.
        max_chars: of the text, 8,000 to 67,108,864. Default: 200,000.
        encoding, errors: as for open(). Default: "utf-8" and "strict".

        Raises ValueError if the lines aren't text in that encoding, AccessError and OSError.
        """
        from nsbox._filetools import reading

        check_paths(path=path)
        check_flags(numbers=numbers)
        check_codecs(encoding=encoding, errors=errors)
        with self._account("read_lines", path) as files:
            return reading.read_lines(
                *(files, path, offset, limit),
                numbers=numbers,
                max_chars=max_chars,
                encoding=encoding,
                errors=errors,
            )

    if TYPE_CHECKING:

        @overload
        def open(self, path: Path, mode: Literal["r"] = "r", **options: Any) -> IO[str]: ...
        @overload
        def open(self, path: Path, mode: Literal["rb"]) -> IO[bytes]: ...

    def open(self, path: Path, mode: str = "r", **options: Any) -> IO[Any]:
        """Return a regular file, opened for reading.

        path: as commands see it.
        mode: "r" or "rb". Default: "r".
        options: encoding, errors and newline, as for the function of this name.

        Raises AccessError and OSError.
        """
        from nsbox._filetools import reading

        check_paths(path=path)
        with self._account("open", path) as files:
            return reading.opened(files, path, mode, **options)

    def attach(
        self,
        paths: Iterable[Path],
        *,
        max_count: int = 10,
        max_bytes: int | str = "25M",
        suffixes: Sequence[str] = (),
    ) -> list[Attachment]:
        """Return files with their present contents, to be passed out of the sandbox: all of them, or none.

        paths: as commands see them.
        max_count: how many files there may be. Default: 10.
        max_bytes: the size that each may have, in bytes or as a str with a unit. Default: "25M".
        suffixes: what names may end in, regardless of case, such as [".md"]. Default: (), for all that
            the policy's rules accept.

        Raises ValueError for too many files, AccessError for a file that may not be passed out, and OSError.
        """
        from nsbox._filetools import reading

        chosen = reading.chosen(paths)
        with self._account("attach", *chosen) as files:
            return reading.attach(files, chosen, max_count, max_bytes, suffixes)

    def media(self, path: Path, *, max_bytes: int | str = "20M") -> Media:
        """Return a file of any type, such as an image, in a Media record with its MIME type.

        path: as commands see it.
        max_bytes: the size that it may have, in bytes or as a str with a unit. Default: "20M".

        Raises AccessError, also for a larger file, and OSError.
        """
        from nsbox._filetools import reading

        check_paths(path=path)
        with self._account("media", path) as files:
            return reading.media(files, path, max_bytes)

    # ---- searching

    def list_files(self, path: Path = ".", pattern: str = "**/*", *, max_files: int = 10_000) -> list[str]:
        """Return the regular files below a directory: their relative paths that match a pattern, sorted.

        Links aren't followed. Names that aren't UTF-8 have surrogates (os.fsencode()).

        path: the directory, as commands see it. Default: the policy's workdir.
        pattern: ** is any number of directories, or none; *, ? and [...] match parts of a name. Default: all files.
        max_files: how many files there may be. Default: 10,000.

        Raises ValueError if there are more, AccessError and OSError.
        """
        from nsbox._filetools import walk

        check_paths(path=path)
        with self._account("list_files", path) as files:
            return walk.list_files(files, path, pattern, max_files)

    def glob(self, pattern: str, path: Path = ".", *, max_files: int = 1000) -> Paths:
        """Return the regular files below a directory whose paths match a pattern, the newest first, in a Paths record.

        Links aren't followed. At most 1,000,000 names are looked at. If there are more, or more than max_files match,
        the record says that it is truncated.

        pattern: as for list_files(), of paths relative to `path`: "/etc/*" is etc/* in there; "../*" matches nothing.
        path: the directory, as commands see it. Default: the policy's workdir.
        max_files: how many of the newest. Default: 1000.

        Raises ValueError, AccessError and OSError.
        """
        from nsbox._filetools import walk

        check_paths(path=path)
        with self._account("glob", path) as files:
            return walk.glob(files, pattern, path, max_files)

    def grep(
        self,
        pattern: str,
        path: Path = ".",
        *,
        glob: str | None = None,
        ignore_case: bool = False,
        fixed: bool = False,
        context: int = 0,
        max_matches: int = 1000,
        max_chars: int = 200_000,
        timeout: float = 60,
        cancel: CancelToken | None = None,
    ) -> Matches:
        """Return the lines of files that match a regular expression, in a Matches record.

        A command in the sandbox searches: ripgrep if the sandbox has it, otherwise Python's `re`. So an expensive
        pattern is contained, and `timeout` ends it. Hidden files are searched, and those that .gitignore names.
        Directories named .git, binary files (those with NUL bytes), links, and files of more than 64 MiB aren't.

        pattern: ripgrep's syntax, which is Python's except for lookaround and backreferences; a pattern with these is
            given to Python.
        path: a directory or a file, as commands see it. Default: the policy's workdir.
        glob: which files: a pattern of names, such as "*.py", or of relative paths if it has a "/". Default: None,
            for all.
        ignore_case: whether case is ignored. Default: False.
        fixed: whether the pattern is plain text. Default: False.
        context: how many lines before and after each match to add, at most 100. Default: 0.
        max_matches: how many matches, at most 100,000. Default: 1000.
        max_chars: of all lines together. Default: 200,000.
        timeout: seconds; then the search ends, and returns what it has found. Default: 60.
        cancel: a CancelToken, which ends the search as `timeout` does. Default: None.

        Raises ValueError for a pattern that isn't valid, UnavailableError if the sandbox has neither program,
        AccessError, OSError, and what starting a command raises.
        """
        from nsbox._filetools import grep

        check_paths(path=path)
        check_flags(ignore_case=ignore_case, fixed=fixed)
        wish = grep.Wish(
            *(pattern, glob, ignore_case, fixed, context),
            *(max_matches, max_chars, timeout, cancel),
        )
        with self._account("grep", path) as files:
            starter: Any = self  # what has file tools starts commands too
            return grep.grep(files, starter, wish, path)

    def tools(self) -> list[Binary]:
        """List the programs in the policy's tools_bin, by name; [] if it has none."""
        from nsbox._filetools import reading

        with self._files() as files:
            return reading.tools(files)

    # ---- changing

    def write(self, path: Path, content: str | bytes, *, parents: bool = True) -> FileChange:
        """Make a file, or replace one in one step, so that no process ever sees half of it. Return a FileChange.

        A file that is replaced keeps its permissions and its user.* attributes. A process that has the old file open
        keeps it. After a power failure, you may find the old file, or an empty one.

        path: as commands see it.
        content: bytes, or a str, which is written as UTF-8.
        parents: whether to make missing directories. Default: True.

        Raises AccessError, also for protected names and for a symlink at the path, and OSError.
        """
        from nsbox._filetools import writing

        check_paths(path=path)
        check_flags(parents=parents)
        with self._account("write", path) as files:
            return writing.write(files, path, content, parents=parents)

    def append(self, path: Path, content: str | bytes, *, parents: bool = True) -> FileChange:
        """Write at the end of a file, or make it. Return a FileChange whose diff shows what was added.

        path, content, parents: as for write().

        Raises what write() raises, and AccessError for a file with several names (hard links).
        """
        from nsbox._filetools import writing

        check_paths(path=path)
        check_flags(parents=parents)
        with self._account("append", path) as files:
            return writing.append(files, path, content, parents=parents)

    def edit(self, path: Path, old: str, new: str, *, count: int | None = 1, encoding: str = "utf-8") -> FileChange:
        """Replace a text in a file with another, in one step, if it occurs exactly `count` times. Return a FileChange.

        The file keeps its line ends, its byte order mark, its permissions and its user.* attributes. If all of its
        lines end in CRLF, the line ends of old and new are read as CRLF.

        path: as commands see it; of at most 64 MiB.
        old: the text, exactly as it is in the file.
        new: the text that replaces it.
        count: how many times old must occur. None: however often. Default: 1.
        encoding: of the file. Default: "utf-8".

        Raises EditError, and changes nothing, if the text doesn't occur so many times; the message shows near misses.
        It is also raised for a file that isn't text, is too large, or has changed meanwhile: the inode, size and times
        are compared right before the file is replaced. Raises ValueError, AccessError and OSError.
        """
        from nsbox._filetools import writing

        check_paths(path=path)
        check_codecs(encoding=encoding)
        with self._account("edit", path) as files:
            return writing.edit(files, path, old, new, count, encoding)

    def mkdir(self, path: Path, *, parents: bool = True) -> FileChange:
        """Make a directory, unless it is there already. Return a FileChange.

        path: as commands see it.
        parents: whether to make missing directories above. Default: True.

        Raises AccessError and OSError.
        """
        from nsbox._filetools import names

        check_paths(path=path)
        check_flags(parents=parents)
        with self._account("mkdir", path) as files:
            return names.mkdir(files, path, parents=parents)

    def delete(self, path: Path, *, recursive: bool = False) -> FileChange:
        """Remove a file, a link itself, or a directory. Return a FileChange that counts what was removed.

        path: as commands see it.
        recursive: whether to remove a directory with everything in it: at most 100,000 entries, 256 levels deep.
            Directories of this user's are entered whatever their modes. Default: False, for empty ones alone.

        Raises AccessError and OSError. A protected or hidden name or a mount point in the directory is an AccessError,
        before anything is removed.
        """
        from nsbox._filetools import names

        check_paths(path=path)
        check_flags(recursive=recursive)
        with self._account("delete", path) as files:
            return names.delete(files, path, recursive=recursive)

    def move(self, source: Path, destination: Path, *, overwrite: bool = False) -> FileChange:
        """Rename a file or a directory, in one step. Return a FileChange.

        If the destination is on another file system, a file is copied and then removed.

        source: as commands see it.
        destination: the new path itself; missing directories are made.
        overwrite: whether a file that is there is replaced. Default: False.

        Raises FileExistsError, AccessError, also for links and for protected or hidden names in a directory, and
        OSError.
        """
        from nsbox._filetools import names

        check_paths(source=source, destination=destination)
        check_flags(overwrite=overwrite)
        with self._account("move", source, destination) as files:
            return names.move(files, source, destination, overwrite=overwrite)

    def copy(self, source: Path, destination: Path, *, overwrite: bool = False) -> FileChange:
        """Copy a regular file of at most 1 GiB, with its permissions and user.* attributes. Return a FileChange.

        source: as commands see it.
        destination: the new path itself; missing directories are made.
        overwrite: whether a file that is there is replaced. Default: False.

        Raises FileExistsError, AccessError and OSError.
        """
        from nsbox._filetools import names

        check_paths(source=source, destination=destination)
        check_flags(overwrite=overwrite)
        with self._account("copy", source, destination) as files:
            return names.copy(files, source, destination, overwrite=overwrite)
