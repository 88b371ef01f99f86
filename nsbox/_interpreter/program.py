"""What a warm interpreter is started with: files in memory that hold its program, the C library, and its configuration.

The interpreter may be another version, in a sandbox that doesn't show nsbox. So it gets everything by descriptor.
"""

from __future__ import annotations

from nsbox._base.descriptors import sealed
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen
from nsbox._base.owners import own
from nsbox._core import linux
from nsbox._guest.archive import archive
from nsbox._interpreter.wire import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsbox._base.owners import Owner

PROTOCOL = 1
_WHOSE = "a warm interpreter"
_FOR_ALL = 0o555  # its ids outside may differ from this process's


@frozen
class Wish(Frozen):
    """What a caller wants of a warm interpreter.

    python: as check_python() returns it. imports, setup: what it imports and runs at its start. stock: how many
    branches are made ahead. start_timeout: seconds. overlay: whether branches get overlays of what they may write to.
    """

    python: str | None = None
    imports: tuple[str, ...] = ()
    setup: str = ""
    stock: int = 2
    start_timeout: float = 60.0
    overlay: bool = False


def files(
    wish: Wish,
    control: int,
    blob: bytes,
    relocations: Sequence[int],
    place: Mapping[str, object],
    owners: list[Owner],
) -> tuple[int, list[int]]:
    """Make the files in memory; return the descriptor of the configuration, and all that the interpreter is to get.

    place: what else its configuration says: its directory, and its environment.
    """
    fds = {"control": control}
    for name, content in (
        ("zip", archive()),
        ("core", linux.branch_library()),
        ("init", linux.init_image()),
        ("blob", blob),
    ):
        own([sealed(f"nsbox-{name}", content, _FOR_ALL, _WHOSE)], owners)
        fds[name] = owners[-1].fileno()
    message = {
        "protocol": PROTOCOL,
        "fds": fds,
        "imports": list(wish.imports),
        "setup": wish.setup,
        "stock": wish.stock,
        "relocations": list(relocations),
        **place,
        "uncontained": False,
    }
    own([sealed("nsbox-config", encode(message), _FOR_ALL, _WHOSE)], owners)
    return owners[-1].fileno(), [control, *(owner.fileno() for owner in owners)]
