"""`nsbox bwrap`: what bwrap does; --install and --completion, with only their argument, are nsbox's own."""

from __future__ import annotations

from collections.abc import Sequence

from nsbox._base.errors import PolicyError
from nsbox._cli.messages import complain


def main(words: Sequence[str]) -> int:
    """Carry out the words after `nsbox bwrap`; return the exit status."""
    if list(words[:1]) == ["--install"]:
        from nsbox._bwrap.install import install

        if len(words) != 2:
            return complain(PolicyError("--install", "needs a directory"), 2)
        try:
            print(install(words[1]))
        except OSError as error:
            return complain(error, 1)
        return 0
    if list(words[:1]) == ["--completion"]:
        from nsbox._bwrap.help import completion

        if len(words) != 2 or words[1] not in ("bash", "zsh", "fish"):
            return complain(PolicyError("--completion", "needs bash, zsh or fish"), 2)
        print(completion(words[1]), end="")
        return 0
    from nsbox._bwrap import main as bwrap

    return bwrap(["nsbox bwrap", *words])
