"""What Jupyter runs by, outside of sandboxes: kernels can neither change it nor read its secrets.

A server that is started in a home directory has all of it as the directory of its notebooks. A kernel that could write
there could replace a kernel.json, whose `argv` runs outside, or the server's configuration, which is Python. So these
directories are read-only in the sandbox, or hidden, with all directories on the way to them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import jupyter_config_dir, jupyter_config_path, jupyter_data_dir, jupyter_path
from jupyter_core.paths import jupyter_runtime_dir as runtime_dir

from nsbox import Policy, PolicyError


def guarded(policy: Policy) -> Policy:
    """Return a policy with these directories read-only or hidden, as far as it shows them.

    A directory that isn't there yet is made, if the policy would let a kernel make it.

    policy: one of Policy.workspace() or Policy.load().

    Raises PolicyError if that can't be had: something writable is in such a directory, or a link that kernels could
    replace leads to one. Raises OSError.
    """
    hidden = [*_absolute((runtime_dir(), jupyter_config_dir()))]
    secret = os.path.join(jupyter_data_dir(), "notebook_secret")  # signs notebooks, whose output is trusted then
    kept = [*_absolute((*jupyter_path(), *jupyter_config_path(), _ipython_dir(), *_kernelspecs()))]
    for path in (*hidden, *kept):
        _check_write(policy, os.path.realpath(path))
    read = {os.path.realpath(path): None for path in kept if _is_writable(policy, os.path.realpath(path))}
    deny = {os.path.realpath(path): None for path in hidden if _is_shown(policy, os.path.realpath(path))}
    for path in [path for path in {**read, **deny} if not os.path.lexists(path)]:
        if _is_writable(policy, path):
            os.makedirs(path, 0o700, exist_ok=True)
        else:  # neither can a kernel make it
            deny.pop(path, None)
    if os.path.exists(secret) and _is_shown(policy, os.path.realpath(secret)):
        deny[os.path.realpath(secret)] = None
    more = [path for path in read if path not in deny]
    made = policy.with_(read=(*policy.read, *more), deny=(*policy.deny, *deny)) if more or deny else policy
    for path in (*hidden, *kept):
        _check_links(made, path)
    return made


def _absolute(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths as absolute ones, with the links in them."""
    for path in dict.fromkeys(paths):
        yield os.path.join(os.path.realpath(os.getcwd()), os.path.expanduser(path))


def _kernelspecs() -> list[str]:
    """Return the directories of kernels, of which one may be a link to elsewhere."""
    return [*KernelSpecManager().find_kernel_specs().values()]


def _ipython_dir() -> str:
    """Return IPython's directory, whose startup files each uncontained kernel runs."""
    return os.environ.get("IPYTHONDIR") or os.path.join("~", ".ipython")


def _check_write(policy: Policy, place: str) -> None:
    """Raise PolicyError if a directory to which kernels are to write is in a place of Jupyter's."""
    for path in policy.write:
        if _is_below(path, place):
            problem = f"{path} is in {place}, which belongs to Jupyter, and which kernels mustn't change"
            raise PolicyError("workspace", f"{problem}; put notebooks and what is writable elsewhere")


def _check_links(policy: Policy, path: str) -> None:
    """Raise PolicyError if kernels could replace a link that leads to a place of Jupyter's."""
    for link in _links_on(path):
        if _is_writable(policy, os.path.dirname(link)):
            problem = f"{link} is a link to what belongs to Jupyter, and the kernel could replace it"
            remedy = f"start the notebook in another directory, or let Jupyter use {os.path.realpath(path)} itself"
            raise PolicyError("workspace", f"{problem}; {remedy} (`jupyter --paths` lists its directories)")


def _links_on(path: str) -> Iterator[str]:
    """Yield the links on the way to a path, each by a name without links before it."""
    at, names, left = "/", [*reversed(path.split("/"))], 40  # as many as the kernel follows
    while names and left:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, name)
        if os.path.islink(here):
            yield here
            left -= 1
            target = os.readlink(here)
            names += [*reversed(target.split("/"))]
            at = "/" if target.startswith("/") else at
        else:
            at = here


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def _is_shown(policy: Policy, path: str) -> bool:
    return any(_is_below(path, above) for above in (*policy.write, *policy.read))


def _is_writable(policy: Policy, path: str) -> bool:
    """Say if a kernel may write to a path of this machine's. In its own /tmp it may, and that is nobody else's."""
    return any(_is_below(path, above) for above in policy.write) and policy.can_write(path)
