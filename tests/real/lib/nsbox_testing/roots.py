"""Commands in a root file system, and the control on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

import nsbox
from nsbox import Policy

PYTHON = os.path.realpath(sys.executable)
_LEFT_OUT = {"site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo"}
TOOLS = ["sh", "env", "cat", "ls", "id", *(["ps"] if shutil.which("ps") else [])]


def stdlib() -> list[str]:
    """Return the directories and files of the standard library, without what tests have no use for."""
    places = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix})}
    return [
        f"{place}/{name}"
        for place in sorted(places)
        for name in sorted(os.listdir(place))
        if name not in _LEFT_OUT and not name.startswith("config-")
    ]


def sh(policy: Policy | None, script: str, **options: Any) -> str:
    """Run a script; return what it has printed, errors included. Without a policy: the control, on this machine."""
    runs = nsbox.run if policy is not None else subprocess.run
    given = {"policy": policy} if policy is not None else {}
    done = runs(  # type: ignore[operator]
        ["/bin/sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **given, **options
    )
    return str(done.stdout)


def py(policy: Policy | None, code: str, *arguments: str) -> Any:
    """Run Python code; return what it passes to report(). attempt() in it returns an errno, 0 for none."""
    prelude = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def report(value): print(json.dumps(value))
def attempt(function, *arguments):
    try: function(*arguments)
    except OSError as error: return error.errno
    return 0
def reach(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s: s.connect(address)
"""
    command = [PYTHON, "-I", "-S", "-c", prelude + code, *arguments]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, **options) if policy is None else nsbox.run(command, policy=policy, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
