"""A client as it is: the npm package @anthropic-ai/sandbox-runtime, whose `srt` wraps a command with the first bwrap on PATH.

What it asks of a bwrap, in this order (0.0.78; any bwrap of the last years has these options, and it asks for no version):

    --new-session --die-with-parent
    --unshare-net, the Unix socket of its proxy bound at its own path, --setenv for each proxy variable (after --unsetenv
        and --setenv of credentials, if there are any)
    --ro-bind / /, --bind for what may be written; then, over these: --tmpfs on directories that must not be read,
        --ro-bind /dev/null on such files, --ro-bind on what must not be written. Names of the workspace that would be
        dangerous if they came to be (.bashrc, .gitconfig, .mcp.json...) get a --ro-bind of /dev/null, or of an empty
        directory, though they don't exist: the bwrap makes empty mount points on the host, which srt removes in the end.
    --dev /dev --unshare-pid --unshare-user --cap-drop ALL, for root --cap-add CAP_SETFCAP as well, --proc /proc
    -- bash -c SCRIPT

All mounts go through `--args 9` if the line would be longer than 128 KiB or so, which is the limit for one argument.
SCRIPT starts two socats that listen on 3128 and 1080 of the sandbox's own loopback, and lets a helper start the command.
The helper, apply-seccomp, makes user, pid and mount namespaces inside the sandbox (as root it maps 0, for which the
capability is), mounts a fresh /proc where it can, and refuses Unix sockets by a filter.
"""

from __future__ import annotations

import http.server
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs

pytestmark = pytest.mark.timeout(60)

PACKAGE = "@anthropic-ai/sandbox-runtime@0.0.78"
OPTIONS = {
    *(
        "--new-session",
        "--die-with-parent",
        "--unshare-net",
        "--unshare-pid",
        "--unshare-user",
        "--cap-drop",
        "--cap-add",
    ),
    *("--bind", "--ro-bind", "--tmpfs", "--dev", "--proc", "--setenv"),
}


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package; skip where it, or what it needs, can't be had."""
    needs.require("node", "npm", "socat", "rg")
    directory = tmp_path_factory.mktemp("npm")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--fetch-retries=1"]
    npm = ["npm", "install", *options, f"--cache={directory / 'cache'}", f"--prefix={directory}", PACKAGE]
    done = subprocess.run(npm, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm can't install {PACKAGE}: {done.stderr.strip()[-300:]}")
    return directory / "node_modules" / ".bin" / "srt"


@dataclass
class Runtime:
    """A workspace that may be written to, and how to run a command there."""

    srt: Path
    bwrap: str
    home: Path
    workspace: Path
    settings: dict[str, Any]

    def popen(self, command: str, **more: Any) -> subprocess.Popen[str]:
        """Start the command, our bwrap being the first on PATH."""
        settings = self.home / "settings.json"
        settings.write_text(json.dumps(self.settings))
        env = os.environ | {"HOME": str(self.home), "TMPDIR": str(self.home)}
        env["PATH"] = f"{Path(self.bwrap).parent}:{env['PATH']}"
        return subprocess.Popen(
            [self.srt, "--settings", settings, "-c", command],
            cwd=self.workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def run(self, command: str) -> tuple[int, str, str]:
        """Run the command, and return its status, output and errors."""
        with self.popen(command) as process:
            out, err = process.communicate()
        return process.returncode, out, err


@pytest.fixture
def runtime(package: Path, bwrap: str, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    home = tmp_path_factory.mktemp("srt")  # a short name: a Unix socket is made there
    workspace = home / "work"
    workspace.mkdir()
    (workspace / "fixed").write_text("fixed\n")
    (home / "secret").write_text("secret\n")
    (home / "secrets").mkdir()
    (home / "secrets" / "one").write_text("secret\n")
    files = {
        "denyRead": [str(home / "secret"), str(home / "secrets")],
        "allowWrite": [str(workspace)],
        "denyWrite": [str(workspace / "fixed")],
    }
    settings = {"network": {"allowedDomains": [], "deniedDomains": []}, "filesystem": files}
    return Runtime(package, bwrap, home, workspace, settings)


def test_files(runtime: Runtime) -> None:
    """What may be written is; what may not isn't, nor read what is denied; the status is the command's, and the host keeps no mount point."""
    commands = ["echo new > new", "echo x > ../outside", "echo x > fixed", "cat ../secret", "cat ../secrets/one"]
    script = "; ".join(f"{command}; echo $?" for command in [*commands, "echo x > .bashrc", "cat fixed"])
    status, out, err = runtime.run(f"{script}; exit 7")
    assert (status, out.split()) == (7, ["0", "1", "1", "1", "1", "1", "fixed", "0"]), err
    assert err.count("Read-only file system") == 2
    assert "Permission denied" in err
    assert sorted(os.listdir(runtime.workspace)) == ["fixed", "new"]
    assert (runtime.workspace / "new").read_text() == "new\n"
    assert (runtime.workspace / "fixed").read_text() == "fixed\n"
    assert not (runtime.home / "outside").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_signal(runtime: Runtime, number: signal.Signals) -> None:
    """A command that dies by a signal ends with the status that a shell gives it."""
    assert runtime.run(f"kill -{number} $$")[:2] == (128 + number, "")


def test_end_from_outside(runtime: Runtime) -> None:
    """SIGTERM for srt ends the shell that has started the bwrap, and --die-with-parent all that is in the sandbox."""
    with runtime.popen("echo ready; sleep 1000 & exec sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert select.select([process.stdout], [], [], 10)[0], "the sandbox lives on"
        assert process.stdout.read() == ""  # nobody holds it any more
        assert process.wait() == 0  # srt's own status for this


class Silent(http.server.BaseHTTPRequestHandler):
    """Answers, and writes no log."""

    def do_GET(self) -> None:
        """Answer with one word."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def server() -> Iterator[int]:
    """Serve HTTP on the loopback of this machine, and return the port."""
    with http.server.HTTPServer(("127.0.0.1", 0), Silent) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


INSIDE = """
import os, socket, sys, time, urllib.request
url = sys.argv[1]
for attempt in (lambda: socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5), lambda: socket.socket(socket.AF_UNIX)):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__)
for name in ("NO_PROXY", "no_proxy"):
    del os.environ[name]
while True:
    try:
        print(urllib.request.urlopen(url).read().decode())
        break
    except OSError:  # the sandbox's socat may not be there yet
        time.sleep(0.02)
"""


def test_network(runtime: Runtime) -> None:
    """The sandbox's own loopback is up and its proxy answers there; nothing of the host's network is; the helper's filter refuses Unix sockets."""
    with server() as port:
        runtime.settings["network"]["allowedDomains"] = [f"127.0.0.1:{port}"]
        command = shlex.join([sys.executable, "-I", "-c", INSIDE, f"http://127.0.0.1:{port}"])
        status, out, err = runtime.run(command)
    assert (status, out.split()) == (0, ["ConnectionRefusedError", "PermissionError", "answer"]), err


def test_capabilities(runtime: Runtime) -> None:
    """The helper can make its namespaces: an ordinary user's command has no capability, root's all, in a namespace that is the helper's."""
    status, out, err = runtime.run("grep CapEff /proc/self/status; cat /proc/self/uid_map; readlink /proc/self/ns/user")
    assert status == 0, err
    capabilities, uid_map, namespace = out.splitlines()
    assert (int(capabilities.split()[1], 16) != 0) == (os.getuid() == 0)
    assert uid_map.split() == [str(os.getuid()), str(os.getuid()), "1"]
    assert namespace != os.readlink("/proc/self/ns/user")


@pytest.fixture
def recorded(runtime: Runtime) -> Path:
    """Put a script in front of the bwrap that writes down its arguments; return where."""
    log, directory = runtime.home / "argv", runtime.home / "bin"
    directory.mkdir()
    script = directory / "bwrap"
    script.write_text(f'#!/bin/sh\nprintf \'%s\\0\' "$@" > {log}\nexec {shlex.quote(runtime.bwrap)} "$@"\n')
    script.chmod(0o755)
    runtime.bwrap = str(script)
    return log


def test_options(runtime: Runtime, recorded: Path) -> None:
    """It uses the options that the text above says, root one more."""
    assert runtime.run("true")[0] == 0
    words = recorded.read_text().split("\0")
    options = words[: words.index("--")]
    assert {word for word in options if word.startswith("--")} == OPTIONS - ({"--cap-add"} if os.getuid() else set())
    assert options[:2] == ["--new-session", "--die-with-parent"]


def test_long_profile(runtime: Runtime, recorded: Path) -> None:
    """More than one argument can hold goes through --args, and holds as well."""
    directory = runtime.workspace / ("d" * 200)
    directory.mkdir()
    files = [directory / str(number) for number in range(300)]
    for file in files:
        file.write_text("")
    runtime.settings["filesystem"]["denyWrite"] += map(str, files)
    status, out, err = runtime.run(f"cd {directory.name}; echo x > 0; echo x > 299; echo x > other; cat other")
    assert (status, out) == (0, "x\n"), err
    assert err.count("Read-only file system") == 2
    words = recorded.read_text().split("\0")
    assert words[words.index("--args") + 1] == "9"
