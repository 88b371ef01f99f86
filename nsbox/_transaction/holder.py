"""A user and a mount namespace that descriptors keep, with overlays in them. Commands' roots are built in a copy.

There is no process to be killed, and the kernel drops everything with this process.
"""

from __future__ import annotations

import errno
import os

from nsbox._backends.filters import programs
from nsbox._base.errors import Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, replace
from nsbox._base.paths import innermost, is_inside
from nsbox._core import buffers, call
from nsbox._core.abi import constants as c
from nsbox._core.command import Command
from nsbox._core.request import request_for
from nsbox._kept import split, tree
from nsbox._lookup.host import host_for
from nsbox._machine.probe import probe
from nsbox._plan import ops
from nsbox._plan.plan import Identity
from nsbox._seccomp.bpf import Program
from nsbox._seccomp.filter import no_user_namespaces
from nsbox._spawn.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from nsbox._base.owners import Owner
    from nsbox._core.idmaps import Swap
    from nsbox._plan.host import Host
    from nsbox._policy.policy import Policy
    from nsbox._spawn.prepare import Prepared

_HINT = (
    "overlayfs can't write to every file system: dir= in one on ext4, xfs, btrfs or tmpfs (Linux 6.6) will do; in user "
    "namespaces it exists since Linux 5.11"
)


_LINK = "a symlink is on the way, which was no link a moment ago: end what renames files there"


def _hint(error: SetupError) -> str:
    """Return what may help if the namespaces can't be made."""
    from nsbox._spawn.failure import step_name  # seldom needed

    if error.op is None or not error.op.startswith("overlay"):
        return ""
    if error.step.endswith(step_name(c.STEP_SOURCE)):
        return _LINK if error.errno == errno.ELOOP else ""
    return _HINT


def host_of(policy: Policy) -> Host:
    """Return the host, without kernel ids for commands: the caller must own what they write to the upper directory."""
    host = host_for(policy)
    if not host.kernel_id:
        return host
    return replace(probe(), unmapped="a transaction keeps its changes as the caller's")


def check(prepared: Prepared) -> None:
    """Raise UnavailableError for a plan that can't be built in shared namespaces."""
    split.check(prepared.plan)
    if prepared.request is None:
        raise UnavailableError(Reason("contents that come from descriptors can serve one command alone"))
    if not prepared.plan.kill_on_exit:
        raise UnavailableError(
            Reason("kill_on_exit=False: processes that go on would write while changes are committed")
        )
    if prepared.plan.identity.by_helper and os.geteuid() != 0:
        raise UnavailableError(
            Reason("ids='full': files of subordinate ids can't be read, nor committed, by this user")
        )


def _without_nesting(own: tuple[Program, ...]) -> tuple[Program, ...]:
    """Return filters that refuse user namespaces too, in their order: those of the last stage remain last."""
    first = next((i for i, program in enumerate(own) if program.stage == "last"), len(own))
    refusal = Program(no_user_namespaces(), with_compatible=own[0].with_compatible, stage="confined")
    return own if refusal in own else (*own[:first], refusal, *own[first:])


def tied(steps: Iterable[ops.Op], devices: Mapping[str, int]) -> tuple[tuple[ops.Op, ...], dict[ops.Op, int]]:
    """Return ops that show overlays wherever they show these places writable, and the device that each bind must find.

    Another sandbox's command may rename a place, or exchange it, at any time. The overlay goes with what is renamed,
    and the path leads to the host. So a bind of a directory above a place is followed by one of the overlay itself. The
    kernel is asked for each bind's device at the moment that it is bound (check_device() in stamps.c).

    devices: the device of each overlay, by its place.
    """
    made: list[ops.Op] = []
    found: dict[ops.Op, int] = {}
    for op in steps:
        made.append(op)
        if not isinstance(op, ops.Bind | ops.DevBind):
            continue
        real = op.src if op.nofollow else os.path.realpath(op.src)  # with nofollow, no link is followed later either
        place = innermost(real, list(devices))
        if place is not None:
            found[op] = devices[place]
        for inner in sorted(path for path in devices if is_inside(path, real)):
            over = type(op)(inner, os.path.normpath(f"{op.dest}/{os.path.relpath(inner, real)}"), nofollow=True)
            made.append(over)
            found[over] = devices[inner]
    return tuple(made), found


@frozen
class Mapped(Frozen):
    """Idmapped mounts for overlays to lie on. Making one requires power over its file system: that of the host's root.

    steps: binds. swaps: by their destinations, as for request_for().
    """

    steps: tuple[ops.Op, ...]
    swaps: Mapping[str, tuple[tuple[int, int], Swap]]


def _all_ids() -> Identity:
    """Return the ids of the two namespaces if layers are mapped: overlayfs copies files of all owners."""
    rows = f"0 0 {2**32 - 1}\n"
    return Identity(0, 0, rows, rows, deny_setgroups=False, by_helper=True)


class Holder:
    """The two namespaces. Threads may share it."""

    def __init__(
        self, policy: Policy, host: Host, steps: tuple[ops.Op, ...], what: str, mapped: Mapped | None = None
    ) -> None:
        """Make them. Raises UnavailableError for a plan that can't be built in them, and SetupError.

        policy: what commands may do. host: as from host_of().
        steps: what is mounted in the mount namespace, besides the host's file systems.
        what: what is being done, for errors.
        mapped: binds that are mounted before, for steps to find them in the host's file systems.
        """
        self.policy, self.host, self._is_mapped = policy, host, mapped is not None
        self.prepared = prepare(policy, host)
        check(self.prepared)
        self._owners: list[Owner] = []
        self._fds: list[int] = []
        try:
            if mapped is not None:
                self._make(mapped.steps, what, swaps=mapped.swaps)
                below, fds, self._owners = self._owners, tuple(self._fds), []
                try:
                    made = self._make(steps, what, within=(fds[0], fds[1]))
                finally:
                    while below:
                        below.pop().close()
            else:
                made = self._make(steps, what)
        except BaseException:
            self.close()
            raise
        self._devices = {op.dest: stamp.source_dev for op, stamp in made if isinstance(op, ops.Overlay)}

    def _make(
        self,
        steps: tuple[ops.Op, ...],
        what: str,
        *,
        swaps: Mapping[str, tuple[tuple[int, int], Swap]] | None = None,
        within: tuple[int, int] | None = None,
    ) -> list[tuple[ops.Op, Any]]:
        """Make namespaces, and own them; return the steps with their stamps. swaps, within: as for request_for()."""
        plan = self.prepared.plan
        if swaps or within:
            plan = replace(plan, identity=_all_ids())
        steps = (ops.DevBind("/", "/"), *steps)
        stamps = buffers.Stamps((False,) * len(steps))
        own = {"mount"} if within else {"user", "mount"}
        request = request_for(
            plan,
            steps,
            flags=c.TEMPLATE,
            without=plan.namespaces - own,
            stamps=stamps,
            within=within,
            swaps=swaps,
        )
        try:
            _, owners = tree.made(request, what, steps)
        except SetupError as error:
            raise SetupError(error.errno or 0, error.step, error.op, _hint(error)) from None
        self._owners = owners[:2]
        self._fds = [owner.fileno() for owner in self._owners]
        return list(zip(steps, stamps.array, strict=True))

    @property
    def is_open(self) -> bool:
        """Whether close() hasn't been called."""
        return bool(self._fds)

    def within(self, policy: Policy, prepared: Prepared, *, is_task: bool = False) -> Prepared:
        """Return the same for commands in the shared namespaces. Each has one more user namespace of its own there.

        is_task: user namespaces are refused, whatever the policy says, and nothing outside of the overlays is writable.

        Raises FileNotFoundError (ESTALE) in a task, if a bind leads elsewhere than before.
        """
        plan = prepared.plan
        by_helper = plan.identity.by_helper
        uids, gids = split.last_maps(plan.identity)
        if self._is_mapped and not by_helper:  # here an id has the number that it has outside
            uids, gids = f"{plan.identity.uid} {self.host.euid} 1", f"{plan.identity.gid} {self.host.egid} 1"
        identity = replace(plan.identity, uid_map2=uids, gid_map2=gids, map2_by_helper=by_helper or self._is_mapped)
        own = programs(policy, self.host, by_second_userns=True)
        if is_task:
            own = _without_nesting(own)
        inside = replace(plan, identity=identity, programs=own)
        user, mount = self._fds
        steps, devices = tied(prepared.ops, self._devices)
        if is_task:
            for op in steps:
                if isinstance(op, ops.Bind | ops.DevBind) and op not in devices:
                    raise FileNotFoundError(errno.ESTALE, "leads elsewhere than when the task began", op.src)
        inner = request_for(inside, steps, without=frozenset({"user"}), within=(user, mount), devices=devices)
        return replace(prepared, ops=steps, request=inner)

    def freeze(self, places: Iterable[str], *, thaw: bool = False) -> None:
        """Make overlays read-only, or writable again: the file systems themselves, so for each of their mounts.

        A spawn does it, with nothing to execute. So if all is well, the exec fails. Raises OSError: EBUSY if a process
        has a file there open for writing, or mapped.
        """
        steps = tuple(ops.Freeze(where, thaw) for where in places)
        prepared = replace(prepare(self.policy, self.host), ops=steps)
        request = self.within(self.policy, prepared).request
        assert request is not None
        nothing = Command(programs=[b"/"], argv=[b"/"], envp=buffers.Strings([]), cwd=None, flags=c.CLOSE_FDS)
        identity = prepared.plan.identity  # a change of ids in the caller's memory would make it non-dumpable
        own = (self.host.euid, self.host.egid) if identity.change_ids else (identity.uid, identity.gid)
        nothing.uid, nothing.gid = own
        result = call.spawn(request, nothing)
        if result.step == c.STEP_EXEC and result.error == errno.EACCES:
            return
        at = steps[result.op] if 0 <= result.op < len(steps) else steps[0]
        if result.error == errno.EBUSY and 0 <= result.op < len(steps):
            what = "a process has a file of the transaction open for writing, or has mapped it: end that process"
            raise OSError(errno.EBUSY, what, at.dest)
        from nsbox._spawn.failure import step_name  # seldom needed

        raise SetupError(result.error, f"make the changes read-only: {step_name(result.step)}", at.describe())

    def close(self) -> None:
        """Let go of the namespaces."""
        self._fds.clear()
        while self._owners:
            self._owners.pop().close()
