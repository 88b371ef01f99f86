"""bubblewrap's command line: its options, what they mean as a policy, and how one is run and installed.

Lean: `main` imports `run` (12 ms with all that it needs) when it is called; other modules here don't need it. Undo this
when bwrap's command line needs no Python.
"""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None, parent: int | None = None) -> int:
    """Return the exit status of a command line of bubblewrap. The programs that --install writes import this name."""
    from nsbox._bwrap.run import main

    return main(argv, parent)
