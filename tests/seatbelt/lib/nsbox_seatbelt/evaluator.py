"""A model of what Seatbelt decides for one question.

Of the rules on the operation that is asked for, the last that matches decides; if none does, those on the operation
that it is part of are asked, up to "default". What no rule matches is denied. So a rule on file-read-data comes before
one on file-read*, wherever each of them stands.

Seatbelt compares the spelling that the vnode has on its volume, byte for byte, though a volume may find a file by
others (case, Unicode normal form). So comparisons are exact here as well, and who asks gives the path as the kernel has
it: canonical, absolute, without links.

A filter that isn't modelled is an error when the profile is loaded. A name or an address that a question doesn't give
matches no filter. Modifiers don't count, except for (with no-sandbox), which is an error.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nsbox_seatbelt import vocabulary
from nsbox_seatbelt.posix_regex import translate
from nsbox_seatbelt.sbpl import Form, Rule, Symbol, rules, written
from nsbox_seatbelt.values import encoded, value_of
from nsbox_seatbelt.vocabulary import FILTERS, VNODE_TYPES

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # what "localhost" matches; not ::ffff:127.0.0.1
# Which processes a target means, by the names that a filter uses.
_TARGETS = {
    "self": {"self"},
    "same-sandbox": {"self", "same-sandbox"},
    "others": {"same-sandbox", "others"},
}


class NotModelled(ValueError):
    """A profile that this model can't judge."""


Value = str | int | tuple[str, str]


@dataclass(frozen=True)
class Question:
    """What is asked. attributes: see ATTRIBUTES."""

    operation: str
    path: str | None
    vnode_type: str
    attributes: Mapping[str, Value]

    @property
    def bytes(self) -> bytes:
        assert self.path is not None
        return encoded(self.path)


Test = Callable[[Question], bool]


def attribute_of(name: str) -> str:
    """Return the attribute that a filter looks at: global_name for global-name-prefix."""
    return name.removesuffix("-prefix").removesuffix("-regex").replace("-", "_")


_BY_ATTRIBUTE = ("name", "name-prefix", "name-regex", "symbol", "number")
ATTRIBUTES = {attribute_of(name) for name, known in FILTERS.items() if known.kind in _BY_ATTRIBUTE} - {"vnode_type"}
ENDS = {
    "local",
    "remote",
}  # of a connection: a pair, of tcp, udp, ip (either) or unix-socket, and "HOST:PORT" or a path


class Evaluator:
    """A profile, as it decides. Each parameter needs a value (see values.with_stand_ins)."""

    def __init__(self, profile: str, params: Mapping[str, str]) -> None:
        self._params = params
        self._rules: dict[str, list[tuple[Test, Rule]]] = {}
        for rule in rules(profile):
            if any(modifier == (Symbol("with"), Symbol("no-sandbox")) for modifier in rule.modifiers):
                raise NotModelled(f"line {rule.line}: (with no-sandbox)")
            for operation in rule.operations:
                level = _levels(operation)[0]
                self._rules.setdefault(level, []).append((self._any(rule.filters, operation), rule))

    def allows(
        self,
        operation: str,
        path: str | None = None,
        *,
        vnode_type: str = "REGULAR-FILE",
        **attributes: Value,
    ) -> bool:
        """Return whether a process under this profile may do this."""
        rule = self.why(operation, path, vnode_type=vnode_type, **attributes)
        if rule is None:
            return not vocabulary.OPEN.isdisjoint(_levels(operation))
        return rule.action == "allow"

    def why(
        self,
        operation: str,
        path: str | None = None,
        *,
        vnode_type: str = "REGULAR-FILE",
        **attributes: Value,
    ) -> Rule | None:
        """Return the rule that decides, or None where there is none, or only one about the default that isn't asked."""
        levels = _levels(operation)
        question = _question(operation, path, vnode_type, attributes)
        for level in levels:
            if level == "default" and not vocabulary.OPEN.isdisjoint(levels):
                break
            for test, rule in reversed(self._rules.get(level, ())):
                if test(question):
                    return rule
        return None

    # ---- filters, as functions

    def _any(self, filters: tuple[Form, ...], operation: str) -> Test:
        if not filters:
            return lambda question: True
        tests = [self._test(form, operation) for form in filters]
        return lambda question: any(test(question) for test in tests)

    def _test(self, form: Form, operation: str) -> Test:
        if not isinstance(form, tuple) or len(form) < 2 or not isinstance(form[0], Symbol):
            raise NotModelled(f"no filter: {written(form)[:60]}")
        name, arguments = form[0].name, form[1:]
        known = FILTERS.get(name)
        if known is None or not known.fits(operation):
            raise NotModelled(f"{operation} has no filter {name}")
        match known.kind:
            case "all":
                tests = [self._test(part, operation) for part in arguments]
                return lambda question: all(test(question) for test in tests)
            case "any":
                return self._any(arguments, operation)
            case "not" if len(arguments) == 1:
                inner = self._test(arguments[0], operation)
                return lambda question: not inner(question)
            case "address":
                return self._address(name, arguments, operation)
            case "path" | "path-regex":
                return self._path(name, [value_of(part, self._params) for part in arguments])
            case "extension":
                return lambda question: False  # nothing issues one to our commands
            case "name" | "name-prefix" | "name-regex":
                return self._name(name, known.kind, [value_of(part, self._params) for part in arguments])
            case "symbol" | "number":
                return self._symbol(name, arguments)
        raise NotModelled(f"the filter {written(form)[:60]} isn't modelled")

    def _path(self, name: str, values: list[str]) -> Test:
        if name == "regex":
            patterns = [translate(value) for value in values]
            return lambda question: (
                question.path is not None and any(pattern.search(question.bytes) for pattern in patterns)
            )
        wanted = [encoded(value) for value in values]
        compare = _COMPARISONS[name]
        return lambda question: question.path is not None and any(compare(question.bytes, value) for value in wanted)

    def _name(self, name: str, kind: str, values: list[str]) -> Test:
        attribute = attribute_of(name)
        if kind == "name-regex":
            patterns = [translate(value) for value in values]
            return lambda question: (
                attribute in question.attributes
                and any(pattern.search(encoded(str(question.attributes[attribute]))) for pattern in patterns)
            )
        if kind == "name-prefix":
            return lambda question: (
                attribute in question.attributes and str(question.attributes[attribute]).startswith(tuple(values))
            )
        return lambda question: question.attributes.get(attribute) in values

    def _symbol(self, name: str, arguments: tuple[Form, ...]) -> Test:
        wanted: set[str | int] = set()
        for part in arguments:
            if not isinstance(part, Symbol | int) or isinstance(part, bool):
                raise NotModelled(f"({name} {written(part)[:40]})")
            wanted.add(part.name if isinstance(part, Symbol) else part)
        symbols = FILTERS[name].symbols
        odd = [str(word) for word in wanted if isinstance(word, str) and symbols is not None and word not in symbols]
        if odd:
            raise NotModelled(f"({name} {odd[0]})")
        if name == "vnode-type":
            return lambda question: question.vnode_type in wanted
        if name in ("target", "semaphore-owner"):
            if not wanted <= set(_TARGETS):
                raise NotModelled(f"({name} ...): only {', '.join(_TARGETS)} are modelled")
            meant = {who for word in wanted for who in _TARGETS[str(word)]}
            return lambda question: question.attributes.get(attribute_of(name)) in meant
        return lambda question: question.attributes.get(attribute_of(name)) in wanted

    def _address(self, name: str, arguments: tuple[Form, ...], operation: str) -> Test:
        kind = arguments[0]
        if not isinstance(kind, Symbol):
            raise NotModelled(f"({name} {written(kind)[:40]})")
        if kind.name == vocabulary.UNIX_SOCKET:
            inner = self._any(arguments[1:], operation)
            return lambda question: question.path is not None and inner(question)
        if kind.name not in vocabulary.PROTOCOLS or len(arguments) < 2:
            raise NotModelled(f"({name} {kind.name} ...)")
        wanted = [_split(value_of(part, self._params)) for part in arguments[1:]]
        protocol = kind.name.rstrip("46")

        def test(question: Question) -> bool:
            asked = _end(question, name)
            # The socket's own end is 0.0.0.0 when it connects, which matches whatever it connects to.
            if name == "local" and question.operation == "network-outbound":
                asked = asked or _end(question, "remote")
                return asked is not None and protocol in ("ip", asked[0])
            if asked is None or protocol not in ("ip", asked[0]):
                return False
            return any(_is_end(asked[1], host, port) for host, port in wanted)

        return test


def _question(operation: str, path: str | None, vnode_type: str, given: Mapping[str, Value]) -> Question:
    """Return what is asked; raises ValueError or TypeError for what makes no sense."""
    attributes = dict(given)
    protocol = attributes.pop("protocol", None)  # of all ends that are no pairs
    for name in ENDS & set(attributes):
        end = attributes[name]
        if isinstance(end, str) and isinstance(protocol, str):
            attributes[name] = (protocol, end)
    for name in ENDS & set(attributes):
        end = attributes[name]
        if not isinstance(end, tuple) or end[0] not in ("tcp", "udp", "ip", vocabulary.UNIX_SOCKET):
            raise TypeError(f"{name}={end!r} is no pair of a protocol and an address")
        if end[0] == vocabulary.UNIX_SOCKET:
            path = end[1]
            del attributes[name]
    unknown = set(attributes) - ATTRIBUTES - ENDS
    if unknown:
        raise TypeError(f"no filter looks at {', '.join(sorted(unknown))}")
    if path is None and FILTERS["literal"].fits(operation) and not vocabulary.is_within(operation, "network*"):
        raise ValueError(f"{operation} is about a path")
    if path is not None and (posixpath.normpath(path) != path or not path.startswith("/") or path[:2] == "//"):
        raise ValueError(f"{path!r} isn't absolute and normal")
    if vnode_type not in VNODE_TYPES:
        raise ValueError(f"{vnode_type} is no type of a vnode")
    return Question(operation, path, vnode_type, attributes)


def _end(question: Question, name: str) -> tuple[str, str] | None:
    end = question.attributes.get(name)
    return end if isinstance(end, tuple) else None


def _levels(operation: str) -> tuple[str, ...]:
    try:
        return vocabulary.levels(operation)
    except KeyError:
        raise NotModelled(f"{operation} is no operation") from None


def _split(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    if host not in ("*", "localhost") or not (port == "*" or port.isdecimal()):
        raise NotModelled(f"{address!r} is no address of a filter")
    return host, port


def _is_end(end: str, host: str, port: str) -> bool:
    own_host, _, own_port = end.rpartition(":")
    return (host == "*" or own_host in LOOPBACK) and port in ("*", own_port)


def _is_below(path: bytes, top: bytes) -> bool:
    return path == top or path.startswith(top if top == b"/" else top + b"/")


_COMPARISONS: dict[str, Callable[[bytes, bytes], bool]] = {
    **dict.fromkeys(("literal", "path", "path-literal"), lambda path, value: path == value),
    "subpath": _is_below,
    "prefix": lambda path, value: path.startswith(value),
    "path-ancestors": lambda path, value: path != value and _is_below(value, path),
}
