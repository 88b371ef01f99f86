"""The linter: each of its rules has something to say about a profile that is wrong in that way, and about no other."""

from __future__ import annotations

import re

import pytest
from nsbox_seatbelt import findings, vocabulary
from nsbox_seatbelt.linter import MOST_BYTES, MOST_FILTERS, lint
from nsbox_seatbelt.profiles import GOOD, PARAMS

HEAD = "(version 1)\n(deny default)\n"
LINE = re.compile(r"line [0-9]+(, column [0-9]+)?: .+")


def said(text: str, params: dict[str, str | None] | None = None) -> list[str]:
    """Return what is said of a profile with these rules, on its third line and further."""
    found = lint(HEAD + text, params or {})
    assert all(LINE.fullmatch(line) for line in found), found
    return found


def check(bad: str, problem: str, good: str) -> None:
    """Fail unless the linter has exactly one thing to say of the bad rules, and none of the good ones."""
    (line,) = said(bad)
    assert line.startswith("line 3") and problem in line, line
    assert said(good) == []


def test_good() -> None:
    """A profile with one of everything is in order, and so is the smallest."""
    assert lint(GOOD, PARAMS) == []
    assert lint("(version 1)(deny default)", {}) == []
    assert lint("(version 1)(allow default)(deny network*)", {}) == []


@pytest.mark.parametrize(
    ("profile", "line", "problem"),
    [
        ("(version 1)\n(deny default", 2, "a ( without its )"),
        ("(version 1)\n(deny default))", 2, "a ) without its ("),
        ("(version 1)\n(deny default)\n\0", 3, "NUL"),
        ("(deny default)", 1, "(version 1) isn't first"),
        ("", 1, "(version 1) isn't first"),
        ("(version 2)\n(deny default)", 1, "(version 1) isn't first"),
        ("(version 1)", 1, "neither (deny default) nor (allow default) is second"),
        ("(version 1)\n(allow signal (target self))\n(deny default)", 2, "is second"),
        ("(version 1)\n(deny default)\n(version 1)", 3, "(version ...) again"),
        ("(version 1)\n(deny default)\n(deny default)", 3, "default again"),
        ("(version 1)\n(deny default)\n(allow default)", 3, "default again"),
        ('(version 1)\n(deny default)\n(import "system.sb")', 3, "(import ...) is no rule"),
        ("(version 1)\n(deny default)\n(allow signal self)", 3, "self is no operation"),
        ('(version 1)\n(deny default)\n(allow file-read* "/a")', 3, "can't be here in a rule"),
    ],
)
def test_whole(profile: str, line: int, problem: str) -> None:
    """A profile is balanced, and has (version 1), then the default, then rules, each once."""
    found = lint(profile, {})
    assert any(said.startswith(f"line {line}") and problem in said for said in found), found


WORDS = [
    ('(allow file-reed* (literal "/a"))', "file-reed* is no operation", '(allow file-read* (literal "/a"))'),
    ('(allow file-read* (litteral "/a"))', "litteral is no filter", '(allow file-read* (literal "/a"))'),
    ('(allow file-read* (global-name "a"))', "doesn't fit file-read*", '(allow mach-lookup (global-name "a"))'),
    ('(allow mach-lookup (subpath "/a"))', "doesn't fit mach-lookup", '(allow process-exec* (subpath "/a"))'),
    (
        '(allow file-read* process-fork (literal "/a"))',
        "doesn't fit process-fork",
        '(allow file-read* file-test-existence (literal "/a"))',
    ),
    (
        '(allow file-read* (require-all (literal "/a") (target self)))',
        "target doesn't fit",
        '(allow file-read* (require-all (literal "/a") (vnode-type TTY)))',
    ),
    ("(allow file-read* (literal))", "nothing to compare", '(allow file-read* (literal "/a"))'),
    ("(allow file-read* (require-any))", "nothing to compare", '(allow file-read* (require-any (literal "/a")))'),
    (
        '(deny file-read* (require-not (literal "/a") (literal "/b")))',
        "require-not takes one",
        '(deny file-read* (require-not (literal "/a")))',
    ),
    (
        "(allow file-read* (literal a))",
        "a is no argument",
        '(allow file-read* (literal "/a" "/b"))',
    ),
    ("(deny file-read* (vnode-type FILE))", "FILE is no argument", "(deny file-read* (vnode-type DIRECTORY))"),
    (
        '(allow system-socket (socket-protocol "2"))',
        "is no argument",
        "(allow system-socket (socket-protocol 2))",
    ),
    ("(allow signal (target anybody))", "anybody is no argument", "(allow signal (target same-sandbox))"),
    ("(deny file-read* (with quiet))", "quiet is no modifier", "(deny file-read* (with no-log))"),
    ("(deny file-read* (with message))", "message takes string", '(deny file-read* (with message "a"))'),
    ('(deny file-read* (with no-log "a"))', "no-log takes nothing", "(deny file-read* (with report))"),
    ("(deny file-read* (with))", "is no modifier", "(deny file-read* (with telemetry))"),
    (
        '(allow process-exec* (literal "/bin/ps") (with no-sandbox))',
        "without a sandbox",
        '(allow process-exec* (literal "/bin/ps") (with report))',
    ),
]


@pytest.mark.parametrize(("bad", "problem", "good"), WORDS)
def test_words(bad: str, problem: str, good: str) -> None:
    """Operations, filters and modifiers are known, fit each other, and have the arguments that they take."""
    check(bad, problem, good)


STRINGS = [
    ('(allow file-read* (literal "/a\n"))', "control characters", '(allow file-read* (literal "/é"))'),
    ('(allow file-read* (literal "/a\x7f"))', "control characters", '(allow file-read* (literal "/a~"))'),
    ('(allow file-read* (regex #"^/a\t"))', "control characters", '(allow file-read* (regex #"^/a "))'),
    ('(deny file-read* (with message "a\x1b"))', "control characters", '(deny file-read* (with message "a"))'),
    (
        f'(allow file-read* (literal "/{"a" * MOST_BYTES}"))',
        "1001 bytes",
        f'(allow file-read* (literal "/{"a" * (MOST_BYTES - 1)}"))',
    ),
    (
        f'(allow file-read* (regex #"^/{"é" * 500}"))',
        "1002 bytes",
        f'(allow file-read* (regex #"^/{"é" * 499}"))',
    ),
    (
        f'(allow file-read* (literal "/{chr(0xDCFF) * MOST_BYTES}"))',
        "1001 bytes",
        f'(allow file-read* (literal "/{chr(0xDCFF) * (MOST_BYTES - 1)}"))',
    ),
    ('(allow file-read* (subpath "a"))', "isn't absolute", '(allow file-read* (subpath "/"))'),
    ('(allow file-read* (subpath "/a/"))', "isn't normal", '(allow file-read* (prefix "/a/"))'),
    ('(allow file-read* (subpath "//a"))', "isn't normal", '(allow file-read* (subpath "/a"))'),
    ('(allow file-read* (literal "/a/./b"))', "isn't normal", '(allow file-read* (literal "/a/.b"))'),
    ('(allow file-read* (literal "/a/../b"))', "isn't normal", '(allow file-read* (literal "/a/..b"))'),
    ('(allow file-read* (prefix "/a//"))', "isn't normal", '(allow file-read* (prefix "/"))'),
    ('(allow file-read* (subpath "/tmp/a"))', "by a link", '(allow file-read* (subpath "/private/tmp/a"))'),
    ('(allow file-read* (subpath "/var"))', "by a link", '(allow file-read* (subpath "/variable"))'),
    ('(allow file-read* (literal "/etc"))', "by a link", '(allow file-read-metadata (literal "/etc"))'),
    (
        '(allow file-read-metadata (literal "/etc/a"))',
        "by a link",
        '(allow file-read-metadata (literal "/tmp" "/var"))',
    ),
    ('(allow file-read-metadata (subpath "/etc"))', "by a link", '(allow file-read-metadata (subpath "/private/etc"))'),
    ('(allow file-read* (regex #"^/tmp/a$"))', "by a link", '(allow file-read* (regex #"^/private/tmp/a$"))'),
    (
        '(allow network-outbound (remote unix-socket (subpath "/var/a")))',
        "by a link",
        '(allow network-outbound (remote unix-socket (subpath "/private/var/a")))',
    ),
    ('(allow file-read* (subpath "/System/Volumes/Data/Users"))', "firmlink", '(allow file-read* (subpath "/System"))'),
    ('(allow file-read* (literal "/a/${HOME}"))', "for a variable", '(allow file-read* (literal "/a/$HOME"))'),
    ('(allow file-read* (path-ancestors "/"))', "filter of nothing", '(allow file-read* (path-ancestors "/a"))'),
    ('(allow file-read* (regex #"(a"))', "without its )", '(allow file-read* (regex #"(a)"))'),
]


@pytest.mark.parametrize(("bad", "problem", "good"), STRINGS)
def test_strings(bad: str, problem: str, good: str) -> None:
    """Strings are short and plain, paths are spelled as the kernel has them, patterns are patterns."""
    check(bad, problem, good)


ONE = '(allow file-read* (subpath (param "P")))'


@pytest.mark.parametrize(
    ("text", "params", "problem"),
    [
        (ONE, {}, "line 3: the parameter P isn't defined"),
        (ONE, {"P": "/a", "Q": "/b"}, "line 0: the parameter Q isn't used"),
        (ONE, {"P": "/a/../b"}, "line 3: the parameter P: '/a/../b' isn't normal"),
        (ONE, {"P": "/a/"}, "isn't normal"),
        (ONE, {"P": "/tmp"}, "by a link"),
        (ONE, {"P": "/var/folders/a"}, "by a link"),
        (ONE, {"P": "/System/Volumes/Data/a"}, "firmlink"),
        (ONE, {"P": "a"}, "isn't absolute"),
        (ONE, {"P": ""}, "isn't absolute"),
        (ONE, {"P": "/a\nb"}, "control characters"),
        (ONE, {"P": "/a\0b"}, "control characters"),
        (ONE, {"P": "/" + "é" * 500}, "1001 bytes"),
        (ONE, {"P": "/" + "\udcff" * 1000}, "1001 bytes"),
        ('(allow file-read* (literal (string-append (param "P") "/../b")))', {"P": "/a"}, "isn't normal"),
        ('(allow file-read* (regex (string-append "^" (regex-quote (param "P")))))', {"P": "/tmp/a"}, "by a link"),
    ],
)
def test_params(text: str, params: dict[str, str | None], problem: str) -> None:
    """Each parameter is defined and used, and its value is a path as the kernel has it."""
    found = said(text, params)
    assert found
    assert all(problem in line or "P" in line for line in found)
    assert any(problem in line for line in found), found


@pytest.mark.parametrize("value", ["/a", "/", "/a b", "/a'\"()", "/private/tmp", "/a\udcff", None])
def test_good_params(value: str | None) -> None:
    """Names may have any character that is none of control; a value may be known only when the command starts."""
    assert said(ONE, {"P": value}) == []


ADDRESSES = [
    ('(allow network-outbound (remote ip "10.0.0.1:80"))', "is neither", '(allow network-outbound (remote ip "*:80"))'),
    (
        '(allow network-outbound (remote ip "example.org:80"))',
        "is neither",
        '(allow network-outbound (remote ip "*:*"))',
    ),
    ('(allow network-bind (local ip "localhost"))', "is neither", '(allow network-bind (local ip "localhost:*"))'),
    ('(allow network-bind (local tcp "*:65536"))', "is neither", '(allow network-bind (local tcp "*:65535"))'),
    ('(allow network-bind (local tcp "::1:80"))', "is neither", '(allow network-bind (local tcp "localhost:80"))'),
    ('(allow network-bind (local icmp "*:1"))', "no protocol", '(allow network-bind (local udp "*:1"))'),
    ("(allow network-bind (local ip))", "no address", '(allow network-bind (local ip "*:1"))'),
    ('(allow network-outbound (local ip "*:*"))', "every destination", '(allow network-inbound (local ip "*:*"))'),
    ('(allow network-outbound (local tcp "*:1"))', "every destination", '(allow network-outbound (remote tcp "*:1"))'),
    (
        '(allow network-outbound network-bind (local udp "*:1"))',
        "every destination",
        '(allow network-inbound network-bind (local udp "*:1"))',
    ),
    ('(allow network* (local ip "*:*"))', "every destination", '(allow network* (remote ip "*:*"))'),
]


@pytest.mark.parametrize(("bad", "problem", "good"), ADDRESSES)
def test_addresses(bad: str, problem: str, good: str) -> None:
    """Addresses are those that Seatbelt knows, and never a socket's own where it connects."""
    check(bad, problem, good)


@pytest.mark.parametrize("operation", sorted(set(findings.TOO_WIDE) - {"default"}))
def test_too_wide(operation: str) -> None:
    """What would be no confinement isn't allowed without a filter, unless all is allowed; denying it is fine."""
    assert any("without a filter" in line for line in said(f"(allow {operation})"))
    assert not any("without a filter" in line for line in said(f"(deny {operation})"))
    assert not any("without a filter" in line for line in lint(f"(version 1)(allow default)(allow {operation})", {}))


@pytest.mark.parametrize(
    "operation", ["process-fork", "pseudo-tty", "ipc-posix-sem", "file-read-metadata", "system-info"]
)
def test_not_too_wide(operation: str) -> None:
    """What harms nobody may be allowed without a filter."""
    assert said(f"(allow {operation})") == []


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("(allow process-exec)", '(allow process-exec (subpath "/a"))'),
        ("(allow iokit-open)", '(allow iokit-open (iokit-user-client-class "A"))'),
        ('(allow file-read* (require-not (subpath "/a")))', '(allow file-read* (subpath "/a"))'),
        (
            "(allow file-read* (vnode-type DIRECTORY))",
            '(allow file-read* (require-all (subpath "/a") (vnode-type TTY)))',
        ),
        (
            '(allow file-read* (subpath "/a") (require-not (subpath "/b")))',
            '(allow file-read* (require-all (subpath "/a") (require-not (subpath "/a/b"))))',
        ),
        ('(allow sysctl-write (sysctl-name-prefix ""))', '(allow sysctl-write (sysctl-name-prefix "a."))'),
        (
            '(allow file-read* (require-any (subpath "/a") (require-not (subpath "/b"))))',
            '(allow file-read* (require-any (subpath "/a") (subpath "/b")))',
        ),
    ],
)
def test_filters_that_narrow_nothing(bad: str, good: str) -> None:
    """A filter of exceptions, or of kinds of files, counts as none."""
    check(bad, "without a filter", good)


@pytest.mark.parametrize("operation", findings.FORBIDDEN)
def test_forbidden(operation: str) -> None:
    """What leads out of the sandbox is allowed nowhere, however it is filtered; denying it is fine."""
    bad = f'(allow {operation} (extension "a"))'
    assert any(f"{operation} is allowed: it {findings.FORBIDDEN[operation]}" in line for line in said(bad))
    assert any("is allowed" in line for line in lint(f"(version 1)(allow default){bad}", {}))
    assert said(f"(deny {operation})") == []


@pytest.mark.parametrize(
    ("bad", "problem", "good"),
    [
        ('(allow file-write-mount (literal "/a"))', "puts other files", '(allow file-write-data (literal "/a"))'),
        ('(allow mach-register (global-name "a"))', "offers a service", '(allow mach-register (local-name "a"))'),
        ("(allow mach-register)", "offers a service", '(allow mach-register (local-name-prefix ""))'),
        (
            '(allow file-write* (subpath "/a"))',
            "file-write* has file-write-setugid as a part",
            '(allow file-write* (subpath "/a")) (deny file-write-setugid)',
        ),
        (
            '(allow file-write* (subpath "/a")) (deny file-write-setugid (subpath "/a/b"))',
            "say (deny file-write-setugid)",
            '(deny file-write-setugid) (allow file-write* (subpath "/a"))',
        ),
        (
            '(allow system-kext* (extension "a")) (deny system-kext-load system-kext-query)',
            "system-kext-unload as a part",
            "(deny system-kext*)",
        ),
    ],
)
def test_forbidden_by_other_names(bad: str, problem: str, good: str) -> None:
    """Nor is it allowed by another name, or as part of something, unless it is taken out of that for good."""
    check(bad, problem, good)


@pytest.mark.parametrize("pattern", findings.SERVICES)
def test_services(pattern: str) -> None:
    """No service that acts for any process that asks can be reached: by name, by prefix or by pattern."""
    name = pattern.replace("*", ".x")
    stem = pattern.removesuffix("*")
    for bad in (
        f'(global-name "{name}")',
        f'(global-name "com.apple.logd" "{name}")',
        f'(local-name "{name}")',
        f'(global-name-prefix "{stem}")',
        f'(global-name-regex #"^{stem}")',
        f'(require-all (global-name "{name}") (extension "a"))',
    ):
        (line,) = said(f"(allow mach-lookup {bad})")
        assert re.search("leads out, to .*: .", line), line
    assert said(f'(deny mach-lookup (global-name "{name}"))') == []


def test_service_is_named() -> None:
    """The problem says which service it is, and what it is for; a prefix that is shorter reaches it as well."""
    (line,) = said('(allow mach-lookup (global-name "com.apple.pasteboard.1"))')
    assert line == (
        "line 3: mach-lookup of 'com.apple.pasteboard.1' leads out, to com.apple.pasteboard*: "
        "the pasteboard: what the user copies, and pastes elsewhere"
    )
    assert said('(allow mach-lookup (global-name-prefix "com.apple.pasteb"))')
    assert said('(allow mach-lookup (global-name-prefix "com.apple.pasteboard.1"))')
    assert said('(allow mach-lookup (global-name-regex #"board"))')
    assert said('(allow mach-lookup (global-name "com.apple.paste"))') == []


@pytest.mark.parametrize(
    "service",
    ["com.apple.trustd.agent", "com.apple.system.opendirectoryd.libinfo", "com.apple.logd", "com.apple.FSEvents"],
)
def test_harmless_services(service: str) -> None:
    """Services that only answer may be reached."""
    assert said(f'(allow mach-lookup (global-name "{service}"))') == []
    assert said(f'(allow mach-lookup (global-name-prefix "{service}."))') == []


UNDONE = [
    # The permission before the denial, and after it: that makes no difference.
    ('(allow file-write-data (subpath "/a"))\n(deny file-write* (subpath "/a/b"))', True),
    ('(deny file-write* (subpath "/a/b"))\n(allow file-write-data (subpath "/a"))', True),
    ('(allow file-write-data (subpath "/a"))\n(deny file-write* (literal "/a"))', True),
    ('(allow file-write-data (literal "/a"))\n(deny file-write* (literal "/a"))', True),
    ('(allow file-write-data (subpath "/a/b"))\n(deny file-write* (subpath "/a"))', False),
    ('(allow file-write-data (subpath "/ab"))\n(deny file-write* (subpath "/a"))', False),
    ('(allow file-write-data (prefix "/a"))\n(deny file-write* (subpath "/a/b"))', True),
    ('(allow file-write-data (regex #"^/a/"))\n(deny file-write* (subpath "/a/b"))', True),
    ('(allow file-write-data)\n(deny file-write* (subpath "/a"))', True),
    ('(allow file-read-metadata (vnode-type DIRECTORY))\n(deny file-read* (subpath "/a"))', True),
    ('(allow file-read-metadata (path-ancestors "/a/b/c"))\n(deny file-read* (subpath "/a/b"))', False),
    # On the same operation, or a wider one, the order of rules decides, and that isn't judged here.
    ('(allow file-write* (subpath "/a"))\n(deny file-write* (subpath "/a/b"))', False),
    ('(allow file-write* (subpath "/a"))\n(deny file-write-data (subpath "/a/b"))', False),
    ('(allow process-exec (subpath "/a"))\n(deny process-exec* (subpath "/a/b"))', False),
    # What else is in the filter.
    (
        '(allow file-write-data (require-all (subpath "/a") (vnode-type TTY)))\n(deny file-write* (subpath "/a/b"))',
        True,
    ),
    (
        '(allow file-write-data (require-all (subpath "/a") (require-not (subpath "/a/b"))))\n'
        '(deny file-write* (subpath "/a/b"))',
        False,
    ),
    ('(allow file-write-data (require-any (literal "/x") (subpath "/a")))\n(deny file-write* (subpath "/a/b"))', True),
    (
        '(allow file-write-data (subpath "/a"))\n(deny file-write* (require-all (subpath "/a/b") (vnode-type TTY)))',
        True,
    ),
    # Denials by a pattern, about a directory.
    ('(allow file-write-data (subpath "/a"))\n(deny file-write* (regex #"^/a/[eE](/.*)?$"))', True),
    ('(allow file-write-data (subpath "/b"))\n(deny file-write* (regex #"^/a/[eE](/.*)?$"))', False),
    # A later denial of just that part helps, an earlier one doesn't, nor one of something else.
    ('(allow file-write-data (subpath "/a"))\n(deny file-write* file-write-data (subpath "/a/b"))', False),
    ('(deny file-write* file-write-data (subpath "/a/b"))\n(allow file-write-data (subpath "/a"))', True),
    (
        '(allow file-write-data (subpath "/a"))\n(deny file-write* (subpath "/a/b"))\n(deny file-write-data (subpath "/a"))',
        False,
    ),
    (
        '(allow file-write-data (subpath "/a"))\n(deny file-write* (subpath "/a/b"))\n(deny file-write-data (literal "/c"))',
        True,
    ),
]


@pytest.mark.parametrize(("text", "is_undone"), UNDONE)
def test_undone_denials(text: str, is_undone: bool) -> None:
    """It is said where a permission on a part of a denial's operation comes before it, on the same path."""
    text += "\n(deny file-write-setugid)"
    found = [line for line in said(text) if "is undone by" in line]
    assert bool(found) is is_undone, said(text)


def test_undone_by_params() -> None:
    """Parameters count by their values."""
    text = '(allow file-write-data (subpath (param "A")))\n(deny file-write* (subpath (param "B")))'
    (line,) = said(text, {"A": "/a", "B": "/a/b"})
    assert line == "line 4: (deny file-write* ...) of /a/b is undone by (allow file-write-data ...) on line 3"
    assert said(text, {"A": "/a", "B": "/b"}) == []
    assert said(text, {"A": "/a", "B": None}) == []


def test_number_of_filters() -> None:
    """Filters are counted with those in others, and each string of one."""
    most = " ".join(f'"/{number}"' for number in range(MOST_FILTERS - 1))
    assert said(f'(allow file-read* (require-any (literal "/a") (literal {most})))') == []
    (line,) = said(f'(allow file-read* (literal "/a") (require-any (literal "/a") (literal {most})))')
    assert f"{MOST_FILTERS + 1} filters" in line


def test_all_is_said() -> None:
    """Every problem is said, in the order of lines."""
    text = '(allow lsopen)\n(allow file-read* (subpath "/tmp/a" "b"))\n(allow mach-lookup)'
    found = said(text)
    assert [line.split(":")[0] for line in found] == ["line 3", "line 4", "line 4", "line 5"]


def test_services_are_operations_of_their_own() -> None:
    """The tables name operations that exist, without their aliases, so that no row is void."""
    for operation in (*findings.FORBIDDEN, *findings.TOO_WIDE):
        assert vocabulary.levels(operation)[0] == operation
