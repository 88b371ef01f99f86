"""Completion for bash 3.2 and later. With bash-completion, the command after `nsbox run` completes as always."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsbox._cli.help.page import Argument, Page

_HEAD = """\
# Completion of nsbox for bash: source <(nsbox completion bash)
_nsbox_reply() {
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@" -- "$cur")
}
_nsbox_offer() {
    case $1 in
        file) compopt -o filenames 2>/dev/null; _nsbox_reply -f ;;
        directory) compopt -o filenames 2>/dev/null; _nsbox_reply -d ;;
        program) compopt -o filenames 2>/dev/null; _nsbox_reply -c -f ;;
        variable) _nsbox_reply -e ;;
        words) _nsbox_reply -W "$2" ;;
    esac
}
_nsbox_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        _nsbox_offer program
    else
        _nsbox_offer file
    fi
}
_nsbox() {
    local cur=${COMP_WORDS[COMP_CWORD]} at=2 command names operand choices count kind words is_rest is_after=
    [[ $cur == = ]] && cur=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _nsbox_reply -W '@COMMANDS@'
        return
    fi
    command=${COMP_WORDS[1]} choices=
    case $command in"""
_LOOP = """\
        *) return ;;
    esac
    while ((at < COMP_CWORD)); do
        count=0 kind= words= is_rest=
        case $command:${COMP_WORDS[at]} in"""
_TAIL = """\
            *:--) ((at++)); is_after=1; break ;;
            *:-?*) ;;
            *) break ;;
        esac
        ((at++))
        # The shell splits --option=VALUE.
        if ((at < COMP_CWORD)) && [[ ${COMP_WORDS[at]} == = ]]; then ((at++)); fi
        if ((COMP_CWORD < at + count)); then
            if ((COMP_CWORD == at)) || [[ $kind == file ]]; then _nsbox_offer "$kind" "$words"; fi
            return
        fi
        ((at += count))
        [[ $is_rest ]] && break
    done
    if [[ $operand == program && ( $cur != -* || $is_after || at -lt COMP_CWORD ) ]]; then
        _nsbox_command "$at"
    elif ((at == COMP_CWORD)) && [[ $cur == -* && ! $is_after && ! $is_rest ]]; then
        _nsbox_reply -W "$names"
    else
        _nsbox_offer "$operand" "$choices"
    fi
}
complete -F _nsbox nsbox"""


def _names(page: Page) -> list[str]:
    return [name for option in page.options() for name in option.names]


def bash(program: Page, commands: Sequence[Page]) -> Iterator[str]:
    """Yield the lines of the file."""
    words = [page.name.removeprefix("nsbox ") for page in commands]
    yield _HEAD.replace("@COMMANDS@", " ".join([*words, *_names(program)]))
    for word, page in zip(words, commands, strict=True):
        operand = page.operands[0] if page.operands else Argument((), (), "")
        choices = f" choices='{' '.join(operand.words)}'" if operand.words else ""
        yield f"        {word}) names='{' '.join(_names(page))}' operand={operand.kind}{choices} ;;"
    yield _LOOP
    for specification, patterns in _patterns(words, commands).items():
        yield f"            {' | '.join(patterns)}) {specification} ;;"
    yield _TAIL


def _patterns(words: Sequence[str], commands: Sequence[Page]) -> dict[str, list[str]]:
    """Return which options of which subcommands take the same values: patterns by the assignments that say so."""
    by_name: dict[str, dict[str, list[str]]] = {}
    for word, page in zip(words, commands, strict=True):
        for option in page.options():
            for name in option.names if option.values else ():
                by_name.setdefault(name, {}).setdefault(_assignments(option), []).append(word)
    patterns: dict[str, list[str]] = {}
    for name, rows in by_name.items():
        for specification, those in rows.items():
            every = len(rows) == 1 and all(
                name not in _names(page) or word in those for word, page in zip(words, commands, strict=True)
            )
            patterns.setdefault(specification, []).extend(
                [f"*:{name}"] if every else [f"{word}:{name}" for word in those]
            )
    return patterns


def _assignments(option: Argument) -> str:
    words = f" words='{' '.join(option.words)}'" if option.words else ""
    return f"count={len(option.values)} kind={option.kind}{words}{' is_rest=1' if option.is_rest else ''}"
