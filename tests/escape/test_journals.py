"""What a transaction leaves for the time after a crash is carried out only if this user has written it, and in the workspace."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsbox_testing import needs
from nsbox_testing.running import python

import nsbox
from nsbox import Bind, Policy, PolicyError, RoBind, Sandbox, UnavailableError
from nsbox._files import files
from nsbox._files.files import Tree
from nsbox._homes import reach
from nsbox._machine import probe
from nsbox._transaction import commit, journal
from nsbox._transaction import steps as transaction_steps
from nsbox._transaction import store as transaction_store
from nsbox._transaction.steps import Step
from nsbox._transaction.store import Store

# ---- where it may be


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for name in ("ws", "cache/deep", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cache/deep/out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in").symlink_to(tmp_path / "cache")
    (tmp_path / "far").symlink_to("cache/deep/../deep/out")
    return tmp_path


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
    with pytest.raises(ValueError, match=r"is no step of a commit|isn't the identity") as caught:
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
    """Its commands can change what somebody is about to commit; the control: if nobody remembers the policy."""
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
opened = Policy.workspace(home) if how == "workspace" else Policy.layers(nsbox.RoBind("/", "/"), nsbox.Bind(home, home))
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


# ---- the key


def test_the_key_is_the_users(tmp_path: Path) -> None:
    """It is made once, whole, for its owner alone, also by many at a time, and whatever the umask."""
    state, found = str(tmp_path / "state" / "nsbox"), []
    before = os.umask(0o777 if os.geteuid() == 0 else 0)
    try:
        threads = [threading.Thread(target=lambda: found.append(journal.key(state))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.umask(before)
    assert len(found) == 8 and len({*found}) == 1 and len(found[0]) == 32
    assert os.listdir(state) == ["key"]
    assert os.stat(f"{state}/key").st_mode & 0o777 == 0o600
    assert journal.key(str(tmp_path / "other")) != found[0]


@pytest.mark.parametrize("how", ["readable", "short", "link", "fifo", "open directory"])
def test_a_key_that_is_none(tmp_path: Path, how: str) -> None:
    """One that others could have read or made isn't used."""
    state = tmp_path / "state"
    key = state / "key"
    journal.key(str(state))
    if how == "readable":
        key.chmod(0o640)
    elif how == "short":
        key.write_bytes(b"short")
    elif how == "link":
        key.rename(state / "elsewhere")
        key.symlink_to("elsewhere")
    elif how == "fifo":
        key.unlink()
        os.mkfifo(key, 0o600)
    else:
        state.chmod(0o777)
    with pytest.raises((PolicyError, UnavailableError)):
        journal.key(str(state))


@pytest.mark.as_user("root may write everywhere")
def test_no_place_for_the_key(places: Path) -> None:
    """Without one no transaction begins, and the error says what would help."""
    (places / "elsewhere").chmod(0o500)
    for state, match in ((str(places / "elsewhere/nsbox"), "Permission denied"), ("", "no home directory")):
        with pytest.raises(UnavailableError, match=f"{match}.*XDG_STATE_HOME"):
            journal.key(state)


PLANT = """
import os, sys
state, = sys.argv[1:]
def tried(call, *args):
    try: call(*args); print("done")
    except OSError: print("no")
tried(os.rename, state, state + "2"); tried(os.rename, os.path.dirname(state), os.path.dirname(state) + "2")
tried(os.unlink, state + "/key"); tried(os.mkdir, state + "/transactions")
"""
INSIDE = """
import nsbox, subprocess, sys
from nsbox import Policy; from nsbox._transaction import journal as _journal; from nsbox._machine import probe as _probe
ws, home, code, plant = sys.argv[1:]
state = _probe.probe().state
_journal.key(state)
def said(policy, code):
    return nsbox.run([sys.executable, "-I", "-S", "-c", code, *sys.argv[5:], state], policy=policy, capture_output=True, text=True)
for options in ({"read": [home]}, {"write": [home]}, {"write": [home], "seccomp": "off"}):
    policy = Policy.workspace(ws, **options)
    assert not policy.can_read(state + "/key"), options
    done = said(policy, "import os, sys; s = sys.argv[1]\\ntry: print(os.listdir(s))\\nexcept OSError: print('no')\\n"
        "try: print(open(s + '/key', 'rb').read())\\nexcept OSError: print('no')")
    assert done.stdout == "no\\nno\\n", (options, done)
done = said(Policy.workspace(ws, write=[home]), plant)
assert done.stdout == "no\\n" * 4, done
assert len(_journal.key(state)) == 32
control = said(Policy.host(), "import sys; print(len(open(sys.argv[1] + '/key', 'rb').read()))")
assert control.stdout == "32\\n", control
print("held")
"""


def test_no_workspace_shows_the_key(places: Path) -> None:
    """Nor transactions, also where the home directory is readable or writable, or is moved; Policy.host() does: the control."""
    home = places / "elsewhere"
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / ".local/state")}
    command = [sys.executable, "-I", "-c", INSIDE, str(places / "ws"), str(home), "", PLANT]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout == "held\n", done.stderr


LAYERS = """
import nsbox, os, sys
from nsbox import Policy, RoBind, Bind, DevBind, BindFd; from nsbox._transaction import journal as _journal; from nsbox._machine import probe as _probe
from nsbox._layout import layout as _layout
home, backend, how, is_masked = sys.argv[1:]
if is_masked == "off": _layout._with_state_masked = lambda policy, _: policy
state = _probe.probe().state
_journal.key(state)
key, root, link = state + "/key", RoBind("/", "/"), os.path.dirname(home) + "/link"
os.path.lexists(link) or os.symlink(home, link)
rest = key.removeprefix(home)
ops, at = {
    "root": ([root], key),
    "writable root": ([DevBind("/", "/")], key),
    "home": ([root, Bind(home, home)], key),
    "devices": ([root, DevBind(home, home)], key),
    "elsewhere": ([root, RoBind(home, "/mnt")], "/mnt" + rest),
    "link": ([root, RoBind(link, "/mnt")], "/mnt" + rest),
    "magic": ([root, RoBind("/proc/self/root", "/mnt")], "/mnt" + key),
    "descriptor": ([root, BindFd(os.open(home, os.O_RDONLY), "/mnt")], "/mnt" + rest),
    "lower": ([root, nsbox.TmpOverlay((home,), "/mnt")], "/mnt" + rest),
    "state": ([root, RoBind(state, "/mnt")], "/mnt/key"),
    "again": ([root, nsbox.Tmpfs(os.path.dirname(home)), RoBind(home, home)], key),
    "named": ([root, RoBind(key, key)], key),
    "named elsewhere": ([root, nsbox.Tmpfs("/mnt"), RoBind(key, "/mnt/key")], "/mnt/key"),
}[how]
code = '''import sys
try: print(len(open(sys.argv[1], "rb").read()))
except OSError: print("no")'''
policy = Policy.layers(*ops, nsbox.Proc("/proc"), backend=backend)
done = nsbox.run([sys.executable, "-I", "-S", "-c", code, at], policy=policy, cwd="/", capture_output=True, text=True)
print(done.stdout, done.stderr, sep="", end="")
"""
SHOWN = [
    "root",
    "writable root",
    "home",
    "devices",
    "elsewhere",
    "link",
    "magic",
    "descriptor",
    "lower",
    "state",
    "again",
]


def in_layers(places: Path, how: str, backend: str = "auto", is_masked: str = "on") -> str:
    home = places / "elsewhere/home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": ""}
    command = [sys.executable, "-I", "-c", LAYERS, str(home), backend, how, is_masked]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", SHOWN)
def test_no_layer_shows_the_key(places: Path, how: str) -> None:
    """Wherever a bind shows the home directory, or an overlay does, by whichever name."""
    assert in_layers(places, how) == "no\n"


@pytest.mark.parametrize("how", SHOWN)
def test_control_no_layer_shows_the_key(places: Path, how: str) -> None:
    """The control: if nothing is masked."""
    assert in_layers(places, how, is_masked="off") == "32\n"


@pytest.mark.parametrize("how", ["named", "named elsewhere"])
def test_a_layer_that_names_the_key(places: Path, how: str) -> None:
    """Whoever names the file itself gets it."""
    assert in_layers(places, how) == "32\n"


@needs.programs("bwrap")
@pytest.mark.as_user("bwrap leaves kernel settings to root")
@pytest.mark.parametrize("how", ["root", "home", "elsewhere"])
def test_no_layer_of_bwrap_shows_the_key(places: Path, how: str) -> None:
    """With that backend neither."""
    assert in_layers(places, how, "bwrap") == "no\n"


EARLY = """
import nsbox, os, sys
from nsbox import Policy, RoBind, Bind; from nsbox._spawn import prepare as _spawn; from nsbox._layout import layout as _layout
ws, home, how, what = sys.argv[1:]
if what == "not made": _spawn.make_state = lambda *_: None
if what == "not pinned": _layout._pins = lambda *_: []
os.path.exists(home + "/way") or os.mkdir(home + "/way")
os.environ["XDG_STATE_HOME"] = home + "/way/state"
code = "import os, sys; h, s = sys.argv[1:]\\nif os.path.exists(s): os.rename(h + '/way', h + '/away')\\n"
code += "os.makedirs(s); open(s + '/key', 'wb').write(bytes(32))"
command = [sys.executable, "-I", "-S", "-c", code, home, home + "/way/state/nsbox"]
policy = Policy.workspace(ws, write=[home]) if how == "workspace" else Policy.layers(RoBind("/", "/"), Bind(home, home))
done = nsbox.run(command, policy=policy, stderr=nsbox.DEVNULL)
print("planted" if done.returncode == 0 else "held")
"""


@pytest.mark.parametrize(
    ("how", "what", "outcome"),
    [
        ("workspace", "all", "held"),
        ("workspace", "not made", "planted"),
        ("layers", "all", "held"),
        ("layers", "not made", "planted"),
        ("layers", "not pinned", "planted"),
    ],
)
def test_nobody_makes_the_key_first(places: Path, how: str, what: str, outcome: str) -> None:
    """Where there is no directory for state yet, a command can't make it, nor move it; the controls: if nsbox doesn't care."""
    home = places / "elsewhere"
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": ""}
    command = [sys.executable, "-I", "-c", EARLY, str(places / "ws"), str(home), how, what]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == outcome + "\n", done.stderr
    assert (home / "way/state/nsbox/key").exists() == (outcome == "planted")


# ---- locks

HOLD = "import fcntl, os; fcntl.flock(os.open('.', os.O_RDONLY), fcntl.LOCK_EX); print('locked', flush=True); input()"


def test_a_lock_on_the_workspace(places: Path) -> None:
    """A command that holds it holds up nobody: neither a commit, nor recovery, nor a Sandbox that starts."""
    ws = places / "ws"
    policy = Policy.workspace(ws)
    with (
        Sandbox(policy, stock=0) as box,
        box.Popen(python(HOLD), cwd=ws, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout.readline() == "locked\n"
        fd = os.open(ws, os.O_RDONLY)
        with pytest.raises(BlockingIOError):  # the control: it is held, for ever
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
        with box.transaction(dir=places / "kept") as tx:
            tx.shell("echo x > x", check=True)
            tx.commit()
        store = store_of(places)
        os.mkdir(ws / store.spare)
        store.write("journal", {"began": 0, "certain": 0, "steps": []})
        store.let_go()
        assert commit.recover(str(places / "kept")) == []
        assert process.poll() is None
        process.communicate("\n")
    assert sorted(os.listdir(ws)) == ["x"]


def test_a_lock_of_all_stores(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits for whoever holds it, but not for ever."""
    store_of(places).end()
    monkeypatch.setattr(transaction_store, "_PATIENCE", 0.05)
    fd = os.open(places / "kept/lock", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box:
        with pytest.raises(TimeoutError, match="another process has been looking after transactions"):
            box.transaction(dir=places / "kept")
        os.close(fd)
        box.transaction(dir=places / "kept").discard()
