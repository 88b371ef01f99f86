"""The options that make a policy: --read, --deny, --memory and the like. policy.py makes the policy of them."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._policy.policy import BACKENDS, REQUIRE
from nsbox._seccomp.filter import PROFILES

if TYPE_CHECKING:
    from nsbox._cli.parser import Parser


def add_policy_options(parser: Parser) -> None:
    """Add the options to a subcommand."""
    _add_files(parser)
    _add_environment(parser)
    _add_amounts(parser)
    _add_containment(parser)


def _add_files(parser: Parser) -> None:
    topic = parser.topic("Policy from a file")
    topic.add_argument("-p", "--policy", metavar="FILE", help="a configuration file, instead of the options below")
    topic.add_argument("--section", metavar="TABLE", help="the table of that file, such as agents.sandbox")
    topic = parser.topic("Files")
    topic.add_argument(
        "-w",
        "--workspace",
        metavar="DIR",
        help="the directory to work in (default: the current one, or that of --policy's file)",
    )
    topic.add_argument(
        "--read-only", action="store_true", help="let the command only read the workspace; --write makes parts writable"
    )
    topic.add_argument(
        "--read", action="append", default=[], metavar="PATH", help="let the command read this too; may be repeated"
    )
    topic.add_argument(
        "--write",
        action="append",
        default=[],
        metavar="PATH",
        help="let the command write to this too; may be repeated",
    )
    topic.add_argument(
        "--deny",
        action="append",
        default=[],
        metavar="PATH",
        help="hide a path, or what matches a pattern; may be repeated",
    )
    topic.add_argument("--strict", action="store_true", help="fail if a --deny names or matches nothing")
    topic.add_argument(
        "--home", metavar="HOME", help="private (default), private:NAME (kept), workspace, tmp, or a path"
    )
    topic.add_argument("--tools-bin", metavar="DIR", help="a directory of programs: read-only inside, first in PATH")
    topic.add_argument("--tmp-size", metavar="SIZE", help="the size of /tmp, such as 64M")
    topic.add_argument(
        "--host", action="store_true", help="show the whole file system, writable, and the host's network"
    )
    topic = parser.topic("Network")
    topic.add_argument(
        "--network",
        choices=("none", "host", "public"),
        help="default: none, or host with --host. public: every public address",
    )
    topic.add_argument(
        "--allow-net",
        action="append",
        default=[],
        metavar="ENTRY",
        help="allow connections to it, such as api.example:443, '*.files.example' or 10.1.2.0/24:5432; with --policy, "
        "added to the file's list. May be repeated",
    )


def _add_environment(parser: Parser) -> None:
    topic = parser.topic("Variables")
    topic.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable; without a value, to its value in this environment, if any. May be repeated",
    )
    topic.add_argument("--env-file", action="append", default=[], metavar="FILE", help="read NAME[=VALUE] lines")
    topic.add_argument(
        "--setenv", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="the same as --env NAME=VALUE"
    )
    topic.add_argument("--pass-env", action="append", default=[], metavar="NAME", help="the same as --env NAME")


def _add_amounts(parser: Parser) -> None:
    topic = parser.topic("Limits")
    topic.add_argument(
        "--sensible-limits",
        action="store_true",
        help="4096 processes and threads, files of 16 GiB, 65536 open files per process, no core dumps; other options "
        "of this group take precedence",
    )
    topic.add_argument("--memory", metavar="SIZE", help="limit the address space of each process")
    topic.add_argument("--processes", type=int, metavar="N", help="limit processes and threads of the sandbox")
    topic.add_argument("--cpu-seconds", type=int, metavar="N", help="limit the processor time of each process")
    topic.add_argument("--file-size", metavar="SIZE", help="limit the size of each file that is written")
    topic.add_argument("--open-files", type=int, metavar="N", help="limit the open files of each process")
    topic.add_argument("--total-memory", metavar="SIZE", help="limit the memory of all processes together (cgroup)")
    topic.add_argument(
        "--cpus", type=float, metavar="N", help="limit the processors of all together, such as 1.5 (cgroup)"
    )


def _words(text: str) -> list[str]:
    """Return the words of an option that may have several, with commas."""
    return [word.strip() for word in text.split(",")]


def _add_containment(parser: Parser) -> None:
    topic = parser.topic("Containment")
    topic.add_argument(
        "--degrade",
        action="extend",
        type=_words,
        default=[],
        metavar="LOSS[,LOSS]",
        help="run even if this can't be enforced here: namespaces, limits, or a single loss such as attributes",
    )
    topic.add_argument(
        "--backend",
        choices=("auto", *BACKENDS),
        help="what contains the command",
    )
    topic.add_argument(
        "--require",
        choices=tuple(REQUIRE),
        help="the weakest containment to accept (default: filesystem)",
    )
    topic.add_argument("--seccomp", choices=PROFILES, help="which system calls are allowed (default: default)")
    topic.add_argument(
        "--nested", action="store_true", help="let the command make sandboxes of its own, as Chromium does"
    )
    topic.add_argument(
        "--landlock", action="store_true", help="enforce file rules with Landlock too, behind the mounts"
    )
    topic.add_argument(
        "--seatbelt",
        action="append",
        default=[],
        metavar="NAME",
        help="what the command may ask of macOS in addition to the usual, such as tls",
    )
    topic.add_argument("--device", action="append", default=[], metavar="PATH", help="a device node, such as /dev/kvm")
    topic.add_argument("--ids", choices=("single", "full", "auto"), help="which ids exist inside (default: single)")
    topic.add_argument("--uid", type=int, metavar="N", help="the command's user id inside")
    topic.add_argument("--gid", type=int, metavar="N", help="the command's group id inside")
    topic.add_argument("--hostname", metavar="NAME", help="the host name inside")
    topic.add_argument(
        "--keep-session",
        action="store_true",
        help="let the command have your terminal and session, and reach other processes in it",
    )
