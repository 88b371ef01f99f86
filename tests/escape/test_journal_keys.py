"""The key that seals what a transaction leaves, and locks: no command reads or makes them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from nsbox_testing import needs
from nsbox_testing.running import python

from nsbox import Policy, PolicyError, Sandbox, UnavailableError
from nsbox._transaction import commit, journal
from nsbox._transaction import store as transaction_store
from nsbox._transaction.store import Store


def store_of(places: Path) -> Store:
    kept = places / "kept"
    return Store.make(str(kept), str(places / "ws"), os.stat(places / "ws"))


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
    """A policy that names the file itself gets it."""
    assert in_layers(places, how) == "32\n"


@needs.programs("bwrap")
@pytest.mark.as_user("bwrap leaves kernel settings to root")
@pytest.mark.parametrize("how", ["root", "home", "elsewhere"])
def test_no_layer_of_bwrap_shows_the_key(places: Path, how: str) -> None:
    """With that backend neither."""
    assert in_layers(places, how, "bwrap") == "no\n"


EARLY = """
import nsbox, os, sys
from nsbox import Policy, RoBind, Bind, Overlay; from nsbox._spawn import prepare as _spawn; from nsbox._layout import layout as _layout
ws, home, how, what = sys.argv[1:]
if what == "not made": _spawn.make_state = lambda *_: None
if what == "not checked": _spawn.check_overlays = lambda *_: None
if what == "not pinned": _layout._pins = lambda *_: []
os.path.exists(home + "/way") or os.mkdir(home + "/way")
os.environ["XDG_STATE_HOME"] = home + "/way/state"
code = "import os, sys; h, s = sys.argv[1:]\\nif os.path.exists(s): os.rename(h + '/way', h + '/away')\\n"
code += "os.makedirs(s); open(s + '/key', 'wb').write(bytes(32))"
command = [sys.executable, "-I", "-S", "-c", code, home, home + "/way/state/nsbox"]
over = [home + "-" + name for name in ("lower", "work")]
for one in over: os.mkdir(one)
mount = Overlay((over[0],), home, home, over[1]) if how == "overlay" else Bind(home, home)
policy = Policy.workspace(ws, write=[home]) if how == "workspace" else Policy.layers(RoBind("/", "/"), mount)
try: done = nsbox.run(command, policy=policy, stderr=nsbox.DEVNULL)
except nsbox.PolicyError: print("refused")
else: print("planted" if done.returncode == 0 else "held")
"""


@pytest.mark.parametrize(
    ("how", "what", "outcome"),
    [
        ("workspace", "all", "held"),
        ("workspace", "not made", "planted"),
        ("layers", "all", "held"),
        ("layers", "not made", "planted"),
        ("layers", "not pinned", "planted"),
        ("overlay", "all", "refused"),
        ("overlay", "not checked", "planted"),
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
    """A commit waits for the process that holds it, but not for ever."""
    store_of(places).end()
    monkeypatch.setattr(transaction_store, "_PATIENCE", 0.05)
    fd = os.open(places / "kept/lock", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with Sandbox(Policy.workspace(places / "ws"), stock=0) as box:
        with pytest.raises(TimeoutError, match="another process has been looking after transactions"):
            box.transaction(dir=places / "kept")
        os.close(fd)
        box.transaction(dir=places / "kept").discard()
