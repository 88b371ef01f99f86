"""What string expressions of a profile come to: literals, parameters, (string-append ...), (regex-quote ...)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nsbox_seatbelt.sbpl import Form, String, Symbol, written

EXPRESSIONS = ("param", "string-append", "regex-quote")
_SPECIAL = frozenset("\\^$.|?*+()[]{}")


class Unknown(ValueError):
    """A string whose value isn't known: it is no string expression, or its parameter has no value."""


def encoded(text: str) -> bytes:
    """Return the bytes of a path or name. Those that aren't UTF-8 are in it as os.fsdecode() has them."""
    return text.encode("utf-8", "surrogateescape")


def with_stand_ins(params: Mapping[str, str | None]) -> dict[str, str]:
    """Return the parameters with a path of its own for each whose value is known only when a command starts (None)."""
    return {key: f"/private/var/folders/{key}" if value is None else value for key, value in params.items()}


def regex_quote(text: str) -> str:
    """Return the regular expression that matches this text and nothing else."""
    return "".join(f"\\{ch}" if ch in _SPECIAL else ch for ch in text)


def is_expression(form: Form) -> bool:
    """Return whether this form has a string as its value."""
    if isinstance(form, tuple):
        return bool(form) and isinstance(form[0], Symbol) and form[0].name in EXPRESSIONS
    return isinstance(form, String)


def value_of(form: Form, params: Mapping[str, str | None]) -> str:
    """Return a string expression's value; raises Unknown."""
    match form:
        case String(text=text):
            return text
        case (Symbol(name="param"), String(text=key)):
            value = params.get(key)
            if value is None:
                raise Unknown(f"the parameter {key} has no value")
            return value
        case (Symbol(name="regex-quote"), part):
            return regex_quote(value_of(part, params))
        case (Symbol(name="string-append"), *parts):
            return "".join(value_of(part, params) for part in parts)
    raise Unknown(f"no string: {written(form)[:60]}")


def params_in(form: Form) -> Iterator[String]:
    """Return the names of the parameters that a form asks for, wherever in it."""
    if isinstance(form, tuple):
        match form:
            case (Symbol(name="param"), String() as key):
                yield key
            case _:
                for part in form:
                    yield from params_in(part)


def strings_in(form: Form) -> Iterator[String]:
    """Return all strings that are written in a form."""
    if isinstance(form, String):
        yield form
    elif isinstance(form, tuple):
        for part in form:
            yield from strings_in(part)


def resolved(form: Form, params: Mapping[str, str | None]) -> Form:
    """Return a form with the value of each string expression in its place; raises Unknown.

    Symbols are in lower case, as TinyScheme reads them: so what two readers understood can be compared.
    """
    if is_expression(form):
        return String(value_of(form, params))
    if isinstance(form, tuple):
        return tuple(resolved(part, params) for part in form)
    return Symbol(form.name.lower()) if isinstance(form, Symbol) else form
