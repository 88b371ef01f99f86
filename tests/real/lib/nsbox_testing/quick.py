"""What each of the two users, or of the two machines, leaves to the other in the quick form: tests/quick.toml says.

A test with the mark as_root or as_user is run by that user even if the table leaves it to the other one, who would skip it.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

TABLE = Path(__file__).resolve().parents[3] / "quick.toml"
KINDS = ("users", "machines", "copies")


class Item(Protocol):
    """As much of a pytest.Item as is asked here."""

    @property
    def nodeid(self) -> str: ...

    def get_closest_marker(self, name: str) -> object: ...


class Quick:
    """The tests that are left to the other one, or are left out.

    kind: the part of the table, one of KINDS.
    """

    def __init__(self, kind: str, table: Path = TABLE, *, is_root: bool | None = None) -> None:
        is_root = os.geteuid() == 0 if is_root is None else is_root
        rows = tomllib.loads(table.read_text())[kind]
        self._tests = table.parent
        self._mark = ("as_root" if is_root else "as_user") if kind == "users" else None
        others, neither = rows.get("user" if is_root else "root", ()), rows.get("neither", ())
        self.left = [*others, *neither]
        self._others, self._neither = _pattern(others), _pattern(neither)

    def is_left(self, path: Path) -> bool:
        """Say if a file needn't even be imported: all of it is left to the other one, and it doesn't speak of ours."""
        if path.suffix != ".py" or not path.is_relative_to(self._tests):
            return False
        name = path.relative_to(self._tests).as_posix()
        if self._neither.match(name) is not None:
            return True
        is_left = self._others.match(name) is not None
        return is_left and (self._mark is None or self._mark not in path.read_text())

    def split(self, items: Iterable[Item]) -> tuple[list[Item], list[Item]]:
        """Return the tests to run, and the others."""
        ours: list[Item] = []
        others: list[Item] = []
        for item in items:
            name = item.nodeid.removeprefix("tests/")
            is_ours = self._mark is not None and item.get_closest_marker(self._mark) is not None
            is_left = self._neither.match(name) or (self._others.match(name) and not is_ours)
            (others if is_left else ours).append(item)
        return ours, others


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return what matches directories, files, functions and cases of these; * stands for any characters."""
    ways = [re.escape(name).replace(r"\*", ".*") + r"($|/|::|\[)" * (name[-1] != "]") for name in names]
    return re.compile("|".join(ways) if ways else "(?!)")


def main() -> None:
    """Print the files that the machine of a user leaves to the other one: quick.py root|user."""
    for name in Quick("machines", is_root=sys.argv[1] == "root").left:
        if "::" not in name:
            print(f"tests/{name}")


if __name__ == "__main__":
    main()
