"""The key `network` of a configuration file: a word, a list, or a table; in each format, by its line when it's wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure.configs import FORMATS, calm, check_schema, directories, needs, of, problems

from nsbox import Network, Policy
from nsbox._cli.config import starter
from nsbox._config.load import dumps, loads, schema


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return directories(tmp_path)


WORDS = [('"public"', Network(allow=("*:*",))), ('"none"', "none"), ('"host"', "host")]
LISTED = Network(allow=("api.example:443", "*.files.example", "!x.files.example"))
TABLE = Network(allow=("db.corp:5432",), deny=("x.corp",), private=True, tls="sni-ech", connections=10, bytes=2 << 30)

LISTS = {
    "toml": 'network = ["api.example:443", "*.files.example", "!x.files.example"]',
    "json": '{"network": ["api.example:443", "*.files.example", "!x.files.example"]}',
    "yaml": "network:\n- api.example:443\n- '*.files.example'\n- '!x.files.example'\n",
}
TABLES = {
    "toml": '[network]\nallow = ["db.corp:5432"]\ndeny = ["x.corp"]\nprivate = true\ntls = "sni-ech"\nconnections = 10\n'
    'bytes = "2G"',
    "json": '{"network": {"allow": ["db.corp:5432"], "deny": ["x.corp"], "private": true, "tls": "sni-ech", '
    '"connections": 10, "bytes": "2G"}}',
    "yaml": "network:\n  allow: [db.corp:5432]\n  deny:\n  - x.corp\n  private: yes\n  tls: sni-ech\n  connections: 10\n"
    "  bytes: 2G\n",
}


@pytest.mark.parametrize("format", FORMATS)
def test_lists_and_tables(format: str, base: Path) -> None:
    """Each format has both."""
    assert of(LISTS[format], base, format).network == LISTED
    assert of(TABLES[format], base, format).network == TABLE
    inner = {"toml": '[sandbox]\nnetwork = ["a.example"]', "json": '{"sandbox": {"network": ["a.example"]}}'}
    inner |= {"yaml": "sandbox:\n  network: [a.example]"}
    assert of(inner[format], base, format).network == Network(allow=("a.example",))


@pytest.mark.parametrize(("said", "meant"), WORDS)
def test_words(said: str, meant: object, base: Path) -> None:
    """As the policy has them."""
    assert of(f"network = {said}", base).network == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'network = "api.example:443"',
            ['1: network: "api.example:443" is one entry, must be a list: ["api.example:443"]'],
        ),
        ('network = "https://api.example/v1"', ["1: network: 'https://api.example/v1': is a URL, must be a host"]),
        ('network = ["!a.example"]', ["1: network: only denies, and allows nothing"]),
        ('network = ["host"]', ["1: network: 'host' isn't an entry, but a word"]),
        ('uid = 1\nnetwork = ["a.example", "b b"]', ["2: network[1]: 'b b': has a space"]),
        ('network = ["a.example", 3, "c/d"]', ["1: network[1]: is a number", "1: network[2]: 'c/d': a path can't"]),
        ("network = [[]]", ["1: network[0]: is a list, must be a text"]),
        ("[network]\nprivate = true", ["1: network: has no allow, the list of what"]),
        (
            '[network]\nallow = "a.example"',
            ["2: network.allow: is a text, must be a list of texts, such as ['a.example']"],
        ),
        ('[network]\nallow = ["a.example"]\nalow = []', ["3: network.alow: isn't a key here; did you mean allow?"]),
        ('[network]\nallow = ["*.com"]\ndeny = ["a:b"]', ["2: network.allow[0]: '*.com'", "3: network.deny[0]: 'a:b'"]),
        ('[network]\nallow = ["a.example"]\ntls = "on"', ["3: network.tls: 'on' is unknown, must be one of 'sni'"]),
        ('[network]\nallow = ["a.example"]\nprivate = "yes"', ["3: network.private: is a text, must be true or false"]),
        ('[network]\nallow = ["a.example"]\nconnections = 0', ["3: network.connections: 0 is out of range"]),
        ('[network]\nallow = ["a.example"]\nconnections = 10001', ["3: network.connections: 10001 is out of range"]),
        ('[network]\nallow = ["a.example"]\nbytes = "2Q"', ["3: network.bytes: '2Q' isn't a size"]),
        ('[network]\nallow = ["a.example"]\nbytes = 0', ["3: network.bytes:"]),
    ],
)
def test_problems(text: str, told: list[str], base: Path) -> None:
    """All of them, each by its line and its entry."""
    found = problems(text, base)
    assert len(found) == len(told)
    for line, start in zip(found, told, strict=True):
        assert line.startswith(start)


def test_json_and_yaml_lines(base: Path) -> None:
    """The other formats know the lines as well."""
    assert problems('{"uid": 1,\n"network": ["a.example",\n"b b"]}', base, "json")[0].startswith("2: network[1]")
    assert problems("uid: 1\nnetwork:\n- a.example\n- b b\n", base, "yaml")[0].startswith(
        ("4: network[1]", "2: network[1]")
    )


NETWORKS = st.one_of(
    st.sampled_from(["none", "host"]),
    st.builds(
        Network,
        allow=st.sampled_from([("a.example",), ("*:*",), ("*.b.example:80", "10.0.0.0/8:*", "!c.b.example")]),
        deny=st.sampled_from([(), ("x.b.example",), ("!10.1.0.0/16",)]),
        private=st.booleans(),
        tls=st.sampled_from(["sni", "sni-ech", "off"]),
        connections=st.sampled_from([256, 1, 10_000]),
        bytes=st.sampled_from([None, 1, "1G", 1 << 40]),
    ),
)


@pytest.mark.parametrize("format", FORMATS)
@calm
@given(network=NETWORKS)
def test_written_and_read_again(format: str, network: object, tmp_path: Path) -> None:
    """What a policy has is what a file has, and fits the schema."""
    policy = Policy.workspace(tmp_path, network=network)
    text = dumps(policy, needs(format), base=tmp_path)
    assert loads(text, format, base=tmp_path).policy.network == policy.network
    check_schema(json.loads(dumps(policy, "json", base=tmp_path)))


def test_what_is_written(base: Path) -> None:
    """The shortest form that says it."""
    here = Policy.workspace(base / "work")
    for network, said in ((["a.example"], '["a.example"]'), ("public", '"public"'), ("none", '"none"')):
        assert f"\nnetwork = {said}\n" in dumps(here.with_(network=network), "toml")
    table = dumps(here.with_(network=Network(allow=["a.example"], bytes="1G")), "toml")
    assert '\n[network]\nallow = ["a.example"]\nbytes = "1G"\n' in table


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("public", True),
        (["a.example"], True),
        ({"allow": ["a.example"], "tls": "off", "bytes": "1G"}, True),
        ([], True),
        ({"allow": []}, True),
        ({"deny": ["a.example"]}, False),
        ({"allow": ["a.example"], "tls": "on"}, False),
        ({"allow": ["a.example"], "more": 1}, False),
        ("restricted", False),
        (3, False),
    ],
)
def test_schema(value: object, fits: bool) -> None:
    """What the schema takes of a network."""
    jsonschema = pytest.importorskip("jsonschema")
    assert jsonschema.Draft202012Validator(schema()).is_valid({"network": value}) == fits


def test_starter_names_the_list() -> None:
    """A starter file shows how a list is written."""
    for format in ("toml", "yaml"):
        assert "['api.example:443']" in starter(format, ".")
