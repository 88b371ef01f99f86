"""Files of a policy, read and written by this process: what is allowed, what is refused, and what is said then."""

from __future__ import annotations

import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsbox
from nsbox import AccessError, PathRule, Policy, Sandbox


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("ws/sub", "ws/ro", "ws/hidden", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(f"{name}\n")
    (tmp_path / "ws/to-out").symlink_to("../outside")
    (tmp_path / "ws/to-hidden").symlink_to("hidden")
    (tmp_path / "ws/to-ro").symlink_to("ro")
    (tmp_path / "ws/to-sub").symlink_to("sub")
    (tmp_path / "ws/link").symlink_to("sub/file")
    return tmp_path


@pytest.fixture
def policy(tree: Path) -> Policy:
    return Policy.workspace(tree / "ws", read=[tree / "ws/ro"], deny=[tree / "ws/hidden"], protected=["SOUL.md"])


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy) as box:
        yield box


@pytest.fixture
def lenient(policy: Policy) -> Sandbox:
    return Sandbox(policy.with_(symlinks="beneath"))


# ---- reading


def test_read(box: Sandbox, tree: Path) -> None:
    """By relative and absolute names, also with "..", as much as asked for, line ends as they are."""
    assert box.read("sub/file") == box.read(tree / "ws/sub/file") == box.read("ro/../sub//file") == "ws/sub\n"
    assert box.read("ro/file") == "ws/ro\n"
    (tree / "ws/long").write_bytes("äöü\r\n".encode() * 1000)
    assert box.read("long", 5) == "äöü\r\n"
    assert box.read("long", 0) == ""
    assert len(box.read("long")) == 5000
    with box.open("long", "rb") as file:
        assert file.read(2) == "ä".encode()
    with box.open("long", encoding="latin-1") as file:
        assert file.read(1) == "Ã"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("../outside/file", "is in no directory that the policy names; readable: "),
        ("/etc/passwd", "is in no directory that the policy names; readable: "),
        ("/proc/self/mem", "is in no directory"),
        ("hidden/file", "is hidden in the sandbox"),
        ("hidden/../hidden/file", "is hidden in the sandbox"),
        ("to-out/file", "has a symlink in it"),
        ("to-sub/file", "has a symlink in it"),
        ("link", "has a symlink in it"),
        ("to-hidden/file", "has a symlink in it"),
        ("sub/../to-sub/file", "has a symlink in it"),
    ],
)
def test_what_is_not_read(box: Sandbox, path: str, what: str) -> None:
    """Whatever lies outside, is hidden, or is behind a symlink; the message says what would do."""
    with pytest.raises(AccessError) as raised:
        box.read(path)
    assert str(raised.value).startswith(f"{path} {what}")


def test_links_that_stay(lenient: Sandbox) -> None:
    """With symlinks="beneath" those are followed that stay in the directory, to where other rules hold."""
    assert lenient.read("to-sub/file") == lenient.read("link") == "ws/sub\n"
    assert lenient.read("to-ro/file") == "ws/ro\n"
    with pytest.raises(AccessError, match="to-out/file leads by a symlink out of the directory that the policy names"):
        lenient.read("to-out/file")
    with pytest.raises(AccessError, match="to-hidden/file leads by a symlink to what is hidden"):
        lenient.read("to-hidden/file")
    with pytest.raises(AccessError, match="to-ro/new leads by a symlink to what is read-only; writable"):
        lenient.write("to-ro/new", "x")
    with pytest.raises(AccessError, match="link is a symlink; write to the file that it leads to"):
        lenient.write("link", "x")
    lenient.write("to-sub/new", "x")
    assert lenient.read("sub/new") == "x"
    with pytest.raises(AccessError, match="to-hidden/a/b leads by a symlink to what is hidden"):
        lenient.write("to-hidden/a/b", "x")


def test_what_is_no_file(box: Sandbox, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO isn't waited for, a device and a socket not read; directories, missing files and no text say so."""
    os.mkfifo(tree / "ws/fifo")
    sock = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tree / "ws")  # the name of a socket is short
    sock.bind("socket")
    sock.close()
    with pytest.raises(AccessError, match="fifo is no regular file"):
        box.read("fifo")
    with pytest.raises(OSError, match="socket"):
        box.read("socket")
    with pytest.raises(IsADirectoryError):
        box.read("sub")
    with pytest.raises(FileNotFoundError) as raised:
        box.read("missing/x")
    assert raised.value.filename == "missing/x"
    with pytest.raises(NotADirectoryError):
        box.read("sub/file/x")
    (tree / "ws/binary").write_bytes(b"a\xffb")
    with pytest.raises(ValueError, match=r"binary isn't utf-8 text .byte 0xff.; errors='replace' reads it"):
        box.read("binary")
    assert box.read("binary", errors="replace") == "a\ufffdb"
    for wrong in (-1, True, "5"):
        with pytest.raises(ValueError, match="max_chars"):
            box.read("sub/file", wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode is 'w'"):
        box.open("sub/file", "w")  # type: ignore[call-overload]
    with pytest.raises(LookupError):
        box.open("sub/file", encoding="none")
    for name in ("fifo", "socket", "sub"):
        with pytest.raises(OSError):
            box.write(name, "x")


def test_a_policy_that_names_a_file(tree: Path) -> None:
    """A single file can be read; nothing beside it."""
    with Sandbox(Policy.workspace(tree / "ws", read=[tree / "outside/file"])) as box:
        assert box.read(tree / "outside/file") == "outside\n"
        (tree / "outside/other").write_text("x")
        with pytest.raises(AccessError):
            box.read(tree / "outside/other")


def test_rules(tree: Path) -> None:
    """Suffixes and sizes hold for reading, writing and attaching."""
    rule = PathRule("notes", str(tree / "ws"), (".md",), 10)
    box = Sandbox(Policy.workspace(tree / "ws", paths=[rule]))
    box.write("a.md", "0123456789")
    assert box.read("a.md") == "0123456789"
    with pytest.raises(AccessError, match=r"b.md is too large: 11 bytes; notes takes 10 at most"):
        box.write("b.md", "0123456789x")
    with pytest.raises(AccessError, match=r"a.txt has no suffix that notes takes: .md"):
        box.write("a.txt", "x")
    with pytest.raises(AccessError, match="has no suffix"):
        box.read("sub/file")
    (tree / "ws/c.md").write_text("x" * 11)
    for use in (box.read, lambda path: box.attach([path])):
        with pytest.raises(AccessError, match=r"c.md is too large: 11 bytes"):
            use("c.md")
    assert sorted(os.listdir(tree / "ws")) == [
        "a.md",
        "c.md",
        "hidden",
        "link",
        "ro",
        "sub",
        "to-hidden",
        "to-out",
        "to-ro",
        "to-sub",
    ]


# ---- writing


def test_write(box: Sandbox, tree: Path) -> None:
    """New files, with the directories that are missing, and old ones, which keep their permissions and their readers."""
    box.write("new/dir/file", "text ä\n")
    assert (tree / "ws/new/dir/file").read_text() == "text ä\n"
    box.write("bytes", b"\0\xff")
    assert (tree / "ws/bytes").read_bytes() == b"\0\xff"
    script = tree / "ws/script"
    script.write_text("old")
    script.chmod(0o750)
    with script.open() as reader:
        box.write("script", "new")
        assert reader.read() == "old"
    assert script.read_text() == "new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    with pytest.raises(FileNotFoundError):
        box.write("no/such/dir", "x", parents=False)
    assert not [name for name in os.listdir(tree / "ws") if name.startswith(".nsbox")]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("ro/file", "is read-only; writable: "),
        ("ro/new", "is read-only; writable: "),
        ("ro", "is read-only"),
        ("hidden/new", "is hidden"),
        ("../outside/file", "is in no directory"),
        ("/etc/new", "is in no directory"),
        ("to-sub/new", "has a symlink in it"),
        ("to-out/new/x", "has a symlink in it"),
        ("link", "is a symlink; write to the file that it leads to"),
        ("SOUL.md", "is protected: SOUL.md is never written"),
        ("sub/soul.MD", "is protected: SOUL.md is never written"),
        ("soul.md/below", "is protected: SOUL.md is never written"),
    ],
)
def test_what_is_not_written(box: Sandbox, tree: Path, path: str, what: str) -> None:
    """Nothing outside of what is writable, nothing through a symlink, no protected name; nothing has changed then."""
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in tree.rglob("*"))
    with pytest.raises(AccessError) as raised:
        box.write(path, "x")
    assert str(raised.value).startswith(f"{path} {what}")
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in tree.rglob("*")) == before


def test_the_workspace_itself(box: Sandbox) -> None:
    """No file can be there."""
    for path in (".", "sub/..", "sub"):
        with pytest.raises(IsADirectoryError):
            box.write(path, "x")


@pytest.mark.as_user("root may write everywhere")
def test_no_permission(box: Sandbox, tree: Path) -> None:
    """The kernel's own refusal, with the path; nothing is left behind."""
    (tree / "ws/sub").chmod(0o500)
    try:
        with pytest.raises(PermissionError) as raised:
            box.write("sub/new", "x")
        assert raised.value.filename == "sub/new"
        assert os.listdir(tree / "ws/sub") == ["file"]
    finally:
        (tree / "ws/sub").chmod(0o700)


def test_wrong_contents_and_names(box: Sandbox, tree: Path) -> None:
    """No number is taken for so many NUL bytes; a name with a slash at its end is no file's."""
    for wrong in (5, True, None, [72], {"a": 1}):
        with pytest.raises(TypeError, match=r"^content is .*, must be a str or bytes$"):
            box.write("x", wrong)  # type: ignore[arg-type]
    with pytest.raises(IsADirectoryError):
        box.write("new/", "x")
    with pytest.raises(NotADirectoryError):
        box.read("sub/file/")
    for options in ({"suffixes": ".md"}, {"suffixes": ["md"]}, {"max_count": "3"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            box.attach(["sub/file"], **options)  # type: ignore[arg-type]
    assert not (tree / "ws/x").exists()


# ---- lists


def test_list_files(box: Sandbox, tree: Path) -> None:
    """Regular files by pattern, in order; nothing hidden, nothing through links, no FIFO."""
    os.mkfifo(tree / "ws/fifo")
    for name in ("a.py", "sub/b.py", "sub/deep/c.py", "sub/deep/d.txt"):
        box.write(name, "x")
    everything = ["a.py", "ro/file", "sub/b.py", "sub/deep/c.py", "sub/deep/d.txt", "sub/file"]
    assert box.list_files() == everything
    assert box.list_files(pattern="**") == everything
    assert box.list_files(pattern="*.py") == ["a.py"]
    assert box.list_files(pattern="**/*.py") == ["a.py", "sub/b.py", "sub/deep/c.py"]
    assert box.list_files(pattern="sub/**/[bc].p?") == ["sub/b.py", "sub/deep/c.py"]
    assert box.list_files("sub/deep") == ["c.py", "d.txt"]
    assert box.list_files(pattern="**/deep/**/*.py") == ["sub/deep/c.py"]
    with pytest.raises(AccessError):
        box.list_files("hidden")
    with pytest.raises(AccessError, match="symlink"):
        box.list_files("to-sub")
    with pytest.raises(NotADirectoryError):
        box.list_files("a.py")
    with pytest.raises(ValueError, match="pattern"):
        box.list_files(pattern="")


def test_ten_thousand_files(box: Sandbox, tree: Path) -> None:
    """As many as asked for, and an error for one more; names of any bytes."""
    for i in range(10_000):
        os.close(os.open(tree / "ws/sub" / f"{i}", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(ValueError, match="more than 10000 such files"):
        box.list_files()
    assert len(box.list_files(max_files=20_000)) == 10_002
    odd = ["a\nb", os.fsdecode(b"\xff"), "'"]
    for name in odd:
        box.write(f"ro2/{name}", "x")
    assert sorted(box.list_files("ro2")) == sorted(odd)


def test_deep_directories(box: Sandbox, tree: Path) -> None:
    """256 levels are looked at, and running out of descriptors is reported, not mistaken for the last file."""
    fd = os.open(tree / "ws", os.O_PATH)
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_PATH, dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(fd)
        fd = inner
    os.close(fd)
    assert len(box.list_files(pattern="**/f")) == 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            box.list_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    nsbox.run(["rm", "-r", "d"], policy=box.policy, check=True)  # pytest's own removal doesn't go so deep


def test_too_much_to_look_at(box: Sandbox, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is counts, not only what matches."""
    for i in range(20):
        (tree / "ws/sub" / f"{i}").mkdir()
    monkeypatch.setattr("nsbox._filetools.walk._MOST_ENTRIES", 15)
    with pytest.raises(ValueError, match="sub has more than 15 entries; name a directory in it"):
        box.list_files("sub", "nothing", max_files=1)


def test_huge_files(box: Sandbox, tree: Path) -> None:
    """Only as much is read as was asked for."""
    with open(tree / "ws/huge", "wb") as file:
        file.write(b"begin")
        file.truncate(1 << 40)
    assert box.read("huge", 7) == "begin\0\0"
    with pytest.raises(AccessError, match="is too large to be attached"):
        box.attach(["huge"], max_bytes="1M")


# ---- attachments


def test_attach(box: Sandbox, tree: Path) -> None:
    """The contents of all, or of none."""
    (first, second) = box.attach(["sub/file", tree / "ws/ro/file"])
    assert (first.name, first.path, first.size, first.data) == ("file", "sub/file", 7, b"ws/sub\n")
    assert "ws/sub" not in repr(first)
    assert second.path == str(tree / "ws/ro/file")
    for wrong in ("hidden/file", "link", "/etc/passwd"):
        with pytest.raises(AccessError):
            box.attach(["sub/file", wrong])
    with pytest.raises(AccessError, match="sub/file is too large to be attached: 6 bytes at most"):
        box.attach(["sub/file"], max_bytes=6)
    with pytest.raises(AccessError, match=r"has no suffix that can be attached: .pdf"):
        box.attach(["sub/file"], suffixes=[".pdf"])
    with pytest.raises(ValueError, match="2 files are too many: 1 at most"):
        box.attach(["sub/file", "ro/file"], max_count=1)
    with pytest.raises(TypeError):
        box.attach("sub/file")


# ---- tools


def test_tools(tmp_path: Path, tree: Path) -> None:
    """What is in tools_bin, as JSON has it; commands find it first, and can't change it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "hello").write_text("#!/bin/sh\necho hello\n")
    (tools / "env").write_text("#!/bin/sh\necho mine\n")
    for name in ("hello", "env"):
        (tools / name).chmod(0o755)
    (tools / "README").write_text("no program")
    (tools / "gone").symlink_to("missing")
    os.utime(tools / "hello", (1_771_596_900, 1_771_596_900))
    with Sandbox(Policy.workspace(tree / "ws", tools_bin=tools)) as box:
        assert [tool.name for tool in box.tools()] == ["env", "hello"]
        assert box.tools()[1].as_dict() == {"name": "hello", "size": 21, "modified": "2026-02-20T14:15:00Z"}
        assert box.shell("hello; env").stdout == "hello\nmine\n"
        assert box.exec("hello").stdout == "hello\n"
        assert box.shell('echo "$PATH"').stdout.startswith(f"{tools}:")
        assert box.shell(f"touch {tools}/x").returncode != 0
    assert Sandbox(Policy.workspace(tree / "ws")).tools() == []


@pytest.mark.parametrize("wrong", ["missing", "ws/sub/file"])
def test_wrong_tools(tree: Path, wrong: str) -> None:
    """The directory has to be there."""
    with pytest.raises(nsbox.PolicyError, match="tools_bin"):
        Policy.workspace(tree / "ws", tools_bin=tree / wrong)


def test_tools_whose_name_path_cant_have(tree: Path) -> None:
    """A colon would make two directories of PATH, the second anywhere."""
    (tree / "a:b").mkdir()
    with pytest.raises(nsbox.PolicyError, match=r"tools_bin: .*a:b has a ':'"):
        Policy.workspace(tree / "ws", tools_bin=tree / "a:b")


def test_the_new_file_is_never_more_open_than_the_old_one(
    box: Sandbox, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a moment: it has its mode when it gets its name, and none but its owner's before."""
    (tree / "ws/private").write_text("old")
    (tree / "ws/private").chmod(0o600)
    modes = []
    plain = os.fchmod

    def noted(fd: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        assert os.fstat(fd).st_size == 0
        plain(fd, mode)

    monkeypatch.setattr(os, "fchmod", noted)
    box.write("private", "new")
    assert modes == [0o600]
    assert stat.S_IMODE((tree / "ws/private").stat().st_mode) == 0o600


def test_tools_that_commands_could_write(tree: Path) -> None:
    """In the workspace they are read-only; as something writable they are refused."""
    with Sandbox(Policy.workspace(tree / "ws", tools_bin=tree / "ws/sub")) as box:
        assert box.shell("touch sub/x").returncode != 0
    with pytest.raises(nsbox.PolicyError, match=r"write, where commands could plant programs|is in write too"):
        Policy.workspace(tree / "ws", write=[tree / "outside"], tools_bin=tree / "outside")
