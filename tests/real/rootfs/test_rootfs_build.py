"""What build() writes of a root file system, all of it or nothing; and matches()."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs
from nsbox_testing.elves import NATIVE, elf
from nsbox_testing.roots import PYTHON, sh
from nsbox_testing.trees import taken

import nsbox
from nsbox import PolicyError, UnavailableError, rootfs
from nsbox._rootfs import contents, libraries


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A root with a shell, for the test alone."""
    return rootfs.build(tmp_path / "small", ["sh", "cat"])


# ---- what is built


def test_paths_are_those_of_the_host(small: str) -> None:
    """Links such as /bin and sh are as they are here; each lies in the root, and leads to a file in it."""
    for name in ("/bin", "/lib64", "/bin/sh"):
        if os.path.islink(name):
            assert os.readlink(small + name) == os.readlink(name)
    manifest = json.loads(Path(small, ".nsbox-rootfs.json").read_text())["entries"]
    for path, entry in manifest.items():
        if "source" in entry:
            assert Path(small + path).read_bytes() == Path(entry["source"]).read_bytes()
            assert not os.path.islink(small + path)
    for directory in ("proc", "dev", "tmp", "run", "workspace", "agent"):
        assert os.listdir(f"{small}/{directory}") == []


def test_modes(tmp_path: Path) -> None:
    """Programs are 0555 and other files 0444, whatever they were; no set-user-ID bit; all of it the caller's."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for name, mode in {"setuid": 0o6755, "private": 0o600, "sub/open": 0o777}.items():
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    (tree / "sub").chmod(0o700)
    made = rootfs.build(tmp_path / "root", files={"/opt/tree": tree})
    found = {
        name: stat.S_IMODE(os.stat(f"{made}/opt/tree/{name}").st_mode)
        for name in ("setuid", "private", "sub", "sub/open")
    }
    assert found == {"setuid": 0o555, "private": 0o444, "sub": 0o755, "sub/open": 0o555}
    assert {os.lstat(os.path.join(d, n)).st_uid for d, ns, fs in os.walk(made) for n in (*ns, *fs)} == {os.geteuid()}
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o755


def test_trees(tmp_path: Path) -> None:
    """Links are kept and not followed, what is linked twice still is; sockets, FIFOs and devices are left out."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "outside").write_text("OUTSIDE")
    (tree / "file").write_text("x")
    os.link(tree / "file", tree / "again")
    (tree / "link").symlink_to("../outside")
    (tree / "absolute").symlink_to("/etc/passwd")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tree / "socket"))
    if os.geteuid() == 0:
        os.mknod(tree / "device", 0o20666, os.makedev(1, 3))
    made = Path(rootfs.build(tmp_path / "root", files={"/opt/tree": tree}))
    assert sorted(os.listdir(made / "opt/tree")) == ["absolute", "again", "file", "link"]
    assert os.readlink(made / "opt/tree/link") == "../outside"
    assert os.readlink(made / "opt/tree/absolute") == "/etc/passwd"
    assert (made / "opt/tree/file").samefile(made / "opt/tree/again")
    assert (made / "opt/tree/file").stat().st_mtime_ns == (tree / "file").stat().st_mtime_ns
    skipped = json.loads((made / ".nsbox-rootfs.json").read_text())["skipped"]
    assert {"/opt/tree/fifo", "/opt/tree/socket"} <= {*skipped}


def test_scripts(tmp_path: Path, workspace: Path) -> None:
    """A script brings its interpreter, also the one that env(1) looks up; a script's script too."""
    for name, line in {"direct": "#!/bin/sh", "looked-up": "#!/usr/bin/env sh", "twice": "#!/opt/direct"}.items():
        (tmp_path / name).write_text(f"{line}\necho $0\n")
        (tmp_path / name).chmod(0o755)
    names = ("direct", "looked-up")
    made = rootfs.build(tmp_path / "root", {f"/opt/{name}": tmp_path / name for name in names})
    policy = rootfs.policy(made, workspace=workspace)
    for name in names:
        assert nsbox.check_output([f"/opt/{name}"], policy=policy) == f"/opt/{name}\n".encode()
    with pytest.raises(FileNotFoundError, match="twice needs it by its first line"):
        rootfs.build(tmp_path / "other", {"/opt/twice": tmp_path / "twice"})


@needs.programs("gcc")
def test_libraries_beside_the_program(tmp_path: Path, workspace: Path) -> None:
    """$ORIGIN is kept when the program goes elsewhere; needs of needs, a static program, and one that isn't complete."""

    def gcc(name: str, code: str, *options: str) -> Path:
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-xc", "-", "-o", path, *options], input=code.encode(), check=True)
        return path

    lib = tmp_path / "app/lib"
    gcc("lib/libtwo.so", "int two(void) { return 2; }", "-shared", "-fPIC")
    gcc("lib/libone.so", "int two(void); int one(void) { return two() - 1; }", "-shared", "-fPIC")
    path = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib"
    code = '#include <stdio.h>\nint one(void); int main(void) { printf("%d\\n", one()); }'
    program = gcc("bin/program", code, f"-L{lib}", path, "-Wl,--no-as-needed", "-lone", "-ltwo")
    wished = {"/opt/bin/program": program}
    with_static = shutil.which("gcc") is not None and _static(gcc)
    if with_static:
        wished["/opt/static"] = with_static
    made = rootfs.build(tmp_path / "root", wished)
    assert sorted(os.listdir(f"{made}/opt/lib")) == ["libone.so", "libtwo.so"]
    policy = rootfs.policy(made, workspace=workspace)
    for name in wished:
        assert nsbox.check_output([name], policy=policy) == b"1\n"
    (lib / "libtwo.so").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such library in .*app/.*needs it: 'libtwo.so'"):
        rootfs.build(tmp_path / "other", wished)
    # A tree in which a library lacks another is copied all the same, and says so.
    as_files = Path(rootfs.build(tmp_path / "files", files={"/opt": tmp_path / "app"}))
    manifest = json.loads((as_files / ".nsbox-rootfs.json").read_text())
    assert manifest["missing"]["/opt/bin/program"] == ["libtwo.so"]


@needs.programs("gcc")
def test_libraries_of_the_configuration(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that ld.so knows by its configuration only is found in a root, where it has no cache; control: without."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # /tmp is no place for what a root has
        for name, code, options in (
            ("liba.so", "int a(void) { return 7; }", ["-shared", "-fPIC"]),
            ("program", "int a(void); int main(void) { return a(); }", ["-L.", "-la"]),
        ):
            command = ["gcc", "-xc", "-", "-o", name, *options]
            subprocess.run(command, input=code.encode(), cwd=place, check=True)
        (tmp_path / "conf").write_text(f"{place}\n")
        monkeypatch.setattr(contents, "Libraries", lambda: libraries.Libraries(str(tmp_path / "conf")))
        made = rootfs.build(tmp_path / "root", [f"{place}/program"])
        policy = rootfs.policy(made, workspace=workspace)
        assert nsbox.call([f"{place}/program"], policy=policy) == 7
        [alias] = [path for path in Path(made, "usr").rglob("liba.so") if path.is_symlink()]
        alias.unlink()
        assert nsbox.call([f"{place}/program"], policy=policy, stderr=nsbox.DEVNULL) == 127


def _static(gcc: Callable[..., Path]) -> Path | None:
    try:
        return gcc("static", '#include <unistd.h>\nint main(void) { return write(1, "1\\n", 2) != 2; }', "-static")
    except subprocess.CalledProcessError:
        return None  # no static C library


@pytest.mark.parametrize("name", ["sh", "ls", "env", PYTHON, "git", "tar", "perl"])
def test_what_the_loader_finds(name: str, tmp_path: Path) -> None:
    """The same libraries as ld.so itself, which is asked here only, finds for the program."""
    path = shutil.which(name)
    loader = next((p for p in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if os.path.exists(p)), None)
    if path is None or loader is None:
        pytest.skip("no such program, or no glibc")
    asked = subprocess.run([loader, "--list", os.path.realpath(path)], capture_output=True, text=True)
    if asked.returncode != 0:
        pytest.skip("no dynamic program")
    wanted = {os.path.realpath(found) for found in re.findall(r"=> (/\S+)", asked.stdout)} | {os.path.realpath(loader)}
    made = rootfs.build(tmp_path / "root", {"/opt/program": os.path.realpath(path)})
    entries = json.loads(Path(made, ".nsbox-rootfs.json").read_text())["entries"]
    copied = {entry["source"] for entry in entries.values() if "source" in entry} - {os.path.realpath(path)}
    assert wanted <= copied
    by_itself = ("libnss_", "libgcc_s", "libresolv")  # what glibc opens later
    assert {found for found in copied - wanted if not os.path.basename(found).startswith(by_itself)} == set()


def test_example(temporary: str, tmp_path: Path) -> None:
    """examples/ash.py: each threat comes true in a plain child (where that depends on nothing), and in no sandbox."""
    path = Path(__file__).parents[3] / "examples" / "ash.py"
    if not path.exists():
        pytest.skip("the tests were copied without the examples")
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, asked, agent, own = done.stdout.splitlines()
    threats, networks = lines[:10], lines[10:]
    assert all(line.endswith("; sandbox: no") for line in threats)
    what = ("another server of the host", "a name that isn't listed", "the cloud's metadata")
    what += ("a server of the agent's, from the host",)
    refused = [f"{each}: none: no; restricted: no" for each in what]
    assert networks == ["a listed server: none: no; restricted: yes", *refused]
    depends = ("mount", "use host devices")
    assert all("plain child: yes" in line for line in threats if not line.startswith(depends))
    assert [asked, agent] == ["asks over the bridge: HELLO", "its agent: You are coder."]
    assert own == "its own secret: True - another's: False"
    assert list(tmp_path.iterdir()) == []


# ---- what isn't built


def test_bad_sources(tmp_path: Path) -> None:
    """Each is an error that names it, at once, and leaves nothing."""
    machine = NATIVE.get(os.uname().machine, "EM_X86_64")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.symlink("loop", tmp_path / "loop")
    other = elf("EM_RISCV", kind=2)
    files = {"text": b"hello", "truncated": elf(machine, needed=["x"])[:-4], "foreign": other, "empty": b""}
    files |= {"needy": elf(machine, needed=["none.so"]), "object": elf(machine, kind=1), "script": b"#!/no/such\n"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    cases: list[tuple[str, type[OSError], str]] = [
        ("directory", IsADirectoryError, "Is a directory"),
        ("fifo", OSError, "is no regular file"),
        ("loop", OSError, "Too many levels"),
        ("none", FileNotFoundError, "No such file"),
        ("text", OSError, "is no program"),
        ("empty", OSError, "is no program"),
        ("truncated", OSError, "is truncated"),
        ("foreign", OSError, "is a program for EM_RISCV"),
        ("needy", FileNotFoundError, "no such library in .*needy needs it: 'none.so'"),
        ("object", OSError, "type ET_REL"),
        ("script", FileNotFoundError, "script needs it by its first line: '/no/such'"),
    ]
    for name, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            rootfs.build(tmp_path / "root", {"/opt/x": tmp_path / name})
        assert name in str(caught.value)
    before = sorted(os.listdir(tmp_path))
    assert "root" not in before and not any(name.startswith(".root") for name in before)
    with pytest.raises(FileNotFoundError, match=r"no such program in /usr/local/bin:/usr/bin.*'no-such-program'"):
        rootfs.build(tmp_path / "root", ["no-such-program"])


@pytest.mark.as_user("root can read everything")
def test_unreadable(tmp_path: Path) -> None:
    """What can't be read is named, a program as well as a file in a tree."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "secret").write_text("#!/bin/sh\n")
    (tree / "secret").chmod(0o111)
    for given in ({"programs": {"/opt/x": tree / "secret"}}, {"files": {"/opt": tree}}):
        with pytest.raises(PermissionError, match="secret"):
            rootfs.build(tmp_path / "root", **given)
    assert os.listdir(tmp_path) == ["tree"]


def test_bad_arguments(tmp_path: Path) -> None:
    """Arguments that make no sense are named."""
    (tmp_path / "f").write_text("")
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("programs", "sequence", {"programs": "sh"}),
        ("programs", "is an int", {"programs": [1]}),
        ("files", "is empty", {"files": [""]}),
        ("files", "relative", {"files": {"x": tmp_path / "f"}}),
        ("files", "would be below /tmp", {"files": {"/tmp/x": tmp_path / "f"}}),
        ("files", "would be below /proc", {"files": {"/proc/x": tmp_path / "f"}}),
        ("files", "can't be copied", {"files": {"/x": "/proc"}}),
        ("files", "can't be copied", {"files": {"/x": "/dev/null"}}),
        ("files", "the whole root", {"files": {"/": tmp_path / "d"}}),
        ("files", "is the root's own", {"files": {"/.nsbox-rootfs.json": tmp_path / "f"}}),
        ("programs", "would be two things", {"files": {"/bin/sh": tmp_path / "f"}, "programs": {"/bin/sh": "cat"}}),
        ("mount_points", "would be two things", {"files": {"/x": tmp_path / "f"}, "mount_points": ["/x"]}),
        ("mount_points", "sequence", {"mount_points": "/x"}),
        ("dest", "is the root of this machine", {"dest": "/"}),
        ("dest", "lies in", {"files": {"/x": tmp_path}}),
    ]
    (tmp_path / "d").mkdir()
    for field, message, given in cases:
        arguments = {"dest": tmp_path / "root"} | given
        with pytest.raises(PolicyError, match=message) as caught:
            rootfs.build(arguments.pop("dest"), **arguments)
        assert caught.value.field == field, given
    with pytest.raises(FileNotFoundError):
        rootfs.build(tmp_path / "none" / "root", ["sh"])
    assert sorted(os.listdir(tmp_path)) == ["d", "f"]


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyelftools nothing is made, and the error says what to install."""
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(UnavailableError, match="pip install"):
        rootfs.build(tmp_path / "root", ["sh"])
    assert os.listdir(tmp_path) == []


# ---- all or nothing


def test_what_exists_is_refused(small: str, tmp_path: Path) -> None:
    """A root, a file, a dangling link, another directory: none is touched; replace= exchanges roots only."""
    before = taken(Path(small))
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "precious").write_text("")
    os.symlink("nowhere", tmp_path / "link")
    for name in ("small", "directory", "link"):
        with pytest.raises(FileExistsError, match=name):
            rootfs.build(tmp_path / name, ["sh"])
    for name in ("directory", "link"):
        with pytest.raises(FileExistsError, match="is no root"):
            rootfs.build(tmp_path / name, ["sh"], replace=True)
    assert taken(Path(small)) == before
    assert sorted(os.listdir(tmp_path)) == ["directory", "link", "small"]


def test_replace(small: str, tmp_path: Path, workspace: Path) -> None:
    """The new one is there, the old one is gone; a failure leaves the old one; without an old one it is made."""
    with pytest.raises(FileNotFoundError):
        rootfs.build(small, ["no-such-program"], replace=True)
    policy = rootfs.policy(small, workspace=workspace)
    assert "not found" in sh(policy, "env")
    assert rootfs.build(small, ["sh", "env"], replace=True) == small
    assert "HOME=/workspace" in sh(rootfs.policy(small, workspace=workspace), "env")
    rootfs.build(tmp_path / "new", ["sh"], replace=True)
    assert sorted(os.listdir(tmp_path)) == ["new", "small", "workspace"]


def test_a_failure_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle, also by Ctrl-C: nothing is left, and an old root is what it was."""
    old = rootfs.build(tmp_path / "old", ["sh"])
    before = taken(Path(old))

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rootfs, "_copy", fail)
    for name, replace in (("new", False), ("old", True)):
        with pytest.raises(KeyboardInterrupt):
            rootfs.build(tmp_path / name, ["sh"], replace=replace)
    assert os.listdir(tmp_path) == ["old"]
    assert taken(Path(old)) == before


def test_a_source_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that isn't the one that was looked at, when it is copied, is an error."""
    (tmp_path / "file").write_text("before")
    look = rootfs._contents

    def change(made: Any) -> Any:
        found = look(made)
        (tmp_path / "file").write_text("after!!")
        return found

    monkeypatch.setattr(rootfs, "_contents", change)
    with pytest.raises(OSError, match="has changed in the meantime"):
        rootfs.build(tmp_path / "root", files={"/opt/file": tmp_path / "file"})
    assert os.listdir(tmp_path) == ["file"]


# ---- is it still what it was built from?


def test_check(tmp_path: Path) -> None:
    """Changed, new and gone sources are reported; a new time alone is no change."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("same", "touched", "changed", "gone"):
        (tree / name).write_text(name)
    (tree / "link").symlink_to("same")
    made = rootfs.build(tmp_path / "root", ["sh"], files={"/opt": tree})
    assert rootfs.check(made) == []
    os.utime(tree / "touched", (1, 1))
    assert rootfs.check(made) == []
    (tree / "changed").write_text("CHANGED")
    (tree / "gone").unlink()
    (tree / "more").write_text("")
    (tree / "link").unlink()
    (tree / "link").symlink_to("touched")
    assert rootfs.check(made) == [
        *(("/opt/changed", "changed"), ("/opt/gone", "gone"), ("/opt/link", "changed"), ("/opt/more", "new"))
    ]
    rootfs.build(made, ["sh"], files={"/opt": tree}, replace=True)
    assert rootfs.check(made) == []
    shutil.rmtree(tree)
    assert rootfs.check(made) == [(str(tree), "gone")]


def test_check_of_what_is_no_root(tmp_path: Path) -> None:
    """A directory without a manifest, and one with another's, are errors."""
    with pytest.raises(FileNotFoundError):
        rootfs.check(tmp_path)
    (tmp_path / ".nsbox-rootfs.json").write_text("[]")
    with pytest.raises(OSError, match="is no manifest"):
        rootfs.check(tmp_path)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Names of any bytes are copied, and noted."""
    tree = tmp_path / "tree"
    tree.mkdir()
    name = os.fsdecode(b"\xff\n name")
    (tree / name).write_text("x")
    made = rootfs.build(tmp_path / "root", files={"/opt": tree})
    assert os.listdir(f"{made}/opt") == [name]
    assert rootfs.check(made) == []
