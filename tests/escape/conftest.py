"""Fixtures for attempts to get out: the host's side of each attempt is a tree that must not change."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "network" / "lib"))

from nsbox_client import Client, client_in
from nsbox_testing.running import python

import nsbox
from nsbox import Filter, Policy, Sandbox, Transaction


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """Return all that is below root: kinds, modes, owners, contents, link targets and times of change."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files, "."):
            path = os.path.join(directory, name)
            st = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else None
            if os.path.isfile(path) and not os.path.islink(path):
                content = Path(path).read_bytes() if os.access(path, os.R_OK) else "unreadable"
            found[os.path.relpath(path, root)] = (
                oct(st.st_mode),
                st.st_uid,
                st.st_gid,
                st.st_nlink,
                st.st_mtime_ns,
                content,
            )
    return found


@pytest.fixture(params=["default", "off"])
def policy(request: pytest.FixtureRequest, workspace: Path) -> nsbox.Policy:
    """The default policy, and the same without its seccomp profile: no other layer leans on that one."""
    return nsbox.Policy.workspace(workspace, seccomp=request.param)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of the host beside the workspace, with a secret in it, that is compared before and after the test."""
    path = tmp_path / "victim"
    path.mkdir()
    (path / "secret").write_text("the host's own")
    (path / "sub").mkdir()
    return path


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Run Python on a host that has an internet of its own (tests/network/host.py); return the lines of its output."""
    return client_in(tmp_path)


@pytest.fixture
def untouched(victim: Path) -> Any:
    """Fail if the victim is not exactly what it was."""
    before = snapshot(victim)
    yield
    assert snapshot(victim) == before


@pytest.fixture
def attempt(policy: nsbox.Policy) -> Callable[..., Any]:
    """Run Python code in a sandbox; returns what it passes to report(), by JSON. attempt() and call() in it return errnos."""
    default = policy
    prelude = """
import ctypes, errno, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def report(x): os.write(1, json.dumps(x).encode())
def attempt(f, *args):
    try: f(*args)
    except OSError as e: return e.errno
    return 0
def call(name, *args):
    converted = [ctypes.c_char_p(os.fsencode(a)) if isinstance(a, str) else a if not isinstance(a, int) else ctypes.c_ulong(a) for a in args]
    return ctypes.get_errno() if getattr(libc, name)(*converted) < 0 else 0
def syscall(number, *args): return call("syscall", number, *args)
"""

    def run(code: str, *args: str, policy: nsbox.Policy = default, **options: Any) -> Any:
        done = nsbox.run(python(prelude + code, *args), policy=policy, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# ---- transactions


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A workspace, and links by which another directory is reached."""
    for name in ("ws", "cache/deep", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cache/deep/out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in").symlink_to(tmp_path / "cache")
    (tmp_path / "far").symlink_to("cache/deep/../deep/out")
    return tmp_path


@pytest.fixture
def tx(policy: Policy, workspace: Path, tmp_path: Path) -> Iterator[Transaction]:
    """A transaction whose commands may change modes, on a workspace with something in it."""
    (workspace / "tool").write_text("tool\n")
    (workspace / "tool").chmod(0o755)
    (workspace / "settings").write_text("settings\n")
    (workspace / "settings").chmod(0o644)
    (workspace / "d").mkdir(mode=0o755)
    is_off = policy.filter.base == "off"
    allowed = policy if is_off else policy.with_(seccomp=Filter(allow=("fchmodat",)))  # else no bits are set at all
    with Sandbox(allowed, stock=0) as box, box.transaction(dir=tmp_path / "kept") as made:
        yield made
