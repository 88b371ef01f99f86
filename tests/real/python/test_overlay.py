"""Python(overlay=True): branches write wherever the policy lets commands write, and nothing of it stays."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.branches import layers_of

import nsbox
from nsbox import Bind, BindData, Policy, Python, RoBind, Sandbox, Tmpfs, UnavailableError, probe

CODE = """
import os
def tried(call, *args):
    try: return call(*args)
    except OSError as error: return error.errno
"""


@pytest.fixture
def py(box: Sandbox) -> Python:
    """A warm interpreter whose branches get overlays."""
    return box.python(overlay=True, setup=CODE)


def value(py: Python, code: str, **options: Any) -> Any:
    """Return the value of code in a branch."""
    result = py.run(code, **options)
    assert result.returncode == 0 and not result.why, result
    return result.value


def tree(path: Path) -> dict[str, str]:
    """Return the files below a directory, with their contents."""
    return {str(each.relative_to(path)): each.read_text() for each in path.rglob("*") if each.is_file()}


@pytest.mark.vm
def test_nothing_stays(py: Python, workspace: Path) -> None:
    """A branch changes, makes, renames and removes files, and sees all of that; the next one and the host don't."""
    (workspace / "sub").mkdir()
    for name in ("old", "other", "sub/file"):
        (workspace / name).write_text(name)
    before = tree(workspace)
    code = """
open("old", "a").write(" and more")
open("new", "w").write("x")
os.remove("other")
os.rename("sub/file", "sub/moved")
os.mkdir("made")
os.symlink("old", "link")
os.chmod("old", 0o600)
[open("old").read(), sorted(os.listdir()), os.listdir("sub"), open("link").read()]
"""
    names = ["link", "made", "new", "old", "sub"]
    for _ in range(2):  # each begins with what the host has
        assert value(py, code) == ["old and more", names, ["moved"], "old and more"]
        assert tree(workspace) == before and sorted(os.listdir(workspace)) == ["old", "other", "sub"]


def test_branches_at_the_same_time(py: Python, workspace: Path) -> None:
    """None sees what the others write meanwhile."""
    (workspace / "count").write_text("0")
    code = """
import time
number = int(open("count").read())
open("count", "w").write(str(number + 1))
open(f"by-{me}", "w").close()
time.sleep(0.05)
[open("count").read(), sorted(name for name in os.listdir() if name.startswith("by-"))]
"""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda me: value(py, code, inputs={"me": me}), range(24)))
    assert found == [["1", [f"by-{me}"]] for me in range(24)]
    assert tree(workspace) == {"count": "0"}


def test_what_the_host_changes(py: Python, workspace: Path) -> None:
    """Each branch begins with what is there then: files that were replaced, removed, or hadn't been there."""
    file = workspace / "file"
    code = "tried(lambda: open('file').read())"
    assert value(py, code) == errno.ENOENT
    for text in ("one", "two", "three"):
        (workspace / "next").write_text(text)
        (workspace / "next").rename(file)
        assert value(py, "1") == 1  # the parked branch was made before the change
        assert value(py, code) == text
    file.unlink()
    assert value(py, "1") == 1
    assert value(py, code) == errno.ENOENT


def test_what_the_interpreter_sees(workspace: Path, policy: Policy) -> None:
    """It can read the workspace, and can't write to it: what it writes would reach the host."""
    (workspace / "data").write_text("seen")
    setup = "seen = open('data').read()\nwritten = tried(open, 'new', 'w')\n"
    with Sandbox(policy) as box, box.python(overlay=True, setup=CODE + setup) as py:
        assert value(py, "[written, seen, tried(lambda: open('new', 'w').name)]") == [errno.EROFS, "seen", "new"]
        assert py.why_cold == ""
    assert os.listdir(workspace) == ["data"]


def test_what_it_doesnt_import(workspace: Path, policy: Policy) -> None:
    """Commands without an overlay write to the workspace. So each branch imports from there, in its overlay."""
    (workspace / "own_module.py").write_text("import os\nSEEN = os.path.exists('new')\n")
    setup = "import sys\nsys.path.insert(0, os.getcwd())\nimport own_module\nopen('new', 'w').close()\n"
    with Sandbox(policy) as box, box.python(overlay=True, setup=CODE + setup) as py:
        assert [value(py, "own_module.SEEN") for _ in range(2)] == [False] * 2
        assert "own_module.py" in py.why_cold
    assert os.listdir(workspace) == ["own_module.py"]


# ---- what the policy says about files in it


def test_what_is_hidden(workspace: Path) -> None:
    """It isn't there: by name, by pattern, as a directory, deep down, and when it comes later."""
    for name in (".env", "key.pem", "deep/er/secret", "kept/secret/x", "deep/er/plain"):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    deny = [workspace / name for name in (".env", "*.pem", "deep/er/secret", "kept/secret", "later")]
    with Sandbox(Policy.workspace(workspace, deny=deny)) as box, box.python(overlay=True, setup=CODE) as py:
        code = """
names = (".env", "key.pem", "deep/er/secret", "kept/secret", "kept/secret/x", "later", "deep/er/plain")
[[tried(lambda: open(name).read()) for name in names], *map(sorted, map(os.listdir, (".", "deep/er", "kept")))]
"""
        hidden = [errno.ENOENT] * 6
        assert value(py, code) == [[*hidden, "deep/er/plain"], ["deep", "kept"], ["plain"], []]
        (workspace / "later").write_text("secret")
        assert value(py, "1") == 1
        assert value(py, code) == [[*hidden, "deep/er/plain"], ["deep", "kept"], ["plain"], []]
        (workspace / "late.pem").write_text("secret")  # as a pattern says
        assert value(py, "tried(lambda: open('late.pem').read())") == errno.ENOENT
        assert value(py, "open('.env', 'w').write('mine'); open('.env').read()") == "mine"
    assert (workspace / ".env").read_text() == ".env"


def test_what_is_protected(workspace: Path) -> None:
    """A branch can write to it, since that is dropped."""
    (workspace / "fixed").mkdir()
    (workspace / "fixed/file").write_text("fixed")
    policy = Policy.workspace(workspace, read=[workspace / "fixed"])
    code = "[tried(lambda: open('fixed/file', 'a').write('!')), open('fixed/file').read()]"
    with Sandbox(policy) as box:
        assert value(box.python(overlay=True, setup=CODE), code) == [1, "fixed!"]
        assert value(box.python(setup=CODE), code) == [errno.EROFS, "fixed"]  # the control
    assert (workspace / "fixed/file").read_text() == "fixed"


@pytest.mark.parametrize(("home", "found"), [("private", ["new"]), ("private:kept", ["kept", "new"])])
def test_more_than_the_workspace(
    home: str, found: list[str], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every directory that the policy opens, a home that it names too. A file stays as it is, read-only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    probe(refresh=True)
    (tmp_path / "more").mkdir()
    (tmp_path / "file").write_text("file")
    policy = Policy.workspace(workspace, write=[tmp_path / "more", tmp_path / "file"], home=home)
    code = f"""
places = [{str(tmp_path / "more")!r}, os.path.expanduser("~"), "/tmp"]
for place in places: open(place + "/new", "w").close()
[[sorted(os.listdir(place)) for place in places[:2]], tried(open, {str(tmp_path / "file")!r}, "a")]
"""
    with Sandbox(policy) as box:
        box.shell("echo kept > ~/kept", check=True)
        py = box.python(overlay=True, setup=CODE)
        for _ in range(2):
            assert value(py, code) == [[["new"], found], errno.EROFS]
        assert box.shell("ls ~").stdout == "kept\n"
    assert os.listdir(tmp_path / "more") == []
    assert (tmp_path / "file").read_text() == "file"
    monkeypatch.undo()
    probe(refresh=True)


def test_other_mounts_in_it(workspace: Path, tmp_path: Path) -> None:
    """What shows something else in a place lies on the overlay, and is what it was."""
    for name in ("data", "extra", "fresh", "inner"):
        (workspace / name).mkdir()
        (workspace / name / "below").touch()
    (workspace / "text").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("other")
    at = str(workspace)
    base = [RoBind("/usr", "/usr"), *(nsbox.Symlink(f"usr/{name}", f"/{name}") for name in ("bin", "lib", "lib64"))]
    prefix = os.path.realpath(sys.prefix)
    base += [RoBind(path, path) for path in dict.fromkeys((prefix, os.path.realpath(sys.base_prefix)))]
    policy = Policy.layers(
        Tmpfs("/tmp", mode=0o1777),  # first: the interpreter may lie there
        *base,
        nsbox.Proc("/proc"),
        nsbox.Dev("/dev"),
        Bind(at, "/w"),
        RoBind(str(tmp_path / "other"), "/w/data"),
        Bind(str(tmp_path / "other"), "/w/extra"),
        BindData("/w/text", b"text", mode=0o644, read_only=True),
        Tmpfs("/w/fresh", mode=0o1777),
        RoBind(str(tmp_path / "other"), "/w/fresh/on-it"),
        nsbox.RemountRo("/"),
        nested=os.geteuid() == 0,  # root's commands are the kernel's uid 0 here
    )
    code = """
seen = [sorted(os.listdir("/w/" + name)) for name in ("", "data", "extra", "fresh", "inner", "fresh/on-it")]
wrote = [tried(lambda: open(f"/w/{name}/new", "w").write("1")) for name in ("", "data", "extra", "fresh", "fresh/on-it")]
[seen, wrote, open("/w/text").read()]
"""
    inside = ["data", "extra", "fresh", "inner", "text"]
    with Sandbox(policy) as box, box.python(overlay=True, setup=CODE, python=sys.executable) as py:
        for _ in range(2):
            seen, wrote, text = value(py, code, cwd="/")
            assert seen == [inside, ["file"], ["file"], ["on-it"], ["below"], ["file"]]
            assert wrote == [1, errno.EROFS, 1, 1, errno.EROFS]
            assert text == "text"
    assert os.listdir(tmp_path / "other") == ["file"]
    assert sorted(os.listdir(workspace)) == inside


def test_owners_and_modes(py: Python, workspace: Path) -> None:
    """The workspace and what a branch changes look as they would without an overlay."""
    (workspace / "program").touch(mode=0o755)
    (workspace / "private").mkdir(mode=0o700)
    workspace.chmod(0o751)
    code = """
os.utime("program")
[[oct(os.stat(name).st_mode), os.stat(name).st_uid == os.getuid()] for name in (".", "program", "private")]
"""
    assert value(py, code) == [["0o40751", True], ["0o100755", True], ["0o40700", True]]


# ---- how much


def test_a_full_overlay(workspace: Path) -> None:
    """A branch may write as much as tmp_size says, in all its overlays together; then ENOSPC, for it alone."""
    code = """
def fill(name):
    with open(name, "wb", buffering=0) as file:
        for count in range(100):
            file.write(bytes(1 << 16))
    return count
[tried(fill, "big"), os.stat("big").st_size <= 1 << 20, tried(fill, os.path.expanduser("~/big"))]
"""
    policy = Policy.workspace(workspace, tmp_size="1M")
    with Sandbox(policy) as box, box.python(overlay=True, setup=CODE) as py:
        for _ in range(2):
            assert value(py, code) == [errno.ENOSPC, True, errno.ENOSPC]
    assert os.listdir(workspace) == []


def test_many_files(workspace: Path) -> None:
    """Empty files count as well: without that, they would take up memory without end."""
    code = """
def many():
    for count in range(100_000): open(f"file-{count}", "w").close()
[tried(many), len(os.listdir()) < 2000]
"""
    policy = Policy.workspace(workspace, tmp_size="1M")
    with Sandbox(policy) as box, box.python(overlay=True, setup=CODE) as py:
        assert value(py, code) == [errno.ENOSPC, True]


# ---- where there can be none


@pytest.mark.parametrize("wish", [None, 1, "yes"])
def test_no_wish(box: Sandbox, wish: Any) -> None:
    """Only a bool is one."""
    with pytest.raises(TypeError, match=r"overlay is .*, must be a bool"):
        box.python(overlay=wish)


def test_the_whole_file_system() -> None:
    """Nothing can lie on that."""
    with Sandbox(Policy.host()) as box, pytest.raises(UnavailableError, match="overlay=True"):
        box.python(overlay=True).start()


def test_a_link_in_what_is_hidden(workspace: Path) -> None:
    """A path that leads elsewhere by then hides nothing: there is no branch, and the error says why."""
    (workspace / "a").mkdir()
    (workspace / "a/secret").write_text("secret")
    policy = Policy.workspace(workspace, deny=[workspace / "a/secret"])
    _, layers = layers_of(policy)
    with Sandbox(policy) as box:
        py = box.python(overlay=True, setup=CODE, stock=0)
        assert value(py, "os.listdir('a')") == []
        (workspace / "a").rename(workspace / "b")
        (workspace / "a").symlink_to("b")
        with pytest.raises(UnavailableError, match=r"overlay=True: .* leads by a link to .*/b"):
            py.run("1")
        with pytest.raises(nsbox.SetupError, match="a symlink is on the way") as caught:
            layers.make()  # after all looks at the path
        assert caught.value.errno == errno.ELOOP and str(workspace) in str(caught.value)
        (workspace / "a").unlink()
        (workspace / "b").rename(workspace / "a")
        assert value(py, "os.listdir('a')") == []
    layers.close()
    with pytest.raises(nsbox.SetupError, match="the interpreter is closed"):
        layers.make()


def test_without_descriptors(workspace: Path, policy: Policy) -> None:
    """Where too few are free, that is what the error says, and nothing is left open."""
    _, layers = layers_of(policy)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.listdir("/proc/self/fd")
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(3):
            with pytest.raises(OSError) as caught:
                layers.make()
            assert caught.value.errno == errno.EMFILE
            os.close(taken.pop())
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.listdir("/proc/self/fd") == before
    for owner in layers.make():
        owner.close()
    layers.close()


def test_marks_of_overlayfs(workspace: Path, policy: Policy) -> None:
    """Files that overlayfs would mistake for its own, and hide, are an error that names them."""
    os.mknod(workspace / "gone", 0o020000)
    with Sandbox(policy) as box, pytest.raises(UnavailableError, match=r"overlayfs would hide files of .*gone"):
        box.python(overlay=True).start()


MOUNTED = """
import os, subprocess, sys, nsbox
at = sys.argv[1]
os.makedirs(f"{at}/work/inner")
subprocess.run(["mount", "-t", "tmpfs", "none", f"{at}/work/inner"], check=True)
with nsbox.Sandbox(nsbox.Policy.workspace(f"{at}/work")) as box:
    print(box.python().run("1").value)
    try: box.python(overlay=True).start()
    except nsbox.UnavailableError as error: print(error)
"""
ON_OVERLAY = """
import contextlib, os, subprocess, sys, nsbox
at = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "none", at], check=True)
for name in ("lower", "upper", "work", "merged"): os.mkdir(f"{at}/{name}")
open(f"{at}/lower/file", "w").write("lower")
options = f"lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work,userxattr"
subprocess.run(["mount", "-t", "overlay", "-o", options, "none", f"{at}/merged"], check=True)
policy = nsbox.Policy.workspace(f"{at}/merged", deny=[f"{at}/merged/secret*"])
open(f"{at}/merged/secret-1", "w").close()
with nsbox.Sandbox(policy) as box, contextlib.suppress(nsbox.UnavailableError), box.python(overlay=True) as py:
    print(py.run("import os; open('new', 'w'); open('file', 'a').write('!'); [sorted(os.listdir()), open('file').read()]").value)
print(sorted(os.listdir(f"{at}/merged")), open(f"{at}/merged/file").read())
"""


@pytest.fixture
def among_mounts(tmp_path: Path) -> Iterator[Any]:
    """Run a program in a mount namespace of its own, in which it may mount; return what it prints."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare (util-linux)")
    options = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]

    def run(code: str) -> str:
        done = subprocess.run(
            [unshare, *options, sys.executable, "-P", "-c", code, tmp_path], capture_output=True, text=True
        )
        assert done.stderr == ""
        return done.stdout

    yield run


def test_what_is_mounted_in_it(among_mounts: Any) -> None:
    """An overlay would show what lies beneath: an error says so, and names it."""
    said = among_mounts(MOUNTED).splitlines()
    assert said[0] == "1" and "inner is mounted in" in said[1] and "unmount it" in said[1]


def test_on_an_overlay(among_mounts: Any) -> None:
    """A container's root is one: one more lies on it. There, root's commands can't have other ids, so root has none."""
    seen = [] if os.geteuid() == 0 else ["[['file', 'new'], 'lower!']"]
    assert among_mounts(ON_OVERLAY).splitlines() == [*seen, "['file', 'secret-1'] lower"]


# ---- what is replaced on the host


@pytest.mark.parametrize("overlay", [False, True])
def test_another_workspace(workspace: Path, policy: Policy, overlay: bool) -> None:
    """A directory that has got the name of the old one is what branches see, as other commands do."""
    (workspace / "old").touch()
    with Sandbox(policy) as box, box.python(overlay=overlay, setup=CODE) as py:
        assert value(py, "os.listdir('.')") == ["old"]
        workspace.rename(workspace.with_name("moved"))
        workspace.mkdir()
        (workspace / "new").touch()
        for _ in range(2):
            assert value(py, "os.listdir('.')") == ["new"]


@pytest.mark.parametrize("overlay", [False, True])
def test_a_workspace_that_is_gone(workspace: Path, policy: Policy, overlay: bool) -> None:
    """It is an error that names it; a new one is as good as ever."""
    with Sandbox(policy, stock=0) as box, box.python(overlay=overlay, setup=CODE) as py:
        assert value(py, "os.listdir('.')") == []
        workspace.rmdir()
        with pytest.raises((nsbox.NsboxError, OSError), match=str(workspace)):
            py.run("1")
        workspace.mkdir()
        assert value(py, "os.listdir('.')") == []


LATER = """
import os, subprocess, sys, nsbox
at = sys.argv[1]
os.makedirs(f"{at}/work/inner")
with nsbox.Sandbox(nsbox.Policy.workspace(f"{at}/work")) as box:
    py = box.python()
    print(py.run("import os; os.listdir('inner')").value)
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{at}/work/inner"], check=True)
    open(f"{at}/work/inner/mounted", "w").close()
    print(py.run("import os; os.listdir('inner')").value)
"""


def test_a_mount_that_comes_later(among_mounts: Any) -> None:
    """The next branch sees it."""
    assert among_mounts(LATER).splitlines() == ["[]", "['mounted']"]
