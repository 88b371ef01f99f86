"""Where a policy's commands can write on the way to an interpreter's file, by the mounts that the policy plans.

Permissions don't count: the owner of a file can change them. A file system that each command makes for itself doesn't
count either: no other command sees what is in it.
"""

from __future__ import annotations

import os
import stat

from nsbox._base.checks import check_answer
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import innermost, is_below, is_inside
from nsbox._plan import ops

if TYPE_CHECKING:
    from nsbox._tools.view import Mount, View

_OPAQUE = (ops.Overlay, ops.BindFd)  # what they show isn't known by its path


class Places:
    """The places of one policy.

    regions: paths in the sandbox, and whether commands can write to what is there. The innermost one counts.
    """

    def __init__(self, seen: View) -> None:
        self._seen = seen
        mounts = seen.mounts()
        opaque = {getattr(op, "dest", "") for op in ops.primitives(seen.policy.ops) if isinstance(op, _OPAQUE)}
        self._sources = {mount.dest: os.path.realpath(mount.source) for mount in mounts if mount.source is not None}
        self.regions = {mount.dest: _is_open(mount) or mount.dest in opaque for mount in mounts}
        self.regions.setdefault("/", False)
        self._add_other_names()

    def _add_other_names(self) -> None:
        """Note where a read-only mount shows, under another name, files that commands can write to."""
        writable = [dest for dest, is_open in self.regions.items() if is_open and dest in self._sources]
        found: list[str] = []
        for dest, source in self._sources.items():
            for other in writable if not self.regions[dest] else ():
                theirs = self._sources[other]
                if is_below(source, theirs) and self._is_seen(other, source[len(theirs.rstrip("/")) :]):
                    found.append(dest)
                elif is_inside(theirs, source) and self._is_seen(dest, theirs[len(source.rstrip("/")) :]):
                    found.append(f"{dest.rstrip('/')}{theirs[len(source.rstrip('/')) :]}")
        self.regions.update(dict.fromkeys(found, True))

    def _is_seen(self, dest: str, rest: str) -> bool:
        """Return whether a path in a mount leads into that mount: none that lies in it covers the path."""
        return self._seen.mount_of(f"{dest.rstrip('/')}{rest}").dest == dest

    def region(self, inside: str) -> str:
        """Return the region of a path without symlinks."""
        return innermost(inside, (path for path in self.regions if is_below(inside, path))) or "/"

    def opening(self, path: str) -> str:
        """Return where commands can change what a path leads to, or a link on the way; "": nowhere."""
        walk = self._seen.walk(path)
        try:
            for at, target in walk:
                region = self.region(at)
                if self.regions[region] and (target is not None or at != region):
                    return region
        except OSError as error:
            check_answer(error)
            return path
        region = self.region(walk.at)
        return region if self.regions[region] else ""

    def opening_in(self, path: str) -> str:
        """Return the same for a directory and everything in it."""
        inside = self._seen.place(path).inside
        return self.opening(path) or next(
            (region for region, is_open in self.regions.items() if is_open and is_inside(region, inside)), ""
        )


def _is_open(mount: Mount) -> bool:
    if mount.source is None or not mount.is_writable:
        return False
    try:
        mode = os.stat(mount.source).st_mode
    except OSError as error:
        check_answer(error)
        return True
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode)  # the others have no code in them
