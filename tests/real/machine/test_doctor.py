"""doctor(): each thing is tried for real, and what fails is said with its cause and a remedy.

In a virtual machine that refuses something on purpose the environment says what is expected, so that the true cause is
compared with the one that is named: NSBOX_EXPECT is "works", or "CHECK|words of the cause|words of the remedy|BACKEND".
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nsbox
from nsbox import Check, Host, Policy, PolicyError, RoBind, SetupError, UnavailableError, doctor
from nsbox._backends.refusals import apparmor_profile, refused_userns
from nsbox._machine import linux
from nsbox._policy.losses import LOSSES

EXPECTED = os.environ.get("NSBOX_EXPECT", "")
USERNS = "user, mount and pid namespaces"


def by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def contained_by(tmp_path: Path) -> str:
    """Return which backend a policy gets that can do without much, after a look at whether it contains."""
    (tmp_path / "workspace").mkdir()
    policy = Policy.workspace(tmp_path / "workspace", degrade=LOSSES)
    with nsbox.Popen(["sh", "-c", "echo x > inside; echo x > ../outside"], policy=policy, stderr=nsbox.DEVNULL) as p:
        p.wait()
    assert os.listdir(tmp_path / "workspace") == ["inside"]
    assert os.listdir(tmp_path) == ["workspace"]
    return p.sandbox.backend


@pytest.mark.vm
@pytest.mark.skipif(not EXPECTED, reason="NSBOX_EXPECT doesn't say what is to be expected")
def test_the_true_cause_is_named(tmp_path: Path) -> None:
    """On a machine that refuses one thing, that is what doctor says, with what helps; and nothing runs contained less."""
    checks = by_name(doctor())
    if EXPECTED == "works":
        assert {check.name for check in checks.values() if check.is_needed and check.state != "works"} == set()
        assert contained_by(tmp_path) == "namespaces"
        return
    name, cause, remedy, backend = EXPECTED.split("|")
    check = checks[name]
    assert check.state == "fails"
    assert all(word in check.said + check.remedy for word in cause.split(","))
    assert all(word in check.remedy for word in remedy.split(","))
    assert (checks["the default policy, whole"].state == "works") is (backend != "landlock")
    assert ("the default policy, degraded" in checks) is (backend == "landlock")
    if check.is_needed:
        with pytest.raises((SetupError, UnavailableError)) as caught:
            nsbox.run(["/bin/true"], policy=Policy.layers(RoBind("/", "/"), backend="namespaces"), cwd="/")
        assert all(word in str(caught.value) for word in cause.split(","))
    assert contained_by(tmp_path) == backend


@pytest.mark.skipif(bool(EXPECTED), reason="this machine refuses something on purpose")
def test_this_machine() -> None:
    """Where the tests run, the default policy is enforced as a whole, and everything was tried."""
    checks = doctor()
    assert [check.name for check in checks if check.is_needed and check.state != "works"] == []
    assert not any(check.state == "not tried" for check in checks)
    assert len(checks) > 12


def test_command(tmp_path: Path) -> None:
    """`nsbox doctor` prints a line for each check; --json has the same; the exit status says if all holds."""
    command = [sys.executable, "-P", "-m", "nsbox", "doctor"]
    text = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    data = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=tmp_path)
    found = json.loads(data.stdout)
    assert text.returncode == data.returncode == (0 if found["holds"] else 1)
    for check in found["checks"]:
        assert check["name"] in " ".join(text.stdout.split())
        assert check["state"] in ("works", "fails", "not tried")
    assert ("NOT enforced" in text.stdout) is not found["holds"]
    assert max(map(len, text.stdout.splitlines())) <= 120
    states = {(check["state"], check["is_needed"]) for check in found["checks"]}
    assert "\nok     means that it works\n" in text.stdout
    assert ("\nno     means that" in text.stdout) is (("fails", False) in states)


def test_in_a_sandbox(workspace: Path) -> None:
    """In a sandbox, where there are no user namespaces, it says that a seccomp filter is the reason, and exits with 1."""
    done = nsbox.run(
        [sys.executable, "-P", "-m", "nsbox", "doctor", "--json"],
        policy=Policy.workspace(workspace),
        capture_output=True,
    )
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["holds"]
    checks = {check["name"]: check for check in found["checks"]}
    assert checks[USERNS]["state"] == "fails"
    assert "EPERM" in checks[USERNS]["said"] and "seccomp filter" in checks[USERNS]["said"]
    assert checks["net namespace"]["state"] == "not tried"
    assert checks["pidfds"]["state"] == "works"
    assert ("the default policy, degraded" in checks) is (nsbox.probe().landlock_abi >= 2)


def test_apparmor_profile() -> None:
    """The profile is for the file that runs, without links, and allows user namespaces."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "nsbox", "doctor", "--apparmor-profile"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"profile nsbox {os.path.realpath(sys.executable)} flags=(unconfined) {{" in done.stdout
    assert "  userns,\n" in done.stdout
    assert '"/a b/python"' in apparmor_profile("/a b/python")
    for path in ('/a"b', "/a\nb", "/a\\b"):
        with pytest.raises(ValueError, match="can't be written"):
            apparmor_profile(path)


@pytest.mark.parametrize(
    ("number", "changes", "words"),
    [
        (errno.ENOSPC, {"max_user_namespaces": 0}, "user.max_user_namespaces is 0"),
        (errno.ENOSPC, {"max_user_namespaces": 9}, "the limit of namespaces"),
        (errno.EPERM, {"unprivileged_userns": False}, "unprivileged_userns_clone"),
        (errno.EPERM, {"unprivileged_userns": False, "can_set_ids": True}, "a reason that nsbox can't see"),
        (errno.EPERM, {"apparmor_restricts_userns": True}, "AppArmor forbids"),
        (errno.EPERM, {"apparmor_restricts_userns": True, "euid": 0, "is_filtered": True}, "seccomp filter"),
        (errno.EACCES, {"label": "docker-default (enforce)"}, "docker-default"),
        (errno.EPERM, {"is_filtered": True}, "seccomp filter"),
        (errno.EPERM, {"is_chrooted": True, "is_filtered": True}, "chroot"),
        (errno.EINVAL, {}, "no user namespaces"),
        (errno.ENOSYS, {}, "no user namespaces"),
        (errno.EPERM, {}, "a reason that nsbox can't see"),
    ],
)
def test_causes(number: int, changes: dict[str, object], words: str) -> None:
    """Of what a host is known to forbid, the one that fits the errno is named."""
    assert words in str(refused_userns(number, replace(Host(), **changes)))


def test_maps_of_one_that_is_not_dumpable() -> None:
    """Its own /proc is root's; unshare(2) alone goes on working."""
    assert "isn't dumpable" in str(refused_userns(errno.EACCES, Host(), is_uid_map=True))
    assert "dumpable" not in str(refused_userns(errno.EACCES, Host()))


@pytest.mark.parametrize(
    ("path", "text", "field", "value"),
    [
        ("/proc/self/mountinfo", "30 20 8:1 /srv/x/proc /proc rw - proc proc rw\n", "is_chrooted", True),
        ("/proc/self/mountinfo", "30 20 8:1 / / rw - ext4 /dev/vda rw\n", "is_chrooted", False),
        ("/proc/self/attr/apparmor/current", "docker-default (enforce)\n", "label", "docker-default (enforce)"),
        ("/proc/self/attr/apparmor/current", "unconfined\n", "label", ""),
        ("/proc/self/attr/apparmor/current", "nsbox (unconfined)\n", "label", ""),
        (
            "/proc/self/attr/current",
            "system_u:system_r:container_t:s0:c1,c2\0",
            "label",
            "system_u:system_r:container_t:s0:c1,c2",
        ),
        ("/proc/self/attr/current", "unconfined_u:unconfined_r:unconfined_t:s0\0", "label", ""),
        ("/proc/self/status", "Name:\tpython\nSeccomp:\t2\n", "is_filtered", True),
        ("/proc/self/status", "Name:\tpython\nSeccomp:\t0\n", "is_filtered", False),
    ],
)
def test_what_is_asked(monkeypatch: pytest.MonkeyPatch, path: str, text: str, field: str, value: object) -> None:
    """What other machines' files say is understood."""
    read = linux.read
    others = {"/proc/self/attr/apparmor/current": None, "/proc/self/attr/current": None}
    texts = others | {path: text, path.replace("self", "1"): text}
    monkeypatch.setattr(linux, "read", lambda name: texts[name] if name in texts else read(name))
    assert getattr(linux.host(), field) == value


@pytest.mark.as_root("mounts something")
def test_a_chroot_into_a_mount() -> None:
    """Its root is a mount point, but not that of the mount namespace."""
    code = "import nsbox; nsbox.run(['true'], policy=nsbox.Policy.host(backend='namespaces'))"
    script = 'mount --rbind / /mnt && chroot /mnt "$@"; :'  # pid 1 stays where it was
    done = subprocess.run(
        ["unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-c", script, "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )
    assert "in a chroot the kernel refuses user namespaces" in done.stderr, done


def test_nothing_is_made_up() -> None:
    """A policy that makes no sense is still the policy's fault, not the machine's."""
    with pytest.raises(PolicyError):
        Policy.workspace("/")
