"""What fails while the changes of a transaction come into a workspace, and who else has the workspace then."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from nsbox_testing.commits import AFTER, Case, no_others
from nsbox_testing.trees import taken

from nsbox import CommitError, ConflictError, PolicyError
from nsbox._files import copies, files
from nsbox._files.files import Tree
from nsbox._transaction import changes as transaction_changes
from nsbox._transaction import commit, steps
from nsbox._transaction import store as transaction_store
from nsbox._transaction.store import Store


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture(params=[True, False], ids=["exchange", "no-exchange"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on file systems where two files can't change places."""
    if not request.param:
        monkeypatch.setattr(commit.Staging, "_try_exchange", lambda self: False)


# ---- what fails


@pytest.mark.usefixtures("exchange")
def test_a_step_that_fails_undoes_the_others(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step in turn fails: the workspace is as it was, and the transaction goes on."""
    store = case.begin()
    do = steps.Steps.do
    for n in range(100):
        left = [n]

        def failing(self: steps.Steps, step: steps.Step, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(28, "No space left on device", step.path)
            do(self, step)

        monkeypatch.setattr(steps.Steps, "do", failing)
        try:
            case.commit(store)
            break
        except CommitError as error:
            assert error.is_undone
            assert "No space left on device" in str(error)
            assert "nothing was changed" in str(error)
        assert taken(case.real) == case.before
    assert n > 8
    assert set(taken(case.real)) == AFTER


def test_no_space_for_the_copies(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is changed."""
    store = case.begin()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(copies, "copy_data", full)
        with pytest.raises(CommitError, match="copy what is new into the workspace: No space left on device"):
            case.commit(store)
    assert taken(case.real) == case.before
    case.commit(store)
    assert set(taken(case.real)) == AFTER


def test_a_conflict_at_the_last_moment(case: Case) -> None:
    """Found when all is copied: nothing has been changed yet."""
    store = case.begin()

    def check() -> None:
        raise ConflictError([("changed", "changed")])

    with pytest.raises(ConflictError):
        case.commit(store, check)
    assert taken(case.real) == case.before
    store.end()
    assert case.leftovers() == []


def interrupted(case: Case, done: int) -> None:
    """Have a commit end without a word after so many steps."""
    do, left = steps.Steps.do, [done]

    def stop(self: steps.Steps, step: steps.Step) -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(42)
        do(self, step)

    pid = os.fork()
    if pid == 0:
        steps.Steps.do = stop  # type: ignore[method-assign]
        case.commit(case.begin())
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


MINE = ("file", 0o644, b"mine")


@pytest.mark.parametrize(
    "path", ["tree", "changed", "gone/new", "gone/one", "replaced/old", "was-directory/inner/file"]
)
def test_what_was_changed_since_the_crash_stays(case: Case, path: str) -> None:
    """A commit that would overwrite or remove it can't be completed any more, and is taken back."""
    interrupted(case, 0)
    (case.real / path).write_text("mine")
    assert commit.recover(str(case.base)) == []
    found = taken(case.real)
    assert (*found.pop(path)[:2], (case.real / path).read_bytes()) == MINE
    assert found == {name: what for name, what in case.before.items() if name != path}
    assert case.leftovers() == []


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("how", ["saved again", "deleted"])
def test_what_was_changed_after_it_came_in_stays(case: Case, how: str) -> None:
    """A step that has been done isn't done again, whatever has become of it."""
    interrupted(case, 6)
    assert (case.real / "changed").read_text() == "changed after\n"
    if how == "deleted":
        (case.real / "changed").unlink()
    else:
        (case.real / ".swap").write_text("mine")
        (case.real / ".swap").rename(case.real / "changed")
    assert commit.recover(str(case.base)) == []
    found = taken(case.real)
    assert set(found) | {"changed"} == AFTER
    assert ("changed" in found) == (how != "deleted")
    if how != "deleted":
        assert (case.real / "changed").read_text() == "mine"


@pytest.mark.parametrize("path", ["changed", "tree/mine", "tree/hard", "moved-here"])
def test_undoing_keeps_what_others_have_done(case: Case, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A step fails after a user has edited what came in before: that stays, and what was there is put beside it."""
    store, undo = case.begin(), steps.Steps.undo
    done: list[str] = []

    def fail(self: steps.Steps) -> None:
        with open(case.real / path, "a") as file:
            file.write("mine")
        done.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps.Steps, "sync", lambda self: fail(self) if not done else None)
    with pytest.raises(CommitError, match="nothing was changed"):
        case.commit(store)
    assert undo is steps.Steps.undo
    assert (case.real / path).read_text().endswith("mine")
    found = {name: what for name, what in taken(case.real).items() if name.split("/")[0] != path.split("/")[0]}
    beside = [name for name in found if ".nsbox-" in name]
    assert [name.split(".")[0] for name in beside] == (["changed"] if path == "changed" else [])
    for name in beside:
        assert (case.real / name).read_text() == "changed before\n" * 3
        del found[name]
    assert found == {name: what for name, what in case.before.items() if name != path}
    store.end()


def test_hard_links_that_go(case: Case) -> None:
    """Removing the first one isn't mistaken for a change of the others by another process."""
    for name in ("link-1", "link-2", "gone/link-3"):
        os.link(case.real / "same", case.real / name)
    store = case.begin()
    for name in ("link-1", "link-2", "same"):
        os.mknod(Path(store.upper) / name, 0o020000, 0)
    case.commit(store)
    assert set(taken(case.real)) == AFTER - {"same"}


def test_two_commits_at_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for the other, but not for ever; a commit into another workspace goes on."""
    case.begin().end()
    monkeypatch.setattr(transaction_store, "_PATIENCE", 0.05)
    base, real = str(case.base), os.stat(case.real)
    with transaction_store.locked_workspace(base, real):
        with (
            pytest.raises(ConflictError, match="another commit is under way"),
            transaction_store.locked_workspace(base, real),
        ):
            pass
        with transaction_store.locked_workspace(base, os.stat(base)):
            pass
    with transaction_store.locked_workspace(base, real):
        pass


def test_the_copies_have_been_removed(case: Case) -> None:
    """By git clean, say, after a crash: that is reported once, and nothing is left to be done."""
    interrupted(case, 3)
    for name in case.leftovers():
        if (case.real / name).exists():
            shutil.rmtree(case.real / name)
    ((_, error),) = commit.recover(str(case.base))
    assert "has been removed" in str(error)
    assert commit.recover(str(case.base)) == []
    assert case.leftovers() == []


def test_a_commit_in_a_commit(case: Case) -> None:
    """By a signal's handler: it touches nothing of the one that is under way."""
    store, errors = case.begin(), []

    def again(self: steps.Steps) -> None:
        if not errors:
            with Tree(store.upper) as upper, Tree(str(case.real)) as real, pytest.raises(CommitError) as caught:
                commit.commit(store, upper, real, [], 0, lambda: None, no_others)
            errors.append(caught.value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps.Steps, "sync", again)
        case.commit(store)
    assert "one is under way" in str(errors[0])
    assert set(taken(case.real)) == AFTER


@pytest.mark.usefixtures("exchange")
def test_an_interrupt_undoes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the steps: none of them, and no journal that would bring them in later."""
    store, do = case.begin(), steps.Steps.do
    for n in range(9):
        left = [n]

        def interrupt(self: steps.Steps, step: steps.Step, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            do(self, step)

        monkeypatch.setattr(steps.Steps, "do", interrupt)
        with pytest.raises(KeyboardInterrupt):
            case.commit(store)
        assert taken(case.real) == case.before
    store.end()
    assert case.leftovers() == []


def test_what_can_neither_be_done_nor_undone_waits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal stays, no matter what ends the transaction, and recover() brings the rest in."""
    store = case.begin()

    def fail(self: steps.Steps, step: steps.Step) -> None:
        raise PermissionError(1, "no")

    do = steps.Steps.do
    with monkeypatch.context() as patched:
        patched.setattr(steps.Steps, "undo", fail)
        patched.setattr(
            steps.Steps, "do", lambda self, step: fail(self, step) if step.what == "put" else do(self, step)
        )
        with pytest.raises(CommitError, match="the workspace may be changed in part: see recover") as caught:
            case.commit(store)
        assert not caught.value.is_undone
        store.end()
    assert case.leftovers() != []
    assert commit.recover(str(case.base)) == []
    assert set(taken(case.real)) == AFTER
    assert case.leftovers() == []


def test_a_spare_that_cant_be_removed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit has been done all the same; what is left is removed by the next start."""
    store = case.begin()

    def fail(tree: Tree, path: str) -> None:
        raise PermissionError(1, "no")

    with monkeypatch.context() as patched:
        patched.setattr(files, "remove", fail)
        case.commit(store)
    assert set(taken(case.real)) > AFTER
    assert commit.recover(str(case.base)) == []
    assert set(taken(case.real)) == AFTER
    assert case.leftovers() == []


def test_a_journal_that_isnt_certain_is_withdrawn(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, but may not be on the device: then nothing has been changed, nor will it be."""
    store, write = case.begin(), Store.write

    def fail(self: Store, name: str, content: object) -> None:
        write(self, name, content)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", fail)
        with pytest.raises(CommitError, match="nothing was changed"):
            case.commit(store)
    store.let_go()
    assert commit.recover(str(case.base)) == []
    assert taken(case.real) == case.before


@pytest.mark.parametrize(
    "content", ["[", "[]", "{}", '{"began": 1, "certain": 1, "steps": [["rm", "x", "1", [], [], 0, 0]]}']
)
def test_a_journal_that_is_none(case: Case, content: str) -> None:
    """It is reported, and left alone."""
    store = case.begin()
    with open(os.path.join(store.path, "journal"), "w") as file:
        file.write(content)
    store.let_go()
    ((_, error),) = commit.recover(str(case.base))
    assert "recover the transaction in" in str(error)
    assert taken(case.real) == case.before
    os.unlink(os.path.join(store.path, "journal"))
    assert commit.recover(str(case.base)) == []


def test_another_version(case: Case) -> None:
    store = case.begin()
    store.write("about", {"version": 99})
    store.let_go()
    ((_, error),) = commit.recover(str(case.base))
    assert "another version" in str(error)
    assert os.path.isdir(store.upper)
    os.unlink(os.path.join(store.path, "about"))
    assert commit.recover(str(case.base)) == []
    assert case.leftovers() == []


def test_a_store_that_others_can_write_to(case: Case) -> None:
    """Another user who could leave a journal there would have us carry it out."""
    case.begin().end()
    case.base.chmod(0o777)
    with pytest.raises(PolicyError, match="no other user may write to it"):
        case.begin()
    (case.base / ("0" * 16)).mkdir()
    with pytest.raises(PolicyError, match="no other user may write to it"):
        commit.recover(str(case.base))


@pytest.mark.as_root("of two users")
def test_a_store_of_somebody_else(case: Case) -> None:
    case.begin().end()
    os.chown(case.base, 12345, 12345)
    with pytest.raises(PolicyError, match="must belong to this user"):
        case.begin()


def test_the_workspace_has_gone(case: Case) -> None:
    """A commit that can't be finished is reported, and remains to be finished."""
    store = case.begin()
    store.write("journal", {"began": 0, "certain": 0, "steps": []})
    os.mkdir(case.real / store.spare)
    store.let_go()
    os.rename(case.real, case.base.parent / "elsewhere")
    ((workspace, error),) = commit.recover(str(case.base))
    assert workspace == str(case.real)
    assert "the workspace has gone" in str(error)
    os.rename(case.base.parent / "elsewhere", case.real)
    assert commit.recover(str(case.base)) == []
    assert case.leftovers() == []


def test_a_transaction_that_lives_is_left_alone(case: Case) -> None:
    store = case.begin()
    assert commit.recover(str(case.base)) == []
    assert os.path.isdir(store.upper)
    store.end()


# ---- others have the workspace too


def test_a_directory_becomes_a_symlink(case: Case) -> None:
    """A commit never goes through a symlink that is put in its way: nothing outside is changed."""
    outside = case.real.parent / "outside"
    shutil.copytree(case.real / "kept", outside)
    store = case.begin()
    new = Path(store.upper) / "kept" / "mode" / "new"
    new.write_text("new")

    def swap() -> None:
        os.rename(case.real / "kept", case.real / "aside")
        os.symlink(outside, case.real / "kept")

    with pytest.raises(CommitError, match="Not a directory"):
        case.commit(store, swap)
    assert list(outside.rglob("new")) == []
    store.end()


@pytest.mark.parametrize("what", ["fifo", "directory"])
def test_a_copy_becomes_a_symlink(case: Case, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """What another sandbox does to the spare, while it is being filled, changes no mode outside."""
    outside = case.real.parent / "outside"
    outside.mkdir(mode=0o700)
    store = case.begin()
    (Path(store.upper) / "mode").unlink()
    with Tree(store.upper) as tree:
        files.remove(tree, "tree")
    if what == "fifo":
        os.mkfifo(Path(store.upper) / "new")
    else:
        (Path(store.upper) / "new").mkdir()
    (Path(store.upper) / "new").chmod(0o077)
    name = {"fifo": "mkfifo", "directory": "mkdir"}[what]
    make = getattr(os, name)

    def swapped(path: str, *args: int, dir_fd: int) -> None:
        make(path, *args, dir_fd=dir_fd)
        if path.isdigit():  # in the spare
            os.rename(path, "aside", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            os.symlink(outside, path, dir_fd=dir_fd)

    monkeypatch.setattr(os, name, swapped)
    with pytest.raises(CommitError):
        case.commit(store)
    assert outside.stat().st_mode & 0o7777 == 0o700
    monkeypatch.undo()
    store.end()


def test_what_is_changed_after_the_last_look(case: Case) -> None:
    """Between the last look and the rename: it is seen by what comes into the spare, and all is undone."""
    store, exchange = case.begin(), files.rename

    def late(from_dir: int, name: str, to_dir: int, new: str, flags: int = 0) -> None:
        if new == "changed":
            (case.real / "changed").write_text("mine at the last moment")
        exchange(from_dir, name, to_dir, new, flags)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "rename", late)
        with pytest.raises(ConflictError, match="changed"):
            case.commit(store)
    assert (case.real / "changed").read_text() == "mine at the last moment"
    assert set(taken(case.real)) == set(case.before)
    store.end()


@pytest.mark.as_user("root may write everywhere")
def test_directories_that_are_closed(tmp_path: Path) -> None:
    """Something new in a directory that its owner has made read-only, as tools do that opened it for the time being."""
    real, base = tmp_path / "real", tmp_path / "store"
    (real / "closed" / "gone").mkdir(parents=True)
    (real / "closed" / "file").write_text("before")
    store = Store.make(str(base), str(real), os.stat(real))
    upper = Path(store.upper) / "closed"
    upper.mkdir()
    (upper / "file").write_text("after")
    (upper / "new").write_text("new")
    os.mknod(upper / "gone", 0o020000, 0)
    for directory in (upper, real / "closed" / "gone", real / "closed"):
        directory.chmod(0o555)
    with Tree(store.upper, forceful=True) as left, Tree(str(real)) as right:
        changes = transaction_changes.Comparison(left, right).changes()
        commit.commit(store, left, right, changes, files.start_of_time(right), lambda: None, no_others)
    store.end()
    assert sorted(os.listdir(real / "closed")) == ["file", "new"]
    assert (real / "closed" / "file").read_text() == "after"
    assert (real / "closed").stat().st_mode & 0o777 == 0o555
    assert os.listdir(real) == ["closed"]
    (real / "closed").chmod(0o755)
