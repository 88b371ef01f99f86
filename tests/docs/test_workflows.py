"""The workflows, and the tests that need a Mac, as far as they can be checked without either: they say what there is.

Nothing here asks GitHub: which machines it has is written down below, with the day on which it was looked up.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import nsbox
from nsbox._base.frozen import fields

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
DARWIN = ROOT / "tests/darwin"
MAC_TESTS = sorted(DARWIN.glob("test_*.py"))
# Labels of the machines, in November 2026: macos-14 is about to go, macos-15-intel is there until August 2027, ubuntu-22.04
# until April 2027.
MACHINES = {"ubuntu-22.04", "ubuntu-24.04", "ubuntu-24.04-arm", "macos-14", "macos-15", "macos-15-intel", "macos-26"}

# Which job may do more than read: publish as itself, and say what CodeQL has found.
MORE: dict[tuple[str, str], dict[str, str]] = {
    ("site.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
    ("codeql.yml", "analyze"): {"contents": "read", "security-events": "write"},
}
# Whose actions are used: GitHub's own, and who else. Each version of an action is one commit.
PUBLISHERS = ("actions/", "github/codeql-action/", "pypa/gh-action-pypi-publish", "google/clusterfuzzlite/actions/")

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
each_mac_test = pytest.mark.parametrize("path", MAC_TESTS, ids=lambda path: path.name)


def _load(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def _jobs(path: Path) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = _load(path)["jobs"]
    return jobs


def _job(workflow: str, name: str) -> dict[str, Any]:
    return _jobs(ROOT / ".github/workflows" / workflow)[name]


def _steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in _jobs(path).values():
        yield from job["steps"]


def _commands(path: Path) -> Iterator[list[str]]:
    """Every command line of the workflow, as words; an expression of GitHub's is one word."""
    for step in _steps(path):
        for line in step.get("run", "").splitlines():
            yield shlex.split(re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", line), comments=True)


def _runners(job: dict[str, Any]) -> set[str]:
    if job["runs-on"] != "${{ matrix.os }}":
        return {job["runs-on"]}
    matrix = job["strategy"]["matrix"]
    return {*matrix.get("os", ()), *(row["os"] for row in matrix.get("include", ()))}


# ---- workflows


@each_workflow
def test_what_it_may(path: Path) -> None:
    """A workflow may read the repository, and gets no secret. What a job may do besides is in a list, above."""
    workflow = _load(path)
    assert workflow["permissions"] == {"contents": "read"}
    more = {(path.name, name): job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == {key: value for key, value in MORE.items() if key[0] == path.name}
    assert "secrets" not in re.findall(r"\$\{\{\s*(\w+)", path.read_text())
    assert "pull_request_target" not in path.read_text()


@each_workflow
def test_its_end(path: Path) -> None:
    """A run ends: each job has a limit of time, and a newer run takes the place of the older."""
    workflow = _load(path)
    assert "github.ref" in workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 60, name


@each_workflow
def test_actions(path: Path) -> None:
    """Actions are named by commits, with the version beside, the same in all workflows; no token is left in a clone."""
    commits: dict[str, set[str]] = {}
    for text in (other.read_text() for other in WORKFLOWS):
        for name, commit in re.findall(r"uses: (\S+)@(.*)", text):
            commits.setdefault(name, set()).add(commit)
    used = [step["uses"] for step in _steps(path) if "uses" in step]
    assert used
    for name, _, commit in (name.partition("@") for name in used):
        assert name.startswith(PUBLISHERS)
        assert re.fullmatch(r"[0-9a-f]{40}", commit), name
        (line,) = commits[name]
        assert re.fullmatch(rf"{commit} # v[0-9.]+", line), line
    for step in _steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@each_workflow
def test_machines(path: Path) -> None:
    """Each job runs on a machine that there is, of a version that is said."""
    for job in _jobs(path).values():
        assert _runners(job) <= MACHINES


@each_workflow
def test_expressions(path: Path) -> None:
    """Whatever a job takes from its matrix is in it, in each row."""
    for name, job in _jobs(path).items():
        matrix = job.get("strategy", {}).get("matrix", {})
        rows = matrix.get("include") or [{}]
        known = {*matrix} | set.intersection(*({*row} for row in rows))
        assert {*re.findall(r"matrix\.(\w+)", yaml.safe_dump(job))} <= known, name


@each_workflow
def test_shell(path: Path) -> None:
    """What a workflow runs is correct for the shell."""
    for step in _steps(path):
        script = re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", step.get("run", ""))
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@each_workflow
def test_pytest(path: Path) -> None:
    """What pytest has to run is in the tree, and the marks are declared."""
    marks = [mark.partition(":")[0] for mark in PROJECT["tool"]["pytest"]["ini_options"]["markers"]]
    for words in _commands(path):
        if "pytest" not in words[:1]:
            continue
        rest = words[1:]
        while "-m" in rest:
            at = rest.index("-m")
            assert rest[at + 1] in marks
            del rest[at : at + 2]
        for word in rest:
            given = word.partition("=")[2] if word.startswith("--") else "" if word.startswith("-") else word
            assert not given or (ROOT / given).exists(), word


@each_workflow
def test_python_code(path: Path) -> None:
    """Python on a command line is Python."""
    for words in _commands(path):
        if "-c" in words and "python" in words[0]:
            compile(words[words.index("-c") + 1], path.name, "exec")


def test_what_is_installed() -> None:
    """The tests are run with the extra of that name, which has what reads the workflows."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert "PyYAML" in extras["test"]
    for name in ("linux", "macos"):
        runs = [step["run"] for step in _job("ci.yml", name)["steps"] if "pip install" in step.get("run", "")]
        assert [extra for run in runs for extra in re.findall(r"'\.\[(\w+)\]'", run)] == ["test"]


@pytest.mark.parametrize("name", ["doctor", "explain"])
def test_subcommands(name: str) -> None:
    """The subcommands of nsbox that are run there exist, and are run on both systems."""
    done = subprocess.run([sys.executable, "-P", "-m", "nsbox", name, "--help"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    for job in ("linux", "macos"):
        assert any(f"nsbox {name}" in step.get("run", "").splitlines() for step in _job("ci.yml", job)["steps"])


def test_promised_systems() -> None:
    """The tests run on each system and processor, and with the oldest Python, that the project promises."""
    linux, macos = _job("ci.yml", "linux"), _job("ci.yml", "macos")
    assert {"ubuntu-22.04", "ubuntu-24.04"} == _runners(linux)
    assert {"macos-14", "macos-15", "macos-15-intel", "macos-26"} == _runners(macos)
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    for job in (linux, macos):
        assert oldest in job["strategy"]["matrix"]["python"]
        assert all(isinstance(python, str) for python in job["strategy"]["matrix"]["python"])  # 3.10 as a number is 3.1


def test_mac_runs() -> None:
    """On a Mac the tests that need one run, and those that need no Linux."""
    lines = [step["run"] for step in _job("ci.yml", "macos")["steps"] if step.get("run", "").startswith("pytest")]
    assert len(lines) == 2
    assert shlex.split(lines[0])[1:3] == ["-m", "darwin"]
    assert shlex.split(lines[0])[-1] == "tests/darwin"
    assert shlex.split(lines[1])[-2:] == ["tests/pure", "tests/seatbelt"]


# ---- wheels


def test_wheels_of_each_system() -> None:
    """Wheels are built for both processors of Linux and of macOS, each on a machine of its own kind."""
    rows = {
        (system, row["arch"]): row["os"]
        for system in ("linux", "macos")
        for row in _job("wheels.yml", system)["strategy"]["matrix"]["include"]
    }
    assert rows == {
        ("linux", "x86_64"): "ubuntu-24.04",
        ("linux", "aarch64"): "ubuntu-24.04-arm",
        ("macos", "arm64"): "macos-15",
        ("macos", "x86_64"): "macos-15-intel",
    }
    families = re.search(r"^has_core = .*\[(.*)\]", (ROOT / "meson.build").read_text(), re.M)
    assert families is not None
    for family in ("x86_64", "aarch64"):  # arm64 is Apple's word for the latter
        assert f"'{family}'" in families[1]


def test_build_of_wheels() -> None:
    """One build with the oldest Python is enough, since the extension has the limited API of that version."""
    table = PROJECT["tool"]["cibuildwheel"]
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert table["build"] == f"cp{oldest.replace('.', '')}-*"
    assert PROJECT["tool"]["meson-python"]["limited-api"] is True
    assert f"limited_api: '{oldest}'" in (ROOT / "meson.build").read_text()


def test_wheels_of_linux() -> None:
    """.ci/wheels alone builds those of Linux: cibuildwheel has no settings for them, and the script knows each name."""
    assert "linux" not in PROJECT["tool"]["cibuildwheel"]
    script = (ROOT / ".ci/wheels").read_text()
    (build,) = (step["run"] for step in _job("wheels.yml", "linux")["steps"] if step.get("name") == "Build")
    for row in _job("wheels.yml", "linux")["strategy"]["matrix"]["include"]:
        names = shlex.split(re.sub(r"\$\{\{ matrix.arch \}\}", row["arch"], build))[2:]
        assert [name.partition("-")[2] for name in names] == ["manylinux", "musllinux"]
        assert all(f"{name} |" in script or f"| {name})" in script for name in names)


@each_workflow
def test_user_namespaces_before_wheels(path: Path) -> None:
    """.ci/wheels makes a sandbox with what it has built, so a job that runs it allows user namespaces before."""
    for job in _jobs(path).values():
        scripts = [step.get("run", "") for step in job["steps"]]
        builds = [at for at, script in enumerate(scripts) if ".ci/wheels" in script]
        allows = [at for at, script in enumerate(scripts) if "apparmor_restrict_unprivileged_userns=0" in script]
        assert not builds or min(allows) < min(builds)


def test_musl_is_tried() -> None:
    """The wheel for musl runs a command in a sandbox, in a container that allows it and isn't privileged."""
    (trial,) = (step["run"] for step in _job("wheels.yml", "linux")["steps"] if "docker run" in step.get("run", ""))
    assert "privileged" not in trial and trial.count("unconfined") == 3
    (line,) = (line for line in trial.splitlines() if line.startswith("trial="))
    inner = shlex.split(shlex.split(line)[0].removeprefix("trial="))
    assert "nsbox-bwrap" in inner
    assert "nsbox.run(" in inner[-1]
    compile(inner[-1], "in Alpine", "exec")


def test_trial_of_wheels() -> None:
    """Each wheel is tried with a command in a sandbox."""
    words = shlex.split(PROJECT["tool"]["cibuildwheel"]["test-command"])
    assert words[0] == "python"
    assert "nsbox.run(" in words[-1]
    compile(words[-1], "test-command", "exec")


# ---- tests that need a Mac


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _called(tree: ast.AST) -> set[str]:
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _is_fixture(function: ast.FunctionDef) -> bool:
    return any("pytest.fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.skipif(sys.platform == "darwin", reason="here they are collected")
def test_not_collected_elsewhere() -> None:
    """Where there is no macOS these tests aren't skipped, but not there at all."""
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(DARWIN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr


@each_mac_test
def test_is_marked(path: Path) -> None:
    """The file says what is in it, and all its tests have the mark."""
    tree = _tree(path)
    assert ast.get_docstring(tree)
    assert "pytestmark = pytest.mark.darwin" in map(ast.unparse, tree.body)


@each_mac_test
def test_docstrings(path: Path) -> None:
    """Each test and each fixture says what it is about, in one sentence or two."""
    found = [f for f in _functions(_tree(path)) if f.name.startswith("test_") or _is_fixture(f)]
    assert found
    assert not [f.name for f in found if not ast.get_docstring(f)]


@each_mac_test
def test_controls(path: Path) -> None:
    """A test that has something refused has also a control: the same without a sandbox works."""
    for function in _functions(_tree(path)):
        if function.name.startswith("test_") and _called(function) & {"refused", "fails"}:
            assert "control" in _called(function), function.name


@pytest.mark.parametrize("path", sorted(DARWIN.rglob("*.py")), ids=lambda path: str(path.relative_to(DARWIN)))
def test_it_compiles(path: Path) -> None:
    """Each file can be compiled, and what it imports from the helpers is there."""
    tree = _tree(path)
    compile(tree, str(path), "exec")
    helpers = _tree(DARWIN / "lib/nsbox_darwin/__init__.py")
    there = {f.name for f in _functions(helpers)} | {
        target.id
        for node in helpers.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "nsbox_darwin":
            assert {name.name for name in node.names} <= there


def _scripts(tree: ast.AST) -> Iterator[str]:
    """Scripts that a test has as texts: what python(), attempt() and a case of a table are given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = ast.unparse(node.func)
            is_case = name == "pytest.param" and (
                "args[0]" in str(node.args[0].value) or "socket." in str(node.args[0].value)
            )
            if name in ("python", "attempt") or is_case:
                yield str(node.args[0].value)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and (ast.unparse(node.targets[0]) == "code" or "import " in text):
                yield text


@each_mac_test
def test_scripts(path: Path) -> None:
    """Scripts within the tests are Python."""
    for script in _scripts(_tree(path)):
        compile(textwrap.dedent(script), path.name, "exec")


@each_mac_test
def test_interface(path: Path) -> None:
    """Names of nsbox that a test uses are there, and what it wishes for are fields of Policy."""
    known = {f.name for f in fields(nsbox.Policy)}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nsbox":
            assert node.attr in dir(nsbox), node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "nsbox.Policy.workspace":
            assert {keyword.arg for keyword in node.keywords} <= known
