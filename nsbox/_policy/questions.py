"""What can be asked of a policy, and made of it: methods of Policy whose work is done on higher floors.

Each imports what does it when it is called, so that a policy is only a value until then.
"""

from __future__ import annotations

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
        """Return the policy that these options of bwrap(1) 0.11 ask for; argv: with or without the program's name.

        Descriptors for filters and --args are read now, those for contents with each spawn. Raises PolicyError for an
        option that bwrap refuses, and for what isn't a policy's: a command, and what is about one run of it
        (--info-fd, --json-status-fd, --block-fd, --sync-fd, --lock-file, --as-pid-1, --argv0, ...), or about a variable
        that is to be missing, for which Popen has env=. `nsbox bwrap` does all of that.
        """
        from nsbox._bwrap_policy import from_argv

        return from_argv(list(argv))

    @classmethod
    def rootfs(cls, dest: Path, *, workspace: Path, **wishes: Any) -> Policy:
        """Return the policy for commands that have a root file system of their own; as nsbox.rootfs.policy().

        dest: what nsbox.rootfs.build() has made. workspace: the directory that is writable, at /workspace. wishes:
        agent, runtime, bridge, network, tmp_size, env, uid, gid, hostname, and fields of Policy.
        """
        from nsbox._rootfs.policy import policy

        return policy(dest, workspace=workspace, **wishes)

    @classmethod
    def load(cls, path: Path, *, section: str | None = None, workspace: Path | None = None) -> Policy:
        """Return the policy that a TOML, JSON or YAML file describes; mode "disabled" in it is backend="passthrough".

        section: the table in it, such as "agents.sandbox"; by default `sandbox` if there is one, else the whole file.
        workspace: the one of a file that names none. A file that commands could write to is read-only to them. Raises
        ConfigError, which says all that is wrong with it and where, and OSError.
        """
        from nsbox._config.load import load

        config = load(path, section=section, workspace=workspace)
        if config.mode == "enabled":
            return config.policy
        return config.policy.with_(backend="passthrough", require="nothing")

    def dumps(self, format: Literal["toml", "json", "yaml"] = "toml") -> str:
        """Return the text of a file that load() makes this policy of; raises PolicyError where no file can say it."""
        from nsbox._config.load import dumps

        return dumps(_itself(self), format)

    def dump(self, path: Path, *, replace: bool = False) -> None:
        """Write that file, whole or not at all; its name says its format. replace: the file that is there may go."""
        from nsbox._config.load import dump

        dump(_itself(self), path, replace=replace)

    def child(self, *, attach: Iterable[Path] = (), **wishes: Any) -> Policy:
        """Return a policy for somebody to whom work is passed on, that allows nothing that this one doesn't.

        Wishes are with_()'s, but deny and protected add to what there is, and limits change those that are given.
        attach: files that are readable there too; they are found as this policy's commands would find them. Raises
        PolicyError for a wish that is more than this policy's own, AccessError for what can't be attached.
        """
        from nsbox._child import child

        return child(_itself(self), attach, wishes)

    # ---- questions

    def can_read(self, path: Path) -> bool:
        """Say if commands can read what this process finds at a path; as for all that follow it need not exist.

        Relative paths count from workdir; links and ".." are followed as the kernel does it inside. The answer is about
        the sandbox's boundaries: permissions of files are for the kernel to judge, and for Sandbox.open() to find out.
        """
        from nsbox import _view

        return _view.can_read(_itself(self), path)

    def can_write(self, path: Path) -> bool:
        """Say if commands can change what this process finds at a path."""
        from nsbox import _view

        return _view.can_write(_itself(self), path)

    def resolve(self, path: Path, *, write: bool = False) -> pathlib.Path:
        """Return where a file that commands can read, or write, is for this process; raises AccessError.

        What is opened by that path a moment later may be another file: see Sandbox.open().
        """
        from nsbox import _view

        return _view.view(_itself(self)).resolve(path, write=write)

    def check_suffix(self, path: Path) -> None:
        """Raise AccessError if the rules of `paths` take no file with such a name there; it says which they take."""
        from nsbox import _view

        _view.check_suffix(_itself(self), path)

    def check_size(self, path: Path) -> None:
        """Raise AccessError if a file has more bytes than the rules of `paths` allow; OSError if it isn't there."""
        from nsbox import _view

        _view.check_size(_itself(self), path)

    def check_deny(self) -> None:
        """Raise PolicyError if something in `deny` hides nothing now: what strict=True does at each spawn."""
        from nsbox._lookup.matches import check_deny

        check_deny(_itself(self))

    def list_readable(self) -> list[str]:
        """List the paths that the policy itself names as readable; in a workspace, system directories are, too."""
        from nsbox import _view

        return _view.view(_itself(self)).readable()

    def list_writable(self) -> list[str]:
        """List the paths that the policy itself names as writable."""
        from nsbox import _view

        return _view.view(_itself(self)).writable()
