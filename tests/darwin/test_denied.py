"""Denied files in a writable workspace, on a Mac: every way to them, and every way to take the denial off them.

Rules of Seatbelt go by path, so what moves a file, or gives it another name, is what has to be refused.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from nsbox_darwin import REFUSED, allowed, attempt, control, refused

import nsbox

pytestmark = pytest.mark.darwin

CLONE = """
import ctypes
system = ctypes.CDLL(None, use_errno=True)
if system.clonefile(os.fsencode(args[0] + "/a/b/.env"), os.fsencode(args[0] + "/clone"), 0):
    raise OSError(ctypes.get_errno(), "clonefile")
"""


def _planted(*places: Path) -> None:
    for place in places:
        (place / "a" / "b").mkdir(parents=True)
        (place / "a" / "b" / ".env").write_text("TOKEN=secret\n")
        (place / "other").write_text("other\n")


def _policy(workspace: Path) -> nsbox.Policy:
    return nsbox.Policy.workspace(workspace, deny=[workspace / "a" / "b" / ".env"])


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("open(args[0] + '/a/b/.env')", id="read"),
        pytest.param("open(args[0] + '/a/b/.env', 'w')", id="write"),
        pytest.param("open(args[0] + '/a/b/.env', 'a')", id="append"),
        pytest.param("os.truncate(args[0] + '/a/b/.env', 0)", id="truncate"),
        pytest.param("os.unlink(args[0] + '/a/b/.env')", id="unlink"),
        pytest.param("os.rename(args[0] + '/a/b/.env', args[0] + '/mine')", id="rename"),
        pytest.param("os.replace(args[0] + '/other', args[0] + '/a/b/.env')", id="rename over"),
        pytest.param("os.rename(args[0] + '/a', args[0] + '/mine')", id="move its ancestor"),
        pytest.param("os.rename(args[0] + '/a/b', args[0] + '/mine')", id="move its directory"),
        pytest.param("os.link(args[0] + '/a/b/.env', args[0] + '/mine')", id="hard link"),
        pytest.param(CLONE, id="clonefile"),
        pytest.param("os.chmod(args[0] + '/a/b/.env', 0o666)", id="chmod"),
        pytest.param("os.symlink('a/b/.env', args[0] + '/mine'); open(args[0] + '/mine')", id="symlink"),
        pytest.param("os.symlink('a', args[0] + '/mine'); open(args[0] + '/mine/b/.env')", id="symlink above"),
        pytest.param("os.chdir(args[0] + '/a/b'); open('.env')", id="relative"),
        pytest.param("open(args[0] + '/a/../a/./b/.env')", id="dots"),
        pytest.param("open(args[0] + '/a/b/.ENV')", id="other case"),
        pytest.param("open(args[0] + '/A/B/.Env')", id="other case above"),
        pytest.param("os.unlink(args[0] + '/a/b/.ENV')", id="unlink in other case"),
        pytest.param("os.rename(args[0] + '/A', args[0] + '/mine')", id="move in other case"),
        pytest.param("open('/System/Volumes/Data' + args[0] + '/a/b/.env')", id="firmlink"),
    ],
)
def test_denied(workspace: Path, twin: Path, code: str) -> None:
    """A denied file can't be read, changed, deleted, replaced, or come by under another name."""
    _planted(workspace, twin)
    control(attempt(code, twin))
    refused(attempt(code, workspace), _policy(workspace))
    assert (workspace / "a" / "b" / ".env").read_text() == "TOKEN=secret\n"


def test_copy_by_clone(workspace: Path, twin: Path) -> None:
    """`cp -c`, which asks for a clone and then copies, has nothing to copy."""
    _planted(workspace, twin)
    copy = ["/bin/sh", "-c", "cp -c a/b/.env mine; cat mine other"]
    assert "secret" in control(copy, cwd=twin)
    done = nsbox.run(copy, policy=_policy(workspace), capture_output=True, text=True)
    assert "other" in done.stdout
    assert "secret" not in done.stdout


def test_open_by_inode(workspace: Path, twin: Path) -> None:
    """The way by number of volume and inode leads to the same refusal."""
    _planted(workspace, twin)
    code = "open('/.vol/' + args[0] + '/' + args[1])"
    found = (twin / "a" / "b" / ".env").stat()
    control(attempt(code, found.st_dev, found.st_ino))
    found = (workspace / "a" / "b" / ".env").stat()
    refused(attempt(code, found.st_dev, found.st_ino), _policy(workspace))


def test_the_rest_is_writable(workspace: Path) -> None:
    """Files beside a denied one, and directories beside those above it, stay the command's own."""
    _planted(workspace)
    script = "echo new >a/b/new && mv a/b/new a/moved && rm a/moved && mkdir c && mv c d && cat other"
    assert allowed(["/bin/sh", "-c", script], _policy(workspace)) == "other\n"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("open(args[0] + '/.env', 'w')", id="create"),
        pytest.param("open(args[0] + '/.ENV', 'w')", id="create in other case"),
        pytest.param("os.mkdir(args[0] + '/.env')", id="mkdir"),
        pytest.param("os.symlink('other', args[0] + '/.env')", id="symlink"),
        pytest.param("os.rename(args[0] + '/other', args[0] + '/.env')", id="rename to it"),
        pytest.param("os.rename(args[0] + '/other', args[0] + '/.Env')", id="rename to it in other case"),
        pytest.param("os.link(args[0] + '/other', args[0] + '/.env')", id="link to it"),
    ],
)
def test_denied_before_it_exists(workspace: Path, twin: Path, code: str) -> None:
    """A denied name that doesn't exist can't be made by the command."""
    for place in (workspace, twin):
        (place / "other").write_text("other\n")
    control(attempt(code, twin))
    refused(attempt(code, workspace), nsbox.Policy.workspace(workspace, deny=[workspace / ".env"]))
    assert not (workspace / ".env").exists()


def test_denied_and_made_later(workspace: Path, twin: Path) -> None:
    """A denied file that another process makes while the command runs can't be read by it."""
    wait_and_read = "print('ready', flush=True); sys.stdin.readline(); open(args[0] + '/.env')"
    (twin / ".env").write_text("secret\n")
    control(attempt("open(args[0] + '/.env')", twin))
    policy = nsbox.Policy.workspace(workspace, deny=[workspace / ".env"])
    with nsbox.Popen(
        attempt(wait_and_read, workspace),
        policy=policy,
        stdin=nsbox.PIPE,
        stdout=nsbox.PIPE,
        stderr=nsbox.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        (workspace / ".env").write_text("secret\n")
        child.communicate("\n")
    assert child.returncode == REFUSED


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("exists", [True, False])
def test_other_normal_form(workspace: Path, twin: Path, form: str, other: str, exists: bool) -> None:
    """A denied name in another normal form of Unicode is the same file, and is denied too."""
    name = "geheim-\u00e9\u00fc"
    denied, tried = (unicodedata.normalize(which, name) for which in (form, other))
    assert denied != tried
    for place in (workspace, twin) if exists else ():
        (place / denied).write_text("secret\n")
    code = "open(args[0] + '/' + args[1], 'r' if args[2] == 'True' else 'w')"
    control(attempt(code, twin, tried, exists))
    refused(attempt(code, workspace, tried, exists), nsbox.Policy.workspace(workspace, deny=[workspace / denied]))


@pytest.mark.parametrize(
    ("denied", "tried"),
    [
        pytest.param("skey", "\u017fkey", id="long s"),
        pytest.param("skey", "s\u212aey", id="Kelvin sign"),
        pytest.param("fine", "\ufb01ne", id="ligature"),
        pytest.param("strasse", "stra\u00dfe", id="sharp s"),
    ],
)
def test_letters_that_fold_to_others(workspace: Path, twin: Path, denied: str, tried: str) -> None:
    """No other letter, which the volume may take for that of a denied name, makes a file of that name."""
    code = "open(args[0] + '/' + args[1], 'w')"
    control(attempt(code, twin, tried))
    nsbox.run(attempt(code, workspace, tried), policy=nsbox.Policy.workspace(workspace, deny=[workspace / denied]))
    assert not (workspace / denied).exists()


def test_denied_directory(workspace: Path, twin: Path) -> None:
    """All that is in a denied directory is denied, and its names too."""
    for place in (workspace, twin):
        (place / "private" / "deep").mkdir(parents=True)
        (place / "private" / "deep" / "file").write_text("secret\n")
    policy = nsbox.Policy.workspace(workspace, deny=[workspace / "private"])
    for code in ("open(args[0] + '/private/deep/file')", "os.listdir(args[0] + '/private')"):
        control(attempt(code, twin))
        refused(attempt(code, workspace), policy)


def test_own_descriptor(workspace: Path, outside: Path) -> None:
    """What the caller opens and passes on is open to the command, whatever the policy says of the path."""
    with open(outside / "secret") as file:
        assert allowed(["/bin/cat"], nsbox.Policy.workspace(workspace), stdin=file) == "secret\n"
