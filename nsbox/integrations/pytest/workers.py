"""Workers of pytest-xdist, each in a sandbox: the specification that execnet starts them by."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import pytest

from nsbox.integrations.pytest import refusals
from nsbox.integrations.pytest.policy import policy_file, policy_of


def begin(config: pytest.Config) -> None:
    """Set what pytest-xdist starts; raises UsageError if that isn't possible."""
    option, number = config.option, config.option.nsbox_workers
    if not config.pluginmanager.has_plugin("xdist"):
        raise pytest.UsageError("--nsbox-workers needs the plugin pytest-xdist: pip install pytest-xdist")
    if number < 1:
        raise pytest.UsageError(f"--nsbox-workers is {number}, must be 1 or more")
    if option.nsbox:
        raise pytest.UsageError("--nsbox-workers and --nsbox exclude each other: a worker is already in a sandbox")
    if option.usepdb:
        raise pytest.UsageError("--pdb can't be used with --nsbox-workers: a worker has no terminal")
    if hasattr(config, "workerinput"):
        option.nsbox_workers = None
        return
    policy_of(config)  # what is wrong with it is said here, once
    path, section = policy_file(config)
    command = [sys.executable, "-P", "-m", "nsbox", "run", "-w", str(config.rootpath), "--", sys.executable]
    if path is not None:
        table = [] if section is None else ["--section", section]
        command[5:7] = ["--policy", path, "-w", str(config.rootpath), *table]
    if (audit := refusals.audit_file(config)) is not None:
        command[5:5] = ["--audit", audit]
    line = shlex.join(command)
    if "//" in line:
        raise pytest.UsageError(f"--nsbox-workers: execnet can't use a path with //: {line}")
    option.tx, option.numprocesses = [f"{number}*popen//python={line}"], None
    if option.dist == "no":
        option.dist = "load"
    config.pluginmanager.register(_Nodes(audit), "nsbox-workers")


class _Nodes:
    """Tells each worker that it is in a sandbox, and reads in their records what was refused to them."""

    def __init__(self, audit: str | None) -> None:
        self._audit = audit
        self._size = os.path.getsize(audit) if audit is not None and os.path.exists(audit) else 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Mark a worker."""
        node.workerinput["nsbox"] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        """Add what was refused to workers. They have ended."""
        if self._audit is not None:
            refusals.add_records(refusals.of(config), self._audit, self._size)
