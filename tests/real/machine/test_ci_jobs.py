"""The files of deploy/ci: their lines run for real, with a package whose build attacks and a test that attacks.

The package index is on this machine (nsbox_testing.jobs). Each attack has a control: the same lines with a program `nsbox`
that contains nothing. GitHub and GitLab aren't here: their lines run in a shell such as theirs, with their variables.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nsbox_testing import jobs, needs
from nsbox_testing.containers import MASK, NSBOX, contained, profile

import nsbox
from nsbox._backends import namespaces

ROOT = Path(__file__).resolve().parents[3]
CI = ROOT / "deploy/ci"
GITHUB: dict[str, Any] = yaml.safe_load((CI / "github.yml").read_text())["jobs"]["tests"]
GITLAB: dict[str, Any] = yaml.safe_load((CI / "gitlab.yml").read_text())["sandboxed"]
IS_THOROUGH = bool(os.environ.get("NSBOX_THOROUGH"))
THOROUGH = pytest.mark.skipif(not IS_THOROUGH, reason="slow: NSBOX_THOROUGH=1 has it")
BIN = str(Path(sys.executable).parent)
NONE = dict.fromkeys(
    (
        "variable",
        "environments",
        "file",
        "git",
        "untracked",
        "index",
        "elsewhere",
        "project",
        "audit",
        "source",
        "packages",
    ),
    False,
)
ALL = dict.fromkeys(NONE, True)
WHOLE = {"untracked": True}  # GitLab's: the copy has all files of the checkout
OWN = {"packages": True, "source": True}  # the installation's: the project's own build writes beside its source
HAS_NAMESPACES = not namespaces.missing(nsbox.probe())
NAMESPACES = pytest.mark.skipif(
    not HAS_NAMESPACES, reason="needs user namespaces: without them there is no list of hosts"
)
LANDLOCK = pytest.mark.skipif(nsbox.probe().landlock_abi < 2, reason="needs Landlock of version 2 or later")

pytestmark = pytest.mark.timeout(3000 if "RUN_IN_VM" in os.environ else 300)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The ports of a package index and of a server that no list names."""
    (tmp_path / "index").mkdir()
    handler = functools.partial(_Quiet, directory=str(tmp_path / "index"))
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield servers[0].server_port, servers[1].server_port
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


class Job:
    """A project with its index, and what a service sets for its job."""

    def __init__(self, directory: Path, ports: tuple[int, int], project: str = "") -> None:
        """Write both. project: where the job sees the project, if it isn't where it is."""
        self.directory, self.project = directory, directory / "project"
        (directory / "secret").write_text("TOP-SECRET")
        values = {"HIDDEN": str(directory / "secret"), "PROJECT": project or str(self.project)}
        code = jobs.tries(**values, INDEX_PORT=ports[0], OTHER_PORT=ports[1])
        jobs.make_index(directory / "index", code)
        jobs.make_project(self.project, code)
        index = f"localhost:{ports[0]}"
        self.variables = {"TOKEN": "TOP-SECRET", "PIP_INDEX_URL": f"http://{index}/simple/"}
        self.variables |= {"INDEX": index, "FILES": index, "PATH": f"{BIN}:{os.environ['PATH']}"}

    def run(self, script: str, *, is_contained: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run lines of a job in the project. is_contained: False is the control."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTEST"))}
        env |= self.variables | variables | {"PIP_CONFIG_FILE": os.devnull}
        if not is_contained:
            env["PATH"] = f"{jobs.uncontained(self.directory / 'uncontained')}:{env['PATH']}"
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(line, env=env, cwd=self.project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done


def ends(audit: Path) -> dict[str, dict[str, Any]]:
    """Return the record of the end of each step, by its file."""
    return {path.stem: json.loads(path.read_text().splitlines()[-1]) for path in audit.iterdir() if path.suffix}


# ---- the lines of each


def shell(job: Job) -> str:
    """Return the line that runs the script."""
    return f"sh {shlex.quote(str(CI / 'contained.sh'))} {shlex.quote(str(job.directory / 'job'))}"


def github(job: Job) -> str:
    """Return the lines of the workflow's steps, each in a shell and a directory of its own, as GitHub has them."""
    lines = []
    for step in GITHUB["steps"]:
        if "run" in step:
            place = step.get("working-directory", "${{ runner.temp }}/../project").replace(
                "${{ runner.temp }}", str(job.directory / "temp")
            )
            lines.append(
                f"(cd {shlex.quote(place)}; bash --noprofile --norc -eo pipefail -c {shlex.quote(step['run'])})"
            )
    return "\n".join(lines)


def gitlab(job: Job, **variables: str) -> tuple[str, dict[str, str]]:
    """Return the lines of the job, and its variables. nsbox is where it is installed here."""
    lines = [line for line in GITLAB["before_script"] if not line.startswith(("python -m venv", "/opt/nsbox/bin/pip"))]
    assert len(lines) == len(GITLAB["before_script"]) - 2
    text = "\n".join([*lines, *GITLAB["script"]]).replace("/opt/nsbox/bin/nsbox", "nsbox")
    return text, GITLAB["variables"] | job.variables | variables


# ---- plain shell, GitHub


@pytest.mark.parametrize("form", [shell, pytest.param(github, marks=THOROUGH)])
def test_two_steps(form: Any, tmp_path: Path, ports: tuple[int, int]) -> None:
    """Neither the build of a package nor a test reaches what the job has; the audit says what each tried to reach."""
    if not HAS_NAMESPACES:
        pytest.skip("needs user namespaces: without them there is no list of hosts")
    job = Job(tmp_path, ports)
    (tmp_path / "temp").mkdir()
    python = tmp_path / "python"  # as actions/setup-python has one: in no directory of the system's
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    variables = {
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_WORKSPACE": str(job.project),
        "pythonLocation": str(python),
    }
    done = job.run(form(job), **variables)
    found = jobs.report(done.stdout)
    assert found["build"] == NONE | {"index": True, **OWN}
    assert found["test"] == NONE | {"source": True}
    place = tmp_path / ("job" if form is shell else "temp/job")
    records = ends(place / "audit")
    assert {name: record["status"] for name, record in records.items()} == {"install": 0, "tests": 0}
    (refusal,) = records["install"]["network"]["refusals"]
    assert (refusal["name"], refusal["reason"]) == ("elsewhere.example", "not-listed")
    assert sorted(path.name for path in job.project.iterdir()) == [
        ".env",
        ".git",
        "pytest.ini",
        "requirements.txt",
        "test_it.py",
    ]


@pytest.mark.parametrize("form", [pytest.param(shell, marks=THOROUGH), github, pytest.param("gitlab", marks=THOROUGH)])
def test_two_steps_uncontained(form: Any, tmp_path: Path, ports: tuple[int, int]) -> None:
    """The control: where nothing contains them, all that they try works."""
    job = Job(tmp_path, ports)
    (tmp_path / "temp").mkdir()
    variables = {"RUNNER_TEMP": str(tmp_path / "temp"), "GITHUB_WORKSPACE": str(job.project), "pythonLocation": "/usr"}
    if form == "gitlab":
        script, more = gitlab(job, WHEELS="")
        more.pop("PATH")
        variables |= more | {"TMPDIR": str(tmp_path)}
    else:
        script = form(job)
    found = jobs.report(job.run(script, is_contained=False, **variables).stdout)
    assert found == {"build": ALL, "test": ALL}


# A project that is installed itself, and whose build writes beside its source, as setuptools does.
_BACKEND = """
import pathlib, zipfile

def get_requires_for_build_editable(settings=None):
    return []

def build_editable(directory, settings=None, metadata=None):
    pathlib.Path("src/own.egg-info").mkdir()
    name = "own-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as file:
        file.writestr("own.pth", str(pathlib.Path("src").resolve()))
        file.writestr("own-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n")
        file.writestr("own-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr("own-1.0.dist-info/RECORD", "")
    return name
"""
_OWN = {
    "pyproject.toml": """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "own"
version = "1.0"
""",
    "backend.py": _BACKEND,
    "types.py": "raise SystemExit('a file of the project stood before a module of Python')\n",
    "src/own.py": "ANSWER = 42\n",
    "tests/test_own.py": """import os
import own

def test_own():
    assert own.ANSWER == 42 and os.environ["WISH"] == "granted" and "TOKEN" not in os.environ
    os.makedirs("out/deep")
    for path in ("out/deep/page.html", "plain.txt"):
        with open(path, "w") as file:
            file.write("a report")
    for path in ("out/link", "linked.txt"):
        os.symlink(SECRET, path)
""",
}


def _own(tmp_path: Path, ports: tuple[int, int], *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run contained.sh in a project that is a package itself."""
    job = Job(tmp_path, ports)
    for name, text in _OWN.items():
        path = job.project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("SECRET", repr(str(tmp_path / "secret"))))
    (job.project / "test_it.py").unlink()
    subprocess.run(["git", "add", "-A"], cwd=job.project, check=True)
    env = os.environ | job.variables | {"PIP_CONFIG_FILE": os.devnull} | variables
    words = ["sh", str(CI / "contained.sh"), str(tmp_path / "job"), *arguments]
    return subprocess.run(words, env=env, cwd=job.project, capture_output=True, text=True, check=False)


@NAMESPACES
def test_the_project_is_a_package(tmp_path: Path, ports: tuple[int, int]) -> None:
    """It is installed from its own source. Its reports come out without links; options reach it; one report is missing."""
    wished = {"INSTALL": "-e . pytest", "REPORTS": "plain.txt out linked.txt junit.xml none.xml"}
    # PYTHONSAFEPATH: the project has a types.py, with which no `python -m` of the tests could start
    done = _own(tmp_path, ports, "--junit-xml=junit.xml", **wished, OPTIONS="--env WISH=granted --env PYTHONSAFEPATH=1")
    assert done.returncode == 21, done.stdout + done.stderr
    assert "none.xml" in done.stderr and "contained.sh: not every report" in done.stderr
    reports = tmp_path / "job/reports"
    found = sorted(path for path in reports.rglob("*") if not path.is_dir())
    assert [str(path.relative_to(reports)) for path in found] == ["junit.xml", "out/deep/page.html", "plain.txt"]
    assert not any(path.is_symlink() for path in reports.rglob("*"))
    # The control: outside, a copy of the same file is the secret.
    assert (tmp_path / "job/source/linked.txt").read_text() == "TOP-SECRET"


@NAMESPACES
def test_the_installation_fails(tmp_path: Path, ports: tuple[int, int]) -> None:
    """Its status isn't one of pytest's, the log says which step it was, and no test starts."""
    done = _own(tmp_path, ports, INSTALL="not-there")
    assert done.returncode == 20, done.stdout + done.stderr
    assert "contained.sh: the installation failed with status 1; the tests weren't started" in done.stderr
    assert [*ends(tmp_path / "job/audit")] == ["install"]


@NAMESPACES
def test_the_tests_fail(tmp_path: Path, ports: tuple[int, int]) -> None:
    """The status is theirs, with or without reports."""
    # There is no pytest then.
    done = _own(tmp_path, ports, INSTALL="-e .", REPORTS="none.xml", OPTIONS="--env PYTHONSAFEPATH=1")
    assert done.returncode == 1 and "No module named" in done.stderr, done.stdout + done.stderr


def test_a_file_that_is_a_link(tmp_path: Path) -> None:
    """A link in a directory that is shown leads nowhere. Control: to show the link itself shows what it leads to."""
    for name in ("packages", "source"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret").write_text("TOP-SECRET")
    (tmp_path / "source/requirements.txt").symlink_to("../secret")

    def shown(path: str) -> str:
        words = ["-w", "packages", "--read", path, "--", "cat", "../source/requirements.txt"]
        done = subprocess.run([*NSBOX, "run", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout

    assert shown("source") == ""
    assert shown("source/requirements.txt") == "TOP-SECRET"


@THOROUGH
def test_a_link_for_a_list(tmp_path: Path, ports: tuple[int, int]) -> None:
    """A list of packages that is a link to a secret isn't followed, so the log doesn't show it; the control does."""
    job = Job(tmp_path, ports)
    (job.project / "requirements.txt").unlink()
    (job.project / "requirements.txt").symlink_to(tmp_path / "secret")
    for is_contained in (True, False):
        env = job.variables | (
            {} if is_contained else {"PATH": f"{jobs.uncontained(tmp_path / 'u')}:{job.variables['PATH']}"}
        )
        place = str(tmp_path / f"job{is_contained:d}")
        done = subprocess.run(
            ["sh", CI / "contained.sh", place], env=os.environ | env, cwd=job.project, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert ("TOP-SECRET" in done.stdout + done.stderr) != is_contained, done.stderr


# ---- GitLab


@pytest.mark.skipif(HAS_NAMESPACES and not IS_THOROUGH, reason="slow: NSBOX_THOROUGH=1 has it")
def test_gitlab_on_this_machine(tmp_path: Path, ports: tuple[int, int]) -> None:
    """The job works with what this machine has: namespaces, or Landlock where these are refused. The records say which."""
    job = Job(tmp_path, ports)
    script, variables = gitlab(job)
    found = jobs.report(job.run(script, **variables, TMPDIR=str(tmp_path)).stdout)
    assert found == {"build": None, "test": NONE | WHOLE | {"source": True}}
    records = ends(job.project / "audit")
    assert {record["backend"] for record in records.values()} == {"namespaces" if HAS_NAMESPACES else "landlock"}


@THOROUGH
def test_gitlab_with_a_list(tmp_path: Path, ports: tuple[int, int]) -> None:
    """With the list that the file's comment shows, as in privileged jobs, the installation reaches nothing else."""
    if not HAS_NAMESPACES:
        pytest.skip("needs user namespaces: without them there is no list of hosts")
    job = Job(tmp_path, ports)
    (line,) = (line for line in (CI / "gitlab.yml").read_text().splitlines() if "write instead:" in line)
    network = line.partition("NETWORK: ")[2]
    assert network == "--allow-net index.example --allow-net files.example"
    network = network.replace("index.example", job.variables["INDEX"]).replace("files.example", job.variables["FILES"])
    script, variables = gitlab(job, NETWORK=network, WHEELS="")
    found = jobs.report(job.run(script, **variables, TMPDIR=str(tmp_path)).stdout)
    assert found == {"build": NONE | WHOLE | {"index": True, **OWN}, "test": NONE | WHOLE | {"source": True}}


@LANDLOCK
@needs.programs("unshare", "setpriv", "ip")
@pytest.mark.parametrize("wheels", [True, pytest.param(False, marks=THOROUGH)])
def test_gitlab_in_a_container(wheels: bool, tmp_path: Path) -> None:
    """Where a container's filter refuses namespaces, both steps run behind Landlock. Packages' code doesn't run in the first.

    Without --only-binary it does. Then it reaches every host, as the file says, and still no file.
    """
    index, other = 8001, 8002
    job = Job(tmp_path, (index, other), project="/mnt/work")
    path = tmp_path
    while path.stat().st_uid == os.geteuid() and path != path.parent:
        path.chmod(path.stat().st_mode | 0o055)
        path = path.parent
    python = shlex.quote(sys.executable)
    start = f"ip link set lo up\nexport TOKEN=TOP-SECRET\ncp -r {shlex.quote(str(job.project))}/. /mnt/work\n"
    for port in (index, other):
        start += f"{python} -m http.server --bind 127.0.0.1 --directory {shlex.quote(str(tmp_path / 'index'))} {port} "
        start += ">/dev/null 2>&1 &\n"
        start += f"until {python} -Sc 'import socket; socket.create_connection((\"127.0.0.1\", {port}))' 2>/dev/null; do :; done\n"
    start += f"chown -R {os.geteuid()}:{os.getegid()} /mnt/work\n"
    script, variables = gitlab(job, **({} if wheels else {"WHEELS": ""}))
    words = [f"{name}={value}" for name, value in variables.items()]
    done = contained(
        profile(tmp_path / "seccomp.json", is_ours=False),
        {"/work": f"uid={os.geteuid()},mode=0755,exec", "/tmp": "mode=1777,exec"},
        *("env", "-u", "PIP_CONFIG_FILE", *words, "bash", "-eo", "pipefail", "-c"),
        script + "\ncat audit/*.jsonl",
        masks=MASK + start,
        is_root=os.geteuid() == 0,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = jobs.report(done.stdout)
    open_ = {"index": True, "elsewhere": True, **OWN}
    assert found == {"build": None if wheels else NONE | WHOLE | open_, "test": NONE | WHOLE | {"source": True}}
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"schema"')]
    assert [record["event"] for record in records] == ["start", "end"] * 2
    assert {record["backend"] for record in records} == {"landlock"}
