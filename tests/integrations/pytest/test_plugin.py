"""The plugin for pytest with the real one: tests in sandboxes, workers in sandboxes, and nothing without being asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a secret beside it, which its tests can read without a sandbox."""
    path = tmp_path / "project"
    path.mkdir()
    (tmp_path / "secret").write_text("hidden")
    (path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\nfilterwarnings = error\n")
    return path


@pytest.fixture
def run(project: Path) -> Run:
    """Write test_it.py, and run pytest on it; the code may say SECRET for the path of the secret."""

    def start(code: str, *args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        code = code.replace("SECRET", repr(str(project.parent / "secret")))
        (project / "test_it.py").write_text(f"import os, pathlib, pytest, sys, warnings\n{code}")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:random_order", f"--basetemp={project.parent / 'base'}", *args],
            cwd=project,
            capture_output=True,
            text=True,
            env=environ,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return start


READS = "def test_reads(): assert pathlib.Path(SECRET).read_text() == 'hidden'\n"


@pytest.mark.smoke
@pytest.mark.timeout(300)
def test_mark_and_option(run: Run) -> None:
    """A marked test can't read what the policy hides, and its report says why. The control, without a mark, can."""
    run(READS)
    for code, args in ((f"@pytest.mark.nsbox\n{READS}", []), (READS, ["--nsbox"])):
        said = run(code, *args, status=1).stdout
        assert "Error: [Errno" in said and "1 failed" in said
    said = run("@pytest.mark.nsbox\ndef test_it(): pathlib.Path('/usr/tool').write_text('x')\n", status=1).stdout
    assert "nsbox: why" in said and "'/usr/tool' is read-only in the sandbox" in said


@pytest.mark.timeout(300)
def test_outcomes(run: Run, project: Path) -> None:
    """Each outcome, output, parameters, properties and durations arrive as without a sandbox: also in JUnit's XML."""
    code = """
pytestmark = pytest.mark.nsbox

@pytest.fixture(scope="module")
def shared():
    return []

@pytest.fixture
def broken():
    yield
    raise LookupError("late")

def test_passes(shared, tmp_path, record_property):
    print("some output")
    record_property("size", 3)
    shared.append(1)
    (tmp_path / "file").write_text("x")
    assert os.getpid() < 100 and shared == [1]

@pytest.mark.parametrize("name", ["a::b", "[c]", "ü", "d/e"])
def test_names(name, shared):
    assert name and shared == []

def test_fails():
    print("before the end")
    assert 1 == 2

def test_skips():
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_xfails():
    raise ValueError

@pytest.mark.xfail(strict=True)
def test_passes_unexpectedly():
    pass

def test_teardown(broken):
    pass

@pytest.mark.filterwarnings("default")
def test_warns():
    warnings.warn("careful")

class TestClass:
    def test_method(self):
        pass
"""
    said = run(code, "-rA", "--durations=2", "--junitxml=report.xml", "-W", "default::UserWarning", status=1).stdout
    assert "2 failed, 8 passed, 1 skipped, 1 xfailed, 1 warning, 1 error" in said, said
    assert "some output" in said and "before the end" in said and "SKIPPED [1] test_it.py" in said
    assert "LookupError: late" in said and "careful" in said and "slowest 2 durations" in said
    assert "[XPASS(strict)]" in said
    cases = ElementTree.parse(project / "report.xml").getroot().findall(".//testcase")
    assert len(cases) >= 12
    assert [one.attrib for one in ElementTree.parse(project / "report.xml").findall(".//property")] == [
        {"name": "size", "value": "3"}
    ]


@pytest.mark.timeout(300)
def test_scope_of_a_module(run: Run) -> None:
    """Tests of a file share a sandbox, and so its fixtures and /tmp; a plain test between them doesn't."""
    code = """
@pytest.fixture(scope="module")
def pids():
    return []

@pytest.mark.nsbox
def test_one(pids):
    pids.append(os.getpid())
    open("/tmp/left", "w").close()

@pytest.mark.nsbox
def test_two(pids):
    assert pids == [os.getpid()] and os.path.exists("/tmp/left")

def test_outside(pids):
    assert pids == []

@pytest.mark.nsbox
def test_three(pids):
    assert pids == [] and not os.path.exists("/tmp/left")
"""
    assert "4 passed" in run(code, "-o", "nsbox_scope=module").stdout
    assert "1 failed, 3 passed" in run(code, status=1).stdout  # each its own: test_two finds nothing
    assert "must be one of test, module" in run(code, "-o", "nsbox_scope=session", status=4).stderr


@pytest.mark.timeout(300)
def test_ends(run: Run) -> None:
    """A test that ends its process is a failure that says how; the following tests run."""
    code = """
pytestmark = pytest.mark.nsbox
def test_exits(): os._exit(3)
def test_killed(): os.kill(os.getpid(), 9)
def test_interrupted(): raise KeyboardInterrupt
def test_exit_of_pytest(): pytest.exit("enough")
def test_after(): pass
"""
    for scope in ("test", "module"):
        said = run(code, "-o", f"nsbox_scope={scope}", status=1).stdout
        assert "4 failed, 1 passed" in said, said
        assert "the sandbox ended with status 3 before this test was done" in said
        assert "the sandbox was ended by signal 9 in this test" in said


@pytest.mark.timeout(300)
def test_choices(run: Run, project: Path) -> None:
    """-x, --lf and -k are the outer pytest's, and hold for contained tests."""
    code = "pytestmark = pytest.mark.nsbox\ndef test_a(): assert 0\ndef test_b(): pass\ndef test_c(): assert 0\n"
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    assert "1 failed in" in run(code, "-x", "-o", "nsbox_scope=module", status=1).stdout
    assert "2 failed, 1 passed" in run(code, status=1).stdout
    assert "2 failed in" in run(code, "--lf", status=1).stdout
    assert "1 passed, 2 deselected" in run(code, "-k", "test_b").stdout
    assert "1 passed" in run(code, "test_it.py::test_b").stdout
    assert "3 tests collected" in run(code, "--collect-only").stdout


@pytest.mark.timeout(300)
def test_time_limits(run: Run) -> None:
    """pytest-timeout ends a contained test, too."""
    code = "@pytest.mark.nsbox\n@pytest.mark.timeout(2)\ndef test_it():\n    while True: pass\ndef test_after(): pass\n"
    for method in ("signal", "thread"):
        said = run(code, "-o", f"timeout_method={method}", status=1).stdout
        assert "1 failed, 1 passed" in said or method == "thread", said
        assert "Timeout" in said or method == "thread"


@pytest.mark.timeout(300)
def test_policies(run: Run, project: Path) -> None:
    """A file has the policy, the mark changes it; a relative path counts from the root directory."""
    (project / "pyproject.toml").write_text('[tool.nsbox]\nnetwork = "none"\nenv = {COLOUR = "red"}\n')
    code = "@pytest.mark.nsbox(env={'COLOUR': 'blue'})\ndef test_a(): assert os.environ['COLOUR'] == 'blue'\n"
    code += "@pytest.mark.nsbox\ndef test_b(): assert os.environ['COLOUR'] == 'red'\n"
    options = ["-o", "nsbox_policy=pyproject.toml", "-o", "nsbox_section=tool.nsbox"]
    assert "2 passed" in run(code, *options).stdout
    (project / "strict.toml").write_text('env = {COLOUR = "green"}\n')
    assert "green" in run(code, "--nsbox-policy", "strict.toml", status=1).stdout
    for options, problem in (
        (["-o", "nsbox_policy=none.toml"], "none.toml"),
        (["-o", "nsbox_section=x"], "nsbox_section names a table"),
    ):
        done = run(code, *options, status=4)
        assert problem in done.stderr
    assert "has only named parameters" in run("@pytest.mark.nsbox(1)\ndef test_a(): pass\n", status=4).stderr
    assert "the mark nsbox: " in run("@pytest.mark.nsbox(network='x')\ndef test_a(): pass\n", status=4).stderr


@pytest.mark.timeout(300)
def test_refusals(run: Run) -> None:
    """What can't be had is said, and no test runs; nothing is refused that has nothing to do with sandboxes."""
    code = "@pytest.mark.nsbox\ndef test_a(): pass\n"
    assert "--pdb and --trace can't be used" in run(code, "--pdb", status=4).stderr
    assert "1 passed" in run("def test_a(): pass\n", "--pdb").stdout
    for options, problem in (
        (["--nsbox-workers=0"], "must be 1 or more"),
        (["--nsbox-workers=1", "--nsbox"], "exclude each other"),
        (["--nsbox-workers=1", "--pdb"], "--pdb can't be used"),
        (["--nsbox-workers=1", "-p", "no:xdist"], "pip install pytest-xdist"),
    ):
        assert problem in run(code, *options, status=4).stderr


@pytest.mark.timeout(300)
def test_a_machine_that_cannot(run: Run) -> None:
    """A policy that can't be had fails its test, with the reasons; the tests without a mark run."""
    code = "@pytest.mark.nsbox(backend='seatbelt')\ndef test_a(): pass\ndef test_b(): pass\n"
    said = run(code, status=1).stdout
    assert "no sandbox: this machine can't do it" in said and "1 passed, 1 error" in said


@pytest.mark.timeout(300)
def test_what_the_sandbox_says_is_data(run: Run) -> None:
    """Code inside can write to the pipe: garbage there is a failure, and other tests' results can't be forged."""
    code = """
pytestmark = pytest.mark.nsbox
def _say(text):
    for fd in range(3, 50):
        try:
            os.write(fd, text + b"\\n")
        except OSError:
            pass

def test_garbage(): _say(b"{")
def test_list(): _say(b"[1]")
def test_report(): _say(b'{"report": {"$report_type": "TestReport", "outcome": "passed"}}')
def test_deep(): _say(b"[" * 100000)
def test_of_another():
    _say(b'{"finish": "test_it.py::test_fails"}')
def test_fails(): assert 0
"""
    said = run(code, status=1).stdout
    assert "INTERNALERROR" not in said and "isn't a report" in said
    assert "5 failed, 1 passed" in said or "4 failed, 2 passed" in said, said
    assert "FAILED test_it.py::test_fails" in said


@pytest.mark.timeout(300)
def test_workers(run: Run, project: Path) -> None:
    """Each worker of pytest-xdist is in a sandbox: with its own /tmp, and also what is done while files are imported."""
    code = f"TOP = os.path.exists(SECRET)\n{READS}"
    code += "def test_contained(tmp_path): assert not TOP and str(tmp_path).startswith('/tmp/')\n"
    said = run(code, "--nsbox-workers=2", status=1).stdout
    assert "1 failed, 1 passed" in said, said
    said = run(code, "-n2", status=1).stdout  # the control
    assert "1 failed, 1 passed" in said and "FAILED test_it.py::test_contained" in said


@pytest.mark.timeout(300)
def test_marks_in_workers(run: Run) -> None:
    """In plain workers a mark contains its tests."""
    code = f"@pytest.mark.nsbox\n{READS}def test_plain(): assert pathlib.Path(SECRET).read_text()\n"
    assert "1 failed, 1 passed" in run(code, "-n2", status=1).stdout


REACHES = """
import socket
def test_reaches():
    try:
        socket.getaddrinfo("evil.example", 443)
    except OSError:
        pass

def test_writes():
    pathlib.Path("/usr/tool").write_text("x")
"""


def listed(project: Path, *options: str) -> list[str]:
    """Write a policy with a network list; return the options that name it, and others."""
    (project / "policy.toml").write_text('network = ["api.example"]\n')
    return ["--nsbox-policy=policy.toml", *options]


def section(output: str) -> list[str]:
    """Return the lines of the section about what was refused."""
    lines = output.splitlines()
    starts = [at for at, line in enumerate(lines) if line.strip("= ") == "nsbox: refused"]
    if not starts:
        return []
    end = next(at for at in range(starts[0] + 1, len(lines)) if lines[at].startswith(("=", "-")))
    return lines[starts[0] + 1 : end]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["", "workers"])
def test_what_was_refused(run: Run, project: Path, workers: list[str]) -> None:
    """The end names hosts, even of a test that passes, and files, each with its tests. The control has no such section."""
    control = "def test_plain(): pass\n"
    assert section(run(control, *workers).stdout) == []
    assert section(run(f"@pytest.mark.nsbox\n{control}", *workers, *listed(project)).stdout) == []
    said = run(REACHES, *workers, *listed(project, "--nsbox"), status=1).stdout
    assert "1 failed, 1 passed" in said, said
    assert sorted(section(said)) == [
        "'/usr/tool' is read-only in the sandbox  (test_it.py::test_writes)",
        "evil.example is refused: not-listed  (test_it.py::test_reaches)",
    ]


@pytest.mark.timeout(300)
def test_audit(run: Run, project: Path) -> None:
    """Each sandbox has its records, with the option or the setting; one in a writable directory starts no test."""
    audit = project.parent / "audit.jsonl"
    for option in (["--nsbox-audit=../audit.jsonl"], ["-o", "nsbox_audit=../audit.jsonl"]):
        run(REACHES, *listed(project, "--nsbox", *option), status=1)
        found = records(audit)
        assert [record["event"] for record in found] == ["start", "end"] * 2
        hosts = [one["name"] for record in found for one in record.get("network", {}).get("refusals", ())]
        assert hosts == ["evil.example"]
        audit.unlink()
    run("def test_plain(): pass\n", "--nsbox-audit=../audit.jsonl")  # no sandbox, no record
    assert not audit.exists()
    said = run(REACHES, *listed(project, "--nsbox", "--nsbox-audit=audit.jsonl"), status=1).stdout
    assert "2 errors" in said and "no sandbox: audit: " in said, said
    assert "passed" not in said
    assert "--nsbox-audit: " in run(REACHES, "--nsbox", "--nsbox-audit=../none/audit.jsonl", status=4).stderr


@pytest.mark.timeout(300)
def test_audit_of_workers(run: Run, project: Path) -> None:
    """Each worker of --nsbox-workers has a record. Only what came in this run is listed, and no worker can write there."""
    audit = project.parent / "audit.jsonl"
    options = listed(project, "--nsbox-workers=2", "--nsbox-audit=../audit.jsonl")
    code = f"{REACHES}\ndef test_forges(): open({str(audit)!r}, 'a')\n"
    said = run(code, *options, status=1).stdout
    assert "2 failed, 1 passed" in said, said
    assert section(said) == ["evil.example is refused: not-listed"]
    assert [record["event"] for record in records(audit)] == ["start", "start", "end", "end"]
    assert section(run("def test_plain(): pass\n", *options).stdout) == []
    assert len(records(audit)) == 8


@pytest.mark.timeout(300)
def test_refusals_are_text(run: Run, project: Path) -> None:
    """What a test makes up can't control the terminal, and many lines are cut."""
    code = """
pytestmark = pytest.mark.nsbox
def test_colours():
    raise OSError(30, "Read-only file system", "/usr/\\x1b[31mred")

@pytest.mark.parametrize("number", range(6))
def test_same(number):
    open("/usr/same", "w")
"""
    said = run(code, "-o", "nsbox_scope=module", "--tb=no", status=1).stdout
    assert not [line for line in section(said) if "\x1b" in line]
    assert [line.partition("  (")[2] for line in section(said) if "same" in line] == [
        "test_it.py::test_same[0], test_it.py::test_same[1], test_it.py::test_same[2] and 3 more)"
    ]


def test_inert(project: Path) -> None:
    """Without a mark or an option nothing of nsbox is imported, and a program that has imported it is left alone."""
    (project / "test_it.py").write_text(
        "import sys\ndef test_it(): assert not [m for m in sys.modules if m.split('.')[0] == 'nsbox']\n"
    )
    command = [sys.executable, "-m", "pytest", "-W", "error"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert "1 passed" in done.stdout and "nsbox-0.1.0" in done.stdout
    (project / "test_it.py").write_text("def test_it(): pass\n")
    program = "import nsbox, pytest, sys; sys.exit(pytest.main(['-W', 'error']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=project, capture_output=True, text=True, timeout=300
    )
    assert "1 passed" in done.stdout, done.stdout


def test_without_the_plugin(project: Path) -> None:
    """With -p no:nsbox the mark is as unknown as any."""
    (project / "test_it.py").write_text("import pytest\n@pytest.mark.nsbox\ndef test_it(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:nsbox", "--strict-markers"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert "'nsbox' not found in `markers`" in done.stdout


@pytest.mark.timeout(300)
def test_the_example() -> None:
    """The program of the documentation shows a test that passes, one that spies and one that cheats."""
    program = Path(__file__).resolve().parents[3] / "examples/integrations/pytest_plugin.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd="/", timeout=300)
    said = done.stdout.splitlines()
    assert [line.split()[:2] for line in said] == [
        ["PASSED", "test_model.py::test_sum"],
        ["FAILED", "test_model.py::test_that_spies"],
        ["FAILED", "test_model.py::test_that_cheats"],
    ], done.stdout + done.stderr
