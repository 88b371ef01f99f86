"""can_read(), can_write(), resolve(): what they say is what the kernel then does, for any path that hypothesis makes up."""

from __future__ import annotations

import contextlib
import json
import os
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import nsbox
from nsbox import AccessError, PathRule, Policy

ATTEMPTS = """
import json, os, sys
answers = []
for path in json.load(sys.stdin):
    answer = {}
    for name, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
        try:
            fd = os.open(path, flags)
        except OSError as error:
            answer[name] = error.errno
        else:
            st = os.fstat(fd)
            answer[name] = [st.st_dev, st.st_ino]
            os.close(fd)
    answers.append(answer)
json.dump(answers, sys.stdout)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A writable and a readable directory with others in them, links of all kinds, and something that is outside."""
    for name in ("ws/sub/deep", "ws/ro/in", "ws/hidden/in", "lib/in", "lib/secret", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
        (tmp_path / name / "File").write_text(name)
    links = {
        "ws/to-out": tmp_path / "outside",
        "ws/to-hidden": "hidden/in",
        "ws/to-ro": "sub/../ro",
        "ws/to-lib": tmp_path / "lib",
        "ws/loop": "loop",
        "ws/chain": "to-lib/in/file",
        "ws/sub/up": "../..",
        "ws/system": "/etc/nsswitch.conf",
        "ws/nowhere": "missing/x",
        "lib/back": tmp_path / "ws",
        "outside/in": tmp_path / "ws/sub",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    return tmp_path


@pytest.fixture
def policy(tree: Path) -> Policy:
    return Policy.workspace(
        tree / "ws",
        read=[tree / "ws/ro", tree / "lib"],
        deny=[tree / "ws/hidden", tree / "lib/secret", tree / "ws/later"],
    )


def attempt(policy: Policy, paths: list[str]) -> list[dict[str, object]]:
    """Try to open each inside."""
    done = nsbox.run(
        ["/usr/bin/python3", "-I", "-c", ATTEMPTS],
        input=json.dumps(paths),
        stdout=subprocess.PIPE,
        text=True,
        policy=policy,
        check=True,
    )
    return json.loads(done.stdout)


def same(policy: Policy, path: str, write: bool, found: object) -> bool:
    """Say if the answer for a path is what an attempt has come to. Only a file that this process finds counts."""
    says = policy.can_write(path) if write else policy.can_read(path)
    if isinstance(found, list):
        with contextlib.suppress(OSError, AccessError):
            st = os.stat(policy.resolve(path, write=write))
            return says and found == [st.st_dev, st.st_ino]
        return not says  # it is the sandbox's own
    name = os.strerror(found)
    if name in ("Permission denied", "Read-only file system"):
        return not says or not os.access(policy.resolve(path), os.W_OK if write else os.R_OK)
    if name == "Too many levels of symbolic links":
        return True
    if name in ("No such file or directory", "Not a directory"):
        if not says:
            return True
        try:
            os.stat(os.path.join(policy.workdir, path))
        except OSError:
            return True  # it isn't there for us either
        return False
    return name == "Is a directory" or (name == "Text file busy" and not says)


NAMES = (
    "ws",
    "sub",
    "deep",
    "ro",
    "in",
    "hidden",
    "lib",
    "secret",
    "outside",
    "file",
    "File",
    "FILE",
    "missing",
    "later",
    "..",
    ".",
    "",
)
LINKS = ("to-out", "to-hidden", "to-ro", "to-lib", "loop", "chain", "up", "system", "nowhere", "back")
ABSOLUTE = (
    "/etc/nsswitch.conf",
    "/etc/shadow",
    "/etc/../etc/hosts",
    "/usr/bin/env",
    "/tmp",
    "/",
    "/proc/self/status",
    "/dev/null",
    "/bin/sh",
    "/root",
)


def test_answers_and_attempts_agree(policy: Policy, tree: Path) -> None:
    """For any path through links, "..", missing and hidden names, read-only and other directories."""
    part = st.sampled_from([*NAMES, *LINKS])
    relative = st.lists(part, min_size=1, max_size=7).map("/".join)
    below = relative.map(lambda path: f"{tree}/ws/{path}" if len(path) % 2 else f"{tree}/{path}")
    made = st.lists(
        st.one_of(relative.filter(bool), below, st.sampled_from(ABSOLUTE)), min_size=100, max_size=150, unique=True
    )

    @settings(
        max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    @given(made)
    def check(paths: list[str]) -> None:
        for path, answer in zip(paths, attempt(policy, paths), strict=True):
            for name, write in (("read", False), ("write", True)):
                try:
                    agrees = same(policy, path, write, answer[name])
                except AccessError as error:  # a chain without an end
                    agrees = "without an end" in str(error) and isinstance(answer[name], int)
                assert agrees, (path, name, answer[name])

    check()


@pytest.mark.parametrize(
    ("path", "read", "write"),
    [
        ("sub/file", True, True),
        ("sub/missing/too", True, True),
        ("sub/FILE", True, True),  # another name, on a file system that tells cases apart
        ("ro/in/file", True, False),
        ("to-ro/in/file", True, False),
        ("hidden/in/file", False, False),
        ("to-hidden/file", False, False),
        ("later", False, False),
        ("to-out/file", False, False),
        ("../outside/file", False, False),
        ("sub/up/outside/file", False, False),
        ("/etc/passwd", True, False),
        pytest.param("/etc/shadow", False, False, marks=pytest.mark.as_root("it isn't hidden from who can't read it")),
        ("/tmp/x", False, False),
        (".", True, True),
        ("..", False, False),
    ],
)
def test_answers(policy: Policy, path: str, read: bool, write: bool) -> None:
    """What can be read and written, by name."""
    assert (policy.can_read(path), policy.can_write(path)) == (read, write)


def test_refusals_say_what_is_allowed(policy: Policy, tree: Path) -> None:
    """The path, what is wrong with it, and which paths would do."""
    with pytest.raises(AccessError) as raised:
        policy.resolve("to-out/file")
    assert str(raised.value).startswith("to-out/file is outside of the sandbox")
    assert f"readable: {tree}/ws, {tree}/ws/ro, {tree}/lib" in str(raised.value)
    with pytest.raises(AccessError, match=f"ro/x is read-only in the sandbox; writable: {tree}/ws$"):
        policy.resolve("ro/x", write=True)
    with pytest.raises(PermissionError, match="is hidden in the sandbox"):
        policy.resolve(tree / "ws/hidden")
    assert policy.list_readable() == [f"{tree}/ws", f"{tree}/ws/ro", f"{tree}/lib"]
    assert policy.list_writable() == [f"{tree}/ws"]


@pytest.mark.parametrize("wrong", ["", "a\0b"])
def test_no_paths(policy: Policy, wrong: str) -> None:
    """What no file can be called is a ValueError, not an answer."""
    with pytest.raises(ValueError, match="must not be empty or have a NUL byte"):
        policy.can_read(wrong)
    with pytest.raises(TypeError):
        policy.can_read(b"bytes")  # type: ignore[arg-type]


def test_rules(tree: Path) -> None:
    """Suffixes in any case, and sizes; the innermost rule decides."""
    rules = [PathRule("all", str(tree / "ws"), (".md",), 10), PathRule("more", str(tree / "ws/ro"), (".tar.gz",))]
    policy = Policy.workspace(tree / "ws", read=[tree / "ws/ro"], paths=rules)
    policy.check_suffix("a/B.MD")
    policy.check_suffix("to-ro/x.tar.gz")
    with pytest.raises(AccessError, match=r"x.txt has no suffix that all takes: .md"):
        policy.check_suffix("x.txt")
    with pytest.raises(AccessError, match=r"has no suffix that more takes: .tar.gz"):
        policy.check_suffix("ro/x.gz")
    (tree / "ws/big.md").write_text("x" * 11)
    with pytest.raises(AccessError, match="is too large: 11 bytes; all takes 10 at most"):
        policy.check_size("big.md")
    policy.check_size("ro/in/file")
    with pytest.raises(FileNotFoundError):
        policy.check_size("missing.md")


def test_other_policies(tmp_path: Path) -> None:
    """host(): all of the machine; layers(): as the ops have it, under the names inside."""
    assert Policy.host().can_write("/etc/passwd")
    assert not Policy.host().can_read("/proc/self")  # the sandbox's own
    (tmp_path / "x").write_text("x")
    ops = (
        nsbox.Tmpfs("/"),
        nsbox.RoBind("/usr", "/usr"),
        nsbox.Bind(tmp_path, "/data"),
        nsbox.Symlink("data", "/link"),
    )
    policy = Policy.layers(*ops, nsbox.RoBind(tmp_path, "/data/ro") if (tmp_path / "ro").mkdir() is None else ops[0])
    assert policy.resolve("/link/x", write=True) == tmp_path / "x"
    assert policy.resolve("/data/ro/x") == tmp_path / "x"
    assert not policy.can_write("/data/ro/x")
    assert not policy.can_read("/etc/passwd")


def test_a_sandbox_is_asked_the_same(policy: Policy, tree: Path) -> None:
    """Its questions are about the policy that it has now."""
    with nsbox.Sandbox(policy) as box:
        assert box.can_read("sub/file")
        assert not box.can_write("ro/file")
        assert box.resolve("sub/../sub/file") == tree / "ws/sub/file"
        box.update(policy.with_(deny=[tree / "ws/sub"]))
        assert not box.can_read("sub/file")
        assert box.list_writable() == [f"{tree}/ws"]


def test_names_of_all_kinds(policy: Policy, tree: Path) -> None:
    """Newlines, quotes and bytes that are no UTF-8."""
    for name in ("a\nb", "'\"", os.fsdecode(b"\xff\xfe"), string.punctuation.replace("/", "")):
        (tree / "ws" / name).write_text("x")
        assert policy.can_write(name)
        assert policy.resolve(name).read_text() == "x"
        assert attempt(policy, [f"{tree}/ws/{name}"])[0]["read"] == [
            os.stat(tree / "ws" / name).st_dev,
            os.stat(tree / "ws" / name).st_ino,
        ]


OWN = ("/tmp/nsbox-x", "/dev/null", "/dev/shm/x", "/proc/self/status", "/proc/version", "/home/x")
SYSTEM = (
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/usr/bin/env",
    "/bin/sh",
    "/usr/lib/os-release",
)
ABSENT = ("/var/log", "/root/.bashrc", "/sys/kernel/notes", "/run/utmp")


def test_typical_paths(tree: Path) -> None:
    """The questions are about this machine's files, and true of commands. File tools open only what the policy names.

    Control: a command can write to the sandbox's own /tmp and HOME. That is no file of this machine, as can_write() says.
    """
    workspace = tree / "ws"
    with nsbox.Sandbox(Policy.workspace(workspace)) as box:
        for path in SYSTEM:
            assert box.can_read(path) and not box.can_write(path), path
            assert box.exec("cat", [path]).returncode == 0 != box.exec("touch", [path]).returncode, path
            with pytest.raises(AccessError, match="in no directory that the policy names"):
                box.read(path)
        for path in ABSENT:
            assert not box.can_read(path) and not box.can_write(path), path
            assert box.exec("cat", [path]).returncode != 0, path
        home = box.shell("echo ~").stdout.strip()
        for path in (*OWN, f"{home}/x"):
            assert not box.can_read(path) and not box.can_write(path), path
        for path in ("/tmp/nsbox-x", f"{home}/x"):
            assert box.exec("touch", [path]).returncode == 0, path
        assert not os.path.lexists("/tmp/nsbox-x")
        for path in (workspace / "sub/file", workspace / "new"):
            assert box.can_read(path) and box.can_write(path)
            assert box.exec("touch", [str(path)]).returncode == 0 and path.exists()
            assert box.read(path) == path.read_text()
