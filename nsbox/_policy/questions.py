"""Methods of Policy whose work is done by modules above this one: other spellings of it, and questions about it.

Each method imports its module when it is called; until then a policy is only a value.
"""

from __future__ import annotations

from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Iterable
    from typing import Any, Literal, TypeAlias

    from nsbox._policy.policy import Policy

    Path: TypeAlias = str | os.PathLike[str]


def _itself(value: Any) -> Policy:
    policy: Policy = value
    return policy


class Questions:
    """The methods, for a Policy to inherit."""

    # ---- other spellings

    @classmethod
    def from_bwrap(cls, argv: Iterable[str]) -> Policy:
        """Return the policy that these options of bwrap(1) 0.11 ask for.

        argv: the options, with or without the program's name. Descriptors for filters and --args are read now, those
        for contents at each spawn.

        Raises PolicyError for an option that bwrap refuses, and for what no policy can hold: a command, an option about
        one run (--info-fd, --json-status-fd, --block-fd, --sync-fd, --lock-file, --as-pid-1, --argv0, ...), and one
        that removes a variable, for which Popen has env=. `nsbox bwrap` can do all of that. Raises UnavailableError
        where nsbox has no core for Linux, which reads the options.
        """
        from nsbox._core import abi

        if not abi.on_linux or abi.problem:
            raise UnavailableError(Reason(abi.problem or "Linux's core reads bwrap's options; there is none here"))
        from nsbox._bwrap.policy import from_argv

        return from_argv(list(argv))

    @classmethod
    def rootfs(cls, dest: Path, *, workspace: Path, **fields: Any) -> Policy:
        """Return the policy for commands that have a root file system of their own, as nsbox.rootfs.policy() does.

        dest: the directory that nsbox.rootfs.build() made.
        workspace: the directory that is writable; inside it is /workspace.
        fields: agent, runtime, bridge, network, tmp_size, env, uid, gid, hostname, and fields of Policy.
        """
        from nsbox._rootfs.policy import policy

        return policy(dest, workspace=workspace, **fields)

    @classmethod
    def load(cls, path: Path, *, section: str | None = None, workspace: Path | None = None) -> Policy:
        """Return the policy that a TOML, JSON or YAML file describes.

        If the mode in the file is "disabled", the policy has backend="passthrough". If the file lies where commands
        could write to it, it is read-only for them.

        path: the file.
        section: a table in it, such as "agents.sandbox"; None: `sandbox` if there is one, else the whole file.
        workspace: the workspace, if the file names none.

        Raises ConfigError, which lists everything that is wrong and where, and OSError.
        """
        from nsbox._config.load import load

        config = load(path, section=section, workspace=workspace)
        if config.mode == "enabled":
            return config.policy
        return config.policy.with_(backend="passthrough", require="nothing")

    def dumps(self, format: Literal["toml", "json", "yaml"] = "toml") -> str:
        """Return the text of a file from which load() makes this policy; raises PolicyError if no file can say it."""
        from nsbox._config.load import dumps

        return dumps(_itself(self), format)

    def dump(self, path: Path, *, replace: bool = False) -> None:
        """Write what dumps() returns to a file, whole or not at all; raises PolicyError and OSError.

        path: the file; its name says its format.
        replace: overwrite a file that is already there.
        """
        from nsbox._config.load import dump

        dump(_itself(self), path, replace=replace)

    def child(self, *, attach: Iterable[Path] = (), **fields: Any) -> Policy:
        """Return a policy for a delegate, such as a subagent, that allows nothing that this one doesn't.

        attach: files that the delegate can read too; they are looked up as commands of this policy would do it.
        fields: as for with_(), except that deny and protected are added to this policy's, and limits change only the
            limits that they name.

        Raises PolicyError for a wish that is more than this policy's own, AccessError for what can't be attached.
        """
        from nsbox._tools.child import child

        return child(_itself(self), attach, fields)

    # ---- questions

    def can_read(self, path: Path) -> bool:
        """Say if commands can read what this process finds at a path, which need not exist.

        The question is about this machine's files. A sandbox has a /tmp, /dev, /proc and HOME of its own, where
        commands find other files than this process does: for these paths the answer is False. A Sandbox's tools for
        files are stricter: they open only what the policy names, so not the system's files.

        Relative paths count from workdir; links and ".." are followed as the kernel does it inside. The answer is about
        the sandbox's boundaries. Permissions of files are up to the kernel; Sandbox.open() meets those. All this is
        true of the methods below as well.
        """
        from nsbox._tools import view

        return view.can_read(_itself(self), path)

    def can_write(self, path: Path) -> bool:
        """Say if commands can change what this process finds at a path: False for the sandbox's own /tmp and HOME."""
        from nsbox._tools import view

        return view.can_write(_itself(self), path)

    def resolve(self, path: Path, *, write: bool = False) -> pathlib.Path:
        """Return the path, for this process, of a file that commands can read, or write if `write` is True.

        If you open that path a moment later, it may be another file; Sandbox.open() is safe. Raises AccessError.
        """
        from nsbox._tools import view

        return view.view(_itself(self)).resolve(path, write=write)

    def check_suffix(self, path: Path) -> None:
        """Raise AccessError, which says what names are allowed, if the rules in `paths` don't allow this file's."""
        from nsbox._tools import view

        view.check_suffix(_itself(self), path)

    def check_size(self, path: Path) -> None:
        """Raise AccessError if a file has more bytes than the rules in `paths` allow; OSError if it doesn't exist."""
        from nsbox._tools import view

        view.check_size(_itself(self), path)

    def check_deny(self) -> None:
        """Raise PolicyError if something in `deny` hides nothing at present. With strict=True each spawn does this."""
        from nsbox._lookup.matches import check_deny

        check_deny(_itself(self))

    def list_readable(self) -> list[str]:
        """Return the paths that the policy names as readable. In a workspace, system directories are readable too."""
        from nsbox._tools import view

        return view.view(_itself(self)).readable()

    def list_writable(self) -> list[str]:
        """Return the paths that the policy names as writable."""
        from nsbox._tools import view

        return view.view(_itself(self)).writable()
