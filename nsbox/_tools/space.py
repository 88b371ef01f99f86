"""Which file system is full, when a program says that one is: what can be seen of it, and what remains then.

A message may name the file; if none does, each place that commands can write to is looked at. /tmp and the like are in
memory, and may have gone with the sandbox. So they are named only if a message names them, or if nothing else is full.
"""

from __future__ import annotations

import os
import re

from nsbox._base.display import printable, size_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._tools.verdicts import Hint
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsbox._policy.policy import Policy
    from nsbox._tools.view import Place, View

LITTLE = 1 << 20  # bytes: a file system with fewer is full
_FULL = re.compile(r"No space left on device|ENOSPC")
_QUOTED = re.compile("['\"`\u2018\u201c]([^'\"`\u2018\u2019\u201c\u201d\n]{1,1024})['\"`\u2019\u201d]")
_WORD = re.compile("[^\\s:;,()<>|&'\"`\u2018\u2019\u201c\u201d]{1,1024}")
_MOST_LOOKS = 32
_CHARS = 1 << 16  # at the end of each stream


def full(seen: View, text: str, start: str, store: str | None = None) -> Iterator[Hint]:
    """Yield a hint for each file system that a command has found full, or may have.

    text: the end of its output. start: where it started. store: the directory that keeps what commands write on disk;
    None: it goes where they write it.
    """
    lines = [line for line in text.splitlines() if _FULL.search(line)]
    if not lines:
        return
    named = list(_named(seen, lines, start))
    in_memory = [place.mount.dest for place in named if place.mount.is_own and place.mount.source is None]
    on_disk = named if named else _writable(seen)
    if store is None:
        found = list(_of_disk(on_disk))
    else:
        found = [] if in_memory and len(in_memory) == len(named) else list(_of_store(store))
    yield from found
    if (size := seen.policy.tmp_size) is None:
        return
    has = f"is in memory, and has {size_phrase(int(size))} (tmp_size); files belong in the workspace"
    if in_memory:
        yield Hint("no-space", f"{printable(in_memory[0])} {has}")
    elif not named and not found:
        yield Hint("no-space", f"the disks that it can write to have room, so perhaps /tmp was full: it {has}")


def replaced(
    why: tuple[Hint, ...], policy: Policy, status: int, output: tuple[str, str], store: str
) -> tuple[Hint, ...]:
    """Return the hints for a command whose writes are kept elsewhere, with what is full there.

    why: those for its policy. status: its exit status. output: what it has printed. store: where its writes are kept.
    """
    text = "\n".join(stream[-_CHARS:] for stream in (output if status else output[1:]))
    others = (hint for hint in why if hint.kind != "no-space")
    return (*others, *full(view(policy), text, policy.workdir or "/", store))


def _named(seen: View, lines: Iterable[str], start: str) -> Iterator[Place]:
    """Yield where the files are that messages name."""
    words = (word for line in lines for word in (*_QUOTED.findall(line), *_WORD.findall(line)))
    for word in list(dict.fromkeys(words))[:_MOST_LOOKS]:
        try:
            place = seen.place(os.path.join(start, word))
            if "/" in word or (place.here is not None and os.path.lexists(place.here)):
                yield place
        except (OSError, ValueError):
            continue


def _writable(seen: View) -> Iterator[Place]:
    """Yield the places on disk at which commands can write."""
    for mount in seen.mounts():
        if mount.is_writable and mount.source is not None:
            yield seen.place(mount.dest)


def _of_disk(places: Iterable[Place]) -> Iterator[Hint]:
    devices = set()
    for place in places:
        here = place.here
        while here is not None and here != "/" and not os.path.exists(here):
            here = os.path.dirname(here)
        left = None if here is None or not place.mount.is_writable else _left(here)
        if here is None or left is None or (device := os.stat(here).st_dev) in devices:
            continue
        devices.add(device)
        what = f"the file system of {printable(place.mount.dest)} is full: {size_phrase(left)} are left"
        yield Hint("no-space", f"{what}; make room there")


def _of_store(store: str) -> Iterator[Hint]:
    left = _left(store)
    if left is not None:
        yield Hint(
            "no-space",
            f"the file system of {printable(store)}, which keeps what commands write, is full: {size_phrase(left)} are "
            "left; make room there, drop snapshots, or begin again with dir= on a larger one",
        )


def _left(path: str) -> int | None:
    """Return how many bytes are left on a full file system; None if it has room, or can't be looked at."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    left = status.f_bavail * status.f_frsize
    is_full = left < LITTLE or (status.f_files and status.f_favail < 1)
    return left if is_full and status.f_blocks else None  # devices and the like have no blocks
