"""What a transaction leaves for the time after a crash is carried out only if this user has written it, and in the workspace."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsbox_testing.running import python

import nsbox
from nsbox import Bind, Policy, PolicyError, RoBind, Sandbox
from nsbox._files import files
from nsbox._files.files import Tree
from nsbox._homes import reach
from nsbox._machine import probe
from nsbox._transaction import commit, journal
from nsbox._transaction import steps as transaction_steps
from nsbox._transaction.steps import Step
from nsbox._transaction.store import Store

# ---- where it may be


@pytest.mark.parametrize(
    "dir",
    [
        "cache",
        "cache/kept",
        "cache/deep/kept",
        "in/kept",
        "cache/deep/out",
        "cache/deep/out/kept",
        "far/kept",
        ".",
        "ws/x",
    ],
)
def test_places_that_commands_reach(places: Path, dir: str) -> None:
    """A directory in, around or behind what the policy opens for writing isn't taken, however it is named."""
    policy = Policy.workspace(places / "ws", write=[places / "cache"])
    with Sandbox(policy, stock=0) as box, pytest.raises(PolicyError, match=r"^dir: "):
        box.transaction(dir=places / dir)
    assert not list(places.glob("**/transactions")) and not list(places.glob("**/lock"))


def test_places_out_of_reach(places: Path) -> None:
    """The control: beside it, and what is only readable, will do."""
    policy = Policy.workspace(places / "ws", write=[places / "cache"], read=[places / "elsewhere"])
    with Sandbox(policy, stock=0) as box:
        for dir in ("elsewhere", "elsewhere/kept", "other"):
            with box.transaction(dir=places / dir) as tx:
                tx.run(["true"], check=True)


def test_ops_that_write(places: Path) -> None:
    """Layers are looked at in the same way."""
    cache, ws = str(places / "cache"), str(places / "ws")
    policy = Policy.layers(RoBind("/", "/"), Bind(cache, cache))
    with (
        Sandbox(policy, stock=0) as box,
        pytest.raises(PolicyError, match="which commands of this policy may write to"),
    ):
        box.transaction(ws, dir=places / "cache/kept")


def test_the_default_place_too(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's directory for state is refused as any other, where the policy opens it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(places / "cache"))
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box, box.transaction() as tx:  # the control
        tx.run(["true"], check=True)
    policy = Policy.workspace(places / "ws", write=[places / "cache"])
    with Sandbox(policy, stock=0) as box, pytest.raises(PolicyError, match="lies in"):
        box.transaction()


# ---- a forged journal

FORGE = """
import json, os, sys
ws, kept, path = sys.argv[1:]
store = kept + "/aaaaaaaaaaaaaaaa"
os.makedirs(store + "/upper"); os.mkdir(store + "/work"); open(store + "/lock", "w").close()
spare = ws + "/.nsbox-aaaaaaaaaaaaaaaa"; os.mkdir(spare)
with open(spare + "/1", "w") as f: f.write("EVIL")
st = os.stat(spare + "/1"); new = [st.st_ino, st.st_mtime_ns, st.st_size, st.st_ctime_ns]
about = {"version": 2, "workspace": ws, "ino": os.stat(ws).st_ino}
steps = [["put", path, "1", new, [], 0, 0]]
for name, content in ("about", about), ("journal", {"began": 2**62, "certain": 2**62, "steps": steps}):
    with open(f"{store}/{name}", "w") as f: f.write("0" * 64 + "\\n" + json.dumps(content))
"""


def no_seal(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(journal, "opened", lambda key, context, data: json.loads(data.partition(b"\n")[2]))


def no_rule(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(transaction_steps, "_is_inside", lambda path: True)


def no_names(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(files, "_check_name", lambda name: None)


OFF = [no_seal, no_rule, no_names]


@pytest.mark.parametrize("on", [None, *OFF], ids=lambda one: one.__name__[3:] if one else "none")
def test_a_forged_journal(places: Path, on: Callable[[pytest.MonkeyPatch], None] | None) -> None:
    """Each of seal, rule for steps and trees that have no ".." holds it alone; "none" of them is the control."""
    journal.key(probe.probe().state)
    policy = Policy.workspace(places / "ws", write=[places / "cache"])
    kept = places / "cache/kept"
    kept.mkdir(mode=0o700)
    with Sandbox(policy, stock=0) as box:
        box.run(python(FORGE, str(places / "ws"), str(kept), "../elsewhere/planted"), check=True)
    with pytest.MonkeyPatch.context() as patched:
        for off in OFF:
            if off is not on:
                off(patched)
        failed = commit.recover(str(kept))
    assert (places / "elsewhere/planted").exists() == (on is None)
    assert bool(failed) == (on is not None)
    if on is no_seal:
        assert "isn't sealed with this user's key" in str(failed[0][1])
        assert failed[0][0] == str(places / "ws")  # a transaction there says so


def test_a_transaction_says_so(places: Path) -> None:
    """One of the same workspace raises; nothing is touched, and it goes on when the directory has been removed."""
    kept = places / "kept"
    kept.mkdir(mode=0o700)
    subprocess.run(python(FORGE, str(places / "ws"), str(kept), "planted"), check=True)
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box:
        with pytest.raises(
            nsbox.CommitError, match=r"to drop it, remove .*kept/aaaaaaaaaaaaaaaa, and \.nsbox-aaaaaaaaaaaaaaaa"
        ):
            box.transaction(dir=kept)
        assert os.listdir(places / "ws") == [".nsbox-aaaaaaaaaaaaaaaa"]
        with Tree(str(kept)) as tree:
            files.remove(tree, "aaaaaaaaaaaaaaaa")
        with box.transaction(dir=kept) as tx:
            tx.run(["true"], check=True)


GOOD = ["put", "a/b", "1", [1, 2, 3, 4], [], 0, 0]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *((1, path) for path in ("/etc/x", "", ".", "..", "../x", "a/../../x", "a/./b", "a//b", "a/", "a/..", "x\0y")),
        *((1, path) for path in ("n" * 256, "n/" * 2100 + "n", "n" * 4096, 7, None, ["a"])),
        *((2, spare) for spare in ("", "..", "../1", "a", "1/2", "-1", "1\0", "\u0661", "0", "9" * 11, 1, " 1")),
        *(
            (3, new)
            for new in ([], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, "4"], [1, 2, 3, 1 << 94], [[], 2, 3, 4], True)
        ),
        *((5, mode) for mode in (-1, 0o10000, True, "7")),
        (0, "rm"),
        (4, [1, 2, 3, 4]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_steps_that_are_none(at: int, value: object) -> None:
    """What no commit writes is no step, and its message is short."""
    assert Step.of_row(GOOD).row() == GOOD  # the control
    row = list(GOOD)
    row[at] = value
    with pytest.raises(
        ValueError, match=r"isn't a step of a commit|is no step of a commit|isn't the identity of a file"
    ) as caught:
        Step.of_row(row)
    assert len(str(caught.value)) < 300


def test_all_kinds_of_steps() -> None:
    """Those that commits write are what they were; only a mode may be the workspace's own."""
    known = (1, 2, 3, 4)
    for step in (
        Step("swap", "\udcff", "1", known, known),
        Step("drop", "a", "12", (), known, 0o300, 0),
        Step("mode", ".", mode=0o755, old_mode=0o1777),
    ):
        assert Step.of_row(json.loads(json.dumps(step.row()))) == step
    with pytest.raises(ValueError, match="is no step"):
        Step.of_row(["drop", ".", "1", [], [1, 2, 3, 4], 0, 0])
    for row in ("put", None, {}, [], GOOD[:-1], [*GOOD, 0]):
        with pytest.raises(ValueError, match="is no step"):
            Step.of_row(row)


@pytest.mark.parametrize("path", ["..", "a/..", "../a", "a/../b"])
def test_trees_have_no_way_up(tmp_path: Path, path: str) -> None:
    """By no method, whatever is there."""
    (tmp_path / "tree/a").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    with Tree(str(tmp_path / "tree")) as tree:
        for look in (
            tree.names,
            tree.stat,
            tree.link,
            lambda at: tree.file(at).__enter__(),
            lambda at: files.remove(tree, at),
        ):
            with pytest.raises(OSError, match="is no name of a file"):
                look(path)
        assert tree.names("a") == []  # the control


# ---- files that are none


def store_of(places: Path) -> Store:
    kept = places / "kept"
    return Store.make(str(kept), str(places / "ws"), os.stat(places / "ws"))


def rows(count: int) -> dict[str, object]:
    steps = [["put", "n/" * 2000 + str(i), "1", [1, 2, 3, 4], [], 0, 0] for i in range(count)]
    return {"began": 1, "certain": 1, "steps": steps}


def fifo(path: str) -> None:
    os.mkfifo(path)


def link(path: str) -> None:
    os.symlink("about", path)


def directory(path: str) -> None:
    os.mkdir(path)


def huge(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"0" * 64 + b"\n" + b"[" * (100 << 20))


def deep(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"0" * 64 + b"\n" + b"[" * (1 << 20))


def sparse(path: str) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def of_many_steps(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"0" * 64 + b"\n" + json.dumps(rows(5000)).encode())


@pytest.mark.parametrize("name", ["journal", "about"])
@pytest.mark.parametrize("make", [fifo, link, directory, huge, deep, sparse, of_many_steps])
def test_files_that_are_none(places: Path, name: str, make: Callable[[str], None]) -> None:
    """They are refused at once, without being read into memory or waited for, and nothing of them is done."""
    store = store_of(places)
    path = os.path.join(store.path, name)
    if name == "about":
        os.unlink(path)
    make(path)
    store.let_go()
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    ((_, error),) = commit.recover(str(places / "kept"))
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10  # KiB
    assert "recover the transaction in" in str(error)
    assert len(str(error)) < 1000
    assert os.listdir(places / "ws") == []
    with Tree(str(places)) as tree:
        files.remove(tree, "kept")


def test_a_journal_of_another_store(places: Path) -> None:
    """A seal is for one file of one store: none can stand for another."""
    one, other = store_of(places), store_of(places)
    one.write("journal", {"began": 1, "certain": 1, "steps": []})
    os.rename(f"{one.path}/journal", f"{other.path}/journal")
    os.rename(f"{one.path}/about", f"{one.path}/journal")
    for store in (one, other):
        with pytest.raises(ValueError, match="isn't sealed with this user's key"):
            store.read("journal")
        os.unlink(f"{store.path}/journal")
    other.write("journal", [])
    assert other.read("journal") == []  # the control
    os.unlink(f"{other.path}/journal")
    for store in (one, other):
        store.end()


def test_an_older_version(places: Path) -> None:
    """Its journals weren't sealed: a sentence says what to do."""
    store = store_of(places)
    with open(f"{store.path}/about", "w") as file:
        json.dump({"version": 1, "workspace": str(places / "ws"), "ino": 1}, file)
    store.let_go()
    ((workspace, error),) = commit.recover(str(places / "kept"))
    assert "isn't sealed, as an older version of nsbox wrote it" in str(error)
    assert f"to drop it, remove {store.path}" in str(error)
    assert workspace == str(places / "ws")
    with Tree(str(places)) as tree:
        files.remove(tree, "kept")


def test_a_journal_that_would_be_too_long(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't written: what couldn't be read again isn't begun."""
    monkeypatch.setattr(journal, "_MOST", 4000)
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box, box.transaction(dir=places / "kept") as tx:
        tx.shell("touch $(seq 200)", check=True)
        with pytest.raises(nsbox.CommitError, match="too many changes for one commit"):
            tx.commit()
        assert os.listdir(places / "ws") == []


@pytest.mark.parametrize("seconds", [1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63)])
def test_times_of_any_file_system(seconds: int) -> None:
    """Some, such as tmpfs, have 64 bits of seconds: what is written of such a file can be read again."""
    known = (1, seconds * 10**9, 3, 4)
    step = Step("swap", "a", "1", known, known)
    assert Step.of_row(json.loads(json.dumps(step.row()))) == step


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_journal_that_could_not_be_read(places: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """It isn't written: nobody could finish or undo the commit after a crash; the control: as it was."""
    monkeypatch.setattr(transaction_steps, "_LONGEST", 3)
    if not is_guarded:
        monkeypatch.setattr(commit, "_rows", lambda steps: [step.row() for step in steps])
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box, box.transaction(dir=places / "kept") as tx:
        tx.shell("echo new > a; echo new > longer", check=True)
        if is_guarded:
            with pytest.raises(nsbox.CommitError, match=r"is no step of a commit; nothing was changed"):
                tx.commit()
            assert os.listdir(places / "ws") == []
            monkeypatch.undo()
        tx.commit()
    assert sorted(os.listdir(places / "ws")) == ["a", "longer"]


DEEP = """
import os, sys
for _ in range(20):
    os.makedirs("d" * 200, exist_ok=True); os.chdir("d" * 200)
os.makedirs("e" * 60, exist_ok=True); os.chdir("e" * 60)
open("f" * int(sys.argv[1]), "w").write(sys.argv[2])
"""


@pytest.mark.parametrize(("length", "fits"), [(15, True), (16, False), (200, False)])
def test_paths_that_no_journal_has(places: Path, length: int, fits: bool) -> None:
    """A file in a directory that is just short enough may be too deep, before a commit begins; the control: one that isn't."""
    ws = places / "ws"
    with Sandbox(Policy.workspace(ws), stock=0) as box:
        box.run(python(DEEP, str(length), "old"), cwd=ws, check=True)
        with box.transaction(dir=places / "kept") as tx:
            tx.run(python(DEEP, str(length), "new"), cwd=ws, check=True)
            if fits:
                (change,) = tx.diff()
                assert len(change.path) == 4096
                assert Step.of_row(["put", change.path, "1", [1, 2, 3, 4], [], 0, 0]).path == change.path
                tx.commit()
            else:
                for look in (tx.diff, tx.patch, tx.commit):
                    with pytest.raises(OSError, match="File name too long"):
                        look()
    with Tree(str(places)) as tree:
        files.remove(tree, "ws")


# ---- other policies

WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('EVIL')"
OPENED = ["workspace", "layers", "by a link", "descriptor", "overlay", "inside"]


@contextlib.contextmanager
def opened_elsewhere(places: Path, how: str) -> Iterator[Policy]:
    """A policy that has nothing to do with the workspace, and opens what is around or in cache/kept."""
    cache, base = places / "cache", places / "cache/kept"
    with contextlib.ExitStack() as stack:
        root = RoBind("/", "/")
        if how == "workspace":
            yield Policy.workspace(cache)
        elif how == "layers":
            yield Policy.layers(root, Bind(str(cache), str(cache)))
        elif how == "by a link":
            yield Policy.layers(root, nsbox.DevBind(str(places / "in"), str(cache)))
        elif how == "descriptor":
            fd = os.open(cache, os.O_RDONLY)
            stack.callback(os.close, fd)
            yield Policy.layers(root, nsbox.BindFd(fd, str(cache)))
        elif how == "overlay":
            (places / "elsewhere/work").mkdir(exist_ok=True)
            upper, work = str(base), str(places / "cache/work")
            os.makedirs(work, exist_ok=True)
            yield Policy.layers(root, nsbox.Overlay((str(places / "ws"),), str(places / "elsewhere"), upper, work))
        else:
            base.mkdir(exist_ok=True)
            (base / "inner").mkdir(exist_ok=True)
            yield Policy.workspace(base / "inner")


@pytest.mark.parametrize("how", OPENED)
def test_what_another_policy_opens(places: Path, how: str) -> None:
    """Changes aren't kept where its commands could change them: neither by a new transaction, nor by a commit."""
    base = places / "cache/kept"
    base.mkdir(mode=0o700)
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box:
        before = box.transaction(dir=base)  # the control: nobody else has opened it yet
        before.shell("echo new > new", check=True)
        changes = before.diff()
        with opened_elsewhere(places, how) as other:
            nsbox.run(["true"], policy=other, cwd="/", check=True)
        match = "which commands of another policy of this process may write to: give a directory"
        with pytest.raises(PolicyError, match=match):
            box.transaction(dir=base)
        with pytest.raises(PolicyError, match=match):
            before.commit(expected=changes)
        assert before.diff() == changes  # it goes on
        before.discard()
        box.transaction(dir=places / "elsewhere/kept" if how != "overlay" else places / "kept").discard()
    assert os.listdir(places / "ws") == []


def test_control_what_another_policy_opens(places: Path) -> None:
    """Its commands can change what is about to be committed; the control: if nobody remembers the policy."""
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box, box.transaction(dir=places / "cache") as tx:
        tx.shell("echo new > new", check=True)
        assert tx._store is not None
        other = Policy.layers(RoBind("/", "/"), Bind(str(places / "cache"), str(places / "cache")))
        nsbox.run(python(WRITE, f"{tx._store.upper}/new"), policy=other, cwd="/", check=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(reach, "reached", set())
            tx.commit()
    assert (places / "ws/new").read_text() == "EVIL"


HIDDEN = """
import nsbox, sys
from nsbox import Policy, PolicyError
ws, home, how = sys.argv[1:]
opened = Policy.workspace(home, write=[home]) if how == "workspace" else Policy.layers(nsbox.RoBind("/", "/"), nsbox.Bind(home, home))
nsbox.run(["true"], policy=opened, cwd="/", check=True)
with nsbox.Sandbox(Policy.workspace(ws), stock=0) as box:
    try: box.transaction().discard(); print("begun")
    except PolicyError as error: print("refused")
"""


@pytest.mark.parametrize(("how", "outcome"), [("workspace", "begun"), ("layers", "refused")])
def test_what_another_policy_hides(places: Path, how: str, outcome: str) -> None:
    """The default place is out of reach for commands that may write to the home directory around it, and are denied it."""
    home = places / "elsewhere"
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": ""}
    command = [sys.executable, "-I", "-c", HIDDEN, str(places / "ws"), str(home), how]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == outcome + "\n", done.stderr
