"""Values in a configuration file: the names of their kinds, and the values that a key may have. Pure."""

from __future__ import annotations

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._config.formats import Odd

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nsbox._config.keys import Key


def kind_of(value: object) -> str:
    """Return the kind of a value, in words."""
    names = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a fraction",
        list: "a list",
        dict: "a table",
    }
    what = value.what if isinstance(value, Odd) else type(value).__name__
    return "null" if value is None else names.get(type(value), f"a {what}")


def must_be(value: object, kind: type, what: str) -> Any:
    """Return the value if it has this type; else raise PolicyError. what: the type in words."""
    if type(value) is not kind:
        hint = "; leave the key out, or quote it if it is ~" if value is None else ""
        hint = "; quote it" if kind is str and isinstance(value, int | float | Odd) else hint
        such = f", such as [{value!r}]" if kind is list and isinstance(value, str) and len(value) < 80 else ""
        is_what = f"{str(value).lower()}" if isinstance(value, bool) else kind_of(value)
        raise PolicyError("", f"is {is_what}, must be {what}{such}{hint}")
    return value


def word_of(key: Key, value: object) -> str:
    """Return what one of a key's words means; raises PolicyError for any other value."""
    for word, meaning in key.words.items():
        if type(word) is type(value) and word == value:
            return meaning
    allowed = ", ".join(f"{word!r}" if isinstance(word, str) else str(word).lower() for word in key.words)
    if isinstance(value, str) and key.kind == "network":
        from nsbox._network.network import network_entry  # seldom needed

        if entry := network_entry(value):
            raise PolicyError(key.name, entry)
    if not isinstance(value, str):
        is_what = str(value).lower() if isinstance(value, bool) else kind_of(value)
        raise PolicyError(key.name, f"is {is_what}, must be one of {allowed}{key.or_else}")
    near = nearest(value, [word for word in key.words if isinstance(word, str)])
    raise PolicyError(key.name, f"{value[:80]!r} is unknown, must be one of {allowed}{key.or_else}{near}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a question about the name nearest to a misspelled one; "" if none is near."""
    import difflib  # seldom needed

    near = difflib.get_close_matches(name[:80], list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_key(name: str, keys: tuple[Key, ...]) -> str:
    """Return what to say about a key that isn't among these."""
    meant = next((key.name for key in keys if key.field == name and key.name != name), None)
    if near := f"; did you mean {meant}?" if meant else nearest(name, [key.name for key in keys]):
        return f"isn't a key here{near}"
    return f"isn't a key here; there are {', '.join(key.name for key in keys)}"


def check_entry(text: str) -> str:
    """Return an entry of a network list; raises PolicyError if it isn't one."""
    from nsbox._network.network import entry_problem  # seldom needed

    if problem := entry_problem(text):
        raise PolicyError("network", problem)
    return text
