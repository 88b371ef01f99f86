"""Attempts to get out of a home that is kept, or into it; each has a control that shows the way works elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
    with pytest.raises(PolicyError, match="nobody else may write to it"):
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
