"""Where the system's directories are, on made-up roots of several distributions."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsbox import Host, Policy
from nsbox._layout import user
from nsbox._layout.workspace import workspace
from nsbox._machine.directories import SystemDirs, look
from nsbox._plan.ops import Symlink

PLAIN = {"usr/bin": None, "usr/lib": None, "etc": None, "bin": "usr/bin", "lib": "usr/lib"}
SYSTEMS: dict[str, dict[str, str | None]] = {
    "merged": PLAIN | {"opt": None, "lib64": "usr/lib"},
    "unmerged": {"bin": None, "sbin": None, "lib": None, "usr/bin": None, "etc": None},
    "silverblue": PLAIN
    | {"var/opt": None, "opt": "var/opt", "var/usrlocal/bin": None, "usr/local": "../var/usrlocal", "var/home/u": None}
    | {"home": "var/home"},
    "nixos": {"bin": None, "usr/bin": None, "etc": None, "nix/store/abc-system/sw/bin": None}
    | {"run/current-system": "/nix/store/abc-system", "etc/static": "/nix/store/etc", "nix/store/etc/profiles": None}
    | {"etc/profiles": "/etc/static/profiles", "nix/store/etc/profiles/per-user/u/bin": None},
    "guix": {"bin": None, "etc": None, "gnu/store/s/profile/bin": None, "var/guix/profiles": None}
    | {"run/current-system": "/var/guix/profiles/system", "var/guix/profiles/system": "system-7-link"}
    | {"var/guix/profiles/system-7-link": "/gnu/store/s"},
    "homebrew": PLAIN | {"home/linuxbrew/.linuxbrew/bin": None, "home/u": None},
    "snap": PLAIN | {"var/lib/snapd/snap/bin": None, "snap": "/var/lib/snapd/snap"},
    "debian": PLAIN | {f"var/lib/{name}": None for name in ("dpkg", "mysql", "docker", "private", "aspell", "cloud")},
    "suse": PLAIN | {"var/lib/ca-certificates/pem": None, "etc/ssl/certs": "../../var/lib/ca-certificates/pem"},
}


def made(root: Path, entries: dict[str, str | None]) -> SystemDirs:
    for name, target in entries.items():
        path = root / name
        if target is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
    return look(str(root), user="u", home="/home/u")


@pytest.mark.parametrize(
    ("name", "shown", "links", "programs"),
    [
        ("merged", {"/opt", "/usr", "/etc"}, {}, ()),
        ("unmerged", {"/bin", "/sbin", "/lib", "/usr", "/etc"}, {}, ()),
        ("silverblue", {"/usr", "/etc", "/var/opt", "/var/usrlocal"}, {}, ()),
        (
            "nixos",
            {"/bin", "/usr", "/etc", "/nix"},
            {"/run/current-system": "/nix/store/abc-system"},
            ("/run/current-system/sw/bin", "/etc/profiles/per-user/u/bin"),
        ),
        (
            "guix",
            {"/bin", "/etc", "/gnu"},
            {
                "/run/current-system": "/var/guix/profiles/system",
                "/var/guix/profiles/system": "system-7-link",
                "/var/guix/profiles/system-7-link": "/gnu/store/s",
            },
            ("/run/current-system/profile/bin",),
        ),
        (
            "homebrew",
            {"/usr", "/etc", "/home/linuxbrew/.linuxbrew"},
            {},
            ("/home/linuxbrew/.linuxbrew/bin",),
        ),
        ("snap", {"/usr", "/etc", "/var/lib/snapd/snap"}, {}, ("/snap/bin",)),
        ("debian", {"/usr", "/etc", "/var/lib/dpkg", "/var/lib/aspell"}, {}, ()),
        ("suse", {"/usr", "/etc", "/var/lib/ca-certificates"}, {}, ()),
    ],
)
def test_systems(tmp_path: Path, name: str, shown: set[str], links: dict[str, str], programs: tuple[str, ...]) -> None:
    """What is readable there, which links lead to it, and where programs are; nothing of users or services."""
    found = made(tmp_path, SYSTEMS[name])
    real = {path for path, target in found.directories if target is None}
    assert {path for path in real if not any(path.startswith(f"{other}/") for other in real)} == shown
    assert dict(found.links) == links
    assert found.programs == programs


@pytest.mark.parametrize("name", SYSTEMS)
def test_plans(tmp_path: Path, name: str) -> None:
    """A plan for each of them mounts every directory once, and makes no link where something is mounted."""
    found = made(tmp_path, SYSTEMS[name])
    host = Host(directories=found.directories, ways=found.links, profiles=found.programs)
    ops = workspace(Policy(base="workspace", write=("/w",), workdir="/w"), host)
    dests = [dest for op in ops if (dest := getattr(op, "dest", None)) and type(op).__name__ in ("RoBind", "Symlink")]
    assert len(dests) == len({*dests})
    assert {path for path, _ in found.links} <= {*dests}


@pytest.mark.parametrize("target", ["/", "/home", "/home/u", "/home/u/opt", "/var", "/tmp", "/opt", "opt", "/nowhere"])
def test_links_to_too_much(tmp_path: Path, target: str) -> None:
    """A directory of the system that leads to homes, to all, to itself or nowhere shows nothing more."""
    found = made(tmp_path, PLAIN | {"home/u/opt": None, "var/x": None, "tmp": None, "opt": target})
    assert {path for path, to in found.directories if to is None} == {"/usr", "/etc"}


HOMES: dict[str, tuple[dict[str, str | None], str, tuple[tuple[str, str], ...]]] = {
    "silverblue": (SYSTEMS["silverblue"] | {"var/home/u": None}, "/var/home/u", (("/home", "var/home"),)),
    "absolute": ({"data/home": None, "home": "/data/home"}, "/data/home/u", (("/home", "/data/home"),)),
    "above": ({"data/home/u": None, "home": "usr/../data/home", "usr": None}, "/data/home/u", ()),
    "one user's": ({"data/u": None, "home": None, "home/u": "../data/u"}, "/data/u", (("/home/u", "../data/u"),)),
    "chain": ({"mnt/x/u": None, "srv/h": "/mnt/x", "home": "srv/h"}, "/mnt/x/u", ()),
    "dangling": ({"home": "no/where/home"}, "/home/u", ()),
    "circle": ({"home": "other", "other": "home"}, "/home/u", ()),
    "plain": ({"home/u": None}, "/home/u", ()),
    "system's": ({"usr/home/u": None, "home": "usr/home"}, "/tmp/home-u", ()),
}


@pytest.mark.parametrize("name", HOMES)
@pytest.mark.parametrize("home", ["private", "private:x"])
def test_linked_homes(tmp_path: Path, name: str, home: str) -> None:
    """A private home is where /home/USER leads, mounted by its real name; /home leads there in the sandbox too."""
    entries, real, links = HOMES[name]
    found = made(tmp_path, PLAIN | entries)
    host = Host(directories=found.directories, ways=found.links, home_links=found.home_links, user="u", state="/s")
    below = f"{real}/src/project"
    for policy in (
        Policy(base="workspace", write=("/w",), workdir="/w", home=home),
        Policy(base="workspace", write=(below,), workdir=below, home=home, links=links),
    ):
        ops = workspace(policy, host)
        assert user.home_path(policy, host) == real
        dests = {getattr(op, "dest", ""): op for op in ops}
        assert type(dests[real]).__name__ == ("Tmpfs" if home == "private" else "Bind")
        assert policy.workdir in dests
        made_links = {path: op.target for path, op in dests.items() if isinstance(op, Symlink)}
        assert {*links} <= {*made_links.items()}
        assert not any(path != link and path.startswith(f"{link}/") for path in dests for link in made_links)


def test_a_workspace_that_is_a_linked_home(tmp_path: Path) -> None:
    """The private home lies beside it then."""
    found = made(tmp_path, SYSTEMS["silverblue"])
    host = Host(directories=found.directories, home_links=found.home_links, user="u")
    policy = Policy(base="workspace", write=("/var/home/u",), workdir="/var/home/u")
    assert user.home_path(policy, host) == "/var/home/u-private"
    assert Symlink("var/home", "/home") in workspace(policy, host)
