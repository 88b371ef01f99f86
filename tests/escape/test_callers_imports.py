"""Modules that a command leaves where its caller's interpreter looks for some: nsbox executes none of them.

`python -c`, `python -m`, the interactive interpreter and scripts have the directory that they work in on sys.path. What a
command leaves there under the name of a module that nsbox hasn't imported yet would run in the caller, outside.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import cffi
import pytest

import nsbox

OTHERS = (
    "psutil",
    "yaml",
    "keyring",
    "elftools",
    "cffi",
    "_cffi_backend",
    "uvloop",
    "importlib_metadata",
    "sitecustomize",
)
NAMES = sorted({*sys.stdlib_module_names, *OTHERS} - {*sys.builtin_module_names, "__main__", "nsbox"})

# A module that says in a file that it was executed, and is a package as well.
PLANTED = "import posix\nfd = posix.open({log!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND)\nposix.write(fd, (__name__ + chr(10)).encode())\nposix.close(fd)\n__path__ = []\n"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """A workspace in which a command has left a module for each name that there is."""
    ws = tmp_path / "ws"
    (ws / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("ws")
    text = PLANTED.format(log=str(tmp_path / "log"))
    for name in NAMES:
        (ws / f"{name}.py").write_text(text)
    about = ws / "evil-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[keyring.backends]\nevil = shelve:open\n")
    return ws


def executed(tmp_path: Path) -> set[str]:
    log = tmp_path / "log"
    return set(log.read_text().split()) if log.exists() else set()


# What a caller may do with nsbox, in one go; errors are of no interest here.
CALLER = """
import sys
FIRST, GUARDED, HERE = sys.argv[1:]
import os
here, sys.path[:] = sys.path[:], [entry for entry in sys.path if entry not in ("", HERE)]
import nsbox
nsbox.run(["true"], check=True)
if not int(GUARDED):
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "nsbox._base.imports"]
sys.path.insert(0, FIRST)
failed = []
def attempt(what):
    try: return what()
    except Exception as error: failed.append(error)
policy = nsbox.Policy.workspace(HERE)
attempt(lambda: nsbox.run(["no-such-program"]))
attempt(lambda: nsbox.run(["cat"], input="x", text=True, encoding="utf-16", capture_output=True))
attempt(lambda: nsbox.run(["sleep", "9"], timeout=0.01))
attempt(lambda: nsbox.run(["true"], preexec_fn=lambda: None))
attempt(lambda: nsbox.run(["true"], preexec_fn=lambda: 1 / 0))
attempt(lambda: nsbox.getoutput("echo x"))
attempt(lambda: policy.dumps()); attempt(lambda: policy.dumps("json")); attempt(lambda: policy.dumps("yaml"))
def files():
    from nsbox._config import load as _config
    for format, text in (("toml", "workspace = '.'\\nworkspaec = 1"), ("json", "{"), ("yaml", "a: [1, 2]"), ("toml", "netwrk = true")):
        attempt(lambda: _config.loads(text, format, base=HERE))
files()
attempt(lambda: nsbox.explain(policy)); attempt(lambda: nsbox.doctor())
def tools():
    with nsbox.Sandbox(policy) as box:
        attempt(lambda: box.shell("echo x; exit 3")); attempt(lambda: box.shell("sleep 9", timeout=0.01))
        attempt(lambda: box.write("new", "x")); attempt(lambda: box.read("new")); attempt(lambda: box.list_files("sub"))
        process = box.Popen(["sleep", "9"])
        attempt(lambda: process.sandbox.processes()); process.kill(); process.wait()
        attempt(lambda: process.sandbox.usage)
        with box.session() as session:
            attempt(lambda: session.run(["true"]))
        with box.transaction() as tx:
            attempt(lambda: tx.run("echo y > new2", shell=True))
            attempt(lambda: tx.diff()); attempt(lambda: tx.patch()); attempt(lambda: tx.commit())
attempt(tools)
def leaky():
    box = nsbox.Sandbox(policy).start()
    del box
attempt(leaky)
attempt(lambda: nsbox.leaks.scan("token AKIAIOSFODNN7EXAMPLE"))
attempt(lambda: nsbox.leaks.Scrubber({"a": "secret-value"}))
attempt(lambda: nsbox.secrets.JsonStore(HERE + "/sub/store.json").set("a", "b"))
attempt(lambda: nsbox.secrets.KeyringStore("service").names())
attempt(lambda: nsbox.rootfs.build(HERE + "/sub/root", programs=["true"]))
attempt(lambda: policy.child(read=[HERE + "/sub"]))
attempt(lambda: nsbox.run(["true"], policy=nsbox.Policy.host(backend="passthrough", require="nothing")))
def in_block():
    with nsbox.confined(policy):
        import subprocess
        subprocess.run(["true"])
def loop():
    import asyncio
    async def one():
        process = await nsbox.asyncio.create_subprocess_exec("true"); await process.wait()
    asyncio.run(one())
sys.path.remove(FIRST)
import subprocess, asyncio, io, contextlib  # the caller's own, from where they are
sys.path.insert(0, FIRST)
attempt(in_block); attempt(loop)
def command_line():
    from nsbox._cli import main
    for words in (["explain", "--workspace", HERE], ["run", "no-such-program"], ["schema"], ["check", HERE], ["doctor"], ["bench", "-h"]):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try: main(words)
            except (SystemExit, Exception) as error: failed.append(error)
command_line()
print(len(failed))
"""


SPELLINGS = (
    *("", ".", "./", "{ws}", "{ws}/", "/{ws}", "{ws}/.", "{ws}/sub/..", "{ws}/../link", "{ws}/../link/.", "../ws"),
    *("../link", "/proc/self/cwd", "/proc/self/root{ws}"),
)


def called(ws: Path, first: str, code: str = CALLER, *, is_guarded: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, first.format(ws=ws), str(int(is_guarded)), str(ws)]
    return subprocess.run(command, cwd=ws, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", SPELLINGS)
def test_planted_modules(ws: Path, tmp_path: Path, first: str) -> None:
    """Whichever way sys.path spells the workspace, nsbox imports nothing from there, by other libraries neither."""
    code = CALLER if first in ("", "{ws}") else CALLER.partition("attempt(tools)")[0] + "print(len(failed))"
    done = called(ws, first, code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert executed(tmp_path) == set(), done.stderr[-2000:]
    assert "No module named" not in done.stderr and int(done.stdout) < 15  # it isn't for want of modules


def test_control_planted_modules(ws: Path, tmp_path: Path) -> None:
    """Without the guard such modules are executed in the caller."""
    called(ws, "", is_guarded=False)
    assert {"json", "shutil", "tomllib"} < executed(tmp_path)


def _imported() -> set[str]:
    """Return the modules of others that nsbox imports in a function, by its source."""
    found: set[str] = set()
    package = Path(nsbox.__file__).parent
    files = list(package.rglob("*.py"))
    assert len(files) > 100
    for file in files:
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module)
                elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
                    first = node.args[0]
                    found |= {first.value} if isinstance(first, ast.Constant) else set()
    return {name for name in found if name.partition(".")[0] != "nsbox"}


ONE_BY_ONE = """
import sys
import nsbox
sys.path.insert(0, "")
own = {"__name__": "nsbox._one", "__file__": nsbox.__file__}
for name in sys.argv[1].split(","):
    sys.modules.pop(name, None)
    found = {}
    for who, variables in (("nsbox", own), ("caller", {"__name__": "else", "__file__": "/else.py"})):
        try:
            exec(f"import {name}", variables)
        except ImportError:
            pass
        found[who] = (getattr(sys.modules.pop(name, None), "__file__", None) or "").startswith(sys.argv[2])
    print(name, int(found["nsbox"]), int(found["caller"]))
"""


def test_each_late_import(ws: Path) -> None:
    """Each module that nsbox imports in a function is found elsewhere, though the caller's own import finds it there."""
    names = sorted(name for name in _imported() if "." not in name)
    assert {"shutil", "tomllib", "psutil", "yaml", "difflib", "resource", "keyring", "ctypes"} <= {*names}
    kept = {*sys.builtin_module_names, "sys", "os", "posix", "importlib"}  # there from the start, or not by sys.path
    names = [name for name in names if name not in kept]
    command = [sys.executable, "-P", "-c", ONE_BY_ONE, ",".join(names), str(ws)]
    done = subprocess.run(command, cwd=ws, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == names
    assert [row[0] for row in rows if row[1] != "0"] == []
    assert len([row for row in rows if row[2] == "1"]) >= len(names) - 3, rows  # the control


def test_workspace_that_is_a_package(tmp_path: Path) -> None:
    """A workspace may be called as a module is, in a directory that no command can write to: it isn't one for nsbox."""
    ws = tmp_path / "elftools"
    (ws / "elf").mkdir(parents=True)
    text = PLANTED.format(log=str(tmp_path / "log")).replace("__path__ = []", "")
    for name in ("__init__.py", "elf/__init__.py", "elf/elffile.py"):
        (ws / name).write_text(text)
    code = """
import os, sys
import nsbox
nsbox.run(["true"], policy=nsbox.Policy.workspace(sys.argv[3]), check=True)
os.chdir("/")
sys.path.insert(0, sys.argv[1])
from nsbox import rootfs; from nsbox._rootfs import elf as _elf
if not int(sys.argv[2]):
    import elftools.elf.elffile
sys.modules.pop("elftools", None)
try: rootfs.build("/nowhere/root", programs=["true"])
except Exception as error: print(type(error).__name__)
"""
    done = called(ws, str(tmp_path), code)
    assert done.stdout and executed(tmp_path) == set(), done.stderr
    called(ws, str(tmp_path), code, is_guarded=False)
    assert "elftools" in executed(tmp_path)  # the control: the caller's own import


def test_without_site(tmp_path: Path) -> None:
    """python -S hasn't loaded os: nsbox has the interpreter's."""
    (tmp_path / "os.py").write_text("print('planted')")
    code = "import nsbox; print(nsbox.run(['echo', 'x'], capture_output=True).stdout)"
    path = str(Path(nsbox.__file__).parents[1])
    path += f":{Path(cffi.__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("b'x\\n'\n", "")


HOOKED = """
import sys
class Hook:
    @staticmethod
    def find_spec(name, path=None, target=None):
        for finder in sys.meta_path:
            if getattr(finder, "__name__", "") == "PathFinder":
                return finder.find_spec(name, path, target)
sys.meta_path.insert(0, Hook)
if sys.argv[1] == "nsbox":
    import nsbox
    nsbox.run(["true"])
    try: nsbox.run(["/no/such/program"])
    except FileNotFoundError: pass
else:
    import shutil
"""


@pytest.mark.parametrize("who", ["nsbox", "the caller"])
def test_hooks_of_others(tmp_path: Path, who: str) -> None:
    """A hook that asks the path-based finder itself finds nothing for nsbox; the control: for the caller it does."""
    for name in ("shutil", "resource", "signal", "selectors", "difflib"):
        (tmp_path / f"{name}.py").write_text("print('planted')")
    command = [sys.executable, "-c", HOOKED, who]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ("planted" in done.stdout) == (who != "nsbox"), done.stderr


def test_callers_own_imports(ws: Path, tmp_path: Path) -> None:
    """The caller's own modules are found as ever: before and after a command, and in a preexec_fn."""
    (ws / "mine.py").write_text("import also\nvalue = also.value")
    (ws / "also.py").write_text("value = 5")
    code = """
import nsbox, os
def before():
    import mine
    os.write(1, str(mine.value).encode())
nsbox.run(["true"], preexec_fn=before, check=True)
import mine
print(mine.value)
"""
    assert called(ws, "", code).stdout == "55\n"


def test_python_m(ws: Path, tmp_path: Path) -> None:
    """`python -m nsbox` imports nothing from the current directory, once Python has found it."""
    code = "import runpy, sys; print(*sys.modules)"
    start = subprocess.check_output([sys.executable, "-P", "-c", code], text=True).split()
    for name in {*start, "runpy"} & {*NAMES}:  # what Python itself imports to find nsbox isn't up to nsbox
        (ws / f"{name}.py").unlink()
    for words in (["run", "echo", "on"], ["doctor"], ["explain"], ["run", "no-such-program"]):
        done = subprocess.run([sys.executable, "-m", "nsbox", *words], cwd=ws, capture_output=True, text=True)
        assert executed(tmp_path) == set(), words
        assert done.stdout == "on\n" or words[-1] != "on", done.stderr


KEYRING = """
from importlib import metadata
class errors:
    class KeyringError(Exception): pass
class Backend:
    priority = 5
    def __init__(self): self.values = {}
    def get_password(self, service, name): return self.values.get(name)
    def set_password(self, service, name, value): self.values[name] = value
def get_keyring():
    for point in metadata.entry_points(group="keyring.backends"):
        print("plug-in", point.name)
    return Backend()
"""


def test_entry_points(tmp_path: Path, ws: Path) -> None:
    """keyring looks for backends by files in all of sys.path; those that a command has left aren't seen."""
    library = tmp_path / "library"
    (library / "keyring").mkdir(parents=True)
    (library / "keyring/__init__.py").write_text(KEYRING)
    (library / "keyring/errors.py").write_text("class KeyringError(Exception): pass")
    good = library / "good-1.dist-info"
    good.mkdir()
    (good / "METADATA").write_text("Metadata-Version: 2.1\nName: good\nVersion: 1\n")
    (good / "entry_points.txt").write_text("[keyring.backends]\ngood = keyring:Backend\n")
    code = f"""
import sys
import nsbox
from nsbox import secrets
sys.path.append({str(library)!r})
whole = sys.path
store = secrets.KeyringStore("service")
store.set("a", "b")
assert sys.path is whole and "" in whole
print(store.names())
sys.modules["keyring"].get_keyring()
"""
    done = called(ws, "", code)
    assert done.stdout.split("\n")[:2] == ["plug-in good", "['a']"], done.stderr
    assert "plug-in evil" in done.stdout  # the control: the caller's own call sees it
    assert executed(tmp_path) == set()


# ---- what the caller imports itself

TOUCHING = """
import sys, os, logging
logging.basicConfig()
sys.path.insert(0, sys.argv[1])
import nsbox
for _ in range(3):
    print(nsbox.run("touch sub/planted && echo planted", shell=True, capture_output=True, text=True).stdout, end="")
policy = nsbox.Policy.workspace(".", write=["sub"])
print(nsbox.run("touch sub/wished && echo wished", shell=True, policy=policy, capture_output=True, text=True).stdout, end="")
"""


@pytest.mark.parametrize("entry", ["{ws}/sub", "sub", "{ws}/./sub/", "{ws}/../link/sub"])
def test_directories_below_the_workspace(ws: Path, entry: str) -> None:
    """What the caller imports from is read-only inside of a writable directory, as its venv is; unless it is named."""
    command = [sys.executable, "-P", "-c", TOUCHING, entry.format(ws=ws)]
    done = subprocess.run(command, cwd=ws, capture_output=True, text=True, check=True)
    assert done.stdout == "wished\n"
    assert done.stderr.count("\n") == 1 and f"commands can write to {ws}/sub, from which" in done.stderr


def test_control_directories_below_the_workspace(ws: Path) -> None:
    """What isn't on sys.path can be written to, without a word."""
    command = [sys.executable, "-P", "-c", TOUCHING, "/nowhere"]
    done = subprocess.run(command, cwd=ws, capture_output=True, text=True, check=True)
    assert done.stdout == "planted\n" * 3 + "wished\n" and done.stderr == ""


@pytest.mark.parametrize(
    ("options", "begin", "times"),
    [([], "logging.basicConfig(); ", 1), ([], "", 0), (["-P"], "logging.basicConfig(); ", 0)],
)
def test_the_workspace_itself(ws: Path, options: list[str], begin: str, times: int) -> None:
    """The workspace can't be read-only. Where the caller imports from it the log has one warning; -P is the remedy."""
    code = f"{begin}import nsbox; [nsbox.run(['true']) for _ in range(3)]"
    code = (
        f"import sys; here, sys.path[:] = sys.path[:], sys.path[1:]; import logging; sys.path[:] = here; {code}"
        if not options
        else f"import logging; {code}"
    )
    done = subprocess.run([sys.executable, *options, "-c", code], cwd=ws, capture_output=True, text=True, check=True)
    assert done.stderr.count("python -P") == times == done.stderr.count("\n"), done.stderr
