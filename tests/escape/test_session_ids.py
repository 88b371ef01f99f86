"""Sessions with several ids: pid 1 keeps capabilities to give commands their ids. No command may profit from them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.ids import with_all_ids
from nsbox_testing.running import python

import nsbox
from nsbox import Filter, Policy, Rule, Sandbox, Session

USERS: list[dict[str, Any]] = [{}, {"user": 0, "group": 0}, {"user": 33, "group": 34, "extra_groups": [7]}]
KEPT = 1 << 5 | 1 << 6 | 1 << 7 | 1 << 24  # CAP_KILL, SETGID, SETUID, SYS_RESOURCE


@pytest.fixture(params=["default", "off"])
def full(request: pytest.FixtureRequest, workspace: Path) -> Policy:
    """All ids, with the default filter and without it: no other layer leans on that one."""
    return with_all_ids(workspace, seccomp=request.param)


@pytest.fixture(params=["session", "task"])
def s(request: pytest.FixtureRequest, full: Policy, tmp_path: Path) -> Iterator[Session]:
    if request.param == "task" and os.geteuid() != 0:
        with Sandbox(full, stock=0) as box, pytest.raises(nsbox.UnavailableError, match="subordinate ids"):
            box.task(dir=tmp_path / "store")
        pytest.skip("as_root: a task with several ids; that it is refused was checked")
    with (
        Sandbox(full, stock=0) as box,
        box.session() if request.param == "session" else box.task(dir=tmp_path / "store") as made,
    ):
        yield made


def said(s: Session, code: str, *args: str, **options: Any) -> str:
    done = s.run(python(code, *args), capture_output=True, text=True, **options)
    assert done.stderr == ""
    return str(done.stdout)


SETS = """
import sys
for pid in ("self", "1"):
    rows = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    print(*[int(rows[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")], int(rows["NoNewPrivs"]))
"""


@pytest.mark.parametrize("who", USERS, ids=str)
def test_no_capability_in_any_set(s: Session, who: dict[str, Any]) -> None:
    """Not even in the bounding set. Control: pid 1 has those it needs, which no exec can pass on."""
    assert said(s, SETS, **who).splitlines() == ["0 0 0 0 0 1", f"0 {KEPT} {KEPT} 0 0 1"]


BECOME = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
got = []
before = os.getresuid(), os.getresgid(), os.getgroups()
def tried(name, call, *args):
    try: call(*args); got.append(name)
    except OSError: pass
for one in (0, 3, 1000, 65534):
    if one != os.getuid(): tried(f"setresuid {one}", os.setresuid, one, one, one)
    if one != os.getuid(): tried(f"seteuid {one}", os.seteuid, one)
    if one != os.getgid(): tried(f"setresgid {one}", os.setresgid, one, one, one)
    tried(f"setgroups {one}", os.setgroups, [one])
tried("kill 1", os.kill, 1, 0)
if (os.getresuid(), os.getresgid(), os.getgroups()) != before: got.append("changed")
print([name for name in got if name != "kill 1"])
"""


@pytest.mark.parametrize("who", USERS, ids=str)
def test_no_other_id(s: Session, who: dict[str, Any]) -> None:
    """A command keeps the ids that it was started with. Control: pid 1 gives the next command any of them."""
    assert said(s, BECOME, **who) == "[]\n"
    for uid in (0, 3, 1000, 65534):
        assert said(s, "import os; print(os.getresuid())", user=uid) == f"({uid}, {uid}, {uid})\n"


LOOK = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
found = []
for name in ("mem", "environ", "maps", "exe", "root", "cwd", "fd/0", "ns/user", "auxv", "stack"):
    try:
        if name in ("mem", "environ", "maps", "auxv", "stack"):
            if open(f"/proc/{pid}/{name}", "rb").read(1): found.append(name)
        else: os.readlink(f"/proc/{pid}/{name}"); found.append(name)
    except OSError: pass
if libc.ptrace(16, pid, 0, 0) == 0: found.append("attach")  # PTRACE_ATTACH
if libc.ptrace(0x4206, pid, 0, 0) == 0: found.append("seize")
buffer = ctypes.create_string_buffer(8)
row = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
if libc.syscall(310, pid, row, 1, row, 1, 0) > 0: found.append("read")  # process_vm_readv
print(found)
"""


OWN = """
import subprocess
with subprocess.Popen(["sleep", "100"]) as p:
    print(bool(open(f"/proc/{p.pid}/maps").read(1)))
    p.kill()
"""


@pytest.mark.parametrize("who", USERS, ids=str)
def test_pid_1_cant_be_looked_into(s: Session, who: dict[str, Any]) -> None:
    """It isn't dumpable, and has capabilities that the command lacks. Control: a process of the same user can be."""
    assert said(s, LOOK, "1", **who) == "[]\n"
    assert said(s, OWN, **who) == "True\n"


KILL = """
import os, resource
for sig in range(1, 65):
    try: os.kill(1, sig)
    except OSError: pass
try: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))
except OSError: pass
else: print("limited")
print("here")
"""


@pytest.mark.parametrize("who", USERS, ids=str)
def test_pid_1_goes_on(s: Session, who: dict[str, Any]) -> None:
    """No command can end or stop it, whatever its user."""
    assert said(s, KILL, **who) == "here\n"
    assert said(s, "print('next')", user=3) == "next\n"


def test_a_signal_to_another_user(s: Session) -> None:
    """Pid 1 may end commands of all users; the commands themselves may not end each other's. Control: one's own."""
    with s.Popen(["sleep", "1000"], user=3) as process:
        name = "import os, signal\nfor pid in (int(p) for p in os.listdir('/proc') if p.isdigit()):\n"
        name += "    if open(f'/proc/{pid}/comm').read() == 'sleep\\n':\n"
        name += (
            "        try: os.kill(pid, signal.SIGTERM); print('sent')\n        except PermissionError: print('refused')"
        )
        assert said(s, name, user=4) == "refused\n"
        assert process.poll() is None
        assert said(s, name, user=3) == "sent\n"
        assert process.wait() == -15


def test_a_set_user_id_program(s: Session, full: Policy, workspace: Path) -> None:
    """It gains nothing, as in a Sandbox. Control: outside, where its owner is another user, it does."""
    tool = workspace / "tool"
    shutil.copy("/usr/bin/id", tool)
    tool.chmod(0o4755)
    workspace.chmod(0o755)
    for one in (*workspace.parents[:3], workspace):
        if one.stat().st_uid == os.geteuid() and one != Path("/tmp"):
            one.chmod(one.stat().st_mode | 0o055)
    script = ["sh", "-c", "./tool -u; ./tool -ru; grep -c 'Cap.*0000000000000000' /proc/self/status"]
    alone = nsbox.run(script, policy=full, user=3, group=3, capture_output=True, text=True)
    within = s.run(script, user=3, group=3, capture_output=True, text=True)
    assert within.stdout == alone.stdout == "3\n3\n5\n"
    if os.geteuid() == 0:
        outside = subprocess.run([tool, "-u"], user=3, group=3, extra_groups=[], capture_output=True, text=True)
        assert outside.stdout == "0\n"


PRETENCES = ["capset", "capget", "setresuid", "setresgid", "setgroups", "prctl"]


@pytest.mark.parametrize("errno", [0, 1], ids=["pretends", "refuses"])
@pytest.mark.parametrize("call", PRETENCES)
def test_a_filter_that_stands_in_the_way(workspace: Path, call: str, errno: int) -> None:
    """A policy's own filter applies to pid 1 too. Then there is no command, or one with the ids and nothing else.

    Control: a command without that filter.
    """
    code = "rows = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
    code += "print(*[rows[name].strip() for name in ('Uid', 'Gid', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')])"
    for user in (0, 33):
        right = "\t".join([str(user)] * 4) + " " + "\t".join(["34"] * 4) + (" " + "0" * 16) * 5 + "\n"
        for seccomp in (Filter(), Filter(rules=(Rule((call,), errno),))):
            try:
                with Sandbox(with_all_ids(workspace, seccomp=seccomp), stock=0) as box, box.session() as s:
                    assert said(s, code, user=user, group=34, extra_groups=[]) == right
            except nsbox.SetupError:
                assert seccomp.rules
