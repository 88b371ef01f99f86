"""The options of bubblewrap's command line, as a table.

csrc/tools/options.py makes the table of the parser in C of it, from which the usage text comes too. _bwrap.completion
makes completion files, and the command line's own help a page.
"""

from __future__ import annotations

from nsbox._base.frozen import Frozen, frozen, remembered

_PATHS = frozenset({"SRC", "DEST", "DIR", "PATH", "RWSRC", "TARGET", "WORKDIR"})


@frozen
class Option(Frozen):
    """One option of bubblewrap.

    kind: how it is read, and about what: an enum reading in csrc/bwrap/line/line.h, and a value of it.
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
    def places(self) -> str:
        """A letter for each argument: p for a path, c for a capability, x for what can't be completed."""
        return "".join("p" if arg in _PATHS else "c" if arg == "CAP" else "x" for arg in self.args)


# Each row holds an Option's fields. An Option is built only when looked up: building all of them at import takes longer
# than everything else in this module.
_ROWS = (
    ("--help", (), "General", "help", "Show this text"),
    ("--version", (), "General", "version", "Show the version"),
    ("--args", ("FD",), "General", "args", "Read more options from FD, separated by NUL bytes"),
    ("--argv0", ("VALUE",), "General", "text argv0", "Name that COMMAND gets as its argument 0", False, (0, 9)),
    ("--level-prefix", (), "General", "level-prefix", "Begin messages with their syslog level", False, (0, 11)),
    #
    ("--unshare-all", (), "Namespaces", "new-all", "New namespaces of every kind that can be had"),
    ("--share-net", (), "Namespaces", "share-net", "Keep the network of the caller after all"),
    ("--unshare-user", (), "Namespaces", "new user", "New user namespace; implied unless the caller is root"),
    ("--unshare-user-try", (), "Namespaces", "attempt user", "New user namespace if it can be had"),
    ("--unshare-ipc", (), "Namespaces", "new ipc", "New ipc namespace"),
    ("--unshare-pid", (), "Namespaces", "new pid", "New pid namespace"),
    ("--unshare-net", (), "Namespaces", "new net", "New network namespace, with a loopback interface only"),
    ("--unshare-uts", (), "Namespaces", "new uts", "New uts namespace"),
    ("--unshare-cgroup", (), "Namespaces", "new cgroup", "New cgroup namespace"),
    ("--unshare-cgroup-try", (), "Namespaces", "attempt cgroup", "New cgroup namespace if it can be had"),
    ("--userns", ("FD",), "Namespaces", "fd userns", "Join the user namespace FD; not with --unshare-user", True),
    ("--userns2", ("FD",), "Namespaces", "fd userns2", "Move on to the user namespace FD after the set-up", True),
    (
        "--disable-userns",
        (),
        "Namespaces",
        "flag disable-userns",
        "No further user namespaces inside; needs --unshare-user",
    ),
    (
        "--assert-userns-disabled",
        (),
        "Namespaces",
        "flag assert-userns-disabled",
        "Give up if user namespaces can be made inside",
    ),
    ("--pidns", ("FD",), "Namespaces", "fd pidns", "Join the pid namespace FD, or make a new one below it", True),
    ("--uid", ("UID",), "Namespaces", "id uid", "User id inside; needs a user namespace", True),
    ("--gid", ("GID",), "Namespaces", "id gid", "Group id inside; needs a user namespace", True),
    ("--hostname", ("NAME",), "Namespaces", "text hostname", "Host name inside; needs --unshare-uts", True),
    #
    ("--chdir", ("DIR",), "Environment", "text chdir", "Directory inside in which COMMAND starts", True),
    ("--clearenv", (), "Environment", "clearenv", "Drop all variables"),
    ("--setenv", ("VAR", "VALUE"), "Environment", "setenv", "Set a variable"),
    ("--unsetenv", ("VAR",), "Environment", "unsetenv", "Drop a variable"),
    #
    ("--bind", ("SRC", "DEST"), "Files", "op bind", "Show SRC at DEST, writable"),
    ("--bind-try", ("SRC", "DEST"), "Files", "op bind-try", "As --bind, unless there is no SRC"),
    ("--dev-bind", ("SRC", "DEST"), "Files", "op dev-bind", "Show SRC at DEST, writable and with working devices"),
    ("--dev-bind-try", ("SRC", "DEST"), "Files", "op dev-bind-try", "As --dev-bind, unless there is no SRC"),
    ("--ro-bind", ("SRC", "DEST"), "Files", "op ro-bind", "Show SRC at DEST, read-only"),
    ("--ro-bind-try", ("SRC", "DEST"), "Files", "op ro-bind-try", "As --ro-bind, unless there is no SRC"),
    ("--bind-fd", ("FD", "DEST"), "Files", "op bind-fd", "Show the open FD at DEST, writable", False, (0, 10)),
    ("--ro-bind-fd", ("FD", "DEST"), "Files", "op ro-bind-fd", "Show the open FD at DEST, read-only", False, (0, 10)),
    ("--remount-ro", ("DEST",), "Files", "op remount-ro", "Make the one mount at DEST read-only"),
    ("--overlay-src", ("SRC",), "Files", "layer", "A layer of the overlay that follows", False, (0, 11)),
    (
        "--overlay",
        ("RWSRC", "WORKDIR", "DEST"),
        "Files",
        "op overlay",
        "The layers at DEST, changes go to RWSRC; WORKDIR is empty and on the same file system",
        False,
        (0, 11),
    ),
    ("--tmp-overlay", ("DEST",), "Files", "op tmp-overlay", "The layers at DEST, changes are dropped", False, (0, 11)),
    ("--ro-overlay", ("DEST",), "Files", "op ro-overlay", "The layers at DEST, read-only", False, (0, 11)),
    ("--proc", ("DEST",), "Files", "op proc", "A procfs at DEST"),
    ("--dev", ("DEST",), "Files", "op dev", "A minimal set of devices at DEST"),
    ("--tmpfs", ("DEST",), "Files", "op tmpfs", "An empty file system in memory at DEST"),
    ("--mqueue", ("DEST",), "Files", "op mqueue", "The message queues at DEST"),
    ("--dir", ("DEST",), "Files", "op dir", "A directory at DEST, unless there is one"),
    ("--file", ("FD", "DEST"), "Files", "op file", "A file at DEST with what is read from FD"),
    ("--bind-data", ("FD", "DEST"), "Files", "op bind-data", "As --file, but mounted on DEST, writable"),
    ("--ro-bind-data", ("FD", "DEST"), "Files", "op ro-bind-data", "As --file, but mounted on DEST, read-only"),
    ("--symlink", ("TARGET", "DEST"), "Files", "op symlink", "A symbolic link at DEST that points to TARGET"),
    ("--perms", ("OCTAL",), "Files", "perms", "Mode of what the next option makes"),
    ("--size", ("BYTES",), "Files", "size", "Limit of the next --tmpfs"),
    ("--chmod", ("OCTAL", "PATH"), "Files", "op chmod", "Change the mode of PATH, which must exist"),
    #
    ("--exec-label", ("LABEL",), "Lockdown", "text exec-label", "SELinux label of COMMAND", True),
    ("--file-label", ("LABEL",), "Lockdown", "text file-label", "SELinux label of files that are made", True),
    ("--seccomp", ("FD",), "Lockdown", "fd seccomp", "Confine COMMAND by the filter in FD", True),
    ("--add-seccomp-fd", ("FD",), "Lockdown", "add-seccomp", "As --seccomp, for one filter of several"),
    ("--new-session", (), "Lockdown", "flag new-session", "Leave the session of the terminal"),
    ("--die-with-parent", (), "Lockdown", "flag die-with-parent", "End the sandbox when the caller ends"),
    ("--as-pid-1", (), "Lockdown", "flag as-pid-1", "COMMAND itself is process 1; needs --unshare-pid"),
    ("--cap-add", ("CAP",), "Lockdown", "cap add", "Give COMMAND a capability, or ALL"),
    ("--cap-drop", ("CAP",), "Lockdown", "cap drop", "Take a capability from COMMAND, or ALL"),
    (
        "--not-a-security-boundary",
        (),
        "Lockdown",
        "flag not-a-security-boundary",
        "Accepted, without effect",
        False,
        (0, 12),
    ),
    #
    ("--lock-file", ("DEST",), "Watching", "lock-file", "Hold a read lock on DEST as long as the sandbox lives"),
    ("--sync-fd", ("FD",), "Watching", "fd sync", "Hold FD open as long as the sandbox lives", True),
    ("--block-fd", ("FD",), "Watching", "fd block", "Start COMMAND when there is something to read from FD", True),
    (
        "--userns-block-fd",
        ("FD",),
        "Watching",
        "fd userns-block",
        "Wait on FD until another process has written the id maps",
        True,
    ),
    ("--info-fd", ("FD",), "Watching", "fd info", "Write facts about the sandbox to FD, in JSON", True),
    ("--json-status-fd", ("FD",), "Watching", "fd json-status", "Write how it starts and ends to FD, in JSON", True),
)


@remembered
def options() -> tuple[Option, ...]:
    """Return all options, in the order of --help."""
    return tuple(Option(*row) for row in _ROWS)
