"""After nsbox.install(), outside of confined(): subprocess is what it was. Each test runs twice, once without install().

See test_confine.py for what is contained.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PRELUDE = """
import asyncio, json, os, signal, subprocess, sys, warnings
Original = subprocess.Popen
import nsbox
if sys.argv[1] == "installed":
    with nsbox.confined(nsbox.Policy.workspace(".")):
        pass  # which installs, and leaves no trace of the block
    assert subprocess.Popen is not Original
seen = []
def note(*values):
    seen.extend(values)
"""

CASES = {
    "what it is": """
with subprocess.Popen(["sh", "-c", "exit 3"]) as p:
    note(type(p).__name__, isinstance(p, subprocess.Popen), isinstance(p, Original), repr(p), p.args)
note(repr(p), p.returncode, str(p), p.stdin, p.universal_newlines, p.pid > 0)
note(repr(subprocess.Popen[bytes]).rpartition(".")[2], subprocess.Popen.__name__, callable(p.__class__))
""",
    "wait and poll": """
p = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
note(p.poll(), p.returncode)
p.stdin.close()
note(p.wait(), p.wait(timeout=0), p.poll(), p.returncode)
p = subprocess.Popen(["true"])
note(os.waitpid(p.pid, 0)[1], p.poll(), p.wait(), p.returncode)  # other code has reaped it
p = subprocess.Popen(["false"])
note(p.wait(timeout=1000))
""",
    "signals": """
for end in ("terminate", "kill"):
    p = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    getattr(p, end)()
    note(p.wait(), repr(p), p.terminate(), p.send_signal(signal.SIGUSR1), p.kill())
    p.stdin.close()
p = subprocess.Popen(["sh", "-c", "trap 'echo got; exit 4' USR1; echo on; while :; do read x; done"],
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
note(p.stdout.readline())
p.send_signal(signal.SIGUSR1)
note(p.communicate()[0], p.returncode)
""",
    "context manager": """
with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
    p.stdin.write(b"hello")
note(p.stdin.closed, p.stdout.closed, p.returncode)
try:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as p:
        raise KeyError("within")
except KeyError as error:
    note(repr(error), p.returncode)
""",
    "timeouts": """
p = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for wait in (lambda: p.wait(timeout=0.001), lambda: p.wait(timeout=0), lambda: p.communicate(timeout=0.001)):
    try:
        wait()
    except subprocess.TimeoutExpired as error:
        note(str(error), error.cmd, error.timeout, error.output, p.returncode)
p.kill()
note(p.communicate(), p.returncode)
try:
    subprocess.run(["sleep", "1000"], timeout=0.001, capture_output=True)
except subprocess.TimeoutExpired as error:
    note(str(error), error.stdout)
""",
    "functions": """
note(str(subprocess.run(["sh", "-c", "echo out; echo err >&2; exit 2"], capture_output=True, text=True)))
note(subprocess.call("exit 5", shell=True), subprocess.check_output(["cat"], input=b"in").decode())
note(subprocess.getstatusoutput("echo hello; exit 6"), os.popen("cat", "w").close(), subprocess.check_call(["true"]))
try:
    subprocess.check_call(["false"])
except subprocess.CalledProcessError as error:
    note(str(error), error.cmd)
""",
    "failed starts": """
for wrong in (dict(args=["/nowhere/nothing"]), dict(args=["true"], cwd="/nowhere"), dict(args=["a\\0b"]),
              dict(args=["/etc"]), dict(args=[]), dict(args=["true"], pass_fds=(-1,)), dict(args=["true"], nonsense=1),
              dict(args=["true"], preexec_fn=lambda: 1 / 0), dict(args=["true"], bufsize="x")):
    try:
        subprocess.Popen(**wrong)
    except Exception as error:
        note(type(error).__name__, getattr(error, "filename", None), getattr(error, "errno", None))
""",
    "descriptors and environment": """
before = sorted(os.listdir("/proc/self/fd"))
read, write = os.pipe()
os.environ["MARK"] = "here"
note(subprocess.check_output(["sh", "-c", f"echo $MARK; echo x >&{write}; pwd; umask"],
                             pass_fds=[write], cwd="/", umask=0o27).decode())
note(os.read(read, 10).decode(), subprocess.check_output(["env"], env={"A": "b"}).decode())
os.close(read)
os.close(write)
note(sorted(os.listdir("/proc/self/fd")) == before)
""",
    "its process": """
status = subprocess.check_output(["cat", "/proc/self/status"]).decode().splitlines()
facts = dict(line.split(":", 1) for line in status)
note(facts["PPid"].strip() == str(os.getpid()), len(facts["NSpid"].split()))
note(*(facts[name] for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd", "SigBlk", "SigIgn", "Groups")))
p = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
note(os.getpgid(p.pid) == os.getpgid(0), os.getsid(p.pid) == os.getsid(0))
note(*(os.readlink(f"/proc/{p.pid}/ns/{name}") for name in ("mnt", "pid", "net", "user", "ipc", "uts")))
p.communicate()
""",
    "audit events": """
events = []
sys.addaudithook(lambda name, args: name.startswith(("subprocess", "os.")) and events.append([name, repr(args)]))
subprocess.run(["true"], cwd="/", env={"A": "b"})
subprocess.run("true", shell=True)
subprocess.run(["/bin/true"], close_fds=False)
note(*events)
""",
    "a forgotten one": """
import gc
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    p = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    pid, end = p.pid, p.stdin
    del p
    gc.collect()
note([str(one.message).replace(str(pid), "PID") for one in caught], len(subprocess._active))
end.close()
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
subprocess._cleanup()
note(len(subprocess._active))
""",
    "calls": """
calls = set()
def profile(frame, event, function):
    if event == "c_call" and function.__name__ in (
        "waitpid", "wait4", "waitid", "pidfd_open", "kill", "pidfd_send_signal", "poll", "select", "sleep"
    ):
        calls.add(function.__name__)

def called(function, *arguments):
    calls.clear()
    sys.setprofile(profile)
    try:
        function(*arguments)
    except subprocess.TimeoutExpired:
        pass
    finally:
        sys.setprofile(None)
    return sorted(calls)

p = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
note(called(p.poll), called(p.wait, 0.001), called(p.send_signal, signal.SIGTERM))
note(called(p.wait), called(p.poll), called(p.kill))
p.stdin.close()
""",
    "asyncio": """
async def main():
    p = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    note((await p.communicate(b"hello"))[0].decode(), p.returncode)
    p = await asyncio.create_subprocess_shell("exit 7")
    note(await p.wait())
    p = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    p.kill()
    note(await p.wait())
asyncio.run(main())
""",
}


def seen(case: str, how: str, directory: Path) -> Any:
    """Run a case in a Python of its own; return what it has noted."""
    code = PRELUDE + CASES[case] + "print(json.dumps(seen, default=repr))\n"
    command = [sys.executable, "-c", code, how]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_as_it_was(case: str, workspace: Path) -> None:
    """With install() and without it a program sees the same."""
    plain = seen(case, "plain", workspace)
    assert plain and seen(case, "installed", workspace) == plain
