"""The file tools of sessions and transactions: what is theirs, /tmp for one, and what is the workspace's."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from pathlib import Path

import pytest
from nsbox_testing import needs
from nsbox_testing.running import in_fork

import nsbox
from nsbox import AccessError, Policy, Sandbox, Session, SetupError


def said(s: Session, command: str) -> str:
    done = s.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


# ---- sessions


@pytest.mark.vm
def test_home(s: Session) -> None:
    """~ is HOME, as in a shell's line, for each tool; a file of that name has another spelling."""
    s.write("~/.rc", "one\n")
    assert said(s, "cat ~/.rc; ls -A | grep '~' || true") == "one\n"
    said(s, "mkdir -p ~/d; echo two > ~/d/x")
    assert (s.read("~/d/x"), s.read_lines("~/d/x").text, s.list_files("~")) == (
        "two\n",
        "     1\ttwo\n",
        [".rc", "d/x"],
    )
    assert s.glob("*", "~/d").paths == ("~/d/x",) and s.read(s.grep("two", "~").matches[0].path) == "two\n"
    s.edit("~/d/x", "two", "2")
    s.append("~/d/x", "3\n")
    assert s.shell("cat x", cwd="~/d").stdout == s.exec("cat", ["d/x"], cwd="~").stdout == "2\n3\n"
    assert s.background("cat x", cwd="~/d").wait().stdout == "2\n3\n"
    with pytest.raises(FileNotFoundError):  # as subprocess
        s.Popen(["true"], cwd="~/d")
    s.copy("~/d/x", "~/y")
    s.move("~/y", "~/z")
    s.delete("~/.rc")
    assert said(s, "cat ~/z; ls -A ~") == "2\n3\nd\nz\n"
    assert nsbox.call_tool(s, "read_lines", {"path": "~/z"})["text"] == "     1\t2\n     2\t3\n"
    with pytest.raises(ValueError, match="below"):
        s.glob("~/*")
    s.write("./~/own", "a directory of that name\n")
    s.write("~backup", "another name\n")
    assert said(s, "ls -A | grep '~'") == "~\n~backup\n"


@pytest.mark.vm
def test_home_of_a_sandbox(policy: Policy) -> None:
    """Its tools reach what the policy names: a home that is the workspace or a named one, and no directory "~"."""
    workspace = Path(policy.write[0])
    with Sandbox(policy) as box, pytest.raises(AccessError, match=r"^~/x is in no directory that the policy names"):
        box.write("~/x", "")
    with Sandbox(policy.with_(home="workspace")) as box:
        box.write("~/x", "one\n")
        assert box.shell("cat ~/x").stdout == "one\n" and box.can_write("~/x") and box.resolve("~/x") == workspace / "x"
    with Sandbox(policy.with_(env={"HOME": str(workspace / "h")})) as box:
        box.write("~/x", "two\n")
        assert box.shell("cat ~/x").stdout == "two\n"
    assert not (workspace / "~").exists() and (workspace / "h/x").read_text() == "two\n"


@pytest.mark.vm
def test_what_commands_make_tools_read(s: Session) -> None:
    """In /tmp and at home, as in the workspace."""
    said(s, "echo one > /tmp/a; mkdir -p /tmp/d ~/d; echo two > /tmp/d/b; echo three > ~/d/c; echo four > w")
    home = said(s, "printf %s ~")
    assert (s.read("/tmp/a"), s.read("/tmp/d/b"), s.read(f"{home}/d/c"), s.read("w")) == (
        "one\n",
        "two\n",
        "three\n",
        "four\n",
    )
    assert s.list_files("/tmp") == ["a", "d/b"]
    assert sorted(s.glob("**/*", "/tmp").paths) == ["/tmp/a", "/tmp/d/b"]
    assert [(m.path, m.line) for m in s.grep("t[wh]", "/tmp/d").matches] == [("/tmp/d/b", 1)]  # not the interpreter's
    assert [(m.path, m.line) for m in s.grep("t[wh]", home).matches] == [(f"{home}/d/c", 1)]
    assert s.read_lines("/tmp/a").text == "     1\tone\n"
    assert s.media("/tmp/a").data == b"one\n"
    assert [one.data for one in s.attach(["/tmp/a", "w"])] == [b"one\n", b"four\n"]


@pytest.mark.vm
def test_what_tools_make_commands_use(s: Session) -> None:
    """It is the commands' own: they can change and remove it."""
    home = said(s, "printf %s ~")
    for top in ("/tmp", home, "."):
        s.write(f"{top}/new/file", "one\n")
        s.append(f"{top}/new/file", "two\n")
        s.edit(f"{top}/new/file", "two", "2")
        s.mkdir(f"{top}/new/dir")
        s.copy(f"{top}/new/file", f"{top}/new/dir/copy")
        s.move(f"{top}/new/dir", f"{top}/new/moved")
        mine = said(s, f"cd {top}/new && cat file moved/copy && stat -c %u file moved moved/copy . && id -u")
        assert mine.split()[:4] == ["one", "2", "one", "2"]
        assert len(set(mine.split()[4:])) == 1
        said(s, f"cd {top}/new && echo more >> file && mv moved/copy . && rmdir moved && chmod 600 file")
        s.write(f"{top}/new/file", "again\n")
        assert said(s, f"stat -c %a {top}/new/file") == "600\n"
        assert s.delete(f"{top}/new", recursive=True).count == 3
        assert said(s, f"ls {top}").split().count("new") == 0


@pytest.mark.parametrize(
    "wishes",
    [
        {"landlock": True},
        {"seccomp": "hardened"},
        {"uid": 77, "gid": 77},
        {"nested": True},
        {"home": "private:files"},
        {"ids": "full"},
    ],
    ids=lambda wishes: next(iter(wishes)),
)
def test_whatever_the_policy(policy: Policy, wishes: dict[str, object]) -> None:
    """With its own ids, filters and rules, too: what tools make is the commands' own."""
    if wishes == {"ids": "full"}:
        needs.require("newuidmap")
    try:
        box = Sandbox(policy.with_(**wishes), stock=0)
        box.start()
    except nsbox.UnavailableError as error:
        pytest.skip(str(error))
    with box, box.session() as s:
        for top in ("/tmp", said(s, "printf %s ~")):
            s.write(f"{top}/new/file", "one\n")
            s.edit(f"{top}/new/file", "one", "1")
            s.copy(f"{top}/new/file", f"{top}/new/copy")
            ids = said(s, f"cd {top}/new && id -u && stat -c %u . file copy").split()
            assert len(set(ids)) == 1
            said(s, f"cd {top}/new && echo 2 >> file && rm copy")
            assert s.read(f"{top}/new/file") == "1\n2\n"
            s.delete(f"{top}/new", recursive=True)


def test_between_file_systems(s: Session) -> None:
    """A file is copied and removed; a directory isn't moved."""
    s.write("a", "x\n")
    assert s.move("a", "/tmp/a").kind == "moved"
    assert s.list_files("/tmp") == ["a"]
    s.move("/tmp/a", "b")
    assert (s.read("b"), s.list_files("/tmp")) == ("x\n", [])
    s.mkdir("/tmp/d")
    with pytest.raises(AccessError, match="is a directory, and can't be moved to another file system"):
        s.move("/tmp/d", "d")
    s.copy("b", "/tmp/d/b")
    with pytest.raises(FileExistsError):
        s.copy("b", "/tmp/d/b")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/status", "/dev/null", "/sys/kernel", "/usr/bin/env", "hidden/file", "/"]
)
def test_what_isnt_for_tools(s: Session, path: str) -> None:
    """System directories, the kernel's, what is hidden."""
    for call in (s.read, s.delete, lambda p: s.write(p, "x"), s.list_files):
        with pytest.raises(AccessError):
            call(path)


@pytest.mark.parametrize("symlinks", ["refuse", "beneath"])
def test_links_in_its_own_places(policy: Policy, tree: Path, symlinks: str) -> None:
    """They lead nowhere else: neither out of /tmp, nor to this machine's files of the same names."""
    (tree / "secret").write_text("SECRET")
    with Sandbox(policy.with_(symlinks=symlinks), stock=0) as box, box.session() as s:
        links = {
            "out": str(tree / "secret"),
            "etc": "/etc/passwd",
            "up": "../etc/passwd",
            "proc": "/proc/self/root",
            "in": "real",
        }
        for name, target in links.items():
            said(s, f"ln -s {target} /tmp/{name}")
        said(s, "echo here > /tmp/real")
        for name in ("out", "etc", "up", "proc/etc/passwd"):
            for call in (s.read, lambda p: s.edit(p, "a", "b"), lambda p: s.write(p, "x"), lambda p: s.append(p, "x")):
                with pytest.raises(AccessError):
                    call(f"/tmp/{name}")
        if symlinks == "beneath":
            assert s.read("/tmp/in") == "here\n"
        else:
            with pytest.raises(AccessError, match="has a symlink in it"):
                s.read("/tmp/in")
    assert (tree / "secret").read_text() == "SECRET"


def test_no_fifo_or_device_is_opened(s: Session) -> None:
    """A FIFO with a waiting reader never sees a writer, and a read of it doesn't block."""
    said(s, "mkfifo /tmp/fifo; (cat /tmp/fifo; echo opened > /tmp/seen) >/dev/null 2>&1 &")
    for call in (
        s.read,
        s.read_lines,
        lambda p: s.append(p, "x"),
        lambda p: s.write(p, "x"),
        lambda p: s.copy(p, "/tmp/c"),
    ):
        with pytest.raises(AccessError, match="is no regular file"):
            call("/tmp/fifo")
    assert s.list_files("/tmp") == []


def test_a_session_that_has_ended(box: Sandbox) -> None:
    """It is told; a closed one is a ValueError."""
    with box.session() as s:
        s.write("/tmp/a", "x")
        os.kill(s._open_way().pid, signal.SIGKILL)
        while not s.has_ended:
            time.sleep(0.001)
        for call in (s.read, lambda p: s.write(p, "y"), s.list_files):
            with pytest.raises(SetupError, match=r"reach the session's files: .*it has ended"):
                call("/tmp/a")
    with pytest.raises(ValueError, match="the session is closed"):
        s.read("/tmp/a")


def test_a_fork_has_none(s: Session) -> None:
    s.write("/tmp/a", "x")

    def child() -> None:
        with pytest.raises(ValueError, match="the session is closed"):
            s.read("/tmp/a")

    in_fork(child)
    assert s.read("/tmp/a") == "x"


def test_no_descriptor_stays(s: Session) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        s.write("/tmp/a/b", "x")
        s.read("/tmp/a/b")
        with pytest.raises(AccessError):
            s.read("/etc/passwd")
        s.delete("/tmp/a", recursive=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_few_descriptors(s: Session) -> None:
    """Without a free one, each call fails, leaves nothing in the session, and loses none."""
    first = {*said(s, "ls -A /tmp").split()}  # the workspace may lie there
    s.write("/tmp/a", "x")
    before, seen = os.listdir("/proc/self/fd"), set()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in range(4, 64):
        for call in (
            lambda: s.read("/tmp/a"),
            lambda: s.write("/tmp/b", "y"),
            lambda: s.copy("/tmp/a", "/tmp/c", overwrite=True),
        ):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            try:
                call()
                seen.add(0)
            except OSError as error:
                seen.add(error.errno)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == {0, errno.EMFILE}
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert {*said(s, "ls -A /tmp").split()} - first == {"a", "b", "c"}


def test_long_and_odd_names(s: Session) -> None:
    """Names of 255 bytes, with spaces, line ends and bytes that are no UTF-8; longer ones are the kernel's error."""
    for name in ("n" * 255, "a b\nc", os.fsdecode(b"\xff\xfe")):
        s.write(f"/tmp/{name}/{name}", name.encode("utf-8", "surrogateescape"))
        assert s.list_files("/tmp") == [f"{name}/{name}"]
        s.delete(f"/tmp/{name}", recursive=True)
    with pytest.raises(OSError, match="File name too long"):
        s.write(f"/tmp/{'n' * 256}", "x")


def test_a_full_tmp(policy: Policy) -> None:
    """No room: an error, and no half of a file."""
    with Sandbox(policy.with_(tmp_size="1M"), stock=0) as box, box.session() as s:
        s.write("/tmp/a", "kept")
        with pytest.raises(OSError, match="No space left on device"):
            s.write("/tmp/a", "x" * (2 << 20))
        assert s.read("/tmp/a") == "kept"
        assert s.list_files("/tmp") == ["a"]


# ---- transactions


def test_transactions(box: Sandbox, ws: Path) -> None:
    """Tools see what commands have written, and what they write waits for the commit too."""
    with box.transaction() as tx:
        tx.run(["sh", "-c", "echo one > new; echo two >> sub/file"], check=True)
        assert (tx.read("new"), tx.read("sub/file")) == ("one\n", "ws/sub\ntwo\n")
        tx.write("made/file", "tool\n")
        tx.edit("sub/file", "two", "2")
        tx.move("new", "made/new")
        assert tx.list_files("made") == ["file", "new"]
        assert [m.path for m in tx.grep("tool").matches] == ["made/file"]
        assert tx.check_output(["cat", "made/file", "made/new", "sub/file"], text=True) == "tool\none\nws/sub\n2\n"
        assert sorted(os.listdir(ws)) == ["hidden", "link", "out", "ro", "sub"]
        assert (ws / "sub/file").read_text() == "ws/sub\n"
        for path in ("hidden/file", "/etc/passwd", "/tmp/x", "link", "out/file"):
            with pytest.raises(AccessError):
                tx.read(path)
        with pytest.raises(AccessError):
            tx.write("ro/file", "x")
        tx.diff()
        tx.commit()
    assert (ws / "made/new").read_text() == "one\n"
    assert (ws / "sub/file").read_text() == "ws/sub\n2\n"
    with pytest.raises(ValueError, match="the transaction is over"):
        tx.read("made/new")


def test_a_dropped_transaction(box: Sandbox, ws: Path) -> None:
    with box.transaction(ws / "sub") as tx:
        tx.delete("sub/file")
        tx.write("sub/other", "x")
        assert tx.list_files("sub") == ["other"]
    assert os.listdir(ws / "sub") == ["file"]


def test_a_transaction_of_a_directory_in_the_workspace(box: Sandbox, ws: Path) -> None:
    """What lies outside of it changes at once, as by its commands."""
    with box.transaction(ws / "sub") as tx:
        tx.write("sub/a", "waits")
        tx.write("b", "at once")
        assert (ws / "b").read_text() == "at once"
        assert not (ws / "sub/a").exists()
        (change,) = tx.diff()
        assert change.path == "a"
