"""Secrets: values don't show themselves; stores refuse what others could read or have put there; one command gets some."""

from __future__ import annotations

import copy
import errno
import fcntl
import json
import logging
import os
import pickle
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nsbox
from nsbox import secrets
from nsbox.secrets import JsonStore, KeyringStore, Secret, Store, StoreError, inject

VALUE = "hunter2-and-more"
MARK = "MARKED"  # stands in contents that must not get into a message


@pytest.fixture
def store(tmp_path: Path) -> JsonStore:
    """A store of which nothing is there yet."""
    return JsonStore(tmp_path / "agent")


@pytest.fixture
def file(store: JsonStore) -> Path:
    """Its file, with one secret in it."""
    store.set("TOKEN", VALUE)
    return Path(store.path)


# ---- Secret


def test_a_secret_does_not_show_itself() -> None:
    """No usual way to make a text of it has the value; reveal() has."""
    secret = Secret(VALUE)
    shown = [
        repr(secret),
        str(secret),
        f"{secret} {secret!r} {secret:>30} {[secret]} {{1: secret}}",
        "%s %r" % (secret, secret),  # noqa: UP031  (these are ways to leak)
    ]
    shown += [
        "{} {!s:10}".format(secret, secret),  # noqa: UP032
        json.dumps([secret], default=str),
        ascii(secret),
    ]
    record = logging.LogRecord("name", 30, "path", 1, "%s", (secret,), None)
    shown += [record.getMessage(), repr(record.__dict__)]
    assert all("hunter" not in text for text in shown) and all("***" in text for text in shown)
    assert secret.reveal() == VALUE
    assert f"{secret.reveal()}" in VALUE  # the control
    assert not hasattr(secret, "__dict__")


def test_a_secret_is_not_written_down() -> None:
    """It can't be pickled, put into JSON, concatenated, or taken for a str; a copy is the same one."""
    secret = Secret(VALUE)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps({"a": secret}, protocol)
    for what in (lambda: json.dumps(secret), lambda: "a" + secret, lambda: "".join([secret]), lambda: hash(secret)):  # type: ignore[operator, list-item]
        with pytest.raises(TypeError) as caught:
            what()
        assert "hunter" not in str(caught.value)
    assert copy.copy(secret) is copy.deepcopy([secret])[0] is secret
    for change in (
        lambda: setattr(secret, "other", 1),
        lambda: setattr(secret, "_Secret__value", "x"),
        lambda: delattr(secret, "_Secret__value"),
    ):
        with pytest.raises(AttributeError):
            change()


def test_secrets_are_compared() -> None:
    """Two of the same value are equal, in constant time; a str is never one."""
    assert Secret("é…\ud800") == Secret("é…\ud800") != Secret("é…")
    assert Secret(VALUE) != VALUE and not Secret(VALUE) == VALUE  # noqa: SIM201
    assert Secret("a") and not Secret("")
    for value in (b"bytes", None, 5, Secret("a")):
        with pytest.raises(TypeError):
            Secret(value)  # type: ignore[arg-type]


# ---- JsonStore


def test_round_trip(store: JsonStore) -> None:
    """What is set can be got, listed, replaced and deleted, by another store of the same directory too."""
    assert isinstance(store, Store)
    store.set("B", VALUE)
    store.set("A", Secret("é\n\U0001f600"))
    store.set("B", "new value")
    other = JsonStore(store.directory + "/./")
    assert (other.names(), other.get("B").reveal(), other.get("A").reveal()) == (
        ["A", "B"],
        "new value",
        "é\n\U0001f600",
    )
    other.delete("B")
    assert store.names() == ["A"]
    for call in (store.get, store.delete):
        with pytest.raises(KeyError, match="no secret 'B' in"):
            call("B")
    assert os.listdir(store.directory) == ["secrets.json"]
    assert repr(store) == f"JsonStore({store.directory!r})"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_modes(store: JsonStore, umask: int, tmp_path: Path) -> None:
    """The directory and the file that it makes are this user's alone, whatever the umask."""
    tmp_path.joinpath("agent").mkdir(0o700)
    before = os.umask(umask)
    try:
        store.set("A", "value")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600
    before = os.umask(0)
    try:
        JsonStore(tmp_path / "new").set("A", "value")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700


def test_nothing_there(store: JsonStore, tmp_path: Path) -> None:
    """Without a directory reading is an error; with an empty one there are no secrets. Those above aren't made."""
    for call in (store.names, lambda: store.get("A"), lambda: store.delete("A")):
        with pytest.raises(FileNotFoundError):
            call()
    os.mkdir(store.directory, 0o700)
    assert store.names() == []
    with pytest.raises(FileNotFoundError):
        JsonStore(tmp_path / "no" / "agent").set("A", "value")


def refused(store: JsonStore, problem: str, *, number: int | None = None) -> None:
    """Every method refuses, says what to do, shows no contents, and leaves no descriptor open (a fixture looks)."""
    for call in (
        store.names,
        lambda: store.get("TOKEN"),
        lambda: store.set("TOKEN", "other"),
        lambda: store.delete("TOKEN"),
    ):
        with pytest.raises(StoreError, match=problem) as caught:
            call()
        error = caught.value
        assert isinstance(error, OSError) and str(error).startswith(str(error.filename))
        assert number is None or error.errno == number
        assert MARK not in "".join(traceback.format_exception(error)) and VALUE not in str(error)
        assert error.__context__ is None or isinstance(error.__context__, OSError)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666, 0o660])
def test_file_that_others_have_access_to(store: JsonStore, file: Path, mode: int) -> None:
    """A file with any right for group or others is refused; the message says which mode, and the remedy works."""
    file.chmod(mode)
    refused(store, f"mode {mode:04o}.*chmod 0600", number=errno.EPERM)
    file.chmod(0o600)
    assert store.names() == ["TOKEN"]
    file.chmod(0o400)
    assert store.get("TOKEN").reveal() == VALUE


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o701, 0o711, 0o755, 0o1777])
def test_directory_that_others_have_access_to(store: JsonStore, file: Path, mode: int) -> None:
    """So is a directory."""
    os.chmod(store.directory, mode)
    refused(store, f"mode {mode:04o}.*chmod 0700", number=errno.EPERM)
    os.chmod(store.directory, 0o700)
    assert store.names() == ["TOKEN"]


@pytest.mark.as_root("gives files away")
@pytest.mark.parametrize("what", ["directory", "path"])
def test_of_somebody_else(store: JsonStore, file: Path, what: str) -> None:
    """A directory or a file that another user owns is refused, also by root."""
    os.chown(getattr(store, what), 12345, -1)
    refused(store, "belongs to uid 12345", number=errno.EPERM)


@pytest.mark.as_user("has no right to / itself")
def test_directory_of_root() -> None:
    """An ordinary user's store isn't in a directory of root's."""
    refused(JsonStore("/etc"), "belongs to uid 0", number=errno.EPERM)


def test_symlink_in_the_place_of_the_file(store: JsonStore, file: Path, tmp_path: Path) -> None:
    """A symlink isn't followed, neither for reading nor for writing, wherever it leads."""
    real = tmp_path / "real.json"
    file.rename(real)
    file.symlink_to(real)
    assert json.loads(file.read_text()) == {"TOKEN": VALUE}  # the control: open() follows it
    refused(store, "is no regular file, or is a symlink")
    file.unlink()
    file.symlink_to(tmp_path / "nothing")
    refused(store, "is no regular file, or is a symlink")
    assert json.loads(real.read_text()) == {"TOKEN": VALUE}


@pytest.mark.parametrize("end", ["", "/", "/.", "//./"])
def test_symlink_in_the_place_of_the_directory(store: JsonStore, file: Path, tmp_path: Path, end: str) -> None:
    """Nor is one in the place of the directory, however the path ends; further up it is."""
    (tmp_path / "link").symlink_to(store.directory)
    assert os.listdir(f"{tmp_path}/link{end}") == ["secrets.json"]  # the control
    refused(JsonStore(f"{tmp_path}/link{end}"), "is no directory, or is a symlink")
    (tmp_path / "above").symlink_to(tmp_path)
    assert JsonStore(tmp_path / "above" / "agent").names() == ["TOKEN"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device"])
def test_other_things_in_the_place_of_the_file(store: JsonStore, kind: str) -> None:
    """A FIFO, on which open() would hang, a directory, a socket or a device is refused at once."""
    os.mkdir(store.directory, 0o700)
    if kind == "fifo":
        os.mkfifo(store.path, 0o600)
    elif kind == "directory":
        os.mkdir(store.path, 0o700)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(store.path)
    else:
        try:
            os.mknod(store.path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("may make no devices")
    refused(store, "is no regular file")


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_other_things_in_the_place_of_the_directory(store: JsonStore, kind: str) -> None:
    """Neither a FIFO nor a file is a directory."""
    os.mkfifo(store.directory) if kind == "fifo" else Path(store.directory).touch(0o600)
    refused(store, "is no directory")


@pytest.mark.parametrize("kind", ["fifo", "symlink"])
def test_swapped_between_looking_and_opening(
    store: JsonStore, file: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put there after the file was looked at is refused too, and doesn't hang."""
    real = os.lstat
    file.rename(tmp_path / "real")

    def lstat(path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        if path != "secrets.json":
            return real(path, dir_fd=dir_fd)
        file.touch(0o600)
        found = real(path, dir_fd=dir_fd)
        file.unlink()
        os.mkfifo(file, 0o600) if kind == "fifo" else file.symlink_to(tmp_path / "real")
        return found

    monkeypatch.setattr(secrets.os, "lstat", lstat)
    with pytest.raises(StoreError, match="is no regular file"):
        store.names()


BAD = [
    (b"", "is no JSON: line 1 column 1"),
    (f'{{"TOKEN": "{MARK}"'.encode(), r"is no JSON: line 1 column 19 \(character 18\)"),
    (f'{{"TOKEN": "{MARK}\n'.encode(), "is no JSON: line 1"),
    (f'{{"TOKEN": "{MARK}\\x"}}'.encode(), "is no JSON: line 1"),
    (f"{MARK}={MARK}".encode(), "is no JSON: line 1 column 1"),
    (b'{"TOKEN": "MARKED\xff"}', "is no UTF-8: byte 17"),
    (b'\xef\xbb\xbf{"TOKEN": "MARKED"}', "is no JSON"),
    (f'["{MARK}"]'.encode(), "is no JSON object"),
    (f'"{MARK}"'.encode(), "is no JSON object"),
    (b"null", "is no JSON object"),
    (f'{{"A": "b", "TOKEN": ["{MARK}"]}}'.encode(), "member 2 is no string"),
    (f'{{"TOKEN": {{"A": "{MARK}"}}}}'.encode(), "member 1 is no string"),
    (b'{"TOKEN": 12345}', "member 1 is no string"),
    (b'{"TOKEN": 1' + b"2" * 9999 + b"}", "member 1 is no string"),
    (b'{"TOKEN": NaN}', "member 1 is no string"),
    (b'{"TOKEN": ' + b"[" * 200_000, "nested too deeply"),
    (f'{{"{MARK}": "a", "{MARK}": "{MARK}"}}'.encode(), "has a name twice"),
    (f'{{"{MARK}=": "a"}}'.encode(), "member 1 has a name or a value"),
    (f'{{"": "{MARK}"}}'.encode(), "member 1 has a name or a value"),
    (f'{{"TOKEN": "{MARK}\\u0000"}}'.encode(), "member 1 has a name or a value"),
    (f'{{"TOKEN": "{MARK}\\ud800"}}'.encode(), "member 1 has a name or a value"),
]


@pytest.mark.parametrize(("contents", "problem"), BAD, ids=[problem for _, problem in BAD])
def test_contents_that_are_not_understood(store: JsonStore, file: Path, contents: bytes, problem: str) -> None:
    """Contents of another form are refused with the file's name and the position, never with any of them; they stay."""
    file.write_bytes(contents)
    refused(store, problem)
    assert file.read_bytes() == contents


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.one_of(st.binary(max_size=60), st.text('{}[]":,aA\\u0 ', max_size=40).map(str.encode)))
def test_any_contents(store: JsonStore, contents: bytes) -> None:
    """Any bytes in the file are either an object of strings or a StoreError."""
    os.makedirs(store.directory, 0o700, exist_ok=True)
    Path(store.path).touch(0o600)
    Path(store.path).write_bytes(contents)
    try:
        names = store.names()
    except StoreError:
        return
    assert {name: store.get(name).reveal() for name in names} == json.loads(contents)


def test_size(tmp_path: Path) -> None:
    """A file of more bytes than the limit is neither read nor written; what was there stays."""
    store = JsonStore(tmp_path / "agent", max_size=100)
    store.set("A", "value")
    before = Path(store.path).read_bytes()
    with pytest.raises(StoreError, match="more than 100 bytes"):
        store.set("B", "x" * 100)
    assert Path(store.path).read_bytes() == before and os.listdir(store.directory) == ["secrets.json"]
    Path(store.path).write_bytes(b" " * 101)
    refused(store, "more than 100 bytes", number=errno.EFBIG)


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "\ud800"])
def test_names(store: JsonStore, file: Path, name: str) -> None:
    """A name that no environment variable can have is refused by each method."""
    for call in (
        store.get,
        store.delete,
        lambda name: store.set(name, "value"),
        lambda name: inject({}, {name: "value"}),
    ):
        with pytest.raises(ValueError, match="name"):
            call(name)
    with pytest.raises(TypeError):
        store.get(5)  # type: ignore[arg-type]


def test_values(store: JsonStore) -> None:
    """So is a value, without being shown."""
    for value in (f"{MARK}\0", f"{MARK}\ud800"):
        with pytest.raises(ValueError, match="the value of A") as caught:
            store.set("A", value)
        assert MARK not in str(caught.value)
    for other in (5, None, b"bytes"):
        with pytest.raises(TypeError):
            store.set("A", other)  # type: ignore[arg-type]
    assert not os.path.exists(store.directory)


@pytest.mark.parametrize(
    "options", [{"directory": ""}, {"directory": "a\0b"}, {"directory": b"a"}]
    + [{"name": name} for name in ("", ".", "..", "a/b", "a\0b", 5)] + [{"max_size": size} for size in (0, -1, "1M", True)],
)  # fmt: skip
def test_arguments(options: dict[str, Any]) -> None:
    """What can be no directory, name or size is refused before anything is opened."""
    with pytest.raises(ValueError, match=next(iter(options))):
        JsonStore(**{"directory": "x", **options})


# ---- writes


def test_write_order(store: JsonStore, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new contents are on the device before they take the old ones' place, and the name is after."""
    seen: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        seen.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real_sync(fd)

    def rename(old: str, new: str, **options: Any) -> None:
        seen.append(f"{old} -> {new}")
        real_rename(old, new, **options)

    monkeypatch.setattr(secrets.os, "fsync", fsync)
    monkeypatch.setattr(secrets.os, "rename", rename)
    store.set("A", "value")
    assert seen == [".secrets.json.new", ".secrets.json.new -> secrets.json", "agent"]


@pytest.mark.parametrize("step", ["fsync", "rename", "fchmod"])
def test_write_that_fails(store: JsonStore, file: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a step fails the old contents are still there, and nothing else is."""

    def fail(*args: Any, **options: Any) -> None:
        raise OSError(errno.EIO, "no")

    before = file.read_bytes()
    monkeypatch.setattr(secrets.os, step, fail)
    with pytest.raises(OSError, match="no"):
        store.set("A", "value")
    assert file.read_bytes() == before and os.listdir(store.directory) == ["secrets.json"]


def test_after_a_writer_was_killed(store: JsonStore, file: Path) -> None:
    """What a killed writer left doesn't count, is not followed if it is a link, and is gone after the next change."""
    victim = Path(store.directory).parent / "victim"
    victim.write_text("as it was")
    (file.parent / ".secrets.json.new").symlink_to(victim)
    assert store.names() == ["TOKEN"]
    store.set("A", "value")
    assert victim.read_text() == "as it was"
    assert os.listdir(store.directory) == ["secrets.json"]


def test_a_writer_has_the_lock(store: JsonStore, file: Path) -> None:
    """While one reads, changes and writes, no other can begin; afterwards it can."""
    fd = os.open(store.directory, os.O_RDONLY)
    try:
        with store._changed() as values:
            with pytest.raises(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            values["A"] = "value"
            assert JsonStore(store.directory).names() == ["TOKEN"]  # readers don't wait
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
    assert store.names() == ["A", "TOKEN"]


def test_without_the_lock_a_change_is_lost(store: JsonStore, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: two that change at the same time forget one another's, if nothing locks."""
    monkeypatch.setattr(secrets.fcntl, "flock", lambda fd, how: None)
    with store._changed() as values:
        JsonStore(store.directory).set("A", "value")
        values["B"] = "value"
    assert store.names() == ["B", "TOKEN"]


def test_writers_at_the_same_time(store: JsonStore) -> None:
    """Of many processes that write at once none loses what another has written."""
    code = "import sys; from nsbox.secrets import JsonStore\nfor i in range(10): JsonStore(sys.argv[1]).set(f'{sys.argv[2]}{i}', 'value')"
    root = str(Path(nsbox.__file__).parents[1])
    command = [sys.executable, "-c", code, store.directory]
    writers = [subprocess.Popen([*command, name], cwd=root, stderr=subprocess.PIPE) for name in "ABCD"]
    said = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0], said
    assert store.names() == sorted(f"{name}{i}" for name in "ABCD" for i in range(10))


# ---- KeyringStore


class Ring:
    """A backend of keyring, in memory."""

    priority = 5.0
    fails: type[Exception] | None = None

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        if self.fails:
            raise self.fails(f"{MARK}: locked")
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.kept[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """What the library keyring has chosen; the library itself is one of three names."""
    made, library, errors = Ring(), ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    library.get_keyring = lambda: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", library)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return made


def test_keyring(ring: Ring) -> None:
    """A keyring keeps secrets by service and name, and the list of names, which it can't give itself."""
    store = KeyringStore("agent")
    assert isinstance(store, Store) and store.names() == []
    store.set("B", VALUE)
    store.set("A", Secret("other value"))
    store.set("B", "new value")
    assert (store.names(), store.get("B").reveal()) == (["A", "B"], "new value")
    assert KeyringStore("other").names() == []
    with pytest.raises(KeyError, match="no secret 'B' in keyring service 'other'"):
        KeyringStore("other").delete("B")
    store.delete("B")
    assert store.names() == ["A"] and ("agent", "B") not in ring.kept
    env, _ = inject({}, store)
    assert env == {"A": "other value"}


def test_keyring_that_cannot_be_asked(ring: Ring) -> None:
    """Errors of the library are StoreErrors that say where, and not what the library said."""
    store = KeyringStore("agent")
    ring.kept["agent", "names="] = MARK
    with pytest.raises(StoreError, match="no list of names") as caught:
        store.names()
    assert MARK not in str(caught.value)
    ring.fails = sys.modules["keyring.errors"].KeyringError
    for call in (store.names, lambda: store.get("A"), lambda: store.set("A", "value"), lambda: store.delete("A")):
        with pytest.raises(StoreError, match="KeyringError at get_password") as caught:
            call()
        assert MARK not in "".join(traceback.format_exception(caught.value))


def test_keyring_that_is_none(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library finds no keyring, or only one in the open, that isn't used unless it is given."""
    monkeypatch.setattr(Ring, "priority", 0.5)
    with pytest.raises(nsbox.UnavailableError, match="no keyring of the system's"):
        KeyringStore("agent")
    assert KeyringStore("agent", backend=ring).names() == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library it says what to install."""
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(nsbox.UnavailableError, match=r"pip install 'nsbox\[keyring\]'"):
        KeyringStore("agent")
    for service in ("", "a\0", 5):
        with pytest.raises(ValueError, match="service"):
            KeyringStore(service)  # type: ignore[arg-type]


def test_the_library_itself() -> None:
    """The library, where it is installed, is as it is taken for."""
    library = pytest.importorskip("keyring")
    from keyring.backends.fail import Keyring

    store = KeyringStore("agent", backend=Keyring())
    with pytest.raises(StoreError, match="NoKeyringError at get_password"):
        store.names()
    assert library.get_keyring().priority is not None


# ---- one command


def test_inject(store: JsonStore, workspace: Path) -> None:
    """One command gets the secrets that it is meant to have, and what it prints of them, as it is or encoded, is redacted."""
    store.set("TOKEN", VALUE)
    store.set("OTHER", "not for this one")
    env, scrubber = inject({"PATH": os.environ["PATH"], "TOKEN": "old"}, store, ["TOKEN"])
    assert env == {"PATH": os.environ["PATH"], "TOKEN": VALUE}
    script = 'echo "$TOKEN<$OTHER>"; printf x%s "$TOKEN" | base64; cat ../agent/secrets.json'
    policy = nsbox.Policy.workspace(workspace)
    done = nsbox.run(script, shell=True, env=env, policy=policy, cwd=workspace, capture_output=True, check=False)
    assert VALUE.encode() in done.stdout  # the control
    assert scrubber.scrub(done.stdout) == b"***<>\neG***U=\n"
    assert done.stderr.startswith(b"cat: ") and VALUE.encode() not in done.stderr


def test_inject_all(store: JsonStore) -> None:
    """Without names all are taken, of a store or a mapping; what was given isn't changed."""
    store.set("A", "value-a")
    store.set("B", "value-b")
    given = {"HOME": "/"}
    for source in (store, {"A": Secret("value-a"), "B": "value-b"}):
        env, scrubber = inject(given, source)
        assert (env, given) == ({"HOME": "/", "A": "value-a", "B": "value-b"}, {"HOME": "/"})
        assert scrubber.scrub("value-a/value-b/value-c") == "***/***/value-c"
    assert inject(given, {})[0] == given


BAD_INJECTIONS: list[tuple[Any, Any, type[Exception], str]] = [
    ({"A": ""}, None, ValueError, "the value of A is empty"),
    ({"A": Secret("abc")}, None, ValueError, "the value of A has 3 bytes, fewer than 4"),
    ({"A": "a\0bcdef"}, None, ValueError, "the value of A has a NUL"),
    ({"A=": "value"}, None, ValueError, "name: 'A='"),
    ({"": "value"}, None, ValueError, "name: ''"),
    ({"A\0": "value"}, None, ValueError, "name"),
    ({"A": "value"}, ["B"], KeyError, "no secret 'B'"),
    ({"A": "value"}, "A", TypeError, "names: is a str"),
    ({"A": 5}, None, TypeError, "the value of A is a int"),
    ({5: "value"}, None, TypeError, "name is a int"),
]


@pytest.mark.parametrize(
    ("source", "names", "error", "problem"), BAD_INJECTIONS, ids=[row[3] for row in BAD_INJECTIONS]
)
def test_inject_refuses(source: Any, names: Any, error: type[Exception], problem: str) -> None:
    """A name or value that no variable can have, or that can't be redacted, is refused by its name."""
    with pytest.raises(error, match=problem):
        inject({}, source, names)


def test_imports_are_light() -> None:
    """Importing nsbox loads neither of the two modules; these load neither the library keyring nor anything that runs commands."""
    code = "import sys, nsbox; a = {*sys.modules}; import nsbox.secrets, nsbox.leaks; b = {*sys.modules}; print(*a, '|', *b)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(nsbox.__file__).parents[1], capture_output=True, text=True, check=True
    )
    bare, loaded = (set(part.split()) for part in done.stdout.split("|"))
    assert not bare & {"nsbox.secrets", "nsbox.leaks", "json", "re"}
    assert not loaded & {
        "keyring",
        "subprocess",
        "asyncio",
        "logging",
        "dataclasses",
        "nsbox._core.call",
        "nsbox._nsbox",
    }
