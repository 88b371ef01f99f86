"""Configuration: what each key means, which table is read, what a path is, and what the error says of a wrong key."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from nsbox_pure.configs import EVERYTHING, directories, of, problems

from nsbox import Limits, PathRule, Policy, PolicyError
from nsbox._base.frozen import fields
from nsbox._config.formats import read
from nsbox._config.keys import KEYS, LIMITS, RULES, default
from nsbox._config.load import Config, ConfigError, Problem, loads
from nsbox._config.paths import expanded
from nsbox._paths.resolution import links_on
from nsbox._policy.losses import LEVELS, LOSSES
from nsbox._policy.policy import _MAX_ID, _OPTIONAL


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return directories(tmp_path)


# ---- what it means


def test_every_key(base: Path) -> None:
    """Each key sets the field of Policy that it is for, and nothing else."""
    (base / "work/secret").mkdir()  # which strict asks for
    config = loads(EVERYTHING, "toml", base=base)
    assert (config.mode, config.path) == ("disabled", None)
    notes = f"{base}/work/inner"
    assert config.policy == Policy.workspace(
        base / "work",
        workdir=notes,
        read=[base / "data"],
        write=[base / "more", notes],
        deny=[base / "work/secret"],
        strict=True,
        devices=["/dev/kvm"],
        network="host",
        pass_env=["GH_TOKEN"],
        inherit_env=True,
        tools_bin=base / "tools",
        shell_path="/bin/dash",
        home="/tmp",
        tmp_size=64 << 20,
        protected=["nsbox.toml"],
        symlinks="beneath",
        require="isolated",
        backend="namespaces",
        degrade=["limits.cpus"],
        seatbelt=["tls"],
        seccomp="hardened",
        landlock=True,
        unshare={"uts", "time"},
        ids="auto",
        uid=5,
        gid=0,
        hostname="box",
        new_session=False,
        kill_on_exit=False,
        env={"A": "1", "B": ""},
        limits=Limits(
            memory=1 << 30,
            processes=10,
            cpu_seconds=60,
            file_size=1000,
            open_files=64,
            core_size=0,
            locked_memory=8 << 20,
            message_queues=0,
            pending_signals=300,
            total_memory=2 << 30,
            cpus=1,
        ),
        paths=[PathRule(name="notes", root=notes, suffixes=(".md",), max_file_bytes=1 << 20)],
    )


def test_every_key_is_tried(base: Path) -> None:
    """The test above has all keys but those that say the same in other words."""
    tree: Any = read(EVERYTHING, "toml")[0]
    assert {key.name for key in KEYS} - set(tree) == {"require_os_sandbox", "nested"}
    assert set(tree["limits"]) == {key.name for key in LIMITS}
    assert set(tree["paths"]["notes"]) == {key.name for key in RULES}


def test_table_covers_policy() -> None:
    """Each wish of a workspace policy has a key: a new field can't be forgotten. What is named twice is the same."""
    wishes = {f.name for f in fields(Policy) if f.init} - {
        "base",
        "ops",
        "details",
        "links",
    }  # the last follow from names
    assert wishes == {key.field for key in KEYS if key.field}
    assert tuple(f.name for f in fields(Limits)) == tuple(key.name for key in LIMITS)
    assert {f.name for f in fields(PathRule)} - {"name"} == {key.name for key in RULES} - {"mode"}
    by_name = {key.name: key for key in KEYS}
    assert set(by_name["unshare"].words) == _OPTIONAL
    assert set(by_name["degrade"].words) == {*LEVELS, *LOSSES}
    assert by_name["uid"].most == by_name["gid"].most == _MAX_ID
    assert len(by_name) == len(KEYS)


def test_defaults_are_true(base: Path) -> None:
    """What the table says a key is by default holds in a file without it: a file that says so is the same policy."""
    for key in KEYS:
        if key.kind not in ("map", "table", "tables") and default(key) is not None:
            said = json.dumps({"workspace": "work", key.name: default(key)})
            assert of(said, base, "json") == of('{"workspace": "work"}', base, "json"), key.name
    config = loads("", "toml", base=base)
    assert config == Config(policy=Policy(base="workspace", workdir="/", seccomp="default"))
    assert of('workspace = "work"', base) == Policy.workspace(base / "work")


@pytest.mark.parametrize(
    ("said", "meant"),
    [('"none"', "none"), ('"host"', "host"), ('"full"', "host"), ("true", "host"), ("false", "none")],
)
def test_network(said: str, meant: str, base: Path) -> None:
    """Three words and two truth values."""
    assert of(f"network = {said}", base).network == meant


@pytest.mark.parametrize("said", ["0", "1", "1.0", '"yes"', '"true"', '"Host"', '""', '"restricted"'])
def test_network_is_never_guessed(said: str, base: Path) -> None:
    """Nothing else is a network, not even what equals True in Python."""
    (told,) = problems(f"network = {said}", base)
    assert told.startswith("1: network: ") and "must be one of 'none', 'host', 'full', 'public', false, true" in told
    assert "or a list of entries such as ['api.example:443']" in told


def test_require_os_sandbox(base: Path) -> None:
    """True: the kernel enforces what is said of files and the network; False: not necessarily; not beside require."""
    assert of("require_os_sandbox = true", base).require == "filesystem" == of("", base).require
    assert of("require_os_sandbox = false", base).require == "nothing"
    assert problems('require_os_sandbox = true\nrequire = "nothing"', base) == [
        "1: require_os_sandbox: doesn't go with require, which says more"
    ]


def test_paths(base: Path) -> None:
    """Each is readable, or writable where it says so, and a rule of its name."""
    text = '[paths.a]\nroot="work"\nmode="rw"\n[paths."b c"]\nroot="data"\n'
    policy = of(text, base)
    assert (policy.write, policy.read) == ((f"{base}/work",), (f"{base}/data",))
    assert [(rule.name, rule.root) for rule in policy.paths] == [("a", f"{base}/work"), ("b c", f"{base}/data")]
    assert (policy.workdir, policy.home) == (str(base), "private")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('workspace="work"\n[paths.a]\nroot="work"', ["2: paths.a.mode: is 'ro', but something else makes {}/work writable"]),
        ('[paths.a]\nroot="work"\n[paths.b]\nroot="work"', ["1: paths: two rules have the same root"]),
        ('[paths.a]\nmode="rw"', ["1: paths.a: has no root, which says where it is"]),
        ('[paths.a]\nroot="work"\nsuffixes=["md"]', ["3: paths.a.suffixes: 'md' isn't a suffix, such as '.md'"]),
        ('[paths.a]\nroot="work"\nmax_file_bytes=0', ["3: paths.a.max_file_bytes: 0 is out of range, must be above 0"]),
        ('[paths]\na="work"', ["2: paths.a: is a text, must be a table"]),
        ('[paths.""]\nroot="work"', ['1: paths."": is empty']),
        ('workspace="work"\ntools_bin="work"', ["2: tools_bin: {}/work is in write, where commands could plant programs; it belongs in read"]),
        ('workspace="nowhere"', ["1: workspace: {}/nowhere: No such file or directory"]),
        ('workspace="/"', ["1: workspace: '/' is the whole file system, which can't be a workspace"]),
        ('workspace="file"\ntools_bin="file"', ["1: workspace: {}/file isn't a directory", "2: tools_bin: {}/file isn't a directory"]),
        ('readable=["data", "nowhere"]', ["1: readable[1]: {}/nowhere: No such file or directory"]),
        ('readable="data"', ["1: readable: is a text, must be a list of texts, such as ['data']"]),
        ('readable=[1]', ["1: readable[0]: is a number, must be a text; quote it"]),
        ('readable=["data"]\nwritable_paths=["data"]', ["1: readable: {}/data is in write too"]),
        ('workspace="work"\ndeny=["."]', ["2: deny: {} hides {}/work, which write allows"]),
        ('workspace="work"\ndeny=["a\\u0000b"]', ["2: deny[0]: 'a\\x00b' has a NUL byte"]),
        ('readable=[""]', ["1: readable[0]: is empty"]),
        ("env.A = 1", ["1: env.A: is a number, must be a text; quote it"]),
        ('env."A=B" = "1"', ["1: env: 'A=B' has a '=', which no variable's name can have"]),
        ('passthrough_env=["A=B"]', ["1: passthrough_env: is a sequence of names; values go into env"]),
        ('hostname="' + "x" * 65 + '"', ["1: hostname: '" + "x" * 65 + "' is longer than 64 bytes"]),
        ("uid=-1", ["1: uid: -1 is out of range, must be 0 to 4294967294"]),
        ("uid=true", ["1: uid: is true, must be a whole number"]),
        ("uid=1.0", ["1: uid: is a fraction, must be a whole number"]),
        ("landlock=1", ["1: landlock: is a number, must be true or false"]),
        ('seccomp="of"', ["1: seccomp: 'of' is unknown, must be one of 'default', 'hardened', 'off'; did you mean off?"]),
        ('degrade=["limits.cpu"]', [...]),
        ("tmp_size=0", ["1: tmp_size: 0 is out of range, must be above 0"]),
        ('tmp_size="64MB"', ["1: tmp_size: '64MB' isn't a size, such as 1048576, '512K', '64M' or '2G'"]),
        ("tmp_size=1.5", ["1: tmp_size: is a fraction, must be a number of bytes, or a text such as '64M'"]),
        ("limits=5", ["1: limits: is a number, must be a table"]),
        ("limits.processes=0\nlimits.cpus=nan", ["1: limits.processes: 0 is out of range, must be 1 to 9223372036854775807", "2: limits.cpus: nan isn't a number of processors between 0.01 and 1000000"]),
        ("limits.cpus=" + "9" * 400, [...]),
        ('mode="off"', ["1: mode: 'off' is unknown, must be one of 'enabled', 'disabled'"]),
        ("hostname=2020-01-01", ["1: hostname: is a date, must be a text"]),
        ("kill_on_exit=false\nnested=true", ["1: kill_on_exit: False doesn't go with nested=True"]),
        ('backend="landlock"\nrequire="isolated"', ["1: backend: 'landlock' is less than require='isolated'; say require='filesystem'"]),
    ],
)  # fmt: skip
def test_wrong_values(text: str, told: list[Any], base: Path) -> None:
    """The line, the key, what is wrong, and what is allowed."""
    (base / "file").touch()
    found = problems(text, base)
    if told != [...]:
        assert found == [line.replace("{}", str(base)) for line in told]


def test_all_is_told(base: Path) -> None:
    """The error lists everything that is wrong, in the order of the lines; for a misspelled key, also what may be meant."""
    text = """
network = "nine"
[sandbox]
netwrok = "none"
read = ["data"]
zzz = 1
workspace = "nowhere"
[sandbox.limits]
memry = 1
memory = "lots"
[sandbox.paths.a]
roof = "work"
"""
    assert problems(text, base, section="sandbox") == [
        "4: sandbox.netwrok: isn't a key here; did you mean network?",
        "5: sandbox.read: isn't a key here; did you mean readable?",
        f"6: sandbox.zzz: isn't a key here; there are {', '.join(key.name for key in KEYS)}",
        f"7: sandbox.workspace: {base}/nowhere: No such file or directory",
        "9: sandbox.limits.memry: isn't a key here; did you mean memory?",
        "10: sandbox.limits.memory: 'lots' isn't a size, such as 1048576, '512K', '64M' or '2G'",
        "11: sandbox.paths.a: has no root, which says where it is",
        "12: sandbox.paths.a.roof: isn't a key here; did you mean root?",
    ]


# ---- which table


def test_section(base: Path) -> None:
    """By default the table `sandbox` where there is one, else the whole; or any other by its name."""
    assert of("[sandbox]\nuid = 1\n[other]\nuid = 2", base).uid == 1
    assert of("uid = 3", base).uid == 3
    assert of("uid = 3\n", base, section="").uid == 3
    assert of("[tool.nsbox]\nuid = 4\n[project]\nname = 'x'", base, section="tool.nsbox").uid == 4
    assert of("[agents.sandbox]\nuid = 5\n[sandbox]\nuid = 6", base, section="agents.sandbox").uid == 5


def test_both_is_an_error(base: Path) -> None:
    """A key beside the table would be passed over in silence: it is an error, unless the section is said."""
    text = "network = 'none'\n[sandbox]\nuid = 1"
    told = "1: network: stands beside the table sandbox, which is read: move it there, or name a section"
    assert problems(text, base) == [told]
    assert of(text, base, section="sandbox").uid == 1
    assert problems(text, base, section="") == [
        "2: sandbox: isn't a key here; there are " + ", ".join(key.name for key in KEYS)
    ]


AGENTS = (
    '[[agents]]\nid = "main"\n[agents.sandbox]\nuid = 1\n[[agents]]\nid = "other"\n[agents.sandbox]\nuid = 2\ngif = 3\n'
)


def test_arrays_of_tables(base: Path) -> None:
    """One of them by its id, its name or its index; the only one by nothing."""
    assert of(AGENTS, base, section="agents[main].sandbox").uid == 1
    assert of(AGENTS, base, section="agents[0].sandbox").uid == 1
    assert problems(AGENTS, base, section="agents[other].sandbox")[0].startswith("9: agents[1].sandbox.gif: ")
    only = AGENTS[: AGENTS.index("[[agents]]", 3)]
    assert of(only, base, section="agents.sandbox").uid == 1
    assert of('[[a]]\nuid = 7\n[[a]]\nname = "x"\nuid = 8', base, section="a[0]").uid == 7
    for section, told in (
        ("agents.sandbox", "1: agents: are 2 tables: say agents[ID] with one of main, other"),
        ("agents[none].sandbox", "1: agents: has no table none"),
        ("agents[2].sandbox", "1: agents: has no table 2"),
        ("agents[main].box", "1: agents[0].box: is the section to read, and isn't there"),
        ("agents[main].id.x", "2: agents[0].id.x: is the section to read, and isn't there"),
        ("agents[main].id", "2: agents[0].id: is a text, must be a table"),
        ("nothing", "nothing: is the section to read, and isn't there"),
    ):
        assert problems(AGENTS, base, section=section) == [told]
    for section in ("a..b", "a[", "a[]", "[a]", ".", "a]b["):
        with pytest.raises(PolicyError, match="section"):
            of(AGENTS, base, section=section)


def test_workspace_of_the_caller(base: Path) -> None:
    """The caller's is that of a file that names none; a file that names one keeps it."""
    assert of("", base, workspace=base / "work") == Policy.workspace(base / "work")
    assert of('workspace = "data"', base, workspace=base / "work") == Policy.workspace(base / "data")
    with pytest.raises(PolicyError, match=r"^workspace: .*nowhere: No such file"):
        of("", base, workspace=base / "nowhere")


# ---- paths


def test_expansion(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """~ and ${NAME} in paths, and $$ for a dollar; what a variable holds isn't looked at again."""
    monkeypatch.setenv("HOME", str(base))
    monkeypatch.setenv("PLACE", "work/inner")
    monkeypatch.setenv("TRICK", "$$${HOME}~")
    (base / "a$b").mkdir()
    (base / "~c").mkdir()
    text = 'readable = ["~/work", "${PLACE}", "a$$b", "./~c", "~"]\ndeny = ["${TRICK}"]'
    policy = of(text, base)
    assert policy.read == tuple(f"{base}{name}" for name in ("/work", "/work/inner", "/a$b", "/~c", ""))
    assert policy.deny == (f"{base}/$$${{HOME}}~",)
    assert of('env.A = "~ ${PLACE} $$"', base).env == (("A", "~ ${PLACE} $$"),)


@pytest.mark.parametrize(
    "text", ["$PLACE", "${PLACE", "a$", "${}", "${NOT_THERE}", "${EMPTY}/etc", "~root", "~x/y", "$$$"]
)
def test_no_expansion(text: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't there, is empty or is spelled otherwise is an error: half a path could be anything."""
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("PLACE", "work")
    monkeypatch.delenv("NOT_THERE", raising=False)
    (told,) = problems(f'deny = ["{text}"]', base)
    assert told.startswith(f"1: deny[0]: {text!r}: ")


@pytest.mark.parametrize("home", ["", "relative", "."])
def test_home_that_is_none(home: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a HOME that is no absolute path, ~/x isn't /x, nor anything else."""
    monkeypatch.setenv("HOME", home)
    with pytest.raises(PolicyError, match="home directory isn't known"):
        expanded("~/x")
    monkeypatch.setenv("HOME", "/")
    assert (expanded("~/x"), expanded("~")) == ("/x", "/")


def test_links_are_resolved(base: Path) -> None:
    """Paths are what they lead to, since a mask on a link's name hides nothing; .. counts after links."""
    os.symlink("work/inner", base / "link")
    policy = of('readable = ["link", "link/.."]\ndeny = ["data/../link/missing"]', base)
    assert policy.read == (f"{base}/work/inner", f"{base}/work")
    assert policy.deny == (f"{base}/work/inner/missing",)


def test_links_on(base: Path) -> None:
    """All links on a way are found, those of links too; a loop ends."""
    os.symlink("work", base / "one")
    os.symlink(f"{base}/one/../one/inner", base / "two")
    os.symlink("loop", base / "loop")
    assert links_on(f"{base}/two/x") == (f"{base}/work/inner/x", [f"{base}/two", f"{base}/one", f"{base}/one"])
    assert links_on(f"{base}/work/./inner") == (f"{base}/work/inner", [])
    assert len(links_on(f"{base}/loop")[1]) == 41


# ---- errors as values


def test_error_is_a_policy_error(base: Path) -> None:
    """It is a ValueError of nsbox's, names the first key, keeps all, and survives pickling."""
    with pytest.raises(PolicyError) as caught:
        loads("uid = -1\ngif = 1", "toml", base=base)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, ConfigError) and isinstance(error, ValueError)
    assert (error.field, str(error)) == ("uid", str(caught.value))
    assert [(p.key, p.line) for p in error.problems] == [("uid", 1), ("gif", 2)]


def test_errors_are_lines_without_control_characters(base: Path) -> None:
    """Names from the file can't forge a second line or talk to a terminal."""
    found = problems('"a\\nfake.toml:1: all: is well\\u001b[2J" = 1\nseccomp = "x\\ny"', base)
    assert len(found) == 2 and all(line.isprintable() for line in found)
    assert str(ConfigError("a\nb\udc80.toml", [Problem("", "c\rd")])) == "a\\nb\\udc80.toml: c\\rd"
