"""Makes kernelspecs of contained kernels."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from nsbox import Policy
from nsbox.integrations.jupyter.policies import PROVISIONER, Options
from nsbox.integrations.jupyter.trial import try_start


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
    check: bool = True,
) -> str:
    """Install a kernel that runs in a sandbox; return the directory with its kernel.json.

    name: of the kernel, as `jupyter kernelspec list` shows it.
    policy, section, workspace: as for SandboxProvisioner. A wrong policy is an error here.
    display_name: what menus show. Default: "NAME (nsbox)".
    base: the name of an installed kernel, of which to make a contained one. Default: ipykernel in this interpreter.
    user: whether to install it for this user alone, instead of for the system.
    prefix: where to install it, such as sys.prefix.
    check: whether to try here that the kernel can start. False: it is meant for another machine. Default: true.

    Raises UnavailableError if this machine can't grant the policy; PolicyError, ValueError, OSError and, without such a
    base, jupyter_client's NoSuchKernel.
    """
    specs = KernelSpecManager()
    options = Options(
        policy="" if policy is None else os.path.abspath(policy),
        section=section or "",
        workspace="" if workspace is None else os.path.abspath(workspace),
    )
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec: dict[str, Any] = {"argv": argv, "display_name": f"{name} (nsbox)", "language": "python", "metadata": {}}
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as notebooks:
        resources = directory
        if base is not None:
            found = specs.get_kernel_spec(base)
            shutil.copytree(found.resource_dir, directory, dirs_exist_ok=True)
            spec = {**found.to_dict(), "display_name": f"{found.display_name} (nsbox)"}
            spec["interrupt_mode"] = found.interrupt_mode
            resources = found.resource_dir
        spec["display_name"] = display_name or spec["display_name"]
        spec["metadata"] = {
            **spec["metadata"],
            "kernel_provisioner": {
                "provisioner_name": PROVISIONER,
                "config": {key: value for key, value in asdict(options).items() if value},
            },
        }
        if check:
            start = options.policy_in(notebooks).workdir or notebooks
            try_start(KernelSpec(resource_dir=resources, **spec), start)
        elif policy is not None:
            Policy.load(options.policy, section=section, workspace=workspace or notebooks)
        Path(directory, "kernel.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        os.chmod(directory, 0o755)
        where = None if prefix is None else os.path.abspath(prefix)
        return str(specs.install_kernel_spec(directory, kernel_name=name, user=user, prefix=where))
