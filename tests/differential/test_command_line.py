"""The same command line through nsbox's bwrap and through the system's: the same sandbox, status, and beginning of what is said.

The lists of options are those of test_bwrap.py, said in bwrap's words to both. Here nsbox makes mount points on the
host too, so that the copies must end up alike. What differs by design is in test_bwrap.py's table; of it remain what
leads over links (never followed to be created or overwritten, and resolved inside of the new root), and what 0.8 can't do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import assume, event, given, note, settings
from nsbox_differential import PATIENCE
from nsbox_differential.arena import Arena, Case, Outcome
from nsbox_differential.cases import cases
from nsbox_differential.compare import fact_differences, mount_differences, tree_differences
from nsbox_differential.spoken import Spoken, located
from nsbox_testing import needs

from nsbox._bwrap.install import install

pytestmark = [needs.programs("bwrap"), pytest.mark.timeout(PATIENCE)]


class Front(Arena):
    """Two copies of the tree; nsbox's is used by its command line."""

    program = ""

    def run_front(self, case: Case) -> Outcome:
        """Run the probe by the executable that --install makes."""
        self._fresh(self.nsbox)
        spoken = Spoken([located(op, self.nsbox, self.probe) for op in case.ops])
        try:
            command = [self.program, *self.argv(spoken, case)[1:], *self._command(case.on_host, self.nsbox)]
            done = subprocess.run(command, pass_fds=(self.proc, *spoken.fds), capture_output=True)
        finally:
            spoken.close()
        if done.returncode != 0:
            message = done.stderr.decode(errors="surrogateescape")
            assert (done.returncode, message[:7]) == (1, "bwrap: "), (done.returncode, message)
            assert message.endswith("\n"), message
            return Outcome(None, message, self._after(self.nsbox))
        return Outcome(self._view(done.stdout), None, self._after(self.nsbox))


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, probe: str) -> Iterator[Front]:
    """Return where both run."""
    front = Front(str(tmp_path_factory.mktemp("front")), probe)
    front.program = install(str(tmp_path_factory.mktemp("bin")))
    yield front
    front.close()


def by_design(case: Case, message: str) -> str:
    """Return why nsbox alone refuses; "" for nothing known."""
    for said in ("Too many levels of symbolic links", "File exists", "Invalid cross-device link"):
        if message.endswith(f": {said}\n"):
            return "a link, or a mount, is in the way of what would be made"
    return ""


@settings(settings.get_profile("differential"))
@given(case=cases())
def test_same_sandbox(front: Front, case: Case) -> None:
    """Any list of options gives the same view, rights, mounts and host, or fails in both, as bwrap does."""
    theirs = front.run_bwrap(case.ops, case)
    mine = front.run_front(case)
    note(f"{case!r}\nmine: {mine.error}\ntheirs: {theirs.error}")
    event(f"{'refused' if mine.error else 'made'}, theirs {'refused' if theirs.error else 'made'}")
    if mine.error is not None:
        assert theirs.error is not None or by_design(case, str(mine.error)), mine.error
        return
    assume(theirs.error is None)  # what 0.8 can't do: see limit_of_bwrap()
    assert mine.view is not None and theirs.view is not None
    problems = [
        *fact_differences(mine.view, theirs.view),
        *mount_differences(mine.view, theirs.view, front.host_mounts),
        *(f"on the host: {line}" for line in tree_differences(mine.host, theirs.host)),
    ]
    assert not problems, "\n".join(problems)
