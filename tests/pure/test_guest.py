"""The program of a warm interpreter: any Python from 3.9 on can read it, and it needs nothing but that."""

from __future__ import annotations

import ast
import io
import sys
import zipfile
from pathlib import Path

import pytest

import nsbox._guest
from nsbox._guest import archive

ROOM = Path(nsbox._guest.__file__).parent
FILES = sorted(ROOM.rglob("*.py"))
INSIDE = [path for path in FILES if path.name != "archive.py"]  # which runs outside


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOM).as_posix())
def test_it_is_python_3_9(path: Path) -> None:
    """Its syntax is that of 3.9; a name of a later library would be seen by the tests with real interpreters."""
    ast.parse(path.read_text("utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.relative_to(ROOM).as_posix())
def test_it_imports_the_standard_library_alone(path: Path) -> None:
    """Absolute imports are of the standard library; relative ones stay in the program."""
    depth = len(path.relative_to(ROOM).parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert {name.name.partition(".")[0] for name in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").partition(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= depth


def test_the_archive_has_all_of_it() -> None:
    """Every module but those that run outside, under the name that boot.py looks for."""
    with zipfile.ZipFile(io.BytesIO(archive.archive())) as file:
        names = set(file.namelist())
        assert all(info.compress_type == zipfile.ZIP_STORED for info in file.infolist())
    wanted = {path.relative_to(ROOM).as_posix() for path in FILES} - {"boot.py", "archive.py", "environment/report.py"}
    assert names == {f"_nsbox_guest/{name}" for name in wanted}
    assert 'PACKAGE = "_nsbox_guest"' in archive.boot_text()
