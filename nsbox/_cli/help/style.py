"""Colours, for terminals alone: NO_COLOR turns them off, FORCE_COLOR on, also where output goes to a file."""

from __future__ import annotations

import os
from typing import IO

from nsbox._base.frozen import Frozen, frozen


@frozen
class Style(Frozen):
    """What is written before each kind of text; "" for no colour."""

    heading: str = ""
    name: str = ""
    value: str = ""
    good: str = ""
    bad: str = ""
    fair: str = ""

    def paint(self, kind: str, text: str) -> str:
        """Return the text in the colour of this kind."""
        colour = getattr(self, kind)
        return f"\033[{colour}m{text}\033[0m" if colour and text else text


PLAIN = Style()
COLOURED = Style(heading="1", name="36", value="35", good="32", bad="1;31", fair="33")


def style_for(stream: IO[str] | None) -> Style:
    """Return how to write to a stream. A variable that is empty counts as not set."""
    if os.environ.get("NO_COLOR"):
        return PLAIN
    if os.environ.get("FORCE_COLOR"):
        return COLOURED
    try:
        is_terminal = stream is not None and stream.isatty()
    except ValueError:  # it is closed
        is_terminal = False
    return COLOURED if is_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb") else PLAIN
