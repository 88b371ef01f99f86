"""grep and glob: the same answers by ripgrep and by Python, bounded whatever commands have made."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import AccessError, PathRule, Policy, Sandbox, UnavailableError
from nsbox._filetools import grep as greps
from nsbox._filetools import walk

THOROUGH = bool(os.environ.get("NSBOX_THOROUGH"))


@pytest.fixture(params=["rg", "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What searches."""
    if request.param == "python":
        monkeypatch.setattr(greps, "_RIPGREP", ("no-such-program", *greps._RIPGREP[1:]))
    else:
        needs.require("rg")
    return str(request.param)


@pytest.fixture
def sources(ws: Path) -> Path:
    """A workspace with some sources."""
    for name, text in {
        "src/a.py": "import os\n\ndef f():\n    return 1\n",
        "src/deep/b.ts": "let x = 1\r\nreturn X\r\n",
        "src/new\nline.py": "return 2\n",
        ".hidden": "return 3\n",
        ".git/config": "return 4\n",
        "ignored": "return 5\n",
        ".gitignore": "ignored\n",
        "binary": "return 6\n\0",
        "hidden/file": "return 7\n",
    }.items():
        (ws / name).parent.mkdir(parents=True, exist_ok=True)
        (ws / name).write_bytes(text.encode())
    (ws / "src/invalid").write_bytes(b"\xffreturn 8\n")
    (ws / "src/to-outside").symlink_to(ws.parent / "outside/file")
    return ws


def rows(box: Sandbox, *args: object, **options: object) -> list[tuple[str, int]]:
    found = box.grep(*args, **options)
    assert not found.is_truncated
    return [(match.path, match.line) for match in found.matches]


def test_grep(box: Sandbox, sources: Path, engine: str) -> None:
    """Hidden and ignored files are searched; .git, binaries, links and what is denied aren't."""
    found = box.grep("return")
    assert found.engine == engine
    assert [(match.path, match.line, match.text) for match in found.matches] == [
        (".hidden", 1, "return 3"),
        ("ignored", 1, "return 5"),
        ("src/a.py", 4, "    return 1"),
        ("src/deep/b.ts", 2, "return X"),
        ("src/invalid", 1, "\ufffdreturn 8"),
        ("src/new\nline.py", 1, "return 2"),
    ]
    assert json.loads(json.dumps(found.as_dict()))["matches"][0]["path"] == ".hidden"
    assert str(found).startswith(".hidden:1:return 3\n")
    for match in found.matches:
        assert match.text.strip() in box.read(match.path, errors="replace")


def test_options(box: Sandbox, sources: Path, engine: str) -> None:
    """Both know the same ones."""
    assert rows(box, "RETURN x", ignore_case=True) == [("src/deep/b.ts", 2)]
    assert rows(box, "f()", fixed=True) == [("src/a.py", 3)]
    assert rows(box, r"^\s+return \d$") == [("src/a.py", 4)]
    assert rows(box, r"X$", "src") == [("src/deep/b.ts", 2)]
    assert rows(box, "return", "src/a.py") == [("src/a.py", 4)]
    assert rows(box, "return", sources / "src/a.py") == [(f"{sources}/src/a.py", 4)]
    assert rows(box, "return", glob="*.{ts,js}") == [("src/deep/b.ts", 2)]
    assert rows(box, "return", glob="src/*.py") == [("src/a.py", 4), ("src/new\nline.py", 1)]
    assert ("src/a.py", 4) not in rows(box, "return", glob="!*.py")
    assert rows(box, "return", "src", glob="deep/**") == [("src/deep/b.ts", 2)]
    assert rows(box, "-e") == rows(box, "nothing of the kind") == []
    context = box.grep("def", "src/a.py", context=1).matches
    assert [(m.line, m.text, m.is_context) for m in context] == [
        (2, "", True),
        (3, "def f():", False),
        (4, "    return 1", True),
    ]


def test_lookaround_goes_to_python(box: Sandbox, sources: Path, engine: str) -> None:
    """ripgrep doesn't know it."""
    found = box.grep(r"return (?!\d)", "src")
    assert [match.path for match in found.matches] == ["src/deep/b.ts"]
    assert found.engine == "python"


def test_limits(box: Sandbox, ws: Path, engine: str) -> None:
    """The record says what was reached."""
    (ws / "many").write_text("x\n" * 50)
    (ws / "long").write_text("y" * 100_000 + "\n")
    found = box.grep("x", "many", max_matches=20)
    assert (len(found.matches), found.is_truncated, found.why) == (20, True, "matches")
    found = box.grep("x", "many", max_matches=50)
    assert (len(found.matches), found.is_truncated, found.why) == (50, False, "")
    assert box.grep("x", "many", max_chars=20).why == "chars"
    (match,) = box.grep("y", "long").matches
    assert match.text == "y" * 500 + " [... omitted end of long line]"


def test_exponential_patterns(box: Sandbox, ws: Path, engine: str) -> None:
    """They are ended when the time is up, and this process goes on meanwhile. Python alone would need years."""
    (ws / "a").write_text("a" * 60 + "b\n")
    started = time.monotonic()
    found = box.grep(r"(?=a)(a|aa)+$", timeout=0.5)
    assert (found.matches, found.is_truncated, found.why) == ((), True, "time")
    assert time.monotonic() - started < 20


def test_a_line_of_a_gigabyte(box: Sandbox, ws: Path, engine: str) -> None:
    """Too large a file isn't searched; to ask for that one says so."""
    with open(ws / "huge", "wb") as file:
        file.write(b"x = 1 ")
        file.truncate(1 << 30)
    (ws / "small").write_text("x = 1\n")
    assert rows(box, "x = 1") == [("small", 1)]
    with pytest.raises(AccessError, match="huge is too large to be searched: 67108864 bytes at most"):
        box.grep("x", "huge")


@pytest.mark.parametrize("pattern", ["(", "[a", "a\nb", "", "x" * 20_000, "a\0"])
def test_what_is_no_pattern(box: Sandbox, engine: str, pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern is "):
        box.grep(pattern)


def test_the_rules_hold(box: Sandbox, sources: Path, engine: str) -> None:
    """For what is searched, and for each file that is found."""
    for path in ("hidden", "hidden/file", "out", "link", "/etc", "/etc/passwd", "../outside"):
        with pytest.raises(AccessError):
            box.grep("x", path)
    (sources / "notes").mkdir()
    for name in ("a.md", "b.txt", "big.md"):
        (sources / "notes" / name).write_text("find me\n" * (100 if name == "big.md" else 1))
    rule = PathRule("notes", str(sources / "notes"), suffixes=(".md",), max_file_bytes=50)
    with Sandbox(Policy.workspace(sources, write=[sources / "notes"], paths=[rule]), stock=0) as other:
        assert rows(other, "find me") == [("notes/a.md", 1)]


def test_uncontained_it_finds_no_more(sources: Path, engine: str) -> None:
    """In mode "disabled" the program could read what the policy denies; what it prints of that isn't shown."""
    policy = Policy.workspace(sources, deny=[sources / "hidden"])
    with Sandbox(policy, mode="disabled", stock=0) as box:
        assert box.exec("cat", ["hidden/file"]).stdout == "return 7\n", "the control"
        assert "hidden/file" not in {match.path for match in box.grep("return").matches}


def test_cancelled(box: Sandbox, ws: Path) -> None:
    """A token ends a search that would take forever, and so does a cancelled task."""
    (ws / "hard").write_text("a" * 60 + "!\n")
    token = nsbox.CancelToken()
    threading.Timer(0.2, token.cancel).start()
    began = time.monotonic()
    found = box.grep(r"(?=a)(a|aa)+$", timeout=LONG, cancel=token)
    assert (found.is_truncated, found.why) == (True, "cancelled")
    with pytest.raises(TypeError, match="cancel is a bool, must be a CancelToken"):
        box.grep("a", cancel=True)  # type: ignore[arg-type]
    assert box.grep("!", cancel=nsbox.CancelToken()).matches[0].line == 1
    answer = nsbox.call_tool(box, "grep", {"pattern": r"(?=a)(a|aa)+$"}, cancel=token)
    assert answer["why"] == "cancelled"

    async def main() -> None:
        async with nsbox.AsyncSandbox(box.policy) as other:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.grep(r"(?=a)(a|aa)+$", timeout=LONG), 0.3)

    asyncio.run(main())
    assert time.monotonic() - began < LONG


@pytest.mark.parametrize("timeout", [0, -1, "5", True, float("nan")])
def test_bad_time_limits(box: Sandbox, timeout: Any) -> None:
    with pytest.raises(ValueError, match=f"timeout is {timeout!r}, must be a number of seconds above 0"):
        box.grep("x", timeout=timeout)


def test_neither_program(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greps, "_RIPGREP", ("no-such-program",))
    monkeypatch.setattr(greps, "_by_python", lambda *_: [("python", ["no-such-program"])])
    with pytest.raises(UnavailableError, match="the sandbox has neither rg nor a Python interpreter"):
        box.grep("x")


def test_what_an_odd_program_prints(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the sandbox's that pretends to be ripgrep: endless lines, and names that lead out, are dropped."""
    script = r"""
printf '/etc/passwd\0001:x\n../outside/file\0001:x\nhidden/file\0001:x\nsub/file\0001:good\n'
printf 'no number\0x:x\n\n--\n'
head -c 300000000 /dev/zero
printf '\nsub/file\0002:more\n'
"""
    (ws / "tool").write_text(script)
    monkeypatch.setattr(greps, "by_ripgrep", lambda *_: ["sh", "tool"])
    found = box.grep("x")
    assert [(match.path, match.line, match.text) for match in found.matches] == [
        ("sub/file", 1, "good"),
        ("sub/file", 2, "more"),
    ]


# ---- glob


def test_glob(box: Sandbox, ws: Path) -> None:
    """The newest first."""
    for i, name in enumerate(["c.py", "sub/a.py", "sub/deep/b.py", "sub/x.txt"]):
        (ws / name).parent.mkdir(parents=True, exist_ok=True)
        (ws / name).write_text("")
        os.utime(ws / name, (1000 + i, 1000 + i))
    assert box.glob("**/*.py").paths == ("sub/deep/b.py", "sub/a.py", "c.py")
    assert box.glob("*.py", "sub").paths == ("sub/a.py",)
    assert box.glob("*.py", str(ws / "sub")).paths == (f"{ws}/sub/a.py",)
    some = box.glob("**/*.py", max_files=2)
    assert some.as_dict() == {"paths": ["sub/deep/b.py", "sub/a.py"], "is_truncated": True}
    assert not box.glob("**/*.py", max_files=3).is_truncated
    assert "hidden/file" not in box.glob("**/*").paths
    with pytest.raises(AccessError):
        box.glob("*", "hidden")
    with pytest.raises(ValueError, match="pattern is ''"):
        box.glob("")
    with pytest.raises(NotADirectoryError):
        box.glob("*", "sub/x.txt")


@pytest.mark.timeout(900)
def test_a_million_names(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the bound are looked at, and the record says so; there is no error."""
    most = walk._MOST_ENTRIES if THOROUGH else 2000
    monkeypatch.setattr(walk, "_MOST_ENTRIES", most)
    code = "import os, sys\nfor i in range(int(sys.argv[1])): os.close(os.open(f'd{i % 10}/{i}', os.O_CREAT))"
    for i in range(10):
        box.mkdir(f"d{i}")
    box.run(["python3", "-c", code, str(most + 100)], check=True)
    found = box.glob("**/*", max_files=100)
    assert (len(found.paths), found.is_truncated) == (100, True)
    box.run(["sh", "-c", "rm -r d?"], check=True)


def test_rows_that_a_command_writes() -> None:
    """Empty ones, of context, and with long names: what they use up is bounded, by count and by size."""

    class Shows(greps._Search):
        def _is_allowed(self, path: str) -> bool:
            return True

    search = Shows(None, greps.Wish("x", None, False, False, 0, 1000, 200_000, 60), "/ws", ".")  # type: ignore[arg-type]
    for i in range(100_000):
        search._take(b"./%s%09d\x001-\n" % (b"a" * 4000, i))
        if search._why:
            break
    assert (search._why, len(search._found)) == ("matches", 1000)
    search = Shows(None, greps.Wish("x", None, False, False, 20, 100_000, 200_000, 60), "/ws", ".")  # type: ignore[arg-type]
    for i in range(100_000):
        search._take(b"./%s%09d\x001-\n" % (b"a" * 4000, i))
        if search._why:
            break
    assert search._why == "chars"
    assert len(search._found) < 5000
    search = Shows(None, greps.Wish("x", None, False, False, 0, 1000, 200_000, 60), "/ws", ".")  # type: ignore[arg-type]
    search._take(b"./%s\x001:x\n" % (b"a" * 5000))
    assert (search._found, search._known) == ([], {})


def test_a_name_that_looks_like_a_match(box: Sandbox, ws: Path) -> None:
    """As text, a file's name is one line."""
    (ws / "a\nsetup.py:1:evil # ").write_text("needle\n")
    found = box.grep("needle")
    assert len(found.matches) == 1
    assert len(str(found).splitlines()) == 1


def test_long_paths_are_bounded(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All together, and each."""
    deep = ws / "/".join(["d" * 50] * 20)
    deep.mkdir(parents=True)
    for i in range(20):
        (deep / str(i)).touch()
    assert len(box.glob("d*/**/*").paths) == 20
    monkeypatch.setattr(walk, "_MOST_CHARS", 5000)
    assert box.glob("**/*").is_truncated
    with pytest.raises(ValueError, match="paths are too long"):
        box.list_files()
    monkeypatch.setattr(walk, "_LONGEST", 500)
    assert box.list_files(".", "d*/**/*") == []


def test_grep_of_a_directory_that_vanishes(box: Sandbox, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory goes away between the look at it and the search, the error names it, and no program."""
    start = box.Popen

    def vanishing(*args: Any, **options: Any) -> Any:
        if (ws / "d").exists():
            (ws / "d").rmdir()
        return start(*args, **options)

    (ws / "d").mkdir()
    monkeypatch.setattr(box, "Popen", vanishing)
    with pytest.raises(OSError) as caught:
        box.grep("x", "d")
    assert not isinstance(caught.value, UnavailableError) and "d" in str(caught.value.filename)
