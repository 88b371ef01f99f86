"""The parser of profiles: what is understood, and what is no profile."""

from __future__ import annotations

import pytest
from hypothesis import given
from nsbox_seatbelt import calm, sbpl, values
from nsbox_seatbelt.profiles import GOOD, profiles
from nsbox_seatbelt.sbpl import Rule, SbplError, String, Symbol, parse, rules, written


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a-b*", Symbol("a-b*")),
        ("12", 12),
        ("-3", -3),
        ("#t", True),
        ("#f", False),
        ("()", ()),
        ('"a b"', String("a b")),
        (r'"\"\\"', String('"\\')),
        ('";"', String(";")),
        ('"a\nb"', String("a\nb")),
        (r'#"^\.(a|b)\\$"', String(r"^\.(a|b)\\$", True)),
        ('"é\udcff"', String("é\udcff")),
        ('(a (b "c") 1)', (Symbol("a"), (Symbol("b"), String("c")), 1)),
        ('(a);"\n', (Symbol("a"),)),
    ],
)
def test_forms(text: str, form: sbpl.Form) -> None:
    """Symbols, numbers, booleans, lists and both kinds of strings are read, comments are not."""
    assert parse(text) == (form,)
    assert type(parse(text)[0]) is type(form)


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("(a", (1, 1), "without its )"),
        ("\n (a (b)", (2, 2), "without its )"),
        ("(a))", (1, 4), "without its ("),
        ('(a "b', (1, 4), "a string without its end"),
        ('(a\n#"b', (2, 1), "a raw string without its end"),
        ('"\\n"', (1, 1), r"the escape \n"),
        ('"\\x41;"', (1, 1), r"the escape \x"),
        ('"a\\', (1, 1), "a string without its end"),
        ('a"b"', (1, 1), "right behind a"),
        ('"b"a', (1, 1), "right behind"),
        ('#"a""b"', (1, 1), "right behind"),
        ("'a", (1, 1), "can't be here"),
        ("`(a)", (1, 1), "can't be here"),
        ("a\rb", (1, 1), "right behind a"),
        ("\u00a0", (1, 1), "can't be here"),
        ("#o17", (1, 1), "no word"),
        ("1a", (1, 1), "no word"),
        ("; a\n; b\0", (2, 4), "a NUL"),
        ("(" * 65, (1, 65), "lists in one another"),
    ],
)
def test_errors(text: str, where: tuple[int, int], problem: str) -> None:
    """What isn't a profile of ours is refused, with the line and column where it goes wrong."""
    with pytest.raises(SbplError) as caught:
        parse(text)
    assert problem in caught.value.problem
    assert (caught.value.line, caught.value.column) == where
    assert str(caught.value).startswith(f"line {where[0]}, column {where[1]}: ")


def test_rules() -> None:
    """A rule has its operations, filters, modifiers and line; (version 1) is none."""
    text = '(version 1)\n(deny default)\n(allow (with report) file-read* signal (literal "/a") (with message "m"))'
    assert rules(text) == (
        Rule("deny", ("default",), (), (), 2),
        Rule(
            "allow",
            ("file-read*", "signal"),
            ((Symbol("literal"), String("/a")),),
            ((Symbol("with"), Symbol("report")), (Symbol("with"), Symbol("message"), String("m"))),
            3,
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "(allow)",
        "(allow (literal))",
        "(allow (literal) file-read*)",
        '(allow file-read* "/a")',
        "(allow 1)",
        "(allow file-read* ())",
        '(import "system.sb")',
        "(version 2)",
        "(version #t)",
        "(define a 1)",
        "()",
        "allow",
    ],
)
def test_no_rules(text: str) -> None:
    """A form that isn't a rule is refused, so that nothing that decides goes unseen."""
    with pytest.raises(SbplError):
        rules(text)


def test_values() -> None:
    """Parameters, string-append and regex-quote are resolved; a parameter without a value is no string."""
    (form,) = parse('(regex (string-append "^" (regex-quote (param "A")) #"\\.x$"))')
    assert values.resolved(form, {"A": "/a.b"}) == (Symbol("regex"), String(r"^/a\.b\.x$"))
    with pytest.raises(values.Unknown):
        values.resolved(form, {"A": None})


@calm
@given(profiles)
def test_written_again(profile: str) -> None:
    """What was read and is written is read as the same."""
    forms = parse(profile)
    assert parse("\n".join(map(written, forms))) == forms


def test_good() -> None:
    """The profile that the other tests take for good is read whole, with its lines."""
    found = rules(GOOD)
    assert len(found) == GOOD.count("\n(allow") + GOOD.count("\n(deny")
    assert all(GOOD.splitlines()[rule.line - 1].startswith(f"({rule.action} {rule.operations[0]}") for rule in found)
