"""The clients of this machine's package registries, by a list of the hosts that each is configured for here.

Which these are is asked of the clients when the test runs. Where one can't be reached, the test is skipped. The control is the
same command on the host's network, from which it is also seen which hosts it connects to.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from nsbox_testing import needs

import nsbox

IS_THOROUGH = bool(os.environ.get("NSBOX_THOROUGH"))
THOROUGH = pytest.mark.skipif(not IS_THOROUGH, reason="slow: NSBOX_THOROUGH=1 has it")
APT = ("/var/lib/apt", "/var/lib/dpkg", "/var/cache/apt")


def tried(command: list[str], workspace: Path, network: object, **wishes: object) -> nsbox.ToolResult:
    """Run a command in a workspace of its own."""
    workspace.mkdir(exist_ok=True)
    policy = nsbox.Policy.workspace(workspace, network=network, **wishes)
    with nsbox.Sandbox(policy) as box:
        return box.shell(shlex.join(command), timeout=90, max_output=1 << 20)


def entry(host: str, port: int) -> str:
    """Return an entry for a host, however it is named."""
    return f"{'localhost' if host.startswith('127.') else host}:{port}"


def network_of(hosts: list[tuple[str, int]]) -> nsbox.Network:
    """Return a list of these hosts, which may be of the machine's own network."""
    if not hosts:
        pytest.skip("it asks no host here")
    return nsbox.Network(allow=sorted({entry(*host) for host in hosts}), private=True)


def check_refused(command: list[str], workspace: Path, **wishes: object) -> None:
    """With a list of another host it fails, and a hint says why."""
    done = tried(command, workspace, ["other.example"], **wishes)
    assert done.returncode != 0
    said = [hint.message for hint in done.why if hint.kind == "network"]
    assert said and "in network= (other.example:443); add" in said[0]


@pytest.mark.parametrize("options", [[], pytest.param(["--isolated"], marks=THOROUGH)], ids=["configured", "isolated"])
def test_pip(tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip download six`, from the index and the files' host alone."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-vvv",
        "--retries=0",
        "--timeout=20",
        "--no-cache-dir",
        "--no-deps",
    ]
    command += [*options, "-d", "got", "six"]
    for name in ("index-url", "extra-index-url", "find-links"):
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0 and not options:
            command[4:4] = [f"--{name}={value}" for value in asked.stdout.split() if "://" in value]
    outside = tried(command, tmp_path / "outside", "host")
    if outside.returncode != 0:
        pytest.skip("no package index can be reached here")
    hosts = re.findall(r"Starting new HTTPS? connection \(\d+\): ([^\s:]+):(\d+)", outside.stdout + outside.stderr)
    network = network_of([(host, int(port)) for host, port in hosts])
    inside = tried(command, tmp_path / "inside", network)
    assert inside.returncode == 0, (inside, network)
    got = [
        {file.name: file.read_bytes() for file in (tmp_path / side / "got").iterdir()} for side in ("outside", "inside")
    ]
    assert got[0] == got[1] != {}
    if len(hosts) > 1:  # else it is in a directory here
        check_refused(command, tmp_path / "refused")


def test_npm(tmp_path: Path) -> None:
    """`npm view`, from the registry alone."""
    npm = needs.require("npm", "node")
    asked = subprocess.run(
        [npm, "config", "get", "registry"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    url = urlsplit(asked.stdout.strip())
    if asked.returncode != 0 or url.hostname is None:
        pytest.skip("npm has no registry here")
    command = [
        npm,
        "view",
        "npm",
        "dist-tags.latest",
        f"--registry={url.geturl()}",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
    ]
    command += ["--update-notifier=false"]
    outside = tried(command, tmp_path / "outside", "host")
    if outside.returncode != 0:
        pytest.skip("npm's registry can't be reached here")
    network = network_of([(url.hostname, url.port or (443 if url.scheme == "https" else 80))])
    inside = tried(command, tmp_path / "inside", network)
    assert (inside.returncode, inside.stdout) == (0, outside.stdout), inside
    check_refused(command, tmp_path / "refused")


def test_apt(tmp_path: Path) -> None:
    """`apt-get download`, from the archive alone."""
    apt = needs.require("apt-get")
    shown = [path for path in APT if os.path.isdir(path)]
    command = [apt, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=0"]  # no other user is there inside
    command += ["-o", "Acquire::http::Timeout=20", "download"]
    asked = tried([*command, "--print-uris", "base-files"], tmp_path / "outside", "host", read=shown)
    uris = [urlsplit(uri) for uri in re.findall(r"^'(https?://[^']+)'", asked.stdout, re.MULTILINE)]
    if asked.returncode != 0 or not uris or shutil.which("dpkg") is None:
        pytest.skip("apt knows no archive here")
    command.append("base-files")
    if tried(command, tmp_path / "outside", "host", read=shown).returncode != 0:
        pytest.skip("apt's archive can't be reached here")
    ports = {"https": 443, "http": 80}
    network = network_of([(uri.hostname or "", uri.port or ports[uri.scheme]) for uri in uris])
    inside = tried(command, tmp_path / "inside", network, read=shown)
    assert inside.returncode == 0, (inside, network)
    assert [file.name for file in (tmp_path / "inside").iterdir()] == [
        file.name for file in (tmp_path / "outside").iterdir()
    ]
    if IS_THOROUGH:
        check_refused(command, tmp_path / "refused", read=shown)
