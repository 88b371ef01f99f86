"""The nsbox command: its options, its errors in one line of its own words, and output that nobody takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs
from nsbox_testing.terminals import NSBOX, PROMPT, bash

COMMAND = [sys.executable, "-P", "-m", "nsbox"]


def nsbox(workspace: Path, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*COMMAND, *words],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["run"], 2, "nsbox run: no command"),
        (["run", "--memory"], 2, "nsbox run: --memory: needs a value; see nsbox run --help"),
        (["run", "--memory", "much", "--", "true"], 2, "nsbox: --memory: 'much' isn't a size"),
        (["run", "--read", "/nonexistent", "--", "true"], 2, "nsbox: --read: /nonexistent: No such file"),
        (["run", "--tools-bin", "/nonexistent", "--", "true"], 2, "nsbox: --tools-bin: /nonexistent"),
        (["run", "--backend", "passthrough", "--", "true"], 2, "--require nothing"),
        (["run", "--degrade", "wings", "--", "true"], 2, "nsbox: --degrade: 'wings' is unknown"),
        (["run", "--timeout", "-1", "--", "true"], 2, "'-1' isn't a number of seconds"),
        (["run", "--grace", "nan", "--", "true"], 2, "'nan' isn't a number of seconds"),
        (["run", "--env", "=x", "--", "true"], 2, "nsbox: --env: '=x' has no name"),
        (["run", "--env-file", "nothing", "--", "true"], 2, "nsbox: --env-file: nothing: No such file"),
        (["run", "--policy", "nothing.toml", "--", "true"], 2, "nsbox: --policy: nothing.toml: No such file"),
        (["run", "--policy", "nothing", "--", "true"], 2, "nsbox: --policy: 'nothing' isn't the name"),
        (["run", "--host", "--home", "/tmp", "--", "true"], 2, "nsbox: --home: doesn't go with --host"),
        (["run", "--device", "/dev/nonexistent", "--", "true"], 2, "nsbox: --device: /dev/nonexistent: No such file"),
        (["run", "--device", "/dev/full", "--", "true"], 2, "nsbox: --device: /dev/full: each sandbox has one"),
        (["run", "--device", "/etc/passwd", "--", "true"], 2, "nsbox: --device: /etc/passwd isn't below /dev"),
        (["run", "--host", "--device", "/dev/null", "--", "true"], 2, "nsbox: --device: doesn't go with --host"),
        (["run", "--strict", "--deny", "*.nothing", "--", "true"], 2, "*.nothing matches nothing"),
        (
            ["run", "--allow-net", "https://a.example/x", "--", "true"],
            2,
            "nsbox: --allow-net: 'https://a.example/x': is a URL",
        ),
        (["run", "--allow-net", "a.example:0", "--", "true"], 2, "nsbox: --allow-net: 'a.example:0': ports go"),
        (["run", "--allow-net", "", "--", "true"], 2, "nsbox: --allow-net: '': is empty"),
        (["run", "--allow-net", "!a.example", "--", "true"], 2, "nsbox: --allow-net: only denies"),
        (["run", "--allow-net", "host", "--", "true"], 2, "nsbox: --allow-net: 'host' isn't an entry"),
        (["run", "--allow-net", "a.example", "--network", "none", "--", "true"], 2, "doesn't go with --network none"),
        (["run", "--allow-net", "a.example", "--network", "host", "--", "true"], 2, "doesn't go with --network host"),
        (["run", "--allow-net", "a.example", "--host", "--", "true"], 2, "nsbox: --allow-net: doesn't go with --host"),
        (["run", "--network", "public", "--host", "--", "true"], 2, "nsbox: --network: public doesn't go with --host"),
        (
            ["run", "--network", "restricted", "--", "true"],
            2,
            "--network: 'restricted' isn't one of none, host, public",
        ),
        (
            ["run", "--net-log", "log", "--network", "host", "--", "true"],
            2,
            "nsbox: --net-log: doesn't go with the host's",
        ),
        (["run", "--publish", "http", "--", "true"], 2, "nsbox run: --publish: 'http': must be [ADDRESS:]PORT[:PORT]"),
        (["run", "--publish", "3000", "--network", "host", "--", "true"], 2, "nsbox: --publish: doesn't go with"),
        (["run", "--", "nosuchprogram"], 127, "nosuchprogram"),
        (["run", "--chdir", "/nonexistent", "--", "true"], 125, "/nonexistent"),
        (["frob"], 2, "nsbox: no such command: frob; see nsbox --help"),
        (["rnu"], 2, "did you mean run?"),
        (["--frob"], 2, "nsbox: no such option: --frob"),
        (["--"], 2, "nsbox: needs a command"),
        (["run", "--wrkspace", ".", "--", "true"], 2, "no such option: --wrkspace; did you mean --workspace?"),
        (["run", "--host=yes", "--", "true"], 2, "--host: accepts no value"),
        (["run", "--uid", "me", "--", "true"], 2, "nsbox run: --uid: 'me' isn't a whole number"),
        (["check"], 2, "nsbox check: needs FILE"),
        (["bench", "--only", "spam"], 2, "--only: 'spam' isn't one of spawn, "),
        (["completion", "csh"], 2, "'csh' isn't one of bash, zsh, fish"),
    ],
)
def test_errors(workspace: Path, words: list[str], status: int, told: str) -> None:
    """An error is one line on standard error, which says what is wrong in the words of the command line."""
    done = nsbox(workspace, *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr and done.stderr.count("\n") == 1


def test_remedies_are_options() -> None:
    """Where an error says what to do, it says it as an option."""
    from nsbox._cli.policy import in_options

    assert in_options("do without (remedy: degrade={'limits.cpus'})") == "do without (remedy: --degrade limits.cpus)"
    assert in_options('say degrade=["limits.processes", "tmp"]') == "say --degrade limits.processes,tmp"
    assert in_options("nested=True allows it, network='host' too") == "--nested allows it, --network host too"
    assert in_options("say network=['a.example', 'b:1']") == "say --allow-net a.example --allow-net b:1"
    assert in_options("limits.total_memory: no cgroup") == "--total-memory: no cgroup"
    assert in_options("a=True; kill_on_exit=True; x: y") == "a=True; kill_on_exit=True; x: y"


@pytest.mark.parametrize(
    "words",
    ["explain", "--help", "run --help", "schema", "--version", "--completion bash", "check c.toml"],
)
def test_output_that_nobody_takes(workspace: Path, words: str) -> None:
    """A full disk is a line and a status; a reader that has gone is silence and SIGPIPE's status."""
    (workspace / "c.toml").write_text("network = 'none'\n")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *words.split()], cwd=workspace, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "nsbox: standard output: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words.split()], cwd=workspace, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_environment(workspace: Path) -> None:
    """--env sets, or takes from the caller; what comes later counts, options over files."""
    (workspace / "vars").write_text("# a comment\n\nONE=from file\nTWO=a=b\n  THREE=\nTAKEN\nABSENT\n")
    done = nsbox(
        workspace,
        *("run", "--env-file", "vars", "--env", "ONE=by option", "--env", "FOUR", "--setenv", "FIVE", "a b"),
        *("--", "env"),
        env=dict(os.environ) | {"TAKEN": "taken", "FOUR": "four", "SIX": "six"},
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    wanted = {"ONE": "by option", "TWO": "a=b", "THREE": "", "TAKEN": "taken", "FOUR": "four", "FIVE": "a b"}
    assert {name: found.get(name) for name in wanted} == wanted
    assert not {"ABSENT", "SIX"} & found.keys()


def test_line(workspace: Path) -> None:
    """-c runs a line by bash, where the sandbox has it; what follows are its arguments."""
    line = 'set -o pipefail; [[ -e here ]] || echo {1..3}; false | true; echo "$? $0 $1"'
    assert nsbox(workspace, "run", "-c", line, "one").stdout == "1 2 3\n1 sh one\n"
    assert nsbox(workspace, "run", "-c", "exit 3").returncode == 3
    assert nsbox(workspace, "shell", "--", "-c", "exit 4").returncode == 4


def test_policy_options(workspace: Path) -> None:
    """Fields of Policy that had no option."""
    (workspace / "bin").mkdir()
    (workspace / "c").mkdir()
    done = nsbox(
        workspace / "c",
        *("run", "--home", "/tmp/h", "--tools-bin", str(workspace / "bin"), "-c", 'echo "$HOME $PATH"'),
    )
    assert done.stdout.startswith(f"/tmp/h {workspace}/bin:"), done.stderr
    assert nsbox(workspace, "explain", "--nested").stdout != nsbox(workspace, "explain").stdout
    assert "landlock" in nsbox(workspace, "explain", "--landlock").stdout.lower()


def test_sensible_limits(workspace: Path) -> None:
    """--sensible-limits has the amounts of Limits.sensible(); a single option counts more. Control: neither."""
    line = "ulimit -c; ulimit -u; ulimit -f"

    def limits(*options: str) -> list[str]:
        done = nsbox(workspace, "run", "--degrade", "limits", *options, "-c", line)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    files, fewer = str((16 << 30) // 1024), str((1 << 20) // 1024)
    assert limits("--sensible-limits")[2] == files
    assert limits("--sensible-limits", "--file-size", "1M")[2] == fewer
    assert limits()[2] != files
    plan = nsbox(workspace, "explain", "--sensible-limits", "--processes", "200", "--degrade", "limits").stdout
    assert "200" in plan and "4096" not in plan


def test_patterns(workspace: Path) -> None:
    """--deny has patterns, and means literal names besides."""
    for name in ("a.env", "b.env", "[c].txt", "c.txt"):
        (workspace / name).write_text(name)
    done = nsbox(workspace, "run", "--deny", "*.env", "--deny", "[c].txt", "-c", "cat a.env b.env '[c].txt' c.txt")
    assert done.stdout == ""
    assert done.stderr.count("Permission denied") == 4


def test_transaction(workspace: Path) -> None:
    """--diff shows what would change; --transaction changes it if the command succeeds."""
    (workspace / "old").write_text("before\n")
    line = "echo after > old; echo x > new"
    done = nsbox(workspace, "run", "--diff", "-c", line)
    assert done.returncode == 0 and "-before\n+after\n" in done.stdout and not (workspace / "new").exists()
    done = nsbox(workspace, "run", "--transaction", "-c", f"{line}; exit 3")
    assert done.returncode == 3 and "nothing was changed" in done.stderr and not (workspace / "new").exists()
    done = nsbox(workspace, "run", "--transaction", "--diff", "-c", line)
    assert done.returncode == 0 and "+after\n" in done.stdout and (workspace / "old").read_text() == "after\n"
    done = nsbox(workspace, "run", "--diff", "--", "nosuchprogram")
    assert done.returncode == 127 and done.stdout == ""


def test_transaction_at_a_terminal(workspace: Path) -> None:
    """The command has its terminal, and the changes are shown when that has ended."""
    with bash(workspace) as screen:
        screen.line(f"{NSBOX} run --transaction --diff -c 'read line; echo \"$line\" > new'; echo en''d")
        screen.until("end'' *d|\n")
        screen.line("words")
        shown = screen.until("end\n")
        assert "+words\n" in shown
        screen.until(PROMPT)
    assert (workspace / "new").read_text() == "words\n"


def test_install_makes_the_directory(workspace: Path) -> None:
    """`nsbox bwrap --install DIR` makes DIR, and says what can't be made."""
    done = nsbox(workspace, "bwrap", "--install", "a/b")
    assert done.returncode == 0 and done.stdout == f"{workspace}/a/b/bwrap\n"
    (workspace / "file").write_text("")
    done = nsbox(workspace, "bwrap", "--install", "file/b")
    assert done.returncode == 1 and "file" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(workspace: Path, shell: str) -> None:
    """Each file names all subcommands and options, and its shell can read it."""
    done = nsbox(workspace, "--completion", shell)
    assert done.returncode == 0
    for command in ("run", "shell", "explain"):
        assert command in done.stdout
    options = set(re.findall(r"--[a-z][a-z-]+", nsbox(workspace, "run", "--help").stdout))
    marks = {f"-l {option[2:]}" if shell == "fish" else option for option in options}
    assert not {mark for mark in marks if mark not in done.stdout}
    path = needs.find(shell)
    if path is not None:
        (workspace / "file").write_text(done.stdout)
        subprocess.run([path, "-n", "file"], cwd=workspace, check=True)
