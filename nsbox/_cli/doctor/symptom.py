"""A known symptom: an error's text, its cause, a look at this machine, what helps."""

from __future__ import annotations

import re
from collections.abc import Callable

from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen

if TYPE_CHECKING:
    from nsbox._cli.doctor.looks import Look
    from nsbox._plan.host import Host


def pattern(*texts: str) -> re.Pattern[str]:
    """Return an expression for messages that have one of these, in any case, in any of their lines."""
    return re.compile("|".join(texts), re.IGNORECASE | re.MULTILINE)


@frozen
class Symptom(Frozen):
    """One thing that goes wrong.

    name: a word for it.
    where: "machine", "command" or "install".
    message: an example of what is printed.
    pattern: what such messages have.
    words: other words by which to ask for it.
    cause, remedy: a sentence each; the commands in it stand in backticks.
    look: looks whether it is the cause here; None: nothing to be seen.
    page: of the documentation, where more is.
    """

    name: str
    where: str
    message: str
    pattern: re.Pattern[str]
    words: tuple[str, ...]
    cause: str
    remedy: str
    look: Callable[[Host], Look] | None
    page: str
