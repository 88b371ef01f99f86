"""TOML, JSON and YAML: from texts to plain values with the lines of their keys, and from plain values to texts.

_config.keys has the meaning of the keys. The parsers are the standard library's and PyYAML's. This module bounds their
time, depth and meaning: no key twice, no YAML tag that makes objects, no endless aliases.

Lean: a text loads the parser of its own format alone: tomllib (4 ms), json (1.4 ms), or PyYAML, which may be missing.
Undo this when the first two take less than 0.5 ms.
"""

from __future__ import annotations

import re

from nsbox._base.errors import PolicyError, Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    At: TypeAlias = tuple[str | int, ...]
    Lines: TypeAlias = dict[At, int]

FORMATS = {"toml": (".toml",), "json": (".json",), "yaml": (".yaml", ".yml")}
LARGEST = 1 << 20  # bytes of a file
_DEEPEST = 50
_MOST_NODES = 20_000  # of YAML, whose parser needs 30 microseconds for each; an alias counts as all that it stands for
_MOST_DOTS = 4_000_000  # tomllib's time for a dotted key grows with the square of its parts
_MOST_PARSED = 1 << 20  # characters of TOML parsed to find the lines of keys; a statement is tried line by line
_LONGEST_NUMBER = 40  # digits; the time of int() and of PyYAML's base 60 grows with their square


class MalformedError(Exception):
    """A text isn't valid in its format. This error never leaves the package."""

    def __init__(self, problem: str, line: int | None = None, key: str = "") -> None:
        """Hold what is wrong, and where."""
        super().__init__(problem)
        self.problem, self.line, self.key = problem, line, key


class Odd:
    """A YAML value that no key may have: a date, a malformed number, anything with a tag of its own."""

    def __init__(self, what: str) -> None:
        self.what = what


def dotted(at: At) -> str:
    """Return a key as messages spell it, such as limits.memory or deny[2]."""
    text = ""
    for part in at:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part and not set(part) & set(" .[]\"'") else f'"{part}"'
            text += f".{name}" if text else name
    return text


def check_format(format: str) -> str:
    """Return the format if it is a known one; else raise PolicyError."""
    if format not in FORMATS:
        raise PolicyError("format", f"{format!r} is unknown, must be one of {', '.join(FORMATS)}")
    return format


def format_of(path: str) -> str:
    """Return the format that the end of a file's name stands for; raises PolicyError if it stands for none."""
    _, dot, suffix = path.rpartition("/")[2].rpartition(".")
    for format, suffixes in FORMATS.items():
        if dot + suffix.lower() in suffixes:
            return format
    endings = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
    raise PolicyError("path", f"{path!r} isn't the name of a configuration file: these end in {endings}")


def read(text: str, format: str) -> tuple[object, Callable[[], Lines]]:
    """Return the value of a text, and a function that finds the lines of its keys as far as it can.

    Raises MalformedError, and UnavailableError for YAML without PyYAML.
    """
    check_format(format)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise MalformedError("has surrogates, which no file in UTF-8 has") from None
    if size > LARGEST:
        raise MalformedError(f"is larger than {LARGEST} bytes")
    try:
        return {"toml": _read_toml, "json": _read_json, "yaml": _read_yaml}[format](text.removeprefix("\ufeff"))
    except RecursionError:
        raise MalformedError("is nested too deeply") from None


# ---- TOML


def _read_toml(text: str) -> tuple[object, Callable[[], Lines]]:
    import tomllib

    if sum(line.count(".") ** 2 for line in text.split("\n")) > _MOST_DOTS:
        raise MalformedError("has lines with too many dots")
    try:
        return tomllib.loads(text), lambda: _toml_lines(text)
    except ValueError as error:  # also from int(), for a number with thousands of digits
        raise MalformedError(f"isn't TOML: {error}", _toml_line(str(error), text)) from None


def _toml_line(message: str, text: str) -> int | None:
    if message.endswith("(at end of document)"):
        return text.rstrip().count("\n") + 1
    number = message.rpartition("(at line ")[2].partition(",")[0]
    return int(number) if number.isdigit() else None


def _statements(lines: list[str]) -> Iterator[tuple[int, bool, Any]]:
    """Yield the statements of a valid text: the line, whether it is a header, and its value by itself."""
    import tomllib

    start, end, left = 0, 1, _MOST_PARSED
    while end <= len(lines):
        statement = "\n".join(lines[start:end])
        left -= len(statement) + 20
        if left < 0:
            return
        try:
            value = tomllib.loads(statement)
        except ValueError:
            end += 1
            continue
        if value:
            yield start + 1, lines[start].lstrip().startswith("["), value
        start, end = end, end + 1


def _toml_lines(text: str) -> Lines:
    lines: Lines = {}
    counts: dict[At, int] = {}
    header: At = ()
    for line, is_header, value in _statements(text.replace("\r\n", "\n").split("\n")):
        at: At = () if is_header else header
        while isinstance(value, dict) and len(value) == 1:
            ((name, value),) = value.items()
            at = (*at, name)
            lines.setdefault(at, line)
            if is_header and isinstance(value, list):
                counts[at] = counts.get(at, 0) + 1
            if is_header and at in counts:
                at = (*at, counts[at] - 1)
        _below(value, at, line, lines)
        header = at if is_header else header
    return lines


def _below(value: object, at: At, line: int, lines: Lines) -> None:
    """Give the keys of an inline table the line of the whole table."""
    if isinstance(value, dict) and len(at) < _DEEPEST:
        for name, inner in value.items():
            lines.setdefault((*at, name), line)
            _below(inner, (*at, name), line, lines)


# ---- JSON


def _read_json(text: str) -> tuple[object, Callable[[], Lines]]:
    import json

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            raise _TwiceError(next(name for i, name in enumerate(names) if name in names[:i]))
        return members

    def refuse(word: str) -> None:
        raise MalformedError(f"isn't JSON: {word} isn't a number there")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse), lambda: dict(_json_keys(text))
    except json.JSONDecodeError as error:
        hint = "; JSON has no comments" if text[error.pos : error.pos + 1] in ("/", "#") else ""
        raise MalformedError(f"isn't JSON: {error.msg}{hint}", error.lineno) from None
    except _TwiceError as error:
        lines: Lines = {}
        for at, line in _json_keys(text):
            if at in lines and at[-1] == error.args[0]:
                raise MalformedError(f"is there twice, first in line {lines[at]}", line, dotted(at)) from None
            lines[at] = line
        raise MalformedError("is there twice", None, error.args[0]) from None
    except ValueError as error:  # from int(), for a number with thousands of digits
        raise MalformedError(f"isn't JSON: {error}") from None


class _TwiceError(Exception):
    """An object has a key twice."""


def _json_keys(text: str) -> Iterator[tuple[At, int]]:
    """Yield the path and the line of each key in a valid JSON text."""
    import json

    line, begin = 1, 0
    above: list[str | int] = []  # the key or the index in each open container
    word = ""
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]', text):
        line += text.count("\n", begin, match.start())
        begin = match.start()
        token = match[0]
        if token == "{":
            above.append("")
        elif token == "[":
            above.append(0)
        elif token in "}]":
            above.pop()
        elif token == "," and isinstance(above[-1], int):
            above[-1] += 1
        elif token == ":":
            above[-1] = json.loads(word)
            yield tuple(above), line
        word = token


# ---- YAML


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        remedy = "pip install 'nsbox[yaml]', or use TOML or JSON"
        raise UnavailableError(Reason("YAML needs PyYAML, which isn't installed", remedy)) from None
    return yaml


def _read_yaml(text: str) -> tuple[object, Callable[[], Lines]]:
    yaml = _yaml()
    base: Any = yaml.SafeLoader  # the one written in Python: libyaml's recurses without a limit

    class Loader(base):  # type: ignore[misc]  # loaded lazily
        depth = count = 0

        def compose_node(self, parent: object, index: object) -> object:
            line = self.peek_event().start_mark.line + 1
            self.count += 1
            self.depth += 1
            if self.depth > _DEEPEST:
                raise MalformedError("is nested too deeply", line)
            if self.count > _MOST_NODES:
                raise MalformedError(f"has more than {_MOST_NODES} values", line)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        loader = Loader(text)
        try:
            node = loader.get_single_node()
            lines: Lines = {}
            loader.count = 0
            value = {} if node is None else _plain(node, (), lines, loader, yaml)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise MalformedError(f"isn't YAML: {error.problem or error.context}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise MalformedError(f"isn't YAML: {str(error).splitlines()[0]}") from None
    return value, lambda: lines


_PLAIN = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "null", "bool", "int", "float", "map", "seq"))


def _plain(node: Any, at: At, lines: Lines, loader: Any, yaml: Any) -> object:
    """Return a node's value, with each alias replaced by its node."""
    line = node.start_mark.line + 1
    loader.count += 1
    if loader.count > _MOST_NODES:
        raise MalformedError(f"has more than {_MOST_NODES} values, with what its aliases stand for", line)
    if len(at) > _DEEPEST:
        raise MalformedError("is nested too deeply", line)
    what = node.tag.removeprefix("tag:yaml.org,2002:")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, what, loader, yaml)
    if isinstance(node, yaml.SequenceNode):
        items = [_plain(inner, (*at, i), lines, loader, yaml) for i, inner in enumerate(node.value)]
        return items if what == "seq" else Odd(what)
    table: dict[str, object] = {}
    for name, inner in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode):
            raise MalformedError("has a key that isn't a text", line, dotted(at))
        here = (*at, name.value)  # keys are texts, even those that look like a number or a truth value
        if name.value in table:
            raise MalformedError(f"is there twice, first in line {lines[here]}", line, dotted(here))
        lines[here] = line
        table[name.value] = _plain(inner, here, lines, loader, yaml)
    return table if what == "map" else Odd(what)


def _scalar(node: Any, what: str, loader: Any, yaml: Any) -> object:
    if what == "str":
        return node.value
    if what not in ("null", "bool", "int", "float"):
        return Odd(what)
    try:
        return Odd("number of many digits") if len(node.value) > _LONGEST_NUMBER else loader.construct_object(node)
    except (ValueError, LookupError, yaml.YAMLError):
        return Odd(f"{'truth value' if what == 'bool' else 'number'} that is none")


# ---- writing


def write(tree: dict[str, Any], format: str) -> str:
    """Return the text for a table of texts, numbers, truth values, lists of texts, and tables of these.

    Raises PolicyError for what the format can't express, and UnavailableError for YAML without PyYAML.
    """
    if check_format(format) == "toml":
        return "\n".join(_toml(tree, ())) + "\n"
    import json

    if format == "yaml":
        # PyYAML writes U+0085 and U+2028 unescaped, but reads them as ends of lines.
        is_plain = json.dumps(tree, ensure_ascii=False).isprintable()
        options = {"sort_keys": False, "allow_unicode": is_plain, "default_flow_style": False, "width": 10_000}
        return str(_yaml().safe_dump(tree, **options))
    text = json.dumps(tree, indent=2, ensure_ascii=False)
    return (text if _is_unicode(text) else json.dumps(tree, indent=2)) + "\n"


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def toml_text(text: str) -> str:
    """Return a text as a basic string of TOML."""
    if not _is_unicode(text):
        raise PolicyError("format", f"TOML can't express {text!r}, which isn't Unicode text; JSON can")
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(short.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'


def toml_value(value: object) -> str:
    """Return a text, number, truth value or list of these as TOML."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _toml_key(name: str) -> str:
    is_bare = name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    return name if is_bare else toml_text(name)


def _toml(table: dict[str, Any], at: tuple[str, ...]) -> Iterator[str]:
    plain = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if at and (plain or not table):
        yield f"\n[{'.'.join(map(_toml_key, at))}]"
    for name, value in plain.items():
        yield f"{_toml_key(name)} = {toml_value(value)}"
    for name, value in table.items():
        if name not in plain:
            yield from _toml(value, (*at, name))
