"""A Sandbox's methods for the file tools of an agent: questions about files, and ways to read and write them."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Iterable, Sequence
    from typing import IO, Any, Literal, overload

    from nsbox._policy.policy import Policy
    from nsbox._tools.files import Attachment, Binary, Files

    Path = str | os.PathLike[str]


class FileTools:
    """Files of one policy, for this process: only what the policy itself names, however names change meanwhile.

    Paths are as commands see them; relative ones count from the policy's workdir. What the policy doesn't allow raises
    AccessError, which says what is allowed. A missing file raises FileNotFoundError, and so on. These methods don't
    cover system directories, which commands can read.
    """

    policy: Policy

    def _guarded(self) -> Files:
        from nsbox._tools.files import Files

        return Files(self.policy)

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

    # ---- files

    def read(self, path: Path, max_chars: int = 200_000, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the first max_chars characters of a text file, with its own line ends.

        To see whether there are more, ask for one more than you can use.

        path: as commands see it.
        max_chars: at most 67,108,864 (64 << 20). Default: 200,000.
        encoding, errors: as for open(). Default: "utf-8" and "strict".

        Raises ValueError if the file is no text in that encoding, AccessError and OSError.
        """
        return self._guarded().read(path, max_chars, encoding, errors)

    def write(self, path: Path, content: str | bytes, *, parents: bool = True) -> None:
        """Make a file, or replace one in one step, so that no process ever sees half of it.

        A file that is replaced keeps its permissions. A process that has the old one open keeps that. After a power
        failure, the file may be the old one, or empty.

        path: as commands see it.
        content: bytes, or a str, which is written as UTF-8.
        parents: whether to make missing directories. Default: True.

        Raises AccessError, also for protected names and for a symlink at the path, and OSError.
        """
        self._guarded().write(path, content, parents=parents)

    def list_files(self, path: Path = ".", pattern: str = "**/*", *, max_files: int = 10_000) -> list[str]:
        """Return the regular files below a directory: their relative paths that match a pattern, sorted.

        Links aren't followed. Names that are no UTF-8 have surrogates (os.fsencode()).

        path: the directory, as commands see it. Default: the policy's workdir.
        pattern: ** is any number of directories, also none; *, ? and [...] match parts of a name. Default: all files.
        max_files: how many files there may be. Default: 10,000.

        Raises ValueError if there are more, AccessError and OSError.
        """
        return self._guarded().list_files(path, pattern, max_files)

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
        file: IO[Any] = self._guarded().open(path, mode, **options)
        return file

    def attach(
        self,
        paths: Iterable[Path],
        *,
        max_count: int = 10,
        max_bytes: int | str = "25M",
        suffixes: Sequence[str] = (),
    ) -> list[Attachment]:
        """Return files with their contents now, to be passed out of the sandbox: all of them, or none.

        paths: as commands see them.
        max_count: how many files there may be. Default: 10.
        max_bytes: the size that each may have, in bytes or as a str with a unit. Default: "25M".
        suffixes: what names may end in, regardless of case, such as [".md"]. Default: (), for whatever the policy's
            rules accept.

        Raises ValueError for too many files, AccessError for a file that may not be passed out, and OSError.
        """
        return self._guarded().attach(paths, max_count, max_bytes, suffixes)

    def tools(self) -> list[Binary]:
        """List the programs in the policy's tools_bin, by name; [] if it has none."""
        return self._guarded().tools()
