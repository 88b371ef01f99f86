"""What contains one command: the record that `Popen.sandbox` returns."""

from __future__ import annotations

from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, frozen
from nsbox._network.log import NetworkRecord
from nsbox._plan.plan import Plan

if TYPE_CHECKING:
    import psutil

    from nsbox._lifetime.usage import Usage


@frozen
class Containment(Frozen):
    """What contains one command: `Popen.sandbox`.

    backend: its name.
    plan: what was carried out.
    enforced, not_enforced: what holds and what doesn't, a sentence each.
    pid, init_pid: the command and pid 1 of the sandbox, as this process numbers them.
    usage: what was used up; None until the end.
    reaped: whether the command itself has ended and been waited for.
    is_warm: whether the command started in a copy of what a Sandbox keeps, instead of a sandbox made for it alone.
    network: what it has connected to, or tried to, under a network list so far; empty without one.
    """

    backend: str
    plan: Plan = field(repr=False)  # it is long
    enforced: tuple[str, ...]
    not_enforced: tuple[str, ...]
    pid: int
    init_pid: int
    usage: Usage | None
    reaped: bool = False
    is_warm: bool = False
    network: NetworkRecord = field(default=NetworkRecord(), repr=False)

    @property
    def lost(self) -> frozenset[str]:
        """The names in the policy's `degrade` that are lost here."""
        return self.plan.lost

    def processes(self) -> list[psutil.Process]:
        """Return the processes in the sandbox now, the command first; [] after its end. Needs psutil (ImportError)."""
        from nsbox._lifetime.usage import processes

        if self.usage is not None and self.plan.kill_on_exit:
            return []
        is_wrapper = bool(self.plan.wrapper)  # then pid is bwrap's
        gone = self.reaped or self.usage is not None or is_wrapper
        return processes(None if gone else self.pid, self.init_pid)
