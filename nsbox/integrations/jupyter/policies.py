"""The policy of a kernel: from the options in its kernel.json, with what a contained kernel needs to be reached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nsbox import DEVNULL, Policy, PolicyError, Popen, Reason, TimeoutExpired, UnavailableError
from nsbox.integrations.jupyter.directories import KernelDirectory
from nsbox.integrations.jupyter.places import guarded

PROVISIONER = "nsbox"
_PATIENCE = 120.0  # seconds for a kernel's program to say its version
_PYTHONS = ("python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}")


@dataclass(frozen=True)
class Options:
    """What a kernel.json says about its sandbox; see SandboxProvisioner."""

    policy: str = ""
    section: str = ""
    workspace: str = ""

    def policy_in(self, directory: str) -> Policy:
        """Return the policy of a kernel whose notebook is in a directory; raises what Policy.load() raises."""
        workspace = self.workspace or directory
        if not self.policy:
            return guarded(Policy.workspace(workspace))
        policy = Policy.load(self.policy, section=self.section or None, workspace=workspace)
        if self.workspace and os.path.realpath(self.workspace) not in policy.write:
            problem = f"{self.policy} names the workspace {policy.workdir}, and the kernel's is {self.workspace}"
            raise PolicyError("workspace", f"{problem}: name it in one of the two places")
        return guarded(policy)


def reachable(policy: Policy, directory: KernelDirectory, variables: Mapping[str, str]) -> Policy:
    """Return the policy with a kernel's sockets and variables.

    directory: where the sockets will be.
    variables: of the environment, beside the policy's own.
    """
    return policy.with_(
        write=(*policy.write, directory.sockets),
        read=(*policy.read, directory.shown),
        env={**dict(policy.env), **variables},
    )


def try_start(policy: Policy, argv: list[str]) -> None:
    """Start a kernel's program in its sandbox, and end it at once. ipykernel is asked for its version.

    argv: the kernel's command, as in kernel.json.

    Raises UnavailableError if this machine can't grant the policy, or if ipykernel doesn't start under it. Raises what
    Popen raises.
    """
    program = sys.executable if argv[0] in _PYTHONS else argv[0]
    is_known = argv[1:3] == ["-m", "ipykernel_launcher"]
    command = [program, *(argv[1:3] if is_known else ()), "--version"]
    directory = KernelDirectory()
    try:
        with Popen(
            command,
            policy=reachable(policy, directory, {}),
            cwd=policy.workdir,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=subprocess.PIPE if is_known else DEVNULL,
            start_new_session=True,
        ) as process:
            if not is_known:
                process.kill()
                return
            try:
                said = process.communicate(timeout=_PATIENCE)[1].decode(errors="replace")
            except TimeoutExpired:
                process.kill()
                said = f"no answer after {_PATIENCE:.0f} seconds"
    finally:
        directory.remove()
    if process.returncode != 0:
        last = said.strip().rpartition("\n")[2]
        what = f"under this policy, the kernel's program {' '.join(command)!r} ends with status {process.returncode}"
        remedy = f"ipykernel must be installed for {program}, readable, and within the limits"
        raise UnavailableError(Reason(f"{what}: {last}", remedy))
