"""What can be read and written where, in a workspace on a Mac."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from nsbox_darwin import allowed, attempt, control, refused

import nsbox

pytestmark = pytest.mark.darwin

READ = "print(open(args[0]).read(), end='')"
WRITE = "open(args[0], 'a').write('written')"


def test_contained_by_seatbelt(policy: nsbox.Policy) -> None:
    """The backend is seatbelt, and the command knows of no other id or directory than the caller."""
    with nsbox.Popen(["/bin/pwd"], policy=policy, stdout=nsbox.PIPE, text=True) as child:
        assert child.communicate()[0].strip() == policy.workdir
    assert child.sandbox.backend == "seatbelt"
    assert child.sandbox.enforced


def test_probe_and_explain(policy: nsbox.Policy) -> None:
    """This machine says what it is, and the plan what contains the command."""
    assert nsbox.probe().system == "Darwin"
    assert "seatbelt" in nsbox.explain(policy).splitlines()[0]


def test_workspace(policy: nsbox.Policy, workspace: Path) -> None:
    """Files of the workspace can be read, made, changed, renamed and deleted."""
    (workspace / "given").write_text("given\n")
    script = "cat given && mkdir d && echo made >d/new && mv d/new d/moved && echo more >>given && ln -s given link && rm link"
    assert allowed(["/bin/sh", "-c", script], policy) == "given\n"
    assert (workspace / "given").read_text() == "given\nmore\n"
    assert (workspace / "d" / "moved").read_text() == "made\n"


def test_read_elsewhere(policy: nsbox.Policy, outside: Path) -> None:
    """A file in another directory for temporary files can't be read."""
    read = attempt(READ, outside / "secret")
    assert control(read) == "secret\n"
    refused(read, policy)


def test_read_home(policy: nsbox.Policy) -> None:
    """A file in the home directory can't be read."""
    path = Path.home() / f".nsbox-test-{uuid.uuid4()}"
    path.write_text("secret\n")
    try:
        read = attempt(READ, path)
        assert control(read) == "secret\n"
        refused(read, policy)
    finally:
        path.unlink()


def test_list_home(policy: nsbox.Policy) -> None:
    """The names in the home directory can't be listed."""
    names = attempt("os.listdir(args[0])", Path.home())
    control(names)
    refused(names, policy)


def test_read_by_symlink(policy: nsbox.Policy, workspace: Path, outside: Path) -> None:
    """A symlink in the workspace leads nowhere that the policy doesn't name."""
    (workspace / "link").symlink_to(outside / "secret")
    read = attempt(READ, workspace / "link")
    assert control(read) == "secret\n"
    refused(read, policy)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("open(args[0] + '/new', 'w')", id="create"),
        pytest.param("open(args[0] + '/secret', 'a')", id="append"),
        pytest.param("os.mkdir(args[0] + '/new')", id="mkdir"),
        pytest.param("os.unlink(args[0] + '/secret')", id="unlink"),
        pytest.param("os.rename(args[0] + '/secret', args[0] + '/moved')", id="rename"),
        pytest.param("os.chmod(args[0] + '/secret', 0o600)", id="chmod"),
        pytest.param("os.utime(args[0] + '/secret')", id="utime"),
        pytest.param("os.symlink('x', args[0] + '/new')", id="symlink"),
        pytest.param("os.mkfifo(args[0] + '/new')", id="mkfifo"),
    ],
)
def test_write_elsewhere(policy: nsbox.Policy, twin: Path, outside: Path, code: str) -> None:
    """Nothing outside of the workspace can be changed."""
    (twin / "secret").write_text("secret\n")
    control(attempt(code, twin))
    refused(attempt(code, outside), policy)
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret\n"


def test_move_out(policy: nsbox.Policy, workspace: Path, twin: Path, outside: Path) -> None:
    """A file of the workspace can't be moved to where nothing may be written."""
    move = "os.rename(args[0] + '/file', args[1] + '/' + args[2])"
    for place in (workspace, twin):
        (place / "file").touch()
    control(attempt(move, twin, outside, "control"))
    refused(attempt(move, workspace, outside, "moved"), policy)
    assert not (outside / "moved").exists()


def test_link_in(policy: nsbox.Policy, workspace: Path, twin: Path, outside: Path) -> None:
    """A file outside can't be linked into the workspace, where it could be read."""
    link = "os.link(args[0], args[1] + '/linked')"
    control(attempt(link, outside / "secret", twin))
    refused(attempt(link, outside / "secret", workspace), policy)


def test_read_and_write_named(workspace: Path, outside: Path) -> None:
    """What read= and write= name is readable, and the latter alone writable."""
    write = attempt(WRITE, outside / "secret")
    control(write)
    refused(write, nsbox.Policy.workspace(workspace, read=[outside]))
    allowed(write, nsbox.Policy.workspace(workspace, write=[outside]))
    assert (outside / "secret").read_text() == "secret\nwrittenwritten"


def test_system_is_read_only(policy: nsbox.Policy, twin: Path) -> None:
    """Programs and settings of the system can be read, and not changed even by root."""
    allowed(["/bin/cat", "/etc/hosts", "/usr/share/zoneinfo/UTC"], policy, text=False)
    control(attempt("open(args[0] + '/nsbox', 'w')", twin))
    refused(attempt("open(args[0] + '/nsbox', 'w')", "/private/etc"), policy)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("open(args[0] + '/lib/file', 'w')", id="write"),
        pytest.param("open(args[0] + '/lib/new', 'w')", id="create"),
        pytest.param("os.unlink(args[0] + '/lib/file')", id="unlink"),
        pytest.param("os.replace(args[0] + '/other', args[0] + '/lib/file')", id="rename over"),
        pytest.param("os.rename(args[0] + '/lib', args[0] + '/elsewhere')", id="move it"),
    ],
)
def test_read_only_inside(workspace: Path, twin: Path, code: str) -> None:
    """A path that read= names inside of the workspace is readable, and can't be changed or moved."""
    for place in (workspace, twin):
        (place / "lib").mkdir()
        (place / "lib" / "file").write_text("kept\n")
        (place / "other").touch()
    policy = nsbox.Policy.workspace(workspace, read=[workspace / "lib"])
    control(attempt(code, twin))
    refused(attempt(code, workspace), policy)
    assert allowed(["/bin/cat", "lib/file"], policy) == "kept\n"


def test_read_only_below(workspace: Path, twin: Path) -> None:
    """A directory above such a path can't be moved either, which would take the protection away."""
    move = "os.rename(args[0] + '/a', args[0] + '/elsewhere')"
    for place in (workspace, twin):
        (place / "a" / "b" / "lib").mkdir(parents=True)
    control(attempt(move, twin))
    refused(attempt(move, workspace), nsbox.Policy.workspace(workspace, read=[workspace / "a" / "b" / "lib"]))
