"""SandboxBackend: sandboxes of nsbox's for Ray's sandbox library."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.experimental.sandbox.backend.base import BaseSandboxBackend, ExecResult, SandboxStatus
from ray.experimental.sandbox.exceptions import (
    SandboxCreationError,
    SandboxError,
    SandboxExecError,
    SandboxNotFoundError,
    SandboxTimeoutError,
)

import nsbox
from nsbox.integrations._policies import check
from nsbox.integrations._status import shell_status
from nsbox.integrations.ray.place import Place

if TYPE_CHECKING:
    from ray.experimental.sandbox.config import SandboxConfig

    from nsbox.integrations._policies import Policies

IMAGE = "host"
_OUTPUT = "16M"
_MOST_FILE = 256 << 20  # bytes


class _Instance:
    """A sandbox of the backend: a task, and what it needs."""

    def __init__(self, policy: Policies | None, config: SandboxConfig) -> None:
        self.config = config
        asked = nsbox.Policy.workspace if policy is None else policy
        with Place(asked, lambda made: _configured(made, config)) as self._place:
            self.task = self._place.box.task()
            if config.workdir is not None:
                self.task.exec("mkdir", ["-p", "--", config.workdir], check=True)

    def close(self) -> None:
        self.task.close()
        self._place.close()


def _configured(policy: nsbox.Policy, config: SandboxConfig) -> nsbox.Policy:
    """Return the policy with a configuration's network and limits. Raises ValueError for what nsbox doesn't have."""
    from ray.experimental.sandbox.config import parse_memory_bytes

    if config.image != IMAGE:
        raise ValueError(f"image is {config.image!r}: nsbox has no images, only {IMAGE!r}, the node itself")
    if config.network not in ("none", "host"):
        raise ValueError(f"network is {config.network!r}: nsbox has 'none' and 'host'; a list of hosts is the policy's")
    if config.capabilities:
        raise ValueError("capabilities must be empty: nsbox's commands have none")
    changed: dict[str, Any] = {}
    memory = parse_memory_bytes(config.memory)
    if memory:
        changed["total_memory"] = memory
    if config.cpu:
        changed["cpus"] = config.cpu
    limits = dataclasses.replace(policy.limits, **changed) if changed else policy.limits
    network = "host" if config.network == "host" else policy.network
    return policy.with_(limits=limits, network=network)


class SandboxBackend(BaseSandboxBackend):  # type: ignore[misc,unused-ignore]
    """A backend for Ray's sandbox library (alpha): each sandbox is a nsbox.Task, ready in milliseconds.

    policy: a Policy, or a function that gets an empty directory and returns one. Default: Policy.workspace.

    Commands see the node's own programs. They may write wherever permissions allow; what they write stays until the
    sandbox is deleted, and the node isn't changed. There are no images: SandboxConfig.image is "host".
    SandboxConfig's cpu and memory are a cgroup's; where there is none, SandboxCreationError says what is missing.
    """

    def __init__(self, policy: Policies | None = None) -> None:
        super().__init__(image_manager=_NoImages())
        if policy is not None:
            check(policy)
        self._policy = policy
        self._instances: dict[str, _Instance] = {}
        self._lock = threading.Lock()

    def create_sandbox(self, config: SandboxConfig) -> str:
        """Begin a sandbox; return its id. Raises SandboxCreationError."""
        try:
            instance = _Instance(self._policy, config)
        except (nsbox.NsboxError, OSError, TypeError, ValueError, nsbox.CalledProcessError) as error:
            raise SandboxCreationError(str(error)) from error
        name = f"nsbox-{uuid.uuid4().hex[:12]}"
        with self._lock:
            self._instances[name] = instance
        return name

    def delete_sandbox(self, sandbox_id: str) -> None:
        """End a sandbox, and all that runs in it. Raises SandboxNotFoundError."""
        with self._lock:
            instance = self._instances.pop(sandbox_id, None)
        if instance is None:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id!r}")
        instance.close()

    def _instance(self, sandbox_id: str) -> _Instance:
        instance = self._instances.get(sandbox_id)
        if instance is None:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id!r}")
        return instance

    def exec_command(
        self,
        sandbox_id: str,
        command: str | list[str],
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        shell: str | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Run a command; return its status (128+N after signal N) and output.

        user: a uid, a name that the sandbox has, or either with ":gid". A user other than the task's own needs root,
            and a policy with ids="full".

        Raises SandboxTimeoutError, SandboxExecError and SandboxNotFoundError.
        """
        instance = self._instance(sandbox_id)
        config = instance.config
        words = [shell or config.shell, "-c", command] if isinstance(command, str) else list(command)
        options: dict[str, Any] = {"cwd": cwd or config.workdir, "env": {**config.env, **(env or {})}}
        try:
            done = instance.task.exec(
                words[0], words[1:], timeout=timeout, max_output=_OUTPUT, **options, **_identity(instance.task, user)
            )
        except (nsbox.NsboxError, OSError, TypeError, ValueError, LookupError) as error:
            raise SandboxExecError(str(error)) from error
        if done.timed_out:
            raise SandboxTimeoutError(f"the command took longer than {timeout:g} seconds and was ended")
        return ExecResult(shell_status(done.returncode), done.stdout, done.stderr, done.duration)

    def write_file(self, sandbox_id: str, path: str, content: str | bytes, append: bool = False) -> None:
        """Write a file, with the directories above it. Raises SandboxError."""
        task = self._instance(sandbox_id).task
        try:
            (task.append if append else task.write)(path, content)
        except (nsbox.NsboxError, OSError) as error:
            raise SandboxError(str(error)) from error

    def read_file(self, sandbox_id: str, path: str) -> bytes:
        """Return what is in a file. Raises SandboxError."""
        task = self._instance(sandbox_id).task
        try:
            with task.open(path, "rb") as file:
                content: bytes = file.read(_MOST_FILE + 1)  # a command may have made a sparse file of any size
        except (nsbox.NsboxError, OSError) as error:
            raise SandboxError(str(error)) from error
        if len(content) > _MOST_FILE:
            raise SandboxError(f"{path} is larger than {_MOST_FILE >> 20} MiB")
        return content

    def get_status(self, sandbox_id: str) -> SandboxStatus:
        """Return RUNNING, or TERMINATED for a sandbox that isn't there any more."""
        return SandboxStatus.RUNNING if sandbox_id in self._instances else SandboxStatus.TERMINATED


def _identity(task: nsbox.Task, user: str | None) -> Mapping[str, Any]:
    """Return the options of a call for Ray's `user`. Raises ValueError for a name that the sandbox doesn't have."""
    if user is None:
        return {}
    name, _, group = user.partition(":")
    if group and not group.isdigit():
        raise ValueError(f"user is {user!r}: the group must be a number")
    if not name.isdigit():
        found = task.exec("id", ["-u", "--", name])
        if found.returncode:
            raise ValueError(f"the sandbox has no user {name!r}")
        name = found.stdout.strip()
    return {"user": int(name), **({"group": int(group)} if group else {})}


class _NoImages:
    """Replaces the store of images that other backends have."""

    def pull_image(self, image: str, timeout_seconds: float = 120.0) -> str:
        """Do nothing for the node's own programs; raise SandboxCreationError for anything else."""
        if image != IMAGE:
            raise SandboxCreationError(f"image is {image!r}: nsbox has no images, only {IMAGE!r}, the node itself")
        return "/"
