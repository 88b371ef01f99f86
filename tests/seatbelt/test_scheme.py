"""Profiles in a real TinyScheme: it understands what the parser does, and refuses what the parser refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsbox_seatbelt import sbpl, scheme, vocabulary
from nsbox_seatbelt.profiles import GOOD, PARAMS, parameters, profiles, texts
from nsbox_seatbelt.sbpl import String, Symbol
from nsbox_seatbelt.scheme import Loaded, SchemeError, load, readable
from nsbox_seatbelt.values import encoded, resolved, with_stand_ins
from nsbox_testing import needs

few = settings(deadline=None, max_examples=40)  # each starts an interpreter


def parsed(profile: str, params: dict[str, str]) -> list[Loaded]:
    """Return what sbpl.py understands, in the form that TinyScheme's answer has."""
    found = []
    for form in sbpl.parse(profile):
        assert isinstance(form, tuple)
        if form[0] != Symbol("version"):
            done = resolved(form, params)
            assert isinstance(done, tuple) and isinstance(done[0], Symbol)
            found.append(Loaded(done[0].name, done[1:]))
    return found


def test_good() -> None:
    """Both readers understand the same in a profile of ours."""
    params = with_stand_ins(PARAMS)
    assert load(GOOD, params) == parsed(GOOD, params)
    assert len(load(GOOD, params)) == len(sbpl.rules(GOOD))


@few
@given(profiles, parameters)
def test_readers_agree(profile: str, params: dict[str, str]) -> None:
    """Both readers understand the same, whatever is in strings and parameters."""
    assert load(profile, params) == parsed(profile, params)


@few
@given(texts, st.sampled_from(['(allow file-read* (subpath "', '(allow file-read* (subpath #"']))
def test_injection_is_noticed(text: str, head: str) -> None:
    """A path put into the text without quoting is either harmless, or both readers notice."""
    profile = f'{head}{text}"))\n'
    wanted = [Loaded("allow", (Symbol("file-read*"), (Symbol("subpath"), String(text))))]
    is_harmless = not ({'"'} if "#" in head else {'"', "\\"}) & set(text)
    try:
        found = parsed(profile, {})
    except (sbpl.SbplError, ValueError, AssertionError):
        found = None
    assert (found == wanted) is is_harmless
    if is_harmless:
        assert load(profile, {}) == wanted
    else:
        try:
            assert load(profile, {}) != wanted
        except SchemeError as error:
            assert str(error)


@pytest.mark.parametrize("name", ['/a"))(allow default)(deny file-read* (subpath "/b', '/a")) (allow default) ;'])
def test_injected_rules_are_seen(name: str) -> None:
    """A path that ends its string and begins a rule is a rule more for both readers; as a parameter it is a path."""
    profile = f'(allow file-read* (subpath "{name}"))\n'
    assert Loaded("allow", (Symbol("default"),)) in load(profile, {})
    assert load(profile, {}) == parsed(profile, {})
    safe = '(allow file-read* (subpath (param "P")))'
    assert (
        load(safe, {"P": name})
        == parsed(safe, {"P": name})
        == [Loaded("allow", (Symbol("file-read*"), (Symbol("subpath"), String(name))))]
    )


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("(allow file-read*", "doesn't come to the end"),
        ("(allow file-read*\n(deny file-write*)", "doesn't come to the end"),
        ("(allow file-read*))", "illegal token"),
        ('(allow file-read* (subpath "/a))', "Error reading string"),
        ("(allow file-reed*)", "unbound variable: file-reed*"),
        ('(allow file-read* (nothing "/a"))', "unbound variable: nothing"),
        ('(allow file-read* (subpath (param "X")))', 'no parameter "X"'),
        ("(allow file-read*)\n(quit 0)", "doesn't come to the end"),
        ('(import "system.sb")', "unbound variable: import"),
        ("(allow file-read*)\n(display 1)", "1"),
        ("(allow file-read*);\0", "NUL"),
    ],
)
def test_errors(profile: str, message: str) -> None:
    """What TinyScheme doesn't load raises its own message, also where it would end in silence."""
    with pytest.raises(SchemeError) as caught:
        load(profile, {})
    assert message in str(caught.value)


def test_line_of_error() -> None:
    """A line in TinyScheme's message is one of the profile."""
    with pytest.raises(SchemeError, match=r"profile\.scm : 3\)"):
        load("(version 1)\n(deny default)\n(allow file-read*))\n(allow signal)", {})


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ('(a "b")', '(a "b")'),
        (r'(a #"\.b")', r'(a "\x5c.b")'),
        ('#""', '""'),
        (r'"\\" #"a" "\""', r'"\\" "a" "\""'),
        ('; #"a"\n#"b"', '; #"a"\n"b"'),
        ('"#" "a"', '"#" "a"'),
        ('"a;b" #"c;d"', '"a;b" "c;d"'),
        ('"open #"a', '"open #"a'),
        ('#"open', '#"open'),
    ],
)
def test_readable(text: str, rewritten: str) -> None:
    """Raw strings become ordinary ones; comments, other strings and what has no end stay."""
    assert readable(text.encode()) == rewritten.encode()


@pytest.mark.parametrize("quote", ['"', '#"'])
@pytest.mark.parametrize("size", [0, 59, 60, 61, 255, 256, 1000, 5000])
def test_long_strings(quote: str, size: int) -> None:
    """A string of any length arrives whole, though TinyScheme's own literals end at 255 bytes."""
    text = ("é(;)x" * size)[:size]
    profile = f'(allow file-read* (literal {quote}{text}"))'
    assert load(profile, {}) == parsed(profile, {})
    assert load('(allow file-read* (literal (param "P")))', {"P": text}) == parsed(profile, {})


def test_escapes_are_not_split() -> None:
    """A long string is never cut between a backslash and what it escapes."""
    for count in (59, 60, 61):
        profile = '(allow file-read* (literal "' + "a" * count + r"\\\"" * 40 + '"))'
        assert load(profile, {}) == parsed(profile, {})


def test_all_bytes() -> None:
    """Every byte but NUL arrives, as a parameter and in a raw string."""
    for byte in range(1, 256):
        encoded_byte = bytes([byte]).decode("utf-8", "surrogateescape")
        assert encoded(encoded_byte) == bytes([byte])
    text = "".join(bytes([byte]).decode("utf-8", "surrogateescape") for byte in range(1, 256))
    assert load('(allow file-read* (literal (param "P")))', {"P": text})[0].form[1] == (Symbol("literal"), String(text))
    raw = text.replace('"', "")
    assert load(f'(allow file-read* (literal #"{raw}"))', {})[0].form[1] == (Symbol("literal"), String(raw))


def test_deep_nesting() -> None:
    """TinyScheme reads lists as deep in one another as the parser does."""
    profile = "(allow file-read* " + "(require-not " * 62 + '(literal "/a")' + ")" * 63
    assert load(profile, {}) == parsed(profile, {})


def test_every_word() -> None:
    """Every operation and modifier is a word that TinyScheme knows as the parser does."""
    lines = [f"(allow {operation})" for operation in sorted(vocabulary.OPERATIONS)]
    lines += [
        f"(deny default (with {name}{argument and ' ' + argument}))"
        for name, kind in vocabulary.MODIFIERS.items()
        for argument in [{None: "", "string": '"a"', "symbol": "SIGKILL"}[kind]]
    ]
    profile = "\n".join(lines)
    assert load(profile, {}) == parsed(profile, {})


def test_without_tinyscheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TinyScheme isn't installed the test is skipped, with how to install it."""
    monkeypatch.setattr(needs, "find", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match=r"needs tinyscheme \(Debian: tinyscheme\)"):
        scheme.load("(version 1)", {})
