"""Commands of a session as other users: user=, group=, extra_groups=, and policies that choose a uid."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_testing.ids import with_all_ids

import nsbox
from nsbox import Policy, PolicyError, Sandbox, Session

WHO = "id -u; id -g; id -G; grep -E '^(Uid|Gid|Groups)' /proc/self/status"


@pytest.fixture
def full(workspace: Path) -> Policy:
    return with_all_ids(workspace)


@pytest.fixture
def s(full: Policy) -> Iterator[Session]:
    with Sandbox(full, stock=0) as box, box.session() as made:
        yield made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user": 3},
        {"group": 4},
        {"user": 3, "group": 4, "extra_groups": [7, 8]},
        {"extra_groups": [9]},
        {"extra_groups": []},
        {"user": "daemon", "group": "daemon"},
        {"user": os.geteuid(), "group": os.getegid()},
    ],
    ids=str,
)
def test_the_ids_that_a_sandbox_gives(s: Session, full: Policy, options: dict[str, object]) -> None:
    """The same real, effective, saved and file system ids, and the same groups."""
    alone = nsbox.run(["sh", "-c", WHO], policy=full, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    within = s.run(WHO, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    assert within.stdout == alone.stdout
    assert s.shell(WHO, **options).stdout == alone.stdout  # type: ignore[arg-type]


def test_the_next_command_has_its_own(s: Session) -> None:
    """Nothing of one command's ids stays in pid 1."""
    mine = s.run("id", capture_output=True, text=True).stdout
    s.run("id", user=3, group=4, extra_groups=[7], check=True, capture_output=True)
    assert s.run("id", capture_output=True, text=True).stdout == mine


def test_what_it_makes_is_its_own(s: Session) -> None:
    """In the session's /tmp, as its own processes see it; and the others' files are closed to it."""
    s.run("echo 1 >/tmp/other; chmod 600 /tmp/other", user=3, group=4, check=True)
    assert s.run("stat -c '%u %g' /tmp/other", capture_output=True, text=True).stdout == "3 4\n"
    assert s.run("cat /tmp/other", user=5, group=5, capture_output=True).returncode == 1
    assert s.run("cat /tmp/other", user=3, capture_output=True).stdout == b"1\n"


def test_ends_what_another_user_runs(s: Session) -> None:
    """A time limit, kill(), terminate() and a signal reach a command of another user, and what it has started."""
    done = s.shell("trap '' TERM; sleep 1000 & sleep 1000", user=33, timeout=0.3, grace=0.1)
    assert (done.timed_out, done.ended_by) == (True, "SIGKILL")
    for end, status in ((nsbox.Popen.kill, -signal.SIGKILL), (nsbox.Popen.terminate, -signal.SIGTERM)):
        process = s.Popen(["sleep", "1000"], user=33)
        end(process)
        assert process.wait() == status
    with s.Popen(
        ["/bin/sh", "-c", "trap 'echo got; exit 7' USR1; echo up; while :; do sleep 0.01; done"], user=33, stdout=-1
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGUSR1)
        assert (process.stdout.read(), process.wait()) == (b"got\n", 7)
    assert s.run("kill -0 -1 2>/dev/null", user=33).returncode in (0, 1)
    assert s.processes() == []


def test_a_session_ends_with_all_users(full: Policy) -> None:
    """close() leaves nothing of another user's."""
    with Sandbox(full, stock=0) as box, box.session() as s:
        s.run("sleep 1000 >/dev/null 2>&1 & :", user=33, check=True)
        left = [process.pid for process in s.processes()]
        assert left
    assert not any(os.path.exists(f"/proc/{pid}") for pid in left)


def test_kill_processes_of_all_users(s: Session) -> None:
    """It leaves nothing of another user's."""
    s.run("sleep 1000 >/dev/null 2>&1 & :", user=33, check=True)
    assert s.processes()
    s.kill_processes()
    assert s.processes() == []


def test_many_users_at_once(s: Session) -> None:
    """Each thread's command gets its own ids."""
    found: dict[int, str] = {}

    def ask(uid: int) -> None:
        for _ in range(5):
            text = s.run("id -u; id -G", user=uid, group=uid + 1, extra_groups=[uid], capture_output=True, text=True)
            found[uid] = "right" if text.stdout == f"{uid}\n{uid + 1} {uid}\n" else text.stdout

    threads = [threading.Thread(target=ask, args=(uid,)) for uid in range(100, 110)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(100, 110), "right")


def test_errors_of_a_command_with_other_ids(s: Session) -> None:
    """They are those of any command."""
    with pytest.raises(FileNotFoundError) as caught:
        s.run(["/nonexistent"], user=3)
    assert caught.value.filename == "/nonexistent"
    with pytest.raises(FileNotFoundError):
        s.run(["true"], user=3, cwd="/nonexistent")
    s.run("echo '#!/bin/sh' >/tmp/program; chmod 700 /tmp/program", check=True)
    with pytest.raises(PermissionError):
        s.run(["/tmp/program"], user=3)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("user", {"user": 4294967295}),
        ("group", {"group": 4294967295}),
        ("extra_groups", {"extra_groups": [4294967295]}),
    ],
    ids=str,
)
def test_an_id_that_isnt_mapped(s: Session, field: str, options: dict[str, object]) -> None:
    """4294967295 is what the kernel takes for "unchanged": the command must not run as another user in silence."""
    with pytest.raises(PolicyError, match=f"^{field}: id 4294967295 is not among the ids"):
        s.run(["true"], **options)  # type: ignore[call-overload]


def test_one_id_only(policy: Policy) -> None:
    """Its own ids are no change; for others, the error says what is missing."""
    with Sandbox(policy, stock=0) as box, box.session() as s:
        assert s.run(["true"], user=os.geteuid(), group=os.getegid()).returncode == 0
        for options in ({"user": 12345}, {"group": 12345}, {"extra_groups": [1]}):
            with pytest.raises(PolicyError, match="ids='full'"):
                s.run(["true"], **options)  # type: ignore[call-overload]
        assert s.run(["true"]).returncode == 0


def test_a_policy_that_chooses_a_uid(full: Policy) -> None:
    """All its commands have it; so has what the file tools make; user= overrides it."""
    with Sandbox(full.with_(uid=33, gid=34), stock=0) as box, box.session() as s:
        assert s.run("id -u; id -G", capture_output=True, text=True).stdout == "33\n34\n"
        assert s.run("id -u; id -G", user=3, extra_groups=[5], capture_output=True, text=True).stdout == "3\n34 5\n"
        s.write("/tmp/made", "by a tool\n")
        assert s.run("echo >>/tmp/made; stat -c '%u %g' /tmp/made", capture_output=True).stdout == b"33 34\n"
        left = s.shell("sleep 1000 & echo up").background_output
        assert left is not None
        assert s.shell(f"cat {left}", check=True).returncode == 0
        assert s.shell("sleep 1000", timeout=0.2).ended_by == "SIGTERM"
