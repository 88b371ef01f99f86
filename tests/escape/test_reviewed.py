"""A commit brings in what was reviewed; and what is shown hides nothing."""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python

from nsbox import Change, CommitError, ConflictError, Policy, Sandbox, Transaction
from nsbox._files import copies
from nsbox._transaction import changes as transaction_changes
from nsbox._transaction import patch, review
from nsbox._transaction.holder import Holder

RECEIVE = """
import array, mmap, os, socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1] + "/s"); s.listen(); print("ready", flush=True)
c, _ = s.accept(); fd = array.array("i", c.recvmsg(1, 64)[1][0][2])[0]
print("got", flush=True)
for line in sys.stdin:
    match line.strip():
        case "write": os.pwrite(fd, b"EVIL", 0)
        case "map": memory = mmap.mmap(fd, 0); os.close(fd)
        case "change": memory[:4] = b"EVIL"
        case "unmap": memory.close()
        case "close": os.close(fd)
    print("done", flush=True)
"""
SEND = """
import array, os, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1] + "/s")
with open("file", "w") as f: f.write("harmless")
fd = os.open("file", os.O_RDWR)
s.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
"""


class Smuggled:
    """A transaction, and a command outside of it that has a descriptor of a file of it."""

    def __init__(self, tx: Transaction, outside: subprocess.Popen[str]) -> None:
        self.tx, self._outside = tx, outside

    def outside(self, *lines: str) -> None:
        """Have the other command do something."""
        for line in lines:
            self._outside.stdin.write(f"{line}\n")
            self._outside.stdin.flush()
            assert self._outside.stdout.readline() == "done\n"


@pytest.fixture
def smuggled(tmp_path: Path, workspace: Path) -> Iterator[Smuggled]:
    share = tmp_path / "share"
    share.mkdir()
    policy = Policy.workspace(workspace, write=[share])
    with (
        Sandbox(policy, stock=0) as box,
        box.transaction(dir=tmp_path / "kept") as tx,
        box.Popen(python(RECEIVE, str(share)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as outside,
    ):
        assert outside.stdout.readline() == "ready\n"
        tx.run(python(SEND, str(share)), check=True)
        assert outside.stdout.readline() == "got\n"
        try:
            yield Smuggled(tx, outside)
        finally:
            outside.kill()


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Neither is the overlay made read-only, nor compared with what was looked at."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Holder, "freeze", lambda *_, **options: None)
        patched.setattr(review, "_check_reviewed", lambda *_: None)
        patched.setattr(transaction_changes.Comparison, "other_copies", lambda *_: [])
        yield


@pytest.mark.parametrize("steps", [("write",), ("map", "change")], ids=["descriptor", "memory"])
def test_somebody_has_a_file_open(smuggled: Smuggled, workspace: Path, steps: tuple[str, ...]) -> None:
    """As long as anybody could write to it there is no commit; then there is one, of what was looked at."""
    assert [str(change) for change in smuggled.tx.diff()] == ["A file"]
    assert "harmless" in smuggled.tx.patch()
    smuggled.outside(*steps)
    with pytest.raises(CommitError, match="open for writing, or has mapped it") as caught:
        smuggled.tx.commit()
    assert caught.value.is_undone
    assert os.listdir(workspace) == []
    smuggled.outside("unmap" if "map" in steps else "close")
    assert "EVIL" in smuggled.tx.patch()
    smuggled.tx.commit()
    assert (workspace / "file").read_text() == "EVILless"


def test_control_somebody_has_a_file_open(smuggled: Smuggled, workspace: Path) -> None:
    """Without that it comes in."""
    with unguarded():
        assert "harmless" in smuggled.tx.patch()
        smuggled.outside("write")
        smuggled.tx.commit()
    assert (workspace / "file").read_text() == "EVILless"


@pytest.mark.parametrize("expects", [True, False])
@pytest.mark.parametrize("steps", [("write", "close"), ("map", "change", "unmap")], ids=["descriptor", "memory"])
def test_it_isnt_what_was_reviewed(smuggled: Smuggled, workspace: Path, steps: tuple[str, ...], expects: bool) -> None:
    """What was changed after the look and is closed by now is found by its digest; expected= isn't even needed."""
    changes = smuggled.tx.diff()
    smuggled.outside(*steps)
    with pytest.raises(ConflictError, match=r"showed has changed since: file \(isn't what was reviewed\)"):
        smuggled.tx.commit(expected=changes) if expects else smuggled.tx.commit()
    assert os.listdir(workspace) == []
    with unguarded():  # the control: without what was reviewed
        smuggled.tx.commit()
    assert (workspace / "file").read_text() == "EVILless"


LATER = [
    "echo more >> new",
    "chmod 600 new",
    "ln new other",
    "touch more",
    "rm new",
    "rm new; ln -s x new",
    "rm settings",
]


@pytest.mark.parametrize("later", [*LATER, 'python3 -c \'import os; os.setxattr("new", "user.x", b"y")\''])
def test_expected(tx: Transaction, workspace: Path, later: str) -> None:
    """Contents, modes, links, attributes, more and less: with expected= a commit is of that, or none."""
    tx.shell("echo new > new", check=True)
    changes = pickle.loads(pickle.dumps(tx.diff()))
    tx.shell(later, check=True)
    with pytest.raises(ConflictError, match="isn't what was reviewed"):
        tx.commit(expected=changes)
    assert not (workspace / "new").exists()
    now = tx.diff()
    assert tx.commit(expected=iter(now)) == now  # the control


STALE = r"showed has changed since: new \(isn't what was reviewed\).*look again by diff\(\) or patch\(\), .* expected="


@pytest.mark.parametrize("look", ["diff", "patch"])
def test_commands_after_a_look(tx: Transaction, workspace: Path, look: str) -> None:
    """What they have changed doesn't come in unseen: an error names the first path, and what to do. Then it does."""
    tx.shell("echo new > new", check=True)
    getattr(tx, look)()
    tx.shell("echo newer > new; echo > settings", check=True)
    with pytest.raises(ConflictError, match=STALE.replace("reviewed\\)", "reviewed\\), settings .*")) as caught:
        tx.commit()
    assert [path for path, _ in caught.value.conflicts] == ["new", "settings"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not (workspace / "new").exists()
    getattr(tx, look)()
    tx.commit()
    assert (workspace / "new").read_text() == "newer\n"


def test_control_commands_after_a_look(tx: Transaction, workspace: Path) -> None:
    """The control: if it weren't compared with what was looked at, it would come in."""
    tx.shell("echo new > new", check=True)
    tx.diff()
    tx.shell("echo newer > new", check=True)
    with unguarded():
        tx.commit()
    assert (workspace / "new").read_text() == "newer\n"


@pytest.mark.parametrize("look", ["diff", "patch"])
def test_commands_during_a_look(tx: Transaction, workspace: Path, look: str) -> None:
    """If a command ran during the review, and went on afterwards, nothing comes in that wasn't there then."""
    code = "import sys; f = open('new', 'w'); f.write('new'); f.flush(); print(flush=True); input(); f.write('EVIL')"
    with tx.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "\n"
        getattr(tx, look)()
        running.communicate("\n")
    with pytest.raises(ConflictError, match=STALE):
        tx.commit()
    assert "EVIL" in tx.patch()
    tx.commit()  # the control
    assert (workspace / "new").read_text() == "newEVIL"


def test_commands_that_change_nothing(tx: Transaction, workspace: Path) -> None:
    """What was told is what counts, not whether commands have run since; nor does it matter what is done to a list."""
    tx.shell("echo new > new", check=True)
    tx.diff().clear()
    tx.shell("cat new; touch new; echo > x; rm x", check=True)
    tx.commit()
    assert (workspace / "new").read_text() == "new\n"


def test_a_look_at_nothing(tx: Transaction, workspace: Path) -> None:
    """It is one, too."""
    assert tx.patch() == ""
    tx.shell("echo new > new", check=True)
    with pytest.raises(ConflictError, match=STALE):
        tx.commit()


def test_no_look(tx: Transaction, workspace: Path) -> None:
    """Then there is nothing that a commit could be compared with: it brings in all that there is."""
    tx.shell("echo new > new", check=True)
    tx.shell("echo newer > new", check=True)
    tx.commit()
    assert (workspace / "new").read_text() == "newer\n"


@pytest.mark.parametrize(
    ("what", "budget", "is_guarded"),
    [
        ("file", transaction_changes._MOST_DIGESTED, True),
        ("file", transaction_changes._MOST_DIGESTED, False),
        ("file", 0, True),
        ("symlink", transaction_changes._MOST_DIGESTED, True),
        ("symlink", transaction_changes._MOST_DIGESTED, False),
    ],
)
def test_a_patch_of_what_is_changed_meanwhile(
    tx: Transaction, workspace: Path, monkeypatch: pytest.MonkeyPatch, what: str, budget: int, is_guarded: bool
) -> None:
    """What patch() has shown counts, also if something else was there before and is again; the control: its digest."""
    monkeypatch.setattr(transaction_changes, "_MOST_DIGESTED", budget)
    assert tx._store is not None
    there = Path(tx._store.upper, "new")

    def put(content: str) -> None:
        there.unlink(missing_ok=True)
        there.symlink_to(content) if what == "symlink" else there.write_text(content)

    def shown(self: patch.Patch, change: Change) -> str:
        put("harmless")
        try:
            return of(self, change)
        finally:
            put("EVIL")

    put("EVIL")
    of = patch.Patch.of
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patch.Patch, "of", shown)
        if not is_guarded:
            patched.setattr(transaction_changes.Comparison, "as_shown", lambda _, change, __: change)
        assert "harmless" in tx.patch()
    if is_guarded:
        with pytest.raises(ConflictError, match=STALE):
            tx.commit()
        assert "EVIL" in tx.patch()
    tx.commit()
    assert (os.readlink(workspace / "new") if what == "symlink" else (workspace / "new").read_text()) == "EVIL"


def test_a_patch_by_times(tx: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the budget, a commit of what patch() has shown goes well, of hard links too."""
    monkeypatch.setattr(transaction_changes, "_MOST_DIGESTED", 0)
    tx.shell("echo new > new; ln new new2; ln -s new link", check=True)
    assert "+new" in tx.patch()
    assert len(tx.commit()) == 3


def test_expected_is_what_diff_returns(tx: Transaction) -> None:
    """Nothing else will do: it says so before anything is done."""
    tx.shell("echo new > new", check=True)
    with pytest.raises(TypeError, match="must have what diff"):
        tx.commit(expected=["new"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="without a digest"):
        tx.commit(expected=[Change("added", "new", "file", 0o644)])
    with pytest.raises(ConflictError):
        tx.commit(expected=[])


def test_beyond_the_budget(tx: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose contents there is no time to read are identified by number, size and times."""
    monkeypatch.setattr(transaction_changes, "_MOST_DIGESTED", 0)
    tx.shell("echo new > new; echo new > other", check=True)
    changes = tx.diff()
    assert len({change.digest for change in changes}) == 2
    tx.shell("echo neu > new", check=True)
    with pytest.raises(ConflictError, match=r"since: new \("):
        tx.commit(expected=changes)
    tx.commit(expected=tx.diff())


MAPPED = """
import mmap, sys
with open("new", "r+b") as file: memory = mmap.mmap(file.fileno(), 0)
memory[:4]  # on tmpfs no write has another time from now on
if len(sys.argv) > 1: print("mapped", flush=True); input()
memory[:4] = b"EVIL"
"""


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("how", ["diff, then a command", "diff while one runs", "patch while one runs"])
def test_mapped_beyond_the_budget(
    tx: Transaction, workspace: Path, monkeypatch: pytest.MonkeyPatch, how: str, is_guarded: bool
) -> None:
    """By a mapping a file is changed at the same times; so a command that was at work after the look counts as a change.

    What patch() has shown is read for its digest all the same. The control: if times were all that counts.
    """
    monkeypatch.setattr(transaction_changes, "_MOST_DIGESTED", 0)

    def times(
        self: transaction_changes.Comparison, now: os.stat_result
    ) -> bytes:  # without those that a write-back may change
        return b"%d %d %d" % (now.st_ino, now.st_size, self._moment if is_guarded else 0)

    monkeypatch.setattr(transaction_changes.Comparison, "_times", times)
    if not is_guarded:
        monkeypatch.setattr(Transaction, "_sure", lambda _, __, told: told)
        monkeypatch.setattr(transaction_changes.Comparison, "as_shown", lambda _, change, __: change)
        monkeypatch.setattr(
            transaction_changes.Comparison, "_seal_of_shown", lambda self, path, now: self._seal(path, now, 0)[0]
        )
    tx.shell("echo fine > new; echo other > other", check=True)
    if how == "diff, then a command":
        tx.diff()
        tx.run(python(MAPPED), cwd=workspace, check=True)
    else:
        with tx.Popen(
            python(MAPPED, "wait"), cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "mapped\n"
            if how.startswith("diff"):
                tx.diff()
            else:
                assert "+fine" in tx.patch()
            process.communicate("\n")
    if is_guarded:
        with pytest.raises(ConflictError, match=STALE):
            tx.commit()
        assert "+EVIL" in tx.patch()
    tx.commit()
    assert (workspace / "new").read_text() == "EVIL\n"


# ---- what is copied

UPPER = {
    "contents": lambda path: path.write_text("EVIL\n"),
    "mode": lambda path: path.chmod(0o777),
    "set-user-ID": lambda path: path.chmod(0o4644),
    "attribute": lambda path: os.setxattr(path, "user.x", b"y"),
    "type": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "gone": lambda path: path.unlink(),
}


def meddle(monkeypatch: pytest.MonkeyPatch, tx: Transaction, workspace: Path, where: str, what: str, how: str) -> None:
    """Have another process change a file while it is being copied, or its copy."""
    assert tx._store is not None
    original, spare, copy = Path(tx._store.upper, where), workspace / tx._store.spare, copies.copy

    def meddled(*args: Any, **options: Any) -> None:
        if args[1] != where.partition("/")[0]:
            copy(*args, **options)
        elif what == "copy":
            copy(*args, **options)
            UPPER[how](spare / (os.path.basename(args[3]) + where[len(args[1]) :]))
        else:
            UPPER[how](original)
            copy(*args, **options)
            original.unlink(missing_ok=True)
            original.write_text("new\n")
            original.chmod(0o644)

    monkeypatch.setattr(copies, "copy", meddled)


MAKE_NEW = "umask 022; mkdir -p dir/in; echo new > new; echo new > dir/in/new; ln -s new link; mkfifo pipe"


@pytest.mark.parametrize("where", ["new", "dir/in/new"])
@pytest.mark.parametrize("what", ["original", "copy"])
@pytest.mark.parametrize("how", UPPER)
def test_copies_are_compared(
    tx: Transaction, workspace: Path, monkeypatch: pytest.MonkeyPatch, how: str, what: str, where: str
) -> None:
    """A change to what is being copied, or to the copy, stops the commit; nothing is left of it."""
    tx.shell(MAKE_NEW, check=True)
    meddle(monkeypatch, tx, workspace, where, what, how)
    if how == "set-user-ID" and what == "original":  # those bits never come along
        tx.commit()
        assert stat.S_IMODE((workspace / where).stat().st_mode) == 0o644
        return
    match = rf"what was being copied into the workspace: {where} \(|No such file or directory"
    with pytest.raises(CommitError if how == "gone" and where == "new" else ConflictError, match=match):
        tx.commit()
    assert sorted(os.listdir(workspace)) == ["d", "settings", "tool"]


@pytest.mark.parametrize("where", ["new", "dir/in/new"])
@pytest.mark.parametrize("what", ["original", "copy"])
def test_control_copies_are_compared(
    tx: Transaction, workspace: Path, monkeypatch: pytest.MonkeyPatch, what: str, where: str
) -> None:
    """The control: if nobody compares, it comes in."""
    tx.shell(MAKE_NEW, check=True)
    meddle(monkeypatch, tx, workspace, where, what, "contents")
    monkeypatch.setattr(transaction_changes.Comparison, "other_copies", lambda *_: [])
    tx.commit()
    assert (workspace / where).read_text() == "EVIL\n"


@pytest.mark.parametrize(
    ("look", "later", "reads"), [("", "", 0), ("diff", "", 0), ("patch", "", 0), ("diff", "true", 1)]
)
def test_what_a_commit_reads(
    tx: Transaction, workspace: Path, monkeypatch: pytest.MonkeyPatch, look: str, later: str, reads: int
) -> None:
    """It reads the copies, to compare them. What they are copies of it reads only if a command has run since the review."""
    tx.shell("echo new > new", check=True)
    if look:
        getattr(tx, look)()
    if later:
        tx.shell(later, check=True)
    seal, read = transaction_changes.Comparison._seal, []

    def counted(self: Any, path: str, *args: Any) -> Any:
        read.append(path)
        return seal(self, path, *args)

    monkeypatch.setattr(transaction_changes.Comparison, "_seal", counted)
    assert [change.digest is None for change in tx.commit()] == [not look]
    assert read == ["new"] * reads and (workspace / "new").read_text() == "new\n"


def test_copies_of_all_kinds(tx: Transaction, workspace: Path) -> None:
    """The control: whatever a transaction has made is found to be the same in its copy."""
    tx.run(python(ATTRIBUTES), check=True)
    tx.shell(
        "mkdir -m 0 closed; mkdir -m 500 ro-dir || :; touch unreadable; chmod 0 unreadable; truncate -s 1T hole;"
        " mkfifo -m 600 pipe; ln -s nowhere link; chmod 6755 tool; rm -r d; mkdir d; echo x > d/x; chmod 1777 d;"
        " printf 'a\\0b' > bytes; mkdir -p a/b/c; echo > a/b/c/file; ln a/b/c/file a.hard; touch a.b",
        check=True,
    )
    told = tx.diff()
    assert tx.commit() == told
    assert (workspace / "a/b/c/file").samefile(workspace / "a.hard")
    (workspace / "closed").chmod(0o700)


# ---- what is shown

ATTRIBUTES = """
import os
os.setxattr("tool", "user.mine", b"x")
open("new", "w").close(); os.setxattr("new", "user.other", b"y")
os.link("new", "new2"); os.link("new", "d/new3")
"""
