"""Where a denial doesn't hold, since a permission on a part of its operation comes before it.

A rule on file-write-data decides before one on file-write*, wherever each stands. So (deny file-write* X) takes nothing
away from (allow file-write-data Y), if X lies in Y.

This is an approximation. Each denial is looked at in the paths that it names: the strings of literal, subpath and
prefix, and the directory that a regex is about. For each of them a permission is asked whether it could match there.
What depends on anything else than the path (the type of a vnode, an extension) counts as "could". Not seen are: a
permission for something strictly below the denied path, which is taken as meant; one by path-ancestors, which is about
the directories on a way and nothing in them; denials that name no path; values that are known only when a command
starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nsbox_seatbelt import vocabulary
from nsbox_seatbelt.posix_regex import BadPattern, directory_of, translate
from nsbox_seatbelt.sbpl import Form, Rule, Symbol
from nsbox_seatbelt.values import Unknown, encoded, value_of

Params = Mapping[str, str | None]


def undone(rules: list[Rule], params: Params) -> Iterator[tuple[int, str]]:
    """Return the denials that a permission on a part of their operation undoes, and where."""
    for denial in rules:
        if denial.action != "deny":
            continue
        paths = [path for form in denial.filters for path in _paths(form, params)]
        for at, permission in enumerate(rules):
            if permission.action != "allow":
                continue
            for denied, allowed in _pairs(denial, permission):
                path = next((path for path in paths if _could(permission.filters, path, params)), None)
                # Where a later denial is on the same part, it decides.
                if path is not None and not any(
                    rule.action == "deny" and _names(rule, allowed) and _covers(rule.filters, path, params)
                    for rule in rules[at + 1 :]
                ):
                    yield (
                        denial.line,
                        f"(deny {denied} ...) of {path} is undone by (allow {allowed} ...) on line {permission.line}",
                    )


def _pairs(denial: Rule, permission: Rule) -> Iterator[tuple[str, str]]:
    for denied in denial.operations:
        for allowed in permission.operations:
            if vocabulary.ALIASES.get(denied, denied) in vocabulary.levels(allowed)[1:]:
                yield denied, allowed


def _names(rule: Rule, operation: str) -> bool:
    return vocabulary.levels(operation)[0] in {vocabulary.levels(name)[0] for name in rule.operations}


def _strings(form: tuple[Form, ...], params: Params) -> list[str]:
    found = []
    for part in form[1:]:
        try:
            found.append(value_of(part, params))
        except Unknown:
            pass
    return found


def _paths(form: Form, params: Params) -> Iterator[str]:
    """Return the paths that a denial's filter names."""
    match form:
        case (Symbol(name="require-all" | "require-any"), *parts):
            for part in parts:
                yield from _paths(part, params)
        case (Symbol(name="literal" | "path" | "path-literal" | "subpath" | "prefix"), *_):
            yield from (value.rstrip("/") or "/" for value in _strings(form, params))
        case (Symbol(name="regex"), *_):
            yield from (found for value in _strings(form, params) if (found := directory_of(value)))


def _could(filters: tuple[Form, ...], path: str, params: Params) -> bool:
    """Return whether a rule with these filters could match this path."""
    return not filters or any(_verdict(form, path, params) is not False for form in filters)


def _covers(filters: tuple[Form, ...], path: str, params: Params) -> bool:
    """Return whether a rule with these filters surely matches this path."""
    return not filters or any(_verdict(form, path, params) is True for form in filters)


def _verdict(form: Form, path: str, params: Params) -> bool | None:
    """Return whether a filter matches a path, None where that depends on something else."""
    assert isinstance(form, tuple) and isinstance(form[0], Symbol)
    values = _strings(form, params)
    match form[0].name:
        case "literal" | "path" | "path-literal":
            return path in values
        case "subpath":
            return any(path == value or path.startswith(value.rstrip("/") + "/") for value in values)
        case "prefix":
            return any(path.startswith(value) for value in values)
        case "regex":
            try:
                return any(translate(value).search(encoded(path)) for value in values)
            except BadPattern:
                return None
        case "path-ancestors":
            return False
        case "require-not":
            inner = _verdict(form[1], path, params)
            return None if inner is None else not inner
        case "require-all":
            inner_ones = [_verdict(part, path, params) for part in form[1:]]
            return False if False in inner_ones else None if None in inner_ones else True
        case "require-any":
            inner_ones = [_verdict(part, path, params) for part in form[1:]]
            return True if True in inner_ones else None if None in inner_ones else False
    return None
