"""An instance of agents whose workers have a shell, an exec and a file tool: what is promised about them, tried.

python examples/spacebot.py

INSTANCE/config.toml            [agents.sandbox]: mode, writable_paths, passthrough_env
INSTANCE/tools/bin/             programs that survive, first on PATH, read-only
INSTANCE/agents/main/workspace/ where workers work
INSTANCE/agents/main/data/      databases: hidden, wherever they lie
INSTANCE/agents/main/SOUL.md    who the agent is: outside of the workspace
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsbox import AccessError, PolicyError, Sandbox, leaks
from nsbox.secrets import JsonStore

CONFIG = """
[agents.sandbox]
mode = "enabled"
workspace = "agents/main/workspace"
home = "workspace"  # as workers of this system know it; by default it would be private
writable_paths = ["shared"]
deny = ["agents/main/data", "agents/main/workspace/data"]
tools_bin = "tools/bin"
passthrough_env = ["GH_TOKEN"]
network = "host"
protected = ["SOUL.md", "IDENTITY.md", "USER.md"]
"""


class Agent:
    """An agent with its sandbox, its secrets, and the way of its words to the outside."""

    def __init__(self, instance: Path) -> None:
        self.box = Sandbox.load(instance / "config.toml", section="agents.sandbox")
        self.secrets = JsonStore(instance / "agents/main/secrets/secrets.json")

    def reply(self, text: str) -> str:
        """Return what a channel gets; nothing, if there is a secret in it."""
        found = leaks.scan(text)
        return f"[blocked: {', '.join(f'{leak.kind} {leak.fingerprint}' for leak in found)}]" if found else text

    def send_file(self, path: str) -> bytes:
        return self.box.attach([path])[0].data


def make_instance(root: Path) -> Path:
    for name in ("tools/bin", "shared", "agents/main/workspace/data", "agents/main/data"):
        (root / name).mkdir(parents=True)
    (root / "agents/main/secrets").mkdir(mode=0o700)
    (root / "agents/main/data/spacebot.db").write_text("database")
    (root / "agents/main/workspace/data/config.redb").write_text("database")
    (root / "agents/main/SOUL.md").write_text("soul")
    (root / "agents/main/workspace/notes.md").write_text("notes")
    tool = root / "tools/bin/hello"
    tool.write_text("#!/bin/sh\necho hello from $0\n")
    tool.chmod(0o755)
    (root / "config.toml").write_text(CONFIG)
    return root


def refused(call: object, *args: object, **options: object) -> bool:
    try:
        call(*args, **options)  # type: ignore[operator]
    except (AccessError, PolicyError):
        return True
    return False


def files(agent: Agent, instance: Path) -> Iterator[tuple[str, bool]]:
    shell, data = agent.box.shell, instance / "agents/main/data/spacebot.db"
    yield "the workspace can be written", shell("echo x > made && cat made").stdout == "x\n"
    yield "so can writable_paths", shell(f"echo x > {instance}/shared/made").returncode == 0
    yield "system directories can be read", shell("cat /etc/hosts && ls /usr/bin").returncode == 0
    yield "and not written", shell("touch /usr/x").returncode != 0
    yield (
        "the data directory is hidden",
        "database" not in shell(f"cat {data}; cp -r {data.parent} .; cat data/*").stdout,
    )
    yield "in the workspace too", shell("cat data/config.redb").returncode != 0
    yield "it can't be written", shell(f"echo x > {data}").returncode != 0 and data.read_text() == "database"
    yield "identity files are out of sight", shell(f"cat {instance}/agents/main/SOUL.md").returncode != 0
    yield "so are other files of the host", shell(f"cat {instance}/config.toml; ls /var/log").stdout == ""
    yield (
        "/tmp is private to each command",
        shell("echo x > /tmp/gone").returncode == 0 and shell("cat /tmp/gone").returncode != 0,
    )
    yield "/dev has the standard nodes", shell("head -c 1 /dev/urandom > /dev/null").returncode == 0
    yield "tools are on PATH", shell("hello").stdout == f"hello from {instance}/tools/bin/hello\n"
    yield "and read-only", shell(f"echo x > {instance}/tools/bin/hello").returncode != 0
    yield "tools are listed", [tool.name for tool in agent.box.tools()] == ["hello"]


def processes(agent: Agent) -> Iterator[tuple[str, bool]]:
    shell = agent.box.shell
    yield "other processes are out of sight", shell(f"ls /proc | grep -x {os.getpid()}").stdout == ""
    yield "what is left running is killed", shell("sleep 1000 & echo $!").duration < 500
    late = shell("sleep 1000", timeout=0.5)
    yield "so is what takes too long", late.timed_out and late.why[0].kind == "timeout"
    flood = shell("yes | head -c 10M", max_output=10_000)
    yield "output is bounded", flood.stdout_bytes == 10 << 20 and len(flood.stdout) < 11_000


def environment(agent: Agent) -> Iterator[tuple[str, bool]]:
    os.environ |= {"ANTHROPIC_API_KEY": "of-the-host", "GH_TOKEN": "passed-through"}
    shell = agent.box.shell
    seen = dict(line.split("=", 1) for line in shell("env -0 | tr '\\0\\n' '\\n '").stdout.splitlines() if "=" in line)
    allowed = {"PATH", "HOME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", *agent.box.policy.taken_from_caller()}
    yield "nothing of the host's environment is there", seen.keys() <= allowed
    yield "but what is passed through", seen["GH_TOKEN"] == "passed-through"
    yield "HOME is the workspace", seen["HOME"] == agent.box.policy.workdir
    yield "TMPDIR is /tmp", seen["TMPDIR"] == "/tmp"
    yield "PATH begins with the tools", seen["PATH"].startswith(f"{agent.box.policy.tools_bin}:")
    agent.secrets.set("API_KEY", "a-secret-of-the-agent")
    told = shell('test ${#API_KEY} = 21 && echo "$API_KEY"', secrets=agent.secrets)
    yield "secrets are for one command, and never told", told.stdout == "***\n"
    yield (
        "dangerous variables are refused",
        all(refused(agent.box.exec, "true", env={name: "x"}) for name in ("LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS")),
    )
    agent.box.update(mode="disabled")
    yield "disabled, the environment is still built", "of-the-host" not in shell("env").stdout
    yield (
        "and HOME is the caller's",
        shell("echo $HOME").stdout == f"{os.environ.get('HOME', agent.box.policy.workdir)}\n",
    )
    agent.box.update(mode="enabled")
    yield "enabled again, all holds again", shell("touch /usr/x").returncode != 0


def tools(agent: Agent, instance: Path) -> Iterator[tuple[str, bool]]:
    box, outside = agent.box, instance / "agents/main/SOUL.md"
    yield "the file tool reads the workspace", box.read("notes.md") == "notes"
    yield (
        "and nothing else",
        refused(box.read, outside) and refused(box.read, "/etc/passwd") and refused(box.read, "../data"),
    )
    box.shell(f"ln -s {outside} link")
    yield "no symlink leads out", refused(box.read, "link") and refused(box.write, "link", "x")
    yield "identity files are never written", refused(box.write, "soul.md", "x")
    yield (
        "files are sent from the workspace only",
        agent.send_file("notes.md") == b"notes" and refused(agent.send_file, str(outside)),
    )
    key = "sk-ant-api03-" + "aB3" * 31 + "AA"
    encoded = "".join(f"%{byte:02x}" for byte in key.encode())
    yield "a leak is blocked on its way out", agent.reply(f"the key is {key}").startswith("[blocked: ")
    yield "encoded too", agent.reply(encoded).startswith("[blocked: ")
    yield "and never repeated", key not in agent.reply(key)
    yield "other words pass", agent.reply("all tests pass") == "all tests pass"
    yield "results are JSON", json.loads(box.shell("exit 3").as_json())["status"] == 3


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="instance-") as directory:
        instance = make_instance(Path(os.path.realpath(directory)))
        agent = Agent(instance)
        failed = 0
        with agent.box:
            print(f"backend: {agent.box.Popen(['true']).sandbox.backend}")
            for promises in (files(agent, instance), processes(agent), environment(agent), tools(agent, instance)):
                for promise, holds in promises:
                    print("ok " if holds else "NOT", promise)
                    failed += not holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
