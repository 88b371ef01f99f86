"""Kernels of Jupyter in sandboxes: a kernel provisioner, and a command that installs a kernel with it.

    python -m nsbox.integrations.jupyter install --name contained --policy nsbox.toml --user

The kernel has no network unless its policy says so. It is reached by unix sockets (transport "ipc") in a directory of
its own, which the sandbox can write to. What this process writes for the kernel is in another one, which the sandbox
can only read: a link that a kernel left there would lead the next start to a file of this machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

from nsbox import DEVNULL, NsboxError, Policy, Popen

try:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from jupyter_client.provisioning import LocalProvisioner
    from traitlets import Unicode
except ImportError as error:
    from nsbox.integrations._extras import without

    raise without("jupyter", error) from None

__all__ = ["SandboxProvisioner", "install"]

# Variables of the environment that Jupyter makes for a kernel, except those about this machine's user.
_VARIABLES = ("JPY_SESSION_NAME", "MPLBACKEND", "COLUMNS", "LINES")


class SandboxProvisioner(LocalProvisioner):
    """Starts a kernel in a sandbox. A kernel's kernel.json names it, and has its options.

    policy: the path of a file with the policy. Default: "", for Policy.workspace() of the notebook's directory.
    section: the table of that file. Default: "", as for Policy.load().
    workspace: the directory that is writable. Default: "", for the one in the file, or else the notebook's directory.
    """

    policy = Unicode("", config=True, help="The path of a file with the policy.")
    section = Unicode("", config=True, help="The table of that file.")
    workspace = Unicode("", config=True, help="The directory that is writable; by default the notebook's.")

    process: Any = None  # an nsbox.Popen
    _directory: str | None = None
    _remove: Any = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Let the manager use sockets in a directory of this kernel's, instead of ports."""
        manager = self.parent
        if manager is None:
            raise RuntimeError("a kernel in a sandbox needs a KernelManager")
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="nsbox-kernel-")
            self._remove = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
            os.mkdir(os.path.join(self._directory, "connection"), 0o700)
            os.mkdir(os.path.join(self._directory, "sockets"), 0o700)
            manager.transport, manager.ip, manager.cache_ports = (
                "ipc",
                os.path.join(self._directory, "sockets", "s"),
                False,
            )
        made: dict[str, Any] = await super().pre_launch(**kwargs)
        return made

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the kernel; returns how to connect to it. Raises what Popen and Policy.load() raise."""
        assert self._directory is not None
        start = os.path.realpath(kwargs.get("cwd") or os.getcwd())
        policy = self._policy(start)
        # The sandbox may have other ids than this process, so it gets a copy of its own to read.
        shown, sockets = (os.path.join(self._directory, name) for name in ("connection", "sockets"))
        file, copy = self.parent.connection_file, os.path.join(shown, "connection.json")
        shutil.copyfile(file, copy)
        given: dict[str, str] = kwargs.get("env") or {}
        variables = {name: given[name] for name in _VARIABLES if name in given}
        for name in self.kernel_spec.env:
            variables[name] = given.get(name, self.kernel_spec.env[name])
        variables["JPY_PARENT_PID"] = "1"  # it needn't look whether this process lives: its sandbox ends with it
        self.process = Popen(
            [copy if word == file else word for word in cmd],
            policy=policy.with_(
                write=(*policy.write, sockets), read=(*policy.read, shown), env={**dict(policy.env), **variables}
            ),
            stdin=DEVNULL,
            stdout=kwargs.get("stdout"),
            stderr=kwargs.get("stderr"),
            cwd=start,
            start_new_session=True,
        )
        self.pid, self.cwd = self.process.pid, start
        return self.connection_info

    def _policy(self, start: str) -> Policy:
        workspace = self.workspace or start
        if not self.policy:
            return Policy.workspace(workspace)
        return Policy.load(self.policy, section=self.section or None, workspace=workspace)

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel; SIGINT also to what it runs in the foreground."""
        if self.process is None:
            return
        if signum == signal.SIGINT and self.process.poll() is None:
            try:
                if os.getpgid(self.process.pid) == self.process.pid:
                    os.killpg(self.process.pid, signum)
                    return
            except OSError:
                pass  # the kernel alone, then
        self.process.send_signal(signum)

    async def kill(self, restart: bool = False) -> None:
        """End the sandbox, with all that the kernel has started."""
        if self.process is not None:
            self.process.kill()

    async def terminate(self, restart: bool = False) -> None:
        """Ask the kernel to end."""
        if self.process is not None:
            self.process.terminate()

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the sockets, unless the kernel is started again."""
        await super().cleanup(restart=restart)
        if not restart and self._remove is not None:
            self._remove()
            self._directory = self._remove = None


def install(
    name: str,
    *,
    policy: str | os.PathLike[str] | None = None,
    section: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
    display_name: str | None = None,
    base: str | None = None,
    user: bool = False,
    prefix: str | os.PathLike[str] | None = None,
) -> str:
    """Install a kernel that runs in a sandbox; return the directory with its kernel.json.

    name: of the kernel, as `jupyter kernelspec list` shows it.
    policy, section, workspace: as for SandboxProvisioner. A wrong policy is an error here.
    display_name: what menus show. Default: "NAME (nsbox)".
    base: the name of an installed kernel, of which to make a contained one. Default: ipykernel in this interpreter.
    user: whether to install it for this user alone, instead of for the system.
    prefix: where to install it, such as sys.prefix.

    Raises PolicyError, ValueError, OSError and, without such a base, jupyter_client's NoSuchKernel.
    """
    specs = KernelSpecManager()
    config = {
        "policy": "" if policy is None else os.path.abspath(policy),
        "section": section or "",
        "workspace": "" if workspace is None else os.path.abspath(workspace),
    }
    if policy is not None:
        Policy.load(config["policy"], section=section, workspace=workspace or os.getcwd())
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec: dict[str, Any] = {"argv": argv, "display_name": f"{name} (nsbox)", "language": "python", "metadata": {}}
    with tempfile.TemporaryDirectory() as directory:
        if base is not None:
            found = specs.get_kernel_spec(base)
            shutil.copytree(found.resource_dir, directory, dirs_exist_ok=True)
            spec = {**found.to_dict(), "display_name": f"{found.display_name} (nsbox)"}
            spec["interrupt_mode"] = found.interrupt_mode
        spec["display_name"] = display_name or spec["display_name"]
        spec["metadata"] = {
            **spec["metadata"],
            "kernel_provisioner": {
                "provisioner_name": "nsbox",
                "config": {key: value for key, value in config.items() if value},
            },
        }
        Path(directory, "kernel.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        os.chmod(directory, 0o755)
        where = None if prefix is None else os.path.abspath(prefix)
        return str(specs.install_kernel_spec(directory, kernel_name=name, user=user, prefix=where))


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m nsbox.integrations.jupyter")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("install", help="install a kernel that runs in a sandbox")
    one.add_argument("--name", required=True, help="the kernel's name, as `jupyter kernelspec list` shows it")
    one.add_argument("--policy", metavar="FILE", help="default: the notebook's directory is writable, no network")
    one.add_argument("--section", metavar="TABLE", help="the table of that file, such as tool.nsbox")
    one.add_argument("--workspace", metavar="DIR", help="the writable directory; default: the notebook's")
    one.add_argument("--display-name", metavar="TEXT", help="what menus show; default: NAME (nsbox)")
    one.add_argument("--base", metavar="NAME", help="make a contained kernel of this one; default: ipykernel")
    where = one.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user alone")
    where.add_argument("--prefix", metavar="DIR", help="in DIR/share/jupyter/kernels")
    where.add_argument(
        "--sys-prefix", action="store_const", const=sys.prefix, dest="prefix", help="in this environment"
    )
    options = vars(parser.parse_args(argv))
    try:
        print(f"installed in {install(options.pop('name'), **options)}")
    except (NsboxError, NoSuchKernel, OSError, ValueError) as error:
        print(f"nsbox.integrations.jupyter: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
