"""A world for real clients: each command runs in a sandbox with a list, and in one with the host's network."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsbox_testing import needs

_SUBJECT = "/CN=web.example"
_EXTENSIONS = (
    "subjectAltName=DNS:web.example,DNS:hidden.example,DNS:down.example",
    "keyUsage=critical,digitalSignature,keyCertSign",
)
LISTED = (
    *(f"web.example:{port}" for port in (80, 443, 22, 5432, 6379, 8443)),
    *("down.example:*", "nowhere.example:*", "203.0.113.53:53/udp"),
    *(f"{name}.example:123/udp" for name in ("web", "down", "nowhere")),
)
# What runs on the host: lines of shell, each with the entries of its list; None: the host's network.
_CODE = """
from concurrent.futures import ThreadPoolExecutor
requests = json.loads(REQUESTS)
boxes = {}
for request in requests:
    key = request["entries"] and tuple(request["entries"])
    if key not in boxes:
        boxes[key] = nsbox.Sandbox(policy(*key) if key else nsbox.Policy.workspace(ws, network="host"))
def once(request):
    result = boxes[request["entries"] and tuple(request["entries"])].shell(request["line"], timeout=60)
    why = [[hint.kind, hint.message] for hint in result.why]
    return {"status": result.returncode, "text": result.stdout + result.stderr, "hints": why, "late": result.timed_out}
with ThreadPoolExecutor(2) as pool:
    print(json.dumps(list(pool.map(once, requests))))
for each in boxes.values():
    each.close()
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a command. hints: kinds and messages; empty on the host's network."""

    status: int
    text: str
    hints: list[list[str]]
    late: bool

    def like(self) -> tuple[int, str]:
        """Return what doesn't differ by run: no times, no addresses, no name that isn't there."""
        text = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", "ADDRESS", self.text)
        text = re.sub(r"\b(missing|hidden|down|web|nowhere)\.example\b", "NAME", text)
        text = re.sub(r" - Local \(\S+\)", "", text)  # Node's, of a connect(2) that failed at once; here it has to wait
        text = re.sub(r"\b\d+(\.\d+)? ?(ms|s|milliseconds|seconds|[KMG]?B/s)\b", "TIME", text)
        text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d[:_]\d\d[:_]\d\d[\w.-]*|\b0x[0-9a-f]+\b|port \d+\b|:\d+\b", "N", text)
        return self.status, text


class World:
    """A host on which commands run, and the workspace in which they do."""

    def __init__(self, directory: Path, start: Callable[[Path, str], list[str]]) -> None:
        """Make what its servers serve. start: has a host whose files are in a directory, and runs Python on it."""
        self._directory, self._start = directory, start
        self.workspace = directory / "ws"
        self.workspace.mkdir()
        _fill(directory / "served", self.workspace)

    def run(self, *requests: tuple[str, tuple[str, ...] | None]) -> list[Outcome]:
        """Run lines of shell, each with the entries of its list, or on the host's network."""
        wanted = json.dumps([{"line": line, "entries": entries} for line, entries in requests])
        answers = json.loads(self._start(self._directory, _CODE.replace("REQUESTS", repr(wanted)))[-1])
        return [Outcome(**answer) for answer in answers]


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def _fill(served: Path, workspace: Path) -> None:
    """Make all that servers serve, and what clients need for them."""
    (served / "www").mkdir(parents=True)
    (served / "www/hello").write_text("hello\n")
    (served / "www/large").write_bytes(bytes(range(256)) * (20 << 12))
    openssl = needs.require("openssl")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", _SUBJECT)
    extensions = [word for extension in _EXTENSIONS for word in ("-addext", extension)]
    _run(openssl, "req", "-x509", *new, *extensions, "-keyout", served / "key.pem", "-out", served / "ca.pem")
    (workspace / "ca.pem").write_bytes((served / "ca.pem").read_bytes())
    _fill_registries(served / "www")
    if needs.find("git"):
        _fill_git(served)
    if needs.find("dropbear") and needs.find("ssh-keygen"):
        (served / "home/.ssh").mkdir(parents=True, mode=0o700)
        (served / "home").chmod(0o700)
        _run("dropbearkey", "-t", "ed25519", "-f", served / "host_key")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", workspace / "identity")
        (workspace / "identity.pub").rename(served / "home/.ssh/authorized_keys")
        (served / "home/.ssh/authorized_keys").chmod(0o600)
        (served / "home/repository").symlink_to(served / "www/repository")


def _fill_git(served: Path) -> None:
    git = ("git", "-c", "init.defaultBranch=main", "-c", "user.name=a", "-c", "user.email=a@a.example")
    work = served / "work"
    _run(*git, "init", "-q", work)
    (work / "hello").write_text("hello\n")
    _run(*git, "-C", work, "add", "hello")
    _run(*git, "-C", work, "commit", "-qm", "hello")
    _run(*git, "clone", "-q", "--bare", work, served / "www/repository")
    _run(*git, "-C", served / "www/repository", "update-server-info")


def _fill_registries(www: Path) -> None:
    """Make an index as pip reads one, and as npm does, each with a package named hello."""
    (www / "simple/hello").mkdir(parents=True)
    wheel = "hello-1.0-py3-none-any.whl"
    (www / "simple/hello/index.html").write_text(f'<!DOCTYPE html><a href="{wheel}">{wheel}</a>\n')
    with zipfile.ZipFile(www / "simple/hello" / wheel, "w") as archive:
        info = "hello-1.0.dist-info"
        archive.writestr("hello.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (www / "npm").mkdir()
    tarball = "https://web.example/npm/hello-1.0.0.tgz"
    version = {"name": "hello", "version": "1.0.0", "dist": {"tarball": tarball, "shasum": "0" * 40}}
    package = {"name": "hello", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (www / "npm/hello").write_text(json.dumps(package))


PYTHON = shlex.quote(sys.executable)
