"""Imports that are replaced or put off: on the way to a spawn alone, or for a reason that is said there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nsbox
from nsbox._core import abi

PACKAGE = Path(nsbox.__file__).parent
ROOTS = "nsbox._backends.namespaces, nsbox._spawn.start"  # the way to a spawn is all that they import
# Modules of the interpreter that stand for public ones, which import more.
STAND_INS = {"_collections_abc", "_operator", "_signal", "_struct", "_thread", "_weakref"}
# What is no matter of time: modules on the way up from a policy, and those that the guard of imports itself needs.
OTHERS = {"_base/imports.py", "_base/paths.py", "_policy/questions.py"}


def has_reason(tree: ast.Module) -> bool:
    """Say if a module's docstring has what its tricks save, in milliseconds."""
    text = " ".join((ast.get_docstring(tree) or "").split())
    return bool(re.search(r"\d ms\b", text))


def tricks(tree: ast.Module) -> tuple[set[int], set[int]]:
    """Return the lines with an import that stands for another, and those with an import in a function."""
    instead, late = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else [node.module]
            if STAND_INS & {*names}:
                instead.add(node.lineno)
        elif isinstance(node, ast.Assign | ast.Call):
            if ast.unparse(node).startswith(("TYPE_CHECKING = False", "__import__(")):
                instead.add(node.lineno)
        elif isinstance(node, ast.FunctionDef):
            late |= {n.lineno for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)}
    return instead, late


def on_the_way() -> set[str]:
    """Return the files of modules that a program for one command imports."""
    code = f"import sys; sys.path += {[str(PACKAGE.parent), *sys.path]!r}; import {ROOTS}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    names = [name.partition(".")[2].replace(".", "/") for name in done.stdout.split() if name.startswith("nsbox")]
    return {f"{name}{end}" for name in names for end in (".py", "/__init__.py")} | {"__init__.py"}


@pytest.mark.skipif(bool(abi.problem), reason="what a spawn imports depends on the C core")
def test_each_trick_has_its_reason() -> None:
    """On the way to a spawn, the top of a file says what its tricks save; elsewhere each line does."""
    known, found, without = on_the_way(), 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name in OTHERS or name.startswith("_guest/"):  # other interpreters' programs
            continue
        text = path.read_text("utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        instead, late = tricks(tree)
        found += name in known and bool(instead or late)
        if not has_reason(tree):
            without += [f"{name}: {lines[number - 1]}" for number in late if name in known]
            said = {number for number in instead if any("#" in line for line in lines[number - 2 : number])}
            without += [f"{name}: {lines[number - 1]}" for number in instead - (set() if name in known else said)]
    assert found > 15
    assert without == []
