"""Configuration that is written: a policy and back, what no file can say, and the file to begin with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nsbox_pure.configs import FORMATS, calm, check_schema, directories, needs, of

from nsbox import Filter, Limits, PathRule, Policy, PolicyError
from nsbox._cli.config import starter
from nsbox._config import formats
from nsbox._config.formats import read, toml_text
from nsbox._config.keys import KEYS
from nsbox._config.load import Config, dump, dumps, load, loads
from nsbox._policy.losses import LOSSES
from nsbox._policy.policy import _MAX_ID, _OPTIONAL


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return directories(tmp_path)


# ---- and back


def existing(base: Path) -> Any:
    names = ("work", "work/inner", "data", "more", "tools", "a$b", "~tilde", "sp ace\n", "ünï", ".")
    for name in names:
        (base / name).mkdir(exist_ok=True)
    return st.sampled_from([os.path.realpath(base / name) for name in names] + ["/usr", "/srv"])


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0=/"), min_size=1, max_size=6)
sizes = st.none() | st.integers(1, 2**63 - 1) | st.integers(1, 1000).map(lambda n: n << 20)
counts = st.none() | st.integers(1, 2**63 - 1)
wishes = st.fixed_dictionaries(
    {},
    optional={
        "network": st.sampled_from(["none", "host"]),
        "unshare": st.frozensets(st.sampled_from(sorted(_OPTIONAL))).map(lambda names: names | {"uts"}),
        "tmp_size": sizes,
        "limits": st.builds(
            Limits,
            memory=sizes,
            processes=counts,
            core_size=st.none() | st.integers(0, 9),
            total_memory=sizes,
            cpus=st.none() | st.floats(0.01, 1e6),
        ),
        "ids": st.sampled_from(["single", "full", "auto"]),
        "uid": st.none() | st.integers(0, _MAX_ID),
        "gid": st.none() | st.integers(0, _MAX_ID),
        "hostname": st.none() | names,
        "env": st.dictionaries(names, texts, max_size=3),
        "pass_env": st.lists(names, max_size=3),
        "protected": st.lists(names, max_size=3),
        "degrade": st.frozensets(st.sampled_from(sorted(LOSSES)), max_size=3),
        "require": st.sampled_from(["isolated", "filesystem", "nothing"]),
        "seccomp": st.sampled_from(["default", "hardened", "off"]),
        "symlinks": st.sampled_from(["refuse", "beneath"]),
        **dict.fromkeys(("inherit_env", "new_session", "landlock", "nested", "kill_on_exit"), st.booleans()),
    },
)


@st.composite
def policies(draw: Any, base: Path) -> Policy:
    """Any workspace policy whose paths are there and are no links."""
    paths = existing(base)
    chosen = draw(st.lists(paths, unique=True, max_size=5))
    write = chosen[: draw(st.integers(0, len(chosen)))]
    read = chosen[len(write) :]
    rules = [
        PathRule(
            name=draw(names) + str(i),
            root=root,
            suffixes=tuple(draw(st.lists(st.sampled_from([".md", ".tar.gz"]), max_size=2))),
            max_file_bytes=draw(sizes),
        )
        for i, root in enumerate(draw(st.lists(st.sampled_from(chosen), unique=True)) if chosen else [])
    ]
    places = st.sampled_from([*chosen, "/", str(base), f"{base}/new"])
    fields = draw(wishes) | {
        "workdir": draw(places),
        "home": draw(st.sampled_from([None, "private", "private:x", "workspace", "tmp"]) | places),
        "paths": rules,
        "shell_path": draw(st.none() | places),
    }
    if read and draw(st.booleans()):
        fields["tools_bin"] = draw(st.sampled_from(read))
        assume(os.path.isdir(fields["tools_bin"]))
    try:
        return Policy(base="workspace", write=write, read=read, deny=draw(st.lists(paths, max_size=2)), **fields)
    except PolicyError:
        assume(False)
        raise


@pytest.mark.parametrize("format", FORMATS)
@calm
@given(data=st.data())
def test_there_and_back(format: str, base: Path, data: st.DataObject) -> None:
    """What is written for a policy reads back as that policy, with relative paths and without, and fits the schema."""
    policy = data.draw(policies(base))
    mode = data.draw(st.sampled_from(["enabled", "disabled"]))
    for beside in (base, base / "work", None):
        text = dumps(policy, needs(format), mode=mode, base=beside)
        assert loads(text, format, base=beside or "/", section="") == Config(policy=policy, mode=mode)
        check_schema(read(text, format)[0])


def test_what_is_written(base: Path) -> None:
    """Only what differs from the default, paths below the directory relative, sizes as people write them."""
    rule = PathRule(name="notes", root=f"{base}/work/inner", suffixes=(".md",), max_file_bytes=1 << 20)
    policy = Policy.workspace(
        base / "work",
        write=[base / "work/inner"],
        read=[base / "data", "/usr"],
        paths=[rule],
        env={"A.B": 'x"\\\n\x7f'},
        limits=Limits(memory="2G", cpus=1.5),
        tools_bin=base / "tools",
    )
    assert (
        dumps(policy, "toml", base=base)
        == """\
mode = "enabled"
workspace = "work"
readable = ["data", "/usr"]
network = "none"
tools_bin = "tools"

[env]
"A.B" = "x\\"\\\\\\n\\U0000007f"

[limits]
memory = "2G"
cpus = 1.5

[paths.notes]
mode = "rw"
root = "work/inner"
suffixes = [".md"]
max_file_bytes = "1M"
"""
    )


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Policy.host(), "base"),
        (Policy.layers(), "base"),
        (Policy(base="workspace", workdir="/", seccomp=Filter()), "seccomp"),
        (Policy(base="workspace"), "workdir"),
    ],
)
def test_what_no_file_can_say(policy: Policy, field: str) -> None:
    """It is an error, not a file that says less."""
    with pytest.raises(PolicyError) as caught:
        dumps(policy, "json")
    assert caught.value.field == field
    for wrong, error in (({"mode": "off"}, PolicyError), ({"policy": None}, TypeError)):
        with pytest.raises(error):
            dumps(**({"policy": Policy.workspace("/tmp"), "format": "json"} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FORMATS)
def test_strange_texts(format: str, base: Path) -> None:
    """Other ends of lines, marks, quotes and what looks like something else come back as they are."""
    texts = (
        "\x85",
        "\u2028",
        "\ufeff",
        "\r\n",
        "a\n\nb ",
        " a",
        "'",
        '"',
        "no",
        "1",
        "~",
        "<<",
        "# a",
        "{}",
        "\x7f",
        "\U0001f600",
    )
    policy = Policy.workspace(base / "work", env={text: text for text in texts}, pass_env=texts)
    assert of(dumps(policy, needs(format), base=base), base, format) == policy


def test_undecodable_paths(base: Path) -> None:
    """JSON and YAML have an escape for bytes that are no text; TOML has none, and says so."""
    name = os.fsdecode(os.fsencode(base) + b"/\xff")
    os.mkdir(name)
    policy = Policy.workspace(base / "work", read=[name])
    assert of(dumps(policy, "json", base=base), base, "json") == policy
    assert of(dumps(policy, needs("yaml"), base=base), base, "yaml") == policy
    with pytest.raises(PolicyError, match="TOML can't express"):
        dumps(policy, "toml", base=base)


@calm
@given(st.text(st.characters(codec="utf-8")))
def test_toml_texts(text: str) -> None:
    """Any text survives TOML, as a value and as a key."""
    said: Any = read(f"{toml_text(text)} = {toml_text(text)}", "toml")[0]
    assert said == {text: text}


# ---- the starter


@pytest.fixture
def starting(base: Path) -> Iterator[Path]:
    for name in ("tools/bin", "documents"):
        (base / name).mkdir()
    yield base


@pytest.mark.parametrize("format", FORMATS)
def test_starter(format: str, starting: Path) -> None:
    """A file to begin with is the default policy."""
    assert loads(starter(needs(format), "."), format, base=starting) == Config(policy=Policy.workspace(starting))


@pytest.mark.parametrize("format", ["toml", "yaml"])
def test_starter_uncommented(format: str, starting: Path) -> None:
    """All that is a comment there is right when it is none, and every key is there."""
    pairs = " = " if format == "toml" else ":"
    known = {key.name for row in KEYS for key in (row, *row.keys)} | {"NAME", "documents"}
    lines = []
    for line in starter(needs(format), ".").split("\n"):
        said = line.removeprefix("# ")
        is_key = said.strip().split(pairs)[0] in known or said.startswith("[")
        lines.append(said if is_key and not said.startswith("disabled:") else line)
    config = loads("\n".join(lines), format, base=starting)
    assert config.policy.uid == 1000 and config.policy.limits.cpus == 1.5
    assert config.policy.paths == (PathRule(name="documents", root=f"{starting}/documents", max_file_bytes=10 << 20),)
    tree: Any = read("\n".join(lines), format)[0]
    assert {key.name for key in KEYS} - set(tree) == {"require_os_sandbox"}


def test_functions_by_their_path(base: Path) -> None:
    """load() and dump() go by the name of the file; other names are errors."""
    policy = Policy.workspace(base / "work")
    for name in ("x.toml", "x.JSON", *(["x.yml"] if "yaml" in needs("yaml") else [])):
        dump(policy, base / name)
        assert load(base / name) == Config(policy=policy, path=str(base / name))
    for name in ("x", "x.ini", "toml", "x.toml.bak"):
        with pytest.raises(PolicyError, match="isn't the name of a configuration file"):
            load(base / name)
    assert formats.format_of("a/b.c.yaml") == "yaml"
