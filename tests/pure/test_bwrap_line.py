"""The command line of bubblewrap: what each option asks for, in which order, and what is said about a mistake.

Nothing here runs bwrap; the parser is in C, and reads real descriptors. tests/differential compares the messages with
those of the real one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nsbox_pure import calm, label
from nsbox_pure.bwrap import COMMAND, HELD, MISTAKES, STRAY_LAYER, UNDECODABLE, asked, outcome, read, refusal, words

from nsbox import (
    Bind,
    BindData,
    BindFd,
    Chmod,
    Dev,
    DevBind,
    Dir,
    File,
    Hostname,
    Mqueue,
    Overlay,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    Symlink,
    Tmpfs,
    TmpOverlay,
)
from nsbox._base.frozen import replace
from nsbox._bwrap.line import Line, Refused
from nsbox._bwrap.options import options
from nsbox._core.abi import constants as c

HERE = os.getcwd()

# ---- each option alone

OPTIONS = options()
BY_NAME = {option.name: option for option in OPTIONS}
OPS = [
    ("--bind a /b", Bind(f"{HERE}/a", "/b")),
    ("--bind-try /a b", Bind("/a", "/b", optional=True)),
    ("--ro-bind /a ///b/c/", RoBind("/a", "/b/c")),
    ("--ro-bind-try /a /b", RoBind("/a", "/b", optional=True)),
    ("--dev-bind /dev dev", DevBind("/dev", "/dev")),
    ("--dev-bind-try /dev /", DevBind("/dev", "/", optional=True)),
    ("--bind-fd 7 /b", BindFd(7, "/b")),
    ("--ro-bind-fd 7 /b", BindFd(7, "/b", read_only=True)),
    ("--remount-ro /b", RemountRo("/b")),
    ("--overlay-src a --overlay-src /b --overlay u /w /d", Overlay((f"{HERE}/a", "/b"), "/d", f"{HERE}/u", "/w")),
    ("--overlay-src /a --tmp-overlay d", TmpOverlay(("/a",), "/d")),
    ("--overlay-src /a --overlay-src /b --ro-overlay /d", RoOverlay(("/a", "/b"), "/d")),
    ("--proc /proc", Proc("/proc")),
    ("--dev /dev", Dev("/dev")),
    ("--tmpfs /t", Tmpfs("/t")),
    ("--mqueue /q", Mqueue("/q")),
    ("--dir /d", Dir("/d")),
    ("--file 5 /f", File("/f", 5, 0o666)),
    ("--bind-data 5 /f", BindData("/f", 5, 0o600)),
    ("--ro-bind-data 5 /f", BindData("/f", 5, 0o600, read_only=True)),
    ("--symlink ../t /l", Symlink("../t", "/l")),
    ("--chmod 01777 t", Chmod("/t", 0o1777)),
    ("--unshare-uts --hostname box", Hostname("box")),
    ("--perms 1777 --tmpfs /t", Tmpfs("/t", None, 0o1777)),
    ("--perms 0 --dir /d", Dir("/d", 0)),
    ("--perms 00644 --file 5 /f", File("/f", 5, 0o644)),
    ("--perms +600 --bind-data 5 /f", BindData("/f", 5, 0o600)),
    ("--perms 400 --ro-bind-data 5 /f", BindData("/f", 5, 0o400, read_only=True)),
    ("--size 4096 --tmpfs /t", Tmpfs("/t", 4096)),
    ("--size 0x1000 --perms 700 --tmpfs /t", Tmpfs("/t", 4096, 0o700)),
    ("--perms 700 --size 010000 --tmpfs /t", Tmpfs("/t", 4096, 0o700)),
    (f"--size {2**63 - 1} --tmpfs /t", Tmpfs("/t", 2**63 - 1)),
]

_NEW = frozenset
FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("--unshare-user", {"unshare": _NEW({"user"})}),
    ("--unshare-user-try", {"attempts": _NEW({"user"})}),
    ("--unshare-ipc --unshare-pid", {"unshare": _NEW({"ipc", "pid"})}),
    ("--unshare-net --unshare-uts", {"unshare": _NEW({"net", "uts"})}),
    ("--unshare-cgroup", {"unshare": _NEW({"cgroup"})}),
    ("--unshare-cgroup-try", {"attempts": _NEW({"cgroup"})}),
    ("--unshare-all", {"unshare": _NEW({"ipc", "pid", "net", "uts"}), "attempts": _NEW({"user", "cgroup"})}),
    ("--unshare-net --share-net", {}),
    ("--share-net --unshare-net", {"unshare": _NEW({"net"})}),
    ("--userns 3 --userns2 4", {"fds": {"--userns": 3, "--userns2": 4}, "named": (3, 4)}),
    ("--pidns 3", {"fds": {"--pidns": 3}, "named": (3,)}),
    ("--uid 0 --gid 5", {"ids": {"--uid": 0, "--gid": 5}}),
    ("--unshare-user --disable-userns", {"unshare": _NEW({"user"}), "flags": _NEW({"--disable-userns"})}),
    ("--assert-userns-disabled", {"flags": _NEW({"--assert-userns-disabled"})}),
    ("--chdir ../x/", {"texts": {"--chdir": "../x/"}}),
    ("--argv0 -sh", {"texts": {"--argv0": "-sh"}}),
    ("--lock-file a --lock-file /b", {"lock_files": ("a", "/b")}),
    ("--sync-fd 10", {"fds": {"--sync-fd": 10}, "named": (10,)}),
    ("--info-fd 10 --json-status-fd 11", {"fds": {"--info-fd": 10, "--json-status-fd": 11}, "named": (10, 11)}),
    ("--block-fd 010", {"fds": {"--block-fd": 10}, "named": (10,)}),
    (
        "--unshare-user --info-fd 1 --userns-block-fd 3",
        {"unshare": _NEW({"user"}), "fds": {"--info-fd": 1, "--userns-block-fd": 3}, "named": (1, 3)},
    ),
    ("--seccomp 3", {"fds": {"--seccomp": 3}, "named": (3,)}),
    ("--exec-label a --file-label b", {"texts": {"--exec-label": "a", "--file-label": "b"}}),
    ("--new-session --die-with-parent", {"flags": _NEW({"--new-session", "--die-with-parent"})}),
    ("--unshare-pid --as-pid-1", {"unshare": _NEW({"pid"}), "flags": _NEW({"--as-pid-1"})}),
    (
        "--cap-drop all --cap-add cap_Chown --cap-add 0x15",
        {"capabilities": (("drop", "ALL"), ("add", "CAP_CHOWN"), ("add", "CAP_SYS_ADMIN"))},
    ),
    ("--setenv A 1 --setenv HOME /x --setenv B =", {"env": {"HOME": "/x", "A": "1", "B": "="}}),
    ("--setenv A 1 --clearenv --setenv B 2", {"env": {"B": "2"}, "flags": _NEW({"--cleared"})}),
    ("--unsetenv HOME --unsetenv GONE", {"env": {}}),
    ("--level-prefix", {"flags": _NEW({"--levels"})}),
    ("--not-a-security-boundary", {}),
]
NOTHING: dict[str, Any] = {
    "command": COMMAND[1:],
    "env": {"HOME": "/h"},
    "unshare": frozenset(),
    "attempts": frozenset(),
    "flags": frozenset(),
} | dict.fromkeys(("ops", "lock_files", "capabilities", "filters", "named", "warnings"), ())
NOTHING |= {"fds": {}, "ids": {}, "texts": {}}


@pytest.mark.parametrize(("line", "op"), OPS)
def test_an_op(line: str, op: object) -> None:
    """An option that changes the file system, with its modifiers, is one op."""
    assert asked(*line.split()).ops == (op,)


@pytest.mark.parametrize(("line", "fields"), FIELDS)
def test_a_field(line: str, fields: dict[str, Any]) -> None:
    """An option that changes no file is the fields that it stands for, and no other."""
    assert asked(*line.split()) == Line(**(NOTHING | fields))


def test_every_option_is_tried() -> None:
    """The two tables above leave no option out, except those that have tests of their own."""
    tried = {word for line, _ in (*OPS, *FIELDS) for word in line.split()}
    assert set(BY_NAME) - tried == {"--help", "--version", "--args", "--add-seccomp-fd"}


# ---- order, repetition, the end of the options


def test_ops_keep_their_order() -> None:
    """Ops come in the order of the command line, whatever stands between them."""
    ops = asked(*words("--dir /a --unshare-all --hostname x --tmpfs /b --share-net --chmod 1 /a --dir /a")).ops
    assert ops == (Dir("/a"), Hostname("x"), Tmpfs("/b"), Chmod("/a", 1), Dir("/a"))


WARNED = [option for option in OPTIONS if option.once]
NEEDS = {"--hostname": ["--unshare-uts"], "--userns-block-fd": ["--unshare-user", "--info-fd", "0"]}


@pytest.mark.parametrize("option", WARNED, ids=lambda option: option.name)
def test_the_last_one_takes_effect(option: Any) -> None:
    """Of options that set one thing the last counts, and each further one is warned of."""
    line = [word for value in "123" for word in (option.name, value)]
    value = read(*NEEDS.get(option.name, []), *line, *COMMAND)
    assert value.warnings == (f"bwrap: Only the last {option.name} option will take effect",) * 2
    if option.name == "--hostname":
        assert value.ops == (Hostname("1"), Hostname("2"), Hostname("3"))
    held = {**value.fds, **value.ids, **value.texts}
    assert str(held[option.name]) == "3"
    if option.name in value.fds:
        assert {*value.named} >= {1, 2, 3}


def test_which_options_warn() -> None:
    """They are those that bubblewrap warns of."""
    single = "chdir uid gid hostname exec-label file-label seccomp userns userns2 pidns"
    fds = "sync-fd block-fd userns-block-fd info-fd json-status-fd"
    assert {option.name[2:] for option in WARNED} == {*single.split(), *fds.split()}


@pytest.mark.parametrize("first", ["sh", "", "x=1", "/bin/sh", UNDECODABLE])
def test_the_command_begins_at_the_first_operand(first: str) -> None:
    """What follows belongs to the command, even if it looks like an option."""
    value = read("--new-session", first, "--as-pid-1", "--", "--help")
    assert value.command == (first, "--as-pid-1", "--", "--help")
    assert value.flags == {"--new-session"}


def test_two_dashes_end_the_options() -> None:
    """They are consumed once; the command may then begin with a dash."""
    assert read("--", "--new-session", "--").command == ("--new-session", "--")


def test_modifiers_before_the_command_are_forgotten() -> None:
    """As by bubblewrap, which looks at them only after an option."""
    assert asked("--perms", "700", "--size", "1").ops == ()


def test_bytes_survive() -> None:
    """Names that are no UTF-8 come out as they went in."""
    word = UNDECODABLE
    value = asked(
        *("--bind", word, word), "--setenv", word, word, "--chdir", word, "--argv0", word, "--lock-file", word
    )
    assert value.ops == (Bind(f"{HERE}/{word}", f"/{word}"),)
    assert (value.env[word], value.texts["--chdir"], value.texts["--argv0"]) == (word, word, word)
    assert value.lock_files == (word,)
    assert read(word).command == (word,)
    assert refusal(f"-{word}") == f"bwrap: Unknown option -{word}"


def test_the_environment_is_a_copy() -> None:
    """The caller's mapping is left alone."""
    environ = {"A": "1"}
    assert asked("--clearenv", environ=environ).env == {}
    assert environ == {"A": "1"}


# ---- sources and destinations


def test_dots_in_a_source_are_the_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ".." after a link goes where the kernel goes; other links are left to the op."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/inner")
    monkeypatch.chdir(tmp_path)
    ops = asked("--bind", "link/..", "/a", "--bind", "link", "/b", "--bind", "./real//inner/.", "/c").ops
    assert ops == (
        Bind(os.path.realpath(tmp_path / "real"), "/a"),
        Bind(f"{tmp_path}/link", "/b"),
        Bind(f"{tmp_path}/real/inner", "/c"),
    )


def test_a_source_that_cant_be_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused in bubblewrap's words; a -try option accepts that it is missing, and no other reason."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for path in ("", "gone/../x"):
        for option in ("--bind", "--ro-bind", "--dev-bind"):
            expected = f"bwrap: Can't find source path {path}: {os.strerror(errno.ENOENT)}"
            assert refusal(option, path, "/", *COMMAND) == expected
            assert asked(f"{option}-try", path, "/").ops == ()
    problem = os.strerror(errno.ELOOP)
    for option in ("--bind", "--bind-try"):
        assert refusal(option, "loop/..", "/", *COMMAND) == f"bwrap: Can't find source path loop/..: {problem}"
    assert refusal("--overlay-src", "", "--tmp-overlay", "/", *COMMAND).startswith("bwrap: Can't find source path : ")


def test_what_an_op_refuses() -> None:
    """A destination with "..", and what no kernel takes, is refused with the option's name."""
    assert refusal("--tmpfs", "/a/../b", *COMMAND) == "bwrap: --tmpfs: '/a/../b' has a '..'"
    assert asked("--bind-try", "/gone/x", "/a").ops == (Bind("/gone/x", "/a", optional=True),)
    assert refusal("--hostname", "x" * 65).startswith("bwrap: --hostname: ")
    assert refusal("--symlink", "", "/l").startswith("bwrap: --symlink: ")
    assert refusal("--dir", "x" * 5000, *COMMAND).startswith("bwrap: --dir: ")
    layers = [word for _ in range(11) for word in ("--overlay-src", "/a")]
    assert refusal(*layers, "--tmp-overlay", "/").startswith("bwrap: --tmp-overlay: ")


@pytest.mark.parametrize("word", ["a\0b", "\ud800"], ids=label)
def test_words_that_cant_be_handed_on(word: str) -> None:
    """They can't come from a real command line, but are refused all the same."""
    for line in (["--chdir", word], ["--setenv", "A", word], [word], ["--", "x", word]):
        assert refusal(*line) == f"bwrap: Invalid argument {word!r}"


# ---- descriptors


def test_args_are_read_where_they_stand() -> None:
    """The options of a file take effect at its place, and its descriptor is the command's business no more."""
    fds = {5: b"--dir\0/b\0--setenv\0A\0\xff\0", 6: b"--dir\0/c"}
    value = asked(*words("--dir /a --args 5 --dir /x --args 6"), fds=fds)
    assert value.ops == (Dir("/a"), Dir("/b"), Dir("/x"), Dir("/c"))
    assert value.env["A"] == os.fsdecode(b"\xff")
    assert value.named == ()


@pytest.mark.parametrize("data", [b"", b"sh\0-c\0x", b"--\0sh", b"\0", b"--\0--new-session\0"])
def test_a_command_in_a_file_is_ignored(data: bytes) -> None:
    """Only options are taken from a file, up to its command."""
    assert asked("--args", "5", fds={5: data}) == asked()
    assert asked("--args", "5", fds={5: b"--new-session\0" + data}) == asked("--new-session")
    assert outcome("--args", "5", fds={5: b"--new-session\0sh"}) == c.BWRAP_NO_COMMAND


def test_modifiers_in_files() -> None:
    """A modifier reaches into a file, but not out of it."""
    assert asked(*words("--perms 700 --args 5"), fds={5: b"--dir\0/d"}).ops == (Dir("/d", 0o700),)
    line = refusal(*words("--args 5 --dir /d"), fds={5: b"--perms\x00700"})
    assert line == "bwrap: --perms must be followed by an option that creates a file"


def test_filters_are_read_at_once_and_in_order() -> None:
    """The contents of several descriptors come in the order of the options."""
    value = asked(*words("--add-seccomp-fd 9 --args 3"), fds={9: b"12345678", 3: b"--add-seccomp-fd\0004", 4: b""})
    assert (value.filters, value.named) == ((b"12345678", b""), ())


def test_args_count() -> None:
    """All words together, those of files and of the command too, are 9000 at most."""
    problem = "bwrap: Exceeded maximum number of arguments 9000"
    many = ["x"] * 9000
    assert read(*many).command == tuple(many)
    assert refusal(*many, "x") == problem
    assert refusal(*many, "x", "--level-prefix") == problem
    data = b"--new-session\0" * 8000
    assert asked("--args", "5", *["--new-session"] * 994, fds={5: data}).flags == {"--new-session"}
    assert refusal("--args", "5", *["--new-session"] * 999, fds={5: data}) == problem


# ---- mistakes

BAD_FD = ["-1", "0a", "", " ", "x", "3 ", "1_0", "0x3", "٣", "-", "+", str(2**31), str(2**32), "9" * 5000]
FD_OPTIONS = [option for option in OPTIONS if "FD" in option.args]


@pytest.mark.parametrize("option", FD_OPTIONS, ids=lambda option: option.name)
def test_bad_descriptors(option: Any) -> None:
    """A descriptor is a decimal number that fits an int, as strtol(3) reads one."""
    rest = ["/d"] * (len(option.args) - 1)
    for text in BAD_FD:
        assert refusal(option.name, text, *rest, *COMMAND) == f"bwrap: Invalid fd: {text}"


@pytest.mark.parametrize("text", [" 7", "+7", "007", "\t\n7"], ids=label)
def test_odd_descriptors(text: str) -> None:
    """What strtol(3) accepts besides is accepted."""
    assert asked("--sync-fd", text).fds == {"--sync-fd": 7}


SHORT = {"--argv0": "one argument", "--chdir": "one argument", "--remount-ro": "one argument"}


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.args], ids=lambda option: option.name)
def test_missing_arguments(option: Any) -> None:
    """An option at the end, or with too few arguments, gets an error that says how many it takes."""
    number = {1: SHORT.get(option.name, "an argument"), 2: "two arguments", 3: "three arguments"}[len(option.args)]
    expected = f"bwrap: {option.name.replace('--ro-bind-fd', '--bind-fd')} takes {number}"
    if option.name == "--overlay-src":
        expected = f"bwrap: {STRAY_LAYER}"
    for number_given in range(len(option.args)):
        assert refusal(option.name, *["1"] * number_given) == expected


@pytest.mark.parametrize(("line", "problem"), MISTAKES)
def test_a_mistake(line: str, problem: str) -> None:
    """It is refused with bubblewrap's line, with a level in front if that was asked for before."""
    assert refusal(*line.split(), fds=HELD) == f"bwrap: {problem}"
    assert refusal("--level-prefix", *line.split(), fds=HELD) == f"<3>bwrap: {problem}"


def test_a_level_counts_from_where_it_stands() -> None:
    """Warnings before --level-prefix have none."""
    said = read(*words("--chdir a --chdir b --level-prefix --chdir c"), *COMMAND).warnings
    assert said == tuple(f"{level}bwrap: Only the last --chdir option will take effect" for level in ("", "<4>"))
    assert refusal("--nonsense", "--level-prefix") == "bwrap: Unknown option --nonsense"


def test_ids_of_others_need_a_user_namespace() -> None:
    """Only root can be without one; its own ids need none."""
    root = {"uid": 0, "gid": 0}
    for option in ("--uid", "--gid"):
        problem = f"bwrap: Specifying {option} requires --unshare-user or --userns"
        assert refusal(option, "1", *COMMAND, **root) == problem
        asked(option, "1")
        asked(option, "0", **root)
        for other in (["--unshare-user"], ["--userns", "3"], ["--unshare-all"]):
            asked(option, "1", *other, **root)


# ---- what is shown


def test_help_and_version_act_where_they_stand() -> None:
    """What comes before them counts, what follows doesn't."""
    for line in (["--help"], ["--new-session", "--help", "--nonsense"]):
        assert outcome(*line) == c.BWRAP_ASKS_HELP
    assert outcome("--perms", "7", "--version", "--help") == c.BWRAP_ASKS_VERSION
    assert refusal("--nonsense", "--help") == "bwrap: Unknown option --nonsense"
    assert read("sh", "--help").command == ("sh", "--help")
    assert refusal("--help") == refusal("--version") == "bwrap: asks for --help or --version"


@pytest.mark.parametrize("line", ["", "--", "--new-session", "--uid 1 --hostname a", "--new-session --"])
def test_no_command(line: str) -> None:
    """Without a command the usage is due, as a mistake; only contradictions come first."""
    assert outcome(*line.split(), uid=0) == c.BWRAP_NO_COMMAND
    assert refusal(*line.split(), uid=0, gid=0) == "bwrap: there is no command"


# ---- any words at all

ANY = st.text(st.characters(exclude_categories=()), max_size=8)
WORDS = st.one_of(
    st.sampled_from(sorted(BY_NAME)),
    st.sampled_from(["--", "-", "", "0", "3", "07777", "-1", "ALL", "CAP_KILL", "/", "a", "../a", "A=b", UNDECODABLE]),
    ANY,
)


@calm
@given(st.lists(WORDS, max_size=12), st.lists(WORDS, max_size=8), st.binary(max_size=20))
@example(["--args", "3"], ["a\0b", "\ud800"], b"")
def test_nothing_else_is_raised(argv: list[str], file: list[str], data: bytes) -> None:
    """Any words, and any contents of files, are asked for or refused; never does anything else happen."""
    contents = "\0".join(file).encode("utf-8", "surrogatepass") + data
    try:
        value = read(*argv, fds={0: contents, 3: data * 8})
    except Refused:
        return
    assert value.command
    assert all(line.endswith(" option will take effect") for line in value.warnings)


UNITS = st.sampled_from(
    [line.split() for line, _ in (*OPS, *FIELDS) if not {"--args", "--argv0"} & {*line.split()}]
    + [line.split() for line, problem in MISTAKES if not line.endswith("x") and problem != STRAY_LAYER]
)


@calm
@given(st.lists(UNITS, max_size=6), st.integers(0, 6), st.integers(0, 6), st.booleans())
def test_a_file_is_as_good_as_the_command_line(units: list[list[str]], start: int, end: int, ended: bool) -> None:
    """Whole options may come from --args wherever they stand, with the same result and the same warnings."""
    outcomes: list[object] = []
    before, inside, after = units[:start], units[start:end], units[max(start, end) :]
    flat = [[word for unit in part for word in unit] for part in (before, inside, after)]
    data = b"".join(os.fsencode(word) + b"\0" for word in flat[1])
    for middle in (flat[1], ["--args", "77"]):
        line = [*flat[0], *middle, *flat[2], *COMMAND]
        try:
            value = read(*line, fds={77: data if ended else data[:-1], 5: b""})
            outcomes.append(replace(value, named=tuple(sorted(value.named))))
        except Refused as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
