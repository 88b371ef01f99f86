"""The policy of a kernel: from the options in its kernel.json, with what a contained kernel needs to be reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from nsbox import Policy, PolicyError
from nsbox._calls.environment import environment
from nsbox._paths.user_homes import check_workspace
from nsbox.integrations.jupyter.directories import KernelDirectory
from nsbox.integrations.jupyter.places import guarded

PROVISIONER = "nsbox"


@dataclass(frozen=True)
class Options:
    """What a kernel.json says about its sandbox; see SandboxProvisioner."""

    policy: str = ""
    section: str = ""
    workspace: str = ""

    def policy_in(self, directory: str) -> Policy:
        """Return the policy of a kernel whose notebook is in a directory; raises what Policy.load() raises."""
        workspace = self.workspace or directory
        if os.path.realpath(workspace) == "/":
            problem = "'/' can't be a kernel's directory: it is the whole file system"
            raise PolicyError("workspace", f"{problem}; put the notebook in a project's own directory")
        if not self.policy:
            meant = "write a file with its path in `writable_paths`, and install the kernel with --policy FILE"
            check_workspace(os.path.realpath(workspace), (), instead=meant)
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


def without_dots(program: str) -> str:
    """Return the path of a program without "..", which leads through directories that the sandbox needn't have.

    Python started as `../venv/bin/python` has such a path in sys.executable, and so has the kernel.json that it writes.
    The program's own link stays: it says which virtual environment is meant.
    """
    directory, name = os.path.split(program)
    return os.path.join(os.path.realpath(directory), name) if ".." in directory.split("/") else program


def with_own_programs(policy: Policy, program: str) -> Policy:
    """Return the policy with a PATH in which the programs beside the kernel's own, such as pip, are the first.

    policy: one of reachable().
    program: the kernel's, as in kernel.json. If it is a system's, or if the policy sets PATH, nothing changes.

    Raises what a start under the policy raises.
    """
    own, env = os.path.dirname(program), dict(policy.env)
    if not os.path.isabs(program) or own in os.defpath.split(":") or "PATH" in env:
        return policy
    made = environment(policy, None, env)
    assert made is not None  # a kernel's policy has variables
    directories = made.get("PATH", "").split(":")
    tools = directories[:1] if policy.tools_bin is not None else []
    return policy.with_(env={**env, "PATH": ":".join(dict.fromkeys([*tools, own, *directories]))})
