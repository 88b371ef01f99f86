"""One text of a configuration, read: the table that is meant, each of its values, and the policy of all together.

_config.keys has the keys, _config.paths the meaning of a path in a file. Everything that is wrong is reported at once.
"""

from __future__ import annotations

import os

from nsbox._base.checks import check_size, check_text
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.imports import opened
from nsbox._base.paths import is_below
from nsbox._config.errors import ConfigError, Problem
from nsbox._config.formats import MalformedError, dotted, read
from nsbox._config.keys import KEYS, NETWORK, RULES, Key
from nsbox._config.paths import expanded
from nsbox._config.values import check_entry, kind_of, must_be, unknown_key, word_of
from nsbox._paths.home import WORDS, check_home, name_of
from nsbox._paths.patterns import is_pattern, split
from nsbox._paths.resolution import Resolution, check_read, links_on
from nsbox._paths.user_homes import check_workspace
from nsbox._paths.workspace import add_git, based, everywhere
from nsbox._policy.limits import Limits
from nsbox._policy.policy import Policy
from nsbox._policy.rules import PathRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

    from nsbox._config.formats import At, Lines

_TABLE = "sandbox"
_MOST_PROBLEMS = 100


class Reading:
    """One text being read: where it is, and the problems found so far."""

    def __init__(self, source: str, base: str, section: str | None, workspace: str | os.PathLike[str] | None) -> None:
        self.source, self.base = source, base
        self.section, self.workspace = section, workspace
        self.way: str | None = None  # an absolute path to the file, with links in it
        self.path: str | None = None  # the file, in a directory whose path has no links
        self.at: At = ()  # the place of the table that is read
        self.has_other_names = False  # the file has more than one hard link
        self.names = Resolution()
        self.problems: list[tuple[At, str]] = []
        self.lines: Callable[[], Lines] = dict

    def policy(self, text: str, format: str) -> tuple[Policy, str]:
        """Return the policy of a text, and the mode; raises ConfigError with all that is wrong."""
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
            return Policy(base="workspace", **wishes), mode
        except PolicyError as error:
            part, _, inner = error.field.partition(".")
            key = next((key.name for key in KEYS if key.field == part), part)
            self.give_up((*self.at, key, *filter(None, inner.split("."))), error.problem)

    # ---- problems

    def wrong(self, at: At, problem: str) -> None:
        self.problems.append((at, problem))
        if len(self.problems) == _MOST_PROBLEMS:
            self.problems.append((self.at, f"has more problems than these {_MOST_PROBLEMS}"))
            self.check()

    def check(self) -> None:
        if not self.problems:
            return
        lines = self.lines()

        def line(at: At) -> int | None:
            return next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), None)

        problems = [Problem(dotted(at), text, line(at)) for at, text in self.problems]
        raise ConfigError(self.source, sorted(problems, key=lambda problem: problem.line or 0))

    def give_up(self, at: At, problem: str) -> NoReturn:
        self.wrong(at, problem)
        self.check()
        raise AssertionError  # check() has raised

    # ---- the table

    def chosen(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return the table to read, and remember its place."""
        if self.section is None:
            if not isinstance(tree.get(_TABLE), dict):
                return tree
            beside = [key.name for key in KEYS if key.name in tree]
            for name in beside:
                self.wrong(
                    (name,), f"stands beside the table {_TABLE}, which is read: move it there, or name a section"
                )
            self.at = (_TABLE,)
            table: dict[str, Any] = tree[_TABLE]
            return table
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

    def table(self, keys: tuple[Key, ...], items: dict[str, Any], at: At) -> dict[str, Any]:
        """Return the valid values of a table by their keys; the others become problems."""
        by_name = {key.name: key for key in keys}
        values = {}
        for name, value in items.items():
            if name not in by_name:
                self.wrong((*at, name), unknown_key(name, keys))
                continue
            try:
                values[name] = self.value(by_name[name], value, (*at, name))
            except PolicyError as error:
                self.wrong((*at, name), error.problem)
        return values

    def value(self, key: Key, value: Any, at: At) -> Any:
        """Return what a value means. For an invalid one, raises PolicyError or adds problems of its own."""
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

    def limits(self, key: Key, items: dict[str, Any], at: At) -> dict[str, Any]:
        limits = {}
        for name, value in self.table(key.keys, items, at).items():
            try:
                Limits(**{name: value})
                limits[name] = value
            except PolicyError as error:
                self.wrong((*at, name), error.problem)
        return limits

    def network(self, key: Key, value: Any, at: At) -> Any:
        """Return the policy's network: a word, or a list of entries; a table is a list with more settings."""
        if not isinstance(value, list | dict):
            return word_of(key, value)
        from nsbox._network.network import Network  # seldom needed

        before = len(self.problems)
        if isinstance(value, list):
            values: dict[str, Any] = {"allow": self.entries(NETWORK[0], value, at)}
        else:
            values = self.table(NETWORK, value, at)
            if "allow" not in value:
                self.wrong(at, "has no allow, the list of what commands may connect to; [] allows nothing")
        if len(self.problems) > before:
            return "none"
        try:
            return Network(**values)
        except PolicyError as error:
            inner = error.field.partition(".")[2]
            self.wrong((*at, inner) if inner else at, error.problem)
            return "none"

    def entries(self, key: Key, value: object, at: At) -> tuple[str, ...]:
        """Return the entries of a network list; each invalid one becomes a problem of its own."""
        items = enumerate(must_be(value, list, "a list of texts"))
        return tuple(text for i, item in items if (text := self.item(key, item, (*at, i))) is not None)

    def rules(self, items: dict[str, Any], at: At) -> list[tuple[PathRule, str]]:
        """Return the rules of `paths`, each with the policy's field that has its root."""
        rules = []
        for name, value in items.items():
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
                rules.append((PathRule(name=name, **values), field))
            except PolicyError as error:
                inner = error.field.removeprefix("paths.")
                self.wrong(here if inner == "name" else (*here, inner), error.problem)
        return rules

    def pattern(self, key: Key, value: object) -> str | None:
        """Return a pattern as the policy has it; None if the value isn't a pattern, or this key has none."""
        if key.field not in ("deny", "read") or not isinstance(value, str) or not is_pattern(value):
            return None
        text = expanded(check_text("path", value))
        if text.startswith("**/") and key.field == "deny":
            return text  # its directories aren't known yet
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
        keys = dict(values)
        workspace = keys.pop("workspace", None)
        if workspace is None and self.workspace is not None:
            workspace = self.names.existing("workspace", self.workspace)
        for name, path in (("workspace", workspace), ("tools_bin", keys.get("tools_bin"))):
            if path is not None and not os.path.isdir(path):
                self.wrong((*self.at, name), f"{path} isn't a directory")
        if workspace == "/":
            self.wrong((*self.at, "workspace"), "'/' is the whole file system, which can't be a workspace")
        elif workspace is not None:
            self.check_home(workspace, keys.get("writable_paths", ()))
        rules = keys.pop("paths", [])
        write = [*filter(None, [workspace]), *keys.pop("writable_paths", ()), *_roots(rules, "write")]
        tools = [path for path in (keys.get("tools_bin"),) if path is not None and path not in write]
        read = [*keys.pop("readable", ()), *_roots(rules, "read"), *tools]
        for rule, field in rules:
            if field == "read" and rule.root in write:
                self.wrong(
                    (*self.at, "paths", rule.name, "mode"), f"is 'ro', but something else makes {rule.root} writable"
                )
        for place, field, problem in self.names.problems(write):
            if place is None:
                raise PolicyError(field, problem)
            self.wrong(place, problem)
        check_read(read)
        texts = keys.get("deny", ())
        if "deny" in keys:
            keys["deny"] = _everywhere(texts, (*write, *read))
        read += self.own_file(write, read, keys.get("deny", ()))
        fields: dict[str, Any] = {"seccomp": "default"}
        fields["workdir"] = workspace or _start(self.base, (*write, *read), keys.get("deny", ()))
        if "require_os_sandbox" in keys:
            fields["require"] = keys.pop("require_os_sandbox")
        fields |= {key.field: keys[key.name] for key in KEYS if key.field and key.name in keys}
        lists: dict[str, Any] = {"write": (*write,), "read": (*read,), "deny": (*keys.get("deny", ()),)}
        if workspace is not None:
            add_git(self.names, workspace, lists)
        if "deny" in keys:  # "**/" also counts from the directories that git needs
            fields["deny"] = _everywhere(texts, (*lists["write"], *lists["read"]))
        return fields | {
            "write": lists["write"],
            "read": lists["read"],
            "links": self.names.links(),
            "paths": [rule for rule, _ in rules],
            "limits": Limits(**keys.get("limits", {})),
        }

    def check_home(self, workspace: str, named: Iterable[str]) -> None:
        try:
            check_workspace(workspace, named, field="writable_paths")
        except PolicyError as error:
            self.wrong((*self.at, "workspace"), error.problem)

    def own_file(self, write: list[str], read: list[str], deny: Iterable[str]) -> list[str]:
        """Return the file itself if commands could write to it, and so change the policy of later commands."""
        if self.way is None:
            return []
        path, links = links_on(self.way)
        for link in links:
            if any(is_below(link, above) for above in (*write, *opened)):
                self.wrong((), f"commands could replace the link {link}: load {path} itself")
        if path in write:
            self.wrong((), "commands could write to this file itself, and so change what later commands may do")
        if self.has_other_names and any(is_below(path, above) for above in write):
            problem = "has other names (hard links), by which commands could write to it"
            self.wrong((), f"{problem}: put a copy in its place, or move it out of the writable directories")
        is_safe = path in read or any(is_below(path, above) for above in deny)
        return [path] if not is_safe and any(is_below(path, above) for above in write) else []


def _everywhere(deny: Iterable[str], named: tuple[str, ...]) -> list[str]:
    """Return deny with each pattern that means all directories put into each of them."""
    return [at for path in deny for at in (everywhere(path, named) if path.startswith("**/") else (path,))]


def _roots(rules: list[tuple[PathRule, str]], wanted: str) -> list[str]:
    return [rule.root for rule, field in rules if field == wanted]


def _start(base: str, named: tuple[str, ...], deny: Iterable[str]) -> str:
    """Return where commands without a workspace start: in the file's directory if it exists inside, else in /."""
    is_there = any(is_below(base, path) or is_below(path, base) for path in named)
    return base if is_there and not any(is_below(base, path) for path in deny) else "/"


def _parts(section: str) -> list[str]:
    """Split a section into names, with "[ID]" for one table of an array."""
    parts = []
    for part in check_text("section", section).split(".") if section != "" else ():
        name, bracket, rest = part.partition("[")
        if not name or (bracket and (not rest.endswith("]") or len(rest) < 2)):
            raise PolicyError("section", f"{section!r} isn't a section, such as 'sandbox' or 'agents[main].sandbox'")
        parts += [name, "[" + rest] if bracket else [name]
    return parts


def _id_of(item: object) -> str:
    """Return the id or name of a table in an array; "" if it has none."""
    for name in ("id", "name") if isinstance(item, dict) else ():
        if isinstance(item, dict) and isinstance(item.get(name), str):
            return str(item[name])
    return ""
