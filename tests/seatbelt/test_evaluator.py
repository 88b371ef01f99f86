"""The model of Seatbelt's decisions, against what is known of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_seatbelt import calm, vocabulary
from nsbox_seatbelt.evaluator import ATTRIBUTES, Evaluator, NotModelled
from nsbox_seatbelt.posix_regex import BadPattern, directory_of, translate
from nsbox_seatbelt.profiles import GOOD, PARAMS, texts
from nsbox_seatbelt.values import Unknown, encoded, regex_quote, with_stand_ins

HEAD = "(version 1)\n(deny default)\n"
PRECEDENCE = [
    ("", "file-read-data", False),
    ('(allow file-read* (subpath "/a"))', "file-read-data", True),
    ('(allow file* (subpath "/a"))', "file-read-data", True),
    ('(allow file-read* (subpath "/a"))', "file-write-data", False),
    ('(allow file-read-data (subpath "/a"))', "file-read-metadata", False),
    # The last that matches decides, within an operation.
    ('(allow file-read* (subpath "/a")) (deny file-read* (literal "/a/b"))', "file-read-data", False),
    ('(deny file-read* (literal "/a/b")) (allow file-read* (subpath "/a"))', "file-read-data", True),
    ('(allow file-read* (subpath "/a")) (deny file-read* (literal "/a/c"))', "file-read-data", True),
    # The more specific operation decides, wherever its rule stands.
    ('(deny file-write-unlink (literal "/a/b")) (allow file-write* (subpath "/a"))', "file-write-unlink", False),
    ('(deny file-write-unlink (literal "/a/b")) (allow file-write* (subpath "/a"))', "file-write-data", True),
    ('(allow file-write-data (literal "/a/b")) (deny file-write* (subpath "/a"))', "file-write-data", True),
    ('(allow file-write-data (literal "/a/c")) (deny file-write* (subpath "/a"))', "file-write-data", False),
    ('(deny file-write-setugid) (allow file-write* (subpath "/a"))', "file-write-setugid", False),
    # Other names of an operation are the same operation.
    ('(allow process-exec (subpath "/a")) (deny process-exec* (literal "/a/b"))', "process-exec", False),
    ('(allow process-exec* (subpath "/a"))', "process-exec", True),
    ('(allow process-exec (subpath "/a"))', "process-exec-interpreter", True),
    ('(deny file-unlink (literal "/a/b")) (allow file-write* (subpath "/a"))', "file-write-unlink", False),
    # What isn't a part of reading.
    ('(deny file-map-executable) (allow file-read* (subpath "/a"))', "file-map-executable", False),
    # What (deny default) doesn't reach.
    ('(allow file-read* (subpath "/a"))', "file-map-executable", True),
    ('(allow file-read* (subpath "/a"))', "file-test-existence", False),
    ('(allow file-write* (subpath "/a"))', "file-link", False),
]


@pytest.mark.parametrize(("text", "operation", "is_allowed"), PRECEDENCE)
def test_precedence(text: str, operation: str, is_allowed: bool) -> None:
    """The most specific operation decides first; among rules on the same, the last that matches."""
    assert Evaluator(HEAD + text, {}).allows(operation, "/a/b") is is_allowed


FILTERS = [
    ('(literal "/a")', {"/a"}),
    ('(literal "/a" "/b")', {"/a", "/b"}),
    ('(literal "/a") (literal "/b")', {"/a", "/b"}),
    ('(literal (param "P"))', {"/a/b"}),
    ('(literal (string-append (param "P") "/c"))', {"/a/b/c"}),
    ('(subpath "/a")', {"/a", "/a/b", "/a/b/c"}),
    ('(subpath "/")', {"/", "/a", "/a/b", "/a/b/c", "/ab", "/A", "/b"}),
    ('(prefix "/a")', {"/a", "/a/b", "/a/b/c", "/ab"}),
    ('(path-ancestors "/a/b/c")', {"/", "/a", "/a/b"}),
    ('(path-ancestors "/a")', {"/"}),
    ('(path-ancestors "/")', set()),
    ('(regex #"^/a")', {"/a", "/a/b", "/a/b/c", "/ab"}),
    ('(regex #"b$")', {"/a/b", "/ab", "/b"}),
    ('(regex #"^/[aA](/[^/]+)?$")', {"/a", "/a/b", "/A"}),
    ('(regex (string-append "^" (regex-quote "/a.b") "$"))', set()),
    ('(require-any (literal "/a") (literal "/b"))', {"/a", "/b"}),
    ('(require-all (subpath "/a") (prefix "/a/b"))', {"/a/b", "/a/b/c"}),
    ('(require-all (subpath "/a") (require-not (literal "/a/b")))', {"/a", "/a/b/c"}),
    ('(require-not (prefix "/a") (prefix "/a"))', None),
    ('(require-not (subpath "/a"))', {"/", "/ab", "/A", "/b"}),
    ("(vnode-type REGULAR-FILE)", {"/", "/a", "/a/b", "/a/b/c", "/ab", "/A", "/b"}),
    ('(require-all (literal "/a") (vnode-type DIRECTORY SYMLINK))', set()),
    ('(extension "com.apple.sandbox.pty")', set()),
    ('(require-all (literal "/a") (extension "x"))', set()),
]


@pytest.mark.parametrize(("filters", "matched"), FILTERS)
def test_filters_of_paths(filters: str, matched: set[str] | None) -> None:
    """A filter matches exactly these paths; letters and whole names count. One with too many arguments is refused."""
    profile = f"{HEAD}(allow file-read* {filters})"
    if matched is None:
        with pytest.raises(NotModelled):
            Evaluator(profile, {})
        return
    model = Evaluator(profile, {"P": "/a/b"})
    paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/A", "/b"]
    found = {path for path in [*paths, "/a.b"] if model.allows("file-read-data", path)} - {"/a.b"}
    assert found == matched


def test_regex_quote() -> None:
    """What is quoted matches itself alone."""
    model = Evaluator(HEAD + '(allow file-read* (regex (string-append "^" (regex-quote "/a.b") "$")))', {})
    assert model.allows("file-read-data", "/a.b")
    assert not model.allows("file-read-data", "/aXb")


ATTRIBUTE_CASES: list[tuple[str, str, dict[str, Any], bool]] = [
    ("signal (target self)", "signal", {"target": "self"}, True),
    ("signal (target self)", "signal", {"target": "same-sandbox"}, False),
    ("signal (target same-sandbox)", "signal", {"target": "self"}, True),
    ("signal (target same-sandbox)", "signal", {"target": "others"}, False),
    ("signal (target others)", "signal", {"target": "others"}, True),
    ("process-info* (target same-sandbox)", "process-info-pidinfo", {"target": "same-sandbox"}, True),
    ('mach-lookup (global-name "a")', "mach-lookup", {"global_name": "a"}, True),
    ('mach-lookup (global-name "a")', "mach-lookup", {"local_name": "a"}, False),
    ('mach-lookup (global-name "a")', "mach-lookup", {"global_name": "a.b"}, False),
    ('mach-lookup (global-name "a")', "mach-lookup", {}, False),
    ('mach-lookup (global-name-prefix "a.")', "mach-lookup", {"global_name": "a.b"}, True),
    ('mach-lookup (global-name-regex #"^a")', "mach-lookup", {"global_name": "ab"}, True),
    ('mach-lookup (local-name-prefix "a.")', "mach-lookup", {"local_name": "a.b"}, True),
    ('sysctl-read (sysctl-name "hw.ncpu")', "sysctl-read", {"sysctl_name": "hw.ncpu"}, True),
    ('sysctl-read (sysctl-name "hw.ncpu")', "sysctl-write", {"sysctl_name": "hw.ncpu"}, False),
    ('sysctl-read (sysctl-name-prefix "hw.")', "sysctl-read", {"sysctl_name": "hw.ncpu"}, True),
    ('ipc-posix-shm (ipc-posix-name "a")', "ipc-posix-shm-write-create", {"ipc_posix_name": "a"}, True),
    ('ipc-posix-shm* (ipc-posix-name-regex #"^/a[0-9]+$")', "ipc-posix-shm-read-data", {"ipc_posix_name": "/a1"}, True),
    ('ipc-posix-shm* (ipc-posix-name-regex #"^/a[0-9]+$")', "ipc-posix-shm-read-data", {"ipc_posix_name": "/a"}, False),
    ("ipc-posix-sem", "ipc-posix-sem-create", {}, True),
    ('iokit-open (iokit-user-client-class "A")', "iokit-open-user-client", {"iokit_user_client_class": "A"}, True),
    ('iokit-open (iokit-registry-entry-class "A")', "iokit-open", {"iokit_registry_entry_class": "B"}, False),
    ('user-preference-read (preference-domain "a")', "user-preference-read", {"preference_domain": "a"}, True),
    ("system-socket (socket-domain AF_SYSTEM)", "system-socket", {"socket_domain": "AF_SYSTEM"}, True),
    ("system-socket (socket-domain AF_SYSTEM)", "system-socket", {"socket_domain": "AF_INET"}, False),
    ("system-socket (socket-protocol 2)", "system-socket", {"socket_protocol": 2}, True),
    ("system-socket (require-not (socket-protocol 2))", "system-socket", {"socket_protocol": 2}, False),
]


@pytest.mark.parametrize(("text", "operation", "attributes", "is_allowed"), ATTRIBUTE_CASES)
def test_filters_of_attributes(text: str, operation: str, attributes: dict[str, Any], is_allowed: bool) -> None:
    """A filter looks at its own attribute of the question, by equality, prefix or pattern."""
    assert Evaluator(f"{HEAD}(allow {text})", {}).allows(operation, **attributes) is is_allowed


TCP = {"remote": ("tcp", "192.0.2.1:80"), "local": ("tcp", "0.0.0.0:0")}
OWN = {"remote": ("tcp", "127.0.0.1:80"), "local": ("tcp", "127.0.0.1:8080")}
MAPPED = {"remote": ("tcp", "::ffff:127.0.0.1:80"), "local": ("tcp", "::ffff:127.0.0.1:8080")}
BESIDE = {"protocol": "tcp", "remote": "192.0.2.1:80"}
EITHER = {"remote": ("ip", "192.0.2.1:80")}
ADDRESSES: list[tuple[str, str, dict[str, Any], bool]] = [
    ('network-outbound (remote ip "*:*")', "network-outbound", TCP, True),
    ('network-outbound (remote ip "*:80")', "network-outbound", TCP, True),
    ('network-outbound (remote ip "*:81")', "network-outbound", TCP, False),
    ('network-outbound (remote tcp "*:80")', "network-outbound", BESIDE, True),
    ('network-outbound (remote udp "*:*")', "network-outbound", BESIDE, False),
    ('network-outbound (remote udp "*:*")', "network-outbound", TCP, False),
    ('network-outbound (remote tcp "*:*")', "network-outbound", TCP, True),
    ('network-outbound (remote tcp4 "*:*")', "network-outbound", TCP, True),
    ('network-outbound (remote ip "*:*")', "network-outbound", EITHER, True),
    ('network-outbound (remote tcp "*:*")', "network-outbound", EITHER, False),
    ('network-outbound (remote ip "localhost:*")', "network-outbound", TCP, False),
    ('network-outbound (remote ip "localhost:*")', "network-outbound", OWN, True),
    ('network-outbound (remote ip "localhost:81")', "network-outbound", OWN, False),
    ('network-outbound (remote ip "localhost:*")', "network-outbound", MAPPED, False),
    ('network-bind (local ip "localhost:*")', "network-bind", OWN, True),
    ('network-bind (local ip "localhost:*")', "network-bind", MAPPED, False),
    ('network-bind (local ip "*:*")', "network-bind", MAPPED, True),
    ('network-bind (local ip "*:*")', "network-inbound", MAPPED, False),
    # The socket's own end is 0.0.0.0 when it connects: every destination passes.
    ('network-outbound (local ip "localhost:*")', "network-outbound", TCP, True),
    ('network* (local ip "localhost:1")', "network-outbound", TCP, True),
    ('network* (local ip "localhost:1")', "network-outbound", EITHER, True),
    ('network* (local udp "localhost:1")', "network-outbound", TCP, False),
]


@pytest.mark.parametrize(("text", "operation", "attributes", "is_allowed"), ADDRESSES)
def test_addresses(text: str, operation: str, attributes: dict[str, Any], is_allowed: bool) -> None:
    """Addresses match by protocol, "*" or "localhost", and port; a mapped IPv4 address isn't localhost."""
    assert Evaluator(f"{HEAD}(allow {text})", {}).allows(operation, **attributes) is is_allowed


def test_unix_sockets() -> None:
    """A Unix socket is a path: no filter of addresses matches it, and that of paths no internet socket."""
    model = Evaluator(HEAD + '(allow network-outbound (remote unix-socket (subpath "/a")))', {})
    assert model.allows("network-outbound", "/a/socket")
    assert not model.allows("network-outbound", "/b/socket")
    assert model.allows("network-outbound", remote=("unix-socket", "/a/socket"))
    assert not model.allows("network-outbound", remote=("unix-socket", "/b/socket"))
    assert not model.allows("network-outbound", **TCP)
    internet = Evaluator(HEAD + '(allow network-outbound (remote ip "*:*"))', {})
    assert internet.allows("network-outbound", **TCP)
    assert not internet.allows("network-outbound", "/a/socket")
    plain = Evaluator(HEAD + '(allow network-outbound (literal "/a/socket"))', {})
    assert plain.allows("network-outbound", "/a/socket")
    assert not plain.allows("network-outbound", **TCP)


def test_vnode_types() -> None:
    """A file where a device should be isn't the device."""
    rule = '(allow file-write-data (require-all (literal "/dev/null") (vnode-type CHARACTER-DEVICE)))'
    model = Evaluator(HEAD + rule, {})
    assert model.allows("file-write-data", "/dev/null", vnode_type="CHARACTER-DEVICE")
    assert not model.allows("file-write-data", "/dev/null")


def test_default() -> None:
    """What no rule is about is as (allow default) or (deny default) says, and denied without either."""
    assert Evaluator("(version 1)(allow default)", {}).allows("lsopen")
    assert not Evaluator("(version 1)(deny default)", {}).allows("lsopen")
    assert not Evaluator("(version 1)", {}).allows("lsopen")
    assert Evaluator("(version 1)", {}).why("lsopen") is None
    found = Evaluator("(version 1)\n(allow default)\n(deny network*)", {}).why("network-outbound", **TCP)
    assert found is not None
    assert (found.action, found.line) == ("deny", 3)


@pytest.mark.parametrize(
    "rule",
    [
        "(allow file-reed*)",
        '(allow file-read* (nothing "/a"))',
        '(allow file-read* (global-name "a"))',
        "(allow file-read* (literal))",
        "(allow file-read* (vnode-type FILE))",
        "(allow signal (target children))",
        '(allow network-outbound (remote ip "10.0.0.1:*"))',
        '(allow network-outbound (remote icmp "*:*"))',
        "(allow file-read* (file-mode 4))",
        '(allow file-read* (regex "a{2}"))',
        "(allow process-exec* (with no-sandbox))",
    ],
)
def test_not_modelled(rule: str) -> None:
    """What the model doesn't know is an error when the profile is loaded, even in a rule that nothing asks for."""
    with pytest.raises((NotModelled, BadPattern)):
        Evaluator(HEAD + rule, {})


def test_questions_that_make_no_sense() -> None:
    """Paths that the kernel never has, unknown operations and attributes, and missing values are errors."""
    model = Evaluator(HEAD + '(allow file-read* (subpath "/a"))', {})
    for path in ("a", "/a/", "/a/../b", "//a", "/a//b", ""):
        with pytest.raises(ValueError, match="absolute and normal"):
            model.allows("file-read-data", path)
    with pytest.raises(ValueError, match="about a path"):
        model.allows("file-read-data")
    with pytest.raises(ValueError, match="no type"):
        model.allows("file-read-data", "/a", vnode_type="FILE")
    with pytest.raises(NotModelled):
        model.allows("file-reed", "/a")
    with pytest.raises(TypeError, match="sysctl"):
        model.allows("sysctl-read", sysctl="a")
    with pytest.raises(TypeError, match="pair"):
        model.allows("network-outbound", remote="192.0.2.1:80")
    with pytest.raises(TypeError, match="pair"):
        model.allows("network-outbound", remote=("icmp", "192.0.2.1:80"))
    with pytest.raises(Unknown):
        Evaluator(HEAD + '(allow file-read* (subpath (param "TMP")))', {})


def test_good() -> None:
    """A profile of ours says what it means."""
    model = Evaluator(GOOD, with_stand_ins(PARAMS))
    work = "/Users/me/work"
    assert model.allows("file-write-data", f"{work}/a")
    assert model.allows("file-write-data", "/private/var/folders/TMP/a")
    for path in (f"{work}/.git/config", "/usr/bin/env", "/Users/me/a"):
        assert not model.allows("file-write-data", path)
    for path in (f"{work}/secrets/a", f"{work}/ENV", f"{work}/eNv/a"):
        assert not model.allows("file-read-data", path)
    assert model.allows("file-read-data", f"{work}/ENVY")
    assert not model.allows("file-write-unlink", f"{work}/a b")
    assert not model.allows("file-write-setugid", f"{work}/a")


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        (r"^/a\.b$", ["/a.b"], ["/aXb", "/a.b\n"]),
        ("^/a(/.*)?$", ["/a", "/a/b", "/a/\n"], ["/ab"]),
        ("a|b", ["a", "b"], ["c"]),
        ("^[]a]$", ["]", "a"], ["b"]),
        ("^[^]a]$", ["b"], ["]", "a"]),
        (r"^[\.]$", [".", "\\"], ["a"]),
        ("^[a-c-]+$", ["abc-"], ["d"]),
        ("^[[:digit:]x]+$", ["1x"], ["a"]),
        ("^[[]$", ["["], ["]"]),
        ("^.$", ["a", "\n"], ["é"]),  # bytes
        ("^é+$", ["é"], ["e"]),
    ],
)
def test_patterns(pattern: str, matched: list[str], not_matched: list[str]) -> None:
    """Extended regular expressions of POSIX are searched for in bytes."""
    assert [text for text in matched if not translate(pattern).search(encoded(text))] == []
    assert [text for text in not_matched if translate(pattern).search(encoded(text))] == []


@pytest.mark.parametrize("pattern", ["a{2}", "*a", "a**", "(a", "a)", "[a", r"\d", "a\\", "(?:a)", "[[.a.]]", "[z-a]"])
def test_bad_patterns(pattern: str) -> None:
    """What POSIX doesn't define, or the model doesn't know, is no pattern."""
    with pytest.raises(BadPattern):
        translate(pattern)


@calm
@given(texts, texts)
def test_quoted_patterns(text: str, other: str) -> None:
    """A quoted text is a pattern of that text alone, whatever is in it."""
    pattern = translate(f"^{regex_quote(text)}$")
    assert pattern.search(encoded(text))
    assert bool(pattern.search(encoded(other))) is (text == other)


@pytest.mark.parametrize(
    ("pattern", "directory"),
    [
        ("^/a/b[cd]$", "/a"),
        ("^/a/b$", "/a/b"),
        (r"^/a\.x/b(/.*)?$", "/a.x"),
        ("^/a/b?$", "/a"),
        ("^/[ab]", "/"),
        ("^/a/b|^/c", None),
        ("^/a/(b|c)$", "/a"),
        ("/a/b", None),
    ],
)
def test_directories_of_patterns(pattern: str, directory: str | None) -> None:
    """The directory that a pattern is about is what is fixed at its beginning, if it has one beginning."""
    assert directory_of(pattern) == directory


parts = st.sampled_from(["a", "b"])
some_paths = st.lists(parts, max_size=4).map(lambda names: "/" + "/".join(names))


@calm
@given(some_paths, some_paths)
def test_paths_by_names(top: str, path: str) -> None:
    """subpath is the path and what is below; path-ancestors what is above; by whole names."""
    names, above = path.strip("/").split("/"), top.strip("/").split("/")
    is_below = top == "/" or names[: len(above)] == above
    below = Evaluator(HEAD + '(allow file-read* (subpath (param "P")))', {"P": top})
    assert below.allows("file-read-data", path) is is_below
    ancestors = Evaluator(HEAD + '(allow file-read* (path-ancestors (param "P")))', {"P": path})
    assert ancestors.allows("file-read-data", top) is (is_below and top != path)


def test_hierarchy() -> None:
    """Every operation is part of one that is known, up to default."""
    for operation in vocabulary.OPERATIONS:
        levels = vocabulary.levels(operation)
        assert set(levels) <= vocabulary.OPERATIONS
        assert levels[-1] == "default"
    assert vocabulary.levels("file-read-data") == ("file-read-data", "file-read*", "file*", "default")
    assert vocabulary.levels("process-exec-interpreter") == (
        *("process-exec-interpreter", "process-exec*", "process*", "default"),
    )
    assert vocabulary.levels("mach-priv-task-port") == ("mach-priv-task-port", "mach-priv*", "mach*", "default")
    assert vocabulary.levels("iokit-open-service") == ("iokit-open-service", "iokit-open*", "iokit*", "default")
    assert vocabulary.levels("signal") == ("signal", "default")


def test_words_are_consistent() -> None:
    """Filters stand only under operations that exist, and every attribute is that of a filter."""
    for known in vocabulary.FILTERS.values():
        assert set(known.operations) <= vocabulary.OPERATIONS
    assert set(vocabulary.ALIASES) | set(vocabulary.ALIASES.values()) <= vocabulary.OPERATIONS
    assert {"target", "global_name", "socket_domain"} <= ATTRIBUTES
