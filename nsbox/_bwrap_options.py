"""The options of bubblewrap's command line, as a table.

Here lives what each option is called, takes and does in a few words, and what follows from that alone: the usage text
and the completion files. What a command line comes to is _bwrap_parse's business.
"""

from __future__ import annotations

from nsbox._details import CAPABILITIES
from nsbox._frozen import Frozen, frozen

PROGRAMS = ("bwrap", "nsbox-bwrap")

STRAY_LAYER = (
    "--overlay-src must be followed by another --overlay-src or one of --overlay, --tmp-overlay, or --ro-overlay"
)

_PATHS = frozenset({"SRC", "DEST", "DIR", "PATH", "RWSRC", "TARGET", "WORKDIR"})


@frozen
class Option(Frozen):
    """One option of bubblewrap.

    kind: what carries it out, a key of _bwrap_parse's handlers. help: one line without quotes, brackets and colons,
    which completion files would need escaped. once: of several only the last takes effect, which is warned of. since:
    the first version that has it; (0, 8) stands for all before it too.
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
        """Return what bubblewrap says when arguments are missing; clients match it, so its oddities stay."""
        if self.kind == "overlay-src":
            return STRAY_LAYER
        name = "--bind-fd" if self.kind == "bind-fd" else self.name
        one = "one argument" if name in ("--argv0", "--chdir", "--remount-ro") else "an argument"
        return f"{name} takes {(one, 'two arguments', 'three arguments')[len(self.args) - 1]}"

    @property
    def places(self) -> str:
        """Return a letter for each argument: p for a path, c for a capability, x for what can't be completed."""
        return "".join("p" if arg in _PATHS else "c" if arg == "CAP" else "x" for arg in self.args)


OPTIONS: tuple[Option, ...] = (
    Option("--help", (), "General", "help", "Show this text"),
    Option("--version", (), "General", "version", "Show the version"),
    Option("--args", ("FD",), "General", "args", "Take further options from FD, where NUL bytes separate them"),
    Option("--argv0", ("VALUE",), "General", "argv0", "Name that COMMAND is told it was called by", since=(0, 9)),
    Option("--level-prefix", (), "General", "level-prefix", "Begin messages with their syslog level", since=(0, 11)),
    #
    Option("--unshare-all", (), "Namespaces", "unshare-all", "New namespaces of every kind that can be had"),
    Option("--share-net", (), "Namespaces", "share-net", "Stay in the network of the caller after all"),
    Option("--unshare-user", (), "Namespaces", "unshare", "New user namespace; implied unless the caller is root"),
    Option("--unshare-user-try", (), "Namespaces", "attempt", "New user namespace where it can be had"),
    Option("--unshare-ipc", (), "Namespaces", "unshare", "New ipc namespace"),
    Option("--unshare-pid", (), "Namespaces", "unshare", "New pid namespace"),
    Option("--unshare-net", (), "Namespaces", "unshare", "New network namespace, with a loopback interface only"),
    Option("--unshare-uts", (), "Namespaces", "unshare", "New uts namespace"),
    Option("--unshare-cgroup", (), "Namespaces", "unshare", "New cgroup namespace"),
    Option("--unshare-cgroup-try", (), "Namespaces", "attempt", "New cgroup namespace where it can be had"),
    Option("--userns", ("FD",), "Namespaces", "fd", "Join the user namespace FD; not with --unshare-user", once=True),
    Option("--userns2", ("FD",), "Namespaces", "fd", "Move on to the user namespace FD after the set-up", once=True),
    Option("--disable-userns", (), "Namespaces", "flag", "No further user namespaces inside; needs --unshare-user"),
    Option("--assert-userns-disabled", (), "Namespaces", "flag", "Give up if user namespaces can be made inside"),
    Option("--pidns", ("FD",), "Namespaces", "fd", "Join the pid namespace FD, or make a new one below it", once=True),
    Option("--uid", ("UID",), "Namespaces", "id", "User id inside; needs a user namespace", once=True),
    Option("--gid", ("GID",), "Namespaces", "id", "Group id inside; needs a user namespace", once=True),
    Option("--hostname", ("NAME",), "Namespaces", "hostname", "Host name inside; needs --unshare-uts", once=True),
    #
    Option("--chdir", ("DIR",), "Environment", "text", "Directory inside in which COMMAND starts", once=True),
    Option("--clearenv", (), "Environment", "clearenv", "Drop all variables"),
    Option("--setenv", ("VAR", "VALUE"), "Environment", "setenv", "Set a variable"),
    Option("--unsetenv", ("VAR",), "Environment", "unsetenv", "Drop a variable"),
    #
    Option("--bind", ("SRC", "DEST"), "Files", "bind", "Show SRC at DEST, writable"),
    Option("--bind-try", ("SRC", "DEST"), "Files", "bind", "As --bind, unless there is no SRC"),
    Option("--dev-bind", ("SRC", "DEST"), "Files", "bind", "Show SRC at DEST, writable and with working devices"),
    Option("--dev-bind-try", ("SRC", "DEST"), "Files", "bind", "As --dev-bind, unless there is no SRC"),
    Option("--ro-bind", ("SRC", "DEST"), "Files", "bind", "Show SRC at DEST, read-only"),
    Option("--ro-bind-try", ("SRC", "DEST"), "Files", "bind", "As --ro-bind, unless there is no SRC"),
    Option("--bind-fd", ("FD", "DEST"), "Files", "bind-fd", "Show the open FD at DEST, writable", since=(0, 10)),
    Option("--ro-bind-fd", ("FD", "DEST"), "Files", "bind-fd", "Show the open FD at DEST, read-only", since=(0, 10)),
    Option("--remount-ro", ("DEST",), "Files", "mount", "Make the one mount at DEST read-only"),
    Option("--overlay-src", ("SRC",), "Files", "overlay-src", "A layer of the overlay that follows", since=(0, 11)),
    Option(
        "--overlay",
        ("RWSRC", "WORKDIR", "DEST"),
        "Files",
        "overlay",
        "The layers at DEST, changes go to RWSRC; WORKDIR is empty and on the same file system",
        since=(0, 11),
    ),
    Option("--tmp-overlay", ("DEST",), "Files", "overlay", "The layers at DEST, changes are dropped", since=(0, 11)),
    Option("--ro-overlay", ("DEST",), "Files", "overlay", "The layers at DEST, read-only", since=(0, 11)),
    Option("--proc", ("DEST",), "Files", "mount", "A procfs at DEST"),
    Option("--dev", ("DEST",), "Files", "mount", "A minimal set of devices at DEST"),
    Option("--tmpfs", ("DEST",), "Files", "tmpfs", "An empty file system in memory at DEST"),
    Option("--mqueue", ("DEST",), "Files", "mount", "The message queues at DEST"),
    Option("--dir", ("DEST",), "Files", "dir", "A directory at DEST, unless there is one"),
    Option("--file", ("FD", "DEST"), "Files", "file", "A file at DEST with what is read from FD"),
    Option("--bind-data", ("FD", "DEST"), "Files", "bind-data", "As --file, but mounted on DEST, writable"),
    Option("--ro-bind-data", ("FD", "DEST"), "Files", "bind-data", "As --file, but mounted on DEST, read-only"),
    Option("--symlink", ("TARGET", "DEST"), "Files", "symlink", "A symbolic link at DEST that points to TARGET"),
    Option("--perms", ("OCTAL",), "Files", "perms", "Mode of what the next option makes"),
    Option("--size", ("BYTES",), "Files", "size", "Limit of the next --tmpfs"),
    Option("--chmod", ("OCTAL", "PATH"), "Files", "chmod", "Change the mode of PATH, which must exist"),
    #
    Option("--exec-label", ("LABEL",), "Lockdown", "text", "SELinux label of COMMAND", once=True),
    Option("--file-label", ("LABEL",), "Lockdown", "text", "SELinux label of files that are made", once=True),
    Option("--seccomp", ("FD",), "Lockdown", "seccomp", "Confine COMMAND by the filter in FD", once=True),
    Option("--add-seccomp-fd", ("FD",), "Lockdown", "add-seccomp-fd", "As --seccomp, for one filter of several"),
    Option("--new-session", (), "Lockdown", "flag", "Leave the session of the terminal"),
    Option("--die-with-parent", (), "Lockdown", "flag", "End the sandbox when the caller ends"),
    Option("--as-pid-1", (), "Lockdown", "flag", "COMMAND itself is process 1; needs --unshare-pid"),
    Option("--cap-add", ("CAP",), "Lockdown", "cap", "Give COMMAND a capability, or ALL"),
    Option("--cap-drop", ("CAP",), "Lockdown", "cap", "Take a capability from COMMAND, or ALL"),
    Option("--not-a-security-boundary", (), "Lockdown", "flag", "Accepted, without effect", since=(0, 12)),
    #
    Option("--lock-file", ("DEST",), "Watching", "lock-file", "Hold a read lock on DEST as long as the sandbox lives"),
    Option("--sync-fd", ("FD",), "Watching", "fd", "Hold FD open as long as the sandbox lives", once=True),
    Option("--block-fd", ("FD",), "Watching", "fd", "Start COMMAND when there is something to read from FD", once=True),
    Option("--userns-block-fd", ("FD",), "Watching", "fd", "Wait on FD for somebody to write the id maps", once=True),
    Option("--info-fd", ("FD",), "Watching", "fd", "Write facts about the sandbox to FD, in JSON", once=True),
    Option("--json-status-fd", ("FD",), "Watching", "fd", "Write how it starts and ends to FD, in JSON", once=True),
)

BY_NAME = {option.name: option for option in OPTIONS}


def usage(prog: str) -> str:
    """Return the text of --help; prog: how the program was called."""
    lines = [f"usage: {prog} [OPTIONS...] [--] COMMAND [ARGS...]"]
    spelled = [" ".join((option.name, *option.args)) for option in OPTIONS]
    width = max(map(len, spelled))
    group = ""
    for option, spelling in zip(OPTIONS, spelled, strict=True):
        if option.group != group:
            group = option.group
            lines += ["", f"{group}:"]
        lines.append(f"    {spelling:<{width}}  {option.help}")
    return "\n".join(lines) + "\n"


def completion(shell: str) -> str:
    """Return a completion file for bash, zsh or fish; ValueError for another shell."""
    shells = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in shells:
        raise ValueError(f"no completion for {shell!r}, only for {', '.join(shells)}")
    return shells[shell]()


_BASH = """\
_nsbox_bwrap() {
    local cur=${COMP_WORDS[COMP_CWORD]} at=1 places
    COMPREPLY=()
    while ((at < COMP_CWORD)); do
        case ${COMP_WORDS[at]} in
@CASES@
            --)
                ((at++))
                break
                ;;
            -*) places= ;;
            *) break ;;
        esac
        if ((COMP_CWORD <= at + ${#places})); then
            case ${places:COMP_CWORD-at-1:1} in
                p)
                    compopt -o filenames
                    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                    ;;
                c) mapfile -t COMPREPLY < <(compgen -W '@CAPS@' -- "$cur") ;;
            esac
            return
        fi
        ((at += ${#places} + 1))
    done
    if ((at == COMP_CWORD)) && [[ $cur == -* && ${COMP_WORDS[at - 1]} != -- ]]; then
        mapfile -t COMPREPLY < <(compgen -W '@NAMES@' -- "$cur")
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$at"
    else
        compopt -o filenames
        if ((at == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -f -- "$cur")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        fi
    fi
}
complete -F _nsbox_bwrap @PROGRAMS@
"""


def _bash() -> str:
    cases = []
    for places in sorted({option.places for option in OPTIONS} - {""}):
        names = "|".join(option.name for option in OPTIONS if option.places == places)
        cases.append(f"            {names}) places={places} ;;")
    text = _BASH.replace("@CASES@", "\n".join(cases)).replace("@NAMES@", " ".join(BY_NAME))
    return text.replace("@CAPS@", " ".join(("ALL", *CAPABILITIES))).replace("@PROGRAMS@", " ".join(PROGRAMS))


def _zsh() -> str:
    actions = {"p": "_files", "c": f"(ALL {' '.join(CAPABILITIES)})", "x": " "}
    lines = [f"#compdef {' '.join(PROGRAMS)}", "", "_arguments -S \\"]
    for option in OPTIONS:
        args = zip(option.args, option.places, strict=True)
        taken = "".join(f":{arg}:{actions[place]}" for arg, place in args)
        lines.append(f"    '*{option.name}[{option.help}]{taken}' \\")
    lines += ["    '(-):COMMAND:_command_names -e' \\", "    '*::ARGS:_normal'"]
    return "\n".join(lines) + "\n"


def _fish() -> str:
    # fish completes one argument of an option; it takes a second one for an operand, which is a path as it should be.
    flags = {"": "", "p": " -r -F", "c": f" -x -a 'ALL {' '.join(CAPABILITIES)}'", "x": " -x"}
    return "".join(
        f"complete -c {program} -l {option.name[2:]}{flags[option.places[:1]]} -d '{option.help}'\n"
        for program in PROGRAMS
        for option in OPTIONS
    )
