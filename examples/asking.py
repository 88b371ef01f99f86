"""An agent's command that asks you before it connects to a host that it hasn't connected to before.

    python examples/asking.py ANSWERS COMMAND [ARGUMENT...]

    python examples/asking.py ~/.agent-hosts.json curl -sS https://packages.example/

Any program is held at its connect(2) until you have answered. It sees a refused connection where you say no. Answers
are kept in the file ANSWERS, so each host and port is asked about once. Keep that file out of the workspace: a command
could write the answers itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import nsbox
from nsbox import NetworkRequest, Policy, Sandbox


class Gate:
    """What the user has said so far. Questions may come from several threads at once."""

    def __init__(self, answers: Path) -> None:
        self._path, self._lock = answers, threading.Lock()
        self._known: dict[str, bool] = json.loads(answers.read_text()) if answers.exists() else {}

    def ask(self, request: NetworkRequest) -> bool:
        """Return the answer for the host of this request, which the user gives unless it is known."""
        host = f"{request.name or request.address}:{request.port}"
        with self._lock:  # one question at a time on the terminal
            if host not in self._known:
                said = self._question(host)
                if not said:  # nobody is there: no, but only for now
                    return False
                self._known[host] = said in ("y", "yes")
                self._save()
            allow = self._known[host]
            print(f"{host}: {'allowed' if allow else 'refused'}", file=sys.stderr, flush=True)
            return allow

    def _question(self, host: str) -> str:
        print(f"connect to {host}? [y/n] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower()

    def _save(self) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(json.dumps(self._known, indent=2) + "\n")
        new.replace(self._path)


def main() -> int:
    """Run the command; return its status."""
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    answers, workspace = Path(sys.argv[1]).resolve(), Path.cwd()
    if answers.is_relative_to(workspace):
        print(f"{answers} is in the workspace, where the command can write it", file=sys.stderr)
        return 2
    policy = Policy.workspace(workspace)  # no list: everything is asked
    try:
        with Sandbox(policy, on_connect=Gate(answers).ask) as box:
            # The terminal's input is for the answers.
            return box.run(sys.argv[2:], stdin=subprocess.DEVNULL, check=False).returncode % 256
    except (nsbox.UnavailableError, nsbox.SetupError, OSError) as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    raise SystemExit(main())
