"""From what a command line of bubblewrap asks for to a policy. Only from_argv() reads anything: descriptors."""

from __future__ import annotations

from nsbox._base.errors import PolicyError
from nsbox._base.lean_os import os
from nsbox._bwrap.asked import Asked, Refused, Usage, Version
from nsbox._bwrap.parse import parse
from nsbox._plan.ops import Bind, Mqueue, Op
from nsbox._policy.details import Details
from nsbox._policy.policy import Policy
from nsbox._seccomp.filter import Filter


def policy_of(options: Asked, filters: tuple[bytes, ...], *, is_root: bool) -> Policy:
    """Return the policy.

    filters: seccomp programs, in their order.
    is_root: whether the caller is uid 0. If it is and asks for no user namespace, it gets one in which all ids stay the
        same. bubblewrap makes none then, and the capabilities that it leaves hold for the whole machine.

    As with bubblewrap, background processes go on after the command's end, and the command may make sandboxes itself.
    """
    new_user = bool({"user"} & (options.unshare | options.attempts))
    joins = options.userns is not None
    shares_ipc = "ipc" not in options.unshare
    return Policy.layers(
        *(_shared(op, is_root) if shares_ipc and isinstance(op, Mqueue) else op for op in options.ops),
        unshare=(options.unshare | options.attempts) - {"user", "pid"},
        ids="auto" if is_root and not new_user and not joins else "single",
        uid=options.uid,
        gid=options.gid,
        seccomp=Filter(base="off", programs=filters) if filters else "off",
        nested=True,
        kill_on_exit=False,
        new_session=options.new_session,
        details=Details(
            share=frozenset({"pid"} - options.unshare),
            capabilities=_capabilities(options, is_root),
            userns=options.userns,
            userns2=options.userns2,
            pidns=options.pidns,
            disable_userns=options.disable_userns,
            assert_userns_disabled=options.assert_userns_disabled,
            host_writes=True,
            die_with_parent=options.die_with_parent,
        ),
    )


_OF_A_RUN = {
    "argv0": "--argv0",
    "lock_files": "--lock-file",
    "sync_fd": "--sync-fd",
    "info_fd": "--info-fd",
    "json_status_fd": "--json-status-fd",
    "block_fd": "--block-fd",
    "userns_block_fd": "--userns-block-fd",
    "exec_label": "--exec-label",
    "file_label": "--file-label",
    "as_pid_1": "--as-pid-1",
    "pidns": "--pidns",
}


def from_argv(argv: list[str]) -> Policy:
    """Return the policy of these options; see Policy.from_bwrap()."""
    words = argv[1:] if argv and os.path.basename(argv[0]) in ("bwrap", "nsbox-bwrap") else argv
    present = {"": "is there"}
    try:
        options = parse(
            [*words, "--", ""],
            present,
            read=read_all,
            say=lambda text: None,
            cwd=os.getcwd(),
            real_uid=os.getuid(),
            real_gid=os.getgid(),
        )
    except (Usage, Version):
        raise PolicyError("argv", "asks for --help or --version") from None
    except Refused as error:
        raise PolicyError("argv", str(error)) from None
    if options.command != ("",):
        raise PolicyError("argv", f"has a command, which is no part of a policy: {options.command[0]}")
    for name, option in _OF_A_RUN.items():
        if getattr(options, name) not in (None, (), False):
            raise PolicyError("argv", f"{option} is about one run, not about a policy")
    if "" not in options.env:
        raise PolicyError("argv", "--clearenv: give the command its environment by env=")
    filters = options.filters if options.seccomp_fd is None else (read_all(options.seccomp_fd),)
    policy = policy_of(options, filters, is_root=os.geteuid() == 0)
    env = {name: value for name, value in options.env.items() if name}
    return policy.with_(env=env, workdir=options.chdir)


def read_all(fd: int) -> bytes:
    """Return what a descriptor holds, and close it unless it is a standard stream; raises OSError."""
    with open(fd, "rb", buffering=0, closefd=fd > 2) as file:
        return file.read()


def _shared(op: Mqueue, is_root: bool) -> Op:
    """Return an op that shows the message queues of the caller's ipc namespace, which only its owner can mount."""
    if not is_root:
        raise PolicyError(f"Can't mount mqueue on {op.dest}", "Operation not permitted (without --unshare-ipc)")
    return Bind("/dev/mqueue", op.dest)


def _capabilities(options: Asked, is_root: bool) -> tuple[str, ...]:
    """Return the remaining capabilities: --cap-add and --cap-drop applied to none or, for uid 0, to all that it has.

    In another process's user namespace they can't be had without power over the mounts too. There uid 0 starts with
    none, and adding one is refused.
    """
    elsewhere = options.userns is not None or options.userns2 is not None or options.userns_block_fd is not None
    words = ["caller"] if is_root and not elsewhere else []
    if options.userns_block_fd is not None and any(verb == "add" for verb, _ in options.capabilities):
        raise PolicyError("--cap-add", "can't be combined with --userns-block-fd here")
    for verb, name in options.capabilities:
        word = "all" if name == "ALL" else name
        if verb == "add":
            words.append(word)
        elif word == "all":
            words.clear()
        elif words:
            words.append(f"-{word}")
    return tuple(words)
