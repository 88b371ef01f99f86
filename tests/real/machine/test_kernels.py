"""The core on whatever kernel this is: short, since it also runs in slow virtual machines (marker vm)."""

import os
import signal
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Bind, Dev, Limits, Policy, PolicyError, Popen, Proc, RoBind, SetupError, Tmpfs, TmpOverlay

pytestmark = pytest.mark.vm


def output(script: str, policy: Policy) -> str:
    done = nsbox.run(["/bin/sh", "-c", script], policy=policy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


def test_a_workspace_contains(workspace: Path) -> None:
    """A command sees its workspace, a private /tmp, pid 2, no capabilities, and the system read-only."""
    (workspace / "hidden").write_text("secret")
    policy = Policy.workspace(workspace, deny=[workspace / "hidden"])
    script = """
        echo $$; grep -c '^Cap.*0000000000000000' /proc/self/status; grep NoNewPrivs /proc/self/status | cut -f2
        ls -A /tmp | grep -v pytest | wc -l; touch made
        touch /usr/made 2>/dev/null && echo WROTE; touch /made 2>/dev/null && echo WROTE; cat hidden 2>/dev/null
        cat /proc/1/comm; true
    """
    lines = output(script, policy).splitlines()
    assert lines[:3] == ["2", "5", "1"]
    assert lines[-1] == "nsbox-init"
    assert "WROTE" not in lines
    assert "secret" not in lines
    assert (workspace / "made").exists()


def test_network_is_lo_alone(workspace: Path) -> None:
    """Without the network there is lo, and it works."""
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname());"
        "s.accept()[0].sendall(b'x'); print(c.recv(1), [n for _, n in socket.if_nameindex() if n != 'lo'])"
    )
    done = nsbox.run([sys.executable, "-c", script], policy=Policy.workspace(workspace), capture_output=True, text=True)
    assert done.stdout.startswith("b'x'"), done.stderr


def test_everything_ends_with_the_command(workspace: Path) -> None:
    """A process that the command leaves behind is gone when run() returns."""
    output(
        "(exec 9>lock; flock 9; exec sleep 1000) >/dev/null 2>&1 & while ! [ -e lock ]; do :; done",
        Policy.workspace(workspace),
    )
    import fcntl

    with open(workspace / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_signals_and_statuses(workspace: Path) -> None:
    """The command is this process's own child: statuses and signals are those of a plain Popen."""
    policy = Policy.workspace(workspace)
    assert nsbox.run(["/bin/sh", "-c", "exit 7"], policy=policy).returncode == 7
    with Popen(
        ["/bin/sh", "-c", "trap 'echo got; exit 3' TERM; echo ready; while :; do read -r x; done"],
        policy=policy,
        stdin=-1,
        stdout=-1,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        process.stdin.close() if process.stdin else None
        assert process.stdout.read() == b"got\n"
        assert process.wait() == 3
    with Popen(["/bin/cat"], policy=policy, stdin=-1) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_layers(workspace: Path) -> None:
    """Binds, a throw-away overlay, devices, and a root that is the host's, read-only."""
    (workspace / "lower").mkdir()
    (workspace / "lower" / "file").write_text("lower")
    policy = Policy.layers(
        *(RoBind("/", "/"), Dev("/dev"), Proc("/proc"), Tmpfs("/tmp")),
        *(Bind(str(workspace), "/tmp/here"), TmpOverlay((str(workspace / "lower"),), "/tmp/over")),
    )
    script = """
        echo x > /tmp/over/file; cat /tmp/over/file; echo y > /tmp/here/new; echo z > /dev/null; ls /dev/pts
        touch /usr/../x 2>/dev/null || echo refused
    """
    assert output(script, policy).split() == ["x", "ptmx", "refused"]
    assert (workspace / "lower" / "file").read_text() == "lower"
    assert (workspace / "new").read_text() == "y\n"


def test_a_planted_link_reaches_nothing(workspace: Path, tmp_path: Path) -> None:
    """CVE-2026-87766: an op's destination through a link in a bound directory makes nothing on the host."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace / "link").symlink_to(outside)
    with pytest.raises(SetupError) as caught:
        nsbox.run(
            ["/bin/true"],
            policy=Policy.layers(RoBind("/usr", "/usr"), Bind(str(workspace), "/w"), Tmpfs("/w/link/made")),
        )
    assert "/w/link/made" in str(caught.value)
    assert list(outside.iterdir()) == []


def test_limits_are_set(workspace: Path) -> None:
    """Limits are the command's resource limits."""
    policy = Policy.workspace(workspace, limits=Limits(open_files=77, file_size="1K"))
    assert output("ulimit -n; ulimit -f", policy).split() == ["77", "2"]


def test_it_says_what_it_lacks(workspace: Path) -> None:
    """Where namespaces are refused the error names the reason; a policy never runs uncontained instead."""
    host = nsbox.probe(refresh=True)
    if host.max_user_namespaces == 0 or (host.unprivileged_userns is False and not host.can_set_ids):
        with pytest.raises(nsbox.UnavailableError, match="user"):
            nsbox.run(["/bin/true"], policy=Policy.workspace(workspace))
    assert host.kernel >= (5, 12)
    assert host.euid == os.geteuid()
    with pytest.raises(PolicyError):
        Policy.workspace("/")
