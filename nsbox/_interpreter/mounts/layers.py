"""Throw-away overlays of what a policy opens for writing: made for each branch, outside, and given to it as mounts.

The directories lie in mounts of their own, which two descriptors of namespaces keep, as those of a KeptTree do. Nothing
is stored on the host: what a branch writes is in a tmpfs, which the kernel drops with the branch.
"""

from __future__ import annotations

import errno
import os

from nsbox._base.descriptors import pair
from nsbox._base.errors import Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.owners import high, own_received
from nsbox._base.paths import is_inside
from nsbox._core import buffers, linux
from nsbox._core.abi import constants as c
from nsbox._core.request import request_for
from nsbox._files.files import opened_plainly
from nsbox._files.mounts import mounts
from nsbox._interpreter.mounts.overlay import Overlaid, Place, overlaid
from nsbox._kept import tree
from nsbox._paths.destinations import Destinations, is_missing
from nsbox._plan import ops
from nsbox._plan.plan import Identity
from nsbox._transaction.overlay import check_marks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._base.owners import Owner
    from nsbox._plan.host import Host
    from nsbox._plan.plan import Plan
    from nsbox._spawn.prepare import Prepared

_WHAT = "make an overlay for a branch"
_EVERY_ID = 2**32 - 1


def overlaid_of(prepared: Prepared) -> Overlaid:
    """Return what becomes of a plan whose branches get overlays; raises UnavailableError."""
    steps = tuple(op for op in prepared.ops if not is_missing(op))
    owners = {dest: (uid, gid) for dest, uid, gid in prepared.plan.owners}
    made = overlaid(steps, owners, _directories(steps))
    for op, at in zip(steps, Destinations(steps).steps, strict=True):
        dest, leads = str(getattr(op, "dest", "")), str(getattr(at, "dest", ""))
        if dest != leads and any(is_inside(leads, place.dest) for place in made.places):
            what = f"overlay=True: {op.describe()} leads by a link to {leads}"
            raise UnavailableError(Reason(what, "name that path instead"))
    for place in made.places:
        _check(place)
    return made


def _directories(steps: Sequence[ops.Op]) -> list[str]:
    """Return those sources of binds that are directories."""
    return [op.src for op in steps if isinstance(op, ops.Bind | ops.DevBind) and os.path.isdir(op.src)]


def _check(place: Place) -> None:
    """Raise UnavailableError if overlayfs would show something else than what is there, or refuse it."""
    source = os.path.realpath(place.source)
    inside = sorted(point for point, _, _ in mounts() if is_inside(point, source))
    if inside:
        what = f"overlay=True: {inside[0]} is mounted in {source}, and an overlay would show what lies beneath it"
        raise UnavailableError(Reason(what, "unmount it"))
    with opened_plainly(source) as real:
        check_marks(real, source)


def _identity(plan: Plan, host: Host) -> Identity:
    """Return the ids of the user namespace that overlays belong to: all that the caller may map."""
    if not host.can_set_ids:
        return plan.identity
    uids, gids = (
        "".join(f"{row.inside} {row.inside} {row.count}\n" for row in rows)
        for rows in (host.uid_ranges, host.gid_ranges)
    )
    return Identity(0, 0, uids, gids, deny_setgroups=False, by_helper=True)


class Layers:
    """The directories that branches get overlays of. Threads may share it.

    places: as from overlay.py.
    """

    def __init__(self, prepared: Prepared, host: Host, places: Sequence[Place], size: int | None) -> None:
        """Keep the directories; raises SetupError.

        size: the most bytes that one branch may write in all its overlays; None: the kernel's default for a tmpfs.
        """
        self.places = tuple(places)
        self._owners: list[Owner] = []
        names = [f"/{number}" for number in range(len(self.places))]
        whose = {dest: (uid, gid) for dest, uid, gid in prepared.plan.owners}
        rows = list(zip(self.places, names, strict=True))
        steps = (
            *(ops.RoBind(place.source, name, nofollow=place.nofollow) for place, name in rows),
            ops.Dir("/scratch"),
        )
        plan = replace(
            prepared.plan,
            ops=steps,
            identity=_identity(prepared.plan, host),
            owners=tuple((name, *whose[place.dest]) for place, name in rows if place.dest in whose),
            inotify_instances=0,
        )
        stamps = buffers.Stamps((False,) * len(steps))
        without = plan.namespaces - {"user", "mount"}
        request = request_for(plan, steps, flags=c.TEMPLATE, without=without, stamps=stamps)
        if host.can_set_ids:
            request.request.kernel_uid = request.request.kernel_gid = 0
        _, owners = tree.made(request, "keep directories for overlays", steps)
        self._owners = owners[:2]
        self._made = linux.Overlays([(name, place.hidden) for place, name in rows], size or 0)

    def make(self) -> list[Owner]:
        """Return a fresh overlay of each place, as mounts that no directory has yet. Raises SetupError."""
        owners: list[Owner] = []
        if not self._owners:
            raise SetupError(errno.EBADF, _WHAT, None, "the interpreter is closed")
        ours, theirs = pair()
        try:
            user, mount = (owner.fileno() for owner in self._owners)
            failed = self._made.make(user, mount, theirs.fileno())
            if failed is not None:
                raise self._error(*failed)
            for _ in self.places:
                own_received(ours, 1, owners)
        finally:
            ours.close()
            theirs.close()
        if len(owners) != len(self.places):
            raise SetupError(errno.EMFILE, _WHAT, None, "no descriptor was free for it")
        return [high(owner) for owner in owners]

    def _error(self, number: int, step: int, at: int) -> SetupError:
        from nsbox._spawn.failure import step_name  # seldom needed

        what = f"overlay {self.places[at].source}" if at < len(self.places) else None
        hint = ""
        if step == c.STEP_CREATE and number == errno.ELOOP:
            hint = "a symlink is on the way to something that the policy hides there"
        elif step == c.STEP_FS and number == errno.EINVAL:
            hint = (
                "overlayfs can't lie on what is there: an overlay of an overlay, a file system whose names don't "
                "depend on case, or one into which something has been mounted; keep the directory on a disk"
            )
        return SetupError(number, f"{_WHAT}: {step_name(step)}", what, hint)

    def close(self) -> None:
        """Let go of the directories. Overlays that branches have stay."""
        while self._owners:
            self._owners.pop().close()
