"""The one module that the installed bwrap loads: it is what the modules are that it was made of, and all that is read.

How fast that is, `nsbox bench --only front` tells. What it does, all other tests of bwrap's do, which run it too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import _cffi_backend
import pytest

import nsbox
from nsbox import _backends
from nsbox._bwrap import install
from nsbox._core import linux, wire
from nsbox._seccomp import bpf

FRONT = Path(install.__file__).with_name("front.py")
pytestmark = pytest.mark.skipif(not FRONT.exists(), reason="an editable installation has no such file")
ORDINARY = {
    "little": ["--dev-bind", "/", "/"],
    "all namespaces": ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"],
    "an agent's": [
        *("--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--clearenv", "--setenv", "A", "b"),
        *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
        *("--symlink", "usr/lib64", "/lib64", "--ro-bind-try", "/etc/nothing", "/etc/nothing", "--dir", "/run/user"),
        *("--perms", "0700", "--size", "1000000", "--tmpfs", "/tmp", "--bind-try", "/var/empty", "/mnt"),
        *("--chdir", "/", "--unsetenv", "B", "--remount-ro", "/", "--cap-drop", "ALL"),
    ],
}

# Runs the program, and writes down how it ended, what was opened (or whatever CODE notes) and what was imported.
WATCHED = """
import sys
program, noted, *words = sys.argv[1:]
text = open(program).read().replace("_exit(main", "end(main").replace("sys.argv", "words")
seen = []
sys.addaudithook(lambda name, args: seen.append(str(args[0])) if name == "open" else None)
def end(status):
    sys.setprofile(None)
    found = repr((status, seen, sorted(sys.modules)))
    with open(noted, "w") as file:
        file.write(found)
CODE
exec(compile(text, "bwrap", "exec"), {"end": end, "words": ["bwrap", *words]})
"""


def python(code: str, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code as the program does: without site, and without anything of the environment's."""
    command = [sys.executable, "-I", "-S", "-c", code, *argv]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, timeout=30, check=False, **options)


def watched(tmp_path: Path, options: list[str], code: str = "") -> tuple[int, list[str], list[str]]:
    """Return the exit status of the program with these options, which files it has opened, and what it has imported."""
    noted = tmp_path / "noted"
    done = python(WATCHED.replace("CODE", code), install.install(str(tmp_path)), str(noted), *options, "--", "true")
    assert done.returncode == 0, done.stderr
    status, opened, imported = eval(noted.read_text())
    return status, opened, imported


@pytest.mark.parametrize("options", ORDINARY.values(), ids=ORDINARY)
def test_what_is_read(tmp_path: Path, options: list[str]) -> None:
    """An ordinary run reads one file of Python code, and what is compiled; all that the package has is from that one."""
    status, opened, imported = watched(tmp_path, options)
    assert status == 0
    here = str(Path(nsbox.__file__).parent)
    ours = {Path(path).name.partition(".")[0] for path in opened if path.startswith(here)}
    assert ours <= {"front", "_nsbox"} and "front" in ours
    assert not {"os", "posixpath", "_collections_abc", "struct", "_struct"} & set(imported)
    assert {"nsbox._bwrap", "nsbox._backends.namespaces", "nsbox._policy.policy"} <= set(imported)


def test_without_what_is_compiled(tmp_path: Path) -> None:
    """A file that has gone is looked for like any other module, and that there is none is said."""
    program = Path(install.install(str(tmp_path)))
    text = program.read_text()
    for name in ("_cffi_backend", "_nsbox"):
        program.write_text(text.replace(f"/{name}.", f"/gone/{name}."))
        done = subprocess.run([program, "--dev-bind", "/", "/", "true"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


COMPARED = """
import json, sys
sys.path[:0] = PATHS
def constants(values):
    found = set()
    for value in values:  # how constants are put together is the compiler's, and goes by the lines that they are on
        parts = getattr(value, "co_consts", value if isinstance(value, tuple) else None)
        found |= {repr(told(value))} if parts is None else constants(parts)
    return found
def told(value):
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    if isinstance(value, type):
        getattr(value, "__match_args__", None)  # which completes a frozen class
        of_a_text = ("__doc__", "__dict__", "__firstlineno__", "__static_attributes__")
        return {name: told(part) for name, part in vars(value).items() if name not in of_a_text}
    if isinstance(value, (classmethod, staticmethod)):
        return told(value.__func__)
    if isinstance(value, property):
        return told(value.fget)
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if code is None:
        text = repr(value)
        return type(value).__name__ if " at 0x" in text else text
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]
    says = [code.co_names, code.co_varnames, counts, told(value.__defaults__), told([*(value.__kwdefaults__ or {}).items()])]
    return {"says": says, "co_consts": sorted(constants(code.co_consts))}
def all_of(names):
    left = {"__annotations__", "__builtins__", "__cached__", "__doc__", "__loader__", "__spec__", "annotations", "ready"}
    return {name: {key: told(value) for key, value in vars(sys.modules[name]).items() if key not in left} for name in names}
"""


def in_front(code: str) -> Any:
    """Return what code that comes after front's prints, in JSON."""
    paths = [str(Path(nsbox.__file__).parent.parent), str(Path(_cffi_backend.__file__).parent)]
    names = {"__file__": str(FRONT), "__name__": "front"}
    first = f"import sys, json\nsys.path[:0] = {paths!r}\nnames = {names!r}\nexec(open({str(FRONT)!r}).read(), names)\n"
    done = python(code.replace("FRONT", first).replace("PATHS", repr(paths)), stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_no_module(tmp_path: Path) -> None:
    """Importing it by its name changes nothing."""
    done = subprocess.run(
        [sys.executable, "-c", "import nsbox._policy.policy; import nsbox._bwrap.front"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stderr.endswith("ImportError: only the program that `nsbox bwrap --install` makes loads this\n")


def agree(ours: Any, theirs: Any) -> bool:
    """Say if these are the same, except for docstrings and annotations, which are constants of theirs alone."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return bool(ours == theirs)
    if "co_consts" in ours:
        return ours["says"] == theirs["says"] and {*ours["co_consts"]} <= {*theirs["co_consts"], repr("None")}
    return ours.keys() == theirs.keys() and all(agree(ours[name], theirs[name]) for name in ours)


def test_its_modules_are_the_same() -> None:
    """Each has the names, the classes, the functions and the values that it has when it is imported by itself."""
    ours = in_front(f"FRONT{COMPARED}print(json.dumps(all_of([name for name, _ in names['MODULES']])))")
    alone = "import nsbox._bwrap.run, nsbox._backends.namespaces\n"
    theirs = in_front(f"{COMPARED}{alone}print(json.dumps(all_of({sorted(ours)})))")
    assert len(ours) > 25
    different = [(name, key) for name, row in theirs.items() for key in row if not agree(ours[name].get(key), row[key])]
    assert different == [] and {name: {*row} for name, row in ours.items()} == {
        name: {*row} for name, row in theirs.items()
    }


def test_the_filter_that_is_made_with_it() -> None:
    """It is what this machine's assembler makes of the rules that all commands of bwrap's have."""
    made = in_front("FRONTprint(json.dumps([code.hex() for _, code in sys.modules['nsbox._core.request'].ready]))")
    policy = nsbox.Policy.from_bwrap(["--dev-bind", "/", "/"])
    (program,) = _backends.compile_policy(policy, nsbox.probe()).programs
    machine, numbers = linux.syscalls()
    (code,) = wire.encode_programs([program], machine, bpf.NEWER | numbers)
    assert made == [code.hex()]


@pytest.mark.parametrize("options", ORDINARY.values(), ids=ORDINARY)
def test_that_filter_is_used(tmp_path: Path, options: list[str]) -> None:
    """No ordinary run assembles any."""
    profile = "sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == 'call' else None)"
    status, called, _ = watched(tmp_path, options, profile)
    assert status == 0
    assert "assembled" in called and "assemble" not in called and "encode_programs" not in called
