"""The table of bubblewrap's options, and what is made of it: the usage text, and completion files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from nsbox_testing import needs

from nsbox._bwrap import program
from nsbox._bwrap.completion import PROGRAMS, completion
from nsbox._bwrap.options import options
from nsbox._plan.capabilities import CAPABILITIES

OPTIONS = options()
BY_NAME = {option.name: option for option in OPTIONS}


def test_the_table() -> None:
    """It has all options once, and help that fits a line and needs no quoting anywhere."""
    assert len(BY_NAME) == len(OPTIONS) == 68
    assert sum(option.since <= (0, 11) for option in OPTIONS) == 67
    for option in OPTIONS:
        assert option.help and not set(option.help) & set("[]:'\"\\\n"), option.name
    groups = [option.group for option in OPTIONS]
    assert groups == sorted(groups, key=groups.index)


def test_the_usage_text() -> None:
    """Its first line is bubblewrap's; all options follow, aligned and in the table's order."""
    done = subprocess.run(["./x y", "--help"], executable=program(), capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "usage: ./x y [OPTIONS...] [--] COMMAND [ARGS...]"
    rows = [line for line in lines if line.startswith("    ")]
    assert [row.split()[0] for row in rows] == list(BY_NAME)
    assert len({row.index(option.help) for row, option in zip(rows, OPTIONS, strict=True)}) == 1
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_everything(shell: str) -> None:
    """Each option and both programs are in the file of each shell."""
    text = completion(shell)
    for word in (*PROGRAMS, *CAPABILITIES, *(option.name[2:] for option in OPTIONS)):
        assert word in text, word
    assert "@" not in text


def test_completion_of_an_unknown_shell() -> None:
    """The error says which there are."""
    with pytest.raises(ValueError, match="bash, zsh, fish"):
        completion("csh")


BASH = shutil.which("bash")
CASES = [
    (["--unshare-u"], {"--unshare-user", "--unshare-user-try", "--unshare-uts"}),
    (["--bind", "some"], {"somefile", "somedir"}),
    (["--bind", "x", "somed"], {"somedir"}),
    (["--file", "some"], set()),
    (["--file", "3", "somef"], {"somefile"}),
    (["--setenv", "--bind", "some"], set()),
    (["--cap-add", "CAP_SYS_P"], {"CAP_SYS_PTRACE", "CAP_SYS_PACCT"}),
    (["--chdir", "--bi"], set()),
    (["--new-session", "cat", "some"], {"somefile", "somedir"}),
    (["--", "--unshare-u"], set()),
]


@needs.programs("bash")
@pytest.mark.parametrize(("typed", "offered"), CASES)
def test_bash_completes(typed: list[str], offered: set[str], tmp_path: Path) -> None:
    """Options are offered among options, paths where an option takes one, and nothing for a number."""
    (tmp_path / "somefile").touch()
    (tmp_path / "somedir").mkdir()
    script = f'{completion("bash")}\ncompopt() {{ :; }}\nCOMP_WORDS=(bwrap "$@") COMP_CWORD=$#\n_nsbox_bwrap\n'
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    line = [str(BASH), "--norc", "-c", script, "bash", *typed]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered
