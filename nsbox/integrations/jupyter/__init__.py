"""Kernels of Jupyter in sandboxes: a kernel provisioner, and a command that installs a kernel with it.

    python -m nsbox.integrations.jupyter install --name contained --policy nsbox.toml --user
    python -m nsbox.integrations.jupyter check --name contained DIR

The kernel has no network unless its policy says so. It is reached by unix sockets (transport "ipc") in a directory of
its own, which the sandbox can write to. What this process writes for the kernel is in another one, which the sandbox
can only read: a link that a kernel left there would lead the next start to a file of this machine's.

provisioner.py starts kernels, install.py makes kernelspecs, policies.py has the policy of both. places.py keeps kernels
from what Jupyter runs outside. directories.py has the directories of sockets, errors.py what a server's users are told,
command.py the command.
"""

from __future__ import annotations

try:
    import jupyter_client  # noqa: F401
except ImportError as error:
    from nsbox.integrations._extras import without

    raise without("jupyter", error) from None

from nsbox.integrations.jupyter.command import main
from nsbox.integrations.jupyter.install import install
from nsbox.integrations.jupyter.provisioner import SandboxProvisioner

__all__ = ["SandboxProvisioner", "install", "main"]
