"""A container without an engine: unshare(1), mount(8) and setpriv(1) do what an engine does, by the settings of a file.

Namespaces, a read-only root, the file systems that can be written to, the user, no capability, the filter. Images and
AppArmor have no part in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nsbox_testing import engine

_PROFILE: dict[str, Any] = json.loads((Path(__file__).resolve().parents[4] / "deploy/seccomp.json").read_text())
NSBOX = [sys.executable, "-P", "-m", "nsbox"]
# Where engines cover files of /proc, and the runtime's own filter refuses namespaces: see test_containers.py.
MASK = "mount -t tmpfs -o ro none /proc/acpi 2>/dev/null || mount --bind /dev/null /proc/keys\n"
_NEW_NAMESPACES = 0x7E020000
# The capabilities that an engine leaves to root.
_ROOT_HAS = (
    *("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap"),
    *("net_bind_service", "sys_chroot", "kill", "audit_write"),
)
UID, GID = os.geteuid() or 1000, os.getegid() or 1000


def profile(path: Path, *, is_ours: bool) -> Path:
    """Write the filter: ours, or one such as the runtimes' own."""
    rows = _PROFILE["syscalls"]
    if not is_ours:
        mask = [{"index": 0, "value": _NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
        needed = rows[1]["names"]
        rows = [row for row in rows if row["names"] != needed]
        rows = [{"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": mask}, *rows]
    path.write_text(json.dumps({**_PROFILE, "syscalls": rows}))
    return path


def contained(
    seccomp: Path, writable: dict[str, str], *command: str, masks: str = "", is_root: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command as in such a container. Below /mnt are its /work, /tmp and home; the rest can only be read."""
    made = "mount -t tmpfs -o mode=755 none /mnt; mkdir -p /mnt/tmp /mnt/work /mnt/home/nsbox\n"
    for path, options in writable.items():
        made += f"mount -t tmpfs -o nosuid,nodev,noexec,{options} none /mnt{path}\n"
    made += "mount -o remount,bind,ro /mnt; mount -o remount,bind,ro /\n"
    if os.geteuid() == 0:
        new = []
        ids = [] if is_root else [f"--reuid={UID}", f"--regid={GID}", "--clear-groups"]
        kept = [f"--bounding-set=-all,{','.join(f'+{name}' for name in _ROOT_HAS)}"] if is_root else []
    else:
        new, ids, kept = ["--user", "--map-current-user", "--keep-caps"], [], []
    drop = [
        "setpriv",
        *ids,
        "--ambient-caps=-all",
        "--inh-caps=-all",
        *(kept or ["--bounding-set=-all", "--no-new-privs"]),
    ]
    script = f'set -e\n{made}{masks}\ncd /mnt/work\nset +e\n"$@" & wait $!'  # pid 1 reaps
    namespaces = ["--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
    environment = {**os.environ, "HOME": "/mnt/home/nsbox", "TMPDIR": "/mnt/tmp"}
    environment.pop("XDG_STATE_HOME", None)
    line = [
        "unshare",
        *new,
        *namespaces,
        "sh",
        "-c",
        script,
        "sh",
        *drop,
        sys.executable,
        engine.__file__,
        str(seccomp),
    ]
    return subprocess.run([*line, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
