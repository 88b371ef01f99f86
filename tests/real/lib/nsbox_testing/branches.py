"""Interpreters that make branches, for tests: a policy's, with a driver program that runs a test's code in it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nsbox
from nsbox import _backends
from nsbox._base.descriptors import sealed
from nsbox._base.frozen import replace
from nsbox._core import linux
from nsbox._core.command import Result
from nsbox._core.request import Blob, request_for
from nsbox._interpreter.mounts.layers import Layers, overlaid_of
from nsbox._interpreter.mounts.overlay import Overlaid
from nsbox._interpreter.plan import BranchPlans, nested, plans
from nsbox._lookup.host import host_for
from nsbox._plan.capabilities import Capabilities
from nsbox._spawn.prepare import Prepared, prepare
from nsbox._spawn.start import Start, spawn
from nsbox._spawn.way import Keeper, Way

LOOK = """
def status():
    with open("/proc/self/status") as file:
        return dict(line.rstrip("\\n").split(":\\t", 1) for line in file if ":\\t" in line)

def tries(function):
    try:
        function()
    except OSError as error:
        return error.errno
    return 0

def processes():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
"""
"""What the code in branches may call to look at itself, to be put before it."""

DRIVER = (Path(__file__).parent / "branch_driver.py").read_text()


class _InterpreterWay(Way):
    def __init__(self, policy: nsbox.Policy, prepared: Prepared) -> None:
        super().__init__(policy, None)
        self.prepared = prepared

    def spawn(self, start: Start) -> Result:
        return spawn(start.by(self.prepared))


class _Interpreter(Keeper):
    def __init__(self, way: Way) -> None:
        self._way = way

    def _open_way(self) -> Way:
        return self._way


def plans_of(policy: nsbox.Policy, overlaid: Overlaid | None = None) -> BranchPlans:
    """Return the plans of a policy's interpreter and branches, on this machine."""
    host = host_for(policy)
    prepared = prepare(policy, host)
    other = nested(policy)
    return plans(prepared.plan, prepared.ops, _backends.compile_policy(other, host_for(other)).programs, overlaid)


def layers_of(policy: nsbox.Policy) -> tuple[Overlaid, Layers]:
    """Return which directories of a policy are overlaid in branches, and what makes the overlays."""
    host = host_for(policy)
    prepared = prepare(policy, host)
    overlaid = overlaid_of(prepared)
    size = policy.tmp_size if isinstance(policy.tmp_size, int) else None
    return overlaid, Layers(prepared, host, overlaid.places, size)


def keeper(policy: nsbox.Policy, made: BranchPlans) -> Keeper:
    """Return what starts a policy's interpreter, as Popen's policy."""
    prepared = prepare(policy, host_for(policy))
    request = request_for(made.interpreter, made.steps)
    ready = replace(prepared, plan=made.interpreter, ops=made.steps, request=request)
    return _Interpreter(_InterpreterWay(policy, ready))


@contextlib.contextmanager
def descriptors(made: BranchPlans) -> Iterator[dict[str, Any]]:
    """Yield what the driver needs: the library, the image of pid 1, the request."""
    identity = made.branch.identity
    blob = Blob(request_for(made.branch, made.renewed), identity.uid, identity.gid)
    contents = {
        "library": (linux.branch_library(), 0o555),
        "image": (linux.init_image(), 0o111),
        "blob": (bytes(blob.data), 0o444),
    }
    fds: dict[str, Any] = {}
    try:
        for name, (content, mode) in contents.items():
            fds[name] = sealed(name, content, mode)
        yield {**fds, "pointers": blob.pointers}
    finally:
        for fd in fds.values():
            os.close(fd)


@contextlib.contextmanager
def interpreter(
    policy: nsbox.Policy,
    code: str,
    *,
    start: bool = True,
    python: Sequence[str] = (sys.executable,),
    pass_fds: Sequence[int] = (),
    more_capabilities: int = 0,
    overlaid: Overlaid | None = None,
    **options: Any,
) -> Iterator[nsbox.Popen[str]]:
    """Yield a running interpreter with this code, whose output is a pipe.

    start: in a pid namespace of its own.
    more_capabilities: bits of what it has besides.
    overlaid: as from layers_of().
    """
    made = plans_of(policy, overlaid)
    own = made.interpreter.capabilities
    assert own is not None
    mask = own.permitted | more_capabilities
    made = replace(made, interpreter=replace(made.interpreter, capabilities=Capabilities(mask, mask, mask)))
    with descriptors(made) as config:
        config = {**config, "code": textwrap.dedent(code), "start": start}
        fds = [config[name] for name in ("library", "image", "blob")]
        with nsbox.Popen(
            [*python, "-I", "-c", DRIVER, json.dumps(config)],
            policy=keeper(policy, made),
            pass_fds=[*fds, *pass_fds],
            stdout=-1,
            stderr=-1,
            text=True,
            **options,
        ) as process:
            yield process


def run(policy: nsbox.Policy, code: str, **options: Any) -> Any:
    """Run a test's code in an interpreter of this policy; return its `result`."""
    with interpreter(policy, code, **options) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == "", errors
    return json.loads(output.splitlines()[-1])
