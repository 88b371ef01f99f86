"""Patterns against commands that know them: what is matched stays hidden, and a walk never leaves its directory.

Each attempt has a control, in which nothing is matched or looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox import Policy, PolicyError
from nsbox._lookup.matches import matches

ATTEMPTS = (
    "cat deep/a/key.env",
    "mv deep/a/key.env x; cat x",
    "mv deep/a b; cat b/key.env",
    "mv deep d; cat d/a/key.env",
    "ln deep/a/key.env hard; cat hard",
    "ln -s deep/a/key.env soft; cat soft",
    "cp -r deep copy; cat copy/a/key.env",
    "chmod 777 deep/a/key.env; cat deep/a/key.env",
    "rm -f deep/a/key.env; git init 2>/dev/null; cat deep/a/key.env",
    "unshare -Urm sh -c 'umount deep/a/key.env; cat deep/a/key.env'",
    "tar c deep | tar xO",
)


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a key in it, beside a directory with another."""
    for name in ("ws/deep/a", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "key.env").write_text("SECRET\n")
    monkeypatch.chdir(tmp_path / "ws")
    return tmp_path / "ws"


def seen(policy: Policy, script: str) -> bool:
    done = nsbox.run(script, shell=True, policy=policy, stdout=nsbox.PIPE, stderr=nsbox.DEVNULL, text=True)
    return "SECRET" in done.stdout


@pytest.mark.parametrize("pattern", ["**/*.env", "deep/*/key.*", "deep/[a-c]/*"])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_matched(ws: Path, attempt: str, pattern: str) -> None:
    """What is matched isn't shown to this command, nor under another name to the next one."""
    policy = Policy.workspace(ws, deny=[pattern])
    assert not seen(policy, attempt)
    assert not seen(policy, "find . -type f -exec cat {} +")
    assert (ws / "deep/a/key.env").read_text() == "SECRET\n"


def test_control_matched(ws: Path) -> None:
    """Without a pattern most of these show it."""
    found = 0
    for attempt in ATTEMPTS:
        found += seen(Policy.workspace(ws), attempt)
        subprocess.run("rm -rf x b d hard soft copy deep; mkdir -p deep/a; echo SECRET > deep/a/key.env", shell=True)
    assert found > 5


PLANTED = ("ln -s {outside} link", "rm -r deep; ln -s {outside} deep", "ln -s / root", "ln -s . self; ln -s .. up")


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("field", ["deny", "read"])
def test_no_link_is_followed(ws: Path, planted: str, field: str) -> None:
    """Links that a command has left lead no pattern out of its directory: neither to hide nor to show what is there."""
    outside = ws.parent / "outside"
    nsbox.run(planted.format(outside=outside), shell=True, policy=Policy.workspace(ws), check=True)
    policy = Policy.workspace(ws).with_(**{field: [ws / "*/*.env", ws / "**/*.env"]})
    found = [path for paths in matches(policy).values() for path in paths]
    assert all(os.path.realpath(path) == path and path.startswith(f"{ws}/") for path in found)
    assert not seen(policy, f"cat {outside}/key.env link/key.env root{outside}/key.env")
    with pytest.raises(PolicyError):
        nsbox.run(["true"], policy=policy.with_(deny=["deep/*.x"]) if planted.startswith("rm") else _broken(ws))


def _broken(ws: Path) -> Policy:
    return Policy.workspace(ws, deny=[ws / "link-to-none", ws / "none*"], strict=True)


def test_control_link(ws: Path) -> None:
    """A walk that followed links would find it."""
    (ws / "link").symlink_to(ws.parent / "outside")
    assert "link/key.env" in {os.path.relpath(path, ws) for path in map(str, ws.glob("*/*.env"))}


SWAP = """
import os, sys
os.chdir(sys.argv[1])
os.symlink(sys.argv[2], "link")
os.mkdir("dir")
open("dir/x.env", "w").close()
print("ready", flush=True)
while True:
    os.rename("dir", "swap"); os.rename("link", "dir"); os.rename("dir", "link"); os.rename("swap", "dir")
"""


def test_swapped_while_looked_at(ws: Path) -> None:
    """A directory that becomes a link and back, all the time: no walk finds what is outside, and each ends."""
    outside = ws.parent / "outside"
    with subprocess.Popen([sys.executable, "-c", SWAP, ws, outside], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        policy = Policy.workspace(ws, deny=["**/*.env"])
        try:
            found = {path for _ in range(300) for paths in matches(policy).values() for path in paths}
        finally:
            process.kill()
    assert found <= {f"{ws}/deep/a/key.env", *(f"{ws}/{name}/x.env" for name in ("dir", "swap"))}
