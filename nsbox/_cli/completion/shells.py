"""What `nsbox completion SHELL` prints."""

from __future__ import annotations

from nsbox._cli.completion.bash import bash
from nsbox._cli.completion.fish import fish
from nsbox._cli.completion.zsh import zsh
from nsbox._cli.help.page import pages

_SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def completion(shell: str) -> str:
    """Return a completion file for bash, zsh or fish; raises ValueError for another shell."""
    if shell not in _SHELLS:
        raise ValueError(f"no completion for {shell!r}, only for {', '.join(_SHELLS)}")
    program, *commands = pages()
    return "".join(f"{line}\n" for line in _SHELLS[shell](program, commands))
