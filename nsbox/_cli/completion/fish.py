"""Completion for fish 3 and later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsbox._cli.help.page import Argument, Page

_HEAD = """\
# Completion of nsbox for fish: nsbox completion fish > ~/.config/fish/completions/nsbox.fish
# Sets __nsbox_at to the place of the first word that belongs to no option, before which the cursor is or isn't.
function __nsbox_scan
    set -g __nsbox_words (commandline -opc)
    set -g __nsbox_at 3
    set -q __nsbox_words[2]; or return 1
    set -l taking __nsbox_values_$__nsbox_words[2]
    while set -q __nsbox_words[$__nsbox_at]
        switch $__nsbox_words[$__nsbox_at]
            case --
                set __nsbox_at (math $__nsbox_at + 1)
                return 2
            case '-?*'
                set -l option $__nsbox_words[$__nsbox_at]
                set __nsbox_at (math $__nsbox_at + 1)
                for name in $$taking
                    test $name = $option; and set __nsbox_at (math $__nsbox_at + 1)
                end
            case '*'
                return 2
        end
    end
    return 0
end
# __nsbox_in COMMAND options|operand: whether the cursor is among a subcommand's options, or behind them.
function __nsbox_in
    __nsbox_scan
    set -l place $status
    test "$__nsbox_words[2]" = $argv[1]; or return 1
    switch $argv[2]
        case options
            test $place -eq 0
        case operand
            test $place -eq 2; and return
            test $__nsbox_at -eq (math (count $__nsbox_words) + 1); and not string match -q -- '-*' (commandline -ct)
    end
end
function __nsbox_command
    __nsbox_scan
    set -l words
    set -q __nsbox_words[$__nsbox_at]; and set words (string escape -- $__nsbox_words[$__nsbox_at..-1])
    set -l line (string join -- ' ' $words (commandline -ct))
    complete --do-complete=$line
end
complete -c nsbox -f"""

_FLAGS = {
    "file": " -r -F",
    "directory": " -x -a '(__fish_complete_directories)'",
    "variable": " -x -a '(set -xn)'",
    "program": " -x -a '(__fish_complete_command)'",
    "": " -x",
}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def fish(program: Page, commands: Sequence[Page]) -> Iterator[str]:
    """Yield the lines of the file."""
    yield _HEAD
    first = "-n 'test (count (commandline -opc)) -eq 1'"
    for option in program.options():
        yield f"complete -c nsbox {first}{_option(option)}"
    for page in commands:
        word = page.name.removeprefix("nsbox ")
        yield f"complete -c nsbox {first} -a {word} -d '{_quoted(page.about)}'"
        # An option is there once for each of its values.
        taking = [name for option in page.options() for name in option.names for _ in option.values]
        yield f"set -g __nsbox_values_{word} {' '.join(taking)}".rstrip()
        for option in page.options():
            yield f"complete -c nsbox -n '__nsbox_in {word} options'{_option(option)}"
        for operand in page.operands:
            if operand.kind or operand.is_rest:
                yield f"complete -c nsbox -n '__nsbox_in {word} operand'{_operand(operand)}"


def _words(argument: Argument) -> str:
    return f" -a '{' '.join(argument.words)}'"


def _option(option: Argument) -> str:
    names = "".join(f" -l {one[2:]}" if one.startswith("--") else f" -s {one[1:]}" for one in option.names)
    values = "" if not option.values else f" -x{_words(option)}" if option.words else _FLAGS[option.kind]
    return f"{names}{values} -d '{_quoted(option.about)}'"


def _operand(operand: Argument) -> str:
    if operand.words:
        return _words(operand)
    return " -a '(__nsbox_command)'" if operand.kind == "program" else " -F"
