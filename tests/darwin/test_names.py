"""Names of directories that look like parts of a profile are names, on a Mac, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsbox_darwin import allowed, attempt, control, refused

import nsbox

pytestmark = pytest.mark.darwin

NAMES = (
    'two " quotes "',
    "single ' quotes '",
    "back\\slash",
    '")(allow default)("',
    ")(allow default)(",
    '#"raw"',
    "; a comment",
    "(param READ_0)",
    "regex .*[a-z]+$^|{}",
    "%s %n ${HOME} $(id) `id`",
    " blanks ",
    "-p",
    "\u00e9\u4e2d\U0001f980",
    "n" * 200,
)


@pytest.mark.parametrize("name", NAMES)
def test_name(tmp_path: Path, outside: Path, name: str) -> None:
    """A workspace, a readable, a writable and a denied directory of this name are what they are under any other."""
    places = [tmp_path / kind / name for kind in ("workspace", "read", "write")]
    for place in places:
        place.mkdir(parents=True)
        (place / "file").write_text("contents\n")
    workspace, read, write = places
    denied = workspace / name
    denied.mkdir()
    (denied / "file").write_text("secret\n")
    policy = nsbox.Policy.workspace(workspace, read=[read], write=[write], deny=[denied])
    for place in places:
        assert allowed(["/bin/cat", str(place / "file")], policy) == "contents\n"
    for place in (workspace, write):
        allowed(attempt("open(args[0] + '/new', 'w')", place), policy)
    control(attempt("open(args[0] + '/new', 'w')", read))
    refused(attempt("open(args[0] + '/new', 'w')", read), policy)
    for path in (denied / "file", outside / "secret"):
        control(attempt("open(args[0])", path))
        refused(attempt("open(args[0])", path), policy)


@pytest.mark.parametrize("name", ["new\nline", "return\r", "tab\t", "bell\a", "delete\x7f"])
def test_control_character(tmp_path: Path, name: str) -> None:
    """A name with a control character is an error that says so, before anything runs."""
    (tmp_path / name).mkdir()
    with pytest.raises(nsbox.UnavailableError, match="control characters"):
        nsbox.run(["/usr/bin/true"], policy=nsbox.Policy.workspace(tmp_path / name))


def test_long_path(tmp_path: Path) -> None:
    """A path that is longer than Seatbelt can take is an error that says so."""
    path = tmp_path
    while len(str(path)) <= 1000:
        path = path / ("n" * min(200, 1002 - len(str(path))))
    # mkdir(2) takes 1023 bytes at most, which the path is shorter than.
    path.mkdir(parents=True)
    with pytest.raises(nsbox.UnavailableError, match="bytes"):
        nsbox.run(["/usr/bin/true"], policy=nsbox.Policy.workspace(path))
