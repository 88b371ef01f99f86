"""The table of the quick form: what it names is there, and no test is left to nobody."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nsbox_testing import quick

TESTS = Path(__file__).resolve().parents[1]
ROWS: dict[str, dict[str, list[str]]] = tomllib.loads(quick.TABLE.read_text())


@dataclass
class Item:
    """A test, as pytest has it."""

    nodeid: str
    marks: set[str] = field(default_factory=set)

    def get_closest_marker(self, name: str) -> object:
        return name if name in self.marks else None


def quick_of(tmp_path: Path, *, is_root: bool) -> quick.Quick:
    table = tmp_path / "quick.toml"
    table.write_text(
        '[users]\nroot = ["pure", "real/a.py", "real/b.py::test_one", "real/c.py::test_c[*-0]"]\nuser = ["proxy"]\n'
        'neither = ["proxy/y.py::test_y[1]"]\n'
    )
    return quick.Quick("users", table, is_root=is_root)


@pytest.mark.parametrize("kind", quick.KINDS)
def test_the_table(kind: str) -> None:
    """Each name is a directory, a file or a function that there is; none is below another, unless neither runs it."""
    rows = ROWS[kind]
    assert {*rows} <= {"root", "user", "neither"}
    everything = [name for row in rows.values() for name in row]
    assert len(everything) > 20
    assert len({*everything}) == len(everything)
    for name in everything:
        path, _, function = name.partition("::")
        assert (TESTS / path).exists(), name
        function = function.partition("[")[0]
        assert not function or re.search(rf"^(async )?def {function}\(", (TESTS / path).read_text(), re.M), name
        parents = {str(parent) for parent in Path(path).parents} | ({path} if function else set())
        assert kind == "machines" or name in rows["neither"] or not parents & {*everything}, name


def test_machines_have_such_tests() -> None:
    """What only one machine runs, or neither, has tests for machines; what one runs alone are whole files."""
    for name in (*ROWS["machines"]["root"], *ROWS["machines"]["user"]):
        assert "mark.vm" in (TESTS / name).read_text(), name
    for name in ROWS["machines"]["neither"]:
        assert "mark.vm" in (TESTS / name.partition("::")[0]).read_text(), name


def test_each_test_has_a_user(tmp_path: Path) -> None:
    """Each is run by one user or by both; what is marked for one, by that one."""
    names = ["pure/x.py::test_a", "real/a.py::test_a[1]", "real/b.py::test_one[x]", "real/c.py::test_c[1-0]"]  # root's
    both = ["pureness/x.py::test_a", "real/a.pyx::test_a", "real/b.py::test_one_more", "real/c.py::test_c[0-1]"]
    items = [Item(f"tests/{name}") for name in (*names, *both, "proxy/x.py::test_a")]
    items.append(Item("tests/pure/x.py::test_b", {"as_user"}))
    root, left_by_root = quick_of(tmp_path, is_root=True).split(items)
    user, left_by_user = quick_of(tmp_path, is_root=False).split(items)
    left_out = Item("tests/proxy/y.py::test_y[1]", {"as_root", "as_user"})
    for is_root in (True, False):
        assert quick_of(tmp_path, is_root=is_root).split([left_out]) == ([], [left_out])
    assert [item.nodeid for item in left_by_root] == ["tests/proxy/x.py::test_a"]
    assert left_by_user == items[: len(names)]
    assert all(item in root or item in user for item in items)
    assert items[-1] in user


def test_files_that_are_not_imported(tmp_path: Path) -> None:
    """A file of the other user's in which nothing is ours; one with a mark of ours is."""
    chosen = quick_of(tmp_path, is_root=False)
    found = []
    for name, text in (("pure/test_x", ""), ("pure/test_y", "@pytest.mark.as_user"), ("proxy/test_z", "")):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        found.append(chosen.is_left(path))
    assert found == [True, False, False]
    assert not chosen.is_left(tmp_path / "pure")
