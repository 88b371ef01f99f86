"""Devices for a workspace, and ports of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, PolicyError, Sandbox
from nsbox._policy.losses import LOSSES

NODE = next((path for path in ("/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/rtc0") if os.path.exists(path)), "")


@pytest.mark.skipif(not NODE, reason="needs a device")
@pytest.mark.parametrize("face", ["cold", "warm"])
def test_node(workspace: Path, face: str) -> None:
    """A node that is named is there as the same device, can't be changed, and no other one is there."""
    policy = Policy.workspace(workspace, devices=[NODE])
    st = os.stat(NODE)
    expected = f"character special file {os.major(st.st_rdev):x} {os.minor(st.st_rdev):x}\n"
    with Sandbox(policy) as box:
        script = f"stat -c '%F %t %T' {NODE}; ls /dev; chmod 777 {NODE}"
        done = nsbox.run(script, shell=True, policy=box if face == "warm" else policy, capture_output=True, text=True)
    assert done.stdout.startswith(expected) and done.returncode != 0
    plain = nsbox.run("ls /dev", shell=True, policy=Policy.workspace(workspace), capture_output=True, text=True).stdout
    added = {*done.stdout.split("\n")[1:]} - {*plain.split("\n")}
    assert added == {NODE.split("/")[2]}
    assert f"device      {NODE} -> {NODE}" in nsbox.explain(policy)


@pytest.mark.skipif(not NODE or not os.access(NODE, os.R_OK | os.W_OK) or os.geteuid() == 0, reason="needs a device")
def test_node_works(workspace: Path) -> None:
    """It can be opened by who may open it outside."""
    nsbox.run(["sh", "-c", f": <> {NODE}"], policy=Policy.workspace(workspace, devices=[NODE]), check=True)


@pytest.mark.skipif(not NODE or not os.access(NODE, os.R_OK | os.W_OK), reason="needs a device")
def test_landlock(workspace: Path) -> None:
    """Behind Landlock alone it can be opened too, and no other one."""
    if nsbox.probe().landlock_abi < 2:
        pytest.skip("needs Landlock of version 2 or later")
    plain = Policy.workspace(workspace, backend="landlock", degrade=LOSSES)
    for policy, status in ((plain.with_(devices=[NODE]), 0), (plain, 2)):
        done = nsbox.run(["sh", "-c", f": <> {NODE}"], policy=policy, stderr=nsbox.DEVNULL)
        assert done.returncode == status


def test_directory(workspace: Path) -> None:
    """Of a directory all nodes in it are there."""
    names = [
        name
        for name in ("/dev/input", "/dev/dri", "/dev/net", "/dev/snd", "/dev/mapper", "/dev/vfio")
        if os.path.isdir(name)
    ]
    if not names:
        pytest.skip("needs a directory of devices")
    policy = Policy.workspace(workspace, devices=names[:1])
    nsbox.run(["ls", names[0]] if os.listdir(names[0]) else ["true"], policy=policy, check=True)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/dev/null", "one of its own"),
        ("/dev/pts/0", "one of its own"),
        ("/dev/not-there", "No such file"),
        ("/dev", "isn't below /dev"),
        ("/etc/passwd", "isn't below /dev"),
        ("/dev/../etc", "has a '..'"),
        ("kvm", "is relative"),
    ],
)
def test_no_device(workspace: Path, name: str, problem: str) -> None:
    """What is none, or each sandbox has, is refused."""
    with pytest.raises(PolicyError, match=f"devices: .*{problem}"):
        nsbox.run(["true"], policy=Policy.workspace(workspace, devices=[name]))
    with pytest.raises(PolicyError, match=r"devices: belongs to Policy\.workspace"):
        Policy.host(devices=["/dev/kvm"])


def test_hint(workspace: Path) -> None:
    """In write a device is an error that names the field."""
    with pytest.raises(PolicyError, match=r"devices=\['/dev/full'\]"):
        Policy.workspace(workspace, write=["/dev/full"])


BIND = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 80)); s = socket.socket(socket.AF_INET6); s.bind(('::1', 443))"


@pytest.mark.parametrize("face", ["cold", "warm", "session"])
def test_low_ports(workspace: Path, face: str) -> None:
    """In a net namespace of its own a command may bind any port; the caller's setting stays."""
    setting = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    before = setting.read_text()
    policy = Policy.workspace(workspace)
    words = ["/usr/bin/python3", "-c", BIND]
    if face == "cold":
        nsbox.run(words, policy=policy, check=True)
    else:
        with Sandbox(policy) as box:
            for _ in range(4):
                box.run(words, check=True)
            if face == "session":
                with box.session() as session:
                    assert session.exec(words[0], words[1:]).returncode == 0
    assert setting.read_text() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_low_ports_of_the_host(workspace: Path) -> None:
    """On the host's network ports below 1024 stay the host's."""
    code = "import socket; socket.socket().bind(('127.0.0.1', 81))"
    if subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True).returncode == 0:
        pytest.skip("this machine lets users have them")
    policy = Policy.workspace(workspace, network="host")
    assert nsbox.run(["/usr/bin/python3", "-c", code], policy=policy, stderr=nsbox.DEVNULL).returncode != 0
