"""Completion in real shells: what each offers for words that have been begun, also for the command behind the options."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs

from nsbox._cli.completion.shells import completion

# What is typed, and what must be offered; None: nothing.
CASES = [
    ("nsbox r", "run"),
    ("nsbox --v", "--version"),
    ("nsbox run --time", "--timeout"),
    ("nsbox run --network ", "public"),
    ("nsbox run -C di", "directory"),
    ("nsbox run --setenv A b --gra", "--grace"),
    ("nsbox run --env HOM", "HOME"),
    ("nsbox run -c line --tim", "--timeout"),
    ("nsbox run ec", "echo"),
    ("nsbox check fi", "file1"),
    ("nsbox help e", "explain"),
    ("nsbox completion ", "fish"),
    ("nsbox bwrap --ro-bind-t", "--ro-bind-try"),
    ("nsbox run sh --netw", None),
]

BASH = r"""
source ./completion
compopt() { :; }
while read -r -a COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); [[ ${COMP_WORDS[COMP_CWORD]} == @ ]] && COMP_WORDS[COMP_CWORD]=
    _nsbox; printf '%s ' "${COMPREPLY[@]}"; echo
done
"""

ZSH = r"""
PS1='READY> '
autoload -Uz compinit; compinit -u -D
source ./completion
compadd() {
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return $?; fi
    typeset -a hits
    builtin compadd -A hits "$@"
    print -rl -- $hits >> offered
    builtin compadd "$@"
}
ask() { zle list-choices; BUFFER=; zle -R; print -n ASKED }
zle -N ask
bindkey '^I' ask
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with something to complete."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file1").write_text("")
    return tmp_path


@needs.programs("bash")
def test_bash(place: Path) -> None:
    """bash splits what it hands to the function at = too."""
    (place / "completion").write_text(completion("bash"))
    rows = [(typed if typed[-1] != " " else f"{typed}@", wanted) for typed, wanted in CASES]
    rows += [("nsbox run --network = p", "public"), ("nsbox run --network =", "none"), ("nsbox run -- fi", "file1")]
    lines = "".join(f"{typed}\n" for typed, _ in rows)
    done = subprocess.run(["bash", "-c", BASH], cwd=place, input=lines, capture_output=True, text=True, check=True)
    offered = done.stdout.splitlines()
    assert done.stderr == "" and len(offered) == len(rows)
    for (typed, wanted), line in zip(rows, offered, strict=True):
        assert line.split() == [] if wanted is None else wanted in line.split(), (typed, line)


@needs.programs("fish")
def test_fish(place: Path) -> None:
    """fish is asked by `complete --do-complete`."""
    (place / "completion").write_text(completion("fish"))
    rows = [*CASES, ("nsbox run --network=p", "--network=public"), ("nsbox run -- ec", "echo")]
    code = "source ./completion\n"
    code += "".join(f"complete --do-complete={shlex.quote(typed)}; echo END\n" for typed, _ in rows)
    env = os.environ | {"HOME": str(place), "XDG_CONFIG_HOME": str(place), "XDG_DATA_HOME": str(place)}
    done = subprocess.run(["fish", "-c", code], cwd=place, env=env, capture_output=True, text=True, check=True)
    answers = done.stdout.split("END\n")
    assert done.stderr == "" and len(answers) == len(rows) + 1
    for (typed, wanted), answer in zip(rows, answers, strict=False):
        offered = [line.partition("\t")[0].rstrip("/") for line in answer.splitlines()]
        assert offered == [] if wanted is None else wanted in offered, (typed, offered)


@needs.programs("zsh")
def test_zsh(place: Path) -> None:
    """zsh completes at a prompt alone: each line is typed at one, and a tab."""
    import pexpect

    (place / "completion").write_text(completion("zsh"))
    (place / "setup").write_text(ZSH)
    env = os.environ | {"HOME": str(place), "ZDOTDIR": str(place), "TERM": "dumb"}
    shell = pexpect.spawn("zsh", ["-f", "-i"], cwd=str(place), env=env, encoding="utf-8", timeout=50)
    try:
        shell.sendline("source ./setup; print LOAD''ED")
        shell.expect("LOADED")
        for typed, wanted in [*CASES, ("nsbox run --network=p", "public"), ("nsbox run -- kill -HU", "-HUP")]:
            (place / "offered").write_text("")
            shell.send(f"{typed}\t")
            shell.expect("ASKED")
            offered = (place / "offered").read_text().split()
            assert offered == [] if wanted is None else wanted in offered, (typed, offered)
    finally:
        shell.close(force=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_both_spellings(tmp_path: Path, shell: str) -> None:
    """`nsbox completion` prints the file; so does the older `nsbox --completion`."""
    command = [sys.executable, "-P", "-m", "nsbox"]
    texts = [
        subprocess.run([*command, *words, shell], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for words in (["completion"], ["--completion"])
    ]
    assert texts == [completion(shell)] * 2
