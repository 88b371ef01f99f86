"""The commands of deploy/, run behind the settings that their files have: there is no container engine here.

The settings are read from the files. unshare(1), mount(8) and setpriv(1) do what an engine does: namespaces, a read-only
root, the file systems that can be written to, the user, no capability, the filter. Images and AppArmor have no part in it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from nsbox_testing import needs
from nsbox_testing.containers import GID, MASK, NSBOX, UID, contained, profile

import nsbox

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["nsbox"]
GITLAB: dict[str, Any] = yaml.safe_load((DEPLOY / "ci/gitlab.yml").read_text())["sandboxed"]

pytestmark = [needs.programs("unshare", "setpriv"), pytest.mark.vm]


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())["spec"]
    return found


def places(text: dict[str, Any]) -> dict[str, str]:
    """The directories that can be written to, with the options of their tmpfs, of a service or a pod."""
    if "tmpfs" in text:
        found = dict(entry.partition(":")[::2] for entry in text["tmpfs"])
        return {
            path: options.replace("uid=1000", f"uid={UID}").replace("gid=1000", f"gid={GID}")
            for path, options in found.items()
        }
    (container,) = text["containers"]
    # An emptyDir is the group's, by fsGroup.
    return {mount["mountPath"]: f"gid={GID},mode=2777" for mount in container["volumeMounts"]}


@pytest.fixture
def readable(tmp_path: Path) -> Path:
    """A directory that the container's user can read too."""
    path = tmp_path
    while path.stat().st_uid == os.geteuid() and path != path.parent:
        path.chmod(path.stat().st_mode | 0o055)
        path = path.parent
    return tmp_path


@pytest.mark.parametrize("text", [COMPOSE, pod("isolated.yaml")], ids=["compose.yaml", "isolated.yaml"])
def test_whole(text: dict[str, Any], readable: Path) -> None:
    """With the settings of the file, its command finds the default policy enforced as a whole, and a command runs."""
    seccomp = profile(readable / "seccomp.json", is_ours=True)
    command = text.get("command") or text["containers"][0]["args"]
    done = contained(seccomp, places(text), *NSBOX, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    script = "echo $$; touch made; touch /mnt/home/nsbox/made || touch /usr/made"
    done = contained(seccomp, places(text), *NSBOX, "run", "--", "sh", "-c", script)
    assert done.stdout == "2\n", done.stderr
    assert "/usr/made" in done.stderr and "touch: cannot touch 'made'" not in done.stderr


def test_programs_in_the_workspace(readable: Path) -> None:
    """compose.yaml's "exec": a program that was built in /work runs in a sandbox; control: without the word it doesn't."""
    seccomp = profile(readable / "seccomp.json", is_ours=True)
    script = "cp /bin/echo made && ./made it runs"
    done = contained(seccomp, places(COMPOSE), *NSBOX, "run", "--", "sh", "-c", script)
    assert done.stdout == "it runs\n", done.stderr
    without = {path: options.replace(",exec", "") for path, options in places(COMPOSE).items()}
    assert "Permission denied" in contained(seccomp, without, *NSBOX, "run", "--", "sh", "-c", script).stderr


@pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
def test_nothing_allowed(readable: Path) -> None:
    """restricted.yaml's command runs behind a runtime's own filter and masks; without --degrade it is refused."""
    text = pod("restricted.yaml")
    (container,) = text["containers"]
    seccomp = profile(readable / "seccomp.json", is_ours=False)
    done = contained(seccomp, places(text), *NSBOX, *container["args"], masks=MASK)
    assert done.stdout == "contained\n", done.stderr
    degrade, script = container["args"][1:3], "touch made; cat /mnt/home/nsbox/x /etc/hostname; touch /mnt/tmp/made"
    done = contained(seccomp, places(text), *NSBOX, "run", *degrade, "--", "sh", "-c", script, masks=MASK)
    assert "'/mnt/tmp/made': Permission denied" in done.stderr
    assert "made': Read-only" not in done.stderr and "touch 'made'" not in done.stderr
    done = contained(seccomp, places(text), *NSBOX, "run", "--", "true", masks=MASK)
    assert done.returncode != 0
    assert "this process runs behind a seccomp filter" in done.stderr and "attributes: " in done.stderr


@pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")
def test_gitlab(readable: Path) -> None:
    """With the job's losses a command runs in a job's container, by root if the test is; with our filter, as its file says.

    test_ci_jobs.py runs the job itself.
    """
    writable = {"/work": f"uid={os.geteuid()},mode=0755", "/tmp": "mode=1777"}

    def run(*, is_ours: bool, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        seccomp = profile(readable / "seccomp.json", is_ours=is_ours)
        words = [*more, "--degrade", GITLAB["variables"]["LOST"], "--", "sh", "-c", "echo contained"]
        return contained(seccomp, writable, *NSBOX, "run", *words, masks=MASK, is_root=os.geteuid() == 0)

    done = run(is_ours=False)
    assert done.stdout == "contained\n", done.stderr
    done = run(is_ours=True)
    assert done.returncode != 0 and "make file system: Operation not permitted" in done.stderr
    assert run(is_ours=True, more=("--backend", "landlock")).stdout == "contained\n"
