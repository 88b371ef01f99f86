"""Packages that a policy's commands can write to: a warm interpreter, which has more rights than they, runs none of them.

The poison is a module that notes which rights it runs with. Commands of the policy put it in the interpreter's way. In
a branch it runs, as any code there may, without rights. The control is the same module where commands can't write.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsbox_testing import needs

from nsbox import Bind, Dev, InterpreterError, Policy, Proc, RoBind, Sandbox
from nsbox._interpreter.environments import choice
from nsbox._plan.ops import Op

NEWNS = 0x20000
BASE = os.path.realpath(sys.executable)
POISON = f"""
import ctypes, json, os
with open("/proc/self/status") as file:
    (rights,) = [int(line.split()[1], 16) for line in file if line.startswith("CapEff")]
if not os.fork():  # so that the process stays what it is
    made = ctypes.CDLL(None).unshare({NEWNS})
    with open("NOTES", "a") as file:
        file.write(json.dumps([rights != 0, made == 0]) + "\\n")
    os._exit(0)
os.wait()
"""
HAS_OWN = importlib.util.find_spec("sitecustomize")  # Debian's Python has one, which comes before all others
HAS_OWN_CUSTOM = HAS_OWN is not None and str(HAS_OWN.origin).startswith(os.path.dirname(os.__file__) + "/site")
NOTHING, POWER = [False, False], [True, True]


ORDINARY = pytest.mark.skipif(
    os.getuid() == 0, reason="with layers, root's commands have no other id, so there is no interpreter"
)


@pytest.fixture(autouse=True)
def can_be_removed(workspace: Path) -> Iterator[None]:
    """What a test has made unwritable can be removed at the end."""
    yield
    subprocess.run(["chmod", "-R", "u+w", str(workspace)], check=True)


def poison(workspace: Path) -> str:
    return POISON.replace("NOTES", str(workspace / "notes"))


def notes(workspace: Path) -> list[list[bool]]:
    """Return with which rights the poison has run: capabilities, and whether it could make a namespace."""
    path = workspace / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def packages(prefix: Path) -> Path:
    return prefix / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"


def made(prefix: Path, *options: str) -> Path:
    """Make a virtual environment; return where its packages are."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, prefix], check=True)
    return packages(prefix)


def write(box: Sandbox, path: Path, text: str) -> None:
    """Let a command of the policy write a file."""
    code = f'mkdir -p "$(dirname "{path}")" && rm -f "{path}" && cat > "{path}"'
    result = box.shell(code, input=text)
    assert result.returncode == 0, result.stderr


def layers(workspace: Path, *more: Op) -> Policy:
    """Return a policy in which everything is read-only except the workspace, and what more ops show."""
    own = Bind(str(workspace), str(workspace))
    return Policy.layers(
        RoBind("/", "/"), Dev("/dev"), Proc("/proc"), own, *more, network="none", unshare={"net", "ipc"}
    )


# ---- what commands do to an environment


def pth(box: Sandbox, workspace: Path) -> None:
    write(box, packages(workspace / ".venv") / "bad.py", poison(workspace))
    write(box, packages(workspace / ".venv") / "bad.pth", "import bad\n")


def sitecustomize(box: Sandbox, workspace: Path) -> None:
    write(box, packages(workspace / ".venv") / "sitecustomize.py", poison(workspace))


def package(box: Sandbox, workspace: Path) -> None:
    write(box, packages(workspace / ".venv") / "own.py", poison(workspace) + "x = 5\n")


def program(box: Sandbox, workspace: Path) -> None:
    """The environment's program is another one, and a package is poisoned."""
    path = workspace / ".venv" / "bin" / "python"
    write(box, path, f"#!/bin/sh\necho '[true, true]' >> {workspace}/notes\n")
    path.chmod(0o755)
    package(box, workspace)


def permission(box: Sandbox, workspace: Path) -> None:
    """Permissions that deny writing: who owns the files can change these."""
    package(box, workspace)
    box.shell("chmod -R a-w .venv", check=True)


CUSTOM = [] if HAS_OWN_CUSTOM else [sitecustomize]
ATTACKS = [pth, package, program, permission, *CUSTOM]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.parametrize("way", ["imports", "setup"])
def test_a_writable_environment(workspace: Path, attack: Callable[[Sandbox, Path], None], way: str) -> None:
    """What commands have put there runs in branches alone, and the code finds what it needs."""
    write_own = packages(workspace / ".venv")
    made(workspace / ".venv")
    (write_own / "own.py").write_text("x = 5\n")
    with Sandbox(Policy.workspace(workspace)) as box:
        attack(box, workspace)
        py = box.python(imports=["own"]) if way == "imports" else box.python(setup="import own")
        with py:
            assert notes(workspace) == []
            result = py.run("import sys\n[own.x, sys.prefix, sys.executable]")
            assert result.value == [5, str(workspace / ".venv"), str(workspace / ".venv/bin/python")], result.stderr
            assert str(workspace) in py.why_cold and "read=" in py.why_cold
            with py.kernel() as kernel:
                assert [kernel.run("own.x").value for _ in range(2)] == [5, 5]
                (fork,) = kernel.fork(1)
                assert fork.run("own.x").value == 5
    assert notes(workspace) == [NOTHING] * 2  # of the run, and of the kernel


@pytest.mark.parametrize("attack", [pth, package, *CUSTOM], ids=lambda attack: attack.__name__)
def test_control_a_read_only_environment(workspace: Path, attack: Callable[[Sandbox, Path], None]) -> None:
    """There no command can write. What you have put there yourself runs in the interpreter, with its rights."""
    made(workspace / ".venv")
    (packages(workspace / ".venv") / "own.py").write_text("x = 5\n")
    with Sandbox(Policy.workspace(workspace)) as box:
        attack(box, workspace)
    policy = Policy.workspace(workspace, read=[workspace / ".venv"])
    with Sandbox(policy) as box:
        assert box.shell("echo >> .venv/pyvenv.cfg").returncode != 0
        with box.python(imports=["own"]) as py:
            assert notes(workspace) == [POWER]
            assert [py.run("own.x").value for _ in range(2)] == [5, 5]
            assert py.why_cold == ""
    assert all(note == POWER for note in notes(workspace))  # of each interpreter, if another took the first one's place


@pytest.mark.parametrize("home", ["the interpreter's", "the workspace's", "a shell's"])
def test_a_planted_environment(workspace: Path, home: str) -> None:
    """A command makes an environment where there was none, and chooses the interpreter: never one that it can write."""
    venv = workspace / ".venv"
    targets = {"the interpreter's": BASE, "the workspace's": f"{workspace}/own/python", "a shell's": "/bin/sh"}
    target = targets[home]
    with Sandbox(Policy.workspace(workspace)) as box:
        write(
            box,
            venv / "pyvenv.cfg",
            f"home = {'/etc' if target == '/bin/sh' else os.path.dirname(target)}\ninclude-system-site-packages = false\n",
        )
        write(box, packages(venv) / "bad.py", poison(workspace))
        write(box, packages(venv) / "bad.pth", "import bad")
        write(box, workspace / "own" / "python", f"#!/bin/sh\necho '[true, true]' >> {workspace}/notes\n")
        box.shell(f"chmod +x own/python; mkdir .venv/bin; ln -s {target} .venv/bin/python", check=True)
        py = box.python()
        if home == "the interpreter's":
            assert py.run("1").value == 1
            assert notes(workspace) == [NOTHING]
        elif home == "the workspace's":
            with pytest.raises(InterpreterError, match="commands can write"):
                py.run("1")
            assert notes(workspace) == []
        else:
            with pytest.raises(InterpreterError):
                py.run("1")
            assert notes(workspace) == []


def test_the_interpreter_itself(workspace: Path) -> None:
    """One that commands can write to is never started; the error names it, and the remedy."""
    program = workspace / "python3.99"
    shutil.copy(BASE, program)
    with (
        Sandbox(Policy.workspace(workspace)) as box,
        pytest.raises(InterpreterError, match="commands can write") as found,
    ):
        box.python(python=program).run("1")
    assert str(program) in str(found.value) and "read=" in str(found.value) and "python=" in str(found.value)


@ORDINARY
def test_its_library(workspace: Path) -> None:
    """The same if commands can write to the standard library; a part of it is enough."""
    library = os.path.dirname(os.__file__)
    for path in (library, f"{library}/json"):
        with (
            Sandbox(layers(workspace, Bind(path, path))) as box,
            pytest.raises(InterpreterError, match="commands can write"),
        ):
            box.python(python=BASE).run("1")


@ORDINARY
def test_another_name(workspace: Path, tmp_path: Path) -> None:
    """Commands may see a directory twice: read-only under the name that counts, and writable under another."""
    venv = tmp_path / "venv"
    made(venv)
    (packages(venv) / "own.py").write_text(poison(workspace) + "x = 5\n")
    venv.chmod(0o755)
    with Sandbox(layers(workspace)) as box, box.python(python=venv / "bin/python", imports=["own"]) as py:
        assert py.run("own.x").value == 5
    found = notes(workspace)  # the control: under this name alone, nobody can write
    assert found and all(note == POWER for note in found)
    (workspace / "notes").unlink()
    (workspace / "other").mkdir()
    policy = layers(workspace, Bind(str(venv), f"{workspace}/other"))
    with Sandbox(policy) as box, box.python(python=venv / "bin/python", imports=["own"]) as py:
        assert py.run("own.x").value == 5
        assert py.why_cold
    assert notes(workspace) == [NOTHING]


# ---- read-only environments that lead out of themselves

FINDER = """
import importlib.machinery, importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, SOURCE) if name == "own" else None
sys.meta_path.append(Finder)
"""


@pytest.mark.parametrize("kind", ["path", "finder", "link", *(["customize"] if CUSTOM else [])])
def test_an_editable_package(workspace: Path, kind: str) -> None:
    """The environment is read-only, but leads to a package in the workspace, which a command has changed."""
    site = made(workspace / ".venv")
    source = workspace / "src"
    source.mkdir(mode=0o777)
    if kind == "finder":
        (site / "finder.py").write_text(FINDER.replace("SOURCE", repr(f"{source}/own.py")))
        (site / "own.pth").write_text("import finder\n")
    elif kind == "link":
        (site / "own.py").symlink_to(source / "own.py")
    else:
        (site / "own.pth").write_text(f"{source}\n")
    with Sandbox(Policy.workspace(workspace, read=[workspace / ".venv"])) as box:
        write(box, source / "own.py", "x = 5\n" if kind == "customize" else poison(workspace) + "x = 5\n")
        if kind == "customize":
            write(box, source / "sitecustomize.py", poison(workspace))
        with box.python(imports=["own"]) as py:
            assert notes(workspace) == []
            assert [py.run("own.x").value for _ in range(2)] == [5, 5]
            assert str(workspace) in py.why_cold
    assert notes(workspace) == [NOTHING] * 2


@pytest.mark.parametrize("catches", [False, True])
def test_a_setup_that_leads_there(workspace: Path, catches: bool) -> None:
    """Your setup imports from the workspace: then all of it runs in branches, even if it ignores the refusal."""
    setup = f"import sys\nsys.path.insert(0, {str(workspace)!r})\n"
    setup += "try:\n    import own\nexcept ImportError:\n    own = None\n" if catches else "import own\n"
    with Sandbox(Policy.workspace(workspace)) as box:
        write(box, workspace / "own.py", poison(workspace) + "x = 5\n")
        with box.python(setup=setup) as py:
            assert notes(workspace) == []
            assert py.run("own.x").value == 5
            assert "own.py" in py.why_cold
    assert notes(workspace) == [NOTHING]


@pytest.mark.parametrize("where", ["beside", "link"])
def test_a_compiled_module(workspace: Path, tmp_path: Path, where: str) -> None:
    """A source is read-only, but its compiled form isn't: that is what Python runs, so a command could poison it.

    beside: read= protects the source alone, in the workspace. link: its __pycache__ leads to the workspace.
    """
    directory = workspace if where == "beside" else tmp_path / "library"
    directory.mkdir(exist_ok=True)
    (directory / "harmless.py").write_text("x = 1\n")
    policy = Policy.workspace(workspace, read=[directory / "harmless.py" if where == "beside" else directory])
    with Sandbox(policy) as box:
        write(box, workspace / "poison.py", poison(workspace) + "\nx = 2\n")
        code = (
            "import importlib._bootstrap_external as boot, os\n"
            f"made = os.stat({str(directory / 'harmless.py')!r})\n"
            "code = compile(open('poison.py').read(), 'harmless.py', 'exec')\n"
            "data = boot._code_to_timestamp_pyc(code, int(made.st_mtime), made.st_size)\n"
            "os.mkdir('__pycache__')\n"
            "open(boot.cache_from_source('harmless.py'), 'wb').write(data)"
        )
        box.python().run(code, check=True)
        if where == "link":
            (directory / "__pycache__").symlink_to(workspace / "__pycache__")
        with box.python(setup=f"import sys; sys.path.insert(0, {str(directory)!r}); import harmless") as py:
            assert py.run("harmless.x").value == 2  # in a branch, it may
            assert "__pycache__" in py.why_cold
    assert notes(workspace) == [NOTHING]


@pytest.mark.parametrize("is_control", [False, True])
def test_what_python_imports_by_itself(workspace: Path, is_control: bool) -> None:
    """A setup has the workspace come first in sys.path. Long after it, Python imports modules of its own (wait4(2)).

    Control: a branch finds what a command has put in the way.
    """
    names = ("resource", "traceback", "linecache", "tokenize", "_strptime", "warnings", "threading", "selectors")
    with Sandbox(Policy.workspace(workspace)) as box:
        for name in names:
            write(box, workspace / f"{name}.py", poison(workspace) + "\nstruct_rusage = None\n")
        with box.python(setup=f"import sys; sys.path.insert(0, {str(workspace)!r})") as py:
            assert py.why_cold == ""
            for code in ("1", "1 / 0", "import os; os._exit(3)"):
                py.run(code)
            if is_control:
                py.run("import sys; sys.modules.pop('resource', None); import resource")
            assert py.run("2").value == 2
    assert notes(workspace) == ([NOTHING] if is_control else [])


def test_a_zip_file_by_its_loader(workspace: Path) -> None:
    """An archive in the workspace isn't loaded by the loader's old method either."""
    with Sandbox(Policy.workspace(workspace)) as box:
        write(box, workspace / "poison.py", poison(workspace))
        box.python().run("import zipfile; zipfile.ZipFile('z.zip', 'w').write('poison.py')", check=True)
        setup = "import zipimport; zipimport.zipimporter('z.zip').load_module('poison')"
        with box.python(setup=setup) as py:
            py.run("1")
            assert "z.zip" in py.why_cold
    assert POWER not in notes(workspace)


def test_a_library_path(workspace: Path) -> None:
    """The dynamic loader loads what LD_LIBRARY_PATH leads to, before any Python: the interpreter isn't started so."""
    ways = [
        *(
            ("LD_LIBRARY_PATH", value)
            for value in (str(workspace), f"/none;{workspace}", ".", "lib", "/none:", "$ORIGIN")
        ),
        *(("LD_PRELOAD", f"{workspace}/a.so"), ("LD_PRELOAD", "b.so ./a"), ("LD_AUDIT", "./a"), ("GCONV_PATH", "lib")),
        *(("OPENSSL_CONF", value) for value in (f"{workspace}/a b", "a.cnf")),
        *(("OPENSSL_MODULES", value) for value in ("lib", str(workspace))),
    ]
    for name, value in ways:
        policy = Policy.workspace(workspace, env={name: value})
        with Sandbox(policy) as box, pytest.raises(InterpreterError, match=name):
            box.python().run("1")
    for value in ("/usr/lib", "/usr/lib:/lib"):
        with Sandbox(Policy.workspace(workspace, env={"LD_LIBRARY_PATH": value, "OPENSSL_CONF": "/etc/a:b"})) as box:
            assert box.python().run("1").value == 1


@needs.programs("gcc")
@pytest.mark.parametrize("way", ["{0}", "/none;{0}", ".", "lib", "control"])
def test_a_library_in_the_workspace(workspace: Path, way: str) -> None:
    """A library that a command has made isn't loaded, however the path is written. Control: a branch loads it."""
    (workspace / "a.c").write_text(
        f"#include <stdio.h>\n__attribute__((constructor)) static void go(void)"
        f'{{ FILE *f = fopen("{workspace}/notes", "a"); if (f) {{ fputs("[true, true]\\n", f); fclose(f); }} }}'
    )
    (workspace / "lib").mkdir()
    for name in ("a.so", "lib/a.so"):
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", workspace / name, workspace / "a.c"], check=True)
    env = {"LD_LIBRARY_PATH": way.format(workspace), "LD_PRELOAD": "a.so"}
    if way == "control":
        with Sandbox(Policy.workspace(workspace)) as box:
            box.python().run("import ctypes; ctypes.CDLL('./a.so')", check=True)
        assert notes(workspace) == [POWER]
        return
    with Sandbox(Policy.workspace(workspace, env=env)) as box, pytest.raises(InterpreterError, match="LD_LIBRARY_PATH"):
        box.python().run("1")
    assert notes(workspace) == []


def test_a_name_in_path(workspace: Path) -> None:
    """A program of the workspace that comes first in PATH isn't started."""
    with Sandbox(Policy.workspace(workspace, env={"PATH": f"{workspace}/bin:/usr/bin:/bin"})) as box:
        write(box, workspace / "bin" / "python3", f"#!/bin/sh\necho '[true, true]' >> {workspace}/notes\n")
        box.shell("chmod +x bin/python3", check=True)
        with pytest.raises(InterpreterError, match="commands can write"):
            box.python(python="python3").run("1")
    assert notes(workspace) == []


@ORDINARY
def test_everything_is_writable() -> None:
    """With layers, what Bind shows is writable. If that is everything, there is no interpreter to trust."""
    with Sandbox(Policy.layers(Bind("/", "/"))) as box, pytest.raises(InterpreterError, match="commands can write"):
        box.python().run("1")


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_planted_environment_of_a_strangers_interpreter(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    """Commands may name any program that the policy shows. Only the caller's, and those in PATH, count; the control: all."""
    data = tmp_path / "data"
    data.mkdir()
    program = str(data / "python3")
    said = json.dumps({"executable": program, "program": program, "home": "", "prefix": "/usr", "own": [], "path": []})
    code = f"#!/bin/sh\n[ $# = 4 ] && echo '{said}' || echo x >> '{workspace}/notes'\n"  # it lies about what it is
    (data / "python3").write_text(code)
    (data / "python3").chmod(0o755)
    if not is_checked:
        monkeypatch.setattr(choice, "_is_known", lambda prepared, path: True)
    with Sandbox(Policy.workspace(workspace, read=[data])) as box:
        write(box, workspace / ".venv/pyvenv.cfg", f"home = {data}\n")
        assert box.shell(f"mkdir .venv/bin && ln -s {data}/python3 .venv/bin/python").returncode == 0
        py = box.python()
        if is_checked:
            with pytest.raises(InterpreterError, match=r"neither yours nor in PATH; .* python="):
                py.start()
        else:
            with contextlib.suppress(InterpreterError):
                py.start()
        py.close()
    assert (workspace / "notes").exists() is not is_checked
