"""The questions about files, and the ways to them, that a Sandbox has for the tools of an agent."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Iterable, Sequence
    from typing import IO, Any, Literal, overload

    from nsbox._guarded import Attachment, Binary, Files
    from nsbox._policy.policy import Policy

    Path = str | os.PathLike[str]


class FileTools:
    """Files of one policy, for this process: only what the policy itself names, however names change meanwhile.

    Paths are as commands have them; relative ones count from the policy's workdir. What the policy doesn't allow raises
    AccessError, which says what it does; what isn't there raises FileNotFoundError, and so on. System directories,
    which commands can read, are none of these methods' business.
    """

    policy: Policy

    def _guarded(self) -> Files:
        from nsbox._guarded import Files

        return Files(self.policy)

    # ---- questions, as those of Policy

    def can_read(self, path: Path) -> bool:
        """Say if commands can read what this process finds at a path; as Policy.can_read()."""
        return self.policy.can_read(path)

    def can_write(self, path: Path) -> bool:
        """Say if commands can change what this process finds at a path; as Policy.can_write()."""
        return self.policy.can_write(path)

    def resolve(self, path: Path, *, write: bool = False) -> pathlib.Path:
        """Return where a file that commands can read, or write, is for this process; as Policy.resolve()."""
        return self.policy.resolve(path, write=write)

    def check_suffix(self, path: Path) -> None:
        """Raise AccessError if the rules take no file with such a name; as Policy.check_suffix()."""
        self.policy.check_suffix(path)

    def check_size(self, path: Path) -> None:
        """Raise AccessError if a file has more bytes than the rules allow; as Policy.check_size()."""
        self.policy.check_size(path)

    def list_readable(self) -> list[str]:
        """List the paths that the policy names as readable; as Policy.list_readable()."""
        return self.policy.list_readable()

    def list_writable(self) -> list[str]:
        """List the paths that the policy names as writable; as Policy.list_writable()."""
        return self.policy.list_writable()

    # ---- files

    def read(self, path: Path, max_chars: int = 200_000, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the first max_chars characters of a text file; raises ValueError for what is no text.

        Ask for one more than you can use to see whether there are more. Line ends are as they are.
        """
        return self._guarded().read(path, max_chars, encoding, errors)

    def write(self, path: Path, content: str | bytes, *, parents: bool = True) -> None:
        """Make a file, or replace one in one step, so that nobody ever sees half of it; a str is written as UTF-8.

        It keeps its permissions. parents: make directories that are missing. Who has the old one open keeps it. After a
        power failure the file may be the old one, or empty. Raises AccessError for protected names as well, and for a
        symlink in its place.
        """
        self._guarded().write(path, content, parents=parents)

    def list_files(self, path: Path = ".", pattern: str = "**/*", *, max_files: int = 10_000) -> list[str]:
        """Return the regular files below a directory, by relative paths that match the pattern, in order.

        ** is any number of directories, also none; *, ? and [...] are parts of a name. Links aren't followed. Raises
        ValueError if there are more than max_files. Names that are no UTF-8 have surrogates (os.fsencode()).
        """
        return self._guarded().list_files(path, pattern, max_files)

    if TYPE_CHECKING:

        @overload
        def open(self, path: Path, mode: Literal["r"] = "r", **options: Any) -> IO[str]: ...
        @overload
        def open(self, path: Path, mode: Literal["rb"]) -> IO[bytes]: ...

    def open(self, path: Path, mode: str = "r", **options: Any) -> IO[Any]:
        """Open a regular file for reading, as the function of this name; options: encoding, errors, newline."""
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
        """Return files with what is in them now, to be passed out of the sandbox: all, or none.

        max_bytes: of each. suffixes: which names may end in, in any case; (): in whatever the rules of the policy take.
        Raises ValueError for too many, AccessError for what may not be passed out.
        """
        return self._guarded().attach(paths, max_count, max_bytes, suffixes)

    def tools(self) -> list[Binary]:
        """List the programs in the policy's tools_bin, by name; [] if it has none."""
        return self._guarded().tools()
