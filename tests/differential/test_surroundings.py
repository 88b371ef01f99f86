"""The same shell script with nsbox's bwrap and with the system's: what their clients and users see around a command.

Sources by descriptors, environment, capabilities over namespaces, signals, and what is said about what can't be made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from nsbox_differential.arena import BWRAP
from nsbox_testing import needs

from nsbox._bwrap.install import install

pytestmark = needs.programs("bwrap")

# In each, $B is the program, and the current directory an empty one. {T}: all of the host, with an empty /tmp.
T = "--ro-bind / / --tmpfs /tmp"
SCRIPTS = {
    # what a source leads to, it leads to for who says it
    "a file by its descriptor": f"$B {T} --ro-bind /proc/self/fd/3 /tmp/x cat /tmp/x 3</etc/passwd | head -2",
    "a directory by its descriptor": f"$B {T} --bind /dev/fd/3 /tmp/x ls /tmp/x 3</usr/share",
    "stdin": f"$B {T} --ro-bind /dev/stdin /tmp/x head -2 /tmp/x </etc/passwd",
    "an optional one": f"$B {T} --ro-bind-try /dev/fd/3 /tmp/x head -2 /tmp/x 3</etc/passwd",
    "a link to a descriptor": f"ln -s /proc/self/fd/3 link; $B {T} --ro-bind link /tmp/x head -2 /tmp/x 3</etc/passwd",
    "a pipe": f"true | $B {T} --ro-bind /dev/stdin /tmp/x cat /tmp/x",
    "a deleted file": f"echo a >f; exec 3<f; rm f; $B {T} --ro-bind /dev/fd/3 /tmp/x cat /tmp/x",
    "a relative one that isn't there": f"$B {T} --ro-bind nosuch /tmp/x true; $B {T} --bind a/../b /tmp/x true",
    # the environment, except for what only one interpreter adds
    "no LANG": "env -u LANG -u LC_ALL $B --ro-bind / / env",
    "LANG=C": "env -u LC_ALL LANG=C $B --ro-bind / / env",
    "LC_CTYPE=POSIX": "env -u LC_ALL -u LANG LC_CTYPE=POSIX $B --ro-bind / / env",
    "LC_CTYPE=C.UTF-8": "env -u LC_ALL -u LANG LC_CTYPE=C.UTF-8 $B --ro-bind / / env",
    # power over namespaces of its own
    "an interface": "$B --dev-bind / / --unshare-user --unshare-net --cap-add CAP_NET_ADMIN"
    " sh -c 'ip link add d0 type dummy; ip -o link | cut -d: -f2; wc -l </proc/1/net/dev'",
    "an interface, own pids": "$B --dev-bind / / --unshare-all --uid 0 --cap-add CAP_NET_ADMIN --proc /proc"
    " sh -c 'ip link add d0 type dummy; ip -o link | cut -d: -f2; wc -l </proc/1/net/dev'",
    "a low port": "$B --dev-bind / / --unshare-user --unshare-net --cap-add CAP_NET_BIND_SERVICE python3 -c '"
    'import socket; s = socket.socket(); s.bind(("127.0.0.1", 80)); print(s.getsockname())\'',
    "a host name": "$B --dev-bind / / --unshare-all --uid 0 --hostname first --cap-add CAP_SYS_ADMIN"
    " sh -c 'hostname; hostname second; hostname'",
    "none of that": "$B --dev-bind / / --unshare-all --cap-drop ALL"
    " sh -c 'ip link add d0 type dummy; hostname second; uname -n' 2>&1 | head -1 | grep -c .",
    "a blocked SIGCHLD": 'python3 -c "import os, signal; signal.pthread_sigmask(0, [signal.SIGCHLD, signal.SIGUSR1]);'
    " os.execlp('sh', 'sh', '-c', '$B --ro-bind / / grep SigBlk /proc/self/status')\"",
    # what is said
    "a mode": f"$B {T} --chmod 0711 /tmp/x true; $B {T} --chmod 0 /tmp/x true",
    "not into a read-only one": "\n".join(
        f"$B --ro-bind / / --unshare-ipc {option} true 3</dev/null"
        for option in (
            *("--bind /etc /usr/no/x", "--bind /etc /usr/no", "--bind /etc/passwd /usr/no", "--dir /usr/no"),
            *("--file 3 /usr/no", "--symlink a /usr/no", "--tmpfs /usr/no", "--proc /usr/no", "--dev /usr/no"),
            *("--bind-data 3 /usr/no", "--mqueue /usr/no", "--dir /usr/no/x", "--symlink a /usr/no/x"),
        )
    ),
    "not below a file": "\n".join(
        f"$B {T} --file 3 /tmp/f {option} true 3</dev/null"
        for option in ("--bind /etc /tmp/f/x", "--dir /tmp/f", "--tmpfs /tmp/f", "--symlink a /tmp/f/x")
    ),
    "not over a directory": f"$B {T} --dir /tmp/d --file 3 /tmp/d true 3</dev/null",
    "contents of what can't be read": "\n".join(
        f"$B {T} {option} true" for option in ("--file 9 /tmp/f", "--file 3 /tmp/f 3</usr", "--bind-data 3 /tmp/f 3>f")
    ),
    "contents read twice": f"$B {T} --file 3 /tmp/f --file 3 /tmp/g true 3</etc/passwd",
    "what is mounted": f"$B {T} --unshare-all --dev /dev --proc /proc --mqueue /dev/mqueue"
    " sed -n 's/.* - //; s/ rw.*//; / \\/dev\\/\\|overlay/d; /^\\(tmpfs\\|proc\\|devpts\\|mqueue\\) /p' /proc/self/mountinfo"
    " | sort -u",
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the executable that --install makes."""
    return install(str(tmp_path_factory.mktemp("bin")))


def seen(program: str, script: str, place: Path) -> tuple[int, str, str]:
    """Return the status, output and errors of a script in an empty directory."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": "/", "B": program, "PWD": str(place)}
    done = subprocess.run(["bash", "-c", script], cwd=place, env=env, capture_output=True, timeout=50)
    texts = [text.decode(errors="surrogateescape").replace(program, "bwrap") for text in (done.stdout, done.stderr)]
    return done.returncode, *texts


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_the_same(ours: str, tmp_path: Path, script: str) -> None:
    """Status, output and errors are those of the system's bwrap."""
    assert seen(ours, script, tmp_path / "here") == seen(str(BWRAP), script, tmp_path / "here")


@pytest.mark.parametrize("ids", [(), ("--uid", "0"), ("--uid", "7", "--gid", "7")], ids=["", "uid 0", "uid 7"])
def test_maps_by_somebody_else(ours: str, ids: tuple[str, ...]) -> None:
    """With --userns-block-fd the command has the ids that it had, whatever --uid says and the maps call them."""
    assert mapped(ours, ids) == mapped(str(BWRAP), ids)


def mapped(program: str, ids: tuple[str, ...]) -> str:
    """Return what the command is to itself, when its own id was mapped to 0."""
    read, info = os.pipe()
    block, go = os.pipe()
    wanted = ("--unshare-user", "--userns-block-fd", str(block), "--info-fd", str(info), *ids)
    command = [program, *wanted, "--dev-bind", "/", "/", "sh", "-c", "id -u; id -g; cat /proc/self/uid_map"]
    with subprocess.Popen(command, pass_fds=(info, block), stdout=subprocess.PIPE, text=True) as process:
        os.close(info)
        os.close(block)
        with open(read, encoding="ascii") as file:
            pid = json.load(file)["child-pid"]
        for name, own in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
            if name == "gid_map" and own:
                Path(f"/proc/{pid}/setgroups").write_text("deny")
            Path(f"/proc/{pid}/{name}").write_text(f"0 {own} 1")
        os.write(go, b"1")
        os.close(go)
        assert process.stdout is not None
        return process.stdout.read()
