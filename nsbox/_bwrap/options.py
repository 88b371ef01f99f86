"""The options of bubblewrap's command line, as a table.

The table has each option's name, its arguments and a short help text. _bwrap.parse reads command lines. _bwrap.help
makes the usage text and the completion files, from the table alone.
"""

from __future__ import annotations

from nsbox._base.frozen import Frozen, frozen, remembered

STRAY_LAYER = (
    "--overlay-src must be followed by another --overlay-src or one of --overlay, --tmp-overlay, or --ro-overlay"
)

_PATHS = frozenset({"SRC", "DEST", "DIR", "PATH", "RWSRC", "TARGET", "WORKDIR"})


@frozen
class Option(Frozen):
    """One option of bubblewrap.

    kind: a key of _bwrap.parse's handlers; the handler carries the option out.
    help: one line without quotes, brackets and colons, which completion files would have to escape.
    once: if it is repeated, only the last one takes effect, and a warning is printed.
    since: the first version that has it; (0, 8) stands for earlier ones too.
    """

    name: str
    args: tuple[str, ...]
    group: str
    kind: str
    help: str
    once: bool = False
    since: tuple[int, int] = (0, 8)

    @property
    def shortage(self) -> str:
        """What bubblewrap says when arguments are missing. Clients match it, so its oddities stay."""
        if self.kind == "overlay-src":
            return STRAY_LAYER
        name = "--bind-fd" if self.kind == "bind-fd" else self.name
        one = "one argument" if name in ("--argv0", "--chdir", "--remount-ro") else "an argument"
        return f"{name} takes {(one, 'two arguments', 'three arguments')[len(self.args) - 1]}"

    @property
    def places(self) -> str:
        """A letter for each argument: p for a path, c for a capability, x for what can't be completed."""
        return "".join("p" if arg in _PATHS else "c" if arg == "CAP" else "x" for arg in self.args)


# Each row holds an Option's fields. An Option is built only when looked up: building all of them at import takes longer
# than everything else in this module.
_ROWS = (
    ("--help", (), "General", "help", "Show this text"),
    ("--version", (), "General", "version", "Show the version"),
    ("--args", ("FD",), "General", "args", "Read more options from FD, separated by NUL bytes"),
    ("--argv0", ("VALUE",), "General", "argv0", "Name that COMMAND gets as its argument 0", False, (0, 9)),
    ("--level-prefix", (), "General", "level-prefix", "Begin messages with their syslog level", False, (0, 11)),
    #
    ("--unshare-all", (), "Namespaces", "unshare-all", "New namespaces of every kind that can be had"),
    ("--share-net", (), "Namespaces", "share-net", "Keep the network of the caller after all"),
    ("--unshare-user", (), "Namespaces", "unshare", "New user namespace; implied unless the caller is root"),
    ("--unshare-user-try", (), "Namespaces", "attempt", "New user namespace if it can be had"),
    ("--unshare-ipc", (), "Namespaces", "unshare", "New ipc namespace"),
    ("--unshare-pid", (), "Namespaces", "unshare", "New pid namespace"),
    ("--unshare-net", (), "Namespaces", "unshare", "New network namespace, with a loopback interface only"),
    ("--unshare-uts", (), "Namespaces", "unshare", "New uts namespace"),
    ("--unshare-cgroup", (), "Namespaces", "unshare", "New cgroup namespace"),
    ("--unshare-cgroup-try", (), "Namespaces", "attempt", "New cgroup namespace if it can be had"),
    ("--userns", ("FD",), "Namespaces", "fd", "Join the user namespace FD; not with --unshare-user", True),
    ("--userns2", ("FD",), "Namespaces", "fd", "Move on to the user namespace FD after the set-up", True),
    ("--disable-userns", (), "Namespaces", "flag", "No further user namespaces inside; needs --unshare-user"),
    ("--assert-userns-disabled", (), "Namespaces", "flag", "Give up if user namespaces can be made inside"),
    ("--pidns", ("FD",), "Namespaces", "fd", "Join the pid namespace FD, or make a new one below it", True),
    ("--uid", ("UID",), "Namespaces", "id", "User id inside; needs a user namespace", True),
    ("--gid", ("GID",), "Namespaces", "id", "Group id inside; needs a user namespace", True),
    ("--hostname", ("NAME",), "Namespaces", "hostname", "Host name inside; needs --unshare-uts", True),
    #
    ("--chdir", ("DIR",), "Environment", "text", "Directory inside in which COMMAND starts", True),
    ("--clearenv", (), "Environment", "clearenv", "Drop all variables"),
    ("--setenv", ("VAR", "VALUE"), "Environment", "setenv", "Set a variable"),
    ("--unsetenv", ("VAR",), "Environment", "unsetenv", "Drop a variable"),
    #
    ("--bind", ("SRC", "DEST"), "Files", "bind", "Show SRC at DEST, writable"),
    ("--bind-try", ("SRC", "DEST"), "Files", "bind", "As --bind, unless there is no SRC"),
    ("--dev-bind", ("SRC", "DEST"), "Files", "bind", "Show SRC at DEST, writable and with working devices"),
    ("--dev-bind-try", ("SRC", "DEST"), "Files", "bind", "As --dev-bind, unless there is no SRC"),
    ("--ro-bind", ("SRC", "DEST"), "Files", "bind", "Show SRC at DEST, read-only"),
    ("--ro-bind-try", ("SRC", "DEST"), "Files", "bind", "As --ro-bind, unless there is no SRC"),
    ("--bind-fd", ("FD", "DEST"), "Files", "bind-fd", "Show the open FD at DEST, writable", False, (0, 10)),
    ("--ro-bind-fd", ("FD", "DEST"), "Files", "bind-fd", "Show the open FD at DEST, read-only", False, (0, 10)),
    ("--remount-ro", ("DEST",), "Files", "mount", "Make the one mount at DEST read-only"),
    ("--overlay-src", ("SRC",), "Files", "overlay-src", "A layer of the overlay that follows", False, (0, 11)),
    (
        "--overlay",
        ("RWSRC", "WORKDIR", "DEST"),
        "Files",
        "overlay",
        "The layers at DEST, changes go to RWSRC; WORKDIR is empty and on the same file system",
        False,
        (0, 11),
    ),
    ("--tmp-overlay", ("DEST",), "Files", "overlay", "The layers at DEST, changes are dropped", False, (0, 11)),
    ("--ro-overlay", ("DEST",), "Files", "overlay", "The layers at DEST, read-only", False, (0, 11)),
    ("--proc", ("DEST",), "Files", "mount", "A procfs at DEST"),
    ("--dev", ("DEST",), "Files", "mount", "A minimal set of devices at DEST"),
    ("--tmpfs", ("DEST",), "Files", "tmpfs", "An empty file system in memory at DEST"),
    ("--mqueue", ("DEST",), "Files", "mount", "The message queues at DEST"),
    ("--dir", ("DEST",), "Files", "dir", "A directory at DEST, unless there is one"),
    ("--file", ("FD", "DEST"), "Files", "file", "A file at DEST with what is read from FD"),
    ("--bind-data", ("FD", "DEST"), "Files", "bind-data", "As --file, but mounted on DEST, writable"),
    ("--ro-bind-data", ("FD", "DEST"), "Files", "bind-data", "As --file, but mounted on DEST, read-only"),
    ("--symlink", ("TARGET", "DEST"), "Files", "symlink", "A symbolic link at DEST that points to TARGET"),
    ("--perms", ("OCTAL",), "Files", "perms", "Mode of what the next option makes"),
    ("--size", ("BYTES",), "Files", "size", "Limit of the next --tmpfs"),
    ("--chmod", ("OCTAL", "PATH"), "Files", "chmod", "Change the mode of PATH, which must exist"),
    #
    ("--exec-label", ("LABEL",), "Lockdown", "text", "SELinux label of COMMAND", True),
    ("--file-label", ("LABEL",), "Lockdown", "text", "SELinux label of files that are made", True),
    ("--seccomp", ("FD",), "Lockdown", "seccomp", "Confine COMMAND by the filter in FD", True),
    ("--add-seccomp-fd", ("FD",), "Lockdown", "add-seccomp-fd", "As --seccomp, for one filter of several"),
    ("--new-session", (), "Lockdown", "flag", "Leave the session of the terminal"),
    ("--die-with-parent", (), "Lockdown", "flag", "End the sandbox when the caller ends"),
    ("--as-pid-1", (), "Lockdown", "flag", "COMMAND itself is process 1; needs --unshare-pid"),
    ("--cap-add", ("CAP",), "Lockdown", "cap", "Give COMMAND a capability, or ALL"),
    ("--cap-drop", ("CAP",), "Lockdown", "cap", "Take a capability from COMMAND, or ALL"),
    ("--not-a-security-boundary", (), "Lockdown", "flag", "Accepted, without effect", False, (0, 12)),
    #
    ("--lock-file", ("DEST",), "Watching", "lock-file", "Hold a read lock on DEST as long as the sandbox lives"),
    ("--sync-fd", ("FD",), "Watching", "fd", "Hold FD open as long as the sandbox lives", True),
    ("--block-fd", ("FD",), "Watching", "fd", "Start COMMAND when there is something to read from FD", True),
    ("--userns-block-fd", ("FD",), "Watching", "fd", "Wait on FD until another process has written the id maps", True),
    ("--info-fd", ("FD",), "Watching", "fd", "Write facts about the sandbox to FD, in JSON", True),
    ("--json-status-fd", ("FD",), "Watching", "fd", "Write how it starts and ends to FD, in JSON", True),
)

_ROW_OF = {row[0]: row for row in _ROWS}


def option(name: str) -> Option | None:
    """Return the option of this name."""
    row = _ROW_OF.get(name)
    return row and Option(*row)


@remembered
def options() -> tuple[Option, ...]:
    """Return all options, in the order of --help."""
    return tuple(Option(*row) for row in _ROWS)
