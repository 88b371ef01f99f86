"""Tasks among mounts: directories in which something is mounted, and a file system for the task that gets full.

Each test is a program in a mount namespace of its own, in which it may mount.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def ran(tmp_path: Path, code: str) -> str:
    """Run code in a mount namespace of its own; return what it prints."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare (util-linux)")
    options = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]
    if subprocess.run([unshare, *options, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("needs a user namespace in which it may mount")
    begin = "import os, sys, subprocess, nsbox\nat = sys.argv[1]\n"
    begin += "def mount(*args): subprocess.run(['mount', *args], check=True)\n"
    done = subprocess.run(
        [unshare, *options, sys.executable, "-P", "-c", begin + code, tmp_path], capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout


FULL = """
os.makedirs(f"{at}/work"); os.makedirs(f"{at}/small")
mount("-t", "tmpfs", "-o", "size=2M", "none", f"{at}/small")
os.mkdir(f"{at}/small/store", 0o700)
with nsbox.Sandbox(nsbox.Policy.workspace(f"{at}/work")) as box, box.task(dir=f"{at}/small/store") as task:
    done = task.shell("head -c 4000000 /dev/zero > big")
    print("No space left" in done.stderr, [hint.kind for hint in done.why])
    task.shell("head -c 1500000 /dev/zero > big", check=True)
    try: task.snapshot()
    except OSError as error: print(error.strerror)
    print(len(os.listdir(f"{at}/small/store")), task.shell("stat -c %s big").stdout.strip())
    task.shell("rm big; echo x > x", check=True)
    snapshot = task.snapshot()
    task.shell("echo y > x", check=True)
    task.reset(snapshot)
    task.commit()
print(os.listdir(f"{at}/work"), os.listdir(f"{at}/small/store"))
"""


def test_a_full_file_system(tmp_path: Path) -> None:
    """Commands are told ENOSPC, and why; a copy without room isn't made; with room all goes on."""
    try:
        said = ran(tmp_path, FULL)
    except AssertionError as error:
        if "has no user.* attributes" not in str(error):
            raise
        pytest.skip("tmpfs has no user.* attributes before Linux 6.6")
    assert said.splitlines() == [
        "True ['no-space']",
        "No space left on device",
        "2 1500000",
        "['x'] ['lock']",
    ]


MOUNTED = """
for name in ("work", "shown/inner", "open/inner", "bare"): os.makedirs(f"{at}/{name}")
mount("-t", "tmpfs", "none", f"{at}/shown/inner"); open(f"{at}/shown/inner/x", "w").close()
policy = nsbox.Policy.workspace(f"{at}/work", read=[f"{at}/shown"], write=[f"{at}/open"])
with nsbox.Sandbox(policy) as box, box.task(dir=f"{at}/store") as task:
    print(task.read_only == [f"{at}/shown"], task.shell(f"ls {at}/shown/inner; touch {at}/open/y").stdout.strip())
    done = task.shell(f"touch {at}/shown/new {at}/shown/inner/new")
    print(done.stderr.count("Read-only"), os.listdir(f"{at}/shown/inner"))
mount("-t", "tmpfs", "none", f"{at}/open/inner")
with nsbox.Sandbox(policy) as box:
    try: box.task(dir=f"{at}/store")
    except nsbox.UnavailableError as error: print("is mounted in" in str(error))
"""


def test_directories_with_mounts(tmp_path: Path) -> None:
    """They are read-only, and say so; where commands could write to what is mounted there, there is no task."""
    assert ran(tmp_path, MOUNTED).splitlines() == ["True x", "2 ['x']", "True"]
