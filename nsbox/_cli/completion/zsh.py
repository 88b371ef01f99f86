"""Completion for zsh, by _arguments(zshcompsys): as a file in fpath, or sourced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsbox._cli.help.page import Argument, Page

_ACTIONS = {
    "file": "_files",
    "directory": "_files -/",
    "variable": "_parameters -g '*export*'",
    "program": "_command_names -e",
    "": " ",
}

_HEAD = """\
#compdef nsbox
# Completion of nsbox for zsh: as _nsbox in a directory of fpath, or source <(nsbox completion zsh)
_nsbox_command() {
    # The -- that ends the options isn't a word of the command.
    if [[ $words[1] == -- ]]; then shift words; ((CURRENT--)); fi
    _normal
}
_nsbox() {
    local -a commands
    commands=("""
_MIDDLE = """\
    )
    if ((CURRENT == 2)); then
        _describe command commands
        _arguments @OPTIONS@
        return
    fi
    local command=${words[2]}
    shift words; ((CURRENT--))
    case $command in"""
_TAIL = """\
    esac
}
if [[ $funcstack[1] == _nsbox ]]; then _nsbox "$@"; else compdef _nsbox nsbox; fi"""


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")


def zsh(program: Page, commands: Sequence[Page]) -> Iterator[str]:
    """Yield the lines of the file."""
    yield _HEAD
    for page in commands:
        yield f"        '{page.name.removeprefix('nsbox ')}:{_quoted(page.about)}'"
    yield _MIDDLE.replace("@OPTIONS@", " ".join(row for option in program.options() for row in _option(option)))
    for page in commands:
        yield f"        {page.name.removeprefix('nsbox ')})"
        yield "            _arguments -S \\"
        for option in page.options():
            for row in _option(option):
                yield f"                {row} \\"
        yield f"                {' '.join(_operands(page))} ;;"
    yield _TAIL


def _action(argument: Argument) -> str:
    return f"({' '.join(argument.words)})" if argument.words else _ACTIONS[argument.kind]


def _option(option: Argument) -> Iterator[str]:
    """Yield a specification of _arguments for each spelling of an option."""
    about = _quoted(option.about).replace("[", "\\[").replace("]", "\\]")
    actions = [_action(option) if i == 0 or option.kind == "file" else " " for i in range(len(option.values))]
    values = "".join(
        _quoted(f":{value.replace(':', chr(92) + ':')}:{action}")
        for value, action in zip(option.values, actions, strict=True)
    )
    for name in option.names:
        # A + or = says that the value may be in the same word. The last values of several can't be.
        joint = "" if len(option.values) != 1 else "=" if name.startswith("--") else "+"
        yield f"'{'(-)' if option.is_rest else '*'}{name}{'' if option.is_rest else joint}[{about}]{values}'"


def _operands(page: Page) -> Iterator[str]:
    for operand in page.operands:
        name = operand.values[0].lower()
        if operand.kind == "program":
            yield f"'(-):{name}:_command_names -e'"
            yield "'*::arguments:_nsbox_command'"
        elif operand.is_rest:
            yield f"'(-)*:{name}:{_quoted(_ACTIONS['file'])}'"
        else:
            yield f"'*:{name}:{_quoted(_action(operand))}'"
