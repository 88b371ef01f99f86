"""Make one Python module of all that bwrap's command line imports: front.py PACKAGE SYSCALLS OUTPUT DEPFILE.

Finding, reading and checking thirty modules takes longer than making a sandbox. In OUTPUT each of them is a function.
It is called with the variables of a module of its own, under that module's name, so that later imports find it as
usual. What a short run doesn't need is left out: docstrings, annotations, and what is only for type checkers. The
filter that every command of bwrap's gets is assembled here. SYSCALLS: the table of system calls that syscalls.py wrote.
"""

from __future__ import annotations

import ast
import re
import symtable
import sys
from pathlib import Path
from types import ModuleType

# OUTPUT has all that these import. A function imports the second one, but always does so.
ROOTS = ("nsbox._bwrap.run", "nsbox._backends.namespaces")

ABOUT = '"""Made by csrc/tools/front.py of the modules that it lists at its end, which are what to read."""'

# Each function is made again for a module, whose variables are then its own.
TAIL = """
import sys

if __name__ != "front":
    raise ImportError("only the program that `nsbox bwrap --install` makes loads this")
package = __file__.rpartition("/_bwrap/")[0]
for name, body in MODULES:
    parent, _, own = name.rpartition(".")
    module = sys.modules[name] = type(sys)(name)
    path = package + name.removeprefix("nsbox").replace(".", "/")
    if name in PACKAGES:
        module.__path__, module.__package__, path = [path], name, f"{path}/__init__"
    else:
        module.__package__ = parent
    module.__file__ = f"{path}.py"
    if parent:
        setattr(sys.modules[parent], own, module)
    type(body)(body.__code__, module.__dict__)()
"""

GUARD = "bpf.Program(seccomp.profile('off', nested=True, for_net=False), with_compatible=True)"


class Short(ast.NodeTransformer):
    """Leaves out what isn't run, and what is only for readers."""

    def __init__(self) -> None:
        self.in_class = False

    def _body(self, node: ast.Module | ast.ClassDef | ast.FunctionDef, in_class: bool) -> None:
        before, self.in_class = self.in_class, in_class
        self.generic_visit(node)
        self.in_class = before
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            del node.body[0]
        node.body = node.body or [ast.Pass()]

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self._body(node, False)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._body(node, True)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self._body(node, False)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """Keep annotations in classes, which define fields, as strings: the __future__ import makes them that."""
        self.generic_visit(node)
        if self.in_class:
            node.annotation = ast.Constant(ast.unparse(node.annotation))
            return node
        return ast.Assign([node.target], node.value) if node.value else ast.Pass()

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        return None if node.module == "__future__" else node


def imports(tree: ast.Module) -> list[str]:
    """Return the names that may be modules among the imports outside of functions."""
    names = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return names


class Modules:
    """The package's modules that are needed, each after those that it imports itself."""

    def __init__(self, package: Path) -> None:
        self.top = package.parent
        self.paths: dict[str, Path] = {}
        self.trees: dict[str, ast.Module] = {}
        self._begun: set[str] = set()

    def add(self, name: str) -> None:
        at = self.top.joinpath(*name.split("."))
        path = next((p for p in (at / "__init__.py", at.with_suffix(".py")) if p.is_file()), None)
        if path is None or name in self._begun or name.split(".")[0] != "nsbox":
            return
        self._begun.add(name)
        if "." in name:
            self.add(name.rpartition(".")[0])
        tree = Short().visit(ast.parse(path.read_text(encoding="utf-8")))
        for other in imports(tree):
            self.add(other)
        self.paths[name], self.trees[name] = path, tree


def unparsed(body: list[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))


def function(name: str, tree: ast.Module) -> str:
    """Return the source of a module as a function whose variables are global."""
    table = symtable.symtable(unparsed(tree.body), name, "exec")
    bound = sorted(s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported())
    made = ast.parse(f"def {name}(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.body = [ast.Global(bound), *tree.body] if bound else tree.body
    return unparsed([made])


def guard(package: Path, syscalls: str) -> bytes:
    """Return the filter that all commands get, assembled for the machine."""
    sys.dont_write_bytecode = True
    # Not through the package's own __init__, which refuses a source tree that isn't built.
    sys.modules["nsbox"] = source = ModuleType("nsbox")
    source.__path__ = [str(package)]
    from nsbox._core import wire
    from nsbox._seccomp import bpf
    from nsbox._seccomp import filter as seccomp

    machine, *rows = re.findall(r'"(.*)\\n"', syscalls)
    numbers = {name: int(number) for name, _, number in (row.partition(" ") for row in rows)}
    program = eval(GUARD, {"bpf": bpf, "seccomp": seccomp})
    return wire.encode_programs([program], machine, bpf.NEWER | numbers)[0]


def main() -> None:
    package, syscalls, output, depfile = map(Path, sys.argv[1:])
    modules = Modules(package)
    for root in ROOTS:
        modules.add(root)
    made = [function(f"_{number}", tree) for number, tree in enumerate(modules.trees.values())]
    packages = [name for name, path in modules.paths.items() if path.name == "__init__.py"]
    rows = "".join(f"    ({name!r}, _{number}),\n" for number, name in enumerate(modules.trees))
    tables = f"PACKAGES = {packages!r}\nMODULES = (\n{rows})\n"
    names = "from nsbox._core import request as _request\nfrom nsbox._seccomp import bpf, filter as seccomp\n"
    ready = f"{names}_request.ready.append(({GUARD}, CODE))\n"
    code = f"CODE = {guard(package, syscalls.read_text())!r}\n"
    text = "\n\n".join((ABOUT, *made, tables + TAIL, code + ready))
    compile(text, str(output), "exec")  # some statements of a module may not be in a function
    output.write_text(text, encoding="utf-8")
    escaped = [re.sub(r"([ #])", r"\\\1", str(path)).replace("$", "$$") for path in (output, *modules.paths.values())]
    depfile.write_text(f"{escaped[0]}: {' '.join(escaped[1:])}\n")


if __name__ == "__main__":
    main()
