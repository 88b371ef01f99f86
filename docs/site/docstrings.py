"""Docstrings of nsbox as Markdown.

They have a form of their own (see CONTRIBUTING.md, "Habits"): paragraphs; parameters, each on a line "name: text" whose
further lines are indented; "Files:" in front of a group of these; code, indented or not; and what is raised.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator

_PARAMETER = re.compile(r"(\*{0,2}[a-z_]\w*(?:, \*{0,2}\w+)*): (.*)", re.S)
_GROUP = re.compile(r"([A-Z][a-z]+):")
_CODE = re.compile(
    r"""(?x)
    (?<![\w."'/-]) (?:
        [A-Za-z_][\w.]* \( \)                                # a call: run(), Sandbox.run()
      | [A-Za-z_]\w* = (?: "[^"]*" | \w+ (?: \.\w+ )* )      # an argument: check=True
      | nsbox (?: \. \w+ )+                                  # a name with its module
      | [A-Za-z]\w* _ \w+ | --[a-z][a-z-]+                   # time_limit, --option
      | (?: [A-Z][a-z]+ ){2,} (?= \b ) (?! \.? \w )          # PolicyError
    )"""
)


def inline(text: str) -> str:
    """Return a text without its line breaks, names as code, and nothing that Markdown would take for its own."""
    parts = re.split(r"(`+[^`]+`+)", " ".join(text.split()))
    return "".join(part if i % 2 else _plain(part) for i, part in enumerate(parts))


def _plain(text: str) -> str:
    found, end = [], 0
    for match in _CODE.finditer(text):
        found += [_escaped(text[end : match.start()]), f"`{match[0]}`"]
        end = match.end()
    return "".join([*found, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]{}$|])", r"\\\1", text)


def _is_code(paragraph: str) -> bool:
    if not re.search(r"[(=]|\bimport ", paragraph):
        return False
    try:
        body = ast.parse(textwrap.dedent(paragraph)).body
    except SyntaxError:
        return False
    return bool(body)


def _parameters(paragraph: str, described: Callable[[str], str]) -> Iterator[str]:
    """Yield a list item for each of a paragraph's parameters."""
    for entry in re.split(r"\n(?=\S)", paragraph):
        match = _PARAMETER.fullmatch(entry)
        if match is None:
            if (group := _GROUP.fullmatch(entry.strip())) is None:
                yield f"\n{inline(entry)}\n"
            else:
                yield f"\n**{group[1]}**\n"
            continue
        names = match[1].split(", ")
        yield f"- {', '.join(f'**`{name}`**' for name in names)}{described(match[1])}: {inline(match[2])}"


def markdown(docstring: str, described: Callable[[str], str] = lambda names: "") -> str:
    """Return a docstring as Markdown; described() tells the type and the default of parameters that stand together."""
    found: list[str] = []
    if not docstring.strip():
        return ""
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(docstring).strip("\n")):
        is_indented = all(line.startswith("    ") for line in paragraph.splitlines())
        first = paragraph.split("\n", 1)[0]
        if is_indented or _is_code(paragraph):
            code = textwrap.dedent(paragraph)
            language = "python" if _is_code(paragraph) else "text"
            if found and found[-1].endswith("```") and is_indented and "\n" in found[-1]:
                found[-1] = found[-1][: -len("```")] + f"\n{code}\n```"
            else:
                found.append(f"```{language}\n{code}\n```")
        elif found and (_PARAMETER.match(first) or _GROUP.fullmatch(first)):  # "nsbox: ..." at the start is a summary
            found.append("\n".join(_parameters(paragraph, described)).strip("\n"))
        else:
            found.append(inline(paragraph))
    return "\n\n".join(found)


def summary(docstring: str) -> str:
    """Return the first sentence, as Markdown."""
    first = " ".join(re.split(r"\n\s*\n", docstring.strip())[0].split())
    return inline(re.split(r"(?<=\.) (?=[A-Z])", first)[0])
