"""Names of files as macOS has them: links, firmlinks, spellings; and patterns for every spelling of a name."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nsbox_seatbelt import calm
from nsbox_seatbelt.evaluator import Evaluator
from nsbox_seatbelt.macs import EXACT, MAC, profile, values, workspace

from nsbox._backends.seatbelt import canonical
from nsbox._machine import darwin
from nsbox._plan.sbpl import folded

REPO = "/Users/me/repo"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp", "/private/tmp"),
        ("/tmp/x", "/private/tmp/x"),
        ("/var/folders/a", "/private/var/folders/a"),
        ("/etc/hosts", "/private/etc/hosts"),
        ("/tmpx", "/tmpx"),
        ("/private/tmp/x", "/private/tmp/x"),
        ("/System/Volumes/Data/Users/me", "/Users/me"),
        ("/System/Volumes/Data/private/tmp", "/private/tmp"),
        ("/System/Volumes/Data", "/System/Volumes/Data"),
        ("/System/Volumes/Data/Users2/me", "/System/Volumes/Data/Users2/me"),
        ("/System/Volumes/Data/elsewhere", "/System/Volumes/Data/elsewhere"),
        ("/System/Volumes/DataX/Users", "/System/Volumes/DataX/Users"),
        ("/users/ME", "/Users/me"),
    ],
)
def test_canonical(path: str, expected: str) -> None:
    """A path is what the kernel calls it, since that is what rules are compared with."""
    assert canonical(path, replace(MAC, spellings=(("/users/ME", "/Users/me"),))) == expected


def test_other_names_open_nothing() -> None:
    """What is denied by one of its names is so by all of them; /System/Volumes, where the others are, isn't readable."""
    for name in (f"{REPO}/no", f"/System/Volumes/Data{REPO}/no"):
        op = profile(workspace(deny=[name]))
        model = Evaluator(op.profile, values(op))
        assert not model.allows("file-read-data", f"{REPO}/no")
        assert not model.allows("file-read-data", f"/System/Volumes/Data{REPO}/no")
        assert not model.allows("file-read-data", f"/System/Volumes/Data{REPO}/x")
        assert model.allows("file-read-data", f"{REPO}/x")


def test_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system is asked for its spelling of what is there; what isn't stays as it was asked for."""
    (tmp_path / "Dir").mkdir()
    asked = []

    def control(fd: int, what: int, buffer: bytes) -> bytes:
        asked.append(what)
        return os.fsencode(os.readlink(f"/proc/self/fd/{fd}")).upper().ljust(len(buffer), b"\0")

    monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    assert darwin.spelled(f"{tmp_path}/Dir") == f"{tmp_path}/DIR".upper()
    assert darwin.spelled(f"{tmp_path}/Dir/none/x") == f"{tmp_path}/DIR".upper() + "/none/x"
    assert darwin.spelled("/") == "/"
    assert set(asked) == {50}


# ---- any spelling


def matches(name: str, spelled: str) -> bool:
    op = profile(workspace(deny=[f"{REPO}/{name}"]))
    model = Evaluator(op.profile, values(op))
    verdicts = {
        model.allows(operation, f"{REPO}/{spelled}{more}")
        for operation, more in (("file-read-data", ""), ("file-write-create", ""), ("file-write-data", "/x"))
    }
    assert len(verdicts) == 1
    return verdicts == {False}


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        (".env", ".ENV"),
        (".ssh", ".\u017f\u017fh"),
        (".ssh", ".\u00dfH"),
        ("key", "\u212aEY"),
        ("config", "con\ufb01g"),
        ("office", "o\ufb03ce"),
        ("straße", "STRASSE"),
        ("strasse", "stra\u1e9ee"),
        ("caf\u00e9", "cafe\u0301"),
        ("cafe\u0301", "CAF\u00c9"),
        ("\u0130d", "i\u0307D"),
        ("Ünder", "u\u0308NDER"),
        ('a"b', 'A"B'),
        (".env", ".\u200cenv"),
        (".env", "\u200c.env"),
        (".env", ".env\u200d"),
    ],
)
def test_spellings(name: str, spelled: str) -> None:
    """A denied name is denied in each spelling that a volume of macOS takes for it; as it is where it takes only that."""
    assert matches(name, spelled)
    op = profile(workspace(deny=[f"{REPO}/{name}"]), EXACT)
    assert Evaluator(op.profile, values(op)).allows("file-read-data", f"{REPO}/{spelled}")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        (".env", ".envrc"),
        (".env", "x.env"),
        (".env", "env"),
        (".env", "aenv"),
        ("ab", "a"),
        ("ab", "aab"),
        ("a-b", "a_b"),
    ],
)
def test_other_names(name: str, other: str) -> None:
    """Names that are no spelling of it stay open."""
    assert not matches(name, other)
    assert matches(name, name)


def pattern(name: str) -> re.Pattern[bytes]:
    text = folded("W", f"/{name}", below=False)
    assert text is not None
    parts = re.findall(r'#"((?:[^"])*)"', text)
    return re.compile("".join(parts).encode())


@calm
@given(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8), st.data()
)
def test_any_text(name: str, data: st.DataObject) -> None:
    """Whatever the name: each way to change its case or to compose it gives a spelling that the pattern has."""
    assume(normalize("NFD", name) and name not in (".", ".."))
    found = pattern(name)
    change = data.draw(st.sampled_from([str.upper, str.lower, str.swapcase, str.casefold, str.title]))
    form = data.draw(st.sampled_from(["NFC", "NFD"]))
    for spelled in (name, normalize(form, name), normalize(form, change(name))):
        # Not every change keeps the name: some letters have no way back.
        if normalize("NFD", normalize("NFD", spelled).casefold()) != normalize(
            "NFD", normalize("NFD", name).casefold()
        ):
            continue
        assert found.fullmatch(f"/{spelled}".encode()), spelled
