"""Options about the network: lists from --allow-net, with and without a file, and what --publish takes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from nsbox import Network, PolicyError
from nsbox._cli.commands import COMMANDS
from nsbox._cli.completion.shells import completion
from nsbox._cli.policy import policy_of
from nsbox._cli.run.network import Extras, Publish, extras_of, publish, recorded


def options(*words: str) -> argparse.Namespace:
    """Return these options as `nsbox run` parses them."""
    return COMMANDS["run"].parser().parse_args([*words, "--", "true"])


def network(*words: str) -> Any:
    """Return the network of the policy that these options make."""
    return policy_of(options(*words)).network


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_lists() -> None:
    """Each --allow-net is an entry; with --network public, besides what that has."""
    assert network() == network("--network", "none") == "none"
    assert network("--network", "host") == "host"
    assert network("--network", "public") == Network(allow=("*:*",))
    assert network("--allow-net", "a.example", "--allow-net=!b.example") == Network(allow=("a.example", "!b.example"))
    more = network("--network", "public", "--allow-net", "10.0.0.0/8:22", "--allow-net", "!b.example")
    assert more == Network(allow=("*:*", "10.0.0.0/8:22", "!b.example"))


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ('network = ["a.example"]', ["b.example:80"], Network(allow=("a.example", "b.example:80"))),
        ('network = ["*.example.org"]', ["!b.example.org"], Network(allow=("*.example.org", "!b.example.org"))),
        ('network = "none"', ["b.example"], Network(allow=("b.example",))),
        ("", ["b.example"], Network(allow=("b.example",))),
        ('network = "public"', ["10.0.0.1:22"], Network(allow=("*:*", "10.0.0.1:22"))),
        (
            '[network]\nallow = ["a.example"]\ndeny = ["c.example"]\ntls = "off"\nconnections = 3',
            ["b.example"],
            Network(allow=("a.example", "b.example"), deny=("c.example",), tls="off", connections=3),
        ),
    ],
)
def test_lists_of_files(here: Path, text: str, words: list[str], expected: Network) -> None:
    """A file's list gets these entries, and keeps the rest."""
    (here / "p.toml").write_text(
        f'workspace = "work"\n{text}' if not text.startswith("[") else f"workspace='work'\n{text}"
    )
    assert network("--policy", str(here / "p.toml"), *(f"--allow-net={word}" for word in words)) == expected


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ('network = "host"', ["--allow-net", "a.example"], "its network is the host's"),
        ('network = "none"', ["--allow-net", "!a.example"], "only denies"),
        ('network = ["a.example"]', ["--allow-net", "b/c"], "a path can't be allowed"),
        ('network = ["a.example"]', ["--network", "public"], "doesn't go with --policy"),
    ],
)
def test_what_goes_with_no_file(here: Path, text: str, words: list[str], said: str) -> None:
    """More than everything, and nothing alone, are errors about the option."""
    (here / "p.toml").write_text(f'workspace = "work"\n{text}')
    with pytest.raises(PolicyError, match=said) as caught:
        network("--policy", str(here / "p.toml"), *words)
    assert caught.value.field == words[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3000", Publish(3000, "127.0.0.1", 3000)),
        ("8080:3000", Publish(3000, "127.0.0.1", 8080)),
        ("0:3000", Publish(3000, "127.0.0.1", 0)),
        ("127.0.0.2:3000", Publish(3000, "127.0.0.2", 3000)),
        ("0.0.0.0:8080:3000", Publish(3000, "0.0.0.0", 8080)),
        ("localhost:8080:3000", Publish(3000, "127.0.0.1", 8080)),
        ("[::1]:8080:3000", Publish(3000, "::1", 8080)),
        ("/run/me/server.sock:3000", Publish(3000, "/run/me/server.sock", 0)),
    ],
)
def test_publish(text: str, expected: Publish) -> None:
    """The last is the port inside, the one before it the port here."""
    assert publish(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "65536", "http", "-1", "1:2:3", "1:0", "::1:80", "[::1]", "[::1]:", "[x]:80", "/x", "/x:", ":80"),
        *(
            "80:",
            "1.2.3:80",
            "256.0.0.1:80",
            "example.org:80",
            "localhost:",
            "80/udp",
            " 80",
            "\u0663",
            "123456",
            "a\n:80",
        ),
    ],
)
def test_publish_is_never_guessed(text: str) -> None:
    """What is no port is an error of one line, which says how it is written."""
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        publish(text)
    assert str(caught.value).isprintable()


def test_a_log_makes_an_empty_list() -> None:
    """With a log, no network is an empty list; without one, and with a list, the policy stays as it is."""
    for words, expected in (
        (["--net-log", "log"], Network()),
        (["--net-log", "log", "--network", "none", "--publish", "80"], Network()),
        (["--net-log", "log", "--allow-net", "a.example"], Network(allow=("a.example",))),
        (["--publish", "80"], "none"),
    ):
        given = options(*words)
        policy = policy_of(given)
        assert recorded(policy, extras_of(given, policy)).network == expected


def test_extras() -> None:
    """They need a network that something can be told of, or published from."""
    given = options("--allow-net", "a.example", "--net-log", "log", "--publish", "3000", "--publish", "0:80")
    assert extras_of(given, policy_of(given)) == Extras("log", (Publish(3000, outside=3000), Publish(80)))
    alone = options("--publish", "3000")
    assert extras_of(alone, policy_of(alone)) == Extras(None, (Publish(3000, outside=3000),))
    for words, option in (
        (["--net-log", "log", "--network", "host"], "--net-log"),
        (["--publish", "80", "--network", "host"], "--publish"),
        (["--publish", "80"] * 65, "--publish"),
    ):
        refused = options(*words)
        with pytest.raises(PolicyError) as caught:
            extras_of(refused, policy_of(refused))
        assert caught.value.field == option


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """Shells know the options."""
    text = completion(shell)
    assert all(name in text for name in ("allow-net", "net-log", "publish"))
    assert "none host public" in text
