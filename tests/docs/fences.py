"""Reads the fenced blocks of a Markdown file and runs those that can be run.

```python    run, in one namespace for the whole file
```console   lines that begin with "$ " are run by sh, the lines below each are its expected output
```text      directly after a python block: what that block prints

"..." in expected output stands for any text, also of several lines, and " ... " also for a single space. A comment `<!-- not run: REASON -->` in front of a
block keeps it from being run, `<!-- needs: PROGRAM -->` where there is no such program.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(
    r"(?P<note><!-- (?:not run|needs): .+? -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of its first line of text, and what follows it."""

    language: str
    code: str
    line: int
    is_run: bool
    expected: str | None = None


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a document; a text block that is the output of the one before it is part of that one."""
    found = list(_BLOCK.finditer(text))
    for i, match in enumerate(found):
        line = text.count("\n", 0, match.start("code")) + 1
        expected = None
        if match["language"] == "python" and i + 1 < len(found):
            after = found[i + 1]
            if after["language"] == "text" and not text[match.end() : after.start()].strip():
                expected = after["code"]
        yield Block(match["language"], match["code"], line, _is_run(match["note"] or ""), expected)


def _is_run(note: str) -> bool:
    needed = re.search(r"needs: (\S+)", note)
    return shutil.which(needed[1]) is not None if needed else not note


def is_like(pattern: str, output: str) -> bool:
    """Compare output with what is expected, trailing blanks aside."""
    wanted, got = ("\n".join(line.rstrip() for line in text.strip().split("\n")) for text in (pattern, output))
    patterns = {" ... ": "(?: | .*? )", "...": ".*?"}
    parts = re.split(r"( \.\.\. |\.\.\.)", wanted)
    return re.fullmatch("".join(patterns.get(part) or re.escape(part) for part in parts), got, re.S) is not None


class Runner:
    """Runs the blocks of one document, in order. output: returns and forgets what has been printed so far."""

    def __init__(self, path: Path, output: Callable[[], str]) -> None:
        self.path = path
        self._output = output
        self._names: dict[str, Any] = {"__name__": "__main__"}
        search = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        self._env = os.environ | {"PATH": search}

    def run(self) -> int:
        """Run all of them; return how many there were."""
        count = 0
        for block in blocks(self.path.read_text()):
            if block.is_run and block.language in ("python", "console"):
                {"python": self._python, "console": self._console}[block.language](block)
                count += 1
        return count

    def _check(self, line: int, expected: str, output: str) -> None:
        assert is_like(expected, output), f"{self.path.name}:{line}: printed\n{output}\ninstead of\n{expected}"

    def _python(self, block: Block) -> None:
        self._output()
        # Padded, so that a traceback names the line of the document.
        code = compile("\n" * (block.line - 1) + block.code, str(self.path), "exec", dont_inherit=True)
        exec(code, self._names)
        printed = self._output()
        self._check(block.line, "" if block.expected is None else block.expected, printed)

    def _console(self, block: Block) -> None:
        assert block.code.startswith("$ "), f"{self.path.name}:{block.line}: no command"
        for part in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
            lines = part.split("\n")
            commands = [lines.pop(0)]
            while commands[-1].endswith("\\"):
                commands.append(lines.pop(0))
            command = "\n".join(commands)
            done = subprocess.run(
                ["sh", "-c", command],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self._check(block.line, "\n".join(lines), done.stdout)
