"""A network list in real sandboxes: the files by which names are looked up, wherever they lead, and the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import nsbox
from nsbox import Dev, Dir, File, Network, Policy, Proc, RoBind, Symlink, Tmpfs, UnavailableError, rootfs

LIST = ["api.example", "!gist.example"]
SHOW = ["/bin/sh", "-c", "cat /etc/resolv.conf /etc/hosts; ls /sys/class/net 2>/dev/null; true"]
EXPECTED = "nameserver 198.19.0.53\nsearch .\n127.0.0.1 localhost ip6-localhost "


def shown(policy: Policy | nsbox.Sandbox, **options: object) -> str:
    """Return what a command finds in both files."""
    done = nsbox.run(SHOW, policy=policy, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    return str(done.stdout)


@pytest.mark.parametrize("network", [LIST, "public", Network(allow=LIST, private=True)])
def test_workspace(workspace: Path, network: object) -> None:
    """The sandbox's own, with the machine's name or the policy's."""
    policy = Policy.workspace(workspace, network=network)  # type: ignore[arg-type]
    assert shown(policy).startswith(f"{EXPECTED}{os.uname().nodename}\n")
    assert shown(policy.with_(hostname="box")).startswith(f"{EXPECTED}box\n")
    with nsbox.Sandbox(policy) as box:
        assert shown(box).startswith(EXPECTED) and shown(box).startswith(EXPECTED)


@pytest.mark.parametrize("network", ["none", "host"])
def test_without_a_list(workspace: Path, network: object) -> None:
    """The machine's own, as ever."""
    text = shown(Policy.workspace(workspace, network=network))  # type: ignore[arg-type]
    assert "198.19.0.53" not in text


def test_nobody_can_change_them(workspace: Path) -> None:
    """They are read-only, and can't be moved or removed."""
    script = (
        "for f in /etc/resolv.conf /etc/hosts; do echo x >$f; rm -f $f; mv $f /tmp/; done 2>/dev/null; cat /etc/hosts"
    )
    for policy in (Policy.workspace(workspace, network=LIST), Policy.workspace(workspace, network=LIST, uid=0, gid=0)):
        done = nsbox.run(["/bin/sh", "-c", script], policy=policy, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("127.0.0.1 localhost")


def test_layers(workspace: Path) -> None:
    """A root that has the files, by a link too."""
    assert shown(Policy.layers(RoBind("/", "/"), Proc("/proc"), Dev("/dev"), network=LIST)).startswith(EXPECTED)
    (workspace / "run").mkdir()
    (workspace / "run/r.conf").write_text("nameserver 192.0.2.1\n")
    system = [RoBind("/usr", "/usr")]
    for name in ("bin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            system.append(Symlink(os.readlink(f"/{name}"), f"/{name}"))  # type: ignore[arg-type]
        elif os.path.isdir(f"/{name}"):
            system.append(RoBind(f"/{name}", f"/{name}"))
    linked = Policy.layers(
        *system,
        RoBind(str(workspace / "run"), "/run"),
        Dir("/etc"),
        File("/etc/hosts", b""),
        Symlink("/run/r.conf", "/etc/resolv.conf"),
        network=LIST,
    )
    assert shown(linked).startswith(EXPECTED)
    assert (workspace / "run/r.conf").read_text() == "nameserver 192.0.2.1\n"
    for policy in (Policy.layers(*system, network=LIST), linked.with_(ops=(*linked.ops, Tmpfs("/etc")))):
        with pytest.raises(UnavailableError, match=r"/etc/resolv\.conf"):
            nsbox.run(SHOW, policy=policy)


def test_a_root_file_system(tmp_path: Path) -> None:
    """A built root has both files."""
    rootfs.build(tmp_path / "root", programs=["sh", "cat", "ls"])
    (tmp_path / "work").mkdir()
    policy = rootfs.policy(tmp_path / "root", workspace=tmp_path / "work", network=LIST)
    assert shown(policy).startswith(f"{EXPECTED}sandbox\n")
    assert "198.19.0.53" not in shown(rootfs.policy(tmp_path / "root", workspace=tmp_path / "work"))


def test_proxies(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's lead past the list, or nowhere; those that the policy sets are its own."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    show = {"capture_output": True, "text": True, "check": True}
    for policy in (
        Policy.workspace(workspace, network=LIST),
        Policy.workspace(workspace, network=LIST, inherit_env=True),
        Policy.layers(RoBind("/", "/"), Proc("/proc"), Dev("/dev"), network=LIST),
    ):
        out = nsbox.run(["env"], policy=policy, **show).stdout  # type: ignore[call-overload]
        assert "proxy" not in out.lower() and "PATH=" in out
        own = policy.with_(env={"http_proxy": "http://192.0.2.1"})
        assert "http_proxy=http://192.0.2.1\n" in nsbox.run(["env"], policy=own, **show).stdout  # type: ignore[call-overload]
    assert "HTTPS_PROXY=" in subprocess.run(["env"], capture_output=True, text=True, check=True).stdout


def test_nothing_is_contained_by_mode(workspace: Path) -> None:
    """Where a user switches the sandbox off, a list is no hindrance."""
    with nsbox.Sandbox(Policy.workspace(workspace, network=LIST), mode="disabled") as box:
        assert box.run(["true"]).returncode == 0
    with pytest.raises(UnavailableError, match="no list would hold"):
        nsbox.run(["true"], policy=Policy.workspace(workspace, network=LIST, backend="passthrough", require="nothing"))
