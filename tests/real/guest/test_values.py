"""What a reply says of values: JSON where JSON can say it, and text; bounded, whatever the classes do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsbox_testing.guests import Branch, Interpreter


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("True", True),
        ("-5", -5),
        ("0.5", 0.5),
        ("1e308", 1e308),
        ("'é\\ud800\\x00'", "é\ud800\x00"),
        ("[1, 'a', None]", [1, "a", None]),
        ("(1, (2, 3))", [1, [2, 3]]),
        ("{'a': {'b': []}}", {"a": {"b": []}}),
        ("import collections; collections.OrderedDict(a=1)", {"a": 1}),
        ("import collections; collections.namedtuple('P', 'x y')(1, 2)", [1, 2]),
        ("import enum; enum.IntEnum('E', 'A B').B", 2),
        ("class S(str): __slots__ = ()\nS('text')", "text"),
        ("10 ** 4000", 10**4000),
    ],
)
def test_json(kernel: Branch, code: str, value: Any) -> None:
    """Python's own types, and classes made from them, are JSON values; a tuple is a list."""
    reply = kernel.run(code)
    assert reply["value"] == value and type(reply["value"]) is type(value)
    assert reply["has_value"] is True and reply["truncated"] == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("float('nan')", "JSON has no NaN and no infinity"),
        ("[1.0, float('-inf')]", "JSON has no NaN and no infinity"),
        ("b'bytes'", "JSON has no bytes"),
        ("{1, 2}", "JSON has no set"),
        ("{1: 2}", "a dict has a key that isn't a str"),
        ("[{'a': {None: 1}}]", "a dict has a key that isn't a str"),
        ("class S(str):\n  __hash__ = object.__hash__\n  __eq__ = object.__eq__\n{S('a'): 1, 'a': 2}", "same letters"),
        ("1j", "JSON has no complex"),
        ("object()", "JSON has no object"),
        ("int", "JSON has no type"),
        ("10 ** 10000", "more than 4300 digits"),
        ("x = []; x.append(x); x", "too many levels"),
        ("'a' * 2_000_000", "too large"),
        ("[0] * 10_000_000", "too large"),
        ("import fractions; fractions.Fraction(1, 2)", "JSON has no fractions.Fraction"),
    ],
)
def test_what_json_cant_say(kernel: Branch, code: str, why: str) -> None:
    """Other values are absent, and the reply says why: none is exchanged for another one. There is always text."""
    reply = kernel.run(code)
    assert "value" not in reply
    assert why in reply["no_value"]
    assert reply["has_value"] is True and reply["repr"]
    assert reply["exception"] is None


@pytest.mark.parametrize(
    "code",
    [
        "[1, [2, (3,), ()], {'a': {1, 2}, 4: frozenset([5])}, set(), {}, frozenset(), b'x', 'it\\'s', None, ...]",
        "x = [1]; x.append(x); y = {'x': x}; y['y'] = y; (y, x)",
        "[[1] * 3] * 3",
        "class R:\n  def __repr__(self): return '<R>'\n[R(), {R(): R()}]",
    ],
)
def test_text_is_repr(kernel: Branch, code: str) -> None:
    """Text is what repr() says."""
    shown = kernel.run(code)["repr"]
    assert shown == kernel.run(f"{code.rpartition(chr(10))[0] or 'pass'}\n" + f"_r = repr({_last(code)}); _r")["value"]


def _last(code: str) -> str:
    return code.rpartition("\n")[2].rpartition(";")[2] if ";" in code else code.rpartition("\n")[2]


_HOSTILE = {
    "nested": "x = []\nfor _ in range(1_000_000): x = [x]\nx",
    "nested dicts": "x = {}\nfor _ in range(1_000_000): x = {'a': x}\nx",
    "nested tuples": "x = ()\nfor _ in range(1_000_000): x = (x, x)\nx",
    "nested in a class": "class L(list): pass\nx = L()\nfor _ in range(200_000): x = L([x])\nx",
    "raising repr": "class R:\n  def __repr__(self): raise ValueError('no')\n[R(), R()]",
    "repr of another type": "class R:\n  def __repr__(self): return 5\nR()",
    "exiting repr": "class R:\n  def __repr__(self): raise SystemExit(3)\nR()",
    "deep repr": "class R:\n  def __repr__(self): return repr(self)\nR()",
    "large repr": "class R:\n  def __repr__(self): return 'x' * 50_000_000\nR()",
    "many reprs": "class R:\n  def __repr__(self): return 'x' * 1000\n[R() for _ in range(100_000)]",
    "lying class": "class R:\n  __class__ = property(lambda self: int)\nR()",
    "raising class": "class R:\n  @property\n  def __class__(self): raise ValueError\nR()",
    "lying metaclass": "class M(type):\n  __mro__ = __name__ = __module__ = property(lambda c: 1 / 0)\n"
    "  def __getattribute__(c, name): raise OSError(name)\nclass R(metaclass=M): pass\nR()",
    "raising attributes": "class R:\n  def __getattribute__(self, name): raise OSError(name)\nR()",
    "every attribute": "class R:\n  def __getattr__(self, name): return lambda *a, **k: 'x'\nR()",
    "lying dict": "class D(dict):\n  def items(self): raise ValueError\n  def __len__(self): return -1\nD(a=1)",
    "lying list": "class L(list):\n  def __iter__(self): raise ValueError\n  def __len__(self): return 1 << 60\nL([1])",
    "lying str": "class S(str):\n  def __len__(self): return -1\n  def __getitem__(self, i): raise ValueError\n"
    "  def isascii(self): raise ValueError\nS('text')",
    "lying numbers": "class I(int):\n  def bit_length(self): raise ValueError\n  def __repr__(self): raise ValueError\nI(5)",
    "huge int": "1 << 10_000_000",
    "huge ints": "[1 << 10_000_000] * 10",
    "huge set": "set(range(3_000_000))",
    "no name": "R = type('', (), {}); R.__module__ = None; R()",
    "long name": "type('R' * 10_000_000, (), {})()",
    "odd module": "class R: pass\nR.__module__ = 5\nR()",
    "bundles": "class R:\n  def _repr_html_(self): raise ValueError\n  def _repr_png_(self): return 5\n"
    "  def _repr_mimebundle_(self, **k): return {1: 2, 'a/b': object(), 'x/json': [float('nan')]}\nR()",
    "huge bundle": "class R:\n  def _repr_html_(self): return 'x' * 50_000_000\nR()",
    "surrogates": "'\\udc80' * 100_000",
    "controls": "'\\x00' * 900_000",
    "wide": "'\\U0001f600' * 900_000",
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_values(warm: Interpreter, name: str) -> None:
    """No value breaks the reply, makes it large, or ends a kernel."""
    kernel = warm.kernel()
    reply = kernel.run(_HOSTILE[name])
    assert reply["exception"] is None, reply["exception"]
    assert reply["has_value"] is True
    assert len(reply["repr"]) <= 1 << 20 and len(reply["type"]) <= 1010
    assert kernel.run("6 * 7")["value"] == 42


def test_raising_reprs_are_named(kernel: Branch) -> None:
    """The text says which exception a __repr__ has raised."""
    reply = kernel.run(_HOSTILE["raising repr"])
    assert reply["repr"] == "[<R object, whose repr() raised ValueError>, <R object, whose repr() raised ValueError>]"
    assert reply["truncated"] == ["repr"]


def test_limits(kernel: Branch) -> None:
    """Depth and sizes are the caller's."""
    assert kernel.run("[[[1]]]", limits={"depth": 3})["value"] == [[[1]]]
    assert "too many levels" in kernel.run("[[[1]]]", limits={"depth": 2})["no_value"]
    reply = kernel.run("'x' * 100", limits={"value_bytes": 50})
    assert "too large" in reply["no_value"] and len(reply["repr"]) <= 50 and reply["truncated"] == ["repr"]


def test_a_kernel_survives_changing_values(kernel: Branch) -> None:
    """Containers that a thread changes meanwhile give a reply all the same."""
    code = inspect.cleandoc("""
        import threading
        d = {str(i): i for i in range(1000)}
        def change():
            for i in range(10**9):
                if stop: return
                d[str(i + 1000)] = i
                d.pop(str(i), None)
        stop = []
        threading.Thread(target=change, daemon=True).start()
        d
    """)
    assert kernel.run(code)["has_value"] is True
    for _ in range(20):
        assert kernel.run("d")["has_value"] is True
    kernel.run("stop.append(1)")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=_JSON)
def test_any_value_gives_a_reply(kernel: Branch, value: Any) -> None:
    """A value comes back as it is, or not at all; its text is its repr."""
    from math import inf, nan  # what repr() writes

    reply = kernel.run(f"from math import inf, nan\n{value!r}")
    assert reply["exception"] is None
    if value is None:
        assert reply["has_value"] is False
        return
    assert _escaped(reply["repr"]) == _escaped(repr(value))
    assert eval(reply["repr"], {"inf": inf, "nan": nan}) is not None
    if "value" in reply:
        assert reply["value"] == _listed(value)
    else:
        assert reply["no_value"]


def _escaped(text: str) -> bytes:
    """Which characters repr() escapes is a matter of Python's version."""
    return text.encode("ascii", "backslashreplace")


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=st.text() | st.text("()[]{}:,;'\"\\ \n\t=+-abc019fr\0#@.", max_size=60))
def test_any_source_gives_a_reply(kernel: Branch, source: str) -> None:
    """Whatever the source is, there is one reply, and the kernel lives."""
    reply = kernel.run(source)
    assert reply["exception"] is None or reply["exception"]["type"]
    assert kernel.run("6 * 7")["value"] == 42
