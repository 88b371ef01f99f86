"""The API pages: every public name with its signature and its docstring, read from the source without importing it.

A module without an underscore is public; so is what its __all__ lists. A name has one place: the public module where it
is, or the page of nsbox, of its errors or of its ops. A class's methods are shown if some page of docs/ names them: the
others are nsbox's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import griffe
from docstrings import inline, markdown, summary
from pages import DOCS, ROOT, Page, Wrong

_OPS = "nsbox._plan.ops."
_HIDDEN = {"__main__", "__init__"}


@dataclass
class Entry:
    """A public name: how users write it, and what it is."""

    name: str
    thing: griffe.Object
    also: list[str] = field(default_factory=list)  # its other names

    @property
    def docstring(self) -> str:
        """Its docstring; a constant's is the string below it, if any."""
        return self.thing.docstring.value if self.thing.docstring else ""


class Api:
    """All public names of the package, and the pages for them."""

    def __init__(self) -> None:
        """Read the source. Raises Wrong for a public class or function without a docstring."""
        self.package = griffe.load("nsbox", search_paths=[str(ROOT)], resolve_aliases=True, resolve_external=False)
        self.modules = {"nsbox": self.package, **self._public_modules()}
        self.foreign: dict[str, list[str]] = {name: [] for name in self.modules}
        self.entries: dict[str, list[Entry]] = {name: [] for name in self.modules}
        self._by_path: dict[str, Entry] = {}
        for module in [name for name in self.modules if name != "nsbox"] + ["nsbox"]:
            self._collect(module)

    def _public_modules(self) -> dict[str, griffe.Module]:
        found = {}
        for path in sorted((ROOT / "nsbox").glob("*.py")) + sorted((ROOT / "nsbox/integrations").iterdir()):
            if path.stem.startswith("_") or path.suffix not in ("", ".py") or path.stem in _HIDDEN:
                continue
            name = ".".join(path.relative_to(ROOT / "nsbox").with_suffix("").parts)
            found[f"nsbox.{name}"] = self.package[name]
        return found

    def _collect(self, module: str) -> None:
        for exported in self.modules[module].exports or []:
            name = str(exported)
            member = self.modules[module].members[name]
            try:
                thing = member.final_target if member.is_alias else member
                if thing.is_module:  # a function of the same name hides it, as dask.map does
                    thing = thing.members[name]
            except griffe.AliasResolutionError:
                self.foreign[module].append(name)
                continue
            if thing.path in self._by_path:
                self._by_path[thing.path].also.append(f"{module}.{name}")
                continue
            entry = Entry(f"{module}.{name}", thing)
            if not entry.docstring and not thing.is_attribute:
                raise Wrong(f"{entry.name} has no docstring ({thing.path})")
            self._by_path[thing.path] = entry
            self.entries[module].append(entry)

    @cached_property
    def _named(self) -> set[str]:
        """What pages of docs/ name as a method or attribute: `name(`, `.name` or `name` as code."""
        text = "\n".join(path.read_text() for path in DOCS.rglob("*.md"))
        return {
            *re.findall(r"\b([a-z]\w*)\(", text),
            *re.findall(r"\.([a-z]\w*)\b", text),
            *re.findall(r"`(\w+)`", text),
        }

    # ---- pages

    def pages(self) -> list[tuple[Page, str]]:
        """Return each page, for Sphinx, with its text as plain Markdown."""
        found = []
        for name, module in self.modules.items():
            entries = self.entries[name]
            if name == "nsbox":
                errors = [one for one in entries if _is_error(one.thing)]
                ops = [one for one in entries if one.thing.path.startswith(_OPS)]
                entries = [one for one in entries if one not in errors and one not in ops]
                found.append(self._page("nsbox", module.docstring.value, entries, self._overview()))
                found.append(
                    self._page("nsbox: exceptions", "What nsbox raises, besides what Python does.", errors, "")
                )
                found.append(self._page("nsbox: ops", "What Policy.layers() is made of, in order.", ops, ""))
            else:
                found.append(self._page(name, module.docstring.value if module.docstring else "", entries, ""))
        return found

    def _page(self, title: str, docstring: str, entries: list[Entry], more: str) -> tuple[Page, str]:
        docstring = re.sub(r"(?ms)^(Lean:|PYTEST_DONT_REWRITE:).*?(?=\n\n|\Z)", "", docstring)
        start = f"# {title}\n\n{markdown(docstring)}\n\n"
        foreign = self.foreign.get(title, [])
        if foreign:
            start += f"From the standard library, unchanged: {', '.join(f'`{name}`' for name in foreign)}.\n\n"
        modules = "" if ": " in title else f"```{{py:module}} {title}\n```\n\n"
        body = "\n".join(self._rendered(entry, is_plain=False) for entry in entries)
        plain = "\n".join(self._rendered(entry, is_plain=True) for entry in entries)
        target = f"reference/api/{title.replace(': ', '.')}.md"
        return Page(None, target, start + more + modules + body), start + more + plain

    def _overview(self) -> str:
        """Return a table of all names of nsbox, with what each is."""
        rows = ["| name | |", "|---|---|"]
        everything = [entry for entries in self.entries.values() for entry in entries]
        for entry in sorted(everything, key=lambda one: one.name.rpartition(".")[2].lower()):
            short = f"nsbox.{entry.name.rpartition('.')[2]}"
            if short in (entry.name, *entry.also):
                rows.append(f"| `{short}` | {summary(entry.docstring) if entry.docstring else 'a constant'} |")
        return "\n".join(["## Names", "", *rows, "", "## Details", "", ""])

    # ---- one name

    def _rendered(self, entry: Entry, is_plain: bool) -> str:
        thing = entry.thing
        # What nsbox itself exports is known by that name, wherever it is defined.
        short = f"nsbox.{entry.name.rpartition('.')[2]}"
        name = short if short in (entry.name, *entry.also) else entry.name
        kind = "py:data" if thing.is_attribute else "py:exception" if _is_error(thing) else f"py:{thing.kind.value}"
        text = markdown(entry.docstring, lambda names: _described(thing, names)) or f"Value: `{thing.value}`."
        others = [one for one in (entry.name, *entry.also) if one != name]
        if others:
            text += f"\n\nAlso {', '.join(f'`{one}`' for one in others)}."
        signature = name + _signature(thing)
        members = [self._member(one, is_plain) for one in self._members(thing)] if thing.is_class else []
        if is_plain:
            return "\n\n".join([f"## {kind[3:]} `{signature}`", text, *members]) + "\n"
        head = f"```````{{{kind}}} {signature}" + (f"\n:canonical: {others[0]}" if others else "")
        return "\n\n".join([head, text, *members, "```````"]) + "\n"

    def _members(self, thing: griffe.Object) -> list[griffe.Object]:
        fields = {name for name, _, _ in _fields(thing)}
        found = []
        for name, member in thing.all_members.items():
            try:
                one = member.final_target if member.is_alias else member
            except griffe.AliasResolutionError:
                continue
            is_ours = one.path.startswith("nsbox.") and one.docstring and not name.startswith("_")
            if is_ours and name in self._named and name not in fields:
                found.append(one)
        return found

    def _member(self, thing: griffe.Object, is_plain: bool) -> str:
        text = markdown(thing.docstring.value, lambda names: _described(thing, names))
        labels = thing.labels
        kind = "py:property" if "property" in labels else "py:attribute" if thing.is_attribute else "py:method"
        signature = thing.name + ("" if kind != "py:method" else _signature(thing))
        options = [f":{label}:" for label in ("classmethod", "staticmethod", "async") if label in labels]
        if is_plain:
            return f"### {kind[3:]} `{signature}`\n\n{text}"
        return "\n".join([f"`````{{{kind}}} {signature}", *options, "", text, "`````"])


def _is_error(thing: griffe.Object) -> bool:
    if not thing.is_class:
        return False
    bases = [str(base) for base in thing.bases]
    return any(base.rpartition(".")[2].endswith(("Error", "Exception")) for base in bases) or any(
        _is_error(base) for base in thing.mro()
    )


def _fields(thing: griffe.Object) -> list[tuple[str, str, str | None]]:
    """Return name, type and default of the fields of a frozen value."""
    found = {}
    for owner in [*reversed(thing.mro()), thing]:
        if "Frozen" not in {str(base).rpartition(".")[2] for one in (thing, *thing.mro()) for base in one.bases}:
            return []
        for name, member in owner.members.items():
            is_field = member.is_attribute and member.annotation is not None and not name.startswith("_")
            if is_field and "ClassVar" not in str(member.annotation) and "property" not in member.labels:
                found[name] = (name, _type(member.annotation), None if member.value is None else str(member.value))
    return [*found.values()]


def _signature(thing: griffe.Object) -> str:
    if thing.is_attribute:
        return ""
    if thing.is_class:
        init = thing.all_members.get("__init__")
        if init is None or not init.path.startswith("nsbox.") or _fields(thing):
            if not _fields(thing):
                return ""
            return f"({', '.join(name if value is None else f'{name}={value}' for name, _, value in _fields(thing))})"
        thing = init.final_target if init.is_alias else init
    return _call(thing)


def _call(function: griffe.Function) -> str:
    words, stars = [], {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    is_keyword_only = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            words, is_keyword_only = [*words, "*"], True
        is_keyword_only |= parameter.kind is griffe.ParameterKind.var_positional
        word = stars.get(parameter.kind, "") + parameter.name
        has_default = parameter.default is not None and parameter.kind not in stars
        # Unpack[...] names a private table of keywords, which the docstring explains.
        annotation = _type(parameter.annotation)
        is_typed = bool(annotation) and not annotation.startswith("Unpack[")
        word += f": {annotation}" * is_typed
        if has_default:
            word += f" = {parameter.default}" if is_typed else f"={parameter.default}"
        words.append(word)
    returns = f" -> {_type(function.returns)}" if function.returns is not None else ""
    return f"({', '.join(words)}){returns}"


def _type(annotation: object) -> str:
    """Return a type as users know it: modules without the underscore that our imports give them."""
    return "" if annotation is None else re.sub(r"\b_(?=[a-z]\w*\.)", "", str(annotation))


def _described(thing: griffe.Object, names: str) -> str:
    """Return the type of a field; parameters have theirs in the signature."""
    types = {name: kind for name, kind, _ in _fields(thing)} if thing.is_class else {}
    kinds = {types[name] for name in names.split(", ") if name in types}
    return f" ({inline(f'`{kinds.pop()}`')})" if len(kinds) == 1 else ""


def names(path: Path = ROOT) -> list[str]:
    """Return all public names; for tests."""
    api = Api()
    return sorted(one for entries in api.entries.values() for entry in entries for one in (entry.name, *entry.also))
