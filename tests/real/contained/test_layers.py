"""Policy.layers(): what each op does to what a command sees, and to the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import nsbox
from nsbox import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Details,
    Dev,
    DevBind,
    Dir,
    File,
    Hostname,
    Mask,
    Mqueue,
    Op,
    Overlay,
    Policy,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    SetupError,
    Symlink,
    Tmpfs,
    TmpOverlay,
)

SYSTEM: tuple[Op, ...] = (
    *(
        RoBind(f"/{n}", f"/{n}")
        for n in ("usr", "bin", "lib", "lib64")
        if os.path.isdir(f"/{n}") and not os.path.islink(f"/{n}")
    ),
    *(Symlink(os.readlink(f"/{n}"), f"/{n}") for n in ("bin", "lib", "lib64") if os.path.islink(f"/{n}")),
)


def shell(script: str, *ops: Op, **wishes: object) -> str:
    """Run a script under these layers on top of the system's; return its output."""
    policy = Policy.layers(*SYSTEM, Dev("/dev"), *ops, **wishes)
    done = nsbox.run(
        ["/bin/sh", "-c", script], policy=policy, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def tree(root: Path, **files: str) -> Path:
    root.mkdir()
    for name, text in files.items():
        (root / name).write_text(text)
    return root


# ---- overlays


def test_throw_away_overlay(tmp_path: Path) -> None:
    """TmpOverlay: changes, deletions and new files are seen inside, and are gone afterwards."""
    lower = tree(tmp_path / "lower", a="one", b="two")
    script = "echo changed > /o/a; rm /o/b; echo new > /o/c; mkdir /o/d; ls /o; cat /o/a"
    assert shell(script, TmpOverlay((str(lower),), "/o")).split() == ["a", "c", "d", "changed"]
    assert sorted(os.listdir(lower)) == ["a", "b"]
    assert (lower / "a").read_text() == "one"


def test_writable_overlay(tmp_path: Path) -> None:
    """Overlay: changes go to the upper directory on the host, and the lower one stays; the next sandbox sees them again."""
    lower, upper, work = (tree(tmp_path / name) for name in ("lower", "upper", "work"))
    (lower / "a").write_text("one")
    overlay = Overlay((str(lower),), "/o", str(upper), str(work))
    shell("echo two > /o/a; echo new > /o/b", overlay)
    assert (lower / "a").read_text() == "one"
    assert (upper / "a").read_text() == "two\n"
    assert (upper / "b").read_text() == "new\n"
    assert shell("cat /o/a /o/b", overlay) == "two\nnew\n"


def test_read_only_overlay(tmp_path: Path) -> None:
    """RoOverlay: the layers from the bottom up, and no change."""
    below, above = tree(tmp_path / "below", a="below", b="below"), tree(tmp_path / "above", a="above")
    script = "cat /o/a /o/b; echo; touch /o/x 2>/dev/null || echo read-only"
    assert shell(script, RoOverlay((str(below), str(above)), "/o")) == "abovebelow\nread-only\n"


def test_ten_layers(tmp_path: Path) -> None:
    """As many layers as an overlay may have, with names that need escaping in mount options."""
    layers = [tree(tmp_path / f"l,a:y\\er {i}", **{f"f{i}": str(i), "top": str(i)}) for i in range(10)]
    assert shell("ls /o | wc -l; cat /o/top", TmpOverlay(tuple(map(str, layers)), "/o")).split() == ["11", "9"]


def test_overlay_of_the_system(tmp_path: Path) -> None:
    """/usr itself as the lower layer: its owner may "install" into it, and that is gone afterwards."""
    script = (
        "(echo echo ran > /usr/bin/nsbox-new && chmod +x /usr/bin/nsbox-new) 2>/dev/null && nsbox-new || echo refused"
    )
    assert shell(script, TmpOverlay(("/usr",), "/usr")) == (
        "ran\n" if os.stat("/usr/bin").st_uid == os.geteuid() else "refused\n"
    )
    assert not os.path.exists("/usr/bin/nsbox-new")


# ---- binds


def test_bind_and_ro_bind(tmp_path: Path) -> None:
    """Bind is written through to the host, RoBind isn't writable; later ops cover earlier ones."""
    data = tree(tmp_path / "data", f="x")
    script = "echo y > /w/g; (echo z > /r/h) 2>/dev/null || echo read-only; ls /r"
    assert shell(script, Bind(str(data), "/w"), RoBind(str(data), "/r")).split() == ["read-only", "f", "g"]
    assert (data / "g").read_text() == "y\n"
    assert shell("ls -A /w", Bind(str(data), "/w"), Tmpfs("/w")) == ""


def test_bind_of_a_file(tmp_path: Path) -> None:
    """Files are bound as files; their content is the host's."""
    data = tree(tmp_path / "data", f="content")
    assert shell("cat /etc/one; echo more >> /etc/one", Bind(str(data / "f"), "/etc/one")) == "content"
    assert (data / "f").read_text() == "contentmore\n"


def test_bind_takes_submounts_along(tmp_path: Path) -> None:
    """A read-only bind of /dev is recursive, and its submounts are read-only too."""
    script = "ls -d /d/pts /d/shm; (echo x > /d/shm/nsbox-test) 2>/dev/null || echo read-only"
    assert shell(script, RoBind("/dev", "/d")).split() == ["/d/pts", "/d/shm", "read-only"]


def test_devices_need_dev_bind(tmp_path: Path) -> None:
    """Device nodes work through DevBind, and not through Bind."""
    script = "for p in /a/null /b/null; do (echo x > $p) 2>/dev/null && echo works || echo refused; done"
    assert shell(script, DevBind("/dev", "/a"), Bind("/dev", "/b")).split() == ["works", "refused"]


def test_bind_fd_of_a_file(tmp_path: Path) -> None:
    """BindFd binds a file that has no name any more, too."""
    path = tmp_path / "f"
    path.write_text("nameless")
    with path.open() as file:
        assert shell("cat /x/f", Dir("/x"), BindFd(file.fileno(), "/x/f", read_only=True)) == "nameless"


def test_optional_binds(tmp_path: Path) -> None:
    """optional=True: bwrap's --bind-try; a missing source leaves no mount point either."""
    assert shell("ls /x", Dir("/x"), RoBind("/no/such", "/x/y", optional=True)) == ""


# ---- files


def test_files_directories_links(tmp_path: Path) -> None:
    """File, BindData, Dir, Symlink and Chmod make what they say, whatever the caller's umask."""
    ops = (
        Dir("/x", 0o700),
        File("/x/f", b"bytes", 0o640),
        BindData("/x/d", b"data", 0o604),
        BindData("/x/r", b"", 0o600, read_only=True),
        Symlink("f", "/x/l"),
        Dir("/x/deep/er"),
        Chmod("/x/deep", 0o711),
    )
    before = os.umask(0o077)
    try:
        out = shell(
            "stat -c '%a %n' /x /x/f /x/d /x/deep /x/deep/er; cat /x/l /x/d; echo z >> /x/d; (echo z > /x/r) 2>/dev/null || echo no",
            *ops,
        )
    finally:
        os.umask(before)
    lines = out.splitlines()
    assert lines[:5] == ["700 /x", "640 /x/f", "604 /x/d", "711 /x/deep", "755 /x/deep/er"]
    assert lines[5:] == ["bytesdatano"]


def test_contents_from_a_descriptor(tmp_path: Path) -> None:
    """File and BindData read a descriptor to its end; a pipe as well, of more than it holds at once."""
    path = tmp_path / "f"
    path.write_bytes(os.urandom(300_000))
    import hashlib

    with path.open("rb") as file:
        out = shell("sha256sum < /x", File("/x", file.fileno()))
    assert out.split()[0] == hashlib.sha256(path.read_bytes()).hexdigest()
    read, write = os.pipe()
    os.write(write, b"through a pipe")
    os.close(write)
    try:
        assert shell("cat /x", BindData("/x", read)) == "through a pipe"
    finally:
        os.close(read)


def test_symlink_that_is_there_already(tmp_path: Path) -> None:
    """The very same link again is fine; another one, or a file, in its place is an error."""
    assert shell("readlink /l", Symlink("a", "/l"), Symlink("a", "/l")) == "a\n"
    for other in (Symlink("b", "/l"), Dir("/l")):
        with pytest.raises(SetupError):
            shell("true", other, Symlink("a", "/l"))


def test_a_large_file(tmp_path: Path) -> None:
    """Contents of 10 MB."""
    assert shell("wc -c < /x", File("/x", bytes(10 << 20))).strip() == str(10 << 20)


# ---- file systems


def test_tmpfs_size_and_mode() -> None:
    """A tmpfs has the size and the mode that it was given."""
    out = shell(
        "stat -f -c '%b %S' /t; stat -c %a /t; head -c 70000 /dev/zero > /t/x 2>/dev/null || echo full",
        Tmpfs("/t", size=65536, mode=0o1770),
        Dev("/dev"),
    )
    blocks, size, mode, full = out.split()
    assert int(blocks) * int(size) == 65536
    assert (mode, full) == ("1770", "full")


def test_remount_ro(tmp_path: Path) -> None:
    """RemountRo makes one mount read-only: not what is mounted below it."""
    script = "(touch /t/x) 2>/dev/null || echo ro; touch /t/in/x && echo rw"
    assert shell(script, Tmpfs("/t"), Tmpfs("/t/in"), RemountRo("/t")).split() == ["ro", "rw"]


def test_proc_is_the_sandboxs() -> None:
    """Proc shows the sandbox's processes; without it /proc isn't there."""
    assert shell("cat /proc/1/comm; ls -d /proc/[0-9]*| wc -l", Proc("/proc")).split()[0] == "nsbox-init"
    assert shell("test -e /proc || echo none") == "none\n"
    assert shell("cat /elsewhere/1/comm", Proc("/elsewhere")) == "nsbox-init\n"


def test_mqueue() -> None:
    """Mqueue is the message queue file system of the sandbox's own ipc namespace."""
    assert (
        shell(
            "ls -A /mq; grep ' /mq ' /proc/self/mountinfo | grep -c mqueue",
            Proc("/proc"),
            Mqueue("/mq"),
            unshare={"ipc"},
        )
        == "1\n"
    )


def test_mask(tmp_path: Path) -> None:
    """Mask hides a file and a directory; optional ones may be missing, others not."""
    data = tree(tmp_path / "data", f="secret")
    (data / "d").mkdir()
    (data / "d" / "g").write_text("secret")
    ops = (Bind(str(data), "/x"), Mask("/x/f"), Mask("/x/d"), Mask("/x/none", optional=True))
    assert "secret" not in shell("cat /x/f; ls /x/d; cat /x/d/g; true", *ops)
    with pytest.raises(SetupError):
        shell("true", Bind(str(data), "/x"), Mask("/x/none"))
    assert (data / "f").read_text() == "secret"


def test_hostname() -> None:
    """Hostname as an op."""
    assert shell("hostname", Hostname("layered"), unshare={"uts"}) == "layered\n"


def test_dev_has_the_usual() -> None:
    """Dev at another place, twice."""
    script = "for d in /dev /other; do echo x > $d/null && head -c 3 $d/zero | wc -c; ls $d | tr '\\n' ' '; echo; done"
    lines = shell(script, Dev("/other")).splitlines()
    usual = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert lines == ["3", usual + " ", "3", usual + " "]


def test_the_same_place_many_times(tmp_path: Path) -> None:
    """A hundred mounts on one place: the last one counts."""
    assert shell("cat /x/n", *(op for i in range(100) for op in (Tmpfs("/x"), File("/x/n", str(i).encode())))) == "99"


def test_a_thousand_binds(tmp_path: Path) -> None:
    """A thousand read-only binds, each with its own content."""
    source = tree(tmp_path / "source")
    for i in range(1000):
        (source / str(i)).write_text(str(i))
    out = shell("cat /x/7 /x/999; ls /x | wc -l", *(RoBind(str(source / str(i)), f"/x/{i}") for i in range(1000)))
    assert out.split() == ["79991000"]


def test_root_bound_over_and_over(tmp_path: Path) -> None:
    """The host's root as the first layer, and single places of it covered."""
    data = tree(tmp_path / "data", f="x")
    policy = Policy.layers(
        RoBind("/", "/"), Dev("/dev"), Proc("/proc"), Tmpfs("/tmp"), Bind(str(data), str(data)), unshare={"net", "ipc"}
    )
    done = nsbox.run(
        ["sh", "-c", "cat f; touch g; ls /tmp | head -1; touch /etc/x"],
        policy=policy,
        cwd=data,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("x")
    assert "Read-only" in done.stderr
    assert (data / "g").exists()


def test_read_only_root_with_files_in_it(tmp_path: Path) -> None:
    """The root can be made read-only right after files were made in it, however many; a hundred times.

    (A process of the set-up that holds a copy of a descriptor open for writing would make that EBUSY.)
    """
    for count in range(0, 100, 2):
        files = [File(f"/file{i}", b"x" * 50_000) for i in range(count)]
        policy = Policy.layers(*SYSTEM, *files, RemountRo("/"))
        for _ in range(4):
            assert nsbox.run(["true"], policy=policy, cwd="/").returncode == 0


@pytest.mark.parametrize("seccomp", ["default", "hardened"])
def test_capabilities_behind_a_filter(seccomp: str) -> None:
    """Namespaces that the command is to have power over are made before the filter that refuses to make any."""
    details = Details(capabilities=("CAP_NET_ADMIN", "CAP_SYS_ADMIN"))
    policy = Policy.layers(RoBind("/", "/"), Proc("/proc"), details=details, unshare={"net", "uts"}, seccomp=seccomp)
    script = "grep CapEff /proc/self/status; unshare -U true 2>/dev/null || echo refused"
    done = nsbox.run(["sh", "-c", script], policy=policy, cwd="/", capture_output=True, text=True)
    assert done.stdout == f"CapEff:\t{1 << 12 | 1 << 21:016x}\nrefused\n"
