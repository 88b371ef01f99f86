"""What only Policy.layers() can ask for: what bubblewrap's command line can say, and a wish doesn't need. Pure."""

from __future__ import annotations

from nsbox._base.checks import check_bool, check_fd, is_iterable
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import Frozen, frozen_by_name
from nsbox._plan.capabilities import CAPABILITIES, check_capability

_SHARED = frozenset({"pid"})


@frozen_by_name
class Details(Frozen):
    """Wishes of Policy.layers() alone, by their names in bwrap(1).

    share: namespaces of the caller that the command stays in; only "pid", in which case nothing of the sandbox but
    the command itself ends with it, and Proc shows the caller's processes. capabilities: those that the command has
    over its own namespaces, from none, in order: names, "all", "caller" (as many as the caller has), each but the
    last also with a "-" to take it away; the mounts are then locked. userns, userns2, pidns: descriptors of
    namespaces to be joined, the second user namespace at the end of the set-up. With share={"pid"} the command is in
    pidns itself, else in a pid namespace below it; who asks for it must be non-dumpable. disable_userns: no further
    user namespaces, by a limit; assert_userns_disabled: it doesn't start unless that is so. host_writes: mount points,
    directories, files and modes are made on the host, where a writable bind leads there. die_with_parent: all ends
    with the caller; with False the sandbox goes on.
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
                raise PolicyError(f"details.{name}", f"is a {type(value).__name__}, must be a sequence")
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
                f"details.{other}", "takes a user namespace below that of the mounts; it doesn't go with userns"
            )
        if self.userns2 is not None and (self.disable_userns or self.capabilities):
            other = "disable_userns" if self.disable_userns else "capabilities"
            raise PolicyError(f"details.{other}", "is about a second user namespace of its own, not about userns2")

    def mask(self, caller: int, last: int) -> int:
        """Return the capabilities as bits. caller: those that the caller has; last: the number of the kernel's last."""
        everything = (1 << last + 1) - 1
        found = 0
        for word in self.capabilities:
            name = word.removeprefix("-")
            bits = {"all": everything, "caller": caller}.get(name)
            if bits is None:
                bits = 1 << CAPABILITIES.index(name)
            found = found & ~bits if word.startswith("-") else found | bits
        return found & everything


NO_DETAILS = Details()
