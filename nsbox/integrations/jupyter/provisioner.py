"""SandboxProvisioner: what jupyter_client calls to start, signal and end a kernel in a sandbox."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from typing import Any

from jupyter_client.provisioning import LocalProvisioner
from traitlets import Unicode
from traitlets.config import Application

from nsbox import DEVNULL, Policy, Popen
from nsbox.integrations.jupyter.directories import KernelDirectory
from nsbox.integrations.jupyter.errors import ending, told
from nsbox.integrations.jupyter.policies import Options, reachable, with_own_programs, without_dots

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
    contained: Policy | None = None  # what the kernel runs under
    _is_silent: bool = False  # its end is wished, or was reported
    _directory: KernelDirectory | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Let the manager use sockets in a directory of this kernel's, instead of ports.

        Raises OSError; where a Jupyter server manages the kernel, KernelStartError instead.
        """
        manager = self.parent
        if manager is None:
            raise RuntimeError("a kernel in a sandbox needs a KernelManager")
        with told(manager, manager.kernel_name):
            if self._directory is None:
                self._directory = KernelDirectory()
                manager.transport, manager.cache_ports = "ipc", False
                manager.ip = os.path.join(self._directory.sockets, "s")
            made: dict[str, Any] = await super().pre_launch(**kwargs)
            return made

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the kernel; returns how to connect to it.

        Raises what Popen and Policy.load() raise; where a Jupyter server manages the kernel, KernelStartError instead.
        """
        with told(self.parent, self.parent.kernel_name):
            try:
                self._launch(cmd, **kwargs)
            except BaseException:
                if self.pid is None:  # it is the first start, so no client knows the sockets
                    self._remove_directory()
                    self.parent.cleanup_connection_file()  # another start writes it, with the sockets of then
                raise
        return self.connection_info

    def _launch(self, cmd: list[str], **kwargs: Any) -> None:
        directory = self._directory
        assert directory is not None
        start = os.path.realpath(kwargs.get("cwd") or os.getcwd())
        policy = Options(self.policy, self.section, self.workspace).policy_in(start)
        # The sandbox may have other ids than this process, so it gets a copy of its own to read.
        file, copy = self.parent.connection_file, os.path.join(directory.shown, "connection.json")
        shutil.copyfile(file, copy)
        given: dict[str, str] = kwargs.get("env") or {}
        variables = {name: given[name] for name in _VARIABLES if name in given}
        for name in self.kernel_spec.env:
            variables[name] = given.get(name, self.kernel_spec.env[name])
        variables["JPY_PARENT_PID"] = "1"  # it needn't look whether this process lives: its sandbox ends with it
        cmd = [without_dots(cmd[0]), *cmd[1:]]
        self.contained = with_own_programs(reachable(policy, directory, variables), cmd[0])
        self._is_silent = False
        self.process = Popen(
            [copy if word == file else word for word in cmd],
            policy=self.contained,
            stdin=DEVNULL,
            stdout=kwargs.get("stdout"),
            stderr=kwargs.get("stderr"),
            cwd=start,
            start_new_session=True,
        )
        self.pid, self.cwd = self.process.pid, start

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

    async def poll(self) -> int | None:
        """Return the kernel's status if it has ended, else None. An end that nobody asked for is logged."""
        process = self.process
        status: int | None = await super().poll()
        if process is not None and status and self.contained is not None and not self._is_silent:
            self._is_silent = True
            said, remedy = ending(self.contained, status, process.sandbox.usage)
            # Without an application, such as a server, the manager's own log is shown to nobody.
            log = self.log if Application.initialized() else logging.getLogger("nsbox.jupyter")
            log.error("the kernel %r ended, %s%s", self.parent.kernel_name, said, f"; {remedy}" if remedy else "")
        return status

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Note that the kernel is asked to end."""
        self._is_silent = True

    async def kill(self, restart: bool = False) -> None:
        """End the sandbox, with all that the kernel has started."""
        self._is_silent = True
        if self.process is not None:
            self.process.kill()

    async def terminate(self, restart: bool = False) -> None:
        """Ask the kernel to end."""
        self._is_silent = True
        if self.process is not None:
            self.process.terminate()

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the sockets, unless the kernel is started again."""
        await super().cleanup(restart=restart)
        if not restart:
            self._remove_directory()

    def _remove_directory(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.remove()
