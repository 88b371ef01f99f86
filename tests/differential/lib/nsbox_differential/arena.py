"""Runs the probe in nsbox and in bwrap, each on a copy of its own of the same tree.

Ops name the tree "/@" and the probe "/@probe". A copy is made again when something in it has changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsbox_testing import needs

import nsbox
from nsbox import Op, Policy, SetupError
from nsbox_differential.spoken import Spoken, located
from nsbox_differential.tree import Snapshot, make_tree, remove_tree, snapshot
from nsbox_differential.view import Mount, View

BWRAP = needs.find("bwrap")


@dataclass(frozen=True, slots=True)
class Case:
    """A list of ops, and what holds for the processes.

    on_host: the first op binds the host's root, so that the tree and the probe are at their own paths, else the probe
    is "/probe". ids: the uid and gid inside.
    """

    ops: tuple[Op, ...]
    unshare: frozenset[str] = frozenset()
    on_host: bool = False
    ids: tuple[int, int] | None = None

    def __repr__(self) -> str:
        ops = "".join(f"    {op!r},\n" for op in self.ops)
        return f"Case(\n  (\n{ops}  ),\n  {self.unshare!r}, {self.on_host!r}, {self.ids!r})"


@dataclass(slots=True)
class Outcome:
    """What came of one run: a view or an error, and the copy of the source tree afterwards."""

    view: View | None
    error: SetupError | str | None
    host: Snapshot


class Arena:
    """Where the two copies of the source tree are."""

    def __init__(self, base: str, probe: str) -> None:
        """base: an empty directory of the tests' own."""
        self.base, self.probe = base, probe
        self.nsbox, self.bwrap = f"{base}/copy-nsbox", f"{base}/copy-bwrap"
        self.clean: set[str] = set()
        self.pristine = self._fresh(self.nsbox)
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            self.host_mounts = [Mount.parse(line) for line in table]
        kernels = {m.point for m in self.host_mounts if re.match(r"/(dev|sys|proc)(/|$)", m.point)}
        numbers = {os.stat(p).st_dev for p in kernels if os.path.exists(p)} - {os.stat(base).st_dev}
        self.foreign = "," + "".join(f"{os.major(n)}:{os.minor(n)}," for n in sorted(numbers))

    def close(self) -> None:
        """Remove everything."""
        os.close(self.proc)
        for top in (self.nsbox, self.bwrap):
            remove_tree(top)

    @contextlib.contextmanager
    def planting(self, links: Mapping[str, str]) -> Iterator[str]:
        """Make "/@planted" for nsbox, a directory with these links; "{0}" in them is a directory that nothing may reach.

        Yields what the file in that directory contains.
        """
        outside, planted, secret = f"{self.base}/outside", f"{self.nsbox}planted", "content of a file outside"
        for path in (outside, planted, f"{planted}/dir"):
            os.mkdir(path)
        for path, text in ((f"{outside}/f", secret), (f"{planted}/f", "planted")):
            Path(path).write_text(text)
        for name, target in links.items():
            os.symlink(target.format(outside), f"{planted}/{name}")
        try:
            yield secret
        finally:
            remove_tree(outside)
            remove_tree(planted)

    def _fresh(self, top: str) -> Snapshot:
        if top not in self.clean:
            remove_tree(top)
            make_tree(top)
            self.clean.add(top)
        return snapshot(top)

    def _after(self, top: str) -> Snapshot:
        host = snapshot(top)
        if host != self.pristine:
            self.clean.discard(top)
        return {name: tuple(self.neutral(text) for text in facts) for name, facts in host.items()}

    def neutral(self, text: str) -> str:
        """Return the text with either copy's name replaced."""
        return text.replace("copy-nsbox", "copy-@").replace("copy-bwrap", "copy-@")

    def _command(self, on_host: bool, top: str) -> list[str]:
        program, root = (self.probe, top) if on_host else ("/probe", "/")
        return [program, str(self.proc), self.foreign, root]

    def _view(self, output: bytes) -> View:
        return View.parse(os.fsencode(self.neutral(os.fsdecode(output))))

    def policy(self, ops: Sequence[Op], case: Case) -> Policy:
        """Return the policy of these ops on nsbox's copy."""
        uid, gid = case.ids or (None, None)
        here = (located(op, self.nsbox, self.probe) for op in ops)
        return Policy.layers(*here, unshare=case.unshare, uid=uid, gid=gid)

    def run_nsbox(self, ops: Sequence[Op], case: Case) -> Outcome:
        """Run the probe in nsbox; a SetupError is an outcome, anything else is raised."""
        self._fresh(self.nsbox)
        command = self._command(case.on_host, self.nsbox)
        policy = self.policy(ops, case)
        try:
            done = nsbox.run(command, policy=policy, cwd="/", pass_fds=(self.proc,), capture_output=True)
        except SetupError as error:
            return Outcome(None, error, self._after(self.nsbox))
        assert done.returncode == 0, (done.returncode, done.stderr)
        return Outcome(self._view(done.stdout), None, self._after(self.nsbox))

    def argv(self, spoken: Spoken, case: Case) -> list[str]:
        """Return bwrap's command line without the command."""
        names = ("user", "pid", *sorted(case.unshare))
        drop = ["--cap-drop", "ALL"]
        drop += ["--uid", str(case.ids[0]), "--gid", str(case.ids[1])] if case.ids else []
        return [str(BWRAP), *(f"--unshare-{name}" for name in names), *drop, *spoken.argv, "--chdir", "/", "--"]

    def run_bwrap(self, ops: Sequence[Op], case: Case) -> Outcome:
        """Run the probe in bwrap; its message is an outcome."""
        self._fresh(self.bwrap)
        spoken = Spoken([located(op, self.bwrap, self.probe) for op in ops])
        try:
            command = self.argv(spoken, case) + self._command(case.on_host, self.bwrap)
            done = subprocess.run(command, pass_fds=(self.proc, *spoken.fds), capture_output=True)
        finally:
            spoken.close()
        if done.returncode != 0:
            message = done.stderr.decode(errors="surrogateescape")
            assert message.startswith("bwrap: "), (done.returncode, message)
            is_ready = message.startswith("bwrap: execvp ")  # only the probe is missing, as in a part of a list
            return Outcome(None, None if is_ready else message, self._after(self.bwrap))
        return Outcome(self._view(done.stdout), None, self._after(self.bwrap))
