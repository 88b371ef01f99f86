"""Help, manual pages, first aid: all subcommands have them, in one style, and examples that parse."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsbox import Host
from nsbox._cli import main
from nsbox._cli.commands import COMMANDS
from nsbox._cli.doctor import looks
from nsbox._cli.doctor.answer import SYMPTOMS, matching, page
from nsbox._cli.help.page import Page, pages
from nsbox._cli.help.prose import PROSE
from nsbox._cli.help.roff import file_name, roff
from nsbox._cli.help.style import COLOURED, PLAIN, style_for
from nsbox._cli.help.text import text

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("each", pages(), ids=lambda page: page.name)
def test_help(each: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage, options and examples, within the width; colours add nothing else."""
    monkeypatch.setenv("COLUMNS", "80")
    plain = text(each)
    assert plain.count("\nUsage:") == 1 and "\nExamples:\n" in plain
    assert all(name in plain for option in each.options() for name in option.names)
    assert re.sub("\033\\[[0-9;]*m", "", text(each, COLOURED)) == plain != text(each, COLOURED)
    prose = plain.partition("\nExamples:")[0]
    assert max(map(len, prose.splitlines())) < 80


@pytest.mark.parametrize("each", pages(), ids=lambda page: page.name)
def test_examples_parse(each: Page) -> None:
    """Each example is a command line that its subcommand understands."""
    assert each.prose.examples
    for line, about in each.prose.examples:
        assert about
        words = shlex.split(re.search(r"nsbox [^|)>]*", line)[0])[1:] if "'" not in line else shlex.split(line)[1:]  # type: ignore[index]
        if words[0] != "bwrap":
            parser = COMMANDS[words[0]].parser()
            options, unknown = parser.parse_known_args(words[1:])
            assert not unknown and callable(options.call), line


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.parametrize(
    ("env", "is_terminal", "style"),
    [
        ({}, True, COLOURED),
        ({}, False, PLAIN),
        ({"NO_COLOR": "1"}, True, PLAIN),
        ({"NO_COLOR": ""}, True, COLOURED),
        ({"FORCE_COLOR": "1"}, False, COLOURED),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, PLAIN),
        ({"TERM": "dumb"}, True, PLAIN),
    ],
)
def test_colour(env: dict[str, str], is_terminal: bool, style: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours are for terminals, and two variables decide otherwise."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert style_for(Terminal() if is_terminal else io.StringIO()) == style


@pytest.mark.parametrize("each", pages(), ids=lambda page: page.name)
def test_manual(each: Page, tmp_path: Path) -> None:
    """A page has each option, and groff and mandoc, where they are, find nothing wrong with it."""
    written = roff(each)
    assert all(name.replace("-", "\\-") in written for option in each.options() for name in option.names)
    path = tmp_path / file_name(each)
    path.write_text(written)
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    if shutil.which("mandoc"):
        done = subprocess.run(["mandoc", "-Tlint", "-Werror", path], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


def test_manual_is_written(tmp_path: Path) -> None:
    """All pages, into a directory that is made."""
    assert main(["man", "--write", str(tmp_path / "man1")]) == 0
    names = {path.name for path in (tmp_path / "man1").iterdir()}
    assert names == {"nsbox.1", *(f"nsbox-{name}.1" for name in COMMANDS)}


def test_manual_of_the_wheel() -> None:
    """The build installs a page for each subcommand: its list has their names."""
    build = (ROOT / "meson.build").read_text(encoding="utf-8")
    listed = re.search(r"foreach command : \[(.*?)\]", build, re.DOTALL)
    assert listed is not None and re.findall(r"'(.*)'", listed[1]) == sorted(COMMANDS)


def test_the_first_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments: three commands on stderr, and the status of a usage error."""
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(re.findall("(?m)^  nsbox ", err)) == 3
    assert main(["help"]) == 0 and "Usage: nsbox COMMAND" in capsys.readouterr().out


def test_run_imports_what_it_needs() -> None:
    """`nsbox run` makes one parser, and imports neither help nor completion nor the doctor."""
    code = (
        "import sys, nsbox._cli.commands as c\n"
        "c.COMMANDS['run'].parser().parse_known_args(['--', 'true'])\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('nsbox._cli.', 'rich', 'difflib', 'json'))))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    names = "commands options parser run run.network"
    assert done.stdout.split() == [f"nsbox._cli.{name}" for name in ["commands", "messages", *names.split()[1:]]]


# ---- first aid


def test_the_page_of_symptoms() -> None:
    """docs/howto/symptoms.md is what the table makes; each link leads somewhere."""
    assert (ROOT / "docs/howto/symptoms.md").read_text(encoding="utf-8") == page()
    for symptom in SYMPTOMS:
        assert (ROOT / "docs/howto" / symptom.page.partition("#")[0]).exists(), symptom.page


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.name)
def test_symptoms(symptom: object) -> None:
    """Each is found by its message, its name and its words; a look gives an answer for any host."""
    from nsbox._cli.doctor.symptom import Symptom

    assert isinstance(symptom, Symptom)
    for query in (symptom.message, symptom.name, *symptom.words):
        assert symptom in matching(query), query
    if symptom.look is not None:
        assert symptom.look(Host()).said


def test_looks() -> None:
    """A look says whether the cause is there."""
    assert looks.apparmor(Host(apparmor_restricts_userns=True)).is_here
    assert not looks.apparmor(Host(apparmor_restricts_userns=True, euid=0)).is_here
    assert looks.kernel(Host(kernel=(5, 10))).is_here and not looks.kernel(Host(kernel=(6, 1))).is_here
    assert looks.namespace_limit(Host(max_user_namespaces=0)).is_here
    assert looks.sandboxes(Host(userns_error=1)).is_here and not looks.sandboxes(Host()).is_here
    assert looks.sandboxes(Host(max_user_namespaces=0)).is_here
    assert looks.sandboxes(Host(unprivileged_userns=False)).is_here
    assert not looks.sandboxes(Host(unprivileged_userns=False, can_set_ids=True)).is_here


def test_what_a_look_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is the cause, in words; nothing of the sort if a look can't tell."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    main(["doctor", "proxy"])
    assert "  here    not the cause: no variable names a proxy here\n" in capsys.readouterr().out
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    main(["doctor", "proxy"])
    assert "  here    likely the cause: HTTPS_PROXY is set here\n" in capsys.readouterr().out
    main(["doctor", "open-files"])
    assert "the cause:" not in capsys.readouterr().out


def test_a_home_is_named_once_more() -> None:
    """Each page that a user of a home meets says how."""
    assert "--write DIR" in PROSE["run"].paragraphs[2]
    for path in ("README.md", "docs/howto/symptoms.md", "docs/howto/hide-files.md"):
        assert re.search(r"once more: `(?:nsbox run )?--write", (ROOT / path).read_text(encoding="utf-8")), path


def test_doctor_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Cause, a look, help; status 1 and a hint for what isn't known."""
    assert main(["doctor", "docker"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {word} " in out for word in ("cause", "here", "help", "more"))
    assert main(["doctor", "ubunto"]) == 1
    assert "did you mean ubuntu?" in capsys.readouterr().err
