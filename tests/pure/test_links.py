"""The walk through links, against the kernel's own and Python's, on trees of links that lead anywhere."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from nsbox_pure import calm

from nsbox._base.paths import is_below
from nsbox._files.links import ways
from nsbox._machine.directories import interpreter_links
from nsbox._paths.resolution import Walk, links_on

NAMES = st.sampled_from(["a", "b", "c"])
PARTS = st.lists(st.one_of(NAMES, st.sampled_from(["..", ".", ""])), min_size=1, max_size=6)
# True before the parts: from the tree's top.
TARGETS = st.tuples(st.booleans(), PARTS)
ENTRIES = st.tuples(st.lists(NAMES, min_size=1, max_size=3), st.one_of(st.sampled_from(["dir", "file"]), TARGETS))


def made(top: str, entries: list[tuple[list[str], str | tuple[bool, list[str]]]]) -> None:
    """Make a tree of what can be made of these, in this order; nothing is made outside of it, by links made before."""
    for names, what in entries:
        path = os.path.join(top, *names)
        if not is_below(os.path.realpath(os.path.dirname(path)), top):
            continue
        with contextlib.suppress(OSError):  # something is there, or can't be below a file
            if isinstance(what, tuple):
                is_absolute, parts = what
                os.symlink(f"{top}/{'/'.join(parts)}" if is_absolute else "/".join(parts) or ".", path)
            elif what == "dir":
                os.makedirs(path)
            else:
                Path(path).touch(exist_ok=False)


def by_kernel(path: str) -> tuple[str, int]:
    """Return where the kernel's walk ends and 0, or "" and why it fails."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        return "", error.errno or -1
    try:
        return os.readlink(f"/proc/self/fd/{fd}"), 0
    finally:
        os.close(fd)


def by_walk(path: str) -> tuple[str, int]:
    """Return the same of Walk."""
    walk = Walk(path)
    try:
        for at, target in walk:
            above = os.path.dirname(at)
            assert os.path.realpath(above) == above
            assert (os.readlink(at) if os.path.islink(at) else None) == target
    except OSError as error:
        return "", error.errno or -1
    assert walk.rest == []
    return walk.at, 0


@settings(calm, max_examples=400)
@given(st.lists(ENTRIES, max_size=12), PARTS)
def test_the_kernels_walk(entries: list[tuple[list[str], str | tuple[bool, list[str]]]], parts: list[str]) -> None:
    """It ends where the kernel's ends, and finds the same loops; what isn't there stays as written, as Python's does."""
    with tempfile.TemporaryDirectory() as directory:
        top = os.path.realpath(directory)
        made(top, entries)
        path = f"{top}/{'/'.join(parts)}"
        (at, problem), (real, error) = by_walk(path), by_kernel(path)
        event(errno.errorcode.get(error, "there"))
        if error in (0, errno.ELOOP):
            assert (at, problem) == (real, error)
        else:
            assert problem in (0, errno.ELOOP)  # it goes on behind what isn't there, and may find a loop
        if problem == 0:
            assert at == os.path.realpath(path)
            assert links_on(path)[0] == at
        else:
            assert len(links_on(path)[1]) == 41
            with pytest.raises(OSError, match="symbolic links"):
                list(ways(path))


@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
@pytest.mark.parametrize("end", ["", "/", "/x", "/../d/x"])
def test_the_longest_chain(tmp_path: Path, end: str, is_absolute: bool) -> None:
    """The kernel follows 40 links and not one more; so does the walk."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x").touch()
    (tmp_path / "0").symlink_to(tmp_path / "d" if is_absolute else "d")
    for i in range(1, 41):
        (tmp_path / f"{i}").symlink_to(tmp_path / f"{i - 1}" if is_absolute else f"./{i - 1}")
    where = f"{tmp_path}/d" + ("/x" if end.endswith("x") else "")
    kernel = by_kernel(f"{tmp_path}/39{end}")
    for _ in range(50):  # a walk that the kernel begins again, since names change elsewhere, goes on counting its links
        if kernel[1] != errno.ELOOP:
            break
        kernel = by_kernel(f"{tmp_path}/39{end}")
    assert by_walk(f"{tmp_path}/39{end}") == kernel == (where, 0)
    assert by_walk(f"{tmp_path}/40{end}") == by_kernel(f"{tmp_path}/40{end}") == ("", errno.ELOOP)
    assert len(links_on(f"{tmp_path}/39")[1]) == len(interpreter_links([f"{tmp_path}/39"])) == 40
    assert interpreter_links([f"{tmp_path}/40"]) == ()


def test_other_links_than_the_file_systems() -> None:
    """Whatever says what is a link is asked once for each path, in the order of the walk."""
    asked: list[str] = []
    links = {"/a": "b/c", "/b/c": "/d", "/d/e": "../f"}

    def target(path: str) -> str | None:
        asked.append(path)
        return links.get(path)

    walk = Walk("/a/./e//g", target)
    assert [(at, to, *walk.rest) for at, to in walk] == [
        ("/a", "b/c", "g", "", "e", "."),
        ("/b", None, "g", "", "e", ".", "c"),
        ("/b/c", "/d", "g", "", "e", "."),
        ("/d", None, "g", "", "e", "."),
        ("/d/e", "../f", "g", ""),
        ("/f", None, "g", ""),
        ("/f/g", None),
    ]
    assert asked == ["/a", "/b", "/b/c", "/d", "/d/e", "/f", "/f/g"]
    assert (walk.at, walk.rest, walk.names) == ("/f/g", [], 12)
