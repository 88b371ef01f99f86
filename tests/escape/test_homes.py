"""Attempts to get out of a home that is kept, or into it; each has a control that shows the way works elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy, PolicyError, Sandbox


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where homes are kept in this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    nsbox.probe(refresh=True)
    yield tmp_path / "state/nsbox/homes"
    monkeypatch.undo()
    nsbox.probe(refresh=True)


def sh(script: str, policy: Policy | Sandbox) -> str:
    return nsbox.run(script, shell=True, policy=policy, capture_output=True, text=True).stdout


def test_homes_are_not_shown(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """Neither another's home nor the key is visible, though all around is readable."""
    (tmp_path / "beside").write_text("seen\n")
    sh("echo secret > ~/s", Policy.workspace(workspace, home="private:a"))
    reader = Policy.workspace(workspace, read=[tmp_path], home="private:b")
    told = sh(f"cat {tmp_path}/beside; cat {homes}/a/s; ls {homes}; ls -A ~/s ~/a", reader)
    assert told == "seen\n"


def test_link_in_the_place_of_a_home(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """A home that has become a link isn't followed. Control: what it leads to can be read here."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "id").write_text("private\n")
    policy = Policy.workspace(workspace, home="private:a")
    sh("true", policy)
    (homes / "a").rename(homes / "was")
    (homes / "a").symlink_to(victim)
    assert (homes / "a/id").read_text() == "private\n"
    with pytest.raises(PolicyError, match="is no directory of this user's"):
        sh("cat ~/id; touch ~/planted", policy)
    assert os.listdir(victim) == ["id"]


def test_homes_that_others_can_write_to(workspace: Path, homes: Path) -> None:
    """A directory that others may write to is refused: they could replace a home by anything."""
    policy = Policy.workspace(workspace, home="private:a")
    sh("true", policy)
    homes.chmod(0o777)
    with pytest.raises(PolicyError, match="no other user may write to it"):
        sh("true", policy)


def test_homes_in_reach_of_another_policy(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """If commands of this process could write to where homes are, one of them may have made it. Control: before."""
    policy = Policy.workspace(workspace, home="private:a")
    sh("true", policy)
    op = nsbox.Bind(str(homes.parents[1]), str(homes.parents[1]))
    layers = Policy.layers(nsbox.RoBind("/", "/"), op, nsbox.Bind(str(homes), str(homes)))
    nsbox.run(["/bin/true"], policy=layers)
    with pytest.raises(PolicyError, match="another policy of this process may write to"):
        sh("true", policy)


def test_links_are_not_followed_when_a_home_is_removed(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """What a command's links lead to stays when its Sandbox is closed; all else goes, whatever its mode."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "id").write_text("private\n")
    with Sandbox(Policy.workspace(workspace)) as box:
        sh(f"cd ~; ln -s {victim} link; mkdir -p d/e; touch d/e/f; chmod 0 d/e d; chmod 500 .", box)
    assert (victim / "id").read_text() == "private\n"
    assert list(homes.iterdir()) == []


def test_mode_is_put_right(workspace: Path, homes: Path) -> None:
    """A command can open its home to others; the next one finds it closed again."""
    policy = Policy.workspace(workspace, home="private:a")
    sh("chmod 777 ~", policy)
    assert stat.S_IMODE((homes / "a").stat().st_mode) == 0o777
    sh("true", policy)
    assert stat.S_IMODE((homes / "a").stat().st_mode) == 0o700


def test_no_transaction_in_a_home(workspace: Path, homes: Path) -> None:
    """A home is in the commands' reach, so that no transaction keeps its changes there. Control: elsewhere it does."""
    policy = Policy.workspace(workspace, home="private:a")
    with Sandbox(policy) as box:
        box.run(["true"])
        with box.transaction(dir=homes.parents[1] / "elsewhere"):
            pass
        with pytest.raises(PolicyError, match="which commands of this policy may write to"):
            box.transaction(dir=homes / "a/x")


def _shown_below(home: Path) -> Policy:
    (home / "work").mkdir(parents=True)
    (home / "work/mark").write_text("work\n")
    (home / "way/deep").mkdir(parents=True)
    (home / "way/deep/mark").write_text("deep\n")
    (home / ".conf").write_text("conf\n")
    return Policy.workspace(home / "work", read=[home / "way/deep", home / ".conf"])


@pytest.fixture
def home_of_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The path of private homes in this test, which has something of the host's below it."""
    from nsbox._layout import user

    home = tmp_path / "home"
    monkeypatch.setattr(user, "_private", lambda policy, host: str(home))
    yield home


ATTEMPTS = (
    "mv ~/work ~/gone; mv ~/way ~/away; mv ~/.conf ~/.gone",
    "rm -rf ~/work ~/way ~/.conf",
    "mkdir ~/d; touch ~/f; mv -T ~/d ~/work; mv -T ~/d ~/way; mv -f ~/f ~/.conf",
    "python3 -c \"import os; h = os.environ['HOME']; [os.replace(f'{h}/{n}', f'{h}/x{n}') for n in os.listdir(h)]\"",
)
LOOK = "cat ~/work/mark ~/way/deep/mark ~/.conf"


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_mount_points_of_another_policy(attempt: str, workspace: Path, homes: Path, home_of_user: Path) -> None:
    """Commands of another policy, in the same home, can't remove what is mounted in it from a sandbox that runs.

    Control: what isn't mounted there they can remove.
    """
    first = _shown_below(home_of_user).with_(home="private:a")
    other = Policy.workspace(workspace, home="private:a")
    with Sandbox(first) as box, box.session() as session:
        assert session.shell(f"{LOOK}; mkdir ~/own ~/own2; touch ~/own/f").stdout == "work\ndeep\nconf\n"
        sh("rmdir ~/own2; rm -r ~/own", other)
        assert session.shell("ls ~").stdout == "way\nwork\n"
        sh(attempt, other)
        assert session.shell(f"{LOOK}; ls ~/own").stdout == "work\ndeep\nconf\n"
        assert box.shell(LOOK).stdout == "work\ndeep\nconf\n"
    assert sh(LOOK, first) == "work\ndeep\nconf\n"


def test_mount_points_of_a_sandbox_before(workspace: Path, homes: Path, home_of_user: Path) -> None:
    """Nor can those of a Sandbox whose policy has changed, while a session of the earlier one runs."""
    with Sandbox(_shown_below(home_of_user)) as box, box.session() as session:
        assert session.shell(LOOK).stdout == "work\ndeep\nconf\n"
        box.update(Policy.workspace(workspace))
        for attempt in ATTEMPTS:
            box.shell(attempt)
        assert session.shell(LOOK).stdout == "work\ndeep\nconf\n"


def test_mount_points_that_are_gone(homes: Path, home_of_user: Path) -> None:
    """They are made again, no matter what has removed them outside, also for a Sandbox that is open; no link is followed."""
    policy = _shown_below(home_of_user).with_(home="private:a")
    with Sandbox(policy) as box:
        assert box.shell(LOOK).stdout == "work\ndeep\nconf\n"
        (homes / "a/work").rmdir()
        (homes / "a/.conf").unlink()
        assert box.shell(LOOK).stdout == sh(LOOK, policy) == "work\ndeep\nconf\n"
        (homes / "a/way").rmdir()
        (homes / "a/way").symlink_to(home_of_user / "work")
        with pytest.raises(PolicyError, match=r"homes/a/way is in the way of .*way/deep, which the policy shows"):
            box.shell(LOOK)


def test_names_of_mount_points_are_out_of_reach(workspace: Path, homes: Path, home_of_user: Path) -> None:
    """A policy whose commands could write to where their names are kept has no home. Control: beside it."""
    sh("true", _shown_below(home_of_user).with_(home="private:a"))
    points = homes.parent / "points"
    assert {path.name for path in (points / "a").iterdir()} >= {"work", "way", ".conf"}
    writer = Policy.workspace(workspace, write=[points], home="private:a")
    with pytest.raises(PolicyError, match=r"points lies in .*points, which commands of this policy may write to"):
        sh("true", writer)


@pytest.mark.parametrize("mode", ["000", "100", "777"])
def test_mode_of_a_home(mode: str, workspace: Path, homes: Path) -> None:
    """A command can close its home, or open it to others; the next one has it with the mode that it had."""
    policy = Policy.workspace(workspace, home="private:a")
    look = "cd ~ && touch x && ls x && stat -c %a ."
    with Sandbox(Policy.workspace(workspace)) as box:
        for way in (policy, box):
            assert sh(f"{look}; chmod {mode} ~", way) == "x\n700\n"
            assert sh(look, way) == "x\n700\n"


def test_a_link_is_not_given_the_mode(workspace: Path, homes: Path, tmp_path: Path) -> None:
    """What has taken the place of a home that was closed isn't changed. Control: the home itself is."""
    policy = Policy.workspace(workspace, home="private:a")
    sh("chmod 000 ~", policy)
    sh("chmod 000 ~", policy)
    (homes / "a").rename(homes / "was")
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o750)
    (homes / "a").symlink_to(victim)
    with pytest.raises(PolicyError, match="is no directory of this user's"):
        sh("true", policy)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o750


# ---- what one program leaves in ~ for the next

LEAVE = "cat ~/left; echo evil > ~/left"
LEAVE_PY = """
import os
path = os.path.expanduser("~/left")
found = os.path.exists(path)
open(path, "w").close()
found
"""


@pytest.mark.parametrize("chosen", [{"read_only": True}, {"home": "tmp"}], ids=str)
def test_nothing_is_left_for_the_next_command(workspace: Path, homes: Path, chosen: dict[str, Any]) -> None:
    """Each command has a home of its own if the policy opens nothing for writing, or says so."""
    with Sandbox(Policy.workspace(workspace, **chosen)) as box:
        assert [sh(LEAVE, box) for _ in range(3)] == ["", "", ""]
    assert not list(homes.glob("box-*"))


def test_control_commands_share_a_home(workspace: Path, homes: Path) -> None:
    """A command finds what the last one left where commands may write."""
    with Sandbox(Policy.workspace(workspace)) as box:
        assert [sh(LEAVE, box) for _ in range(2)] == ["", "evil\n"]


@pytest.mark.parametrize("overlay", [False, True])
def test_nothing_is_left_for_the_next_branch(workspace: Path, homes: Path, overlay: bool) -> None:
    """Neither runs nor kernels nor calls of an executor find what others left in ~. Commands don't either."""
    with Sandbox(Policy.workspace(workspace), stock=0) as box, box.python(overlay=overlay) as py:
        assert [py.run(LEAVE_PY).value for _ in range(3)] == [False, False, False]
        assert [result.value for result in py.map([LEAVE_PY] * 3)] == [False, False, False]
        with py.kernel() as kernel, py.kernel() as other:
            assert [each.run(LEAVE_PY).value for each in (kernel, kernel, other)] == [False, True, False]
        with nsbox.SandboxExecutor(box, max_workers=1, overlay=overlay) as executor:
            calls = [executor.submit(leave_file).result() for _ in range(2)]
        assert calls == [False, False]
        assert sh(LEAVE, box) == ""
        assert py.run(LEAVE_PY).value is False


def test_control_branches_share_a_home_by_name(workspace: Path, homes: Path) -> None:
    """The policy can say that branches keep their home."""
    with Sandbox(Policy.workspace(workspace, home="private:kept"), stock=0) as box, box.python() as py:
        assert [py.run(LEAVE_PY).value for _ in range(2)] == [False, True]


def leave_file() -> bool:
    import os

    path = os.path.expanduser("~/left")
    is_there = os.path.exists(path)
    open(path, "w").close()
    return is_there
