"""Faces: the public names, argument errors that need no child, what an import costs, and life without the C core."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs

import nsbox
import nsbox.subprocess as face
from nsbox import Policy

STDLIB_NAMES = {
    name
    for name, value in vars(subprocess).items()
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
}


def python(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that has the installed package and not the source tree next to it."""
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | env,
        check=False,
    )


# ---- names


@pytest.mark.parametrize("name", sorted(STDLIB_NAMES))
def test_stdlib_names(name: str) -> None:
    """Every public name of the standard library's subprocess is in nsbox.subprocess and in nsbox."""
    assert name in face.__all__
    assert name in nsbox.__all__
    assert getattr(nsbox, name) is getattr(face, name)


def test_stdlib_names_are_seen() -> None:
    """The test above does look at the names that matter."""
    assert {"Popen", "run", "PIPE", "check_output", "getoutput", "list2cmdline"} <= STDLIB_NAMES
    assert set(subprocess.__all__) <= STDLIB_NAMES


def test_no_name_is_made_up() -> None:
    """nsbox.subprocess has no public name besides the standard library's, and __all__ is true."""
    assert set(face.__all__) == STDLIB_NAMES
    assert len(set(face.__all__)) == len(face.__all__)
    for module in (nsbox, face):
        assert all(hasattr(module, name) for name in module.__all__)


def test_constants_and_exceptions_are_the_stdlibs() -> None:
    """Code that catches or compares with the standard library's goes on working."""
    for name in (
        "PIPE",
        "STDOUT",
        "DEVNULL",
        "CalledProcessError",
        "TimeoutExpired",
        "SubprocessError",
        "CompletedProcess",
    ):
        assert getattr(face, name) is getattr(subprocess, name)
    assert issubclass(nsbox.Popen, subprocess.Popen)


@pytest.mark.parametrize("name", ["run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"])
def test_functions_are_our_own(name: str) -> None:
    """Each function that starts something is ours: none runs a command outside of a sandbox by mistake."""
    assert getattr(face, name) is not getattr(subprocess, name)
    assert getattr(face, name).__doc__


@pytest.mark.parametrize("name", ["run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "Popen"])
def test_named_parameters_are_the_stdlibs(name: str) -> None:
    """Each parameter that the standard library names is there by that name or goes through **options."""
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (face, subprocess))
    if any(p.kind is p.VAR_KEYWORD for p in ours.values()):
        return
    assert set(theirs) <= set(ours)
    assert set(ours) - set(theirs) == {"policy"}


def test_lazy_names() -> None:
    """What nsbox loads lazily is what type checkers see: the same names, from the same modules, all public."""
    told = {}
    conditions = [node for node in ast.parse(Path(nsbox.__file__).read_text()).body if isinstance(node, ast.If)]
    (types,) = (node for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING")
    for node in types.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nsbox"):
            told |= {alias.name: node.module for alias in node.names}
    assert set(told) == set(nsbox.__all__)
    assert len(set(nsbox.__all__)) == len(nsbox.__all__)
    for name, module in told.items():
        assert getattr(nsbox, name) is getattr(importlib.import_module(module), name)
    assert set(nsbox.__all__) <= set(dir(nsbox))


def test_no_other_names() -> None:
    """A name that nsbox doesn't have is an AttributeError, as with any module."""
    for name in ("Sandbx", "_nothing", "__wrapped__"):
        assert not hasattr(nsbox, name)
    with pytest.raises(AttributeError, match="nothing_at_all"):
        nsbox.nothing_at_all  # noqa: B018


@pytest.mark.parametrize(
    "name", ["Policy", "Limits", "Popen", "run", "call", "check_call", "check_output", "explain", "probe"]
)
def test_public_things_have_docstrings(name: str) -> None:
    """What users call says what it does."""
    assert inspect.getdoc(getattr(nsbox, name))


# ---- argument errors that need no child

BAD_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("run", (["x"],), {"input": b"", "stdin": subprocess.PIPE}),
    ("run", (["x"],), {"capture_output": True, "stdout": subprocess.PIPE}),
    ("run", (["x"],), {"capture_output": True, "stderr": subprocess.STDOUT}),
    ("check_output", (["x"],), {"stdout": subprocess.PIPE}),
    ("check_output", (["x"],), {"check": True}),
    ("check_output", (["x"],), {"input": b"", "stdin": subprocess.PIPE}),
    ("run", (), {}),
    ("call", (), {}),
    ("check_call", (), {}),
    ("check_output", (), {}),
    ("run", (["x"],), {"nonsense": 1}),
    ("run", (["x"],), {"bufsize": "1"}),
    ("run", (["x"],), {"text": True, "universal_newlines": False}),
    ("run", (["x"],), {"pipesize": "x"}),
    ("run", ([],), {}),
    ("run", ([5],), {}),
    ("run", (5,), {}),
    ("run", (["a\0b"],), {}),
    ("run", (["x", "a\0b"],), {}),
    ("run", (["x"],), {"cwd": "a\0b"}),
    ("run", (["x"],), {"env": {"A=B": "1"}}),
    ("run", (["x"],), {"env": {"A": "1\0"}}),
    ("run", (["x"],), {"env": {"A\0": "1"}}),
    ("run", (["x"],), {"env": {5: "1"}}),
    ("run", (["x"],), {"pass_fds": [-1]}),
    ("run", (["x"],), {"stdin": "x"}),
    ("run", (["x"],), {"umask": "x"}),
    ("run", (["x"],), {"user": -1}),
    ("run", (["x"],), {"user": 2**32}),
    ("run", (["x"],), {"user": 1.5}),
    ("run", (["x"],), {"user": "no such user"}),
    ("run", (["x"],), {"group": -1}),
    ("run", (["x"],), {"extra_groups": "abc"}),
    ("run", (["x"],), {"extra_groups": [-1]}),
    ("run", (["x"],), {"process_group": "x"}),
    ("run", (Path("x"),), {"shell": True}),
]


@pytest.mark.parametrize(
    ("name", "args", "options"), BAD_CALLS, ids=[f"{n}-{a}-{o}".replace("\0", "NUL") for n, a, o in BAD_CALLS]
)
def test_argument_errors(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """A wrong argument gives the standard library's exception, of the same type, before anything is started."""
    with pytest.raises(Exception) as theirs:
        getattr(subprocess, name)(*args, **options)
    with pytest.raises(theirs.type) as ours:
        getattr(face, name)(*args, policy=Policy.host(), **options)
    assert type(ours.value) is theirs.type


@pytest.mark.parametrize("options", [c[2] for c in BAD_CALLS[:6]], ids=str)
def test_argument_messages(options: dict[str, Any]) -> None:
    """Where the standard library's functions themselves complain, the words are the same too."""
    name = (
        "check_output" if "check" in options or (options.get("stdout") and "capture_output" not in options) else "run"
    )
    messages = []
    for module in (subprocess, face):
        with pytest.raises(ValueError) as caught:
            getattr(module, name)(["x"], **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("policy", ["workspace", {}, 5, nsbox.Limits(), Policy, True])
def test_policy_is_a_policy(policy: Any) -> None:
    """Anything but a Policy as policy= is a TypeError; False or "" don't mean "without a sandbox"."""
    for call in (nsbox.Popen, nsbox.run, nsbox.call, nsbox.check_call, nsbox.check_output):
        with pytest.raises(TypeError, match="policy"):
            call(["true"], policy=policy)
    for falsy in (False, 0, "", {}, ()):
        with pytest.raises(TypeError, match="policy"):
            nsbox.run(["true"], policy=falsy)  # type: ignore[arg-type]


def test_list2cmdline() -> None:
    """list2cmdline is the standard library's."""
    assert nsbox.list2cmdline(["a b", "c"]) == '"a b" c'


# ---- what an import brings along

HEAVY = (
    "asyncio",
    "argparse",
    "matplotlib",
    "psutil",
    "numpy",
    "unittest",
    "logging",
    "typing_extensions",
    "tomllib",
    "hypothesis",
    "dataclasses",
    "inspect",
    "typing",
)

# What a program that starts one command and ends imports, by package.
HOT = {
    "_backends": "filters limits namespaces",
    "_core": "call request wire",
    "_layout": "layout",
    "_machine": "minimal",
    "_plan": "host ops",
    "_policy": "details policy",
    "_seccomp": "bpf filter",
    "_spawn": "start",
}
# What that must not load: each takes longer than what it would be needed for, or is only needed when something fails.
SLOW_STDLIB = (
    "argparse ast dataclasses inspect logging mmap platform psutil resource select selectors shutil socket subprocess "
    "tempfile typing"
)
SLOW = {
    "_backends": "bwrap landlock passthrough refusals",
    "_bwrap": "completion install line policy",
    "_core": "entry orphans",
    "_kept": "split",
    "_layout": "workspace",
    "_lifetime": "usage",
    "_machine": "cgroup probe",
    "_plan": "landlock",
    "_policy": "rules",
    "_popen": "confine containment doctor popen",
    "_seccomp": "profiles",
    "_spawn": "bwrap failure",
}
SLOW_FACES = "_cli asyncio subprocess"


def modules_of(rooms: dict[str, str]) -> list[str]:
    return [f"nsbox.{package}.{name}" for package, names in rooms.items() for name in names.split()]


@needs.copied_installation()
def test_import_is_light(tmp_path: Path) -> None:
    """Importing nsbox loads next to nothing; its first use none of the heavy modules that only some faces need."""
    code = "import sys, nsbox; print(*sys.modules); nsbox.Popen, nsbox.Policy, nsbox.run; print(*sys.modules)"
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    bare, used = (set(line.split()) for line in done.stdout.splitlines())
    assert "nsbox" in bare
    assert not bare & {*HEAVY, "subprocess", "nsbox._popen.popen", "nsbox._nsbox", "_cffi_backend"}
    assert "nsbox._popen.popen" in used
    assert not used & {*HEAVY, "nsbox._cli"}


def test_the_way_to_a_spawn_is_short(tmp_path: Path) -> None:
    """All that starts a command can be imported without the slow parts of the standard library."""
    import _cffi_backend

    places = [str(Path(nsbox.__file__).parent.parent), str(Path(_cffi_backend.__file__).parent)]
    names = ", ".join(modules_of(HOT))
    code = f"import sys; before = {{*sys.modules}}; sys.path += {places}; import {names}; print(*{{*sys.modules}} - before)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "nsbox._spawn.start" in loaded
    slow = {*SLOW_STDLIB.split(), *modules_of(SLOW), *(f"nsbox.{name}" for name in SLOW_FACES.split())}
    assert not loaded & slow


def test_modules_that_are_slow_exist() -> None:
    """A module that has moved is missed here, rather than looked for in vain."""
    for name in (*modules_of(HOT), *modules_of(SLOW), *(f"nsbox.{name}" for name in SLOW_FACES.split())):
        assert importlib.util.find_spec(name) is not None


@needs.copied_installation()
def test_import_asks_and_starts_nothing(tmp_path: Path) -> None:
    """Importing nsbox and all that Popen needs neither asks the machine nor starts a process or a thread."""
    code = (
        "import sys, threading\n"
        "seen = []\n"
        "sys.addaudithook(lambda name, args: seen.append((name, str(args[:1])))\n"
        "    if name in ('os.fork', 'subprocess.Popen', 'os.posix_spawn', 'socket.__new__') or\n"
        "       (name == 'open' and str(args[0]).startswith(('/proc', '/etc', '/sys'))) else None)\n"
        "import nsbox\n"
        "nsbox.Popen\n"
        "print(seen, threading.active_count(), nsbox.probe.__module__)\n"
    )
    done = python(code, tmp_path)
    assert done.stdout == "[] 1 nsbox._machine.probe\n", done.stdout + done.stderr


def test_subprocess_itself_stays(tmp_path: Path) -> None:
    """Importing nsbox changes nothing in the standard library's subprocess."""
    code = (
        "import subprocess\n"
        "before = dict(vars(subprocess)), dict(vars(subprocess.Popen))\n"
        "import nsbox\n"
        "nsbox.Popen\n"
        "print(before == (dict(vars(subprocess)), dict(vars(subprocess.Popen))))\n"
    )
    assert python(code, tmp_path).stdout == "True\n"


# ---- without the C core

GONE = "import sys; sys.modules['nsbox._nsbox'] = None\n"
BROKEN = (
    "import sys\n"
    "class Finder:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name == 'nsbox._nsbox':\n"
    "            raise ImportError('wrong ELF class')\n"
    "sys.meta_path.insert(0, Finder())\n"
)


@pytest.mark.parametrize(("before", "why"), [(GONE, "_nsbox"), (BROKEN, "wrong ELF class")], ids=["gone", "broken"])
def test_without_the_core(before: str, why: str, tmp_path: Path) -> None:
    """Without its compiled module nsbox imports, makes policies and plans, and says why it can't start anything."""
    code = before + (
        "import os, nsbox\n"
        "from nsbox import Policy, Host\n"
        "policy = Policy.workspace(os.getcwd())\n"
        "print(nsbox.probe().core_problem)\n"
        "print(nsbox.explain(policy, Host()).splitlines()[0])\n"
        "for what in (lambda: nsbox.Popen(['true'], policy=policy), lambda: nsbox.run(['true']),\n"
        "             lambda: nsbox.explain(policy)):\n"
        "    fds = len(os.listdir('/proc/self/fd'))\n"
        "    try:\n"
        "        what()\n"
        "    except nsbox.UnavailableError as error:\n"
        "        print(type(error).__name__, len(error.reasons), error.reasons[0].what, '|', error.reasons[0].remedy)\n"
        "    assert len(os.listdir('/proc/self/fd')) == fds\n"
    )
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    problem, backend, *errors = done.stdout.splitlines()
    assert why in problem
    assert "C core" in problem
    assert backend == "backend     namespaces"
    assert len(errors) == 3
    for line in errors:
        assert (
            line == f"UnavailableError 1 {problem} | pip install --force-reinstall nsbox, with the Python that runs it"
        )


@needs.copied_installation()
@pytest.mark.parametrize("line", ["import nsbox", "from nsbox import run", "import nsbox.sandbox"])
def test_in_the_source_tree(line: str, tmp_path: Path) -> None:
    """In a source tree that isn't built one sentence says so, and what to do; control: from elsewhere it works."""
    tree = tmp_path / "clone"
    shutil.copytree(
        Path(nsbox.__file__).parent, tree / "nsbox", ignore=shutil.ignore_patterns("_nsbox*", "__pycache__")
    )
    (tree / "csrc").mkdir()
    (tree / "csrc/abi.h").touch()
    command = [sys.executable, "-B", "-c", line]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {tree}/nsbox is nsbox's source, which isn't built, and Python finds it before an installed nsbox: "
        f"change the directory, or run 'sh .ci/setup --editable' in {tree}, which does pip install -e . and installs what that needs"
    )
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs.copied_installation()
@pytest.mark.parametrize("platform", ["win32", "sunos5"])
def test_in_the_source_tree_of_another_system(platform: str, tmp_path: Path) -> None:
    """Where there is no C core to build, the source is as good as an installation."""
    shutil.copytree(
        Path(nsbox.__file__).parent, tmp_path / "nsbox", ignore=shutil.ignore_patterns("_nsbox*", "__pycache__")
    )
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/abi.h").touch()
    code = f"import os, subprocess, sys; sys.platform = {platform!r}; import nsbox; print(nsbox.__file__)"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"{tmp_path}/nsbox/__init__.py\n", done.stderr


@pytest.mark.parametrize(("platform", "absent"), [("darwin", ()), ("win32", ("resource", "fcntl", "pwd", "grp"))])
def test_on_other_systems(platform: str, absent: tuple[str, ...], tmp_path: Path) -> None:
    """On a system without a C core the package imports, also where POSIX's modules are missing, and says so."""
    code = (
        f"import subprocess, os, sys\nfor name in {absent!r}: sys.modules[name] = None\n"
        f"if {platform!r} == 'win32': del os.geteuid, os.getegid, os.getuid, os.getgid, os.uname\n"
        "sys.modules['nsbox._nsbox'] = None\n"
        f"sys.platform = {platform!r}\n"
        "import nsbox\n"
        "print(nsbox.probe().core_problem)\n"
        "try: nsbox.Popen(['true'], policy=nsbox.Policy.host())\n"
        "except nsbox.UnavailableError as error: print(error)\n"
    )
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    problem, error = done.stdout.splitlines()
    assert problem.startswith("the C core is missing" if platform == "darwin" else f"there is no C core for {platform}")
    assert problem in error


def test_the_package_is_anchored_once() -> None:
    """What protects the package's own directory from commands protects all of it, whichever module asks."""
    from nsbox._base.paths import PACKAGE
    from nsbox._machine.interpreter import package as shown

    package = str(Path(nsbox.__file__).parent)
    assert package == PACKAGE
    assert shown(()) == os.path.realpath(package)
    sources = sorted(Path(nsbox.__file__).parent.rglob("*.py"))
    assert len(sources) > 100
    asking = {path.name for path in sources if re.search(r"(?<![.\w\"])__file__", path.read_text(encoding="utf-8"))}
    # traffic.py lies beside bench/network.py, which starts it; the hooks of PyInstaller are in a directory of their own.
    # imports.py is loaded by each `import nsbox`, and nothing else is. An adapter, outside.py, has its program beside it.
    assert asking == {"paths.py", "imports.py", "network.py", "outside.py", "__init__.py"}
