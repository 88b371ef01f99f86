"""The answer to a symptom: those of the table that match it, as text, as JSON, or all of them as a page."""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterator, Sequence

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.doctor.known.commands import COMMANDS, GENERAL
from nsbox._cli.doctor.known.installation import INSTALLATION
from nsbox._cli.doctor.known.machine import MACHINE
from nsbox._cli.doctor.symptom import Symptom
from nsbox._cli.help.style import Style
from nsbox._cli.parser import meant
from nsbox._machine.probe import probe

if TYPE_CHECKING:
    from nsbox._plan.host import Host

# What is special comes before what is general: the first that match are shown.
SYMPTOMS = (*MACHINE, *COMMANDS, *INSTALLATION, *GENERAL)
WHERE = {
    "machine": "This machine refuses a sandbox",
    "command": "A command fails in a sandbox",
    "install": "nsbox can't be installed",
}
_MOST = 3


def matching(text: str) -> tuple[Symptom, ...]:
    """Return the symptoms that a text is about, the special ones first: by a word for it, else by its messages."""
    word = text.strip().casefold()
    named = tuple(symptom for symptom in SYMPTOMS if word == symptom.name or word in symptom.words)
    return named or tuple(symptom for symptom in SYMPTOMS if symptom.pattern.search(text))[:_MOST]


def unknown(text: str) -> str:
    """Return what to say of a text that matches nothing."""
    words = [word for symptom in SYMPTOMS for word in (symptom.name, *symptom.words)]
    near = meant(text.strip().casefold(), words)
    return f"nothing is known of that{near}; --list shows what is known, and `nsbox doctor` tests this machine"


def record(symptom: Symptom) -> dict[str, object]:
    """Return a symptom and what a look at this machine shows, for JSON."""
    look = None if symptom.look is None else symptom.look(probe())
    return {
        "name": symptom.name,
        "message": symptom.message,
        "cause": symptom.cause,
        "is_here": None if look is None else look.is_here,
        "here": None if look is None else look.said,
        "remedy": _plain(symptom.remedy),
        "page": _document(symptom),
    }


def lines(symptoms: Sequence[Symptom], style: Style) -> Iterator[str]:
    """Yield the lines of an answer."""
    host = probe()
    for i, symptom in enumerate(symptoms):
        if i:
            yield ""
        yield style.paint("heading", symptom.name) + f": such as {symptom.message}"
        yield from _row("cause", symptom.cause)
        if symptom.look is not None:
            yield from _look(symptom, host, style)
        yield from _row("help", _plain(symptom.remedy))
        yield from _row("more", _document(symptom))


def _look(symptom: Symptom, host: Host, style: Style) -> Iterator[str]:
    assert symptom.look is not None
    look = symptom.look(host)
    verdict, colour = {True: ("likely the cause", "bad"), False: ("not the cause", "good"), None: ("", "fair")}[
        look.is_here
    ]
    first, *rest = _row("here", f"{verdict}: {look.said}" if verdict else look.said)
    yield first.replace(f" {verdict}:", f" {style.paint(colour, verdict)}:", 1) if verdict else first
    yield from rest


def _document(symptom: Symptom) -> str:
    return posixpath.normpath(f"docs/howto/{symptom.page}")


def _row(name: str, text: str) -> list[str]:
    rows = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    return [f"  {name if not i else '':<7} {row}" for i, row in enumerate(rows)]


def names() -> Iterator[str]:
    """Yield a line for each known symptom."""
    width = max(len(symptom.name) for symptom in SYMPTOMS)
    for symptom in SYMPTOMS:
        yield f"{symptom.name:<{width}}  {symptom.message}"


def page() -> str:
    """Return docs/howto/symptoms.md."""
    rows = [
        "# First aid by symptom",
        "",
        "This page lists the messages that you may see, with the cause of each and what helps. `nsbox doctor` knows",
        "the same list, and looks at your machine as well. Give it the message, or a word such as `docker`:",
        "",
        "```sh",
        'nsbox doctor "Operation not permitted"',
        "```",
        "",
        "`nsbox run ... 2>&1 | nsbox doctor -` explains what a command printed. `--json` is for programs. The exit",
        "status is 1 if nothing is known of the symptom.",
    ]
    for where, title in WHERE.items():
        rows += ["", f"## {title}", "", "| you see | cause | what helps | more |", "|---|---|---|---|"]
        rows += [_table_row(symptom) for symptom in SYMPTOMS if symptom.where == where]
    return "\n".join(rows) + "\n"


def _table_row(symptom: Symptom) -> str:
    target = symptom.page
    cells = (
        f"`{symptom.message}`",
        _sentence(symptom.cause),
        _sentence(symptom.remedy),
        f"[{posixpath.basename(target).partition('.')[0]}]({target})",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _plain(text: str) -> str:
    return text.replace("`", "")


def _sentence(text: str) -> str:
    """Return a text as a sentence, with commands and options as code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][\w-]*(?:[ =][A-Z][A-Z:]*\b)?)", r"`\1`", part) for part in parts[::2]]
    text = "".join(parts)
    return text if text[:1] == "`" or text.startswith(("nsbox", "pip ")) else text[:1].upper() + text[1:]
