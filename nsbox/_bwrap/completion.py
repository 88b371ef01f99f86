"""The completion files of bubblewrap's command line, made from the table of its options."""

from __future__ import annotations

from nsbox._bwrap.options import options
from nsbox._plan.capabilities import CAPABILITIES

PROGRAMS = ("bwrap", "nsbox-bwrap")


def completion(shell: str) -> str:
    """Return a completion file for bash, zsh or fish; raises ValueError for another shell."""
    shells = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in shells:
        raise ValueError(f"no completion for {shell!r}, only for {', '.join(shells)}")
    return shells[shell]()


_BASH = """\
_nsbox_bwrap() {
    local cur=${COMP_WORDS[COMP_CWORD]} at=1 places
    COMPREPLY=()
    while ((at < COMP_CWORD)); do
        case ${COMP_WORDS[at]} in
@CASES@
            --)
                ((at++))
                break
                ;;
            -*) places= ;;
            *) break ;;
        esac
        if ((COMP_CWORD <= at + ${#places})); then
            case ${places:COMP_CWORD-at-1:1} in
                p)
                    compopt -o filenames
                    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                    ;;
                c) mapfile -t COMPREPLY < <(compgen -W '@CAPS@' -- "$cur") ;;
            esac
            return
        fi
        ((at += ${#places} + 1))
    done
    if ((at == COMP_CWORD)) && [[ $cur == -* && ${COMP_WORDS[at - 1]} != -- ]]; then
        mapfile -t COMPREPLY < <(compgen -W '@NAMES@' -- "$cur")
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$at"
    else
        compopt -o filenames
        if ((at == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -f -- "$cur")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        fi
    fi
}
complete -F _nsbox_bwrap @PROGRAMS@
"""


def _bash() -> str:
    cases = []
    for places in sorted({option.places for option in options()} - {""}):
        names = "|".join(option.name for option in options() if option.places == places)
        cases.append(f"            {names}) places={places} ;;")
    text = _BASH.replace("@CASES@", "\n".join(cases)).replace("@NAMES@", " ".join(option.name for option in options()))
    return text.replace("@CAPS@", " ".join(("ALL", *CAPABILITIES))).replace("@PROGRAMS@", " ".join(PROGRAMS))


def _zsh() -> str:
    actions = {"p": "_files", "c": f"(ALL {' '.join(CAPABILITIES)})", "x": " "}
    lines = [f"#compdef {' '.join(PROGRAMS)}", "", "_arguments -S \\"]
    for option in options():
        args = zip(option.args, option.places, strict=True)
        values = "".join(f":{arg}:{actions[place]}" for arg, place in args)
        lines.append(f"    '*{option.name}[{option.help}]{values}' \\")
    lines += ["    '(-):COMMAND:_command_names -e' \\", "    '*::ARGS:_normal'"]
    return "\n".join(lines) + "\n"


def _fish() -> str:
    # fish completes only an option's first argument. It treats a second one as an operand: a path, which is right.
    flags = {"": "", "p": " -r -F", "c": f" -x -a 'ALL {' '.join(CAPABILITIES)}'", "x": " -x"}
    return "".join(
        f"complete -c {program} -l {option.name[2:]}{flags[option.places[:1]]} -d '{option.help}'\n"
        for program in PROGRAMS
        for option in options()
    )
