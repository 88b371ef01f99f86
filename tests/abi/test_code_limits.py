"""The limits of size that keep the code readable: functions of 60 lines, C files of 400, Python files of 500."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FUNCTION, C_FILE, PYTHON_FILE = 60, 400, 500
CHRONOLOGY = {
    "build": 120,
    "mediator": 120,
    "prepare": 120,
    "command": 120,
}  # what happens when in the child, in one place


def c_files(source: Path) -> list[Path]:
    return sorted((source / "csrc").rglob("*.[ch]"))


def python_files(source: Path) -> list[Path]:
    return sorted([*(source / "nsbox").rglob("*.py"), *(source / "csrc/tools").glob("*.py")])


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield each function's name and its lines, from its signature to its closing brace (clang-format's layout)."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line != "{":
            continue
        first = i - 1
        while first and lines[first - 1] and lines[first - 1][0] not in "}/*# ":
            first -= 1
        name = re.search(r"(\w+)\(", " ".join(lines[first:i]))
        end = lines.index("}", i)
        assert name, lines[first:i]
        yield name[1], end - first + 1


def python_functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def test_c_functions(source: Path) -> None:
    """No C function is longer than 60 lines; the child's chronology may have 120."""
    found = [(path.name, name, size) for path in c_files(source) for name, size in c_functions(path.read_text())]
    assert len(found) > 100
    assert {"nsbox_spawn", "nsbox_plan_check", "op_bind", "mediator", "command"} <= {name for _, name, _ in found}
    assert [row for row in found if row[2] > CHRONOLOGY.get(row[1], FUNCTION)] == []


def test_c_files(source: Path) -> None:
    """No C file is longer than 400 lines."""
    sizes = {path.name: len(path.read_text().splitlines()) for path in c_files(source)}
    assert len(sizes) > 15
    assert {name: size for name, size in sizes.items() if size > C_FILE} == {}


def test_python_functions(source: Path) -> None:
    """No Python function is longer than 60 lines."""
    found = [
        (path.name, name, size)
        for path in python_files(source)
        for name, size in python_functions(ast.parse(path.read_text()))
    ]
    assert len(found) > 100
    assert [row for row in found if row[2] > FUNCTION] == []


def test_python_files(source: Path) -> None:
    """No Python file is longer than 500 lines."""
    sizes = {str(path): len(path.read_text().splitlines()) for path in python_files(source)}
    assert len(sizes) > 15
    assert {name: size for name, size in sizes.items() if size > PYTHON_FILE} == {}


def test_charters(source: Path) -> None:
    """Each file opens by saying what it is."""
    for path in python_files(source):
        assert ast.get_docstring(ast.parse(path.read_text())), path
    for path in c_files(source):
        assert path.read_text().startswith("/* "), path
        if "tests" not in path.parts:
            assert path.name in path.read_text().splitlines()[0], path
