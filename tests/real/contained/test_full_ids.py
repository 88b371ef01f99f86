"""ids="full": the command may have, and become, more users than one."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
from nsbox_testing.ids import with_all_ids

import nsbox
from nsbox import Policy, UnavailableError


@pytest.fixture
def policy(workspace: Path) -> Policy:
    """A workspace with all ids that this user can map: as root all, else the subordinate ones (subuid(5))."""
    return with_all_ids(workspace)


def output(script: str, **options: object) -> str:
    done = nsbox.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, **options)  # type: ignore[arg-type]
    return str(done.stdout).strip()


def test_the_caller_stays_itself(policy: Policy) -> None:
    """Without another wish the command is the same user, inside and on the host."""
    assert output("id -u; id -g", policy=policy).split() == [str(os.geteuid()), str(os.getegid())]
    output("touch mine", policy=policy)
    assert Path(str(policy.workdir), "mine").stat().st_uid == os.geteuid()


def test_another_user_by_wish(policy: Policy) -> None:
    """uid= and gid= of the policy are another user's, who keeps none of the caller's groups nor capabilities."""
    script = "id -u; id -g; id -G; grep -c ^Cap.*0000000000000000 /proc/self/status"
    assert output(script, policy=policy.with_(uid=33, gid=34)).split() == ["33", "34", "34", "5"]


def test_another_user_by_popen(policy: Policy) -> None:
    """user=, group= and extra_groups= of Popen work."""
    assert output("id -u; id -g; id -G", policy=policy, user=3, group=4, extra_groups=[7]).split() == [
        "3",
        "4",
        "4",
        "7",
    ]


def test_the_caller_stays_dumpable(policy: Policy) -> None:
    """A command with another kernel id must not flip the caller's dumpable flag, as shared memory would (prctl(2))."""
    output("true", policy=policy, user=3)
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1  # PR_GET_DUMPABLE


def test_an_error_of_a_forked_command(policy: Policy) -> None:
    """A command that changes ids runs in a copy of the memory; its errors arrive all the same."""
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["/nonexistent"], policy=policy, user=3)
    assert caught.value.filename == "/nonexistent"
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["/bin/true"], policy=policy, user=3, cwd="/nonexistent")
    assert caught.value.filename == "/nonexistent"


def test_an_id_that_cannot_be_mapped(policy: Policy) -> None:
    """An id out of all ranges is refused by name, before anything is started."""
    if nsbox.probe().can_set_ids:
        ranges = subprocess.run(["cat", "/proc/self/uid_map"], capture_output=True, text=True, check=True).stdout
        if ranges.split()[-1] == "4294967295":
            pytest.skip("as_root: every id exists here")
    with pytest.raises(UnavailableError, match="uid=4294967000"):
        nsbox.run(["/bin/true"], policy=policy.with_(uid=4294967000))
