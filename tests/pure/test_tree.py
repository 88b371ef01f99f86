"""The tree: rooms of few files, no circles between them, charters that import nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nsbox
from nsbox._policy.policy import BACKENDS

PACKAGE = Path(nsbox.__file__).parent
# Methods of Policy whose work is done on higher floors, by imports in their bodies: the one way up.
QUESTIONS = "_policy.questions"


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if path.name != "hook-nsbox.py":
            found[name] = path
    return found


def imported(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Return the modules of nsbox that are imported anywhere in a module: at once, by functions, or for types."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nsbox":
            for name in node.names:
                full = f"{node.module}.{name.name}".removeprefix("nsbox.")
                found.add(full if full in known else node.module.removeprefix("nsbox").lstrip("."))
    return found - {""}


def test_no_circle_of_packages() -> None:
    """Data flows one way, from room to room; import-linter can't say so of packages that share a floor."""
    known = modules()
    assert len(known) > 150
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        room = name.split(".")[0]
        if name != QUESTIONS and room.startswith("_"):
            others = {other.split(".")[0] for other in imported(ast.parse(path.read_text("utf-8")), known)}
            arrows.setdefault(room, set()).update(other for other in others if other.startswith("_") and other != room)
    assert len(arrows) > 20
    while leaves := [room for room, others in arrows.items() if not others & arrows.keys()]:
        for room in leaves:
            del arrows[room]
    assert arrows == {}


def test_rooms_have_few_files() -> None:
    """A directory has 3 to 12 files, its charter among them; the faces alone stand at the top."""
    counts: dict[Path, int] = {}
    for path in modules().values():
        counts[path.parent] = counts.get(path.parent, 0) + 1
    top = {path.name for path in PACKAGE.glob("*.py")}
    assert {name for name in top if name.startswith("_")} == {"__init__.py", "__main__.py"}
    commands = {PACKAGE / "_pyinstaller"}
    rooms = {path: count for path, count in counts.items() if path not in {PACKAGE, *commands}}
    assert len(rooms) > 20
    assert {path.name: count for path, count in rooms.items() if not 3 <= count <= 12} == {}


def test_charters_import_nothing() -> None:
    """A package's own module says what is in it. It imports nothing, except where a choice is made or a program starts."""
    charters = [
        path
        for name, path in modules().items()
        if path.name == "__init__.py" and name.startswith("_") and path.parent != PACKAGE
    ]
    assert len(charters) > 20
    importing = set()
    for path in charters:
        tree = ast.parse(path.read_text("utf-8"))
        assert ast.get_docstring(tree), path
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)):
            importing.add(path.parent.name)
    assert importing == {"_backends", "_bwrap", "_cli", "bench", "_pyinstaller"}


def _sayings(path: Path) -> set[str]:
    """Return the texts of a backend, or of what they share, that say of a topic what is enforced, or what isn't."""
    functions = ("compile", "_enforced", "_not_enforced")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = [node for node in tree.body if isinstance(node, ast.Assign) or getattr(node, "name", "") in functions]
    values = [node.value for part in parts for node in ast.walk(part) if isinstance(node, ast.Constant)]
    return {value for value in values if isinstance(value, str) and re.match(r"[\w', -]+: ", value)}


def test_no_sentence_stands_in_two_backends() -> None:
    """What several backends say of a plan stands once, in _backends/sentences.py: users compare these sentences."""
    places: dict[str, list[str]] = {}
    for name in (*BACKENDS, "sentences"):
        for text in _sayings(PACKAGE / "_backends" / f"{name}.py"):
            places.setdefault(text, []).append(name)
    assert len(places) > 50
    assert {text: names for text, names in places.items() if len(names) > 1} == {}
