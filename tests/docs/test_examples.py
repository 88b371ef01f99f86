"""What README, docs/ and examples/ say is true: each block of code runs and prints what stands there.

Nothing here needs a network. See fences.py for how a document says what is run.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import fences
import pytest
from nsbox_testing import needs

import nsbox
from nsbox._tools.dangerous import DANGEROUS_ENV, DANGEROUS_PREFIXES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
EXAMPLES = ROOT / "examples"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory like a reader's, and the current one."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return path


def example(name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run an example as its reader would: from a shell, which is small (the kernel counts its memory for the example)."""
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not check or done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


# ---- documents


def has_framework(name: str) -> bool:
    """Say if a page is one of a framework's: it is run where the framework is, by tests/integrations/test_page.py."""
    tests = ROOT / "tests/integrations" / Path(name).stem.replace("-", "_")
    return name.startswith("docs/integrations/") and (tests / "requirements.in").exists()


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if not has_framework(name)])
def test_document(name: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All blocks of the document run, and print what it says."""
    fences.Runner(ROOT / name, lambda: "".join(capfd.readouterr())).run()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links(name: str) -> None:
    """Each relative link leads to a file, and to a heading where it names one."""
    path = ROOT / name
    text = re.sub(r"```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = path if not file else (path.parent / file).resolve()
        assert found.exists(), f"{name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{name}: {target}"


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.startswith("docs/integrations/")])
def test_page_of_an_integration(name: str) -> None:
    """It begins with a few lines to paste, and says how to ask the machine; then what is contained, what not, versions."""
    text = (ROOT / name).read_text()
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings[0] == "In five lines" and headings[-1] == "Versions"
    if has_framework(name):
        parts = [headings.index(part) for part in ("What is contained", "What isn't contained", "Errors")]
        assert parts == sorted(parts)
    section = text.partition("## In five lines\n")[2].partition("\n## ")[0]
    first = next(fences.blocks(section))
    assert len([line for line in first.code.splitlines() if line]) <= 14
    assert (first.expected is not None) is (first.language == "python")
    assert re.search(r"^`nsbox doctor` tells you whether (this|a) machine can do it\.", section, re.M)
    assert re.search(r"[Tt]ested .*\d\.\d", text.partition("## Versions\n")[2], re.S)


def test_tests_that_are_named() -> None:
    """Each test that the threat model names is there."""
    text = (ROOT / "docs/explanation/threat-model.md").read_text()
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", text)
    assert len(named) > 90
    for file, name in named:
        path = ROOT / file
        assert path.exists(), file
        assert not name or f"\ndef {name}(" in path.read_text(), f"{file}::{name}"
    numbers = [n for row in re.findall(r"^\| ([\d, ]+) \|", text, re.M) for n in map(int, row.split(","))]
    assert len(numbers) >= 74
    assert sorted(numbers) == list(range(1, len(numbers) + 1))  # none twice, none left out


def test_reference_is_complete() -> None:
    """Every public name, field of Policy, Limits and Host, and option of the command is in the reference."""
    text = (ROOT / "docs/reference.md").read_text()
    names = [*nsbox.__all__, "explain", "Containment"]
    for kind in (nsbox.Policy, nsbox.Limits, nsbox.Host, nsbox.Plan, nsbox.Containment):
        names += [field for field in kind.__dataclass_fields__ if not field.startswith("_")]
    missing = {name for name in names if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text)}
    for command in ("run", "explain", "doctor", "bench"):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "nsbox", command, "--help"], capture_output=True, text=True, check=True
        )
        missing |= {option for option in re.findall(r"--[a-z][a-z-]+", done.stdout) if f"`{option}" not in text}
    assert missing - {"--help"} == set()


def test_refused_variables_are_in_the_reference() -> None:
    """So are all that a tool call refuses, with the reason."""
    text = (ROOT / "docs/reference.md").read_text()
    names = DANGEROUS_ENV | {f"{prefix}*": reason for prefix, reason in DANGEROUS_PREFIXES.items()}
    for name, reason in names.items():
        assert re.search(rf"^\| .*`{re.escape(name)}`.* \| {re.escape(reason)} \|$", text, re.MULTILINE), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_page_can_be_found(name: str) -> None:
    """No page of docs/ is without a link from docs/README.md or from README.md."""
    if not name.startswith("docs/") or name == "docs/README.md":
        return
    texts = [(ROOT / "README.md").read_text(), (ROOT / "docs/README.md").read_text()]
    assert any(name.removeprefix(prefix) in text for prefix, text in zip(("", "docs/"), texts, strict=True))


# ---- examples


def test_asking(project: Path) -> None:
    """The user is asked about a host, by its name; no is a refused connection, and is remembered."""
    answers = project.parent / "answers.json"
    want = "import socket\ntry: socket.create_connection(('new.invalid', 443))\nexcept OSError as e: print(e.strerror)"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "asking.py"), str(answers), sys.executable, "-c", want]
    asked = "connect to new.invalid:443? [y/n] "
    for said, before in (("n\n", asked), ("", "")):
        done = subprocess.run(command, input=said, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("Connection refused\n", f"{before}new.invalid:443: refused\n")


def test_tool_loop(project: Path) -> None:
    """A model's calls are carried out; its mistakes are answers, from which it goes on."""
    lines = example("tool_loop.py", str(project)).stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        *("write", "shell", "read_lines", "edit", "edit", "write", "shell", "done:")
    ]
    assert "status 1" in lines[1]
    assert "error: sum.py doesn't have this text" in lines[3]
    assert "error: /etc/motd is in no directory that the policy names" in lines[5]
    assert lines[-1] == "done: 3"
    assert (project / "sum.py").read_text() == "def total(xs):\n    return sum(xs)\n"


def test_exec_tool(project: Path) -> None:
    """The exec tool reports output, status and reason of each command."""
    printed = example("exec_tool.py").stdout
    assert "[status 0, " in printed and f"hello\n{os.getuid()}\n" in printed
    assert f"'/usr/x' is read-only in the sandbox; writable: {project}]\n" in printed
    assert "[SIGSEGV, " in printed and "it crashed" in printed


def test_exec_tool_keeps_head_and_tail(project: Path) -> None:
    """A flood of output is cut in the middle; nothing that a command leaves running survives it."""
    printed = example("exec_tool.py", "sleep 1000 & echo first; head -c 50000 /dev/zero | tr '\\0' x; echo last").stdout
    assert "\nfirst\n" in printed and "last\n" in printed
    assert "[... 30011 bytes left out ...]" in printed


def test_exec_tool_stops_what_takes_too_long(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a command that closes its output, or ignores signals."""
    monkeypatch.syspath_prepend(EXAMPLES)
    tool = __import__("exec_tool").ExecTool(nsbox.Policy.workspace(project), timeout=2)
    with tool.box:
        for command in ("sleep 1000", "exec >&- 2>&-; sleep 1000", "trap '' TERM INT; echo on; while :; do :; done"):
            said = tool.run(command)
            assert "it was ended after 2 seconds" in said
            assert said.startswith("[SIGKILL, " if "trap" in command else "[SIGTERM, ")
    assert said.endswith("]\non\n")


def test_exec_tool_reports_that_no_sandbox_can_be_made(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the set-up is an answer too."""
    monkeypatch.syspath_prepend(EXAMPLES)
    tool = __import__("exec_tool").ExecTool(nsbox.Policy.layers(nsbox.RoBind("/nonexistent", "/usr")))
    said = tool.run("true")
    assert said.startswith("[not started, SetupError: bind /nonexistent -> /usr [ro]: open source: No such file")


@needs.programs("gcc", "g++")
@pytest.mark.timeout(600)
def test_judge(project: Path) -> None:
    """Each program gets the verdict that is due, hostile ones included, and none gets at anything."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        judge = __import__("judge")
    finally:
        sys.path.remove(str(EXAMPLES))
    done = example("judge.py", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is due" not in done.stdout
    due = {one.name: one.due for one in (*judge.DEMO, *judge.DEEP_DEMO, *judge.SPLIT_DEMO)}
    for name, verdict in due.items():
        assert re.search(rf"^{re.escape(name)} +{verdict} ", done.stdout, re.M), name
    assert {*due.values()} == {verdict.name for verdict in judge.Verdict} - {"JE"}
    assert os.listdir(project) == []
    assert not os.path.exists("/etc/judge-was-here")


def test_judge_of_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program, its tests and its checker come from files."""
    tests = project / "tests"
    tests.mkdir()
    for name, given, answer in (("a", "1", "2\n"), ("b", "20", "40\n")):
        (tests / f"{name}.in").write_text(given)
        (tests / f"{name}.out").write_text(answer)
    source = project / "double.py"
    checker = project / "checker.py"
    for code, check, verdict, runs in (
        ("print(2 * int(input()))", "", "AC", "AC AC"),
        ("print(2)", "", "WA", "AC WA"),
        ("import sys; print(2 * int(input())); sys.exit(1)", "", "RE", "RE RE"),
        ("print('x')", "print('AC')", "AC", "AC AC"),
        ("print('x')", "import sys; print('WA' if open(sys.argv[2]).read() == '2\\n' else 'PE')", "WA", "WA PE"),
    ):
        source.write_text(code)
        checker.write_text(check)
        more = ["--checker", str(checker)] if check else []
        printed = example("judge.py", "--source", str(source), "--tests", str(tests), *more).stdout
        assert re.search(rf"^double.py +{verdict} +{runs} ", printed, re.M), printed
    assert "--source and --tests go together" in example("judge.py", "--source", str(source), check=False).stderr
    assert "has no NAME.in" in example("judge.py", "--source", str(source), "--tests", str(project), check=False).stderr


@pytest.mark.parametrize(
    ("check", "runs", "why"),
    [
        ("print('WA')", "WA WA", ""),  # the control
        ("raise SystemExit(1)", "JE JE", "status 1"),  # as after an exception: Python's status for both is 1
        ("1 // 0", "JE JE", "status 1 (exit): ZeroDivisionError"),
        ("print('WA', flush=True); 1 // 0", "JE JE", "status 1 (exit): ZeroDivisionError"),
        ("print('AC', flush=True); import os; os.abort()", "JE JE", "status -6"),
        ("print('WA'", "JE JE", "SyntaxError"),
        ("import no_such_module", "JE JE", "ModuleNotFoundError"),
        ("import sys; sys.exit(0)", "JE JE", "printed ''"),
        ("import sys; print(open(sys.argv[3]).read()); print('WA')", "JE JE", "printed 'AC"),
        ("print('AC') if open('answer').read() == '2\\n' else 1 // 0", "AC JE", "ZeroDivisionError"),
        ("print('WA') if open('answer').read() == '2\\n' else 1 // 0", "WA JE", "ZeroDivisionError"),
    ],
)
def test_a_checker_that_fails(project: Path, check: str, runs: str, why: str) -> None:
    """It is the judge's own error, with the cause on stderr and status 1: no verdict of the program, right or wrong."""
    tests = project / "tests"
    tests.mkdir()
    for name, answer in (("a", "2\n"), ("b", "40\n")):
        (tests / f"{name}.in").write_text("")
        (tests / f"{name}.out").write_text(answer)
    (project / "program.py").write_text("print('AC')")
    (project / "checker.py").write_text(check)
    files = ("--source", "program.py", "--tests", "tests", "--checker", "checker.py")
    done = example("judge.py", *files, check=False)
    assert re.search(rf"^program.py +{'JE' if why else 'WA'} +{runs} ", done.stdout, re.M), done.stdout + done.stderr
    assert done.returncode == (1 if why else 0)
    assert why in done.stderr if why else done.stderr == ""


def test_a_compiler_that_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the judge's own error, not the program's."""
    monkeypatch.syspath_prepend(EXAMPLES)
    judge = __import__("judge")
    monkeypatch.setitem(judge.COMPILERS, "c", ["no-such-compiler", "program.c"])
    found = judge.judge(judge.Submission("sum", "c", b"int main(void) { }\n"), judge.SUMS)
    assert found.verdict is judge.Verdict.JE and "no-such-compiler" in found.detail and found.runs == []


def test_what_fails_in_the_judge(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that one program's JE: the other programs are judged. A source that isn't UTF-8 is a program like any other."""
    monkeypatch.syspath_prepend(EXAMPLES)
    judge = __import__("judge")
    latin = "# -*- coding: latin-1 -*-\nprint(sum(map(int, input().split())))  # \xe4".encode("latin-1")
    programs = [judge.Submission(name, name, latin) for name in ("py", "no/such/directory", "py")]
    found = [judge.judge(program, judge.SUMS) for program in programs]
    assert [one.verdict.name for one in found] == ["AC", "JE", "AC"]
    assert found[1].detail.startswith("FileNotFoundError: ")


@needs.programs("gcc")
def test_memory_that_no_process_has(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program gets no System V ipc, whose memory counts for no process; the control has a filter without that rule."""
    monkeypatch.syspath_prepend(EXAMPLES)
    judge = __import__("judge")
    (hoard,) = [one for one in judge.DEMO if one.name == "hoard of shared memory"]
    assert judge.judge(hoard, judge.SUMS).verdict is judge.Verdict.RE
    monkeypatch.setattr(judge, "ALONE", nsbox.Filter(rules=judge.ALONE.rules[:2]))
    assert judge.judge(hoard, judge.SUMS).verdict is judge.Verdict.AC


@needs.programs("gcc")
def test_a_deep_recursion(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may use its memory as a stack, with a judge whose own stack is small; the control has the judge's stack."""
    monkeypatch.syspath_prepend(EXAMPLES)
    judge = __import__("judge")
    (deep,) = judge.DEEP_DEMO
    before = resource.getrlimit(resource.RLIMIT_STACK)
    with judge.stack_of(8 << 20):
        assert judge.judge(deep, judge.DEEPLY).verdict is judge.Verdict.AC
        monkeypatch.setattr(judge, "stack_of", contextlib.nullcontext)
        assert judge.judge(deep, judge.DEEPLY).verdict is judge.Verdict.RE
    assert resource.getrlimit(resource.RLIMIT_STACK) == before


def test_blanks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks at the ends of lines are ASCII's. A no-break space, a separator and a lone CR make another output."""
    monkeypatch.syspath_prepend(EXAMPLES)
    judge = __import__("judge")
    output = project / "output"
    for printed, due in ((b"1 2 \r\n3\n\n", "AC"), (b"1 2\xc2\xa0\n3", "WA"), (b"1 2\x1c\n3", "WA"), (b"1 2\r3", "PE")):
        output.write_bytes(printed)
        assert judge.checked(output, judge.Test(b"", b"1 2\n3\n"), judge.SUMS)[0].name == due, printed


def test_grade(project: Path) -> None:
    """Each program gets the verdict that is due, and nothing is left. By subprocess, a busy machine may take too long."""
    lines = example("grade.py", "--count", "100", "--compare").stdout.splitlines()
    assert [line.split(":")[0] for line in (lines[0], lines[7])] == ["contained", "uncontained"]
    counts = {"pass": 74, "wrong": 15, "error": 8, "timeout": 1, "memory": 2}
    contained, uncontained = lines[1:7], lines[8:14]
    assert contained[0].split() == uncontained[0].split() == ["due", *counts]
    for place, (line, due) in enumerate(zip(contained[1:], counts, strict=True)):
        assert line.split() == [due, *"-" * place, str(counts[due]), *"-" * (4 - place)]
    for line, due in zip(uncontained[1:], counts, strict=True):
        assert line.split()[0] == due and sum(int(count) for count in line.split()[1:] if count != "-") == counts[due]
    assert re.fullmatch(r"contained, it took \d+\.\d\d of the time", lines[-1])
    assert os.listdir(project) == []


def test_grade_cheats(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that looks for the answers, or ends with a verdict of its own, earns nothing; the control is an answer."""
    monkeypatch.syspath_prepend(EXAMPLES)
    grade = __import__("grade")
    questions, answers = [[1]], [1]
    cheats = [
        *grade.OTHERS["error"],
        "import gc\ndef solve(n): return next(x for x in gc.get_objects() if type(x) is list and x == [2])",
        "import sys\nsys.modules['__main__'].answers = [1]\nraise SystemExit(0)",
        "class Yes:\n    def __eq__(self, other): return True\ndef solve(n): return Yes()",
    ]
    tasks = [grade.Submission(source, questions, answers, "error") for source in cheats]
    tasks.append(grade.Submission("def solve(n): return n", questions, answers, "pass"))
    *verdicts, control = grade.contained(tasks)
    assert "pass" not in verdicts and control == "pass"


def test_grade_modules_of_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program can't leave a module that the next one imports. It can in the control, with a workspace to write to."""
    monkeypatch.syspath_prepend(EXAMPLES)
    grade = __import__("grade")
    monkeypatch.setattr(grade, "WORKERS", 1)
    planted = "open('colorsys.py', 'w').write('ONE = 0')\ndef solve(n): return n"
    importing = "import colorsys\ndef solve(n): return getattr(colorsys, 'ONE', n)"
    tasks = [grade.Submission(source, [[1]], [1], "") for source in (planted, importing)]
    assert list(grade.contained(tasks)) == ["error", "pass"]
    monkeypatch.setattr(grade, "policy", lambda empty: nsbox.Policy.workspace(empty, limits=grade.LIMITS))
    assert list(grade.contained(tasks)) == ["pass", "wrong"]


@pytest.mark.parametrize("options", [[], ["--copy"]])
def test_ci_step(options: list[str], project: Path) -> None:
    """The command's status comes back, its changes don't."""
    (project / "kept").write_text("as it was")
    command = ["sh", "-c", "pwd; echo changed > kept; mkdir new; cat kept; exit 3"]
    done = example("ci_step.py", *options, str(project), *command, check=False)
    assert done.returncode == 3, done.stderr
    where, what = done.stdout.split()
    assert what == "changed" and os.path.basename(where) == "project"
    assert os.listdir(project) == ["kept"] and (project / "kept").read_text() == "as it was"


@pytest.mark.parametrize("options", [[], ["--copy"]], ids=["overlay", "copy"])
def test_ci_step_shows_no_secrets(options: list[str], project: Path) -> None:
    """Not even root's: in layers as in a workspace. The control: outside, the caller reads what the test can read."""
    done = example("ci_step.py", *options, str(project), "cat", "/etc/shadow", check=False)
    assert done.returncode != 0 or done.stdout == ""
    assert os.access("/etc/shadow", os.R_OK) is (os.geteuid() == 0)


def test_ci_step_runs_pytest(project: Path) -> None:
    """By default it runs the tests of the repository."""
    (project / "test_it.py").write_text("def test_it():\n    open('cache', 'w').close()\n")
    assert "1 passed" in example("ci_step.py", str(project)).stdout
    assert os.listdir(project) == ["test_it.py"]


REACHED = "the secret was read, a file was planted"


@needs.programs("git", "bash")
def test_confined_libraries(project: Path) -> None:
    """Each library does its harm, and in confined() its work only; pexpect, which can't be contained, is refused."""
    for module in ("git", "invoke", "build", "pexpect"):
        pytest.importorskip(module)
    assert example("confined_libraries.py").stdout.splitlines() == [
        f"git: plain: {REACHED}; confined: nothing was reached",
        f"invoke: plain: {REACHED}; confined: nothing was reached",
        f"build: plain: {REACHED}; confined: nothing was reached",
        f"pexpect: plain: {REACHED}; confined: nothing was reached, NsboxError: refused, by os.forkpty()",
    ]
    assert os.listdir(project) == []


def test_confined_libraries_skips_what_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that isn't installed is passed over, with a word."""
    hide = "import importlib.util as u, runpy, sys; u.find_spec = lambda name: None; runpy.run_path(sys.argv[1], {}, '__main__')"
    command = [sys.executable, "-c", hide]
    done = subprocess.run(
        [*command, str(EXAMPLES / "confined_libraries.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"{name}: skipped, it isn't installed" for name in ("git", "invoke", "build", "pexpect")
    ]


def test_trio_and_anyio(project: Path) -> None:
    """Each way starts the command in the sandbox within confined(), and outside of one where nothing asks for it."""
    for module in ("trio", "anyio"):
        pytest.importorskip(module)
    confined, plain = "second process, no secret", "a secret"
    assert example("trio_and_anyio.py").stdout.splitlines() == [
        f"trio: confined: {confined}; not confined: {plain}",
        f"anyio on asyncio: confined: {confined}; not confined: {plain}",
        f"anyio on trio: confined: {confined}; not confined: {plain}",
        f"asyncio: confined: {confined}; not confined: {plain}",
        f"nsbox.asyncio: confined: {confined}; by policy=: {confined}",
    ]


# ---- fences.py itself


def test_blocks() -> None:
    """Blocks have their line and their output; a comment keeps one from being run."""
    text = "a\n\n```python\nx\n```\n\n```text\ny\n```\n\n<!-- not run: because -->\n```python\nz\n```\n"
    text += "<!-- needs: nosuchprogram -->\n\n```console\n$ z\n```\n<!-- needs: sh -->\n```console\n$ z\n```\n"
    found = list(fences.blocks(text))
    assert [(b.language, b.code, b.line, b.is_run, b.expected) for b in found] == [
        ("python", "x\n", 4, True, "y\n"),
        ("text", "y\n", 8, True, None),
        ("python", "z\n", 13, False, None),
        ("console", "$ z\n", 18, False, None),
        ("console", "$ z\n", 22, True, None),
    ]


def test_is_like() -> None:
    """Dots stand for anything, all else for itself."""
    assert fences.is_like("a...c\n", "a b c") and fences.is_like("a\n...\nd", "a\nb\nc\nd\n")
    assert fences.is_like("a ... c", "a c") and fences.is_like("a ... c", "a b\nb c")
    assert not fences.is_like("a ... c", "ac") and not fences.is_like("a ... c", "a b.c")
    assert not fences.is_like("a.c", "abc") and not fences.is_like("a", "ab")


@pytest.mark.parametrize("name", ["spacebot.py", "workers.py"])
def test_promises(name: str, project: Path) -> None:
    """Each promise of a system of agents holds, by real commands."""
    lines = [line for line in example(name).stdout.splitlines() if not line.startswith("backend: ")]
    assert len(lines) > 20
    assert [line for line in lines if not line.startswith("ok ")] == []
