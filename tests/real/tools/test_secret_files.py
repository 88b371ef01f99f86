"""JsonStore: what a file of secrets may be, who may have put it there, and how it is written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nsbox
from nsbox import secrets
from nsbox.secrets import JsonStore, Secret, Store, StoreError, inject

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
    """Nor is one that replaces the directory, however the path ends; further up it is."""
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
