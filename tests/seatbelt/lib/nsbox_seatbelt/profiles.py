"""A profile with one of everything that ours have, and made-up ones with nasty strings for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from nsbox_seatbelt.sbpl import Form, String, Symbol, written

GOOD = r"""(version 1)
(deny default)
; comments: ) "and (quotes
(deny file-write-setugid)
(allow process-fork)
(allow signal process-info* mach-priv-task-port (target same-sandbox))
(allow sysctl-read (sysctl-name "hw.ncpu") (sysctl-name-prefix "hw.perflevel"))
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow ipc-posix-shm-read-data (ipc-posix-name-regex #"^/__KMP_[0-9]+$"))
(allow file-read* file-map-executable process-exec* (subpath (param "READ_0")) (subpath (param "READ_1")))
(allow file-read* file-map-executable process-exec* file-write* (subpath (param "WRITE_0")) (subpath (param "TMP")))
(deny file-write* (subpath (param "READ_2")))
(deny file-read* file-map-executable process-exec* file-write* (with no-log)
  (subpath (param "DENY_0"))
  (regex (string-append "^" (regex-quote (param "WRITE_0")) #"/[eE][nN][vV](/.*)?$")))
(deny file-write-unlink file-write-create (literal (param "PIN_0")))
(allow file-read-metadata (path-ancestors (param "READ_0")) (literal "/tmp"))
(allow file-read* file-write-data file-ioctl (require-all (literal "/dev/null") (vnode-type CHARACTER-DEVICE)))
(allow file-ioctl (regex #"^/dev/ttys[0-9]+$"))
(allow network-outbound (remote ip "*:*"))
(allow network-bind (local ip "localhost:8080"))
(allow network-outbound (remote unix-socket (subpath (param "WRITE_0"))))
(allow system-socket (require-all (socket-domain AF_SYSTEM) (socket-protocol 2)))
"""
PARAMS: dict[str, str | None] = {
    "READ_0": "/usr",
    "READ_1": "/System",
    "READ_2": "/Users/me/work/.git",
    "WRITE_0": "/Users/me/work",
    "DENY_0": "/Users/me/work/secrets",
    "PIN_0": "/Users/me/work/a b",
    "TMP": None,
}

# What ends a string, begins a rule, or is special to some reader of them; and any other character of paths.
_NASTY = st.sampled_from(
    ['"', "\\", ")", "(", ";", "#", '#"', "\n", "'", "$", "é", "\udcff", '")(allow default)("', "%s"]
)
texts = st.lists(_NASTY | st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).map("".join)
long_texts = st.builds(lambda text, count: (text or "x") * count, texts, st.integers(20, 60))
values = texts | long_texts
raw_texts = values.map(lambda text: text.replace('"', ""))
strings = st.builds(String, values) | st.builds(String, raw_texts, st.just(True))
KEYS = ("READ_0", "WRITE_0", "A b")
_expressions: st.SearchStrategy[Form] = st.recursive(
    strings | st.sampled_from(KEYS).map(lambda key: (Symbol("param"), String(key))),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: (Symbol("string-append"), *parts))
        | inner.map(lambda part: (Symbol("regex-quote"), part))
    ),
    max_leaves=4,
)
_filters: st.SearchStrategy[Form] = st.recursive(
    st.builds(
        lambda name, parts: (Symbol(name), *parts),
        st.sampled_from(["literal", "subpath", "prefix", "regex"]),
        st.lists(_expressions, min_size=1, max_size=2),
    )
    | st.just((Symbol("vnode-type"), Symbol("CHARACTER-DEVICE"))),
    lambda inner: st.builds(
        lambda name, parts: (Symbol(name), *parts),
        st.sampled_from(["require-all", "require-any"]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)
_rules = st.builds(
    lambda action, operations, filters: (Symbol(action), *map(Symbol, operations), *filters),
    st.sampled_from(["allow", "deny"]),
    st.lists(st.sampled_from(["file-read*", "file-write*", "file-read-data"]), min_size=1, max_size=2, unique=True),
    st.lists(_filters, max_size=2),
)
profiles = st.lists(_rules, min_size=1, max_size=4).map(lambda found: "\n".join(map(written, found)) + "\n")
parameters = st.fixed_dictionaries({key: values for key in KEYS})
