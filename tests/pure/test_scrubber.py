"""Scrubber: no form of a secret comes out, however the stream is cut; all else comes out as it was."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import pickle
from collections.abc import Iterable
from typing import Any, AnyStr
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nsbox._leaks.scrub import LONGEST, SHORTEST, forms
from nsbox.leaks import Scrubber
from nsbox.secrets import Secret

TOKEN = b"sk-test/+?~ 0123456789=abc"

# Few letters, so that they overlap, repeat, and begin one another.
VALUES = st.one_of(
    st.text("ab", min_size=SHORTEST, max_size=9).map(str.encode),
    st.text("ab-_/+ %", min_size=SHORTEST, max_size=12).map(str.encode),
    st.binary(min_size=SHORTEST, max_size=12),
    st.text(min_size=SHORTEST, max_size=8).map(lambda text: text.encode("utf-8", "replace")),
)


def spellings(value: bytes) -> dict[str, bytes]:
    """What a secret may look like, by other means than Scrubber's."""
    found = {
        "plain": value,
        "URL": quote(value, safe="").encode(),
        "URL, small": "".join(c if (c.isascii() and c.isalnum()) or c in "-._~" else f"%{ord(c):02x}" for c in map(chr, value)).encode(),
        "URL, all": "".join(f"%{byte:02X}" for byte in value).encode(),
        "URL, all, small": "".join(f"%{byte:02x}" for byte in value).encode(),
        "path": quote(value, safe="/").encode(),
        "form": quote_plus(value).encode(),
        "hex": value.hex().encode(),
        "HEX": value.hex().upper().encode(),
    }  # fmt: skip
    for shift in range(3):
        for name, encode in (("base64", base64.b64encode), ("base64, URL-safe", base64.urlsafe_b64encode)):
            # Two different surroundings: what is the same in both depends on the secret alone.
            one, two = (encode(fill * shift + value + fill * 3) for fill in (b"\0", b"\xff"))
            same = [a == b for a, b in zip(one, two, strict=True)]
            first = same.index(True) if shift else 0
            core = one[first : first + [*same[first:], False].index(False)]
            found[f"{name}, {shift}"] = core
            found[f"{name}, {shift}, in a URL"] = quote(core, safe="").encode()
    return {name: form for name, form in found.items() if len(form) >= SHORTEST}


def pieces(text: AnyStr, cuts: Iterable[int]) -> list[AnyStr]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(at)] or [text]


def streamed(scrubber: Scrubber, parts: Iterable[AnyStr]) -> list[AnyStr]:
    return [*map(scrubber.feed, parts), scrubber.flush()]


@st.composite
def streams(draw: Any) -> tuple[list[bytes], bytes, list[int]]:
    """Some secrets, a text of their forms, whole and cut, and other things, and places to cut it."""
    values = draw(st.lists(VALUES, min_size=1, max_size=4))
    every = [form for value in values for form in spellings(value).values()]
    part = st.one_of(
        st.sampled_from(every),
        st.tuples(st.sampled_from(every), st.integers(0, 9), st.integers(0, 9)).map(lambda x: x[0][x[1] : len(x[0]) - x[2]]),
        st.sampled_from([b"a", b"b", b" ", b"%", b"*", b"***", b"\n"]),
        st.binary(max_size=6),
    )  # fmt: skip
    text = b"".join(draw(st.lists(part, max_size=12)))
    return values, text, draw(st.lists(st.integers(0, 500), max_size=12))


def escapes(value: bytes, before: str = "") -> Any:
    """Some mix of what encoders make of a value's characters, with each of which it is one of those."""
    try:
        characters = list(value.decode())
    except UnicodeDecodeError:
        characters = []
    if not characters:
        return st.just(value)

    def ways(character: str) -> Any:
        code, units = ord(character), character.encode("utf-16-be")
        found = [
            "".join(f"%{byte:02X}" for byte in character.encode()), "".join(f"%{byte:02x}" for byte in character.encode()),
            "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)), f"&#{code};", f"&#x{code:X};",
        ]  # fmt: skip
        found += [f"\\x{code:02x}"] if code < 0x80 else []
        found += ["+"] if character == " " else []
        found += {
            "/": ["\\/"],
            "\n": ["\\n"],
            '"': ['\\"', "&quot;"],
            "&": ["&amp;"],
            "<": ["&lt;"],
            "\\": ["\\\\"],
        }.get(character, [])
        # Left as it is it would be read as an escape: nobody who decodes the text gets the secret then.
        return st.sampled_from(found if character in "%\\&" else [*found, character, character])

    return st.tuples(*map(ways, characters)).map(lambda parts: "".join(parts).encode())


@settings(max_examples=500, deadline=None)
@given(
    VALUES.flatmap(lambda value: st.tuples(st.just(value), escapes(value))), st.lists(st.integers(0, 500), max_size=6)
)
def test_any_mix_of_escapes(case: tuple[bytes, bytes], cuts: list[int]) -> None:
    """Whichever characters of a secret are escaped, and how, it is replaced, in bytes and in str, however it is cut."""
    value, mixed = case
    assume(b"!" not in value)
    scrubber = Scrubber([value], mask="!")
    text = b"(" + mixed + b")"
    assert scrubber.scrub(text) == b"(!)"
    assert b"".join(streamed(scrubber, pieces(text, cuts))) == b"(!)"
    assert b"".join(streamed(scrubber, (text[at : at + 1] for at in range(len(text))))) == b"(!)"
    shown = text.decode("utf-8", "surrogateescape")
    assert scrubber.scrub(shown) == "(!)"
    assert "".join(streamed(scrubber, pieces(shown, cuts))) == "(!)"
    assert "".join(streamed(scrubber, shown)) == "(!)"


ENCODERS = {
    "encodeURIComponent": "p%40ss%2Fw%C3%B6rd%26x!'()*~%2B%3C%20",
    "jq @uri": "p%40ss%2Fw%C3%B6rd%26x!'()*~%2B%3C%20",
    "Go PathEscape": "p@ss%2Fw%C3%B6rd&x%21%27%28%29%2A~+%3C%20",
    "a form": "p%40ss%2Fw%C3%B6rd%26x%21%27%28%29*%7E%2B%3C+",
    "Go encoding/json": "p@ss/wörd\\u0026x!'()*~+\\u003c ",
    ".NET": "p@ss/w\\u00F6rd\\u0026x!\\u0027()*~\\u002B\\u003C ",
    "HTML": "p@ss/wörd&amp;x!&#39;()*~+&lt; ",
    "HTML, all that have names": "p&commat;ss&sol;w&ouml;rd&amp;x!&apos;&lpar;&rpar;*~&plus;&lt; ",
    "shell, between quotes": "p@ss/wörd&x!'\\''()*~+< ",
    "shlex.quote": "p@ss/wörd&x!'\"'\"'()*~+< ",
    "printf %q": "p@ss/wörd\\&x\\!\\'\\(\\)\\*\\~+\\<\\ ",
    "$'...' of a shell, git": "p@ss/w\\303\\266rd&x!\\'()*~+< ",
    "octal": "p\\100ss\\057w\\303\\266rd\\046x\\041\\047\\050\\051\\052\\176\\053\\074\\040",
    "in a URL, in JSON": "p%40ss%2fw%C3%B6rd\\u0026x!'()*~%2b\\u003c%20",
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str) -> None:
    """What usual encoders make of a secret is replaced at every split; a search for the value alone misses it."""
    value, text = "p@ss/wörd&x!'()*~+< ", f"<{ENCODERS[name]}>"
    assert value not in text  # the control
    scrubber = Scrubber([value])
    gone = f"<{scrubber.mask}>"
    assert scrubber.scrub(text) == gone
    for cut in range(len(text) + 1):
        assert "".join(streamed(scrubber, [text[:cut], text[cut:]])) == gone
        assert b"".join(streamed(scrubber, [text.encode()[:cut], text.encode()[cut:]])) == gone.encode()


LONG = bytes(range(33, 127)) + b"a secret of more than one line in base64 and hex"


def lines(text: bytes, columns: int, end: bytes = b"\n") -> bytes:
    return end.join(text[at : at + columns] for at in range(0, len(text), columns)) + end


BROKEN = {
    "MIME": base64.encodebytes(LONG),
    "MIME, CR LF": lines(base64.b64encode(LONG), 76, b"\r\n"),
    "PEM": lines(base64.b64encode(b"." + LONG), 64),
    "URL-safe": lines(base64.urlsafe_b64encode(b".." + LONG), 76),
    "in JSON": json.dumps(base64.encodebytes(LONG).decode()).encode(),
    "in JSON, CR LF": json.dumps(lines(base64.b64encode(LONG), 76, b"\r\n").decode()).encode(),
    "xxd -p": lines(LONG.hex().encode(), 60),
    "HEX": lines(LONG.hex().upper().encode(), 64),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_into_lines(name: str) -> None:
    """Base64 and hex with line ends in it is replaced at every split. Control: no form is in any one line."""
    text = b"<" + BROKEN[name] + b">"
    scrubber = Scrubber([LONG])
    assert not any(form in line for form in forms(LONG) for line in text.replace(b"\\n", b"\n").split(b"\n"))
    shown = scrubber.scrub(text)
    assert b"***" in shown
    assert len(shown) <= len(b'<"...***=\\r\\n">'), shown
    for cut in range(len(text) + 1):
        assert b"".join(streamed(scrubber, [text[:cut], text[cut:]])) == shown
    assert b"".join(streamed(scrubber, (text[at : at + 1] for at in range(len(text))))) == shown
    assert "".join(streamed(scrubber, text.decode())) == scrubber.scrub(text.decode()) == shown.decode()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*spellings(TOKEN).values(), b"\n", b"\r\n", b"\r", b"a", b"\\n", b"%0A", b"'", b"&"]), max_size=9),
    st.integers(1, 20),
    st.lists(st.integers(0, 600), max_size=8),
)  # fmt: skip
def test_broken_anywhere(parts: list[bytes], columns: int, cuts: list[int]) -> None:
    """Lines of any length, line ends of any kind, whole and alone: what comes out doesn't depend on the cuts."""
    text = lines(b"".join(parts), columns) + b"".join(parts)
    scrubber = Scrubber([TOKEN])
    shown = scrubber.scrub(text)
    assert b"".join(streamed(scrubber, pieces(text, cuts))) == shown
    assert b"".join(streamed(scrubber, (text[at : at + 1] for at in range(len(text))))) == shown
    assert scrubber.scrub(text.decode()) == shown.decode()
    flat = shown.replace(b"\r", b"").replace(b"\n", b"")
    assert not any(form in shown for form in forms(TOKEN))
    assert base64.b64encode(TOKEN)[:-4] not in flat or b"\n\n" in text or b"\r" in text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["%", "%4", "%41", "\\", "\\u", "\\u00", "\\u0041", "\\ud83d", "\\ude00", "&am", "p;", "+", "é", "%C3", "%A9", "a"])),
    st.lists(st.integers(0, 100), max_size=5),
)  # fmt: skip
def test_other_escapes_stay(parts: list[str], cuts: list[int]) -> None:
    """Text with escapes, whole and broken, in which there is no secret comes out as it was."""
    text = "".join(parts)
    scrubber = Scrubber(["another secret", "/quite/other%20"])
    assert "".join(streamed(scrubber, pieces(text, cuts))) == text
    assert b"".join(streamed(scrubber, pieces(text.encode(), cuts))) == text.encode()


@settings(max_examples=400, deadline=None)
@given(streams())
def test_any_stream(case: tuple[list[bytes], bytes, list[int]]) -> None:
    """No form of a secret comes out, whatever is around it and wherever it is cut; the rest is untouched."""
    values, text, cuts = case
    assume(not any(b"\x07" in part for part in (text, *values)))
    scrubber = Scrubber(values, mask="\x07")
    out = scrubber.scrub(text)
    assert not [form for value in values for form in forms(value) if form in out]
    mask, at = scrubber.mask.encode(), 0
    for part in out.split(mask):  # what isn't a mask is of the text, in its order
        at = text.find(part, at) + len(part)
        assert at >= len(part)
    parts = streamed(scrubber, pieces(text, cuts))
    assert b"".join(parts) == out
    assert b"".join(streamed(scrubber, (text[at : at + 1] for at in range(len(text))))) == out


@settings(max_examples=150, deadline=None)
@given(streams())
def test_str_is_as_bytes(case: tuple[list[bytes], bytes, list[int]]) -> None:
    """A stream of str, with surrogates for bytes that are no UTF-8, is scrubbed as that of bytes, however it is cut."""
    values, raw, cuts = case
    values = [value for value in values if _is_utf8(value)] or [b"\xc3\xa9\xc3\xa8"]
    text = raw.decode("utf-8", "surrogateescape")
    scrubber = Scrubber(values)
    out = scrubber.scrub(text)
    assert "".join(streamed(scrubber, pieces(text, cuts))) == out
    assert not [form for value in values for form in forms(value) if form.decode() in out]


def _is_utf8(value: bytes) -> bool:
    try:
        return bool(value.decode())
    except UnicodeDecodeError:
        return False


@settings(max_examples=200, deadline=None)
@given(
    VALUES, st.binary(max_size=7), st.binary(max_size=7), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode])
)
def test_in_base64_of_anything(value: bytes, before: bytes, after: bytes, encode: Any) -> None:
    """Of base64 of a text with a secret in it, only the letters of its first and last byte may be left."""
    assume(b"!" not in value)
    whole = encode(before + value + after)
    scrubber = Scrubber([value], mask="!")
    out = scrubber.scrub(whole)
    left, _, right = out.partition(b"!")
    assert b"!" in out and whole.startswith(left)
    assert len(left) * 6 < 8 * (len(before) + 1) or left.find(b"!") >= 0
    assert len(whole.rstrip(b"=")) * 6 - len(right.rpartition(b"!")[2].rstrip(b"=")) * 6 > 8 * (len(before + value) - 1)


@pytest.mark.parametrize("name", sorted(spellings(TOKEN)))
def test_each_form_across_each_border(name: str) -> None:
    """Each form is replaced wherever the stream is cut in two; piece by piece without a memory, it would come out."""
    text = b"before " + spellings(TOKEN)[name] + b" after"
    scrubber = Scrubber([TOKEN])
    leaked = 0
    for cut in range(len(text) + 1):
        out = b"".join(streamed(scrubber, [text[:cut], text[cut:]]))
        assert out == b"before *** after"
        leaked += b"".join(scrubber.scrub(part) for part in (text[:cut], text[cut:])) == text
    assert leaked == len(spellings(TOKEN)[name]) - 1  # the control


def test_quoted_in_json() -> None:
    """Between the quotes of JSON a secret is replaced too, with or without escapes for / and what isn't ASCII."""
    value = 'pass"wörd/\n\\x'
    scrubber = Scrubber([value])
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value).replace("/", "\\/")):
        assert scrubber.scrub(f"[{text}]") == '["***"]'
        assert scrubber.scrub(f"[{text}]".encode()) == b'["***"]'


def test_lines_and_blanks() -> None:
    """A secret of several lines is replaced with either line end, one with blanks at its ends without them too."""
    scrubber = Scrubber(["one\ntwo\r\nthree", "  padded\n"])
    for text in ("one\ntwo\nthree", "one\r\ntwo\r\nthree", "one\ntwo\r\nthree", "padded"):
        assert scrubber.scrub(f"<{text}>") == "<***>"
    assert scrubber.scrub("  padded\n") == "***"
    assert Scrubber(["     "]).scrub("a     b") == "a***b"


def test_overlaps() -> None:
    """Where secrets overlap all of it goes, by one mask; of one that begins another the longer goes, if it is there."""
    cases = [
        (["abcd", "cdef"], "xabcdefx", "x***x"),
        (["abcd", "abcdef"], "abcdef abcde abcd", "*** ***e ***"),
        (["abcdef", "bcde"], "abcdef abcdex", "*** a***x"),
        (["abab"], "abababab ababa", "*** ***a"),
        (["aaaa"], "a" * 11, "***"),
        (["abcabcab"], "abcabcabcabcab", "***"),
        (["aabaa"], "aabaaabaa aabaabaaabaa", "*** ***"),
        (["abcd", "efgh"], "abcdefgh", "******"),
        (["abcd", "cdab"], "abcdabcdabcdab", "***"),
    ]
    for values, text, out in cases:
        scrubber = Scrubber(values)
        assert scrubber.scrub(text) == out, values
        assert "".join(streamed(scrubber, text)) == out, values


def test_what_is_held_back() -> None:
    """Only what may begin a secret waits for the next piece; flush() gives it out, and another stream may begin."""
    scrubber = Scrubber([b"hunter2-hunter2"])
    assert scrubber.feed(b"login: ") == b"login: "
    assert scrubber.feed(b"hunt") == b""
    assert scrubber.feed(b"ing") == b"hunting"
    assert scrubber.feed(b"hunter2-") == b""
    assert scrubber.flush() == b"hunter2-"
    assert (scrubber.flush(), scrubber.feed("str hunter2"), scrubber.flush()) == (b"", "str ", "hunter2")


@pytest.mark.parametrize("values", [["a" * 500], ["ab" * 300, "b" * 99], ["x" * 4], [TOKEN.decode() * 20]])
def test_memory_is_bounded(values: list[str]) -> None:
    """What is held back is shorter than the longest form, whatever comes, also in an endless secret."""
    scrubber = Scrubber(values)
    longest = max(len(form) for value in values for form in forms(value.encode()))
    size, out = 0, 0
    for piece in (values[0].encode() * 3, b"a" * 777, b"b", b"ab" * 700, values[0].encode()[:-1]) * 8:
        out += len(scrubber.feed(piece))
        stream = scrubber._stream
        assert stream is not None
        size = max(size, len(stream._pending))
        assert stream._covered <= len(stream._pending)
    assert size < longest
    endless = [scrubber.feed(b"a" * 1000) for _ in range(20)]
    if values[0] == "a" * 500:
        assert b"".join(endless[1:]) == b""  # the control: one mask stands for all of it


def test_another_stream() -> None:
    """stdout and stderr have a Scrubber each: what one holds back doesn't get into the other."""
    out = Scrubber(["secret-value"])
    err = out.another()
    assert (out.feed(b"secret-"), err.feed("secret-"), out.feed(b"value."), err.feed("v ")) == (
        b"",
        "",
        b"***.",
        "secret-v ",
    )
    assert out.scrub("a secret-value") == err.scrub("a secret-value") == "a ***"
    assert (out.flush(), err.flush()) == (b"", "")


# ---- masks


def test_mask_completes_nothing() -> None:
    """A mask never makes up a secret with what is beside it: another is taken."""
    for values in (["ab***cd", "1234"], ["***x", "1234"], ["*x12", "1234"], ["x*yz*", "1234"], ["****", "1234"]):
        scrubber = Scrubber(values)
        assert scrubber.mask == "[redacted]"
        for text in ("ab1234cd", "1234x", "1234x12", "x*yz1234", "12341234", "*1234", "x1234"):
            assert not any(value in scrubber.scrub(text) for value in values)
    naive = "ab1234cd".replace("1234", "***")
    assert naive == "ab***cd"  # the control
    assert Scrubber(["***x", "[red", "<red", "###x", "~~~x"]).mask == "!"


def test_mask_given() -> None:
    """A mask that one gives is taken, or refused where it could complete a secret."""
    assert Scrubber(["1234"], mask="(gone)").scrub(b"a1234") == b"a(gone)"
    for mask in ("", "x1234x", "12", "4"):
        with pytest.raises(ValueError, match="mask"):
            Scrubber(["1234"], mask=mask)
    with pytest.raises(ValueError, match="no mask is left"):
        Scrubber([chr(letter) * 4 for letter in range(0x21, 0x7F)])


# ---- arguments


@pytest.mark.parametrize(
    ("secrets", "problem"),
    [
        ([""], "secret 1 is empty"), (["long enough", b"abc"], "secret 2 has 3 bytes, fewer than 4"),
        ([Secret("abc")], "secret 1 has 3 bytes"), (["\ud800abcd"], "a surrogate"), (["x" * (LONGEST + 1)], "more than 65536"),
    ],
)  # fmt: skip
def test_secrets_that_cannot_be_scrubbed(secrets: list[Any], problem: str) -> None:
    """Empty, short and endless values are refused, by their number and without their contents."""
    with pytest.raises(ValueError, match=problem) as caught:
        Scrubber(secrets)
    assert "abc" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize("secrets", ["abcd", b"abcd", Secret("abcd"), [5], [None], 5, [["abcd"]]])
def test_types_of_secrets(secrets: Any) -> None:
    """One secret is no list of secrets, and a number is none."""
    with pytest.raises(TypeError):
        Scrubber(secrets)


def test_types_of_data() -> None:
    """A stream is of bytes or of str: neither of both, nor of anything else."""
    scrubber = Scrubber(["abcd"])
    scrubber.feed(b"a")
    for data in ("a", bytearray(b"a"), None, 5):
        with pytest.raises(TypeError):
            scrubber.feed(data)  # type: ignore[type-var]
    assert scrubber.flush() == b"a"
    with pytest.raises(TypeError):
        scrubber.scrub(None)  # type: ignore[type-var]


def test_no_secrets() -> None:
    """Without secrets everything comes out at once."""
    assert Scrubber([]).feed(b"abc") == b"abc"
    assert Scrubber([]).scrub("") == ""


def test_it_shows_nothing() -> None:
    """Neither repr() nor str() has a value, and it can't be pickled or copied."""
    scrubber = Scrubber(["hunter2hunter2", Secret("swordfish"), b"bytes"])
    assert repr(scrubber) == str(scrubber) == "<nsbox.leaks.Scrubber of 3 secrets>"
    for what in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="another"):
            what(scrubber)
    assert scrubber.scrub("hunter2hunter2 swordfish bytes") == "*** *** ***"
