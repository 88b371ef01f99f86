"""Leaks: tokens are found wherever they stand and however they are encoded, nothing else is, and no value gets out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from re import _constants, _parser
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsbox import leaks
from nsbox._cli.bench.leaks import log
from nsbox._leaks import patterns as leaks_patterns
from nsbox.leaks import DEPTH, Finding, scan, scrub_and_scan

ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
WORD = ALNUM + "-_"


def letters(alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=low, max_size=high or low)


def join(*parts: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One of each, one after the other. Prefixes are in pieces here, so that this file itself holds no token."""
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


_ID = st.integers(10**16, 10**20 - 1).map(lambda number: base64.b64encode(str(number).encode()).decode().rstrip("="))

TOKENS: dict[str, list[st.SearchStrategy[str]]] = {
    "anthropic": [
        join("sk-", "ant-api03-", letters(WORD, 93), "AA"),
        join("sk-", "ant-oat01-", letters(WORD, 20, 99)),
        join("sk-", "ant-", letters(ALNUM, 20, 30)),
    ],
    "openrouter": [join("sk-", "or-v1-", letters("0123456789abcdef", 64))],
    "openai": [
        join("sk-", letters(ALNUM, 20), "T3Blbk", "FJ", letters(ALNUM, 20)),
        join("sk-", "proj-", letters(WORD, 20, 80)),
        join("sk-", "svcacct-", letters(WORD, 40, 74), "T3Blbk", "FJ", letters(WORD, 40, 74)),
        join("sk-", letters(ALNUM, 20, 48)),
    ],
    "github": [
        join("gh", st.sampled_from("pousr"), "_", letters(ALNUM, 36)),
        join("github_", "pat_", letters(ALNUM, 22), "_", letters(ALNUM, 59)),
    ],
    "google": [join("AI", "za", letters(WORD, 35))],
    "discord": [join(_ID, ".", letters(WORD, 6), ".", letters(WORD, 27, 38))],
    "slack": [
        join("xox", st.sampled_from("bpares"), "-", letters("0123456789", 11), "-", letters(ALNUM, 24)),
        join("xoxe", ".xoxp-1-", letters(ALNUM, 40)),
        join("xapp", "-1-A", letters(ALNUM, 10), "-", letters("0123456789", 13), "-", letters("0123456789abcdef", 64)),
    ],
    "telegram": [join(letters("123456789", 8, 10), ":A", "A", letters(WORD, 33))],
    "brave": [join("BS", "A", letters(ALNUM, 28))],
    "private-key": [
        join("-----BEGIN ", st.sampled_from(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "]), "PRIVATE ", "KEY-----"),
        join("-----BEGIN PGP PRIVATE ", "KEY BLOCK-----"),
        join(
            "-----BEGIN PRIVATE ", "KEY-----\n", letters(ALNUM + "+/", 64), "\n", letters(ALNUM, 30), "\n-----END PRIVATE ", "KEY-----"
        ),
    ],
}  # fmt: skip
KINDS_AND_TOKENS = st.sampled_from(sorted(TOKENS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.one_of(TOKENS[kind]))
)
# Around a token: anything, except letters next to one that would make it another word.
AROUND = st.text(max_size=12).map(lambda text: text.replace("%", "/"))
TEXTS = st.text(st.characters(max_codepoint=127), max_size=12).map(lambda text: text.replace("%", "/"))


def example(kind: str) -> str:
    """A token of this kind, the same in every run; not as the first that hypothesis would draw."""
    made = {
        "anthropic": "sk-" + "ant-api03-" + "aB3_" * 23 + "AA",
        "openrouter": "sk-" + "or-v1-" + "0a1b" * 16,
        "openai": "sk-" + "aB3d" * 12,
        "github": "gh" + "p_" + "aB3d" * 9,
        "google": "AI" + "za" + "aB3_-" * 7,
        "discord": base64.b64encode(b"123456789012345678").decode() + ".Gh1_-x." + "aB3" * 9,
        "slack": "xox" + "b-" + "1234567890-" * 2 + "aB3d" * 6,
        "telegram": "123456789:A" + "A" + "aB3" * 11,
        "brave": "BS" + "A" + "aB3d" * 7,
        "private-key": "-----BEGIN RSA PRIVATE " + "KEY-----",
    }
    return made[kind]


# ---- encodings

ENCODINGS = {
    "percent, all": lambda data: "".join(f"%{byte:02X}" for byte in data).encode(),
    "percent, all, small": lambda data: "".join(f"%{byte:02x}" for byte in data).encode(),
    "percent": lambda data: quote(data, safe="").encode(),
    "base64": base64.b64encode,
    "base64, URL-safe": base64.urlsafe_b64encode,
    "base64, without =": lambda data: base64.b64encode(data).rstrip(b"="),
    "base64, in lines": base64.encodebytes,
    "hex": lambda data: data.hex().encode(),
    "HEX": lambda data: data.hex().upper().encode(),
}
# What may stand next to it: anything that isn't a part of the same.
GLUED = {
    "percent": "/.xyz?&",
    "base64": WORD + " =.\n",
    "hex": "0123456789abcdef xyz\n",
    "HEX": "0123456789ABCDEF xyz\n",
}


def glue(name: str) -> st.SearchStrategy[bytes]:
    return st.text(GLUED[name.split(",")[0]], max_size=9).map(str.encode)


@st.composite
def encoded(draw: Any, most: int = DEPTH) -> tuple[str, str, bytes, int, int, list[str]]:
    """A token with text around it in some encodings, at each with more around it; where the outermost is."""
    kind, token = draw(KINDS_AND_TOKENS)
    used = draw(st.lists(st.sampled_from(sorted(ENCODINGS)), min_size=0, max_size=most))
    data = (draw(TEXTS) + " " + token + " " + draw(TEXTS)).encode()
    start, end = 0, len(data)
    for name in used:
        before, inner, after = draw(glue(name)), ENCODINGS[name](data), draw(glue(name))
        data = before + inner + after
        start, end = len(before), len(before) + len(inner)
    return kind, token, data, start, end, used


@settings(max_examples=400, deadline=None)
@given(encoded())
def test_any_token_in_any_encodings(case: tuple[str, str, bytes, int, int, list[str]]) -> None:
    """A token is found at any place, in encodings up to the depth one in the other, with anything next to each."""
    kind, token, data, start, end, used = case
    found = [finding for finding in scan(data) if finding.kind == kind]
    assert any(start <= finding.start < finding.end <= end for finding in found), (data, used)
    assert all(set(finding.encodings) <= {"percent", "base64", "hex"} for finding in found)
    assert token not in repr(found) and token not in "".join(map(str, found))


@settings(max_examples=200, deadline=None)
@given(KINDS_AND_TOKENS, AROUND, AROUND)
def test_places_in_str(case: tuple[str, str], before: str, after: str) -> None:
    """In str places count its letters, whatever letters there are, surrogates among them."""
    kind, token = case
    text = f"{before}\udc80 {token} é…{after}"
    found = [finding for finding in scan(text) if finding.kind == kind]
    assert [finding for finding in found if finding.encodings == ()], text
    assert any(text[finding.start : finding.end] == token for finding in found)


@pytest.mark.parametrize("kind", sorted(TOKENS))
@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_places_of_encoded(kind: str, name: str) -> None:
    """The place of an encoded token is that of the letters which encode it: without them nothing is found."""
    token = example(kind).encode()
    for inside in (b"", b"x ", b"xy "):
        text = b"key=" + ENCODINGS[name](inside + token + b" z") + b" end"
        (finding,) = scan(text)
        assert finding.kind == kind
        if name != "percent":
            assert scan(text, depth=0) == []  # it isn't there as it is
            assert finding.encodings == (name.lower().split(",")[0],)
        if name != "percent":
            letters_of = {"p": 3, "b": 4 / 3, "h": 2}[name.lower()[0]]
            places = [at for at, letter in enumerate(text) if letter != 10][len("key=") :]
            first, last = int(len(inside) * letters_of), math.ceil(len(inside + token) * letters_of) - 1
            assert (finding.start, finding.end) == (places[first], places[last] + 1)
        assert scan(text[: finding.start] + text[finding.end :]) == []


def test_depth() -> None:
    """Encodings beyond the depth are left alone; a finding has the order of those that were decoded."""
    token = example("github").encode()
    text = base64.b64encode(ENCODINGS["percent, all"](token.hex().encode()))
    (finding,) = scan(text)
    assert finding.encodings == ("base64", "percent", "hex")
    assert str(finding).startswith(f"github at 0:{finding.end} (hex in percent in base64), fingerprint ")
    assert scan(text, depth=2) == []
    assert len(scan(base64.b64encode(text), depth=4)) == 1
    assert scan(base64.b64encode(text)) == []


def test_all_in_one_text() -> None:
    """Each of many tokens is found, once, in the order of the text."""
    text = "\n".join(f"{kind}={example(kind)}" for kind in sorted(TOKENS))
    found = scan(text)
    assert [finding.kind for finding in found] == sorted(TOKENS)
    assert [text[finding.start : finding.end] for finding in found] == [example(kind) for kind in sorted(TOKENS)]
    assert scan(text.encode()) == scan(bytearray(text.encode())) == scan(memoryview(text.encode())) == found


@pytest.mark.parametrize(
    "before",
    ["", '"', "=", "\\n", "\x1b[32m", "\x1b[0;1m", "_", "/", "(", "é", "Bearer ", "https://x:", "key%3D", "a%20b%3d"],
)
def test_what_may_stand_before(before: str) -> None:
    """A token begins also after an escape of JSON, of a terminal's colours, or of a URL."""
    for kind in sorted(TOKENS):
        if kind == "brave" and before == "/":
            continue  # in base64 it comes by chance
        found = scan(before + example(kind) + '"')
        assert [finding.kind for finding in found] == [kind], (before, kind)


def test_distinct_tokens_in_a_word() -> None:
    """A form that is no word by chance is found within a word too; one that is has to begin one."""
    for kind in ("anthropic", "openrouter", "github", "google", "slack", "telegram", "private-key", "discord"):
        assert [finding.kind for finding in scan(f"xX{example(kind)}")] == [kind]
    assert scan("ta" + example("openai")) == []


def test_what_is_no_token() -> None:
    """Logs, digests, base64 of anything, and words that look alike have no findings."""
    assert scan(log(400_000)) == []
    noise = b"".join(hashlib.sha512(b"%d" % i).digest() for i in range(6000))
    assert scan(base64.encodebytes(noise)) == []
    assert scan(base64.urlsafe_b64encode(noise)) == []
    assert scan(noise.hex()) == []
    assert scan(noise) == []
    for text in (
        "task-0123456789abcdef0123456789abcdef disk-usage-of-something-quite-long-0123456789",
        "desk-or-not-to-desk-that-is-the-question whisk-ant-and-other-insects-of-the-field",
        "sk-toggleable__label-arrow sk-estimator-doc-link sk-short sk-",
        "from package.module.another_name_that_is_rather_long import Manager.method.x",
        "12:34:56.789 127.0.0.1:AAAA ghp_ github_pat_ AIza xoxb- xapp-1- BSA",
        "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "% %zz %4 100%",
    ):  # fmt: skip
        assert scan(text) == [], text


def test_private_key_with_its_lines() -> None:
    """A private key is one finding up to its last line; a first line alone, as of a key cut off, is one too."""
    begin, end = "-----BEGIN EC PRIVATE " + "KEY-----\n", "-----END EC PRIVATE " + "KEY-----"
    whole = begin + "MHcCAQEE\n" * 3 + end
    text = f"a\n{whole}\nb\n{begin}no end\n{whole}"
    assert [text[f.start : f.end] for f in scan(text)] == [whole, begin + "no end\n" + whole]
    cut = begin + "x\n" * 40_000 + end
    assert [(f.start, f.end) for f in scan(cut)] == [(0, len(begin) - 1)]
    assert [f.kind for f in scan(json.dumps({"key": whole}))] == ["private-key"]
    assert [f.kind for f in scan((begin + "x").replace(" ", "+").replace("\n", "%0A"))] == ["private-key"]


def test_private_key_ends_where_its_piece_does() -> None:
    """What was decoded from one place has nothing to do with what was from another, though both are looked at together."""
    begin, end = "-----BEGIN EC PRIVATE " + "KEY-----\n", "-----END EC PRIVATE " + "KEY-----"
    first, second = (base64.b64encode(f"{text} and some words".encode()).decode() for text in (begin, end))
    for between in ("> <", ">  <", ">   <", ">    <"):
        (finding,) = scan(f"<{first}{between}{second}>")
        assert 1 <= finding.start < finding.end <= len(first) + 1
    (joined,) = scan(f"<{base64.b64encode((begin + end).encode()).decode()}>")  # the control
    assert joined.end - joined.start > finding.end - finding.start


# ---- what a finding tells


def test_fingerprints() -> None:
    """The same token has the same fingerprint wherever it is; another token, or the same as another kind, hasn't."""
    token = example("github")
    plain, coded = scan(f"{token} {base64.b64encode(token.encode()).decode()}")
    assert plain.fingerprint == coded.fingerprint
    assert re.fullmatch("[0-9a-f]{12}", plain.fingerprint)
    (other,) = scan(token[:-1] + "x")
    assert other.fingerprint != plain.fingerprint
    key = b"k" * 16
    (keyed,) = scan(token, key=key)
    assert keyed.fingerprint == hmac.digest(key, b"github\0" + token.encode(), "sha256").hex()[:12]


def test_fingerprints_cannot_be_tried_out() -> None:
    """Without a key of the caller's they belong to this process: nobody who knows the token can compute them later or elsewhere."""
    token = example("github")
    code = "import sys, nsbox.leaks as l; k = bytes(16); print(l.scan(sys.argv[1])[0].fingerprint, l.scan(sys.argv[1], key=k)[0].fingerprint)"
    command = [sys.executable, "-c", code, token]
    root = str(Path(leaks.__file__).parents[1])
    done = [subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split() for _ in "ab"]
    here = [scan(token)[0].fingerprint, scan(token, key=bytes(16))[0].fingerprint]
    assert done[0][0] != done[1][0] != here[0] != done[0][0]
    assert done[0][1] == done[1][1] == here[1]  # the control: with one key they can be compared
    assert hashlib.sha256(token.encode()).hexdigest()[:12] not in (here[0], done[0][0])


def test_findings_are_values() -> None:
    """A finding is frozen, can be compared and pickled, and holds nothing of the token."""
    token = example("slack")
    (finding,) = scan(token)
    assert pickle.loads(pickle.dumps(finding)) == finding == Finding("slack", 0, len(token), (), finding.fingerprint)
    assert token[4:] not in repr(finding) and token[4:].encode() not in pickle.dumps(finding)
    with pytest.raises(AttributeError):
        finding.kind = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        (None, {}, TypeError), (5, {}, TypeError), (["a"], {}, TypeError), ("", {"depth": -1}, ValueError),
        ("", {"depth": 9}, ValueError), ("", {"depth": True}, ValueError), ("", {"key": b"short"}, ValueError),
    ],
)  # fmt: skip
def test_arguments(text: Any, options: dict[str, Any], error: type[Exception]) -> None:
    """What can't be scanned, or so, is refused."""
    with pytest.raises(error):
        scan(text, **options)


# ---- any input

HOSTILE = {
    "nothing": b"\0",
    "base64 of itself, nearly": b"Vm0wd2QyUXlVWGxW",
    "base64 in all phases": b"YWFh",
    "short base64": b"YWFhYWFhYWFhYWFhYWFhYWFhYWFh ",
    "base64 firsts only": b"aAAA",
    "hex in all phases": b"7",
    "short hex": b"7a" * 20 + b" ",
    "escapes": b"%25",
    "escapes of escapes": b"%25" + b"25" * 9,
    "words with escapes": b"a%20b ",
    "sk-": b"sk-",
    "sk- with words": b"sk-" + b"a" * 190,
    "openai's middle": b"T3BlbkFJ",
    "first lines": b"-----BEGIN PRIVATE KEY-----\n",
    "first lines, last lines": b"-----BEGIN PRIVATE KEY----------END A-----",
    "last lines": b"-----END A-----",
    "dots": b".abcdef",
    "discord's rest": b".abcdef." + b"a" * 38,
    "numbers": b"MTAw",
    "telegram's rest": b":A" + b"a" * 35,
    "digits": b"1" * 20 + b":A",
    "github": b"ghp_" * 10,
    "tokens": b"ghp_" + b"a" * 36 + b" ",
    "line ends": b"YWFhYWFhYWFhYWFhYWFhYWFh\r\n",
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_work_is_linear(name: str) -> None:
    """Twice the text is twice what is looked at and twice the pieces, and no more than some times the text."""

    def work(size: int) -> tuple[int, int]:
        data = (HOSTILE[name] * size)[:size]
        found = list(leaks.layers(data, DEPTH))
        return sum(len(layer.data) for layer in found), sum(len(layer._pieces) for layer in found)

    (one, pieces), (two, more) = work(20_000), work(40_000)
    assert one <= 12 * 20_000 and pieces <= 20_000
    assert two <= 2.1 * one + 1000 and more <= 2.1 * pieces + 100


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_text(name: str) -> None:
    """No text is an error, or takes long; a token behind all of it is found."""
    token = example("google")
    found = scan((HOSTILE[name] * 20_000)[:200_000] + b" \n " + token.encode())
    assert found[-1].kind == "google" and found[-1].encodings == ()


def steps(parsed: Any, follows: bool = False) -> list[tuple[int, bool]]:
    """The upper bounds of all repeats in a pattern, and if anything follows each."""
    found = []
    for at, (op, argument) in enumerate(parsed):
        more = follows or at + 1 < len(parsed)
        if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            found.append((int(argument[1]), more))
            inside = steps(argument[2], True)
            found += inside
        elif op is _constants.SUBPATTERN:
            found += steps(argument[3], more)
        elif op is _constants.BRANCH:
            for branch in argument[1]:
                found += steps(branch, more)
    return found


def test_patterns_cannot_go_back_far() -> None:
    """In each pattern a repeat has a small bound, or nothing follows: no text makes re try again and again."""
    named = [value for value in vars(leaks_patterns).values() if isinstance(value, re.Pattern)]
    patterns = [*named, *(pattern for _, pattern, _ in leaks_patterns.PATTERNS)]
    assert len(patterns) > 15
    for pattern in patterns:
        found = steps(_parser.parse(pattern.pattern))
        assert all(most <= 200 or not follows for most, follows in found), pattern.pattern
        assert sum(follows for _, follows in found) <= 8
    assert steps(_parser.parse("(a+)+b")) == [(_constants.MAXREPEAT, True)] * 2  # the control


@pytest.mark.parametrize("token", ["xox" + "b-" + "aB3" * 5, "BS" + "A" + "aB3d" * 5, "xapp" + "-1-" + "a" * 20])
@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_shortest(token: str, name: str) -> None:
    """The shortest tokens are found too at each place in bytes that are no text."""
    assert len(token) >= leaks_patterns.SHORTEST
    for before in range(8):
        assert len(scan(ENCODINGS[name](b"\xff" * before + token.encode() + b"\xff\xfe"))) == 1


def test_no_token_is_shorter() -> None:
    """No pattern finds less than what is decoded for."""
    for _, pattern, _ in leaks_patterns.PATTERNS:
        assert _parser.parse(pattern.pattern).getwidth()[0] >= leaks_patterns.SHORTEST
    assert len("xox" + "b-" + "aB3" * 5) == leaks_patterns.SHORTEST  # the control: it isn't lower than it has to be


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(sorted(HOSTILE.values())).map(lambda x: x * 3))).map(
        b"".join
    )
)
def test_any_bytes(data: bytes) -> None:
    """Any bytes can be scanned; every finding lies in them."""
    for finding in scan(data):
        assert 0 <= finding.start < finding.end <= len(data)


# ---- known values first


def test_known_values_are_no_findings() -> None:
    """Secrets that are known are redacted before the scan, so that only others are found; places are of the new text."""
    known, other = example("anthropic"), example("github")
    text = f"a {known} b {base64.b64encode(known.encode()).decode()} c {other}"
    assert len(scan(text)) == 3  # the control
    clean, (finding,) = scrub_and_scan(text, [known])
    assert known not in clean and finding.kind == "github"
    assert clean[finding.start : finding.end] == other
    scrubber = leaks.Scrubber([known])
    assert scrub_and_scan(text, scrubber)[0] == clean
    raw, found = scrub_and_scan(text.encode(), scrubber)
    assert (raw.decode(), len(found)) == (clean, 1)
