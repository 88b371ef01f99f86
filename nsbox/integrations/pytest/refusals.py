"""What sandboxes refused to tests: collected while these run, shown at the end. And the file of records, if any.

Hosts are what the relay outside says, so no test can invent or hide one. Files are what nsbox makes of the text of a
test that failed (nsbox.hints()): a test that catches the error, or prints another, isn't there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import nsbox
from nsbox import Hint, NetworkRecord

_FILES = ("read-only", "outside", "permissions")  # kinds of hints
_MOST = 50  # lines
_MOST_TESTS = 3  # in a line
_MOST_READ = 64 << 20  # bytes of a file of records


class Refusals:
    """What was refused, and the tests that it was refused to: none where these aren't known."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {}

    def add(self, what: str, tests: Iterable[str]) -> None:
        """Add something that was refused to these tests."""
        names = self.tests.setdefault(what if what.isprintable() else ascii(what), [])
        names.extend(name for name in tests if name not in names)

    def add_hints(self, hints: Iterable[Hint], test: str, *, has_list: bool) -> None:
        """Add the files of a failed test's hints; and the network, unless a list's record names the hosts."""
        for hint in hints:
            if hint.kind in _FILES or (hint.kind == "network" and not has_list):
                self.add(hint.message.partition(";")[0], [test])

    def add_network(self, record: NetworkRecord, tests: Iterable[str]) -> None:
        """Add the hosts that a list has refused."""
        names = [*tests]
        for event in record.refusals:
            self.add(_host(event.name or event.sni or event.address, event.port, event.reason), names)

    def update(self, tests: Mapping[str, Iterable[str]]) -> None:
        """Add what a worker has sent."""
        for what, names in tests.items():
            self.add(what, names)

    def lines(self) -> list[str]:
        """Return a line for each thing that was refused."""
        found = []
        for what, names in [*self.tests.items()][:_MOST]:
            more = f" and {len(names) - _MOST_TESTS} more" if len(names) > _MOST_TESTS else ""
            found.append(f"{what}  ({', '.join(names[:_MOST_TESTS])}{more})" if names else what)
        if len(self.tests) > _MOST:
            found.append(f"and {len(self.tests) - _MOST} more")
        return found


def _host(name: str, port: int, reason: str) -> str:
    return f"{name}{f':{port}' if port else ''} is refused: {reason}"


KEY = pytest.StashKey[Refusals]()


def of(config: pytest.Config) -> Refusals:
    """Return what has been refused in this run so far."""
    return config.stash.setdefault(KEY, Refusals())


# ---- the file of records


def audit_file(config: pytest.Config) -> str | None:
    """Return the path of the file for records, None if there is none."""
    if given := config.option.nsbox_audit:
        return os.path.join(str(config.invocation_params.dir), given)
    own = str(config.getini("nsbox_audit") or "")
    return os.path.join(str(config.rootpath), own) if own else None


def begin_audit(config: pytest.Config) -> bool:
    """Have a record written of each sandbox, if that is asked for; say if it is. Raises UsageError."""
    path = audit_file(config)
    if path is None or "nsbox" in getattr(config, "workerinput", ()):  # the sandbox that we are in has its record
        return False
    try:
        nsbox.audit.to_file(path, required=True)
    except OSError as error:
        raise pytest.UsageError(f"--nsbox-audit: {error}") from error
    return True


def add_records(found: Refusals, path: str, start: int) -> None:
    """Add the hosts in the records that a file has got since it had this size."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = file.read(_MOST_READ).splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:  # somebody else is just writing it
            continue
        for host in record.get("network", {}).get("refusals", ()):
            found.add(_host(host["name"] or host["sni"] or host["address"], host["port"], host["reason"]), [])
