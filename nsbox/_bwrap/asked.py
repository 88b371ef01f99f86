"""What a command line of bubblewrap asks for, as a value, and the exceptions that reading it can end with."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from nsbox._plan.ops import Op


class Refused(ValueError):
    """The command line is wrong. The text is the whole line to print, without the newline; the exit status is 1."""


class Usage(Exception):
    """The usage text has to be shown: on stdout with status 0 (--help), on stderr with status 1 (no COMMAND)."""

    def __init__(self, status: int) -> None:
        """Hold the exit status."""
        super().__init__(status)
        self.status = status


class Version(Exception):
    """The version has to be shown, on stdout with status 0."""


@frozen
class Asked(Frozen):
    """What a command line asks for, in the order of its options where that matters.

    unshare: namespaces that must be new.
    attempts: namespaces that the -try forms want if they can be had; they may be in unshare too.
    capabilities: pairs of "add" or "drop" and a name of CAPABILITIES, or ALL.
    filters: the contents of each --add-seccomp-fd.
    fds: all descriptors that options name, except those that were read while parsing.
    sources: for messages, the path of each source in the ops -> what the command line called it.
    """

    command: tuple[str, ...]
    env: dict[str, str]
    sources: dict[str, str]
    ops: tuple[Op, ...] = ()
    unshare: frozenset[str] = frozenset()
    attempts: frozenset[str] = frozenset()
    userns: int | None = None
    userns2: int | None = None
    pidns: int | None = None
    uid: int | None = None
    gid: int | None = None
    disable_userns: bool = False
    assert_userns_disabled: bool = False
    chdir: str | None = None
    argv0: str | None = None
    lock_files: tuple[str, ...] = ()
    sync_fd: int | None = None
    info_fd: int | None = None
    json_status_fd: int | None = None
    block_fd: int | None = None
    userns_block_fd: int | None = None
    seccomp_fd: int | None = None
    filters: tuple[bytes, ...] = ()
    exec_label: str | None = None
    file_label: str | None = None
    new_session: bool = False
    die_with_parent: bool = False
    as_pid_1: bool = False
    capabilities: tuple[tuple[str, str], ...] = ()
    level_prefix: bool = False
    fds: tuple[int, ...] = ()


class Failed(Exception):
    """The sandbox or the command can't be started; the text is what follows "bwrap: " in the message."""
