"""The adapters of nsbox/integrations stand on public names, as an adapter of somebody else's would."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import nsbox

PACKAGE = Path(nsbox.__file__).parent
FILES = sorted((PACKAGE / "integrations").rglob("*.py"))

# What they use besides, and why. A name that several need is a candidate for nsbox itself.
ALLOWED = {
    "nsbox._base.display.type_phrase": "an error names a wrong type as nsbox's own errors do",
    "nsbox._base.frozen.frozen": "DaskResult extends PythonResult, a record of this kind",
    "nsbox._batches.map.Snippet": "map() on a cluster accepts what Python.map() accepts: its annotations are the same",
    "nsbox._batches.map.split": "as above: a snippet may have its own inputs",
    "nsbox._batches.options.SnippetOptions": "as above: options",
    "nsbox._batches.progress.Meter": "as above: the same line of progress",
    "nsbox._batches.progress.Wish": "as above",
    "nsbox._batches.progress.check_progress": "as above",
    "nsbox._batches.progress.length": "as above",
    "nsbox._calls.environment": "Inspect's variables are added to those that the policy builds, without a new policy",
    "nsbox._calls.environment.environment": "LangChain's, too",
    "nsbox._config.load.load": "Inspect needs a file's `mode`, which Policy.load() doesn't return",
    "nsbox._files.files.Tree": "what a kernel left among its sockets is removed, however deep, without following links",
    "nsbox._files.files.remove": "as above",
    "nsbox._paths.user_homes.check_workspace": "its error says what a kernel's user can do who means a home",
    "nsbox._python.call.check_code": "submit() refuses on the client what a worker would refuse",
    "nsbox._python.call.check_inputs": "as above",
}


def imported(file: Path) -> Iterator[str]:
    """Yield the names that a file imports from nsbox, or asks the module nsbox for: "nsbox.Policy"."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            if (node.module or "").partition(".")[0] == "nsbox":
                yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] == "nsbox")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nsbox":
            yield f"nsbox.{node.attr}"


def is_public(name: str) -> bool:
    """Say if a name is in the __all__ of nsbox or of one of its public modules, or is such a module."""
    module, _, last = name.rpartition(".")
    if name == "nsbox" or (module == "nsbox" and last in nsbox._FACES):
        return True
    if module != "nsbox" and module.removeprefix("nsbox.") not in nsbox._FACES:
        return False
    return last in importlib.import_module(module).__all__


def is_own(name: str) -> bool:
    return name == "nsbox.integrations" or name.startswith("nsbox.integrations.")


def test_public_names() -> None:
    """Each file imports public names, those of the adapters, and a few that are listed here, each with a reason."""
    assert len(FILES) > 25 and {path.parent.name for path in FILES} >= {"dask", "langchain", "pytest", "ray"}
    names = {name: file for file in FILES for name in imported(file) if not is_own(name)}
    assert len(names) > 40
    private = {name for name in names if not is_public(name)}
    assert not private - {*ALLOWED}, {name: str(names[name]) for name in private - {*ALLOWED}}
    assert not {*ALLOWED} - private, "these are needed no more"


def test_the_check_sees_private_names(tmp_path: Path) -> None:
    """Each way of getting at a private name is found."""
    file = tmp_path / "adapter.py"
    file.write_text(
        "import nsbox\nimport nsbox._core.call\nfrom nsbox import Policy, _base\nfrom nsbox._base import paths\n"
        "from nsbox.transaction import recover\ndef f():\n    from nsbox.sandbox import _Hidden\n    nsbox._plan.ops\n"
    )
    private = {name for name in imported(file) if not is_public(name)}
    assert private == {
        *("nsbox._core.call", "nsbox._base", "nsbox._base.paths", "nsbox.sandbox._Hidden", "nsbox._plan")
    }
