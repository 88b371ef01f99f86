"""Configuration files: TOML, JSON and YAML into a Policy.

Which keys there are, _config.keys says; what a path in a file is, _config_paths. Here lives which table of a file is
read, and what its values come to together. All that is wrong with a file is told at once.
"""

from __future__ import annotations

import os
import stat

from nsbox._base.checks import check_size, check_text
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen_by_name
from nsbox._base.imports import opened
from nsbox._base.paths import is_below
from nsbox._config.errors import ConfigError, Problem
from nsbox._config.formats import LARGEST, MalformedError, check_format, dotted, format_of, read
from nsbox._config.keys import KEYS, NETWORK, RULES, Key, schema
from nsbox._config.paths import expanded
from nsbox._config.values import check_entry, kind_of, must_be, unknown_key, word_of
from nsbox._config.write import dump, dumps
from nsbox._paths.home import WORDS, check_home, name_of
from nsbox._paths.patterns import is_pattern, split
from nsbox._paths.resolution import Resolution, absolute, check_read, links_on
from nsbox._paths.workspace import add_git, based, everywhere
from nsbox._policy.limits import Limits
from nsbox._policy.policy import Policy
from nsbox._policy.rules import PathRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

    from nsbox._config.formats import At, Lines

__all__ = ["Config", "ConfigError", "Problem", "dump", "dumps", "load", "loads", "schema"]

_TABLE = "sandbox"
_MOST_PROBLEMS = 100


@frozen_by_name
class Config(Frozen):
    """What a configuration says. mode: "enabled" or "disabled", as Sandbox takes it; path: the file's, if it was one.

    policy: what commands may do, whatever the mode.
    """

    policy: Policy
    mode: str = "enabled"
    path: str | None = None


# ---- reading


def load(
    path: str | os.PathLike[str], *, section: str | None = None, workspace: str | os.PathLike[str] | None = None
) -> Config:
    """Return what a configuration file says: .toml, .json, .yaml or .yml, by its name.

    section: the table to read, such as "agents.sandbox", "tool.nsbox" or, in an array of tables, "agents[main].sandbox"
    (the one whose id or name is main, else its index); "": the whole file; by default `sandbox` where the file has such
    a table, else the whole file. workspace: the one of a file that names none. Relative paths in the file count from
    its directory. A file that commands could write to is read-only to them.
    Raises ConfigError (a PolicyError) for all that is wrong in the file, PolicyError for an argument, OSError for a
    file that can't be read, and UnavailableError for YAML without PyYAML.
    """
    given = check_text("path", os.fspath(path))
    above, name = os.path.split(given)
    base = os.path.realpath(absolute(above or "."))
    format = format_of(given)
    text, names = _text_of(os.path.join(base, name), given)
    reading = _Reading(given, base, section, workspace)
    reading.has_other_names = names > 1
    reading.way = absolute(given)
    reading.path = os.path.join(base, name)
    return reading.config(text, format)


def loads(
    text: str,
    format: str,
    *,
    base: str | os.PathLike[str],
    section: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
) -> Config:
    """Return what a text says, as load() does. format: "toml", "json" or "yaml"; base: what relative paths count from.

    Raises what load() raises; ConfigErrors name "<text>".
    """
    return _Reading("<text>", os.path.realpath(base), section, workspace).config(text, check_format(format))


def _text_of(path: str, given: str) -> tuple[str, int]:
    """Return a file's text, and how many names the file has."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise ConfigError(given, [Problem("", "is no regular file")])
        found = b""
        while len(found) <= LARGEST and (more := os.read(fd, LARGEST + 1 - len(found))):
            found += more
    finally:
        os.close(fd)
    if len(found) > LARGEST:
        raise ConfigError(given, [Problem("", f"is larger than {LARGEST} bytes")])
    try:
        return found.decode(), about.st_nlink
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise ConfigError(given, [Problem("", f"is no UTF-8 (byte {error.start})", line)]) from None


class _Reading:
    """One text being read: what is known of its place, and what was found to be wrong."""

    def __init__(self, source: str, base: str, section: str | None, workspace: str | os.PathLike[str] | None) -> None:
        self.source, self.base = source, base
        self.section, self.workspace = section, workspace
        self.way: str | None = None  # an absolute path to the file, with its links
        self.path: str | None = None  # the file, in a directory on whose path there are none
        self.at: At = ()  # of the table that is read
        self.has_other_names = False  # hard links to the file
        self.names = Resolution()
        self.problems: list[tuple[At, str]] = []
        self.lines: Callable[[], Lines] = dict

    def config(self, text: str, format: str) -> Config:
        try:
            tree, self.lines = read(text, format)
        except MalformedError as error:
            raise ConfigError(self.source, [Problem(error.key, error.problem, error.line)]) from None
        if not isinstance(tree, dict):
            self.give_up((), f"is {kind_of(tree)}, must be a table")
        values = self.table(KEYS, self.chosen(tree), self.at)
        if "require" in values and "require_os_sandbox" in values:
            self.wrong((*self.at, "require_os_sandbox"), "doesn't go with require, which says more")
        self.check()
        mode = values.pop("mode", "enabled")
        wishes = self.wishes(values)
        self.check()
        try:
            return Config(policy=Policy(base="workspace", **wishes), mode=mode, path=self.path)
        except PolicyError as error:
            part, _, inner = error.field.partition(".")
            key = next((key.name for key in KEYS if key.field == part), part)
            self.give_up((*self.at, key, *filter(None, inner.split("."))), error.problem)

    # ---- problems

    def wrong(self, at: At, problem: str) -> None:
        self.problems.append((at, problem))
        if len(self.problems) == _MOST_PROBLEMS:
            self.problems.append((self.at, f"has more that is wrong than these {_MOST_PROBLEMS}"))
            self.check()

    def check(self) -> None:
        if not self.problems:
            return
        lines = self.lines()

        def line(at: At) -> int | None:
            return next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), None)

        found = [Problem(dotted(at), text, line(at)) for at, text in self.problems]
        raise ConfigError(self.source, sorted(found, key=lambda problem: problem.line or 0))

    def give_up(self, at: At, problem: str) -> NoReturn:
        self.wrong(at, problem)
        self.check()
        raise AssertionError  # check() has raised

    # ---- the table

    def chosen(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return the table that is read, and remember its place."""
        if self.section is None:
            if not isinstance(tree.get(_TABLE), dict):
                return tree
            beside = [key.name for key in KEYS if key.name in tree]
            for name in beside:
                self.wrong(
                    (name,), f"stands beside the table {_TABLE}, which is read: move it there, or name a section"
                )
            self.at = (_TABLE,)
            found: dict[str, Any] = tree[_TABLE]
            return found
        value: Any = tree
        for name in _parts(self.section):
            value = self.entered(value if name.startswith("[") else self.single(value), name)
        value = self.single(value)
        if not isinstance(value, dict):
            self.give_up(self.at, f"is {kind_of(value)}, must be a table")
        return value

    def single(self, value: object) -> object:
        """Return the only table of an array of tables."""
        if not isinstance(value, list):
            return value
        if len(value) != 1:
            ids = ", ".join([_id_of(item) for item in value if _id_of(item)][:9]) or "0, 1, ..."
            self.give_up(self.at, f"are {len(value)} tables: say {dotted(self.at)}[ID] with one of {ids}")
        self.at = (*self.at, 0)
        return value[0]

    def entered(self, value: object, name: str) -> object:
        if name.startswith("["):
            wanted, items = name[1:-1], value if isinstance(value, list) else []
            index = next((i for i, item in enumerate(items) if _id_of(item) == wanted), None)
            if index is None and wanted.isdecimal() and wanted.isascii() and len(wanted) < 9:
                index = int(wanted) if int(wanted) < len(items) else None
            if index is None:
                self.give_up(self.at, f"has no table {wanted}")
            self.at = (*self.at, index)
            return items[index]
        if not isinstance(value, dict) or name not in value:
            self.give_up((*self.at, name), "is the section to read, and isn't there")
        self.at = (*self.at, name)
        return value[name]

    def table(self, keys: tuple[Key, ...], given: dict[str, Any], at: At) -> dict[str, Any]:
        """Return the values of a table by their keys, those that are right; the others are problems."""
        known = {key.name: key for key in keys}
        found = {}
        for name, value in given.items():
            if name not in known:
                self.wrong((*at, name), unknown_key(name, keys))
                continue
            try:
                found[name] = self.value(known[name], value, (*at, name))
            except PolicyError as error:
                self.wrong((*at, name), error.problem)
        return found

    def value(self, key: Key, value: Any, at: At) -> Any:
        """Return what a value means; raises PolicyError, or tells problems of its own, for one that means nothing."""
        if key.kind == "word":
            return word_of(key, value)
        if key.kind == "size":
            if not isinstance(value, str):
                must_be(value, int, "a number of bytes, or a text such as '64M'")
            return value if (key.least, value) == (0, 0) else check_size(key.name, value)
        if key.kind in ("texts", "paths"):
            items = [self.item(key, item, (*at, i)) for i, item in enumerate(must_be(value, list, "a list of texts"))]
            return [item for item in items if item is not None]
        if key.kind == "map":
            table = must_be(value, dict, "a table of texts")
            return {name: self.text(text, (*at, name)) for name, text in table.items()}
        if key.kind == "table":
            return self.limits(key, must_be(value, dict, "a table"), at)
        if key.kind == "tables":
            return self.rules(must_be(value, dict, "a table of tables"), at)
        if key.kind in ("network", "entries"):
            return (self.network if key.kind == "network" else self.entries)(key, value, at)
        if key.kind == "path":
            return self.place(key.name, value, at, key.must_exist)
        if key.kind == "home":
            text = must_be(value, str, "a text")
            is_word = text in WORDS or name_of(text) is not None
            chosen = text if is_word else self.place(key.name, text, at, key.must_exist)
            return check_home(key.name, chosen, is_workspace=True)
        if key.kind == "count":
            number = must_be(value, int, "a whole number")
            if not key.least <= number <= key.most:
                raise PolicyError(key.name, f"{number} is out of range, must be {key.least} to {key.most}")
            return number
        if key.kind == "number":
            return value if type(value) is int else must_be(value, float, "a number")
        kind, what = (bool, "true or false") if key.kind == "flag" else (str, "a text")
        return must_be(value, kind, what)

    def text(self, value: object, at: At) -> str:
        try:
            return str(must_be(value, str, "a text"))
        except PolicyError as error:
            self.wrong(at, error.problem)
            return ""

    def item(self, key: Key, value: object, at: At) -> str | None:
        try:
            if key.kind == "paths":
                return self.pattern(key, value) or self.place(key.name, value, at, key.must_exist)
            if key.kind == "entries":
                return check_entry(must_be(value, str, "a text"))
            return word_of(key, value) if key.words else check_text(key.name, must_be(value, str, "a text"))
        except PolicyError as error:
            self.wrong(at, error.problem)
            return None

    def limits(self, key: Key, given: dict[str, Any], at: At) -> dict[str, Any]:
        right = {}
        for name, value in self.table(key.keys, given, at).items():
            try:
                Limits(**{name: value})
                right[name] = value
            except PolicyError as error:
                self.wrong((*at, name), error.problem)
        return right

    def network(self, key: Key, value: Any, at: At) -> Any:
        """Return the policy's network: a word, or a list of entries, which a table says more about."""
        if not isinstance(value, list | dict):
            return word_of(key, value)
        from nsbox._network.network import Network  # seldom needed

        before = len(self.problems)
        if isinstance(value, list):
            values: dict[str, Any] = {"allow": self.entries(NETWORK[0], value, at)}
        else:
            values = self.table(NETWORK, value, at)
        if len(self.problems) > before:
            return "none"
        try:
            return Network(**values)
        except PolicyError as error:
            inner = error.field.partition(".")[2]
            self.wrong((*at, inner) if inner else at, error.problem)
            return "none"

    def entries(self, key: Key, value: object, at: At) -> tuple[str, ...]:
        """Return the entries of a network list; each that is wrong is a problem of its own."""
        items = enumerate(must_be(value, list, "a list of texts"))
        return tuple(text for i, item in items if (text := self.item(key, item, (*at, i))) is not None)

    def rules(self, given: dict[str, Any], at: At) -> list[tuple[PathRule, str]]:
        """Return the rules of `paths`, each with the policy's field that has its root."""
        found = []
        for name, value in given.items():
            here = (*at, name)
            try:
                values = self.table(RULES, must_be(value, dict, "a table"), here)
            except PolicyError as error:
                self.wrong(here, error.problem)
                continue
            if "root" not in values:
                if "root" not in value:
                    self.wrong(here, "has no root, which says where it is")
                continue
            field = values.pop("mode", "read")
            try:
                found.append((PathRule(name=name, **values), field))
            except PolicyError as error:
                inner = error.field.removeprefix("paths.")
                self.wrong(here if inner == "name" else (*here, inner), error.problem)
        return found

    def pattern(self, key: Key, value: object) -> str | None:
        """Return a pattern as the policy has it; None for what is none, or isn't one for this key."""
        if key.field not in ("deny", "read") or not isinstance(value, str) or not is_pattern(value):
            return None
        text = expanded(check_text("path", value))
        if text.startswith("**/") and key.field == "deny":
            return text  # which directories that means isn't known yet
        path = os.path.join(self.base, text)
        if key.field == "read" and os.path.lexists(path):
            return None
        base, rest = split(path)
        return based(key.name, self.names.entry(key.field, base, must_exist=False), rest)

    def place(self, name: str, value: object, at: At, must_exist: bool) -> str:
        path = os.path.join(self.base, expanded(check_text("path", must_be(value, str, "a text"))))
        return self.names.entry(name, path, at=at, must_exist=must_exist)

    # ---- the policy

    def wishes(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the policy's fields."""
        given = dict(values)
        workspace = given.pop("workspace", None)
        if workspace is None and self.workspace is not None:
            workspace = self.names.existing("workspace", self.workspace)
        for name, path in (("workspace", workspace), ("tools_bin", given.get("tools_bin"))):
            if path is not None and not os.path.isdir(path):
                self.wrong((*self.at, name), f"{path} is no directory")
        if workspace == "/":
            self.wrong((*self.at, "workspace"), "'/' is the whole file system, which is no workspace")
        rules = given.pop("paths", [])
        write = [*filter(None, [workspace]), *given.pop("writable_paths", ()), *_roots(rules, "write")]
        tools = [path for path in (given.get("tools_bin"),) if path is not None and path not in write]
        read = [*given.pop("readable", ()), *_roots(rules, "read"), *tools]
        for rule, field in rules:
            if field == "read" and rule.root in write:
                self.wrong(
                    (*self.at, "paths", rule.name, "mode"), f"is 'ro', but something else makes {rule.root} writable"
                )
        for found_at, field, problem in self.names.problems(write):
            if found_at is None:
                raise PolicyError(field, problem)
            self.wrong(found_at, problem)
        check_read(read)
        texts = given.get("deny", ())
        if "deny" in given:
            given["deny"] = _everywhere(texts, (*write, *read))
        read += self.own_file(write, read, given.get("deny", ()))
        found: dict[str, Any] = {"seccomp": "default"}
        found["workdir"] = workspace or _start(self.base, (*write, *read), given.get("deny", ()))
        if "require_os_sandbox" in given:
            found["require"] = given.pop("require_os_sandbox")
        found |= {key.field: given[key.name] for key in KEYS if key.field and key.name in given}
        lists: dict[str, Any] = {"write": (*write,), "read": (*read,), "deny": (*given.get("deny", ()),)}
        if workspace is not None:
            add_git(self.names, workspace, lists)
        if "deny" in given:  # "**/" counts from what git needs too
            found["deny"] = _everywhere(texts, (*lists["write"], *lists["read"]))
        return found | {
            "write": lists["write"],
            "read": lists["read"],
            "links": self.names.links(),
            "paths": [rule for rule, _ in rules],
            "limits": Limits(**given.get("limits", {})),
        }

    def own_file(self, write: list[str], read: list[str], deny: Iterable[str]) -> list[str]:
        """Return the file itself if commands could write to it, and so to what holds for those after them."""
        if self.way is None:
            return []
        path, links = links_on(self.way)
        for link in links:
            if any(is_below(link, above) for above in (*write, *opened)):
                self.wrong((), f"commands could replace the link {link}: load {path} itself")
        if path in write:
            self.wrong((), "commands could write to this file itself, and so to what holds for those after them")
        if self.has_other_names and any(is_below(path, above) for above in write):
            problem = "has other names (hard links), by which commands could write to it"
            self.wrong((), f"{problem}: put a copy in its place, or move it out of what is writable")
        is_safe = path in read or any(is_below(path, above) for above in deny)
        return [path] if not is_safe and any(is_below(path, above) for above in write) else []


def _everywhere(deny: Iterable[str], named: tuple[str, ...]) -> list[str]:
    """Return deny with patterns that mean all directories put in each of them."""
    return [at for path in deny for at in (everywhere(path, named) if path.startswith("**/") else (path,))]


def _roots(rules: list[tuple[PathRule, str]], wanted: str) -> list[str]:
    return [rule.root for rule, field in rules if field == wanted]


def _start(base: str, named: tuple[str, ...], deny: Iterable[str]) -> str:
    """Return where commands start that have no workspace: in the file's directory, if there is one inside."""
    is_there = any(is_below(base, path) or is_below(path, base) for path in named)
    return base if is_there and not any(is_below(base, path) for path in deny) else "/"


def _parts(section: str) -> list[str]:
    """Split a section into names, and "[ID]" for one of an array of tables."""
    parts = []
    for part in check_text("section", section).split(".") if section != "" else ():
        name, bracket, rest = part.partition("[")
        if not name or (bracket and (not rest.endswith("]") or len(rest) < 2)):
            raise PolicyError("section", f"{section!r} is none, such as 'sandbox' or 'agents[main].sandbox'")
        parts += [name, "[" + rest] if bracket else [name]
    return parts


def _id_of(item: object) -> str:
    """Return what a table of an array calls itself."""
    for name in ("id", "name") if isinstance(item, dict) else ():
        if isinstance(item, dict) and isinstance(item.get(name), str):
            return str(item[name])
    return ""
