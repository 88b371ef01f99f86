"""Details: what bubblewrap's command line can say and other wishes don't need; for Policy.layers() alone. Pure."""

from __future__ import annotations

from nsbox._base.checks import check_bool, check_fd, is_iterable
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import Frozen, frozen_by_name
from nsbox._plan.capabilities import CAPABILITIES, check_capability

_SHARED = frozenset({"pid"})


@frozen_by_name
class Details(Frozen):
    """Fields for Policy.layers() alone, mostly with their names in bwrap(1). Raises PolicyError.

    share: namespaces of the caller that the command stays in; only "pid" is possible. Then other processes in the
        sandbox may outlive the command, and Proc shows the caller's processes.
    capabilities: what the command has over its own namespaces, applied in order to an empty set: names, "all", "caller"
        (as many as the caller has). A "-" in front of a name or "all" removes it. The mounts are then locked.
    userns: a descriptor of the user namespace to join instead of making one.
    userns2: a descriptor of the user namespace to join at the end of the set-up.
    pidns: a descriptor of the pid namespace to join. With share={"pid"} the command is in that one itself; otherwise it
        is in a new one below it. The caller must be non-dumpable.
    disable_userns: set the limit of user namespaces so that no more can be made.
    assert_userns_disabled: refuse to start the command unless no more user namespaces can be made.
    host_writes: where a writable bind leads to the host, make mount points, directories, files and modes there.
    die_with_parent: end everything with the caller; False: the sandbox goes on.
    """

    share: frozenset[str] = frozenset()
    capabilities: tuple[str, ...] = ()
    userns: int | None = None
    userns2: int | None = None
    pidns: int | None = None
    disable_userns: bool = False
    assert_userns_disabled: bool = False
    host_writes: bool = False
    die_with_parent: bool = True

    def __post_init__(self) -> None:
        for name in ("share", "capabilities"):
            value: object = getattr(self, name)
            if isinstance(value, str) or not is_iterable(value):
                raise PolicyError(f"details.{name}", f"is {type_phrase(value)}, must be a sequence")
        object.__setattr__(self, "share", frozenset(self.share))
        object.__setattr__(self, "capabilities", tuple(check_capability(word) for word in self.capabilities))
        unknown = self.share - _SHARED
        if unknown:
            raise PolicyError("details.share", f"{', '.join(sorted(map(str, unknown)))}: must be among pid")
        for name in ("userns", "userns2", "pidns"):
            if getattr(self, name) is not None:
                check_fd(f"details.{name}", getattr(self, name))
        for name in ("disable_userns", "assert_userns_disabled", "host_writes", "die_with_parent"):
            check_bool(f"details.{name}", getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:
        if self.userns is not None and (self.disable_userns or self.capabilities):
            other = "disable_userns" if self.disable_userns else "capabilities"
            raise PolicyError(
                f"details.{other}", "needs a user namespace below that of the mounts; it doesn't go with userns"
            )
        if self.userns2 is not None and (self.disable_userns or self.capabilities):
            other = "disable_userns" if self.disable_userns else "capabilities"
            raise PolicyError(f"details.{other}", "is about a second user namespace of its own, not about userns2")

    def mask(self, caller: int, last: int) -> int:
        """Return the capabilities as bits. caller: the caller's, as bits. last: the kernel's highest number."""
        everything = (1 << last + 1) - 1
        capabilities = 0
        for word in self.capabilities:
            name = word.removeprefix("-")
            bits = {"all": everything, "caller": caller}.get(name)
            if bits is None:
                bits = 1 << CAPABILITIES.index(name)
            capabilities = capabilities & ~bits if word.startswith("-") else capabilities | bits
        return capabilities & everything


NO_DETAILS = Details()
