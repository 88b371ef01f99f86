"""The environment and the descriptors of a command, as seen from inside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import in_fork

import nsbox
from nsbox import Policy


def test_environment_is_built(inside: Callable[..., Any], policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH, HOME, TMPDIR, and of the caller only what has no secrets, such as LANG; what the policy passes or sets comes on top."""
    for name, value in {
        "USER": "me",
        "LANG": "C",
        "TERM": "dumb",
        "AWS_SECRET": "s",
        "LD_PRELOAD": "",
        "EDITOR": "ed",
    }.items():
        monkeypatch.setenv(name, value)
    done = nsbox.run(["/usr/bin/env", "-0"], policy=policy, stdout=subprocess.PIPE, text=True)
    env = dict(pair.split("=", 1) for pair in done.stdout.split("\0")[:-1])
    assert set(env) - set(policy.taken_from_caller()) == {"PATH", "HOME", "TMPDIR"}
    assert {"USER", "LANG", "TERM"} <= set(env) and not {"AWS_SECRET", "LD_PRELOAD", "EDITOR"} & set(env)
    assert env["HOME"].startswith("/home/") and (env["TMPDIR"], env["USER"]) == ("/tmp", "me")
    assert "/usr/bin" in env["PATH"].split(":")
    chosen = policy.with_(pass_env=["EDITOR", "NOT_SET"], env={"CI": "1", "USER": "other"})
    done = nsbox.run(["/usr/bin/env", "-0"], policy=chosen, stdout=subprocess.PIPE, text=True)
    env = dict(pair.split("=", 1) for pair in done.stdout.split("\0")[:-1])
    assert (env["EDITOR"], env["CI"], env["USER"]) == ("ed", "1", "other")
    assert "NOT_SET" not in env and "AWS_SECRET" not in env


def test_what_is_taken_is_looked_up_for_each_command(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The caller's variables and directory count as they are now, whatever a command before had; other objects too."""

    def seen() -> list[str]:
        done = nsbox.run(["sh", "-c", "echo ${LANG-none}; pwd"], policy=policy, stdout=subprocess.PIPE, text=True)
        return done.stdout.split()

    assert policy.workdir is not None
    below = Path(policy.workdir) / "below"
    below.mkdir()
    for _ in range(2):
        for lang, directory, start in (
            ("one", below, str(below)),
            ("two", tmp_path, policy.workdir),  # which it can't see
            ("two", Path(policy.workdir), policy.workdir),
        ):
            monkeypatch.setenv("LANG", lang)
            monkeypatch.chdir(directory)
            assert seen() == [lang, start]
        monkeypatch.delenv("LANG")
        assert seen() == ["none", policy.workdir]
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {**os.environ, "LANG": "replaced"})
        assert seen() == ["replaced", policy.workdir]
    assert seen() == ["none", policy.workdir]


def test_environment_given_is_used_as_it_is(policy: Policy) -> None:
    """env= replaces what would be built, also with a policy that sets variables."""
    done = nsbox.run(
        ["/usr/bin/env"], policy=policy.with_(env={"CI": "1"}), env={"ONLY": "this"}, stdout=subprocess.PIPE
    )
    assert done.stdout == b"ONLY=this\n"


def test_environment_of_a_host_policy() -> None:
    """env=None under a host policy is os.environ; os.putenv(), which goes behind its back, doesn't reach the command.

    The C library's own array can't be read safely: setenv() in another thread reallocates it meanwhile.
    """

    def run() -> str:
        os.environ["NSBOX_SET"] = "set"
        os.putenv("NSBOX_PUT", "put")
        script = ["sh", "-c", "echo $NSBOX_SET $NSBOX_PUT"]
        return nsbox.run(script, policy=Policy.host(), stdout=subprocess.PIPE, text=True).stdout

    assert in_fork(run) == "set\n"


def test_environment_that_changes_meanwhile() -> None:
    """Other threads may change os.environ while commands start: each gets a whole environment, and nothing crashes."""
    import threading

    def run() -> bool:
        done = threading.Event()

        def churn(start: int) -> None:
            for n in range(start, 10**9, 3):
                if done.is_set():
                    return
                os.environ[f"CHURN{n % 3000}"] = "x" * (n % 50)
                os.environ.pop(f"CHURN{(n + 1500) % 3000}", None)

        threads = [threading.Thread(target=churn, args=(start,)) for start in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                out = nsbox.run(["env", "-0"], policy=Policy.host(), stdout=subprocess.PIPE, check=True).stdout
                names = [entry.split(b"=")[0] for entry in out.split(b"\0")[:-1]]
                assert len(names) == len(set(names))
                assert all(b"=" in entry for entry in out.split(b"\0")[:-1])
        finally:
            done.set()
            for thread in threads:
                thread.join()
        return True

    assert in_fork(run) is True


def test_stack_of_pid_1_is_empty(policy: Policy) -> None:
    """Pid 1 has no environment: a process that manages to read its memory finds nothing of the caller's."""
    with nsbox.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, policy=policy) as p:
        p.stdin.write(b"x")
        p.stdout.read(1)
        init = p.sandbox.init_pid
        assert Path(f"/proc/{init}/environ").read_bytes() == b""
        maps = Path(f"/proc/{init}/maps").read_text()
        assert "python" not in maps and "heap" not in maps
