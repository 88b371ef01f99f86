"""What is shown of a transaction hides nothing, whatever a command has made."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import python

from nsbox import Change, CommitError, ConflictError, Transaction
from nsbox._files.files import Tree
from nsbox._transaction import changes as transaction_changes
from nsbox._transaction import patch as transaction_patch


def changed(tx: Transaction, command: str) -> list[str]:
    tx.shell(command, check=True)
    return [str(change) for change in tx.diff()]


# ---- what is shown


def test_permissions_are_shown(tx: Transaction, workspace: Path) -> None:
    """All that git's form leaves out has a line: modes, also of directories, FIFOs, sockets, empty directories."""
    tx.shell(
        "chmod 6755 tool; chmod 0666 settings; chmod 0777 d; mkfifo -m 644 pipe; mkdir -m 755 empty; mkdir -m 1777 open;"
        " touch new open/x; chmod 2644 new; chmod 644 open/x",
        check=True,
    )
    lines = [line for line in tx.patch().splitlines() if line.startswith("#")]
    assert lines == [
        "# d: old mode 040755, new mode 040777",
        "# empty: new directory mode 040755",
        "# new: new file mode 102644",
        "# new: set-user-ID or set-group-ID, which commit() drops unless keep_set_ids=True",
        "# open: new directory mode 041777",
        "# pipe: new fifo mode 010644",
        "# settings: old mode 100644, new mode 100666",
        "# tool: old mode 100755, new mode 106755",
        "# tool: set-user-ID or set-group-ID, which commit() drops unless keep_set_ids=True",
    ]
    tx.commit()
    modes = {name: stat.S_IMODE((workspace / name).stat().st_mode) for name in ("tool", "new", "settings", "open")}
    assert modes == {"tool": 0o755, "new": 0o644, "settings": 0o666, "open": 0o1777}


def test_set_user_id_when_asked_for(tx: Transaction, workspace: Path) -> None:
    """The control: the bits are there to be brought in, with an option."""
    tx.shell("chmod 6755 tool", check=True)
    tx.commit(keep_set_ids=True)
    assert stat.S_IMODE((workspace / "tool").stat().st_mode) == 0o6755


def test_deletions_and_other_types_are_shown(tx: Transaction, workspace: Path) -> None:
    """Also where git sees only half of it."""
    tx.shell("rmdir d; rm tool; mkfifo -m 600 tool; rm settings; mkdir -m 755 settings; touch settings/x", check=True)
    lines = [line for line in tx.patch().splitlines() if line.startswith("#")]
    assert lines == [
        "# d: deleted directory",
        "# settings: file becomes directory",
        "# tool: file becomes fifo",
        "# tool: new fifo mode 010600",
    ]


ATTRIBUTES = """
import os
os.setxattr("tool", "user.mine", b"x")
open("new", "w").close(); os.setxattr("new", "user.other", b"y")
os.link("new", "new2"); os.link("new", "d/new3")
"""


def test_attributes_and_links_are_shown(tx: Transaction, workspace: Path) -> None:
    """In diff(), by a line of patch(), and by commit(), which brings them in."""
    tx.run(python(ATTRIBUTES), check=True)
    found = {change.path: (change.attributes, change.link) for change in tx.diff()}
    assert found == {
        "d/new3": (("user.other",), None),
        "new": (("user.other",), "d/new3"),
        "new2": (("user.other",), "d/new3"),
        "tool": (("user.mine",), None),
    }
    for line in ("# tool: attributes user.mine\n", "# new: hard link to d/new3\n", "# new: attributes user.other\n"):
        assert line in tx.patch()
    tx.commit()
    assert os.getxattr(workspace / "tool", "user.mine") == b"x"
    assert os.getxattr(workspace / "new2", "user.other") == b"y"
    assert (workspace / "new").samefile(workspace / "d/new3")


def test_attributes_of_a_directory_that_stays(tx: Transaction, workspace: Path) -> None:
    """They can't be brought in: shown, and refused rather than lost."""
    tx.run(python("import os; os.setxattr('d', 'user.mine', b'x')"), check=True)
    assert "# d: attributes user.mine" in tx.patch()
    with pytest.raises(CommitError, match=r"can't get other attributes: user\.mine \(d\)"):
        tx.commit()
    tx.run(python("import os; os.removexattr('d', 'user.mine'); open('d/x', 'w').close()"), check=True)
    tx.commit(expected=tx.diff())
    assert os.listdir(workspace / "d") == ["x"]


def test_an_access_list_that_cannot_be_set(tx: Transaction, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without its access list would have other permissions: nothing is committed."""
    tx.run(python(ATTRIBUTES), check=True)

    def refused(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(CommitError, match=r"the attribute user\.\w+ can't be set there"):
        tx.commit()
    assert sorted(os.listdir(workspace)) == ["d", "settings", "tool"]


ACCESS_LIST = """
import os, struct
rows = [(1, 6, 2**32 - 1), (2, 7, os.getuid()), (4, 4, 2**32 - 1), (16, 7, 2**32 - 1), (32, 4, 2**32 - 1)]  # acl(5)
value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
os.setxattr("settings", "system.posix_acl_access", value)
"""


def test_access_lists_are_shown(tx: Transaction, workspace: Path) -> None:
    """They count as attributes, and come along."""
    tx.run(python(ACCESS_LIST), check=True)
    assert "# settings: attributes system.posix_acl_access" in tx.patch()
    tx.commit()
    assert "system.posix_acl_access" in os.listxattr(workspace / "settings")


NAMES = [
    "x\nM README\x1b[1A\x1b[2K",
    "a -> b",
    "a ->",
    "-> b",
    "\u202egpj.exe",
    " x",
    "x ",
    'q"',
    "b\\",
    "t\t",
    "\udcff",
    "\x7f",
    "\u200b",
    "a\u2800",
    "\u3164",
    "x\ufe0f",
    "x\u034f",
    "\U000e0101",
    "x (symlink to y)",
    "x: new fifo mode 010644",
    "a, b",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_forge_nothing(tx: Transaction, workspace: Path, name: str) -> None:
    """In changes that are printed, lines of a patch, and errors: each is one line of what can be seen."""
    tx.run(python("import os, sys; os.mkfifo(sys.argv[1])", name), check=True)
    (change,) = tx.diff()
    error = ConflictError([(name, "changed")])
    step = CommitError(OSError(5, "x", name), f"put {name}")
    for text in (str(change), tx.patch().rstrip("\n"), str(error), str(step)):
        assert text.isprintable(), text
        assert text.isascii()
    assert '"' in str(change)
    assert len(tx.patch().splitlines()) == 1
    assert shown_raw(change) != str(change)  # the control: as it was


def shown_raw(change: Change) -> str:
    return f"A {change.path}"


def test_no_two_changes_look_alike() -> None:
    """What stands between two names is distinguished from what is in one."""
    one = Change("renamed", "y", "file", 0o644, "x ->"), Change("renamed", "-> y", "file", 0o644, "x")
    other = (
        Change("added", "x", "file", 0o644, attributes=names) for names in (("user.a user.b",), ("user.a", "user.b"))
    )
    assert len({str(change) for change in (*one, *other)}) == 4


REMARKS = [
    ("rm tool; ln -s /etc/passwd tool", "M tool (file becomes symlink to /etc/passwd)"),
    ("ln -s ../x link", "A link (symlink to ../x)"),
    ("ln -s 'y) (z' link", 'A link (symlink to "y) (z")'),
    ("ln -s \u3164 link", 'A link (symlink to "\\343\\205\\244")'),
    ("rm tool; mkfifo -m 600 tool", "M tool (file becomes fifo)"),
    ("rm tool; mkdir -m 777 tool", "M tool/ (file becomes directory, mode 0777)"),
    ("rmdir d; echo > d; chmod 755 d", "M d (directory becomes file, mode 0755)"),
    ("chmod 4755 tool", "M tool (mode 0755 becomes 4755)"),
    ("chmod 666 settings; echo >> settings", "M settings (mode 0644 becomes 0666)"),
    ("echo > x; chmod 755 x", "A x (mode 0755)"),
    ("echo > x; chmod 602 x", "A x (mode 0602)"),
    ("echo > x; chmod 644 x", "A x"),
    ("mkdir -m 1777 x", "A x/ (mode 1777)"),
    ("mkdir -m 755 x", "A x/"),
    ("mv tool x; chmod 700 x", "R tool -> x (mode 0755 becomes 0700)"),
    ("rm tool", "D tool"),
    ("mkfifo -m 622 x", "A x (fifo, mode 0622)"),
    ("touch x; ln x y", "A x\nA y (hard link to x)"),
    ("""python3 -c 'import os; os.setxattr("tool", "user.x", b"y")'""", "M tool (attributes user.x)"),
]


@pytest.mark.parametrize(("command", "text"), REMARKS)
def test_a_printed_change_says_what_it_is(tx: Transaction, command: str, text: str) -> None:
    """Types that become others, where links lead, modes that matter, attributes and hard links; commit() returns it too."""
    printed = changed(tx, f"umask 022; {command}")
    assert "\n".join(printed) == text
    if "attributes" not in text and "4755" not in text:
        assert [str(change) for change in tx.commit()] == printed


def test_plain_names_stay(tx: Transaction) -> None:
    """Nothing is quoted that needn't be."""
    assert changed(tx, "touch 'a b' '\u00e4\u6f22' '#x' \"it's\"") == ["A #x", "A a b", "A it's", "A \u00e4\u6f22"]


HOSTILE = "a\x1b[2K\x1b[1Ab\r\u202ec\u2066d\u200be\u3164f\u2800g\x9bh\x07\x08i\x7f\tj\u00e4\u6f22\udcff"


def test_a_patch_for_a_terminal(tx: Transaction, workspace: Path, tmp_path: Path) -> None:
    """With escaped=True nothing in it moves the cursor, hides or turns text around; the control: without, git takes it."""
    copy = shutil.copytree(workspace, tmp_path / "copy")
    tx.run(python("import os, sys; open('new', 'wb').write(os.fsencode(sys.argv[1]) + b'\\n')", HOSTILE), check=True)
    tx.shell("ln -s '\x1b[2K' link", check=True)
    text = tx.patch(escaped=True)
    line = next(line for line in text.splitlines() if line.startswith("+a"))
    assert line == (
        r"+a\033[2K\033[1Ab\015\342\200\256c\342\201\246d\342\200\213e\343\205\244f\342\240\200g\302\233h\007\010i\177"
        "\tj\u00e4\u6f22"
        r"\377"
    )
    assert all(part.isprintable() for part in text.replace("\t", "").split("\n"))
    assert r"+\033[2K" in text
    raw = tx.patch()
    assert "\x1b[2K" in raw and HOSTILE in raw
    given = raw.encode("utf-8", "surrogateescape")
    done = subprocess.run(["git", "apply"], cwd=copy, input=given, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (copy / "new").read_bytes() == os.fsencode(HOSTILE) + b"\n"
    assert tx.patch(escaped=True) == text
    tx.commit()  # it is a look as the other is


def test_git_takes_the_lines(tx: Transaction, workspace: Path, tmp_path: Path) -> None:
    """They are nothing to git apply."""
    copy = shutil.copytree(workspace, tmp_path / "copy")
    tx.shell("chmod 6755 settings; echo x > tool; mkfifo a-pipe z-pipe; mkdir m; mv tool n; echo y >> n", check=True)
    patch = tx.patch()
    assert "# a-pipe" in patch and "# z-pipe" in patch
    done = subprocess.run(["git", "apply"], cwd=copy, input=patch, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (copy / "n").read_text() == "x\ny\n"
    assert (copy / "settings").stat().st_mode & 0o777 == 0o755


# ---- what a patch costs


def test_a_patch_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many names is shown as often as there is room for it, then only said to differ."""
    monkeypatch.setattr(transaction_patch, "_MOST_READ", 1000)
    for name in ("upper", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "upper/file0").write_text("x\n" * 200)
    for i in range(1, 8):
        os.link(tmp_path / "upper/file0", tmp_path / f"upper/file{i}")
    with Tree(str(tmp_path / "upper")) as upper, Tree(str(tmp_path / "real")) as real:
        changes = transaction_changes.Comparison(upper, real).changes()
        one = transaction_patch.Patch(upper, real, 1 << 20, changes)
        texts = [one.of(change) for change in changes]
    assert [text.count("\n+x") for text in texts] == [200] * 2 + [0] * 6
    assert all("Binary files /dev/null and b/file" in text for text in texts[2:])
