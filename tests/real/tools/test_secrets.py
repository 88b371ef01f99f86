"""Secrets: values don't show themselves; stores refuse what others could read or have put there; one command gets some."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import nsbox
from nsbox.secrets import JsonStore, KeyringStore, Secret, Store, StoreError, inject

VALUE = "hunter2-and-more"
MARK = "MARKED"  # stands in contents that must not get into a message


@pytest.fixture
def store(tmp_path: Path) -> JsonStore:
    """A store of which nothing is there yet."""
    return JsonStore(tmp_path / "agent")


# ---- Secret


def test_a_secret_does_not_show_itself() -> None:
    """No usual way to make a text of it has the value; reveal() has."""
    secret = Secret(VALUE)
    shown = [
        repr(secret),
        str(secret),
        f"{secret} {secret!r} {secret:>30} {[secret]} {{1: secret}}",
        "%s %r" % (secret, secret),  # noqa: UP031  (these are ways to leak)
    ]
    shown += [
        "{} {!s:10}".format(secret, secret),  # noqa: UP032
        json.dumps([secret], default=str),
        ascii(secret),
    ]
    record = logging.LogRecord("name", 30, "path", 1, "%s", (secret,), None)
    shown += [record.getMessage(), repr(record.__dict__)]
    assert all("hunter" not in text for text in shown) and all("***" in text for text in shown)
    assert secret.reveal() == VALUE
    assert f"{secret.reveal()}" in VALUE  # the control
    assert not hasattr(secret, "__dict__")


def test_a_secret_is_not_written_down() -> None:
    """It can't be pickled, put into JSON, concatenated, or taken for a str; a copy is the same one."""
    secret = Secret(VALUE)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps({"a": secret}, protocol)
    for what in (lambda: json.dumps(secret), lambda: "a" + secret, lambda: "".join([secret]), lambda: hash(secret)):  # type: ignore[operator, list-item]
        with pytest.raises(TypeError) as caught:
            what()
        assert "hunter" not in str(caught.value)
    assert copy.copy(secret) is copy.deepcopy([secret])[0] is secret
    for change in (
        lambda: setattr(secret, "other", 1),
        lambda: setattr(secret, "_Secret__value", "x"),
        lambda: delattr(secret, "_Secret__value"),
    ):
        with pytest.raises(AttributeError):
            change()


def test_secrets_are_compared() -> None:
    """Two of the same value are equal, in constant time; a str is never one."""
    assert Secret("é…\ud800") == Secret("é…\ud800") != Secret("é…")
    assert Secret(VALUE) != VALUE and not Secret(VALUE) == VALUE  # noqa: SIM201
    assert Secret("a") and not Secret("")
    for value in (b"bytes", None, 5, Secret("a")):
        with pytest.raises(TypeError):
            Secret(value)  # type: ignore[arg-type]


# ---- JsonStore


# ---- KeyringStore


class Ring:
    """A backend of keyring, in memory."""

    priority = 5.0
    fails: type[Exception] | None = None

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        if self.fails:
            raise self.fails(f"{MARK}: locked")
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.kept[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """What the library keyring has chosen; the library itself is one of three names."""
    made, library, errors = Ring(), ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    library.get_keyring = lambda: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", library)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return made


def test_keyring(ring: Ring) -> None:
    """A keyring keeps secrets by service and name, and the list of names, which it can't give itself."""
    store = KeyringStore("agent")
    assert isinstance(store, Store) and store.names() == []
    store.set("B", VALUE)
    store.set("A", Secret("other value"))
    store.set("B", "new value")
    assert (store.names(), store.get("B").reveal()) == (["A", "B"], "new value")
    assert KeyringStore("other").names() == []
    with pytest.raises(KeyError, match="no secret 'B' in keyring service 'other'"):
        KeyringStore("other").delete("B")
    store.delete("B")
    assert store.names() == ["A"] and ("agent", "B") not in ring.kept
    env, _ = inject({}, store)
    assert env == {"A": "other value"}


def test_keyring_that_cannot_be_asked(ring: Ring) -> None:
    """Errors of the library are StoreErrors that say where, and not what the library said."""
    store = KeyringStore("agent")
    ring.kept["agent", "names="] = MARK
    with pytest.raises(StoreError, match="no list of names") as caught:
        store.names()
    assert MARK not in str(caught.value)
    ring.fails = sys.modules["keyring.errors"].KeyringError
    for call in (store.names, lambda: store.get("A"), lambda: store.set("A", "value"), lambda: store.delete("A")):
        with pytest.raises(StoreError, match="KeyringError at get_password") as caught:
            call()
        assert MARK not in "".join(traceback.format_exception(caught.value))


def test_keyring_that_is_none(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library finds no keyring, or only one in the open, that isn't used unless it is given."""
    monkeypatch.setattr(Ring, "priority", 0.5)
    with pytest.raises(nsbox.UnavailableError, match="no keyring of the system's"):
        KeyringStore("agent")
    assert KeyringStore("agent", backend=ring).names() == []


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library it says what to install."""
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(nsbox.UnavailableError, match=r"pip install 'nsbox\[keyring\]'"):
        KeyringStore("agent")
    for service in ("", "a\0", 5):
        with pytest.raises(ValueError, match="service"):
            KeyringStore(service)  # type: ignore[arg-type]


def test_the_library_itself() -> None:
    """The library, where it is installed, is as it is taken for."""
    library = pytest.importorskip("keyring")
    from keyring.backends.fail import Keyring

    store = KeyringStore("agent", backend=Keyring())
    with pytest.raises(StoreError, match="NoKeyringError at get_password"):
        store.names()
    assert library.get_keyring().priority is not None


# ---- one command


def test_inject(store: JsonStore, workspace: Path) -> None:
    """One command gets the secrets that it is meant to have, and what it prints of them, as it is or encoded, is redacted."""
    store.set("TOKEN", VALUE)
    store.set("OTHER", "not for this one")
    env, scrubber = inject({"PATH": os.environ["PATH"], "TOKEN": "old"}, store, ["TOKEN"])
    assert env == {"PATH": os.environ["PATH"], "TOKEN": VALUE}
    script = 'echo "$TOKEN<$OTHER>"; printf x%s "$TOKEN" | base64; cat ../agent/secrets.json'
    policy = nsbox.Policy.workspace(workspace)
    done = nsbox.run(script, shell=True, env=env, policy=policy, cwd=workspace, capture_output=True, check=False)
    assert VALUE.encode() in done.stdout  # the control
    assert scrubber.scrub(done.stdout) == b"***<>\neG***U=\n"
    assert done.stderr.startswith(b"cat: ") and VALUE.encode() not in done.stderr


def test_inject_all(store: JsonStore) -> None:
    """Without names all are taken, of a store or a mapping; what was given isn't changed."""
    store.set("A", "value-a")
    store.set("B", "value-b")
    given = {"HOME": "/"}
    for source in (store, {"A": Secret("value-a"), "B": "value-b"}):
        env, scrubber = inject(given, source)
        assert (env, given) == ({"HOME": "/", "A": "value-a", "B": "value-b"}, {"HOME": "/"})
        assert scrubber.scrub("value-a/value-b/value-c") == "***/***/value-c"
    assert inject(given, {})[0] == given


BAD_INJECTIONS: list[tuple[Any, Any, type[Exception], str]] = [
    ({"A": ""}, None, ValueError, "the value of A is empty"),
    ({"A": Secret("abc")}, None, ValueError, "the value of A has 3 bytes, fewer than 4"),
    ({"A": "a\0bcdef"}, None, ValueError, "the value of A has a NUL"),
    ({"A=": "value"}, None, ValueError, "name: 'A='"),
    ({"": "value"}, None, ValueError, "name: ''"),
    ({"A\0": "value"}, None, ValueError, "name"),
    ({"A": "value"}, ["B"], KeyError, "no secret 'B'"),
    ({"A": "value"}, "A", TypeError, "names: is a str"),
    ({"A": 5}, None, TypeError, "the value of A is an int"),
    ({5: "value"}, None, TypeError, "name is an int"),
]


@pytest.mark.parametrize(
    ("source", "names", "error", "problem"), BAD_INJECTIONS, ids=[row[3] for row in BAD_INJECTIONS]
)
def test_inject_refuses(source: Any, names: Any, error: type[Exception], problem: str) -> None:
    """A name or value that no variable can have, or that can't be redacted, is refused by its name."""
    with pytest.raises(error, match=problem):
        inject({}, source, names)


def test_imports_are_light() -> None:
    """Importing nsbox loads neither of the two modules; these load neither the library keyring nor anything that runs commands."""
    code = "import sys, nsbox; a = {*sys.modules}; import nsbox.secrets, nsbox.leaks; b = {*sys.modules}; print(*a, '|', *b)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(nsbox.__file__).parents[1], capture_output=True, text=True, check=True
    )
    bare, loaded = (set(part.split()) for part in done.stdout.split("|"))
    assert not bare & {"nsbox.secrets", "nsbox.leaks", "json", "re"}
    assert not loaded & {
        "keyring",
        "subprocess",
        "asyncio",
        "logging",
        "dataclasses",
        "nsbox._core.call",
        "nsbox._nsbox",
    }
