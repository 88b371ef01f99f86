"""Tries whether a kernel starts: by starting it as a notebook does. It is asked what it is (kernel_info), and ended."""

from __future__ import annotations

import os
import tempfile
from typing import IO

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from nsbox import Reason, UnavailableError
from nsbox.integrations.jupyter.errors import ending
from nsbox.integrations.jupyter.provisioner import SandboxProvisioner

_PATIENCE = 120.0  # seconds for a kernel to answer
_MOST = 1 << 14  # characters of what it has printed


class _OneSpec(KernelSpecManager):
    """Knows one kernelspec, which need not be installed."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__()
        self._spec = spec

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return self._spec


def try_start(spec: KernelSpec, directory: str) -> None:
    """Start a contained kernel for a notebook in a directory, wait for its answer, and end it.

    spec: the kernel's; its metadata name nsbox's provisioner.

    Raises UnavailableError if this machine can't grant the policy, or if the kernel ends or doesn't answer under it.
    Raises what SandboxProvisioner raises.
    """
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as output:
        manager = KernelManager(
            kernel_name=spec.display_name,
            kernel_spec_manager=_OneSpec(spec),
            connection_file=os.path.join(place, "connection.json"),
        )
        manager.start_kernel(cwd=directory, stdout=output, stderr=output)
        provisioner = manager.provisioner
        assert isinstance(provisioner, SandboxProvisioner)
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=_PATIENCE)
        except RuntimeError as error:
            raise UnavailableError(_reason(provisioner, _end_of(output))) from error
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def _reason(provisioner: SandboxProvisioner, printed: str) -> Reason:
    process, policy = provisioner.process, provisioner.contained
    status = None if process is None else process.poll()
    if status is None or policy is None:
        what, remedy = f"gives no answer within {_PATIENCE:.0f} seconds", ""
    else:
        said, remedy = ending(policy, status, process.sandbox.usage, printed)
        what = f"ended while it started, {said}"
    last = printed.strip().rpartition("\n")[2]
    needs = "ipykernel, or the kernel of --base, must be installed, readable in the sandbox, and within the limits"
    return Reason(f"under this policy the kernel {what}{': ' if last else ''}{last}", remedy or needs)


def _end_of(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")[-_MOST:]
