"""From what a command line of bubblewrap asks for to a policy. Only from_argv() reads anything: descriptors."""

from __future__ import annotations

import os

from nsbox._base.errors import PolicyError
from nsbox._bwrap.line import Line, Refused, read
from nsbox._plan.ops import Bind, Mqueue, Op
from nsbox._policy.details import Details
from nsbox._policy.policy import Policy
from nsbox._seccomp.filter import Filter


def policy_of(options: Line, filters: tuple[bytes, ...], *, is_root: bool) -> Policy:
    """Return the policy.

    filters: seccomp programs, in their order.
    is_root: whether the caller is uid 0. If it is and asks for no user namespace, it gets one in which all ids stay the
        same. bubblewrap makes none then, and the capabilities that it leaves hold for the whole machine.

    As with bubblewrap, background processes go on after the command's end, and the command may make sandboxes itself.
    """
    new_user = bool({"user"} & (options.unshare | options.attempts))
    joins = "--userns" in options.fds
    shares_ipc = "ipc" not in options.unshare
    return Policy.layers(
        *(_shared(op, is_root) if shares_ipc and isinstance(op, Mqueue) else op for op in options.ops),
        unshare=(options.unshare | options.attempts) - {"user", "pid"},
        ids="auto" if is_root and not new_user and not joins else "single",
        uid=options.ids.get("--uid"),
        gid=options.ids.get("--gid"),
        seccomp=Filter(base="off", programs=filters) if filters else "off",
        nested=True,
        kill_on_exit=False,
        new_session="--new-session" in options.flags,
        details=Details(
            share=frozenset({"pid"} - options.unshare),
            capabilities=_capabilities(options, is_root),
            userns=options.fds.get("--userns"),
            userns2=options.fds.get("--userns2"),
            pidns=options.fds.get("--pidns"),
            disable_userns="--disable-userns" in options.flags,
            assert_userns_disabled="--assert-userns-disabled" in options.flags,
            host_writes=True,
            die_with_parent="--die-with-parent" in options.flags,
        ),
    )


_OF_A_RUN = (
    *("--argv0", "--lock-file", "--sync-fd", "--info-fd", "--json-status-fd", "--block-fd", "--userns-block-fd"),
    *("--exec-label", "--file-label", "--as-pid-1", "--pidns"),
)


def from_argv(argv: list[str]) -> Policy:
    """Return the policy of these options; see Policy.from_bwrap()."""
    words = argv[1:] if argv and os.path.basename(argv[0]) in ("bwrap", "nsbox-bwrap") else argv
    try:
        line = read([*words, "--", ""], {}, uid=os.getuid(), gid=os.getgid())
    except Refused as error:
        raise PolicyError("argv", str(error)) from None
    if line.command != ("",):
        raise PolicyError("argv", f"has a command, which is no part of a policy: {line.command[0]}")
    given = {*line.fds, *line.texts, *line.flags, *(["--lock-file"] if line.lock_files else [])}
    for option in _OF_A_RUN:
        if option in given:
            raise PolicyError("argv", f"{option} is about one run, not about a policy")
    if "--cleared" in line.flags:
        raise PolicyError("argv", "--clearenv: give the command its environment by env=")
    fd = line.fds.get("--seccomp")
    filters = line.filters if fd is None else (read_all(fd),)
    policy = policy_of(line, filters, is_root=os.geteuid() == 0)
    return policy.with_(env=line.env, workdir=line.texts.get("--chdir"))


def read_all(fd: int) -> bytes:
    """Return what a descriptor holds, and close it unless it is a standard stream; raises OSError."""
    with open(fd, "rb", buffering=0, closefd=fd > 2) as file:
        return file.read()


def _shared(op: Mqueue, is_root: bool) -> Op:
    """Return an op that shows the message queues of the caller's ipc namespace, which only its owner can mount."""
    if not is_root:
        raise PolicyError(f"Can't mount mqueue on {op.dest}", "Operation not permitted (without --unshare-ipc)")
    return Bind("/dev/mqueue", op.dest)


def _capabilities(options: Line, is_root: bool) -> tuple[str, ...]:
    """Return the remaining capabilities: --cap-add and --cap-drop applied to none or, for uid 0, to all that it has.

    In another process's user namespace they can't be had without power over the mounts too. There uid 0 starts with
    none, and adding one is refused.
    """
    elsewhere = "--userns" in options.fds or "--userns2" in options.fds
    words = ["caller"] if is_root and not elsewhere else []
    for verb, name in options.capabilities:
        word = "all" if name == "ALL" else name
        if verb == "add":
            words.append(word)
        elif word == "all":
            words.clear()
        elif words:
            words.append(f"-{word}")
    return tuple(words)
