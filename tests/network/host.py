"""A host with an internet behind it, as tests/relay has them, and a program on the host that uses nsbox.

Run in a mount, a pid and a net namespace of its own: host.py DIRECTORY < client. The client is Python; it has nsbox, a
workspace `ws`, and `policy(*entries, **wishes)`. Its output is ours. If the directory has one named `served`, the internet
also has the servers of tests/relay/servers.py.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "relay"))

import world as outside  # noqa: E402

PRELUDE = """
import errno, json, os, signal, subprocess, sys, threading, time
import nsbox
ws = sys.argv[1]
def policy(*entries, **wishes):
    return nsbox.Policy.workspace(ws, network=list(entries) if entries else "none", **wishes)
def run(code, policy, **options):
    command = [sys.executable, "-S", "-P", "-c", ASK + code]
    return nsbox.run(command, policy=policy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options).stdout
def relays():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if "(nsbox-net) " in (text := file.read()) and ") Z" not in text:
                    found.append(int(pid))
        except OSError:
            pass
    return found
ASK = '''
import errno, json, os, socket, ssl, sys, threading, time
def ask(host, port, text=b"hi", timeout=5, family=socket.AF_INET):
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as s:
            s.settimeout(timeout)
            s.connect(found[4])
            s.sendall(text)
            return s.recv(1000).decode(errors="replace")
    except socket.gaierror as error:
        return error.errno
    except TimeoutError:
        return "TimeoutError"
    except OSError as error:
        return errno.errorcode[error.errno]
'''
"""


def lay_over(path: str, file: Path, text: str) -> None:
    """Have something else there. Where it is a link to below /run, that is empty here."""
    file.write_text(text)
    target = Path(os.path.realpath(path))
    if target.is_relative_to("/run"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    subprocess.run(["mount", "--bind", file, target], check=True)


def main() -> None:
    """Make the host, and run the client there."""
    directory, is_user = sys.argv[1], os.environ["AS_USER"] == "1"
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    lay_over("/etc/hosts", Path(directory, "hosts"), outside.NAMES)
    lay_over(
        "/etc/resolv.conf", Path(directory, "resolv.conf"), "nameserver 203.0.113.53\noptions timeout:1 attempts:1\n"
    )
    served = f"{directory}/served"
    outside.start_internet("", served if os.path.isdir(served) else "")
    outside.serve("127.0.0.1", 8000, outside.echo)
    outside.serve("0.0.0.0", 8001, outside.echo)
    client = PRELUDE + sys.stdin.read()
    command = [sys.executable, "-u", "-P", "-c", client, f"{directory}/ws"]
    if is_user:
        command = ["unshare", "-U", "--map-user=1000", "--map-group=1000", *command]
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    ended, status = os.wait()
    while ended != started.pid:  # orphans, which are ours: we are pid 1
        ended, status = os.wait()
    os._exit(os.waitstatus_to_exitcode(status))  # all else ends with us


if __name__ == "__main__":
    main()
