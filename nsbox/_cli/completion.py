"""Completion files of the nsbox command for bash, zsh and fish, made from its own options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

_FILES = {"FILE", "PATH"}
_DIRECTORIES = {"DIR"}


class _Option:
    """An option of a subcommand: its spellings, how many words follow it, and the kind of the first of these."""

    def __init__(self, action: argparse.Action) -> None:
        self.names = list(action.option_strings)
        self.help = (action.help or "").replace("%%", "%")
        count = action.nargs if isinstance(action.nargs, int) else 1
        self.count = 0 if isinstance(action, argparse._StoreTrueAction | argparse._HelpAction) else count
        word = action.metavar if isinstance(action.metavar, str) else ""
        self.choices = [str(choice) for choice in action.choices or ()]
        self.kind = "d" if word in _DIRECTORIES else "f" if word in _FILES else "c" if self.choices else "x"


def _commands(parser: argparse.ArgumentParser) -> dict[str, tuple[str, list[_Option]]]:
    """Return the help and the options of each subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps: dict[str, str] = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {
                name: (helps.get(name, ""), [_Option(one) for one in sub._actions if one.option_strings])
                for name, sub in action.choices.items()
            }
    return {}


def completion(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return a completion file for bash, zsh or fish; raises ValueError for another shell."""
    shells = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in shells:
        raise ValueError(f"no completion for {shell!r}, only for {', '.join(shells)}")
    return "".join(f"{line}\n" for line in shells[shell](_commands(parser)))


_Commands = dict[str, tuple[str, list[_Option]]]

_BASH_HEAD = """\
_nsbox() {
    local cur=${COMP_WORDS[COMP_CWORD]} at=2 names= count kind words
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W '@COMMANDS@ --help --version --completion' -- "$cur")
        return
    fi
    while ((at < COMP_CWORD)); do
        count=0 kind= words=
        case ${COMP_WORDS[1]}:${COMP_WORDS[at]} in"""
_BASH_TAIL = """\
            bwrap:* | *:--) ((at++)); break ;;
            *:-*) ;;
            *) break ;;
        esac
        if ((COMP_CWORD <= at + count)); then
            case $kind in
                f) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
                d) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
                c) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") ;;
            esac
            return
        fi
        ((at += count + 1))
    done
    case ${COMP_WORDS[1]} in"""
_BASH_END = """\
    esac
    if ((at == COMP_CWORD)) && [[ $cur == -* && ${COMP_WORDS[at - 1]} != -- ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
    elif [[ ${COMP_WORDS[1]} == run ]] && declare -F _command_offset >/dev/null; then
        _command_offset "$at"
    elif [[ ${COMP_WORDS[1]} == run ]] && ((at == COMP_CWORD)); then
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -c -f -- "$cur")
    else
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}
complete -F _nsbox nsbox"""


def _bash(commands: _Commands) -> Iterator[str]:
    yield _BASH_HEAD.replace("@COMMANDS@", " ".join(commands))
    for name, (_, options) in commands.items():
        for option in options:
            if option.count:
                pattern = " | ".join(f"{name}:{spelled}" for spelled in option.names)
                words = f" words='{' '.join(option.choices)}'" if option.choices else ""
                yield f"            {pattern}) count={option.count} kind={option.kind}{words} ;;"
    yield _BASH_TAIL
    for name, (_, options) in commands.items():
        spelled = " ".join(one for option in options for one in option.names)
        yield f"        {name}) names='{spelled}' ;;"
    yield _BASH_END


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")


def _zsh(commands: _Commands) -> Iterator[str]:
    yield "#compdef nsbox"
    yield "_nsbox() {"
    yield "    local -a commands"
    yield "    commands=("
    for name, (about, _) in commands.items():
        yield f"        '{name}:{_quoted(about)}'"
    yield "    )"
    yield "    if ((CURRENT == 2)); then _describe command commands; return; fi"
    yield "    local command=${words[2]}"
    yield "    shift words; ((CURRENT--))"
    yield "    case $command in"
    actions = {"f": "_files", "d": "_files -/", "x": " "}
    for name, (_, options) in commands.items():
        yield f"        {name})"
        yield "            _arguments -S \\"
        for option in options:
            action = f"({' '.join(option.choices)})" if option.kind == "c" else actions[option.kind]
            values = f":value:{action}" + ":value: " * (option.count - 1) if option.count else ""
            about = _quoted(option.help).replace("[", "\\[").replace("]", "\\]")
            for spelled in option.names:
                yield f"                '*{spelled}[{about}]{values}' \\"
        last = ("'(-):command:_command_names -e'", "'*::argument:_normal'") if name == "run" else ("'*:file:_files'",)
        yield f"                {' '.join(last)} ;;"
    yield "    esac"
    yield "}"
    yield '_nsbox "$@"'


def _fish(commands: _Commands) -> Iterator[str]:
    yield "complete -c nsbox -f -n __fish_use_subcommand -l version -d 'show the version'"
    for name, (about, options) in commands.items():
        yield f"complete -c nsbox -f -n __fish_use_subcommand -a {name} -d '{_fish_quoted(about)}'"
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for option in options:
            flags: dict[str, Any] = {"f": " -r -F", "d": " -x -a '(__fish_complete_directories)'", "x": " -x"}
            flags["c"] = f" -x -a '{' '.join(option.choices)}'"
            spelled = "".join(f" -l {one[2:]}" if one.startswith("--") else f" -s {one[1:]}" for one in option.names)
            values = flags[option.kind] if option.count else ""
            yield f"complete -c nsbox {seen}{spelled}{values} -d '{_fish_quoted(option.help)}'"


def _fish_quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
