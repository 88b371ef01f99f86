"""A step of CI: run a command on a repository that it can change, without a change coming back.

    python examples/ci_step.py REPOSITORY [COMMAND ...]

The repository lies under an overlay in memory (overlayfs, Linux 5.11): tests may write caches and build files anywhere
in it, and all of it is gone at the end. --copy takes a copy on disk instead, for file systems that overlayfs refuses.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import nsbox
from nsbox import Dev, Limits, Mask, Op, Policy, Proc, RoBind, Symlink, Tmpfs, TmpOverlay

LIMITS = Limits(memory="4G", cpu_seconds=600)


def system() -> list[Op]:
    """The system directories and this interpreter, read-only and without secrets, as Policy.workspace() has them."""
    host = nsbox.probe()
    ops: list[Op] = [Symlink(target, path) if target else RoBind(path, path) for path, target in host.directories]
    ops += [RoBind(path, path) for path in host.prefixes]
    # Policy.layers() shows what the caller can read. As root that includes /etc/shadow.
    return ops + [Mask(path, optional=True) for path in (*host.secrets, *host.private)]


def overlaid(repository: Path) -> Policy:
    """The repository at its own path, with all changes in memory."""
    return Policy.layers(
        Tmpfs("/tmp", mode=0o1777),
        *system(),
        TmpOverlay((str(repository),), str(repository)),
        Dev("/dev"),
        Proc("/proc"),
        unshare={"net", "ipc", "uts", "cgroup"},
        limits=LIMITS,
        home="/tmp",
        inherit_env=False,
        new_session=True,
        workdir=repository,
    )


def run_on_copy(repository: Path, command: list[str]) -> int:
    """The same on a copy, which is deleted afterwards."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name, repository.name)
        shutil.copytree(repository, copy, symlinks=True)
        return nsbox.call(command, policy=Policy.workspace(copy, limits=LIMITS), cwd=copy)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", action="store_true", help="work on a copy instead of an overlay")
    parser.add_argument("repository", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="default: python -m pytest")
    options = parser.parse_args(arguments)
    repository = options.repository.resolve(strict=True)
    command = options.command or [sys.executable, "-m", "pytest"]
    if options.copy:
        return run_on_copy(repository, command)
    return nsbox.call(command, policy=overlaid(repository), cwd=repository)


if __name__ == "__main__":
    sys.exit(main())
