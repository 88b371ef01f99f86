"""What is wrong with a profile, as lines of text. What words mean is in vocabulary.py, what escapes in findings.py.

Every rule of it is about something that macOS would refuse, or that it would take for something else than was meant, or
that no command in a sandbox may do. The rules about how denials and permissions meet are in overlaps.py.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from nsbox_seatbelt import findings, overlaps, vocabulary
from nsbox_seatbelt.posix_regex import BadPattern, directory_of, translate
from nsbox_seatbelt.sbpl import Form, Rule, SbplError, String, Symbol, line_of, parse, rule_of, rules, written
from nsbox_seatbelt.values import Unknown, encoded, is_expression, params_in, strings_in, value_of
from nsbox_seatbelt.vocabulary import COMBINATORS, DEFAULT, FILTERS, MODIFIERS

MOST_BYTES = 1000  # of a string: the compiler takes some 1,025
MOST_FILTERS = 2000  # thousands take seconds to compile, and above some 17,700 libsandbox dies
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LINKS = ("/tmp", "/var", "/etc")  # of macOS, to /private
_DATA = "/System/Volumes/Data"
_ADDRESS = re.compile(r"(\*|localhost):(\*|[0-9]{1,5})")

Params = Mapping[str, str | None]
Problem = tuple[int, str]


def lint(profile: str, params: Params) -> list[str]:
    """Return what is wrong with a profile, each with its line; nothing, if nothing is.

    params: by name; the value None is known only when a command starts, and is a directory of its own then.
    """
    try:
        forms = parse(profile)
    except SbplError as error:
        return [str(error)]
    problems: list[Problem] = list(_of_head(forms))
    rules: list[Rule] = []
    for form in forms:
        if isinstance(form, tuple) and form[:1] == (Symbol("version"),):
            continue
        try:
            rules.append(rule_of(form))
        except SbplError as error:
            problems.append((error.line, error.problem))
    problems += _of_strings(forms)
    problems += _of_params(forms, params)
    is_open = any(rule.action == "allow" and DEFAULT in rule.operations and not rule.filters for rule in rules[:1])
    words: list[Problem] = []
    for rule in rules:
        words += _of_words(rule)
    problems += words
    count = sum(_count(form) for rule in rules for form in rule.filters)
    if count > MOST_FILTERS:
        problems.append((0, f"{count} filters, more than {MOST_FILTERS}"))
    for rule in rules:
        problems += _of_values(rule, params)
        problems += _of_permissions(rule, params, is_open)
    if not words:  # they are about known words only
        problems += _of_implied(rules)
        problems += overlaps.undone(rules, params)
    return [f"line {line}: {text}" for line, text in sorted(dict.fromkeys(problems), key=lambda problem: problem[0])]


def left_open(profile: str) -> list[str]:
    """Return the operations that are allowed by default, in spite of (deny default), and aren't denied before all else."""
    found = []
    for name in sorted(vocabulary.OPEN):
        first = next((rule for rule in rules(profile) if name in rule.operations), None)
        if first is None or first.action == "allow" or first.filters:
            found.append(name)
    return found


# ---- the whole


def _of_head(forms: tuple[Form, ...]) -> Iterator[Problem]:
    version: Form = (Symbol("version"), 1)
    if forms[:1] != (version,):
        yield (line_of(forms[0]) if forms else 1), "(version 1) isn't first"
    defaults: list[Form] = [(Symbol(action), Symbol(DEFAULT)) for action in ("deny", "allow")]
    if forms[1:2] not in [(form,) for form in defaults]:
        yield (line_of(forms[1]) if forms[1:] else 1), "neither (deny default) nor (allow default) is second"
    for form in forms[2:]:
        if isinstance(form, tuple) and form[:1] == (Symbol("version"),):
            yield line_of(form), "(version ...) again"
        if isinstance(form, tuple) and Symbol(DEFAULT) in form:
            yield line_of(form), "a rule on default again"


def _of_strings(forms: tuple[Form, ...]) -> Iterator[Problem]:
    for form in forms:
        for string in strings_in(form):
            for problem in _wrong_text(string.text):
                yield string.line, f"{written(string)[:60]!r}: {problem}"


def _wrong_text(text: str) -> Iterator[str]:
    if len(encoded(text)) > MOST_BYTES:
        yield f"{len(encoded(text))} bytes, more than {MOST_BYTES}"
    if _CONTROL.search(text):
        yield "control characters"


def _of_params(forms: tuple[Form, ...], params: Params) -> Iterator[Problem]:
    asked = {key.text: key.line for form in reversed(forms) for key in params_in(form)}
    for name, line in asked.items():
        if name not in params:
            yield line, f"the parameter {name} isn't defined"
    for name, value in params.items():
        if name not in asked:
            yield 0, f"the parameter {name} isn't used"
        for problem in _wrong_text(name):
            yield 0, f"the parameter's name {name[:60]!r}: {problem}"
        for problem in _wrong_text(value or ""):
            yield asked.get(name, 0), f"the parameter {name}: {problem}"
        if (value or "").startswith("/"):
            for problem in _wrong_path(value or "", is_prefix=False):
                yield asked.get(name, 0), f"the parameter {name}: {problem}"


def _wrong_path(path: str, *, is_prefix: bool) -> Iterator[str]:
    """Return what is wrong with a path that is compared with those that the kernel has."""
    if not path.startswith("/"):
        yield f"{path[:60]!r} isn't absolute"
        return
    bare = path[:-1] if is_prefix and path.endswith("/") and path != "/" else path
    if posixpath.normpath(bare) != bare or bare.startswith("//"):
        yield f"{path[:60]!r} isn't normal"
    for link in _LINKS:
        if path == link or path.startswith(link + "/"):
            yield f"{path[:60]!r} is by a link: the kernel has /private{link}"
    if path == _DATA or path.startswith(_DATA + "/"):
        yield f"{path[:60]!r} has another name by a firmlink, which the kernel has"
    if "${" in path:
        yield f"{path[:60]!r}: libsandbox may take ${{...}} for a variable of its own"


# ---- words: operations, filters, modifiers, and what follows them


def _of_words(rule: Rule) -> Iterator[Problem]:
    unknown = [operation for operation in rule.operations if operation not in vocabulary.OPERATIONS]
    for operation in unknown:
        yield rule.line, f"{operation} is no operation that is known"
    for modifier in rule.modifiers:
        problem = _wrong_modifier(modifier, rule)
        if problem:
            yield line_of(modifier) or rule.line, problem
    operations = [operation for operation in rule.operations if operation not in unknown]
    for form in rule.filters:
        for line, text in _of_filter(form, operations):
            yield line or rule.line, text


def _wrong_modifier(form: Form, rule: Rule) -> str | None:
    if not isinstance(form, tuple) or len(form) < 2 or not isinstance(form[1], Symbol):
        return f"{written(form)[:60]} is no modifier"
    name, arguments = form[1].name, form[2:]
    if name not in MODIFIERS:
        return f"{name} is no modifier that is known"
    if name == "no-sandbox" and rule.action == "allow":
        return "(with no-sandbox) lets a program run without a sandbox"
    wanted = {None: (), "string": (String,), "symbol": (Symbol,)}[MODIFIERS[name]]
    if len(arguments) != len(wanted) or not all(isinstance(a, kind) for a, kind in zip(arguments, wanted, strict=True)):
        return f"{written(form)[:60]}: {name} takes {MODIFIERS[name] or 'nothing'}"
    return None


def _of_filter(form: Form, operations: list[str]) -> Iterator[Problem]:
    line = line_of(form)
    if not isinstance(form, tuple) or not form or not isinstance(form[0], Symbol):
        yield line, f"{written(form)[:60]} is no filter"
        return
    name, arguments = form[0].name, form[1:]
    known = FILTERS.get(name)
    if known is None:
        yield line, f"{name} is no filter that is known"
        return
    for operation in operations:
        if not known.fits(operation):
            yield line, f"the filter {name} doesn't fit {operation}"
    if not arguments and known.kind != "other":
        yield line, f"({name}) has nothing to compare with"
    inner: tuple[Form, ...] = ()
    if known.kind in ("all", "any", "not"):
        inner = arguments
        if known.kind == "not" and len(arguments) != 1:
            yield line, "require-not takes one filter"
    elif known.kind == "address":
        inner = arguments[1:] if arguments[:1] == (Symbol(vocabulary.UNIX_SOCKET),) else ()
        yield from ((line, text) for text in _wrong_address(name, arguments, operations))
    else:
        bad = next((part for part in arguments if not _is_argument(part, known)), None)
        if bad is not None:
            yield line_of(bad) or line, f"{written(bad)[:60]} is no argument of {name}"
    for part in inner:
        yield from _of_filter(part, operations)


def _is_argument(form: Form, known: vocabulary.Filter) -> bool:
    match known.kind:
        case "other":
            return True
        case "symbol":
            return isinstance(form, Symbol) and (known.symbols is None or form.name in known.symbols)
        case "number":
            return isinstance(form, int) and not isinstance(form, bool)
    return is_expression(form)


def _wrong_address(name: str, arguments: tuple[Form, ...], operations: list[str]) -> Iterator[str]:
    kind = arguments[0].name if arguments and isinstance(arguments[0], Symbol) else ""
    if kind not in (*vocabulary.PROTOCOLS, vocabulary.UNIX_SOCKET):
        yield f"({name} ...) begins with no protocol that is known"
    if len(arguments) < 2:
        yield f"({name} {kind}) has no address"
    if kind == vocabulary.UNIX_SOCKET:
        return
    if name == "local" and any(vocabulary.is_within("network-outbound", operation) for operation in operations):
        yield f"(local {kind} ...) on network-outbound lets every destination through"
    for part in arguments[1:]:
        match = _ADDRESS.fullmatch(part.text) if isinstance(part, String) else None
        if match is None or (match[2] != "*" and int(match[2]) > 65535):
            yield f'{written(part)[:60]} is neither "*:PORT" nor "localhost:PORT"'


def _count(form: Form) -> int:
    """Return how many filters this is: each argument of one counts, as the compiler makes one of each."""
    if not isinstance(form, tuple) or not form:
        return 0
    if isinstance(form[0], Symbol) and form[0].name in COMBINATORS:
        return sum(_count(part) for part in form[1:])
    return max(1, len(form) - 1)


# ---- values of filters


def _walk(forms: tuple[Form, ...]) -> Iterator[tuple[str, tuple[Form, ...]]]:
    """Return name and arguments of every filter that has its own, within others too."""
    for form in forms:
        if not isinstance(form, tuple) or not form or not isinstance(form[0], Symbol):
            continue
        if form[0].name in COMBINATORS:
            yield from _walk(form[1:])
        elif form[1:2] == (Symbol(vocabulary.UNIX_SOCKET),):
            yield from _walk(form[2:])
        else:
            yield form[0].name, form[1:]


def _values(rule: Rule, params: Params) -> Iterator[tuple[str, str, Form]]:
    """Return each string value in the rule's filters, with its filter's name and its form, where it is known."""
    for name, arguments in _walk(rule.filters):
        for part in arguments:
            if is_expression(part):
                try:
                    yield name, value_of(part, params), part
                except Unknown:
                    pass


def _of_values(rule: Rule, params: Params) -> Iterator[Problem]:
    is_metadata = set(rule.operations) <= {"file-read-metadata", "file-test-existence"}
    for name, value, form in _values(rule, params):
        line = line_of(form) or rule.line
        kind = FILTERS[name].kind if name in FILTERS else "other"
        if kind == "path":
            if name == "literal" and is_metadata and value in _LINKS:
                continue  # the link itself
            if name == "path-ancestors" and value == "/":
                yield line, '(path-ancestors "/") is a filter of nothing'
            if _is_param(form) and value.startswith("/"):
                continue  # looked at by itself
            for problem in _wrong_path(value, is_prefix=name == "prefix"):
                yield line, problem
        elif kind in ("path-regex", "name-regex"):
            try:
                translate(value)
            except BadPattern as error:
                yield line, str(error)
                continue
            directory = directory_of(value) if kind == "path-regex" else None
            for problem in _wrong_path(directory, is_prefix=True) if directory else ():
                yield line, problem


def _is_param(form: Form) -> bool:
    return isinstance(form, tuple) and form[0] == Symbol("param")


# ---- permissions


def _of_permissions(rule: Rule, params: Params, is_open: bool) -> Iterator[Problem]:
    if rule.action != "allow":
        return
    for operation in rule.operations:
        if operation not in vocabulary.OPERATIONS:
            continue
        name = vocabulary.levels(operation)[0]
        if name in findings.TOO_WIDE and not is_open and not (rule.filters and all(map(_narrows, rule.filters))):
            yield rule.line, f"{operation} is allowed without a filter that narrows it"
        if name in findings.FORBIDDEN:
            yield rule.line, f"{operation} is allowed: it {findings.FORBIDDEN[name]}"
        if name == "mach-register" and not all(_is_local(form) for form in rule.filters or (0,)):
            yield rule.line, "mach-register is allowed: it offers a service to others, in somebody's name"
    if any(vocabulary.is_within("mach-lookup", op) for op in rule.operations if op in vocabulary.OPERATIONS):
        for name, value, form in _values(rule, params):
            kind = FILTERS[name].kind if name in FILTERS else "other"
            hit = _reached(kind, value)
            if hit:
                yield line_of(form) or rule.line, f"mach-lookup of {value!r} leads out, to {hit}"


def _reached(kind: str, value: str) -> str | None:
    try:
        return findings.service_reached(kind, value) if kind.startswith("name") else None
    except BadPattern:
        return None  # said elsewhere


def _narrows(form: Form) -> bool:
    """Return whether a filter leaves out more than some exceptions, or some kinds of files."""
    match form:
        case (Symbol(name="require-all"), *parts):
            return any(map(_narrows, parts))
        case (Symbol(name="require-any"), *parts):
            return all(map(_narrows, parts))
        case (Symbol(name="require-not" | "vnode-type"), *_):
            return False
        case (Symbol(name=name), *values) if FILTERS.get(name) and FILTERS[name].kind.startswith("name-"):
            return String("") not in values and String("", is_raw=True) not in values
    return True


def _is_local(form: Form) -> bool:
    return all(name.startswith("local-name") for name, _ in _walk((form,))) and isinstance(form, tuple)


def _of_implied(rules: list[Rule]) -> Iterator[Problem]:
    """An operation that is never allowed is part of a wider one that is, and no rule takes it out for all files."""
    denied = {name for rule in rules if rule.action == "deny" and not rule.filters for name in rule.operations}
    for rule in rules:
        if rule.action != "allow":
            continue
        for forbidden, why in findings.FORBIDDEN.items():
            wider = [level for level in vocabulary.levels(forbidden)[1:] if level != DEFAULT]
            named = [operation for operation in rule.operations if vocabulary.levels(operation)[0] in wider]
            if named and denied.isdisjoint(_below(forbidden, named[0])):
                yield rule.line, f"{named[0]} has {forbidden} as a part, which {why}: say (deny {forbidden})"


def _below(operation: str, wider: str) -> tuple[str, ...]:
    levels = vocabulary.levels(operation)
    return levels[: levels.index(vocabulary.levels(wider)[0])]
