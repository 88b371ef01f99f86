"""Paths as a configuration file spells them: with ~, ${NAME} and relative ones."""

from __future__ import annotations

import os

from nsbox._base.errors import PolicyError
from nsbox._base.paths import is_below


def expanded(text: str) -> str:
    """Return a path with ~ at its begin, ${NAME} and $$ replaced; what comes in by them isn't looked at again."""
    first, *rest = text.split("$")
    if first == "~" or first.startswith("~/"):
        home = os.path.expanduser("~") if os.environ.get("HOME", "?") else ""  # an empty one is taken for / there
        if not home.startswith("/"):
            raise PolicyError("", f"{text!r}: this user's home directory isn't known")
        first = home.rstrip("/") + first[1:] if home.strip("/") else first[1:] or "/"
    elif first.startswith("~"):
        raise PolicyError("", f"{text!r}: ~ is only this user's; a name that begins so is ./{text.split('/')[0]}")
    found, i = first, 0
    while i < len(rest):
        name, brace, after = rest[i][1:].partition("}")
        if rest[i].startswith("{") and brace:
            if not os.environ.get(name):
                raise PolicyError("", f"{text!r}: the environment has no {name}, or it is empty")
            found += os.environ[name] + after
        elif rest[i] == "" and i + 1 < len(rest):
            i += 1
            found += "$" + rest[i]
        else:
            raise PolicyError("", f"{text!r}: a $ is that of ${{NAME}}, or $$ for itself")
        i += 1
    return found


def written(path: str, base: str | None) -> str:
    """Return an absolute path as a file in the directory base has it: relative where it is below."""
    if base is not None and is_below(path, base):
        path = path[len(base) :].strip("/") or "."
    return ("./" if path.startswith(("~", "**/")) else "") + path.replace("$", "$$")
