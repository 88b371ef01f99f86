"""`nsbox bwrap`: what bwrap does; --install and --completion, which come first, are nsbox's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from nsbox._base.errors import NsboxError, PolicyError
from nsbox._cli.messages import complain


def main(words: Sequence[str]) -> int:
    """Carry out the words after `nsbox bwrap`; return the exit status, unless this process becomes bwrap."""
    if list(words[:1]) == ["--install"]:
        return _install([word for word in words[1:] if word != "--force"], force="--force" in words)
    if list(words[:1]) == ["--completion"]:
        from nsbox._bwrap.completion import completion

        if len(words) != 2 or words[1] not in ("bash", "zsh", "fish"):
            return complain(PolicyError("--completion", "needs bash, zsh or fish"), 2)
        print(completion(words[1]), end="")
        return 0
    from nsbox._bwrap import execute

    try:
        execute(["nsbox bwrap", *words])
    except (NsboxError, OSError) as error:
        return complain(error, 1)


def _install(words: Sequence[str], *, force: bool) -> int:
    from nsbox._bwrap.install import install, is_on_path

    if len(words) != 1:
        return complain(PolicyError("--install", "needs a directory"), 2)
    try:
        path = install(words[0], force=force)
    except OSError as error:
        return complain(error, 1)
    print(path)
    directory = os.path.dirname(path)
    if not is_on_path(directory):
        print(f"{directory} isn't on PATH: programs won't find it there", file=sys.stderr)
    return 0
