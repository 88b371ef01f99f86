"""Paths as a configuration file spells them: relative, or with ~ and ${NAME}."""

from __future__ import annotations

import os

from nsbox._base.errors import PolicyError
from nsbox._base.paths import is_below


def expanded(text: str) -> str:
    """Return a path with a leading ~, ${NAME} and $$ replaced; the replacements aren't expanded again."""
    first, *rest = text.split("$")
    if first == "~" or first.startswith("~/"):
        home = os.path.expanduser("~") if os.environ.get("HOME", "?") else ""  # expanduser() would read "" as /
        if not home.startswith("/"):
            raise PolicyError("", f"{text!r}: this user's home directory isn't known")
        first = home.rstrip("/") + first[1:] if home.strip("/") else first[1:] or "/"
    elif first.startswith("~"):
        hint = f"for a name that begins with ~, write ./{text.split('/')[0]}"
        raise PolicyError("", f"{text!r}: ~ means only this user's home; {hint}")
    path, i = first, 0
    while i < len(rest):
        name, brace, after = rest[i][1:].partition("}")
        if rest[i].startswith("{") and brace:
            if not os.environ.get(name):
                raise PolicyError("", f"{text!r}: the environment has no {name}, or it is empty")
            path += os.environ[name] + after
        elif rest[i] == "" and i + 1 < len(rest):
            i += 1
            path += "$" + rest[i]
        else:
            raise PolicyError("", f"{text!r}: a $ begins ${{NAME}}; for a literal one, write $$")
        i += 1
    return path


def written(path: str, base: str | None) -> str:
    """Return an absolute path as a file in directory base spells it: relative if it is below base."""
    if base is not None and is_below(path, base):
        path = path[len(base) :].strip("/") or "."
    return ("./" if path.startswith(("~", "**/")) else "") + path.replace("$", "$$")
