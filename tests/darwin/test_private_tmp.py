"""The directory for temporary files: a fresh one for each command, instead of the one that all share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_darwin import allowed, attempt, control, python, refused

import nsbox

pytestmark = pytest.mark.darwin


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in /tmp that all can write to, with a file in it."""
    with tempfile.TemporaryDirectory(prefix="nsbox-", dir="/private/tmp") as path:
        Path(path, "secret").write_text("secret\n")
        yield Path(path)


def test_tmpdir_is_writable(policy: nsbox.Policy) -> None:
    """Programs find their directory for temporary files by TMPDIR, and can use it."""
    code = """
    import os, tempfile
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        assert os.path.realpath(os.path.dirname(file.name)) == os.path.realpath(os.environ["TMPDIR"])
    """
    allowed(python(code), policy)


FILL = """
import os
path = os.environ["TMPDIR"]
assert not os.listdir(path)
assert os.stat(path).st_mode & 0o777 == 0o700
os.makedirs(path + "/a/b")
open(path + "/a/b/left", "w").close()
os.chmod(path + "/a/b", 0o500)
print(path, flush=True)
input()
"""


def _filled(policy: nsbox.Policy) -> nsbox.Popen:
    return nsbox.Popen(python(FILL), policy=policy, stdin=nsbox.PIPE, stdout=nsbox.PIPE, text=True)


def test_tmpdir_is_new_each_time(policy: nsbox.Policy) -> None:
    """Each command finds its directory empty and closed to others, and it is gone afterwards with all in it."""
    for _ in range(3):
        with _filled(policy) as child:
            assert child.stdout is not None
            path = child.stdout.readline().strip()
            assert os.path.exists(f"{path}/a/b/left")
            child.communicate("\n")
        assert child.returncode == 0
        assert not os.path.exists(path)


def test_tmpdir_is_ones_own(policy: nsbox.Policy) -> None:
    """Commands that run at the same time have different directories, and neither is the caller's."""
    with _filled(policy) as one, _filled(policy) as two:
        found = set()
        for child in (one, two):
            assert child.stdout is not None
            found.add(os.path.realpath(child.stdout.readline().strip()))
        for child in (one, two):
            child.communicate("\n")
    assert (one.returncode, two.returncode) == (0, 0)
    assert len(found | {os.path.realpath(tempfile.gettempdir())}) == 3


def test_tmpdir_of_another(policy: nsbox.Policy) -> None:
    """A command can't read what another one has in its directory, under the same policy."""
    hold = (
        "import os; print(os.environ['TMPDIR'], flush=True); open(os.environ['TMPDIR'] + '/x', 'w').write('x'); input()"
    )
    with nsbox.Popen(python(hold), policy=policy, stdin=nsbox.PIPE, stdout=nsbox.PIPE, text=True) as child:
        assert child.stdout is not None
        names = attempt("os.listdir(args[0])", child.stdout.readline().strip())
        control(names)
        refused(names, policy)
        child.communicate("\n")
    assert child.returncode == 0


@pytest.mark.parametrize("link", [False, True])
def test_shared_tmp_is_closed(policy: nsbox.Policy, shared: Path, link: bool) -> None:
    """Neither /tmp nor /private/tmp, which that leads to, can be read or written."""
    path = str(shared).removeprefix("/private") if link else str(shared)
    for code in ("open(args[0] + '/secret')", "open(args[0] + '/new', 'w')", "os.listdir(args[0])"):
        control(attempt(code, path))
        refused(attempt(code, path), policy)


@pytest.mark.parametrize("name", ["CS_DARWIN_USER_TEMP_DIR", "CS_DARWIN_USER_CACHE_DIR"])
def test_user_directories_are_closed(policy: nsbox.Policy, name: str) -> None:
    """The user's own directories for temporary and cached files, which services read, can't be written."""
    code = """
    number = {"CS_DARWIN_USER_TEMP_DIR": 65537, "CS_DARWIN_USER_CACHE_DIR": 65538}[args[0]]
    path = os.path.join(args[1] or os.confstr(number), "nsbox-test")
    open(path, "w").close()
    os.unlink(path)
    print(os.path.dirname(path))
    """
    # What confstr(3) says is found out without a sandbox: in one it may fail for another reason.
    found = control(attempt(code, name, "")).strip()
    refused(attempt(code, name, found), policy)
