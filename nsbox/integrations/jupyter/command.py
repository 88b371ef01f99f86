"""The command `python -m nsbox.integrations.jupyter`: installs contained kernels, and checks them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from nsbox import Network, NsboxError, Policy, SetupError, UnavailableError
from nsbox.integrations.jupyter.install import install
from nsbox.integrations.jupyter.policies import PROVISIONER, Options
from nsbox.integrations.jupyter.trial import try_start

_PROGRAM = "nsbox.integrations.jupyter"


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = vars(_parser().parse_args(argv))
    name, work = options.pop("name"), options.pop("work")
    try:
        if work == "check":
            _check(name, os.path.realpath(options["directory"]))
        else:
            print(f"installed in {install(name, **options)}")
    except (NsboxError, NoSuchKernel, OSError, ValueError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        if work == "install" and isinstance(error, UnavailableError | SetupError):
            print(f"{_PROGRAM}: `nsbox doctor` says what this machine can do", file=sys.stderr)
            print(f"{_PROGRAM}: to install the kernel for another machine, add --no-check", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {_PROGRAM}")
    commands = parser.add_subparsers(required=True, dest="work")
    one = commands.add_parser("install", help="install a kernel that runs in a sandbox")
    one.add_argument("--name", required=True, help="the kernel's name, as `jupyter kernelspec list` shows it")
    one.add_argument("--policy", metavar="FILE", help="default: the notebook's directory is writable, no network")
    one.add_argument("--section", metavar="TABLE", help="the table of that file, such as tool.nsbox")
    one.add_argument("--workspace", metavar="DIR", help="the writable directory; default: the notebook's")
    one.add_argument("--display-name", metavar="TEXT", help="what menus show; default: NAME (nsbox)")
    one.add_argument("--base", metavar="NAME", help="make a contained kernel of this one; default: ipykernel")
    one.add_argument(
        "--no-check",
        action="store_false",
        dest="check",
        help="install it even if it can't start here, because it is for another machine",
    )
    where = one.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user alone")
    where.add_argument("--prefix", metavar="DIR", help="in DIR/share/jupyter/kernels")
    where.add_argument(
        "--sys-prefix", action="store_const", const=sys.prefix, dest="prefix", help="in this environment"
    )
    two = commands.add_parser("check", help="say what an installed kernel may do, and try whether it can start")
    two.add_argument("--name", required=True, help="the kernel's name, as `jupyter kernelspec list` shows it")
    two.add_argument("directory", metavar="DIR", nargs="?", default=".", help="the notebook's directory; default: here")
    return parser


def _check(name: str, directory: str) -> None:
    """Print what a kernel may do with a notebook in a directory; raises what its start raises."""
    spec = KernelSpecManager().get_kernel_spec(name)
    provisioner = spec.metadata.get("kernel_provisioner", {})
    if provisioner.get("provisioner_name") != PROVISIONER:
        raise ValueError(f"{name} isn't contained: {spec.resource_dir}/kernel.json doesn't name nsbox's provisioner")
    options = Options(**provisioner.get("config", {}))
    policy = options.policy_in(directory)
    policy.resolve(directory)  # where the kernel starts
    try_start(spec, directory)
    print(f"{name}: ok")
    for title, values in _rows(options, policy, directory):
        for i, value in enumerate(values or ["-"]):
            print(f"  {'' if i else title:<12}{value if value.isprintable() else repr(value)}")


def _rows(options: Options, policy: Policy, directory: str) -> Iterator[tuple[str, list[str]]]:
    yield "starts in", [directory]
    yield "writable", [*policy.write, "/tmp (its own)"]
    yield "readable", [*policy.read, "system directories"]
    yield "hidden", [*policy.deny]
    yield "network", [*policy.network.allow] if isinstance(policy.network, Network) else [str(policy.network)]
    if options.policy:
        section = ["--section", options.section] if options.section else []
        workspace = options.workspace or directory
        yield "more", [shlex.join(["nsbox", "check", options.policy, *section, "-w", workspace])]
