"""Place: the sandbox of an actor or of the backend, with an empty directory that goes with its process.

A process that is killed removes nothing. So a small shell waits for its end, by a pipe, and removes the directory then.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import nsbox
from nsbox.integrations._policies import made

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from nsbox.integrations._policies import Policies

# The directory's content ends a moment after the process does. Code may have made directories that nobody can enter.
_REMOVE = """
exec 3<&0
(
    read -r _ <&3
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf -- "$1" && break
        chmod -R u+rwX -- "$1"
        sleep 1
    done
) &
"""


class _Scratch:
    """A directory that is removed with this process, however it ends."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nsbox-")
        self.path = Path(self._directory.name)
        reads, self._writes = os.pipe()
        try:
            # In a session of its own, and nobody's child: Ray ends a worker's children with it.
            subprocess.run(
                ["/bin/sh", "-c", _REMOVE, "nsbox", self._directory.name],
                stdin=reads,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                check=True,
            )
        except BaseException:
            self.remove()
            raise
        finally:
            os.close(reads)

    def remove(self) -> None:
        """Remove it now."""
        self._directory.cleanup()
        os.close(self._writes)


class Place:
    """A Sandbox for a policy, or for the policy that a function makes in an empty directory; close() ends both.

    As a context manager, it is closed if the block raises, and stays open if it doesn't.
    """

    def __init__(self, policy: Policies, changed: Callable[[nsbox.Policy], nsbox.Policy]) -> None:
        """Make it.

        changed: returns the policy with what Ray wants of it.

        Raises TypeError for a function that doesn't return a policy.
        """
        self._scratch: _Scratch | None = None
        self._box: nsbox.Sandbox | None = None
        with self:
            self._box = nsbox.Sandbox(changed(self._made(policy)))

    def _made(self, policy: Policies) -> nsbox.Policy:
        if isinstance(policy, nsbox.Policy):
            return policy
        self._scratch = _Scratch()
        return made(policy, self._scratch.path)

    @property
    def box(self) -> nsbox.Sandbox:
        """The Sandbox."""
        assert self._box is not None
        return self._box

    def close(self) -> None:
        """End what runs, and remove the directory. Closing twice isn't an error."""
        if self._box is not None:
            self._box.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.close()
